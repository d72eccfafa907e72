"""What the head of a request says, and what it may not say (protocol §1)."""

from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from httptools import HttpParserInvalidURLError, parse_url

from tuff.protocol.errors import BadRequestError, TuffError, UnsupportedMediaTypeError
from tuff.protocol.json_forms import shown

LINE_BYTES_MAX = 8_190  # bytes of the request line or of a header field
FIELDS_COUNT_MAX = 128  # header fields of one request

# Fields that a request has once at most (RFC 9110). Of two, a proxy and the server might each use
# another one.
_SENT_ONCE = frozenset(
    {"content-length", "content-type", "host", "max-forwards", "transfer-encoding", "user-agent"}
)

HeaderFields = dict[str, list[str]]  # every value of a field, by its name in small letters


def add_field(fields: HeaderFields, name: bytes, value: bytes) -> None:
    """Add a field that the parser found."""
    text = value.strip(b" \t").decode("utf-8", "surrogateescape")
    fields.setdefault(name.decode("latin-1").lower(), []).append(text)


def refusal_of_fields(fields: HeaderFields) -> TuffError | None:
    """Why a request with these header fields is refused by any route; None where it is not."""
    if sum(map(len, fields.values())) > FIELDS_COUNT_MAX:
        return BadRequestError(f"the request has more than {FIELDS_COUNT_MAX} header fields")
    for name, values in fields.items():
        if len(name) + max(map(len, values)) > LINE_BYTES_MAX:
            return BadRequestError(
                f"a header field is longer than {LINE_BYTES_MAX} bytes; send less"
            )
        if len(values) > 1 and name in _SENT_ONCE:
            return BadRequestError(f"the request has {len(values)} {name.title()} fields; send one")
    return None


def refusal_of_head(version: str, target: bytes, fields: HeaderFields) -> TuffError | None:
    """Why a request is refused, and its connection closed, before a route is looked for."""
    if (refusal := refusal_of_fields(fields)) is not None:
        return refusal
    if version == "1.1" and "host" not in fields:
        return BadRequestError("the request has no Host field, which HTTP/1.1 asks for")
    if len(target) > LINE_BYTES_MAX:
        return BadRequestError(f"the address is longer than {LINE_BYTES_MAX} bytes; send less")
    expected = ", ".join(fields.get("expect", ()))
    if expected and expected.lower() != "100-continue":
        return BadRequestError(
            f"the server meets no expectation but 100-continue, not {shown(expected)}"
        )
    return None


def accept_of(fields: HeaderFields) -> str | None:
    """The values of all Accept fields; None where there is none."""
    lines = fields.get("accept")
    return ", ".join(lines) if lines else None


class Target(NamedTuple):
    """What a request asks for: the path as it came, its segments and query without escapes.
    `authority` is that of an absolute request target (RFC 9112 §3.2.2)."""

    path: str
    segments: list[str]
    query: tuple[tuple[str, str], ...]
    authority: str | None


def read_target(target: bytes) -> Target:
    """What a request target asks for. Raises: BadRequestError: it is neither a path nor an absolute
    address."""
    authority = None
    if target.startswith(b"/") or target == b"*":
        path_bytes, _, query_bytes = target.partition(b"#")[0].partition(b"?")
    else:
        try:
            url = parse_url(target)
        except HttpParserInvalidURLError:
            raise unreadable_address(target) from None
        path_bytes, query_bytes = url.path or b"/", url.query or b""
        host = (url.host or b"").decode("ascii")
        host = f"[{host}]" if ":" in host else host
        port: int | None = url.port
        user = f"{url.userinfo.decode('ascii')}@" if url.userinfo else ""
        authority = user + (host if port is None else f"{host}:{port}")
    path, query = path_bytes.decode("latin-1"), query_bytes.decode("latin-1")
    # A segment may hold an escaped slash, which ends no segment.
    segments = [unquote(segment) for segment in path.split("/")[1:]]
    pairs = parse_qsl(query, keep_blank_values=True) if query else ()
    return Target(path, segments, tuple(pairs), authority)


def unreadable_address(text: bytes) -> BadRequestError:
    quoted = shown(text.decode("latin-1"))
    return BadRequestError(f"the address can't be read at {quoted}; escape it as RFC 3986 says")


def require_no_coding(fields: HeaderFields) -> None:
    """Raises: UnsupportedMediaTypeError: the body is compressed."""
    # One that is taken for the body itself, or unpacked in part, would be stored as what it is not.
    codings = ", ".join(fields.get("content-encoding", ()))
    if codings.strip().lower() not in ("", "identity"):
        raise UnsupportedMediaTypeError(
            f"the content encoding is {shown(codings)}; send the body as it is"
        )
