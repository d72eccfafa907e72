"""Requests of the client as calls of a session, and the replies as responses (docs/session.md)."""

from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

import orjson

from tuff.calls import Request, Response
from tuff.protocol.errors import BadRequestError
from tuff.protocol.json_forms import shown
from tuff.protocol.session_frames import OPERATIONS, Kind, frame

_JSON = "application/json"
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


# A parameter is None here; the first path that fits is the one, and fixed names come first.
_SHAPES = sorted(
    (
        (method, [None if each.startswith("{") else each for each in path.split("/")], number)
        for number, (method, path) in OPERATIONS.items()
    ),
    key=lambda shape: shape[1].count(None),
)


def session_call(request: Request) -> SessionCall | None:
    """The call for a request; None if a session does not carry its operation."""
    path, _, query = request.path.partition("?")
    segments = path.split("/")
    for method, shape, number in _SHAPES:
        if method == request.method and _fits(segments, shape):
            parameters = [
                unquote(segment)
                for segment, fixed in zip(segments, shape, strict=True)
                if fixed is None
            ]
            pairs = dict(parse_qsl(query, keep_blank_values=True)) if query else None
            is_json = request.content_type == _JSON
            body: object = request.body
            if request.body is not None and is_json:
                try:
                    body = orjson.loads(request.body)
                except ValueError:  # half a surrogate pair, which the server refuses over HTTP
                    return None
            content_type = None if is_json else request.content_type
            accept = None if request.accept == _JSON else request.accept
            return SessionCall(number, parameters, pairs, body, content_type, accept)
    return None


def _fits(segments: list[str], shape: list[str | None]) -> bool:
    return len(segments) == len(shape) and all(
        fixed in (None, segment) for fixed, segment in zip(shape, segments, strict=True)
    )


def call_frame(call_id: int, call: SessionCall) -> bytes:
    """The frame of a call."""
    return frame(int(Kind.CALL), call_id, *call)


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
