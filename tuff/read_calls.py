"""Reads: where they begin, what they ask for, and how their replies are read (protocol §3.4)."""

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from tuff.flows_and_repeated_calls import Call, Flow, Retries, call
from tuff.optional_packages import Extra
from tuff.protocol import operations
from tuff.protocol.attributes import NO_ATTRIBUTES
from tuff.protocol.avro import decode_messages_2
from tuff.protocol.durations import seconds_of
from tuff.protocol.errors import BadRequestError
from tuff.protocol.ids import (
    FIRST_ID,
    MessageId,
    PartitionId,
    TopicLike,
    name_in,
    names_of,
    partition_in,
)
from tuff.protocol.json_bodies import array_from_json, text_from_json, whole_number
from tuff.protocol.media_types import Encoding, MediaType
from tuff.protocol.requests import Isolation, IsolationLike, Message
from tuff.protocol.transaction import Transaction
from tuff.replies import Offsets, Poll
from tuff.requests_and_responses import (
    IdOrHex,
    Request,
    Response,
    maybe_number_of,
    maybe_pointer,
    of_type,
    reply,
    reply_object,
)

if TYPE_CHECKING:
    from pyarrow import RecordBatch

T = TypeVar("T")
_ID_HEX = re.compile(r"[0-9a-fA-F]{40}")
_AVRO_2 = Encoding(MediaType.AVRO, 2).content_type  # messages with attributes
_ARROW_2 = Encoding(MediaType.ARROW, 2).content_type
# Where a reader begins: an id or its hex, a time with a zone, ms since the epoch, or one of the two
# words below. An id and a time are inclusive.
Start = MessageId | str | datetime | int
Undecided = Literal["hold", "skip"]  # what a read does at an undecided message
EARLIEST = "earliest"  # the oldest message
LATEST = "latest"  # behind all messages that are there when the call is made


def start_to_json(start: Start) -> str | int:
    """A start as requests have it: 40 hex digits, ms since the epoch, or a word.

    Raises: TypeError, ValueError: it is no start.
    """
    match start:
        case MessageId():
            return start.hex()
        case datetime() if start.tzinfo is not None:
            return round(start.timestamp() * 1000)
        case int() if not isinstance(start, bool):
            return start
        case str() if start in (EARLIEST, LATEST) or _ID_HEX.fullmatch(start):
            return start
    said: object = start
    kind = ValueError if isinstance(said, str | datetime) else TypeError
    raise kind(
        "a start is a message id, its 40 hex digits, a datetime with a time zone, ms since the "
        f"epoch, 'earliest' or 'latest', and not {said!r:.100}"
    )


def offset_before(start: Start, *, inclusive: bool, end: MessageId | None) -> MessageId:
    """The offset of a group that begins at this start. `end`: of the partition; None if it is
    empty."""
    form = start_to_json(start)
    if form == EARLIEST:
        return FIRST_ID
    if form == LATEST:
        return end or FIRST_ID
    first = MessageId(form, 0) if isinstance(form, int) else MessageId.from_hex(form)
    if isinstance(form, str) and not inclusive:
        return first
    return MessageId.from_int(max(0, first.to_int() - 1))


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
        """Raises: TypeError: a field is of another type; ValueError: the limit is below 1."""
        of_type(self.inclusive, bool, "inclusive")
        maybe_number_of(self.limit, "limit")
        if not isinstance(self.transaction, Transaction | None):
            of_type(self.transaction, int, "transaction")


def poll(topic: TopicLike, question: PollQuestion) -> Call[Poll]:
    # As JSON, payloads that are not UTF-8 would be base64, and a thousand messages take twice as
    # long to read.
    return Call(_poll_request(topic, question, accept=_AVRO_2), _read_poll)


def wait_for_partitions(
    topic: TopicLike, after: Mapping[int, MessageId], question: PollQuestion, *, added: bool = False
) -> Call[list[int]]:
    """Which of these partitions have something to read behind their ids, in the view of the
    question and within its wait. With `added` also those with higher numbers than these."""
    wait_s = question.wait_s
    request = Request(
        operation=operations.WAIT_FOR_PARTITIONS,
        parameters=names_of(topic),
        query={
            "isolation": _isolation(question),
            "wait": wait_s or None,
            "tags": question.tags,
            "added": "true" if added else None,
        },
        body={"after": {str(number): id.hex() for number, id in after.items()}},
        wait_s=wait_s,
    )

    def read(response: Response) -> list[int]:
        numbers = array_from_json(reply_object(response)["partitions"])
        return [whole_number(each, what="a partition") for each in numbers]

    return Call(request, read)


@dataclass(frozen=True, slots=True, kw_only=True)
class Readable:
    """The partitions in which a poll finds something, none when a wait is over; and the reply to a
    poll of the first, if the server has sent it."""

    partitions: list[PartitionId]
    poll: Poll | None = None


