"""Reads the requests of a connection with llhttp, the parser of Node.js (package `httptools`).

llhttp decides where each request ends. This module adds limits, the refusals of unreadable
requests, and the checks of a head (protocol §1).
"""

import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from httptools import (
    HttpParserError,
    HttpParserInvalidMethodError,
    HttpParserInvalidURLError,
    HttpParserUpgrade,
    HttpRequestParser,
    parse_url,
)

from process.allowed_hosts import AllowedHosts
from tuff.protocol.errors import (
    BadRequestError,
    MethodNotAllowedError,
    RequestTooLargeError,
    TuffError,
    UnsupportedMediaTypeError,
)
from tuff.protocol.json_bodies import shown

METHODS = "DELETE, GET, POST, PUT"  # what the addresses of the protocol answer
HEAD_BYTES_MAX = 1 << 17  # bytes of a request line and its header fields, and of a trailer
LINE_BYTES_MAX = 8_190  # bytes of the request line or of a header field
FIELDS_COUNT_MAX = 128  # header fields of one request
BLOCKS_COUNT_MAX = 1_024  # blocks of header fields in the cache; a client has one or two
BLOCK_BYTES_MAX = 2_048  # bytes of a block; with the count it bounds the memory to some MiB

# Fields that a request has once at most (RFC 9110). With two of them, a proxy and the server might
# each use a different one.
_SENT_ONCE = frozenset(
    {"authorization", "content-length", "content-type", "host", "max-forwards",
     "transfer-encoding", "user-agent"}
)  # fmt: skip

_TLS_HANDSHAKE = b"\x16"
_METHOD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}) ")

HeaderFields = dict[str, list[str]]  # every value of a field, by its name in small letters


class Fields(NamedTuple):
    """What a block of header fields says.

    `refusal`: why any request with it is refused, and its connection closed. `foreign`: why it is
    refused for its host or its origin; an absolute request target may name another host. `coding`:
    why its body can't be read.
    """

    by_name: HeaderFields
    refusal: TuffError | None
    foreign: TuffError | None
    content_length: int
    content_type: str | None
    accept: str | None
    coding: TuffError | None
    authorization: str | None
    traceparent: str | None
    upgrade: str | None
    is_forwarded: bool
    wants_redirect: bool
    has_host: bool
    says_connection: bool
    is_expecting: bool


class ParsedRequest:
    """One request as it is read, until it is answered."""

    # Their first values are of the class, since an object is made for every request.
    method = b""
    target = b""
    version = "1.1"
    fields: Fields
    body: bytes | bytearray = b""
    is_kept_alive = False  # the connection may serve another request
    is_whole = False  # all of the body is here
    is_discarded = False  # the rest of the body is read and dropped
    is_begun = False  # a part of the reply is sent
    refusal: TuffError | None = None  # of the head: the connection closes
    error: TuffError | None = None  # why the body will never be whole

    def fail(self, error: TuffError) -> None:
        """The body will never be whole."""
        self.error, self.is_discarded, self.body = error, True, b""


