"""HTTP requests and replies as values, their media types, and queries (protocol §1).

The components of the server handle a `Request` and return a `Reply`, and use no HTTP library. The
server process reads requests and writes replies.

A route has one handler, in one of two shapes:

- `Route(operation, handler)`: a coroutine function that answers one request.
- `batch_route(operation, many)` (kernel/batch_routes.py): a function that gets the requests of a
  batch as one list, in the order of arrival; a single request is a list of one. It answers each of
  them with `request.reply(...)`, at once or later: a `Reply`, or the exception for which the
  request is refused. That needs no future and no task.

      def commit(requests: Sequence[Request]) -> None:
          for request in requests:
              request.reply(json_reply({"state": "committed"}))

  It is called in the event loop, and so is `reply`, exactly once for each request. A reply to a
  client that has disconnected is dropped. If the function raises, each request without a reply gets
  the exception; so it may raise only before it begins anything that will be answered later.

Admission, access, quotas, the audit topic and spans see each request before. A request of a list
that they refuse is answered, and is not in the list. The metrics count each reply.
"""

import json
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from math import ceil
from typing import NamedTuple, Protocol

import orjson

from tuff.protocol.errors import (
    BadRequestError,
    NotAcceptableError,
    TuffError,
    UnauthenticatedError,
    UnsupportedMediaTypeError,
)
from tuff.protocol.json_bodies import check_object, parse_json, shown
from tuff.protocol.media_types import JSON_REPLY_TYPE, Encoding, MediaType
from tuff.protocol.operations import Operation

PROBLEM_TYPE = "application/problem+json"
RETRY_AFTER_S = 1  # seconds a client should wait after one of these
RETRIED_STATUSES = (429, 503)
# The scheme of `Authorization` between the servers of a cluster. Behind it: the secret of the
# cluster, and in a forwarded request the name of the principal.
SERVER_SCHEME = "Tuff-Server"
TYPES_COUNT_MAX = 64  # cached header values; a client sends one

# Tuples, since one of each is made for every request, and a dataclass takes three times as long.


class Caller(NamedTuple):
    """The principal that sends a request. `open_transactions_max` None: it has no such quota.
    `tenant` is empty without one (decision 0066)."""

    principal: str
    may_administer: bool = False
    open_transactions_max: int | None = None
    tenant: str = ""

    @property
    def full_name(self) -> str:
        """The principal as the record of a transaction has it. No name has an `@`, so no principal
        of another tenant, nor this one in another tenant, has the same."""
        return f"{self.principal}@{self.tenant}" if self.tenant else self.principal


class Call(Protocol):
    """A request of a list, until it is answered."""

    is_answered: bool

    @property
    def client(self) -> object:
        """The connection that has brought it."""

    def watch(self, watcher: Callable[["Reply | Exception"], None], /) -> None:
        """Let a function see the reply before it is sent; the last such function sees it first."""

    def reply(self, reply: "Reply | Exception", /) -> None:
        """Answer the call, with the exception for which it is refused or a reply."""


class Request(NamedTuple):
    """One complete request. `parameters` has the names in the route's path; `query` is unchecked:
    in order, with unknown and repeated names. Absent headers are None.

    `is_forwarded` and `wants_redirect` matter between the servers of a cluster only: whether
    another server has forwarded the request, and whether the client wants a redirect instead of
    that (protocol §1, Clusters). `certificate` has the names in the client's certificate, `address`
    is the IP address of the client (empty for a Unix socket), and `traceparent` is the W3C trace
    context of the client. `caller` is the principal that was found; None: every client may do
    everything.

    `upgrade` is the protocol to which the client wants to change. `members` is the body of a call
    of a session, which is no JSON (docs/session.md), `{}` without one; None for HTTP, and for a
    body of another media type. `members_bytes` is the size of its frame.

    `call` is that of a request that a connection has brought, and of every request of a list.
    """

    parameters: Mapping[str, str]
    query: tuple[tuple[str, str], ...]
    content_type: str | None
    accept: str | None
    body: bytes
    is_forwarded: bool = False
    wants_redirect: bool = False
    authorization: str | None = None
    certificate: tuple[str, ...] = ()
    address: str = ""
    traceparent: str | None = None
    upgrade: str | None = None
    members: object = None
    members_bytes: int = 0
    call: Call | None = None
    caller: Caller | None = None  # the last one: `of_caller` replaces it

    def of_caller(self, caller: Caller) -> "Request":
        """The request, as one of this principal."""
        # Each request under access control is copied; `_replace` takes three times as long.
        return tuple.__new__(Request, (*self[:-1], caller))

    def reply(self, reply: "Reply | Exception") -> None:
        """Answer a request of a list; see the head of this module."""
        assert self.call is not None, "the handler of a single request returns its reply"
        self.call.reply(reply)

    @property
    def size(self) -> int:
        """The bytes of the body."""
        return len(self.body) + self.members_bytes

    def value(self) -> object:
        """The body as a value; `{}` without one. Raises: BadRequestError: it is not JSON."""
        if self.members is not None:
            return self.members
        return parse_json(self.body) if self.body else {}


