"""Requests of the client as calls of a session, and the replies as responses (docs/session.md)."""

from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from tuff.calls import Request, Response
from tuff.protocol.errors import BadRequestError
from tuff.protocol.json_forms import shown
from tuff.protocol.session_frames import OPERATIONS, Kind, frame

_POLL = 4
_CALL, _REPLY = int(Kind.CALL), int(Kind.REPLY)  # faster than the members of an enumeration


class SessionCall(NamedTuple):
    """A call without its id."""

    operation: int
    parameters: list[str]
    query: dict[str, str] | None
    body: object
    content_type: str | None
    accept: str | None

    @property
    def is_poll(self) -> bool:
        """Whether it can be cancelled."""
        return self.operation == _POLL


class _Shape(NamedTuple):
    """An operation's path, in segments: those that are always the same, and the indexes of the
    parameters."""

    operation: int
    fixed: tuple[tuple[int, str], ...]
    parameters: tuple[int, ...]
    takes_pointer: bool  # as its first parameter


def _shape(operation: int, segments: list[str]) -> _Shape:
    parameters = tuple(at for at, each in enumerate(segments) if each.startswith("{"))
    fixed = tuple((at, each) for at, each in enumerate(segments) if at not in parameters)
    return _Shape(operation, fixed, parameters, "{tx}" in segments)


def _key(method: str, segments: list[str]) -> tuple[str, int, str]:
    return method, len(segments), segments[-1]


# By the method, the number of segments and the last one, which make an operation unique.
_SHAPES = {
    _key(method, path.split("/")): _shape(number, path.split("/"))
    for number, (method, path) in OPERATIONS.items()
}
assert len(_SHAPES) == len(OPERATIONS)


def session_call(request: Request) -> SessionCall | None:
    """The call for a request; None if a session does not carry it: another operation, or one with
    a trace context, which is a field of HTTP."""
    if request.trace_headers:
        return None
    path, _, query = request.path.partition("?")
    segments = path.split("/")
    key = _key(request.method, segments)
    shape = _SHAPES.get(key) or _SHAPES.get((*key[:2], "{tx}"))
    if shape is None or any(segments[at] != name for at, name in shape.fixed):
        return None
    parameters = [unquote(segments[at]) for at in shape.parameters]
    # Names such as `invalid` stand where a transaction has its number.
    if shape.takes_pointer and not parameters[0].isdigit():
        return None
    return _call(shape.operation, parameters, query, request)


def _call(number: int, parameters: list[str], query: str, request: Request) -> SessionCall:
    pairs = dict(parse_qsl(query, keep_blank_values=True)) if query else None
    if request.body is None:
        return SessionCall(number, parameters, pairs, request.form, None, request.accept)
    return SessionCall(
        number, parameters, pairs, request.body, request.content_type, request.accept
    )


def call_frame(call_id: int, call: SessionCall) -> bytes | None:
    """The frame of a call; None if it has a value that MessagePack can't carry: half a surrogate
    pair, or a number of more than 64 bits. Over HTTP the server refuses it."""
    try:
        return frame(_CALL, call_id, *call)
    except (UnicodeEncodeError, OverflowError):
        return None


def response_of(elements: list[object]) -> tuple[int, Response]:
    """The id of the call and the response, of a frame with a reply. Raises: BadRequestError."""
    match elements:
        case [_, int(call_id), int(status), dict(fields), body] if elements[0] == _REPLY:
            headers = {str(name).lower(): str(value) for name, value in fields.items()}
            if body is None or isinstance(body, bytes):
                return call_id, Response(status, headers, body or b"")
            return call_id, Response(status, headers, b"", body)
        case _:
            pass
    raise BadRequestError(f"this is no reply of a session: {shown(elements)}")
