"""Requests of the client as calls of a session, and the replies as responses (docs/session.md)."""

from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from tuff.calls import Request, Response
from tuff.protocol.errors import BadRequestError
from tuff.protocol.json_forms import shown
from tuff.protocol.session_frames import OPERATIONS, Kind, frame

_POLL = 4


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


_SHAPES = [(method, path.split("/"), number) for number, (method, path) in OPERATIONS.items()]


def session_call(request: Request) -> SessionCall | None:
    """The call for a request; None if a session does not carry it: another operation, or one with
    a trace context, which is a field of HTTP."""
    if request.trace_headers:
        return None
    path, _, query = request.path.partition("?")
    segments = path.split("/")
    for method, shape, number in _SHAPES:
        if method == request.method and len(shape) == len(segments):
            parameters = _parameters(segments, shape)
            if parameters is not None:
                return _call(number, parameters, query, request)
    return None


def _parameters(segments: list[str], shape: list[str]) -> list[str] | None:
    """The parameters of a path; None if it does not have this shape."""
    parameters = []
    for segment, expected in zip(segments, shape, strict=True):
        # Names such as `invalid` stand where a transaction has its number.
        if expected == "{tx}" and not segment.isdigit():
            return None
        if expected.startswith("{"):
            parameters.append(unquote(segment))
        elif expected != segment:
            return None
    return parameters


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
        return frame(int(Kind.CALL), call_id, *call)
    except (UnicodeEncodeError, OverflowError):
        return None


def response_of(elements: list[object]) -> tuple[int, Response]:
    """The id of the call and the response, of a frame with a reply. Raises: BadRequestError."""
    match elements:
        case [Kind.REPLY, int(call_id), int(status), dict(fields), body]:
            headers = {str(name).lower(): str(value) for name, value in fields.items()}
            if body is None or isinstance(body, bytes):
                return call_id, Response(status, headers, body or b"")
            return call_id, Response(status, headers, b"", body)
        case _:
            pass
    raise BadRequestError(f"this is no reply of a session: {shown(elements)}")
