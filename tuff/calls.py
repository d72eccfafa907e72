"""Calls as values: the request to send, and how to read its response (protocol §2, §3).

A transport sends them; nothing here does I/O. First what a call is, and how arguments and replies
are checked; then the calls about topics and messages. Those about transactions and sinks are in
`tuff.transaction_calls`.
"""

import json
import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar
from urllib.parse import quote, urlencode

from tuff.protocol.attributes import NO_ATTRIBUTES
from tuff.protocol.avro import (
    decode_messages,
    decode_messages_2,
    encode_publish_request,
    encode_publish_request_2,
)
from tuff.protocol.errors import (
    BadRequestError,
    InternalError,
    TuffError,
    from_problem,
)
from tuff.protocol.exchange import Form, MediaType
from tuff.protocol.ids import FIRST_ID, MessageId, TopicId, check_name
from tuff.protocol.json_forms import (
    attributes_from_json,
    delay_to_json,
    payload_from_json,
    pointer_from_json,
    rollback_detail_from_json,
    rollback_detail_to_json,
    shown,
    whole_number,
)
from tuff.protocol.requests import (
    Ack,
    AckLike,
    Delay,
    Isolation,
    IsolationLike,
    Message,
    PublishRequest,
    RollbackDetail,
)
from tuff.protocol.transaction import Transaction
from tuff.replies import (
    DelayedMessage,
    Health,
    HealthCheck,
    HealthStatus,
    Hold,
    NamedPosition,
    Offsets,
    Poll,
    Published,
    PublishedDelayed,
    Split,
    Splits,
    TopicInfo,
)

if TYPE_CHECKING:
    from pyarrow import RecordBatch

K = TypeVar("K")
T = TypeVar("T")

_AVRO_2 = Form(MediaType.AVRO, 2).content_type  # messages with attributes
_ARROW_2 = Form(MediaType.ARROW, 2).content_type
Duration = float | timedelta  # a float is in seconds
IdOrHex = MessageId | str
Start = MessageId | str | datetime | int
Properties = Mapping[str, str | int]
Undecided = Literal["hold", "skip"]  # what a read does at an undecided message
EARLIEST = "earliest"  # a start: the oldest message
LATEST = "latest"  # a start of subscriptions: behind all messages that are there when it begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request. `path` is escaped and includes the query. Its body is `form`, a value that
    the transport encodes, in JSON over HTTP, or `body`, bytes of `content_type`.

    `accept`: the media type of the reply, if it is not JSON. `wait_s`: how long the server may wait
    before it answers. `is_read`: it changes nothing, so a lost reply leaves no doubt.
    `is_repeatable`: sending it twice has the effect of sending it once (protocol §1, Idempotence),
    as every read has. `trace_headers`: the trace context, for a server that records spans.
    """

    method: str
    path: str
    body: bytes | None = None
    form: object = None
    content_type: str = "application/json"
    accept: str | None = None
    wait_s: float = 0.0
    is_read: bool = False
    is_repeatable: bool = False
    trace_headers: tuple[tuple[str, str], ...] = ()

    @property
    def is_safe_to_repeat(self) -> bool:
        """Whether a repetition has no second effect."""
        return self.is_read or self.is_repeatable

    @property
    def content(self) -> bytes | None:
        """The body as HTTP sends it; None without one."""
        return self.body if self.form is None else json_body(self.form)


@dataclass(frozen=True, slots=True)
class Response:
    """One response; header names are in lower case. `form`: the body of a reply of a session, as a
    value in place of JSON."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    form: object = None

    @property
    def problem(self) -> Mapping[str, object]:
        """The problem document of a Tuff server; empty for any other body, such as a proxy's."""
        try:
            body = json.loads(self.body) if self.form is None else self.form
        except ValueError:
            return {}
        return body if isinstance(body, dict) else {}

    @property
    def retry_after_s(self) -> float:
        """How long the client should wait before the next attempt, in seconds."""
        value = self.headers.get("retry-after", "")
        # A proxy may send a date here, which is ignored.
        return float(value) if value.isascii() and value.isdigit() else 0.0


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One round trip: the request, and how to read its response.

    `unready_status`: an error status whose response `read` takes too. `batched_as`: the kind of
    calls with which it may be sent in one request, on one event loop.
    """

    request: Request
    read: Callable[[Response], T]
    unready_status: int | None = None
    batched_as: str | None = None

    def answer(self, response: Response) -> T:
        """The value of a response.

        Raises:
            TuffError: the class of the problem that the server reports; InternalError if the
                response does not follow the protocol.
        """
        is_unready = self.is_unready(response)
        if response.status >= HTTPStatus.BAD_REQUEST and not is_unready:
            raise _refusal(response)
        what = f"{self.request.method} {self.request.path}"
        if not (is_unready or HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES):
            elsewhere = response.headers.get("location")
            sent_to = "" if elsewhere is None else f" and sent to {elsewhere}"
            raise InternalError(
                f"{what} was answered {response.status}{sent_to}, which no Tuff server does; check "
                "the address"
            )
        try:
            return self.read(response)
        except (TuffError, ValueError, KeyError, AttributeError) as error:
            raise InternalError(
                f"{what} was answered in a form that no Tuff server uses ({error}); check the "
                "address"
            ) from error

    def is_unready(self, response: Response) -> bool:
        """Whether the response has `unready_status` and comes from the server, not a proxy."""
        return response.status == self.unready_status and "checks" in response.problem


def _refusal(response: Response) -> TuffError:
    error = from_problem(response.problem, status=response.status)
    error.retry_after_s = response.retry_after_s
    return error


def json_body(value: object) -> bytes:
    """A request body. Half a surrogate pair in a string is escaped, for the server to refuse."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def get(path: str, read: Callable[[Response], T]) -> Call[T]:
    """A GET request, which changes nothing."""
    return Call(Request(method="GET", path=path, is_read=True), read)


