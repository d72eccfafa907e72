"""Replies as bytes: whole ones, and those that are sent in parts."""

from collections.abc import Awaitable, Callable, Iterable
from email.utils import formatdate
from http import HTTPStatus
from typing import NamedTuple

from process.request_parser import Exchange
from tuff.protocol.exchange import Reply, Request


class ReplyBytes:
    """Turns replies into bytes. `now_ms` is the wall clock. `elapsed_s` is a cheap monotonic clock:
    the Date field is made anew when a second of it has passed."""

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
        """The head of a reply."""
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

    def stream_head(
        self, status: int, content_type: str, headers: Iterable[tuple[str, str]]
    ) -> bytes:
        """The head of a reply whose length is not known; `headers` say how it ends."""
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
        start = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {content_type}\r\n"
        self._date()
        return f"{start}{lines}".encode("ascii") + self._close

    def _date(self) -> None:
        self._dated_s = int(self._elapsed_s())
        date = formatdate(self._now_ms() / 1000, usegmt=True)
        self._close = f"Date: {date}\r\nServer: {self._server}\r\n\r\n".encode("ascii")


def _start(status: int, content_type: str | None) -> bytes:
    named = "" if content_type is None else f"Content-Type: {content_type}\r\n"
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{named}Content-Length: ".encode(
        "ascii"
    )


class ReplyStream:
    """Sends the reply to one request in parts."""

    status = 200

    def __init__(
        self, send: Callable[..., Awaitable[None]], exchange: Exchange, replies: ReplyBytes
    ) -> None:
        self._send = send
        self._exchange = exchange
        self._replies = replies
        self._is_chunked = exchange.version == "1.1"

    async def start(self, content_type: str, *, within_s: float) -> None:
        """Send the head. Raises: as `write`."""
        if not self._is_chunked:
            self._exchange.is_kept_alive = False  # the end of the connection is that of the reply
        framing = [("Transfer-Encoding", "chunked")] if self._is_chunked else []
        closing = [] if self._exchange.is_kept_alive else [("Connection", "close")]
        self._exchange.is_begun = True
        head = self._replies.stream_head(self.status, content_type, [*framing, *closing])
        await self._send(head, within_s=within_s)

    async def write(self, part: bytes, *, within_s: float) -> None:
        """Send a part, and wait until the client has taken enough.

        Raises:
            TimeoutError: it takes nothing for so many seconds.
            ConnectionError: the connection is closed.
        """
        data = b"%x\r\n%b\r\n" % (len(part), part) if self._is_chunked else part
        await self._send(data, within_s=within_s)

    async def end(self, *, within_s: float) -> None:
        """The reply is whole. Raises: as `write`."""
        if self._is_chunked:
            await self._send(b"0\r\n\r\n", within_s=within_s)


StreamHandler = Callable[[Request, ReplyStream], Awaitable[None]]


class StreamRoute(NamedTuple):
    """A route whose reply is sent in parts. Its path has no names to fill in."""

    method: str
    path: str
    handler: StreamHandler
