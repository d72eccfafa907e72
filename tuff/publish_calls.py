"""Publishes: messages, checked and in columns; the calls that publish or store them; and those of a
transaction, which wait in memory for its commit."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar
from weakref import ref

from tuff.errors import OutsideTransactionWarning
from tuff.flows_and_repeated_calls import Call, Flow, Retries
from tuff.protocol import operations
from tuff.protocol.attributes import Attributes, checked_attributes, stored_size
from tuff.protocol.avro import encode_publish_request, encode_publish_request_2
from tuff.protocol.durations import Duration, seconds_of
from tuff.protocol.errors import EmptyPublishError, InternalError
from tuff.protocol.ids import (
    DelayedId,
    MessageId,
    MessageIds,
    Offset,
    TopicId,
    TopicLike,
    names_of,
    topic_of,
)
from tuff.protocol.json_bodies import delay_to_json, rollback_detail_from_json, shown
from tuff.protocol.media_types import Encoding, MediaType
from tuff.protocol.operations import Operation
from tuff.protocol.requests import (
    Ack,
    AckLike,
    Delay,
    PublishEntry,
    PublishRequest,
    RollbackDetail,
)
from tuff.replies import Published
from tuff.requests_and_responses import Request, Response, nothing, reply_json
from tuff.tracing import TRACING

V_co = TypeVar("V_co", covariant=True)
BUFFER_BYTES_MAX = 1 << 20  # bytes; as JSON at most 6 MiB, and a server accepts 16 MiB
MESSAGE_BYTES = (
    64  # bytes; counted for each message beside its payload, so that empty ones count too
)
_AVRO_2 = Encoding(MediaType.AVRO, 2).content_type  # messages with attributes

Payload = str | bytes | bytearray | memoryview
Headers = Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class NewMessage(Generic[V_co]):
    """A message to publish, with its attributes. A str is its UTF-8.

        client.publish(orders, tuff.NewMessage("sold", key="apple", tags=["retail"]))

    `tags`: up to 16 different texts of 1 to 64 characters of `A-Za-z0-9._-`; consumers can select
    by them. `headers`: a mapping, or pairs if a name repeats; up to 64. `ttl`: its time to live in
    whole seconds, at most that of the topic. The payload is a str or bytes, or in a
    `tuff.TypedTopic` a value of its type.
    """

    payload: V_co
    key: str | bytes | None = None
    tags: Iterable[str] = ()
    headers: Headers = ()
    ttl: Duration | None = None


Publishable = Payload | NewMessage[Payload]


class CheckedMessage(NamedTuple):
    """A message with attributes, or with a time to live of its own in seconds."""

    payload: bytes
    attributes: Attributes | None = None
    ttl_s: int | None = None


Checked = bytes | CheckedMessage  # most messages are only a payload, and then nothing is made


def checked(message: object) -> Checked:
    """The message in the form that is sent.

    Raises:
        TypeError: it is neither a str nor bytes, nor a NewMessage of these, or an attribute has the
            wrong type.
        ValueError: a string has half a surrogate pair, so it has no UTF-8; or an attribute is
            beyond its limits.
    """
    # The quick way of most messages.
    if type(message) is bytes:
        return message
    if type(message) is str and message.isascii():
        return message.encode()
    if not isinstance(message, NewMessage):
        return _bytes_of(message, "a message", _hint)
    payload = _bytes_of(message.payload, "a payload", _hint)
    key = None if message.key is None else _bytes_of(message.key, "a key")
    attributes = checked_attributes(key, _tags_of(message.tags), _headers_of(message.headers))
    ttl_s = ttl_of(message.ttl)
    if attributes is None and ttl_s is None:
        return payload
    return CheckedMessage(payload, attributes, ttl_s)


def attributed(
    payloads: Sequence[V_co | NewMessage[V_co]],
    *,
    key: str | bytes | None,
    tags: Iterable[str],
    headers: Headers,
) -> Sequence[V_co | NewMessage[V_co]]:
    """The payloads with the attributes that a publish names for all of them.

    Raises:
        TypeError: one of them is a NewMessage, which has attributes of its own.
    """
    if key is None and tags == () and headers == ():
        return payloads
    shared_tags, shared_headers = _tags_of(tags), _headers_of(headers)
    return [_attributed(each, key, shared_tags, shared_headers) for each in payloads]


def _attributed(
    payload: V_co | NewMessage[V_co],
    key: str | bytes | None,
    tags: list[str],
    headers: list[tuple[str, bytes]],
) -> NewMessage[V_co]:
    if isinstance(payload, NewMessage):
        raise TypeError(
            "a tuff.NewMessage has attributes of its own; give it the key, tags and headers, and "
            "not the publish"
        )
    return NewMessage(payload, key, tags, headers)


def all_checked(topic: TopicId, messages: Sequence[object]) -> list[Checked]:
    """The messages for one topic.

    Raises:
        EmptyPublishError: there are none.
        TypeError, ValueError: as `checked`.
    """
    if not messages:
        raise EmptyPublishError(f"nothing to publish to {topic}; give at least one message")
    found, tracer = list(map(checked, messages)), TRACING.tracer
    return found if tracer is None else tracer.created(topic, found)


def size_bytes(message: Checked) -> int:
    """The bytes of its payload and its attributes."""
    if isinstance(message, bytes):
        return len(message)
    return len(message.payload) + (stored_size(message.attributes) if message.attributes else 0)


class OpenBlock(Protocol):
    """The block of a transaction. `is_of_group`: it commits offsets or acknowledgements, too."""

    @property
    def is_in_transaction(self) -> bool: ...
    @property
    def is_of_group(self) -> bool: ...
    @property
    def retries(self) -> Retries: ...


_BLOCKS: ContextVar[tuple[ref[OpenBlock], ...]] = ContextVar("tuff_blocks", default=())


def open_blocks() -> list[OpenBlock]:
    """The blocks in which this thread or task is, or was started."""
    found = [each() for each in _BLOCKS.get()]
    return [each for each in found if each is not None and each.is_in_transaction]


def note_block(begun: OpenBlock) -> None:
    """This thread or task has begun a block."""
    _BLOCKS.set((*map(ref, open_blocks()), ref(begun)))


def warn_in_block(retries: Retries) -> None:
    """Warn if a publish without a transaction is called in the block of one of the same client,
    which `retries` are of."""
    if not _BLOCKS.get() or all(each.retries is not retries for each in open_blocks()):
        return
    level, frame = 1, sys._getframe()  # noqa: SLF001 - of CPython
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("tuff."):
        level, frame = level + 1, frame.f_back
    warnings.warn(
        "this publishes at once, outside of the transaction whose block is open: use "
        "`tx.publish(…)`, or give `transaction=tx.transaction`; what does not belong to the "
        "transaction is published before the block or after it",
        OutsideTransactionWarning,
        stacklevel=level,
    )


class Addition(NamedTuple):
    """The checked messages of one call: they are adjacent, and published together. `ttl_s` is for
    those without their own."""

    topic: TopicId
    messages: list[Checked]
    ttl_s: int | None = None
    delay: Delay | None = None

    @property
    def size_bytes(self) -> int:
        """What they count for in a batch and in the buffer."""
        if len(self.messages) == 1:  # as nearly always
            return cost_bytes(self.messages[0])
        return sum(map(cost_bytes, self.messages))

    def request(self, pointer: int | None) -> PublishRequest:
        """The request that publishes or stores them under this write pointer, or under none."""
        return request_of(self.messages, pointer, self.ttl_s)


def addition_of(
    topic: TopicLike,
    payloads: Sequence[Publishable],
    *,
    key: str | bytes | None = None,
    tags: Iterable[str] = (),
    headers: Headers = (),
    ttl: Duration | None = None,
    delay: Duration | None = None,
    at: datetime | int | None = None,
) -> Addition:
    """The messages that `Client.publish` publishes with these arguments. Raises as that."""
    ttl_s, delayed, to = ttl_of(ttl), delay_of(delay, at), topic_of(topic)
    messages: Sequence[Publishable] = attributed(payloads, key=key, tags=tags, headers=headers)
    return Addition(to, all_checked(to, messages), ttl_s, delayed)


def publish_entry(
    topic: TopicLike,
    *payloads: Publishable,
    key: str | bytes | None = None,
    tags: Iterable[str] = (),
    headers: Headers = (),
    ttl: Duration | None = None,
    pointer: int | None = None,
) -> PublishEntry:
    """A publish within a commit, for `client.transactions`; the arguments are those of
    `Client.publish`. Without payloads it publishes what was stored under the write pointer
    `pointer` (default: the current one of the transaction).

    Raises: TypeError, ValueError: as `Client.publish`.
    """
    if not payloads:
        return entry_of(topic_of(topic), [], pointer=pointer)
    added = addition_of(topic, payloads, key=key, tags=tags, headers=headers, ttl=ttl)
    messages = [with_ttl(each, added.ttl_s) for each in added.messages]
    return entry_of(added.topic, messages, pointer=pointer)


def entry_of(topic: TopicId, messages: Sequence[Checked], *, pointer: int | None) -> PublishEntry:
    """The publish of these messages within a commit; without any, of stored ones."""
    columns = request_of(messages, pointer, None)
    return PublishEntry(
        topic=topic,
        payloads=columns.payloads,
        ttls_s=columns.ttls_s,
        pointer=pointer,
        attributes=columns.attributes,
    )


def request_of(
    messages: Sequence[Checked], pointer: int | None, ttl_s: int | None
) -> PublishRequest:
    """The messages by column. `ttl_s` is for those without their own."""
    payloads = [each for each in messages if type(each) is bytes]
    if len(payloads) == len(messages):
        return PublishRequest(pointer, payloads, ttl_s=ttl_s)
    rows = [CheckedMessage(each) if isinstance(each, bytes) else each for each in messages]
    ttls_s = [row.ttl_s for row in rows]
    attributes = [row.attributes for row in rows]
    return PublishRequest(
        pointer,
        [row.payload for row in rows],
        None if all(each is None for each in ttls_s) else ttls_s,
        ttl_s,
        None if all(each is None for each in attributes) else attributes,
    )


def with_ttl(message: Checked, ttl_s: int | None) -> Checked:
    """The message with this time to live, unless it has its own."""
    if ttl_s is None:
        return message
    if isinstance(message, bytes):
        return CheckedMessage(message, ttl_s=ttl_s)
    return message if message.ttl_s is not None else message._replace(ttl_s=ttl_s)


@dataclass(slots=True)
class _Held:
    """The messages of one topic under one write pointer."""

    messages: list[Checked] = field(default_factory=list)
    is_spilled: bool = False


class _Place(NamedTuple):
    """Where the messages of one call are among those that wait."""

    held: _Held
    start: int
    message_count: int


class MessageBuffer:
    """The messages of one transaction, by topic and write pointer, in their order (protocol §3.2).

    Up to `BUFFER_BYTES_MAX` wait here and are sent with the commit. Later messages are stored on
    the server at once, and the commit refers to them; so a long transaction needs little memory.
    """

    def __init__(self) -> None:
        self._size_bytes = 0
        self._by_topic_and_pointer: dict[tuple[TopicId, int], _Held] = {}
        self._calls: list[_Place | Published] = []  # in the order of the program

    def add(self, pointer: int, addition: Addition, retries: Retries) -> Flow[Published]:
        """Add messages; returns what is known of them now. Those that do not fit are stored, and
        those with a delay are published under the transaction, at once."""
        topic, messages, ttl_s, delay = addition
        if delay is not None:
            request = addition.request(pointer)
            published = yield from retries.publish(partial(publish, topic, request, delay=delay))
            self._calls.append(published)
            return published
        held = self._by_topic_and_pointer.setdefault((topic, pointer), _Held())
        place = _Place(held, len(held.messages), len(messages))
        spilled = self._spilled(held, messages, ttl_s)
        for batch in _batches(spilled):
            yield from retries.ask(store(topic, request_of(batch, pointer, ttl_s)))
        self._calls.append(Published() if spilled else place)
        return Published()

    def _spilled(
        self, held: _Held, messages: Sequence[Checked], ttl_s: int | None
    ) -> list[Checked]:
        spilled: list[Checked] = []
        for message in messages:
            size_bytes = self._size_bytes + cost_bytes(message)
            # After the first stored message of a topic all later ones are stored too: the commit
            # places stored messages after inline ones, so a later inline one would overtake them.
            if held.is_spilled or size_bytes > BUFFER_BYTES_MAX:
                held.is_spilled = True
                spilled.append(message)
            else:
                self._size_bytes = size_bytes
                held.messages.append(with_ttl(message, ttl_s))
        return spilled

    def entries(self) -> list[PublishEntry]:
        """The publishes of the commit: of each topic and pointer its messages, then the stored."""
        entries: list[PublishEntry] = []
        for (topic, pointer), held in self._by_topic_and_pointer.items():
            if held.messages:
                entries.append(entry_of(topic, held.messages, pointer=pointer))
            if held.is_spilled:
                entries.append(entry_of(topic, (), pointer=pointer))
        return entries

    def published(self, details: Sequence[RollbackDetail]) -> list[Published]:
        """What each call has written, by the reply to the commit: a detail for each entry; none if
        the reply was lost."""
        firsts: dict[int, Offset] = {}
        left = iter(details)
        for held in self._by_topic_and_pointer.values():
            for is_inline in [True] * bool(held.messages) + [False] * held.is_spilled:
                detail = next(left, None)
                if is_inline and detail is not None:
                    firsts[id(held)] = detail.first
        return [
            each if isinstance(each, Published) else _published(firsts.get(id(each.held)), each)
            for each in self._calls
        ]


def cost_bytes(message: Checked) -> int:
    """What a message counts for in a buffer: its bytes, and something for itself."""
    if type(message) is bytes:  # as nearly always, and called several times for each message
        return len(message) + MESSAGE_BYTES
    return size_bytes(message) + MESSAGE_BYTES


def _published(first: Offset | None, place: _Place) -> Published:
    if first is None:
        return Published()
    return Published(
        ids=MessageIds(Offset.from_int(first.to_int() + place.start), place.message_count)
    )


def _batches(messages: Sequence[Checked]) -> Iterator[list[Checked]]:
    batch: list[Checked] = []
    batch_bytes = 0
    for message in messages:
        batch_bytes += cost_bytes(message)
        if batch and batch_bytes > BUFFER_BYTES_MAX:
            yield batch
            batch, batch_bytes = [], cost_bytes(message)
        batch.append(message)
    if batch:
        yield batch


def _bytes_of(value: object, what: str, hint: Callable[[object], str] | None = None) -> bytes:
    match value:
        case str():
            try:
                return value.encode("utf-8")
            except UnicodeEncodeError as error:
                raise ValueError(f"{what} has half a surrogate pair: {error}") from None
        case bytes() | bytearray() | memoryview():
            return bytes(value)
        case _:
            advice = "" if hint is None else hint(value)
            raise TypeError(f"{what} is str or bytes, not {type(value).__name__}{advice}")


def _hint(value: object) -> str:
    if isinstance(value, list | tuple | set | frozenset | Iterator):
        return "; publish several messages with publish(topic, *messages)"
    return "; encode it first, for example with json.dumps, or use client.topic(topic, serializer)"


def _tags_of(tags: Iterable[str]) -> list[str]:
    if isinstance(tags, str | bytes) or not isinstance(tags, Iterable):
        raise TypeError(f"tags are strings in a list, as tags=['retail'], and not {tags!r:.100}")
    found = list(tags)
    for tag in found:
        if not isinstance(tag, str):
            raise TypeError(f"a tag is a str, not {type(tag).__name__}")
    return found


def _headers_of(headers: object) -> list[tuple[str, bytes]]:
    pairs = list(headers.items()) if isinstance(headers, Mapping) else headers
    if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
        raise TypeError(
            "headers are a mapping of names to values, as headers={'traceparent': '00-…'}, or "
            f"pairs, and not {headers!r:.100}"
        )
    return list(map(_header_of, pairs))


def _header_of(pair: object) -> tuple[str, bytes]:
    match pair:
        case (str() as name, value):
            return name, _bytes_of(value, f"the value of the header {name}")
        case _:
            raise TypeError(
                f"a header is a name (str) and a value (str or bytes), not {pair!r:.100}"
            )


def ttl_of(ttl: Duration | None) -> int | None:
    """A time to live in whole seconds, or None for None.

    Raises:
        TypeError: as `seconds_of`.
        ValueError: it is not a whole number of seconds.
    """
    if ttl is None or (type(ttl) is int):
        return ttl  # the server says which ones are in its range
    seconds = seconds_of(ttl, what="ttl")
    if seconds != int(seconds):
        raise ValueError(f"ttl is a whole number of seconds, not {seconds}")
    return int(seconds)


def delay_of(delay: Duration | None, at: datetime | int | None) -> Delay | None:
    """The delay that a publish names; `at` is a time with a zone, or ms since the epoch.

    Raises:
        TypeError, ValueError: it is none, or both are there.
    """
    if at is None:
        if delay is None:
            return None
        return Delay(round(seconds_of(delay, what="delay") * 1000), is_time=False)
    if delay is not None:
        raise ValueError("messages are delayed by either delay or at, and not by both")
    said: object = at
    if isinstance(said, int) and not isinstance(said, bool):
        return Delay(said, is_time=True)
    if isinstance(said, datetime) and said.tzinfo is not None:
        return Delay(round(said.timestamp() * 1000), is_time=True)
    kind = ValueError if isinstance(said, datetime) else TypeError
    raise kind(f"at is a datetime with a time zone, or ms since the epoch, and not {said!r:.100}")


def ack_of(ack: AckLike) -> Ack:
    """Raises: ValueError: there is no such level."""
    if ack not in tuple(Ack):
        raise ValueError(f"ack is none, received or durable, not {shown(ack)}")
    return Ack(ack)


def publish(
    topic: TopicLike,
    request: PublishRequest,
    *,
    ack: Ack = Ack.DURABLE,
    delay: Delay | None = None,
    request_id: str | None = None,
) -> Call[Published]:
    """Publish messages, of which there is at least one. With an id it may be sent again; with the
    ack `NONE` its loss is never noticed, and it has none."""

    def read(response: Response) -> Published:
        if ack is Ack.NONE:
            nothing(response)
            return Published()
        count = len(request.payloads)
        return Published(
            ids=_ids(response.headers, count) if delay is None else (),
            delayed_ids=() if delay is None else _delayed_ids(response.headers, count),
            rollback=None if request.pointer is None else _read_rollback(response),
            partitions=_partitions(response.headers, topic_of(topic)),
        )

    level = None if ack is Ack.DURABLE else ack
    delayed = {} if delay is None else delay_to_json(delay)
    own_id = None if ack is Ack.NONE else request_id
    sent = _messages_request(
        operations.PUBLISH, topic, request, ack=level, **delayed, requestId=own_id
    )
    return Call(sent, read)


def publish_stored(
    topic: TopicLike, pointer: int, *, request_id: str | None = None
) -> Call[RollbackDetail]:
    """Publish what was stored with this pointer."""
    request = PublishRequest(pointer, payloads=())
    sent = _messages_request(operations.PUBLISH, topic, request, requestId=request_id)
    return Call(sent, _read_rollback)


def _read_rollback(response: Response) -> RollbackDetail:
    return rollback_detail_from_json(reply_json(response))


def _partitions(headers: Mapping[str, str], topic: TopicId) -> tuple[int, ...]:
    if numbers := headers.get("tuff-partitions"):
        return tuple(map(int, numbers.split(",")))
    return () if topic.number is None else (topic.number,)


def _ids(headers: Mapping[str, str], count: int) -> MessageIds:
    """The ids of the messages of one publish: their offsets are consecutive (protocol §3.1)."""
    digits = headers["tuff-first-id"]
    first = MessageId.from_hex(digits).offset
    if count > 1 or headers["tuff-last-id"] != digits:
        last = MessageId.from_hex(headers["tuff-last-id"]).offset
        _check_count(first, last, count)
    return MessageIds(first, count)


def _delayed_ids(headers: Mapping[str, str], count: int) -> tuple[str, ...]:
    first = DelayedId.from_hex(headers["tuff-delayed-first"])
    last = DelayedId.from_hex(headers["tuff-delayed-last"])
    _check_count(first.offset, last.offset, count)
    start = first.offset.to_int()
    return tuple(
        [first._replace(offset=Offset.from_int(start + index)).hex() for index in range(count)]
    )


def _check_count(first: Offset, last: Offset, count: int) -> None:
    found = last.to_int() - first.to_int() + 1
    if found != count:
        raise InternalError(
            f"{count} messages were published, but the server answered {found} offsets; the "
            "messages exist, and their ids are unknown"
        )


def store(topic: TopicLike, request: PublishRequest) -> Call[None]:
    return Call(_messages_request(operations.STORE, topic, request), nothing)


def _messages_request(
    operation: Operation, topic: TopicLike, request: PublishRequest, **query: str | float | None
) -> Request:
    # As JSON, payloads that are not UTF-8 would be base64. The reply is JSON: one small object.
    is_plain = request.attributes is None and request.ttls_s is None
    return Request(
        operation=operation,
        parameters=names_of(topic),
        query={"ttl": request.ttl_s, **query},
        body=encode_publish_request(request) if is_plain else encode_publish_request_2(request),
        content_type=MediaType.AVRO.value if is_plain else _AVRO_2,
        # Without a transaction the reply has no body. A session writes several calls without an
        # `accept` together.
        accept=None if request.pointer is None else MediaType.JSON.value,
        has_id="requestId" in query and query["requestId"] is not None,
    )
