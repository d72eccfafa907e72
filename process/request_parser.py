"""Reads requests of every kind with llhttp, the parser of Node.js (package `httptools`).

llhttp decides where each request ends. This module adds limits, the refusals of unreadable
requests, and the checks of a head (protocol §1).
"""

import re
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, unquote

from httptools import (
    HttpParserError,
    HttpParserInvalidMethodError,
    HttpParserInvalidURLError,
    HttpParserUpgrade,
    HttpRequestParser,
    parse_url,
)

from tuff.protocol.errors import (
    BadRequestError,
    MethodNotAllowedError,
    RequestTooLargeError,
    TuffError,
    UnsupportedMediaTypeError,
)
from tuff.protocol.json_forms import shown

if TYPE_CHECKING:
    import asyncio

METHODS = "DELETE, GET, POST, PUT"  # what the addresses of the protocol answer
HEAD_BYTES_MAX = 1 << 17  # bytes of a request line and its header fields, and of a trailer
LINE_BYTES_MAX = 8_190  # bytes of the request line or of a header field
FIELDS_COUNT_MAX = 128  # header fields of one request

# Fields that a request has once at most (RFC 9110). With two of them, a proxy and the server might
# each use a different one.
_SENT_ONCE = frozenset(
    {"authorization", "content-length", "content-type", "host", "max-forwards",
     "transfer-encoding", "user-agent"}
)  # fmt: skip

_TLS_HANDSHAKE = b"\x16"
_METHOD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}) ")

HeaderFields = dict[str, list[str]]  # every value of a field, by its name in small letters


class ParsedRequest:
    """One request as it is read, until it is answered."""

    __slots__ = ("body", "error", "fields", "is_begun", "is_discarded", "is_kept_alive", "is_whole",
                 "last_byte_s", "method", "target", "version", "waiter")  # fmt: skip

    def __init__(self) -> None:
        self.method = ""
        self.target = b""
        self.version = ""
        self.fields: HeaderFields = {}
        self.body = bytearray()
        self.is_kept_alive = False  # the connection may serve another request
        self.is_whole = False  # all of the body is here
        self.is_discarded = False  # the rest of the body is read and dropped
        self.is_begun = False  # a part of the reply is sent
        self.last_byte_s = 0.0
        self.error: TuffError | ConnectionError | None = None  # why the body will never be whole
        self.waiter: asyncio.Future[None] | None = None  # done when the body is whole, or never

    def complete(self) -> None:
        self.is_whole = True
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def fail(self, error: TuffError | ConnectionError) -> None:
        """The body will never be whole."""
        self.error, self.is_discarded = error, True
        self.body.clear()
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_exception(error)