def reply_object(response: Response) -> Mapping[str, object]:
    """The members of a reply. Raises: BadRequestError: it is no JSON object."""
    return json_object(_json(response))


def json_object(value: object) -> Mapping[str, object]:
    """Raises: BadRequestError: it is no object."""
    if not isinstance(value, dict):
        raise BadRequestError(f"a JSON object was expected, not {shown(value)}")
    return value


def json_array(value: object) -> list[object]:
    """Raises: BadRequestError: it is no array."""
    if not isinstance(value, list):
        raise BadRequestError(f"a JSON array was expected, not {shown(value)}")
    return value


def text(value: object) -> str:
    """Raises: BadRequestError: it is no string."""
    if not isinstance(value, str):
        raise BadRequestError(f"a string was expected, not {shown(value)}")
    return value


def texts(value: object) -> list[str]:
    """Raises: BadRequestError: it is no array of strings."""
    return [text(item) for item in json_array(value)]


def reply_texts(response: Response) -> list[str]:
    """A reply that is a list. Raises: BadRequestError: it is no array of strings."""
    return texts(_json(response))


def nothing(response: Response) -> None:
    """Reads an empty body. Raises: BadRequestError: the body is not JSON."""
    if response.body:
        _json(response)


def maybe_pointer(value: object, *, what: str) -> int | None:
    """A pointer, or None for null. Raises: BadRequestError: neither."""
    return None if value is None else pointer_from_json(value, what=what)


def query(**parameters: str | float | None) -> str:
    """`?name=value&…` of the parameters that are not None; empty without any."""
    given = {name: value for name, value in parameters.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def seconds_of(duration: object, *, what: str) -> float:
    """A duration in seconds.

    Raises:
        TypeError: it is neither a number of seconds nor a timedelta.
        ValueError: it is not finite, or below 0.
    """
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        seconds = duration
    else:
        raise TypeError(
            f"{what} is a number of seconds or a timedelta, not {type(duration).__name__}"
        )
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{what} is a number of seconds from 0 on, not {seconds}")
    return seconds


def maybe_seconds_of(duration: Duration | None, *, what: str) -> float | None:
    """As `seconds_of`, or None for None."""
    return None if duration is None else seconds_of(duration, what=what)


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


def topic_properties(
    ttl: Duration | None, properties: Properties | None, partitions: int | None = None
) -> dict[str, object]:
    """The properties of a topic, including its ttl in seconds and its number of partitions."""
    given: dict[str, object] = dict(mapping(properties or {}, "properties"))
    if ttl is not None:
        given["ttl"] = ttl_of(ttl)
    if partitions is not None:
        given["partitions"] = partitions
    return given


def of_type(value: object, kind: type[T], what: str) -> T:
    """The value itself. Raises: TypeError: it is of another type."""
    if not isinstance(value, kind):
        raise TypeError(f"{what} has the type {kind.__name__}, and not {value!r:.100}")
    return value


def members(values: Iterable[T], what: str) -> list[T]:
    """The values of a collection. Raises: TypeError: it is none, or a string."""
    given: object = values
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"{what} is a collection, as a list, and not {given!r:.100}")
    return list(values)


