"""HTTP requests and replies as values, their media types, and queries (protocol §1).

The components of the server handle a `Request` and return a `Reply`, and use no HTTP library. The
server process reads requests and writes replies.
"""

import json
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from math import ceil
from typing import NamedTuple

import orjson

from tuff.protocol.errors import (
    BadRequestError,
    NotAcceptableError,
    TuffError,
    UnauthenticatedError,
    UnsupportedMediaTypeError,
)
from tuff.protocol.json_forms import check_object, parse_json, shown

JSON_REPLY_TYPE = "application/json; charset=utf-8"
PROBLEM_TYPE = "application/problem+json"
# A backup's own media type, and the general one for bytes.
BACKUP_TYPES = ("application/vnd.tuff.backup", "application/octet-stream")
RETRY_AFTER_S = 1  # seconds a client should wait after one of these
RETRIED_STATUSES = (429, 503)
# The scheme of `Authorization` between the servers of a cluster. Behind it: the secret of the
# cluster, and in a forwarded request the name of the principal.
SERVER_SCHEME = "Tuff-Server"
TYPES_COUNT_MAX = 64  # cached header values; a client sends one

# Tuples, since one of each is made for every request, and a dataclass takes three times as long.


class Caller(NamedTuple):
    """The principal that sends a request. `open_transactions_max` None: it has no such quota."""

    principal: str
    may_administer: bool = False
    open_transactions_max: int | None = None


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
    caller: Caller | None = None  # the last one: `of_caller` replaces it

    def of_caller(self, caller: Caller) -> "Request":
        """The request, as one of this principal."""
        # Each request under access control is copied; `_replace` takes three times as long.
        return tuple.__new__(Request, (*self[:-1], caller))

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
    """One reply. `content_type` None: it has no body. `form`: the body of a reply to a session, as
    a value."""

    status: int = 200
    content_type: str | None = None
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    form: object = None


EMPTY_REPLY = Reply()

Handler = Callable[[Request], Awaitable[Reply]]


class Joint(NamedTuple):
    """Calls that are answered together. `replies`: of all but those with the indexes in `left`, for
    which nothing was done. A call that failed by itself has its error. Wait for them at once."""

    replies: Awaitable[Sequence[Reply | Exception]]
    left: Collection[int] = ()


JointHandler = Callable[[Sequence[Request]], Joint | None]


class Route(NamedTuple):
    """The handler of a method of a path. A `{name}` in the path matches one whole segment.

    `joint` handles several calls of one session at once, at a fraction of the cost. They have no
    query and no `accept`, and with `joint_by_path` the same parameters. A call that it leaves goes
    to `handler`, and so do all if it returns None or raises an error.
    """

    method: str
    path: str
    handler: Handler
    joint: JointHandler | None = None
    joint_by_path: bool = False

    def wrapped(self, handler: Handler, *, joint: JointHandler | None = None) -> "Route":
        """The route with a handler that calls its own. Without a `joint` that calls its own, each
        call goes to this handler."""
        return self._replace(handler=handler, joint=joint)


def json_reply(
    form: object, *, status: int = 200, headers: tuple[tuple[str, str], ...] = ()
) -> Reply:
    """A reply in JSON. Integers have at most 64 bits."""
    return Reply(status, JSON_REPLY_TYPE, orjson.dumps(form), headers)


def form_reply(request: Request, form: object, *, status: int = 200) -> Reply:
    """The reply to a request that HTTP or a session has brought. A session packs the form."""
    if request.members is None:
        return json_reply(form, status=status)
    return Reply(status, form=form)


def problem_reply(error: TuffError) -> Reply:
    """The `application/problem+json` reply of an error."""
    headers: tuple[tuple[str, str], ...] = ()
    if error.status in RETRIED_STATUSES:
        headers = (("Retry-After", str(max(RETRY_AFTER_S, ceil(error.retry_after_s)))),)
    elif error.status == UnauthenticatedError.status:
        headers = (("WWW-Authenticate", "Bearer"),)
    body = json.dumps(error.problem()).encode("ascii")
    return Reply(error.status, PROBLEM_TYPE, body, headers)


class MediaType(Enum):
    """The media types of messages: JSON and Avro for bodies and replies, Arrow for replies only."""

    JSON = "application/json"
    AVRO = "avro/binary"
    ARROW = "application/vnd.apache.arrow.stream"


class Form(NamedTuple):
    """A media type, and the version of its schema: in version 2, messages have attributes (protocol
    §1, Schemas)."""

    media_type: MediaType
    schema: int = 1

    @property
    def content_type(self) -> str:
        """The content type of a reply in this form."""
        name = JSON_REPLY_TYPE if self.media_type is MediaType.JSON else self.media_type.value
        return name if self.schema == 1 else f"{name}; schema={self.schema}"


SCHEMAS = {"1": 1, "2": 2}  # the known versions, by their text
BODY_TYPES = (MediaType.JSON, MediaType.AVRO)
_JSON_FORM = Form(MediaType.JSON)
POLL_TYPES = (MediaType.JSON, MediaType.AVRO, MediaType.ARROW)
BROWSE_TYPES = (MediaType.JSON, MediaType.ARROW)


@lru_cache(TYPES_COUNT_MAX)
def _named_form(content_type: str) -> Form | None:
    essence, parameters = _split_type(content_type)
    media_type = next((each for each in BODY_TYPES if each.value == essence), None)
    if media_type is None:
        return None
    schema = SCHEMAS.get(_schema(parameters))
    if schema is None:
        raise UnsupportedMediaTypeError(
            f"{essence} has no schema {shown(_schema(parameters))}; known: {', '.join(SCHEMAS)}"
        )
    return Form(media_type, schema)


def body_form(content_type: str | None, body: bytes) -> Form:
    """The form of a message endpoint's body. Without a body the content type is ignored, unless it
    is Avro: some clients send any type with an empty POST.

    Raises:
        UnsupportedMediaTypeError: a body of another type, or without a type, or of a schema that is
            not known.
    """
    named = _named_form(content_type or "")
    if named is not None:
        return named
    if not body:
        return _JSON_FORM
    essence = (content_type or "").split(";")[0].strip().lower()
    raise UnsupportedMediaTypeError(
        f"the content type is {essence or 'missing'}; send {MediaType.JSON.value}, or to the "
        f"message endpoints {MediaType.AVRO.value}"
    )


@lru_cache(TYPES_COUNT_MAX)
def reply_form(
    accept: str | None,
    *,
    asked_in: MediaType,
    offered: tuple[MediaType, ...] = BODY_TYPES,
) -> Form:
    """The form of the reply: the media type of the request, unless `Accept` names one that is
    offered; schema 1, unless `Accept` names another.

    Raises:
        NotAcceptableError: it names offered types only with schemas that are not known.
    """
    by_name = {media_type.value: media_type for media_type in offered}
    best, best_quality, refused = Form(asked_in), 0.0, ""
    for part in (accept or "").split(","):
        essence, parameters = _split_type(part)
        quality = _quality(parameters)
        if essence not in by_name or quality <= best_quality:
            continue
        schema = SCHEMAS.get(_schema(parameters))
        if schema is None:
            refused = f"{essence} has no schema {shown(_schema(parameters))}"
        else:
            best, best_quality = Form(by_name[essence], schema), quality
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
    given = body_form(content_type, body).media_type
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


def members_of(request: Request, *, members: Collection[str], what: str) -> Mapping[str, object]:
    """As `read_object`, of a request that HTTP or a session has brought."""
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