class Reply(NamedTuple):
    """One reply. `content_type` None: it has no body. `value`: the body of a reply to a session, as
    a value."""

    status: int = 200
    content_type: str | None = None
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    value: object = None


EMPTY_REPLY = Reply()

Handler = Callable[[Request], Awaitable[Reply]]


ManyHandler = Callable[[Sequence[Request]], None]


class Route(NamedTuple):
    """The handler of an operation. `many` is that of a `batch_route`; its `handler` answers one
    request with a list of one, for callers that wait for the reply."""

    operation: Operation
    handler: Handler
    many: ManyHandler | None = None

    def wrapped(self, handler: Handler) -> "Route":
        """The route with a handler of single requests that calls its own."""
        return Route(self.operation, handler)


def begin_many(many: ManyHandler, requests: Sequence[Request]) -> None:
    """Call a handler. If it raises, each request without a reply gets the exception."""
    try:
        many(requests)
    except Exception as error:  # noqa: BLE001 - it is the reply
        for each in requests:
            assert each.call is not None
            if not each.call.is_answered:
                each.reply(error)


def json_reply(
    value: object, *, status: int = 200, headers: tuple[tuple[str, str], ...] = ()
) -> Reply:
    """A reply in JSON. Integers have at most 64 bits."""
    return Reply(status, JSON_REPLY_TYPE, orjson.dumps(value), headers)


def value_reply(request: Request, value: object, *, status: int = 200) -> Reply:
    """The reply to a request that HTTP or a session has brought. A session packs the value."""
    if request.members is None:
        return json_reply(value, status=status)
    # As `Request.of_caller` does, since one is made for each call of a session.
    return tuple.__new__(Reply, (status, None, b"", (), value))


def problem_reply(error: TuffError) -> Reply:
    """The `application/problem+json` reply of an error."""
    headers: tuple[tuple[str, str], ...] = ()
    if error.status in RETRIED_STATUSES:
        headers = (("Retry-After", str(max(RETRY_AFTER_S, ceil(error.retry_after_s)))),)
    elif error.status == UnauthenticatedError.status:
        headers = (("WWW-Authenticate", "Bearer"),)
    body = json.dumps(error.problem()).encode("ascii")
    return Reply(error.status, PROBLEM_TYPE, body, headers)


SCHEMAS = {"1": 1, "2": 2}  # the known versions, by their text
BODY_TYPES = (MediaType.JSON, MediaType.AVRO)
_JSON_ENCODING = Encoding(MediaType.JSON)
POLL_TYPES = (MediaType.JSON, MediaType.AVRO, MediaType.ARROW)
BROWSE_TYPES = (MediaType.JSON, MediaType.ARROW)


@lru_cache(TYPES_COUNT_MAX)
def _named_encoding(content_type: str) -> Encoding | None:
    essence, parameters = _split_type(content_type)
    media_type = next((each for each in BODY_TYPES if each.value == essence), None)
    if media_type is None:
        return None
    schema = SCHEMAS.get(_schema(parameters))
    if schema is None:
        raise UnsupportedMediaTypeError(
            f"{essence} has no schema {shown(_schema(parameters))}; known: {', '.join(SCHEMAS)}"
        )
    return Encoding(media_type, schema)


def body_encoding(content_type: str | None, body: bytes) -> Encoding:
    """The encoding of a message endpoint's body. Without a content type it is JSON: CDAP's client
    sends none. Without a body the content type is ignored, unless it is Avro: some clients send any
    type with an empty POST.

    Raises:
        UnsupportedMediaTypeError: a body of another type, or of a schema that is not known.
    """
    named = _named_encoding(content_type or "")
    if named is not None:
        return named
    essence = (content_type or "").split(";")[0].strip().lower()
    if not body or not essence:
        return _JSON_ENCODING
    raise UnsupportedMediaTypeError(
        f"the content type is {essence}; send {MediaType.JSON.value}, or to the "
        f"message endpoints {MediaType.AVRO.value}"
    )