def mapping(values: Mapping[K, T], what: str) -> Mapping[K, T]:
    """The mapping itself. Raises: TypeError: it is none."""
    given: object = values
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} is a mapping, as a dict, and not {given!r:.100}")
    return values


def checked_topic(topic: object) -> TopicId:
    """The topic itself. Raises: TypeError: it is no TopicId, for example a string."""
    if not isinstance(topic, TopicId):
        raise TypeError(
            f"a topic is a tuff.TopicId, as tuff.TopicId('shop', 'orders'), and not {shown(topic)}"
        )
    return topic


def topic_path(topic: TopicId) -> str:
    """The path of a topic, escaped. Raises: TypeError: it is no TopicId."""
    checked_topic(topic)
    return f"/v1/namespaces/{quote(topic.namespace)}/topics/{quote(topic.name, safe=':')}"


def create_topic(topic: TopicId, properties: Mapping[str, object]) -> Call[None]:
    return Call(Request(method="PUT", path=topic_path(topic), form=properties), nothing)


def update_topic(topic: TopicId, properties: Mapping[str, object]) -> Call[None]:
    path = f"{topic_path(topic)}/properties"
    return Call(Request(method="PUT", path=path, form=properties), nothing)


def delete_topic(topic: TopicId) -> Call[None]:
    return Call(Request(method="DELETE", path=topic_path(topic)), nothing)


def get_topic(topic: TopicId) -> Call[TopicInfo]:
    def read(response: Response) -> TopicInfo:
        body = reply_object(response)
        properties = json_object(body["properties"])
        return TopicInfo(
            topic=topic,
            generation=whole_number(body["generation"], what="generation"),
            properties={name: text(value) for name, value in properties.items()},
            partitions=_numbers(body.get("partitions", [0])),
            retired=_numbers(body.get("retired", [])),
        )

    return get(topic_path(topic), read)


def _numbers(value: object) -> tuple[int, ...]:
    return tuple(whole_number(item, what="a partition") for item in json_array(value))


def list_topics(namespace: str) -> Call[list[str]]:
    name = quote(check_name(namespace, what="namespace"))
    return get(f"/v1/namespaces/{name}/topics", reply_texts)


def list_namespaces() -> Call[list[str]]:
    return get("/v1/namespaces", reply_texts)


def splits(
    topic: TopicId, count: int, *, start: IdOrHex | None, end: IdOrHex | None
) -> Call[Splits]:
    def read(response: Response) -> Splits:
        body = reply_object(response)
        parts = tuple(_read_split(json_object(item)) for item in json_array(body["splits"]))
        return Splits(whole_number(body["generation"], what="generation"), parts)

    return get(
        f"{topic_path(topic)}/splits{query(n=count, start=_hex(start), end=_hex(end))}", read
    )


def _read_split(body: Mapping[str, object]) -> Split:
    return Split(_maybe_id(body["start"]), MessageId.from_hex(text(body["end"])))


def latest_position(topic: TopicId) -> Call[MessageId]:
    """A position behind all messages that are published by now, and before all later ones."""
    path = f"{topic_path(topic)}/messages?from=latest&limit=1"
    return get(path, lambda response: MessageId.from_hex(response.headers["tuff-next"]))


def truncate(topic: TopicId, before: Start, *, latest: MessageId) -> Call[MessageId | None]:
    """`latest`: the answer of `latest_position`, which replaces a `before` behind it. A position in
    the future would remove all that exists when the request arrives, so a repetition would also
    remove what was published in between."""
    form = _start_form(before)
    if _is_behind(form, latest):
        form = latest.hex()
    request = Request(
        method="POST",
        path=f"{topic_path(topic)}/truncate",
        form={"before": form},
        is_repeatable=True,
    )
    return Call(request, lambda response: _maybe_id(reply_object(response)["earliest"]))


