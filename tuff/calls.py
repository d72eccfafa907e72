"""Calls about topics and messages as values: what to send, and how to read what comes back.

A transport sends any of them; nothing here knows how (protocol §2, §3). The calls of transactions
and sinks are in `tuff.transaction_calls`.
"""

import json
import math
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Generic, Literal, TypeVar
from urllib.parse import quote, urlencode

from tuff.protocol.avro import decode_messages, encode_publish_request
from tuff.protocol.errors import (
    BadRequestError,
    EmptyPublishError,
    InternalError,
    TuffError,
    from_problem,
)
from tuff.protocol.exchange import MediaType
from tuff.protocol.ids import FIRST_ID, MessageId, TopicId, check_name
from tuff.protocol.json_forms import (
    pointer_from_json,
    rollback_detail_from_json,
    rollback_detail_to_json,
    shown,
    whole_number,
)
from tuff.protocol.requests import Isolation, IsolationLike, Message, PublishRequest, RollbackDetail
from tuff.protocol.transaction import Transaction
from tuff.replies import (
    Health,
    HealthCheck,
    HealthStatus,
    Hold,
    NamedPosition,
    Offsets,
    Poll,
    Published,
    Split,
    Splits,
    TopicInfo,
)

if TYPE_CHECKING:
    from pyarrow import RecordBatch

T = TypeVar("T")

Payload = str | bytes | bytearray | memoryview
Duration = float | timedelta  # a float is in seconds
Start = MessageId | str | datetime | int
Undecided = Literal["hold", "skip"]  # what a read does at an undecided message
EARLIEST = "earliest"  # a start: the oldest message
LATEST = "latest"  # a start of what reads on: behind all that is there when it begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request. `path` is escaped and holds the query; `body` is of `content_type`.

    `accept`: the form of the reply, where it is not JSON. `wait_s`: how long the server may take by
    itself before it answers. `is_read`: it changes nothing, so that losing its reply leaves nothing
    unknown. `is_repeatable`: sending it twice has the effect of sending it once (protocol §1,
    Idempotence); every read is.
    """

    method: str
    path: str
    body: bytes | None = None
    content_type: str = "application/json"
    accept: str | None = None
    wait_s: float = 0.0
    is_read: bool = False
    is_repeatable: bool = False


@dataclass(frozen=True, slots=True)
class Response:
    """What came back; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def problem(self) -> Mapping[str, object]:
        """The problem that a Tuff server reports; empty for any other body, as that of a proxy."""
        try:
            body = json.loads(self.body)
        except ValueError:
            return {}
        return body if isinstance(body, dict) else {}

    @property
    def retry_after_s(self) -> float:
        """How long the client should wait before the next attempt, in seconds."""
        value = self.headers.get("retry-after", "")
        # A proxy may send a date here, which is nothing to wait for exactly.
        return float(value) if value.isascii() and value.isdigit() else 0.0


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One round trip: what to send, and how to read what comes back.

    `unready_status`: one that is an answer to `read` as well, and no refusal.
    """

    request: Request
    read: Callable[[Response], T]
    unready_status: int | None = None

    def answer(self, response: Response) -> T:
        """What the server said.

        Raises:
            TuffError: its kind for the problem that the server reports; InternalError when the
                answer is none that the protocol knows.
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
        """Whether it is an answer of the server's that has the status of a refusal."""
        return response.status == self.unready_status and "checks" in response.problem


def _refusal(response: Response) -> TuffError:
    error = from_problem(response.problem, status=response.status)
    error.retry_after_s = response.retry_after_s
    return error