def wait_for_topics(
    questions: Mapping[PartitionId, PollQuestion], *, wait_s: float
) -> Call[Readable]:
    """Which of these partitions have something to read behind the exclusive
    start of their questions, and what. All questions have the same isolation."""
    topics: dict[str, dict[str, Any]] = {}
    namespace, isolation = next((each.namespace, of) for each, of in questions.items())
    for partition, question in questions.items():
        assert isinstance(question.start, MessageId)
        member = topics.setdefault(name_in(namespace, partition.base), {"after": {}})
        member["after"][str(partition.number or 0)] = question.start.hex()
        if question.tags is not None:
            member["tags"] = question.tags
    request = Request(
        operation=operations.WAIT_FOR_TOPICS,
        parameters=(namespace,),
        query={
            "isolation": _isolation(isolation),
            "wait": wait_s or None,
            "limit": min((of.limit for of in questions.values() if of.limit), default=None),
        },
        body={"topics": topics},
        accept=_AVRO_2,
        wait_s=wait_s,
    )

    def read(response: Response) -> Readable:
        if named := response.headers.get("tuff-partition"):
            partitions = [partition_in(namespace, named)]
            return Readable(partitions=partitions, poll=_read_poll(response))
        names = map(text_from_json, array_from_json(reply_object(response)["partitions"]))
        return Readable(partitions=[partition_in(namespace, each) for each in names])

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
    topic: TopicLike, question: PollQuestion, *, attributes: bool = False
) -> Call[PollBatch]:
    """A read whose reply is an Arrow stream; client and server need pyarrow."""
    form = _ARROW_2 if of_type(attributes, bool, "attributes") else MediaType.ARROW.value
    return Call(_poll_request(topic, question, accept=form), partial(_read_batch, form=form))


def _poll_request(topic: TopicLike, question: PollQuestion, *, accept: str) -> Request:
    transaction = question.transaction
    wait_s = seconds_of(question.wait_s, what="wait")
    query = {
        "isolation": _isolation(question),
        "tx": transaction if isinstance(transaction, int) else None,
        "undecided": None if question.undecided == "hold" else question.undecided,
        "wait": wait_s or None,
        "through": hex_of(question.through),
        "tags": question.tags,
    }
    return Request(
        operation=operations.POLL,
        parameters=names_of(topic),
        query=query,
        body=_consume_request(question),
        accept=accept,
        wait_s=wait_s,
    )


def _isolation(question: PollQuestion) -> IsolationLike | None:
    # The server's own default is to read everything, and a transaction defines what is seen.
    if question.isolation is None and question.transaction is None:
        return Isolation.COMMITTED
    return question.isolation


def _consume_request(question: PollQuestion) -> dict[str, object]:
    body: dict[str, object] = {"inclusive": question.inclusive}
    if question.start not in (None, EARLIEST):
        body["startFrom"] = start_to_json(question.start)
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
    if response.headers.get("content-type") != _AVRO_2:
        raise BadRequestError(f"the reply is no {_AVRO_2}")
    return tuple(
        [
            Message(from_bytes(id), payload)
            if attributes is NO_ATTRIBUTES
            else Message(from_bytes(id), payload, *attributes)
            for id, payload, attributes in decode_messages_2(response.body)
        ]
    )


def _read_record_batch(response: Response, form: str) -> "RecordBatch":
    with Extra("poll_batch", "arrow"):
        from pyarrow import ArrowInvalid, ipc

    if response.headers.get("content-type") != form:
        raise BadRequestError(f"the reply is no {form}")
    try:
        # The columns refer to the bytes of the reply; none is copied.
        with ipc.open_stream(response.body) as stream:
            return stream.read_next_batch()
    except (ArrowInvalid, StopIteration) as error:
        raise BadRequestError(f"the reply is no Arrow stream: {error}") from None


def offsets(topic: TopicLike, *, isolation: IsolationLike | None) -> Call[Offsets]:
    """The offsets in the view of `isolation`; None: of all messages."""

    query = {"isolation": isolation}
    return call(operations.GET_OFFSETS, names_of(topic), reply(Offsets), query=query)


def hex_of(id: IdOrHex | None) -> str | None:
    """The 40 hex digits of an id."""
    return id.hex() if isinstance(id, MessageId) else id


def read(
    retries: Retries,
    make: Callable[[TopicLike, PollQuestion], Call[T]],
    topic: TopicLike,
    question: PollQuestion,
) -> Flow[T]:
    """The value of the response to a read, whose start may be `latest`. Raises as `Retries.ask`."""
    fixed = yield from with_fixed_start(topic, question, retries.ask)
    return (yield from retries.ask(make(topic, fixed)))


def with_fixed_start(
    topic: TopicLike, question: PollQuestion, ask: Callable[[Call[Offsets]], Flow[Offsets]]
) -> Flow[PollQuestion]:
    """The question, with `latest` replaced by the end of what this reader can read now. A message
    that was published before and is committed later is still read."""
    if of_type(question, PollQuestion, "question").start != LATEST:
        return question
    found = yield from ask(offsets(topic, isolation=question.isolation))
    return replace(question, start=found.end, inclusive=found.end is None)