def _is_behind(form: str | int, latest: MessageId) -> bool:
    if isinstance(form, str):
        return MessageId.from_hex(form) > latest
    return form > latest.publish_timestamp_ms


def set_hold(topic: TopicId, name: str, start: Start, *, max_age_s: float) -> Call[Hold]:
    body = {"from": _start_form(start), "maxAge": max_age_s}
    return _put_named(topic, "holds", name, body, _read_hold)


def list_holds(topic: TopicId) -> Call[list[Hold]]:
    return _list_named(topic, "holds", _read_hold)


def delete_hold(topic: TopicId, name: str) -> Call[None]:
    return Call(Request(method="DELETE", path=_named_path(topic, "holds", name)), nothing)


def set_position(topic: TopicId, name: str, position: IdOrHex) -> Call[NamedPosition]:
    return _put_named(topic, "positions", name, {"position": _hex(position)}, _read_position)


def get_position(topic: TopicId, name: str) -> Call[NamedPosition]:
    path = _named_path(topic, "positions", name)
    return get(path, lambda response: _read_position(reply_object(response)))


def list_positions(topic: TopicId) -> Call[list[NamedPosition]]:
    return _list_named(topic, "positions", _read_position)


def delete_position(topic: TopicId, name: str) -> Call[None]:
    return Call(Request(method="DELETE", path=_named_path(topic, "positions", name)), nothing)


def _named_path(topic: TopicId, kind: str, name: str) -> str:
    return f"{topic_path(topic)}/{kind}/{quote(check_name(name, what='name'))}"


def _put_named(
    topic: TopicId,
    kind: str,
    name: str,
    body: Mapping[str, object],
    read: Callable[[Mapping[str, object]], T],
) -> Call[T]:
    path = _named_path(topic, kind, name)
    request = Request(method="PUT", path=path, form=body, is_repeatable=True)
    return Call(request, lambda response: read(reply_object(response)))


def _list_named(
    topic: TopicId, kind: str, read: Callable[[Mapping[str, object]], T]
) -> Call[list[T]]:
    def read_all(response: Response) -> list[T]:
        return [read(json_object(item)) for item in json_array(reply_object(response)[kind])]

    return get(f"{topic_path(topic)}/{kind}", read_all)


def _read_hold(body: Mapping[str, object]) -> Hold:
    return Hold(
        name=text(body["name"]),
        first=MessageId.from_hex(text(body["from"])),
        set_at_ms=whole_number(body["setAt"], what="setAt"),
        expires_at_ms=whole_number(body["expiresAt"], what="expiresAt"),
    )


def _read_position(body: Mapping[str, object]) -> NamedPosition:
    return NamedPosition(
        name=text(body["name"]),
        position=MessageId.from_hex(text(body["position"])),
        generation=whole_number(body["generation"], what="generation"),
        updated_at_ms=whole_number(body["updatedAt"], what="updatedAt"),
    )


def ack_of(ack: AckLike) -> Ack:
    """Raises: ValueError: there is no such level."""
    if ack not in tuple(Ack):
        raise ValueError(f"ack is none, received or durable, not {shown(ack)}")
    return Ack(ack)


def publish(topic: TopicId, request: PublishRequest, *, ack: Ack = Ack.DURABLE) -> Call[Published]:
    """A publish whose reply has ids: `ack` is not `NONE`."""
    pointer = request.pointer

    def read(response: Response) -> Published:
        numbers = response.headers.get("tuff-partitions")
        return Published(
            first_id=MessageId.from_hex(response.headers["tuff-first-id"]),
            last_id=MessageId.from_hex(response.headers["tuff-last-id"]),
            rollback=None if pointer is None else rollback_detail_from_json(_json(response)),
            partitions=tuple(map(int, numbers.split(","))) if numbers else (),
        )

    return Call(_publish_request(topic, request, None, ack), read)


def publish_unacknowledged(
    topic: TopicId, request: PublishRequest, delay: Delay | None
) -> Call[None]:
    """A publish whose reply has no ids."""
    return Call(_publish_request(topic, request, delay, Ack.NONE), nothing)