@lru_cache(TYPES_COUNT_MAX)
def reply_encoding(
    accept: str | None,
    *,
    asked_in: MediaType,
    offered: tuple[MediaType, ...] = BODY_TYPES,
) -> Encoding:
    """The encoding of the reply: the media type of the request, unless `Accept` names one that is
    offered; schema 1, unless `Accept` names another.

    Raises:
        NotAcceptableError: it names offered types only with schemas that are not known.
    """
    by_name = {media_type.value: media_type for media_type in offered}
    best, best_quality, refused = Encoding(asked_in), 0.0, ""
    for part in (accept or "").split(","):
        essence, parameters = _split_type(part)
        quality = _quality(parameters)
        if essence not in by_name or quality <= best_quality:
            continue
        schema = SCHEMAS.get(_schema(parameters))
        if schema is None:
            refused = f"{essence} has no schema {shown(_schema(parameters))}"
        else:
            best, best_quality = Encoding(by_name[essence], schema), quality
    if refused and not best_quality:
        raise NotAcceptableError(f"{refused}; known: {', '.join(SCHEMAS)}")
    return best


@lru_cache(TYPES_COUNT_MAX)
def require_reply_type(accept: str) -> None:
    """Check that `accept` names a type that replies have. HTTP ignores other types.

    Raises:
        NotAcceptableError: it names none.
    """
    offered = [each.value for each in POLL_TYPES]
    if not any(_split_type(part)[0] in (*offered, "*/*") for part in accept.split(",")):
        raise NotAcceptableError(f"no reply is {shown(accept)}; accept {', '.join(offered)}")


def best_type(accept: str | None, *, default: str, offered: Collection[str]) -> str:
    """The offered type that `Accept` prefers; `default` if it names none of them."""
    best, best_quality = default, 0.0
    for part in (accept or "").split(","):
        essence, parameters = _split_type(part)
        quality = _quality(parameters)
        if essence in offered and quality > best_quality:
            best, best_quality = essence, quality
    return best


def _split_type(text: str) -> tuple[str, list[str]]:
    essence, *parameters = (piece.strip().lower() for piece in text.split(";"))
    return essence, parameters


def _schema(parameters: Iterable[str]) -> str:
    """The schema that is named, without quotation marks; "1" if none is."""
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name == "schema":
            return value.strip('"')
    return "1"


def _quality(parameters: Iterable[str]) -> float:
    for parameter in parameters:
        if re.fullmatch(r"q=[01](\.[0-9]{0,3})?", parameter):
            return float(parameter[2:])
    return 1.0


def require_json(content_type: str | None, body: bytes) -> None:
    """
    Raises:
        UnsupportedMediaTypeError: there is a body that is not declared to be JSON.
        BadRequestError: there is none, and it is declared to be Avro.
    """
    given = body_encoding(content_type, body).media_type
    if given is MediaType.JSON:
        return
    if not body:
        raise BadRequestError(
            f"the body is empty, and the content type is {given.value}, in which that is a "
            f"truncated datum; send {MediaType.JSON.value}, or no content type"
        )
    raise UnsupportedMediaTypeError(
        f"the content type is {given.value}; this endpoint reads {MediaType.JSON.value} only"
    )


def read_object(
    body: bytes, content_type: str | None, *, members: Collection[str], what: str
) -> Mapping[str, object]:
    """The members of a JSON body, `{}` without a body.

    Raises:
        UnsupportedMediaTypeError: the body is not declared to be JSON.
        BadRequestError: it is no JSON object, or has a member that is not among `members`.
    """
    require_json(content_type, body)
    return check_object(parse_json(body) if body else {}, members=members, what=what)


def members_of(
    request: Request, *, members: Collection[str], what: str, has_query: bool = False
) -> Mapping[str, object]:
    """The members of the body of a request that HTTP or a session has brought, checked like those
    of `read_object`. `has_query`: the caller reads the query; else there may be none."""
    if request.query and not has_query:
        read_query(request.query, parameters=())
    if request.members is not None:
        return check_object(request.members, members=members, what=what)
    return read_object(request.body, request.content_type, members=members, what=what)


def read_query(pairs: Iterable[tuple[str, str]], *, parameters: Collection[str]) -> dict[str, str]:
    """The query parameters of a request.

    Raises:
        BadRequestError: one is not among `parameters`, or is given twice.
    """
    if not pairs:
        return {}
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in parameters:
            known = ", ".join(sorted(parameters)) or "none"
            raise BadRequestError(f"there is no query parameter {shown(name)} here; known: {known}")
        if name in found:
            raise BadRequestError(f"query parameter {name} is given twice")
        found[name] = value
    return found
