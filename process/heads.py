"""The heads of plain requests, read without an HTTP library's objects, and the heads of replies.

    request := line CRLF fields CRLF [body]

A line (process/lines.py) that has an escape, an absolute address or another version is not plain.
The fields are judged by the library's own parser, once for each block of them: a client repeats its
fields byte for byte, so that a block that was found plain is looked up from then on. There is no
second opinion on where a request ends, since what the library would not read the same way (two
lengths, a transfer coding, a field that is folded) is not plain, and goes to the library untouched.
So does a request that is refused for its host or its origin (process/hosts.py).
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpProcessingError, HttpRequestParser, HttpVersion11
from multidict import MultiMapping

from process.hosts import Hosts
from process.lines import Asked, Lines
from process.remembered import Remembered
from tuff.protocol.exchange import Reply

BLOCKS_COUNT_MAX = 1_024  # blocks of fields that are remembered; a client has one or two
BLOCK_BYTES_MAX = 2_048  # bytes of a block; with the count it bounds the memory to 2 MiB
LINE_BYTES_MAX = 8_190  # bytes; the library's own bound
PARSER_BUFFER_BYTES = 65_536  # bytes; what the library's parser asks for, and never fills here

_LINE_END = b"\r\n"
_END = b"\r\n\r\n"
# What changes how a request is read, or how it must be answered.
_NOT_PLAIN = ("Transfer-Encoding", "Expect", "Upgrade", "Content-Encoding", "Trailer")


class Fields(NamedTuple):
    """What a block of header fields says."""

    content_length: int
    content_type: str | None
    accept: str | None


class Head(NamedTuple):
    """The head of a plain request that has a route; `size` counts its bytes."""

    asked: Asked
    fields: Fields
    size: int


class Heads:
    """Reads the heads of requests; remembers blocks of fields, within bounds."""

    def __init__(self, lines: Lines, hosts: Hosts, loop: AbstractEventLoop) -> None:
        self._lines = lines
        self._blocks = Remembered(
            partial(_plain_fields, hosts=hosts, loop=loop),
            is_kept=lambda block: len(block) <= BLOCK_BYTES_MAX,
            count_max=BLOCKS_COUNT_MAX,
        )

    def read(self, data: bytes) -> Head | None:
        """The head that the bytes begin with; None when it is not whole, not plain, or has no
        route."""
        line_end = data.find(_LINE_END, 0, LINE_BYTES_MAX)
        if line_end < 0:
            return None
        # The blank line may come at once, where there are no fields.
        end = data.find(_END, line_end)
        if end < 0:
            return None
        asked = self._lines.find(data[:line_end])
        if asked is None:
            return None
        fields = self._blocks[data[line_end + 2 : end + 2]]
        if fields is None:
            return None
        return Head(asked, fields, end + len(_END))


def _plain_fields(block: bytes, *, hosts: Hosts, loop: AbstractEventLoop) -> Fields | None:
    parser = HttpRequestParser(BaseProtocol(loop), loop, PARSER_BUFFER_BYTES)
    try:
        messages, _, _ = parser.feed_data(b"POST / HTTP/1.1\r\n" + block + b"\r\n")
    except HttpProcessingError:
        return None
    if len(messages) != 1:
        return None
    message = messages[0][0]
    headers = message.headers
    if (
        message.version != HttpVersion11
        or message.should_close
        or message.upgrade
        or message.chunked
        or any(name in headers for name in _NOT_PLAIN)
        or hosts.refusal(headers) is not None
    ):
        return None
    length = int(headers.get("Content-Length", "0"))
    return Fields(length, headers.get("Content-Type"), accept_of(headers))


def accept_of(headers: MultiMapping[str]) -> str | None:
    """What the client takes, in however many fields it says so; None where it doesn't say."""
    lines = headers.getall("Accept", ())
    return ", ".join(lines) if lines else None


class ReplyBytes:
    """Turns replies into bytes. `now_ms` is the wall clock, `elapsed_s` one that only goes forward
    and costs little: the date is made anew when a second of it has passed."""

    def __init__(
        self, *, server: str, now_ms: Callable[[], int], elapsed_s: Callable[[], float]
    ) -> None:
        self._server = server
        self._now_ms = now_ms
        self._elapsed_s = elapsed_s
        self._dated_s = -1
        self._close = b""
        self._starts: dict[tuple[int, str | None], bytes] = {}

    def pack(self, reply: Reply) -> bytes:
        """The whole reply, for a connection that stays open."""
        return self.head(reply) + reply.body

    def head(self, reply: Reply) -> bytes:
        """All of it before the body."""
        status, content_type, body, headers = reply
        try:
            start = self._starts[status, content_type]
        except KeyError:
            start = self._starts[status, content_type] = _start(status, content_type)
        if int(self._elapsed_s()) != self._dated_s:
            self._date()
        if not headers:
            return b"%b%d\r\n%b" % (start, len(body), self._close)
        more = "".join([f"{name}: {value}\r\n" for name, value in headers])
        return b"%b%d\r\n%b%b" % (start, len(body), more.encode("ascii"), self._close)

    def _date(self) -> None:
        self._dated_s = int(self._elapsed_s())
        date = formatdate(self._now_ms() / 1000, usegmt=True)
        self._close = f"Date: {date}\r\nServer: {self._server}\r\n\r\n".encode("ascii")


def _start(status: int, content_type: str | None) -> bytes:
    named = "" if content_type is None else f"Content-Type: {content_type}\r\n"
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{named}Content-Length: ".encode(
        "ascii"
    )