def _publish_request(
    topic: TopicId, request: PublishRequest, delay: Delay | None, ack: Ack
) -> Request:
    # An older server does not know the parameter, and its answers are durable.
    level = None if ack is Ack.DURABLE else ack
    delayed = {} if delay is None else delay_to_json(delay)
    return _messages_request(topic, "publish", request, ack=level, **delayed)


def store(topic: TopicId, request: PublishRequest) -> Call[None]:
    return Call(_messages_request(topic, "store", request), nothing)


def _messages_request(
    topic: TopicId, action: str, request: PublishRequest, **parameters: str | float | None
) -> Request:
    # As JSON, payloads that are not UTF-8 would be base64. The reply is JSON: one small object.
    is_plain = request.attributes is None and request.ttls_s is None
    return Request(
        method="POST",
        path=f"{topic_path(topic)}/{action}{query(ttl=request.ttl_s, **parameters)}",
        body=encode_publish_request(request) if is_plain else encode_publish_request_2(request),
        content_type=MediaType.AVRO.value if is_plain else _AVRO_2,
        accept=MediaType.JSON.value,
    )


def publish_delayed(
    topic: TopicId, request: PublishRequest, delay: Delay, *, ack: Ack = Ack.DURABLE
) -> Call[PublishedDelayed]:
    """A publish of messages that enter the topic later. `ack` is not `NONE`."""

    def read(response: Response) -> PublishedDelayed:
        return PublishedDelayed(
            count=int(response.headers["tuff-delayed"]),
            first_id=response.headers["tuff-delayed-first"],
            last_id=response.headers["tuff-delayed-last"],
            rollback=None
            if request.pointer is None
            else rollback_detail_from_json(_json(response)),
        )

    return Call(_publish_request(topic, request, delay, ack), read)


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
    at_ms = _start_form(at)
    if not isinstance(at_ms, int):
        raise TypeError(f"at is a datetime or ms since the epoch, not {at!r}")
    return Delay(at_ms, is_time=True)


def list_delayed(
    topic: TopicId, *, after: str | None, limit: int, payloads: bool
) -> Call[list[DelayedMessage]]:
    with_payloads = "true" if of_type(payloads, bool, "payloads") else None
    parameters = query(after=after, limit=limit, payloads=with_payloads)

    def read(response: Response) -> list[DelayedMessage]:
        found = json_array(reply_object(response)["delayed"])
        return [_read_delayed(json_object(each)) for each in found]

    return get(f"{topic_path(topic)}/delayed{parameters}", read)


def _read_delayed(body: Mapping[str, object]) -> DelayedMessage:
    attributes = attributes_from_json(body) or NO_ATTRIBUTES
    return DelayedMessage(
        id=text(body["id"]),
        due_ms=whole_number(body["due"], what="due"),
        size=whole_number(body["size"], what="size"),
        ttl_s=whole_number(body["ttl"], what="ttl") if "ttl" in body else None,
        payload=payload_from_json(body["payload"]) if "payload" in body else None,
        key=attributes.key,
        tags=attributes.tags,
        headers=attributes.headers,
    )


def cancel_delayed(topic: TopicId, delayed_id: str) -> Call[None]:
    """Raises: TypeError: it is no delayed id, as a message id is none."""
    if not isinstance(delayed_id, str):
        raise TypeError(
            "a delayed message has a text as its id, as in the first_id of a publish with a delay "
            f"and in client.delayed.list(topic), and not {delayed_id!r:.100}"
        )
    return Call(Request(method="DELETE", path=_named_path(topic, "delayed", delayed_id)), nothing)


def rollback(topic: TopicId, detail: RollbackDetail) -> Call[None]:
    form = rollback_detail_to_json(of_type(detail, RollbackDetail, "detail"))
    path = f"{topic_path(topic)}/rollback"
    return Call(Request(method="POST", path=path, form=form, is_repeatable=True), nothing)


@dataclass(frozen=True, slots=True, kw_only=True)
class PollQuestion:
    """Where to read from, in which view, how much, and how long to wait for it (protocol §3.4).

    `transaction`: a snapshot to read in, or the write pointer of one that is in progress. Without
    `transaction` and `isolation` it reads what is committed. `tags`: only messages with these tags.
    """

    start: Start | None = None
    inclusive: bool = True
    limit: int | None = None
    transaction: Transaction | int | None = None
    isolation: IsolationLike | None = None
    undecided: Undecided = "hold"
    wait_s: float = 0.0
    through: MessageId | str | None = None
    tags: str | None = None

    def __post_init__(self) -> None:
        """Raises: TypeError: `inclusive` is of another type."""
        of_type(self.inclusive, bool, "inclusive")