class RequestParser:
    """Reads the requests of one connection. `read_fields` reads a block of header fields.

    `queue` has the requests whose head is whole and that were not taken out yet. `refusal` is the
    answer to what can't be read behind them.
    """

    def __init__(
        self, *, max_request_bytes: int, read_fields: Callable[[Sequence[bytes]], Fields]
    ) -> None:
        self._max_request_bytes = max_request_bytes
        self._read_fields = read_fields
        self.queue: deque[ParsedRequest] = deque()
        self.refusal: TuffError | None = None
        self.reading: ParsedRequest | None = None  # a part of it was read, and its end was not
        self._is_head_whole = False
        self._fields: list[bytes] = []  # the names and values of its head so far
        self._overhead_bytes = 0  # since the first segment of a request, or the last byte of a body
        self._begin = b""  # of the bytes in which an error is found
        self._parser: HttpRequestParser | None = HttpRequestParser(self)

    @property
    def is_at_start(self) -> bool:
        """Whether nothing was read behind the requests that were taken out."""
        return not (self.queue or self.reading is not None or self.refusal is not None)

    def stop(self) -> None:
        """Read nothing any more."""
        self._parser = None  # it refers to this object: nothing else would free the two at once

    def feed(self, data: bytes) -> None:
        """Read more bytes."""
        if self.reading is None:
            self._begin = data
        else:
            self._overhead_bytes += len(data)
        parser = self._parser
        while parser is not None:
            try:
                parser.feed_data(data)
                break
            except HttpParserUpgrade as upgrade:
                # No upgrade is offered: the request is answered, and HTTP goes on behind it.
                self._parser = parser = HttpRequestParser(self)
                data = data[upgrade.args[0] :]
            except HttpParserError as error:
                self.break_off(self._refusal_of(error))
                break
        if self.reading is not None:
            self._limit_head()

    def _limit_head(self) -> None:
        self._begin = _line_of(self._begin)
        # The parser keeps the field that it is in, of a head or of a trailer, however long it gets.
        if self._overhead_bytes > HEAD_BYTES_MAX:
            part = "trailer" if self._is_head_whole else "head"
            self.break_off(
                BadRequestError(f"the {part} of the request is longer than {HEAD_BYTES_MAX} bytes")
            )

    def break_off(self, refusal: TuffError) -> None:
        """Read no further, since where the next request begins is unknown. The client gets this
        refusal behind the answers to the requests before it, and the connection closes."""
        parsed, self.reading = self.reading, None
        self.stop()
        if parsed is not None and self._is_head_whole:
            parsed.is_kept_alive = False
            parsed.fail(refusal)  # the client gets it as the answer to that request
        else:
            self.refusal = refusal

    def _refusal_of(self, error: HttpParserError) -> TuffError:
        line = _line_of(self._begin)
        if line.startswith(_TLS_HANDSHAKE):
            return BadRequestError("the client speaks HTTPS, and the server HTTP; use http://")
        if isinstance(error, HttpParserInvalidMethodError) and (method := _METHOD.match(line)):
            return MethodNotAllowedError(f"the server answers {METHODS}, not {method[1].decode()}")
        if isinstance(error, HttpParserInvalidURLError) and line:
            return unreadable_address(line)
        quoted = f" {shown(line.decode('latin-1'))}" if line else ""
        return BadRequestError(f"the request{quoted} is not HTTP/1.1 as RFC 9112 has it: {error}")

    # What llhttp calls.

    def on_message_begin(self) -> None:
        self.reading, self._is_head_whole, self._overhead_bytes = ParsedRequest(), False, 0

    def on_url(self, part: bytes) -> None:
        assert self.reading is not None
        self.reading.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_head_whole:  # a trailer must not change what the head says
            self._fields += (name, value)

    def on_headers_complete(self) -> None:
        parsed, parser = self.reading, self._parser
        assert parsed is not None
        assert parser is not None
        self._is_head_whole = True
        parsed.fields = fields = self._read_fields(self._fields)
        self._fields.clear()
        parsed.method = parser.get_method()
        parsed.is_kept_alive = parser.should_keep_alive() and parsed.method != b"CONNECT"
        # Without a Connection field only 1.1 is kept alive. llhttp makes a text of the version.
        if fields.says_connection or not parsed.is_kept_alive:
            parsed.version = parser.get_http_version()
        if fields.refusal is not None or not fields.has_host or len(parsed.target) > LINE_BYTES_MAX:
            parsed.refusal = _refusal_of_head(parsed)
        self.queue.append(parsed)

    def on_body(self, part: bytes) -> None:
        parsed = self.reading
        assert parsed is not None
        self._overhead_bytes = 0
        if parsed.is_discarded:
            return
        if not parsed.body:
            parsed.body = part
        elif isinstance(parsed.body, bytearray):
            parsed.body += part
        else:
            parsed.body = bytearray(parsed.body) + part
        if len(parsed.body) > self._max_request_bytes:
            parsed.fail(body_too_large(self._max_request_bytes))

    def on_message_complete(self) -> None:
        assert self.reading is not None
        self.reading.is_whole = True
        self.reading = None
        self._begin = b""  # what follows in the same bytes is another request