def json_body(value: object) -> bytes:
    """A request body. Half a surrogate pair in a string is escaped, for the server to refuse."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def json_object(response: Response) -> Mapping[str, object]:
    """The members of a reply. Raises: BadRequestError: it is no JSON object."""
    value = _json(response)
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


def nothing(response: Response) -> None:
    """Reads an empty body. Raises: BadRequestError: the body is not JSON."""
    if response.body:
        _json(response)


def maybe_pointer(value: object, *, what: str) -> int | None:
    """A pointer, or None for null. Raises: BadRequestError: neither."""
    return None if value is None else pointer_from_json(value, what=what)


def query(**parameters: str | float | None) -> str:
    """`?name=value&…` of those that are not None; empty if all are."""
    given = {name: value for name, value in parameters.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""


def payload_of(message: object) -> bytes:
    """The payload of a message; a string is its UTF-8 bytes.

    Raises:
        TypeError: it is neither a string nor bytes.
        ValueError: the string has half a surrogate pair, so it has no UTF-8.
    """
    match message:
        case str():
            try:
                return message.encode("utf-8")
            except UnicodeEncodeError as error:
                raise ValueError(f"the message has half a surrogate pair: {error}") from None
        case bytes() | bytearray() | memoryview():
            return bytes(message)
        case list() | tuple() | set() | frozenset() | Iterator():
            raise TypeError(
                f"a message is str or bytes, not {type(message).__name__}; publish several "
                "messages with publish(topic, *messages)"
            )
        case _:
            raise TypeError(
                f"a message is str or bytes, not {type(message).__name__}; encode it first, for "
                "example with json.dumps"
            )


def payloads_of(topic: TopicId, messages: Sequence[object]) -> list[bytes]:
    """The payloads of the messages for one topic.

    Raises:
        EmptyPublishError: there are none.
        TypeError, ValueError: as `payload_of`.
    """
    checked_topic(topic)
    if not messages:
        raise EmptyPublishError(f"nothing to publish to {topic}; give at least one message")
    return [payload_of(one) for one in messages]


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


Properties = Mapping[str, str | int]


def topic_properties(ttl: Duration | None, properties: Properties | None) -> dict[str, object]:
    """The properties of a topic, the ttl in seconds among them."""
    given: dict[str, object] = dict(properties or {})
    if ttl is not None:
        given["ttl"] = ttl_of(ttl)
    return given


def create_topic(topic: TopicId, properties: Mapping[str, object]) -> Call[None]:
    return Call(Request(method="PUT", path=topic_path(topic), body=json_body(properties)), nothing)


def update_topic(topic: TopicId, properties: Mapping[str, object]) -> Call[None]:
    path = f"{topic_path(topic)}/properties"
    return Call(Request(method="PUT", path=path, body=json_body(properties)), nothing)


def delete_topic(topic: TopicId) -> Call[None]:
    return Call(Request(method="DELETE", path=topic_path(topic)), nothing)


def get_topic(topic: TopicId) -> Call[TopicInfo]:
    def read(response: Response) -> TopicInfo:
        body = json_object(response)
        properties = body["properties"]
        if not isinstance(properties, dict):
            raise BadRequestError(f"properties is an object, not {shown(properties)}")
        return TopicInfo(
            topic=topic,
            generation=whole_number(body["generation"], what="generation"),
            properties={name: text(value) for name, value in properties.items()},
        )

    return Call(Request(method="GET", path=topic_path(topic), is_read=True), read)


def list_topics(namespace: str) -> Call[list[str]]:
    name = quote(check_name(namespace, what="namespace"))
    path = f"/v1/namespaces/{name}/topics"
    return Call(Request(method="GET", path=path, is_read=True), lambda r: texts(_json(r)))


def list_namespaces() -> Call[list[str]]:
    request = Request(method="GET", path="/v1/namespaces", is_read=True)
    return Call(request, lambda response: texts(_json(response)))


def publish(
    topic: TopicId, payloads: list[bytes], *, pointer: int | None, ttl_s: int | None
) -> Call[Published]:
    # As JSON, payloads that are not UTF-8 would be base64. The reply is JSON: one small object.
    body = encode_publish_request(PublishRequest(pointer=pointer, payloads=payloads))

    def read(response: Response) -> Published:
        return Published(
            first_id=MessageId.from_hex(response.headers["tuff-first-id"]),
            last_id=MessageId.from_hex(response.headers["tuff-last-id"]),
            rollback=None if pointer is None else rollback_detail_from_json(_json(response)),
        )

    path = f"{topic_path(topic)}/publish{query(ttl=ttl_s)}"
    request = Request(
        method="POST",
        path=path,
        body=body,
        content_type=MediaType.AVRO.value,
        accept=MediaType.JSON.value,
    )
    return Call(request, read)


def store(topic: TopicId, payloads: list[bytes], *, pointer: int, ttl_s: int | None) -> Call[None]:
    body = encode_publish_request(PublishRequest(pointer=pointer, payloads=payloads))
    path = f"{topic_path(topic)}/store{query(ttl=ttl_s)}"
    request = Request(method="POST", path=path, body=body, content_type=MediaType.AVRO.value)
    return Call(request, nothing)


def rollback(topic: TopicId, detail: RollbackDetail) -> Call[None]:
    body = json_body(rollback_detail_to_json(detail))
    path = f"{topic_path(topic)}/rollback"
    return Call(Request(method="POST", path=path, body=body, is_repeatable=True), nothing)


@dataclass(frozen=True, slots=True, kw_only=True)
class PollQuestion:
    """Where to read from, in which view, how much, and how long to wait for it (protocol §3.4).

    `transaction`: a snapshot to read in, or the write pointer of one that is in progress. Without
    `transaction` and `isolation` it reads what is committed.
    """

    start: Start | None = None
    inclusive: bool = True
    limit: int | None = None
    transaction: Transaction | int | None = None
    isolation: IsolationLike | None = None
    undecided: Undecided = "hold"
    wait_s: float = 0.0
    through: MessageId | str | None = None


def poll(topic: TopicId, question: PollQuestion) -> Call[Poll]:
    # As JSON, payloads that are not UTF-8 would be base64, and a thousand messages take twice as
    # long to read.
    return Call(poll_request(topic, question, accept=MediaType.AVRO.value), _read_poll)


def poll_request(topic: TopicId, question: PollQuestion, *, accept: str | None = None) -> Request:
    """The request for one read, whatever form its reply has."""
    transaction, through = question.transaction, question.through
    wait_s = seconds_of(question.wait_s, what="wait")
    parameters = query(
        isolation=_isolation(question),
        tx=transaction if isinstance(transaction, int) else None,
        undecided=None if question.undecided == "hold" else question.undecided,
        wait=wait_s or None,
        through=through.hex() if isinstance(through, MessageId) else through,
    )
    return Request(
        method="POST",
        path=f"{topic_path(topic)}/poll{parameters}",
        body=json_body(_consume_request(question)),
        accept=accept,
        wait_s=wait_s,
        is_read=True,
    )


def _isolation(question: PollQuestion) -> IsolationLike | None:
    # The server's own default is to read everything, and a transaction says by itself what is seen.
    if question.isolation is None and question.transaction is None:
        return Isolation.COMMITTED
    return question.isolation


def offsets(
    topic: TopicId, *, isolation: IsolationLike | None, transaction: int | None = None
) -> Call[Offsets]:
    """What `isolation` sees, all without one; with a transaction's pointer, what its snapshot
    does."""
    parameters = query(isolation=isolation) if transaction is None else query(tx=transaction)

    def read(response: Response) -> Offsets:
        body = json_object(response)
        return Offsets(
            generation=whole_number(body["generation"], what="generation"),
            earliest=maybe_id(body["earliest"]),
            end=maybe_id(body["end"]),
            blocked_by=maybe_pointer(body["blockedBy"], what="blockedBy"),
        )

    path = f"{topic_path(topic)}/offsets{parameters}"
    return Call(Request(method="GET", path=path, is_read=True), read)


def health() -> Call[Health]:
    """How the server does, also where it is not ready."""
    request = Request(method="GET", path="/health/ready", is_read=True)
    return Call(request, _read_health, unready_status=HTTPStatus.SERVICE_UNAVAILABLE)


def _read_health(response: Response) -> Health:
    body = json_object(response)
    checks = body["checks"]
    if not isinstance(checks, dict):
        raise BadRequestError(f"checks is an object, not {shown(checks)}")
    return Health(
        status=HealthStatus(text(body["status"])),
        checks={
            name: HealthCheck(HealthStatus(text(check["status"])), text(check.get("detail", "")))
            for name, check in checks.items()
        },
        version=None if body.get("version") is None else text(body["version"]),
    )


def _json(response: Response) -> object:
    try:
        value: object = json.loads(response.body)
    except ValueError as error:
        raise BadRequestError(f"the body is not JSON: {error}") from None
    return value


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
    return f"/v1/namespaces/{quote(topic.namespace)}/topics/{quote(topic.name)}"


def _consume_request(question: PollQuestion) -> dict[str, object]:
    body: dict[str, object] = {"inclusive": question.inclusive}
    if question.start not in (None, EARLIEST):
        body["startFrom"] = start_form(question.start)
    if question.limit is not None:
        body["limit"] = question.limit
    if isinstance(question.transaction, Transaction):
        body["transaction"] = b64encode(question.transaction.to_bytes()).decode("ascii")
    return body


def start_form(start: Start) -> str | int:
    """A place as JSON has it. Raises: ValueError: a time without a zone, or `latest`."""
    match start:
        case "earliest":
            return FIRST_ID.hex()
        case "latest":
            raise ValueError(
                "'latest' is where a subscription can start; any other call takes the `end` that "
                "client.offsets(topic) answers"
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
        case _:
            return start


def maybe_id(value: object) -> MessageId | None:
    return None if value is None else MessageId.from_hex(text(value))


def _read_poll(response: Response) -> Poll:
    headers = response.headers
    blocked_by = headers.get("tuff-blocked-by")
    return Poll(
        messages=_read_messages(response),
        next_id=MessageId.from_hex(headers["tuff-next"]),
        caught_up=headers.get("tuff-caught-up") == "true",
        blocked_by=maybe_pointer(blocked_by, what="Tuff-Blocked-By"),
        expired=headers.get("tuff-expired") == "true",
    )


def _read_messages(response: Response) -> tuple[Message, ...]:
    if response.headers.get("content-type") != MediaType.AVRO.value:
        raise BadRequestError(f"the reply is no {MediaType.AVRO.value}")
    from_bytes = MessageId.from_bytes
    return tuple(Message(from_bytes(id), payload) for id, payload in decode_messages(response.body))


IdOrHex = MessageId | str


def splits(
    topic: TopicId, count: int, *, start: IdOrHex | None, end: IdOrHex | None
) -> Call[Splits]:
    parameters = query(n=count, start=_hex(start), end=_hex(end))

    def read(response: Response) -> Splits:
        body = json_object(response)
        parts = tuple(map(_read_split, json_array(body["splits"])))
        return Splits(whole_number(body["generation"], what="generation"), parts)

    path = f"{topic_path(topic)}/splits{parameters}"
    return Call(Request(method="GET", path=path, is_read=True), read)


def newest_place(topic: TopicId) -> Call[MessageId]:
    """A place behind everything that was published by now, and before what will be."""
    path = f"{topic_path(topic)}/messages?from=latest&limit=1"
    request = Request(method="GET", path=path, is_read=True)
    return Call(request, lambda response: MessageId.from_hex(response.headers["tuff-next"]))


def truncate(topic: TopicId, before: Start, *, newest: MessageId) -> Call[MessageId | None]:
    """`newest`: what `newest_place` said. A place to come would mean all that is there whenever the
    request arrives, so that repeating it took what was published since; that one never does."""
    form = start_form(before)
    if _is_ahead(form, newest):
        form = newest.hex()
    body = json_body({"before": form})
    path = f"{topic_path(topic)}/truncate"
    request = Request(method="POST", path=path, body=body, is_repeatable=True)
    return Call(request, lambda response: maybe_id(json_object(response)["earliest"]))


def set_hold(topic: TopicId, name: str, start: Start, *, max_age_s: float) -> Call[Hold]:
    body = json_body({"from": start_form(start), "maxAge": max_age_s})
    path = _named(topic, "holds", name)
    request = Request(method="PUT", path=path, body=body, is_repeatable=True)
    return Call(request, lambda response: _read_hold(json_object(response)))


def list_holds(topic: TopicId) -> Call[list[Hold]]:
    request = Request(method="GET", path=f"{topic_path(topic)}/holds", is_read=True)
    return Call(request, lambda response: [_read_hold(one) for one in _objects(response, "holds")])


def delete_hold(topic: TopicId, name: str) -> Call[None]:
    return Call(Request(method="DELETE", path=_named(topic, "holds", name)), nothing)


def set_position(topic: TopicId, name: str, position: IdOrHex) -> Call[NamedPosition]:
    body = json_body({"position": _hex(position)})
    path = _named(topic, "positions", name)
    request = Request(method="PUT", path=path, body=body, is_repeatable=True)
    return Call(request, lambda response: _read_position(json_object(response)))


def get_position(topic: TopicId, name: str) -> Call[NamedPosition]:
    request = Request(method="GET", path=_named(topic, "positions", name), is_read=True)
    return Call(request, lambda response: _read_position(json_object(response)))


def list_positions(topic: TopicId) -> Call[list[NamedPosition]]:
    request = Request(method="GET", path=f"{topic_path(topic)}/positions", is_read=True)
    return Call(
        request, lambda response: [_read_position(one) for one in _objects(response, "positions")]
    )


def delete_position(topic: TopicId, name: str) -> Call[None]:
    return Call(Request(method="DELETE", path=_named(topic, "positions", name)), nothing)


def _named(topic: TopicId, kind: str, name: str) -> str:
    return f"{topic_path(topic)}/{kind}/{quote(check_name(name, what='name'))}"


def _objects(response: Response, member: str) -> list[Mapping[str, object]]:
    return [_object(item) for item in json_array(json_object(response)[member])]


def _object(item: object) -> Mapping[str, object]:
    if not isinstance(item, dict):
        raise BadRequestError(f"a JSON object was expected, not {shown(item)}")
    return item


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


def _is_ahead(form: str | int, newest: MessageId) -> bool:
    """Whether a place as JSON has it lies behind that one."""
    if isinstance(form, str):
        return MessageId.from_hex(form) > newest
    return form > newest.publish_timestamp_ms


def _hex(place: IdOrHex | None) -> str | None:
    return place.hex() if isinstance(place, MessageId) else place


def _read_split(item: object) -> Split:
    if not isinstance(item, dict) or (end := maybe_id(item["end"])) is None:
        raise BadRequestError(f"a part has a start and an end, and this one is {shown(item)}")
    return Split(maybe_id(item["start"]), end)


@dataclass(frozen=True, slots=True, kw_only=True)
class PollBatch:
    """The messages of one read as a record batch with the columns `id`, `value`, `timestamp`,
    `generation` and `write_pointer`; the rest is that of `tuff.Poll`."""

    batch: "RecordBatch"
    next_id: MessageId
    caught_up: bool
    blocked_by: int | None
    expired: bool

    def __len__(self) -> int:
        return int(self.batch.num_rows)


def poll_batch(topic: TopicId, question: PollQuestion) -> Call[PollBatch]:
    """A read in columns; the client needs pyarrow, and so does the server."""
    return Call(poll_request(topic, question, accept=MediaType.ARROW.value), _read_batch)


def _read_batch(response: Response) -> PollBatch:
    headers = response.headers
    return PollBatch(
        batch=_record_batch(response),
        next_id=MessageId.from_hex(headers["tuff-next"]),
        caught_up=headers.get("tuff-caught-up") == "true",
        blocked_by=maybe_pointer(headers.get("tuff-blocked-by"), what="Tuff-Blocked-By"),
        expired=headers.get("tuff-expired") == "true",
    )


def _record_batch(response: Response) -> "RecordBatch":
    from pyarrow import ArrowInvalid, ipc

    if response.headers.get("content-type") != MediaType.ARROW.value:
        raise BadRequestError(f"the reply is no {MediaType.ARROW.value}")
    try:
        # The columns stand on the bytes of the reply; none is copied.
        with ipc.open_stream(response.body) as stream:
            return stream.read_next_batch()
    except (ArrowInvalid, StopIteration) as error:
        raise BadRequestError(f"the reply is no Arrow stream: {error}") from None