def poll(topic: TopicId, question: PollQuestion) -> Call[Poll]:
    # As JSON, payloads that are not UTF-8 would be base64, and a thousand messages take twice as
    # long to read. An older server knows only schema 1, and no attributes.
    return Call(_poll_request(topic, question, accept=_AVRO_2), _read_poll)


def wait_for_partitions(
    topic: TopicId, after: Mapping[int, MessageId], question: PollQuestion, *, added: bool = False
) -> Call[list[int]]:
    """Which of these partitions have something to read behind their ids, in the view of the
    question and within its wait. With `added` also those with higher numbers than these."""
    wait_s = question.wait_s
    parameters = query(
        isolation=_isolation(question),
        wait=wait_s or None,
        tags=question.tags,
        added="true" if added else None,
    )
    request = Request(
        method="POST",
        path=f"{topic_path(topic)}/wait{parameters}",
        form={"after": {str(number): id.hex() for number, id in after.items()}},
        wait_s=wait_s,
        is_read=True,
    )

    def read(response: Response) -> list[int]:
        numbers = json_array(reply_object(response)["partitions"])
        return [whole_number(each, what="a partition") for each in numbers]

    return Call(request, read)


@dataclass(frozen=True, slots=True, kw_only=True)
class PollBatch:
    """The messages of one read as a record batch with the columns `id`, `value`, `timestamp`,
    `generation` and `write_pointer`, and if they were asked for `key`, `tags` and `headers`; the
    other fields are those of `tuff.Poll`."""

    batch: "RecordBatch"
    next_id: MessageId
    caught_up: bool
    blocked_by: int | None
    expired: bool
    archived: bool = False
    blocked_by_database: str | None = None
    blocked_since_ms: int | None = None

    def __len__(self) -> int:
        return int(self.batch.num_rows)


def poll_batch(
    topic: TopicId, question: PollQuestion, *, attributes: bool = False
) -> Call[PollBatch]:
    """A read whose reply is an Arrow stream; client and server need pyarrow."""
    form = _ARROW_2 if of_type(attributes, bool, "attributes") else MediaType.ARROW.value
    return Call(_poll_request(topic, question, accept=form), partial(_read_batch, form=form))


def _poll_request(topic: TopicId, question: PollQuestion, *, accept: str) -> Request:
    transaction = of_type(question, PollQuestion, "question").transaction
    wait_s = seconds_of(question.wait_s, what="wait")
    parameters = query(
        isolation=_isolation(question),
        tx=transaction if isinstance(transaction, int) else None,
        undecided=None if question.undecided == "hold" else question.undecided,
        wait=wait_s or None,
        through=_hex(question.through),
        tags=question.tags,
    )
    return Request(
        method="POST",
        path=f"{topic_path(topic)}/poll{parameters}",
        form=_consume_request(question),
        accept=accept,
        wait_s=wait_s,
        is_read=True,
    )


def _isolation(question: PollQuestion) -> IsolationLike | None:
    # The server's own default is to read everything, and a transaction defines what is seen.
    if question.isolation is None and question.transaction is None:
        return Isolation.COMMITTED
    return question.isolation


def _consume_request(question: PollQuestion) -> dict[str, object]:
    body: dict[str, object] = {"inclusive": question.inclusive}
    if question.start not in (None, EARLIEST):
        body["startFrom"] = _start_form(question.start)
    if question.limit is not None:
        body["limit"] = question.limit
    if isinstance(question.transaction, Transaction):
        body["transaction"] = b64encode(question.transaction.to_bytes()).decode("ascii")
    return body


def _read_poll(response: Response) -> Poll:
    return Poll(messages=_read_messages(response), **_poll_fields(response.headers))


def _read_batch(response: Response, *, form: str) -> PollBatch:
    return PollBatch(batch=_read_record_batch(response, form), **_poll_fields(response.headers))