def _line_of(data: bytes) -> bytes:
    return data[: LINE_BYTES_MAX + 1].partition(b"\r\n")[0]


class HeaderCache(dict[bytes, Fields]):
    """Reads blocks of header fields. A client repeats its block byte for byte, so each is read
    once, and cached."""

    def __init__(self, hosts: AllowedHosts) -> None:
        super().__init__()
        self._hosts = hosts

    def read(self, block: Sequence[bytes]) -> Fields:
        """What the names and values of a block say. No name or value has a line feed."""
        key = b"\n".join(block)
        known = self.get(key)
        if known is not None:
            return known
        fields = _fields_of(block, self._hosts)
        # A block with a trace context comes once.
        if len(key) <= BLOCK_BYTES_MAX and fields.traceparent is None:
            if len(self) >= BLOCKS_COUNT_MAX:
                self.clear()
            self[key] = fields
        return fields


def _fields_of(block: Sequence[bytes], hosts: AllowedHosts) -> Fields:
    found: HeaderFields = {}
    for name, value in zip(block[::2], block[1::2], strict=True):
        text = value.strip(b" \t").decode("utf-8", "surrogateescape")
        found.setdefault(name.decode("latin-1").lower(), []).append(text)

    def first(name: str) -> str | None:
        return found.get(name, [None])[0]

    return Fields(
        by_name=found,
        refusal=_refusal_of_fields(found),
        foreign=hosts.refusal(found),
        content_length=int(first("content-length") or 0),
        content_type=first("content-type"),
        accept=", ".join(found["accept"]) if "accept" in found else None,
        coding=_refusal_of_coding(", ".join(found.get("content-encoding", ()))),
        authorization=first("authorization"),
        traceparent=first("traceparent"),
        upgrade=first("upgrade"),
        is_forwarded="1" in found.get("tuff-forwarded", ()),
        wants_redirect="1" in found.get("tuff-redirect", ()),
        has_host="host" in found,
        says_connection="connection" in found,
        is_expecting="expect" in found,
    )


def body_too_large(max_request_bytes: int) -> RequestTooLargeError:
    """The refusal of a body that is longer than this."""
    return RequestTooLargeError(
        f"the body is larger than server.max_request_bytes={max_request_bytes}; send it in parts"
    )


def _refusal_of_fields(fields: HeaderFields) -> TuffError | None:
    """Why any route refuses a request with these header fields; None where it does not."""
    if sum(map(len, fields.values())) > FIELDS_COUNT_MAX:
        return BadRequestError(f"the request has more than {FIELDS_COUNT_MAX} header fields")
    for name, values in fields.items():
        if len(name) + max(map(len, values)) > LINE_BYTES_MAX:
            return BadRequestError(
                f"a header field is longer than {LINE_BYTES_MAX} bytes; send less"
            )
        if len(values) > 1 and name in _SENT_ONCE:
            return BadRequestError(f"the request has {len(values)} {name.title()} fields; send one")
    expected = ", ".join(fields.get("expect", ()))
    if expected and expected.lower() != "100-continue":
        return BadRequestError(
            f"the server meets no expectation but 100-continue, not {shown(expected)}"
        )
    return None


def _refusal_of_coding(content_encoding: str) -> TuffError | None:
    """Why a body with this content encoding is refused; None where it is as it is."""
    # One that is taken for the body itself, or unpacked in part, would be stored as what it is not.
    if content_encoding.strip().lower() in ("", "identity"):
        return None
    return UnsupportedMediaTypeError(
        f"the content encoding is {shown(content_encoding)}; send the body as it is"
    )


def _refusal_of_head(parsed: ParsedRequest) -> TuffError | None:
    if parsed.fields.refusal is not None:
        return parsed.fields.refusal
    if not parsed.fields.has_host and parsed.version == "1.1":
        return BadRequestError("the request has no Host field, which HTTP/1.1 asks for")
    if len(parsed.target) > LINE_BYTES_MAX:
        return BadRequestError(f"the address is longer than {LINE_BYTES_MAX} bytes; send less")
    return None


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