class RequestParser:
    """Reads the requests of one connection. `now_s` is a monotonic clock.

    `queue` has the requests whose head is whole and that were not taken out yet. `refusal` is the
    answer to what can't be read behind them.
    """

    def __init__(self, *, max_request_bytes: int, now_s: Callable[[], float]) -> None:
        self._max_request_bytes = max_request_bytes
        self._now_s = now_s
        self.queue: deque[ParsedRequest] = deque()
        self.refusal: TuffError | None = None
        self._reading: ParsedRequest | None = None  # the request that the parser is in
        self._is_head_whole = False
        self._overhead_bytes = 0  # since the first segment of a request, or the last byte of a body
        self._first_line = b""  # begins the bytes in which an error is found
        self._parser: HttpRequestParser | None = HttpRequestParser(self)

    @property
    def is_in_request(self) -> bool:
        """Whether a part of a request was read, and its end was not."""
        return self._reading is not None

    @property
    def in_head(self) -> ParsedRequest | None:
        """The request whose head has begun and is not whole."""
        return None if self._is_head_whole else self._reading

    def stop(self) -> None:
        """Read nothing any more."""
        self._parser = None  # it refers to this object: nothing else would free the two at once

    def feed(self, data: bytes) -> None:
        """Read more bytes."""
        if self._parser is None:
            return
        if self._reading is None:
            self._first_line = data[: LINE_BYTES_MAX + 1].partition(b"\r\n")[0]
        else:
            self._overhead_bytes += len(data)
        try:
            self._feed(self._parser, data)
        except HttpParserError as error:
            self.break_off(self._refusal_of(error))
            return
        # The parser keeps the field that it is in, of a head or of a trailer, however long it gets.
        if self._reading is not None and self._overhead_bytes > HEAD_BYTES_MAX:
            part = "trailer" if self._is_head_whole else "head"
            self.break_off(
                BadRequestError(f"the {part} of the request is longer than {HEAD_BYTES_MAX} bytes")
            )

    def _feed(self, parser: HttpRequestParser, data: bytes) -> None:
        while True:
            try:
                parser.feed_data(data)
            except HttpParserUpgrade as upgrade:
                # No upgrade is offered: the request is answered, and HTTP goes on behind it.
                self._parser = parser = HttpRequestParser(self)
                data = data[upgrade.args[0] :]
            else:
                return

    def break_off(self, refusal: TuffError) -> None:
        """Read no further, since where the next request begins is unknown. The client gets this
        refusal behind the answers to the requests before it, and the connection closes."""
        parsed, self._reading = self._reading, None
        self.stop()
        if parsed is not None and self._is_head_whole:
            parsed.is_kept_alive = False
            parsed.fail(refusal)  # the client gets it as the answer to that request
        else:
            self.refusal = refusal

    def _refusal_of(self, error: HttpParserError) -> TuffError:
        line = self._first_line
        if line.startswith(_TLS_HANDSHAKE):
            return BadRequestError("the client speaks HTTPS, and the server HTTP; use http://")
        if isinstance(error, HttpParserInvalidMethodError) and (method := _METHOD.match(line)):
            return MethodNotAllowedError(f"the server answers {METHODS}, not {method[1].decode()}")
        if isinstance(error, HttpParserInvalidURLError):
            return unreadable_address(line)
        quoted = f" {shown(line.decode('latin-1'))}" if line else ""
        return BadRequestError(f"the request{quoted} is not HTTP/1.1 as RFC 9112 has it: {error}")

    # What llhttp calls.

    def on_message_begin(self) -> None:
        self._reading, self._is_head_whole, self._overhead_bytes = ParsedRequest(), False, 0

    def on_url(self, part: bytes) -> None:
        assert self._reading is not None
        self._reading.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self._reading is not None
        if self._is_head_whole:
            return  # a trailer must not change what the head says
        text = value.strip(b" \t").decode("utf-8", "surrogateescape")
        self._reading.fields.setdefault(name.decode("latin-1").lower(), []).append(text)

    def on_headers_complete(self) -> None:
        parsed, parser = self._reading, self._parser
        assert parsed is not None
        assert parser is not None
        self._is_head_whole = True
        parsed.method = parser.get_method().decode("ascii")
        parsed.version = parser.get_http_version()
        parsed.is_kept_alive = parser.should_keep_alive() and parsed.method != "CONNECT"
        parsed.last_byte_s = self._now_s()
        self.queue.append(parsed)

    def on_body(self, part: bytes) -> None:
        parsed = self._reading
        assert parsed is not None
        parsed.last_byte_s = self._now_s()
        self._overhead_bytes = 0
        if parsed.is_discarded:
            return
        parsed.body += part
        if len(parsed.body) > self._max_request_bytes:
            parsed.fail(
                RequestTooLargeError(
                    f"the body is larger than server.max_request_bytes={self._max_request_bytes}; "
                    "send it in parts"
                )
            )

    def on_message_complete(self) -> None:
        assert self._reading is not None
        self._reading.complete()
        self._reading = None
        self._first_line = b""  # what follows in the same bytes is another request


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


def is_forwarded(fields: HeaderFields) -> bool:
    """Whether another server of the cluster has forwarded the request."""
    return "1" in fields.get("tuff-forwarded", ())


def wants_redirect(fields: HeaderFields) -> bool:
    """Whether the client wants to be sent to the owner of a topic, and no forwarding."""
    return "1" in fields.get("tuff-redirect", ())


def authorization_of(fields: HeaderFields) -> str | None:
    """The first Authorization field; None where there is none."""
    return fields.get("authorization", [None])[0]


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