def _poll_fields(headers: Mapping[str, str]) -> dict[str, Any]:
    """What a poll says beside its messages."""
    since = headers.get("tuff-blocked-since")
    return {
        "next_id": MessageId.from_hex(headers["tuff-next"]),
        "caught_up": headers.get("tuff-caught-up") == "true",
        "blocked_by": maybe_pointer(headers.get("tuff-blocked-by"), what="Tuff-Blocked-By"),
        "expired": headers.get("tuff-expired") == "true",
        "archived": headers.get("tuff-archive") == "true",
        "blocked_by_database": headers.get("tuff-blocked-database"),
        "blocked_since_ms": None if since is None else int(since),
    }


def _read_messages(response: Response) -> tuple[Message, ...]:
    from_bytes = MessageId.from_bytes
    match response.headers.get("content-type"):
        case MediaType.AVRO.value:
            found = decode_messages(response.body)
            return tuple([Message(from_bytes(id), payload) for id, payload in found])
        case form if form == _AVRO_2:
            with_attributes = decode_messages_2(response.body)
            return tuple(
                [
                    Message(from_bytes(id), payload)
                    if attributes is NO_ATTRIBUTES
                    else Message(from_bytes(id), payload, *attributes)
                    for id, payload, attributes in with_attributes
                ]
            )
        case _:
            raise BadRequestError(f"the reply is no {MediaType.AVRO.value}")


def _read_record_batch(response: Response, form: str) -> "RecordBatch":
    from pyarrow import ArrowInvalid, ipc

    if response.headers.get("content-type") != form:
        raise BadRequestError(f"the reply is no {form}")
    try:
        # The columns refer to the bytes of the reply; none is copied.
        with ipc.open_stream(response.body) as stream:
            return stream.read_next_batch()
    except (ArrowInvalid, StopIteration) as error:
        raise BadRequestError(f"the reply is no Arrow stream: {error}") from None


def offsets(topic: TopicId, *, isolation: IsolationLike | None) -> Call[Offsets]:
    """The offsets in the view of `isolation`; None: of all messages."""

    def read(response: Response) -> Offsets:
        body = reply_object(response)
        return Offsets(
            generation=whole_number(body["generation"], what="generation"),
            earliest=_maybe_id(body["earliest"]),
            end=_maybe_id(body["end"]),
            blocked_by=maybe_pointer(body["blockedBy"], what="blockedBy"),
        )

    return get(f"{topic_path(topic)}/offsets{query(isolation=isolation)}", read)


def health() -> Call[Health]:
    """The state of the server, also while it is not ready."""
    request = Request(method="GET", path="/health/ready", is_read=True)
    return Call(request, _read_health, unready_status=HTTPStatus.SERVICE_UNAVAILABLE)


def metrics() -> Call[str]:
    """The metrics, in the text format of Prometheus."""
    return get("/metrics", lambda response: response.body.decode("utf-8"))


def _read_health(response: Response) -> Health:
    body = reply_object(response)
    checks = {name: json_object(check) for name, check in json_object(body["checks"]).items()}
    return Health(
        status=HealthStatus(text(body["status"])),
        checks={
            name: HealthCheck(HealthStatus(text(check["status"])), text(check.get("detail", "")))
            for name, check in checks.items()
        },
        version=None if body.get("version") is None else text(body["version"]),
    )


def _start_form(start: Start) -> str | int:
    match start:
        case "earliest":
            return FIRST_ID.hex()
        case "latest":
            raise ValueError(
                "'latest' is where a subscription can start; any other call takes the `end` that "
                "client.offsets(topic) answers, and `inclusive=False`"
            )
        case MessageId():
            return start.hex()
        case datetime():
            if start.tzinfo is None:
                raise ValueError(
                    f"{start.isoformat()} has no time zone, so it names no moment; add one, "
                    "as in start.astimezone()"
                )
            return round(start.timestamp() * 1000)
        case int() | str():
            return start
        case _:
            raise TypeError(
                "a position is a message id, its hex, a datetime or ms since the epoch, "
                f"and not {start!r:.100}"
            )


def _hex(id: IdOrHex | None) -> str | None:
    return id.hex() if isinstance(id, MessageId) else id


def _maybe_id(value: object) -> MessageId | None:
    return None if value is None else MessageId.from_hex(text(value))


def _json(response: Response) -> object:
    if response.form is not None:
        return response.form
    try:
        value: object = json.loads(response.body)
    except ValueError as error:
        raise BadRequestError(f"the body is not JSON: {error}") from None
    return value
