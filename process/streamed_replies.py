"""Replies that are sent in parts, since they are too long to be whole in memory: backups."""

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from kernel.requests_and_replies import Request
from process.request_parser import ParsedRequest
from tuff.protocol.operations import Operation


class ReplyStream:
    """Sends the reply to one request in parts."""

    def __init__(
        self,
        parsed: ParsedRequest,
        *,
        head: Callable[[int, str, Iterable[tuple[str, str]]], bytes],
        send: Callable[..., Awaitable[None]],
    ) -> None:
        """`head` makes the head of a reply, from its status, content type and other fields."""
        self._parsed = parsed
        self._head = head
        self._send = send
        self._is_chunked = parsed.version == "1.1"

    async def start(self, content_type: str, *, within_s: float) -> None:
        """Send the head. Raises: as `write`."""
        if not self._is_chunked:
            self._parsed.is_kept_alive = False  # the end of the connection is that of the reply
        framing = [("Transfer-Encoding", "chunked")] if self._is_chunked else []
        closing = [] if self._parsed.is_kept_alive else [("Connection", "close")]
        self._parsed.is_begun = True
        head = self._head(200, content_type, [*framing, *closing])
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
    """A route whose reply is sent in parts. Its path has no parameters."""

    operation: Operation
    handler: StreamHandler
