"""The elements of a call of a session, checked as the server reads them, and its request
(docs/session.md). `tuff.protocol.session_frames` has the frames.
"""

from kernel.requests_and_replies import Request, require_reply_type
from process.admission_and_dispatch import Call
from tuff.protocol.errors import BadRequestError
from tuff.protocol.json_bodies import shown
from tuff.protocol.media_types import MediaType

FRAME_OVERHEAD_BYTES = 1 << 16  # of a frame beside its body: names, query, fields
CALL_ID_MAX = (1 << 63) - 1
TEXT_CHARACTERS_MAX = 8_190  # of a parameter or a media type; HTTP's lines have as many bytes
_CALL_ELEMENTS_MAX = 8


def call_of(elements: list[object]) -> tuple[int, list[object]]:
    """The id of a call, and its other elements, None where they are missing: operation, parameters,
    query, body, content type, accept. These are not checked yet.

    Raises:
        BadRequestError: it has no call id, so it can't be answered; the session has to end.
    """
    count = len(elements)
    if not 4 <= count <= _CALL_ELEMENTS_MAX:
        raise BadRequestError(f"a call has 4 to {_CALL_ELEMENTS_MAX} elements, not {count}")
    call_id = elements[1]
    if type(call_id) is not int or not 0 <= call_id <= CALL_ID_MAX:
        raise BadRequestError(f"a call id is a whole number, not {shown(call_id)}")
    return call_id, elements[2:] + [None] * (_CALL_ELEMENTS_MAX - count)


def request_of(said: list[object], call: Call, head: Request) -> Request:
    """The request of a call that said this, over the session that `head` has begun.

    Raises: BadRequestError, NotAcceptableError.
    """
    _, values, query, body, content_type, accept = said
    names = call.callee.names
    if not isinstance(values, list) or len(values) != len(names):
        raise BadRequestError(
            f"the operation takes {len(names)} parameters ({', '.join(names)}), not {shown(values)}"
        )
    parameters: dict[str, str] = {}
    for name, value in zip(names, values, strict=True):
        is_short = type(value) is str and len(value) <= TEXT_CHARACTERS_MAX
        parameters[name] = value if is_short else _parameter(value)
    pairs = _query_pairs(query) if query else ()
    if accept is not None:
        accept = _media_type(accept, what="the reply")
        require_reply_type(accept)
    if not isinstance(body, bytes):
        members = {} if body is None else body
        # A Request, without the call of Python's own that makes it from arguments.
        return tuple.__new__(Request, (
            parameters, pairs, None, accept, b"", False, False, head.authorization,
            head.certificate, head.address, None, None, members, call.size, call, None,
        ))  # fmt: skip
    media_type = MediaType.AVRO.value
    if content_type is not None:
        media_type = _media_type(content_type, what="the body")
    return Request(
        parameters, pairs, media_type, accept, body, authorization=head.authorization,
        certificate=head.certificate, address=head.address, call=call,
    )  # fmt: skip


def _parameter(value: object) -> str:
    """A parameter that is no short string."""
    if isinstance(value, str):
        raise _too_long("a parameter", value)
    if type(value) is not int:
        raise BadRequestError(f"a parameter is a string or a number, not {shown(value)}")
    return str(value)


def _media_type(value: object, *, what: str) -> str:
    """The media type of the body or the reply of a call. Raises: BadRequestError."""
    if not isinstance(value, str):
        raise BadRequestError(f"the media type of {what} is a string, not {shown(value)}")
    if len(value) > TEXT_CHARACTERS_MAX:
        raise _too_long(f"the media type of {what}", value)
    return value


def _too_long(what: str, text: str) -> BadRequestError:
    # The server keeps such texts in caches, whose memory is bounded by their count.
    return BadRequestError(f"{what} has at most {TEXT_CHARACTERS_MAX} characters, not {len(text)}")


def _query_pairs(query: object) -> tuple[tuple[str, str], ...]:
    """The query of a call, as that of an address. Raises: BadRequestError."""
    if not isinstance(query, dict):
        raise BadRequestError(f"a query is a map, not {shown(query)}")
    for value in query.values():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise BadRequestError(f"a value of a query is a string or number, not {shown(value)}")
    return tuple((str(name), str(value)) for name, value in query.items())
