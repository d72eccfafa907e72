"""The connections that the HTTP library serves, and what it would say on them of its own accord.

What the library's parser can't read, and an expectation that nobody knows, never reach a route, and
the library answers them with a text. Here they become problem documents as every other refusal
(protocol §1), and a body that was being read when the parser gave up is ended.
"""

import asyncio
import re
from ast import literal_eval
from contextlib import suppress

from aiohttp import web
from aiohttp.http import HttpProcessingError, HttpVersion11, RawRequestMessage
from aiohttp.http_exceptions import BadHttpMethod, InvalidURLError, LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from process.application import OPERATION, UNMATCHED, break_off, response_of, unserved
from process.front import Front, is_given_up
from process.heads import LINE_BYTES_MAX
from process.unread import Unread
from tuff.protocol.errors import BadRequestError, MethodNotAllowedError, TuffError
from tuff.protocol.exchange import Reply
from tuff.protocol.media import shown

METHODS = "DELETE, GET, POST, PUT"  # what the addresses of the protocol answer

_METHOD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}) ")
# What the parser says: a reason, the line as Python writes bytes, and an arrow at the place in it.
_SAID = re.compile(r"(?:Bad status line:\s*)?([^\n]*?)[:.]?(?:\n\s*(b'.*'|b\".*\")\s*\^?\s*)?")


class Connections:
    """Every connection that the library serves. Lives on one event loop."""

    def __init__(self, front: Front, *, keep_alive_s: float) -> None:
        self._front = front
        self._keep_alive_s = keep_alive_s
        self._open: set[Connection] = set()
        self._is_empty = asyncio.Event()

    @property
    def count(self) -> int:
        return len(self._open)

    def make(self, server: web.Server) -> "Connection":
        """One more, of that application."""
        return Connection(server, self._front, self, keep_alive_s=self._keep_alive_s)

    def add(self, connection: "Connection") -> None:
        self._open.add(connection)

    def discard(self, connection: "Connection") -> None:
        self._open.discard(connection)
        if not self._open:
            self._is_empty.set()

    async def close(self, within_s: float) -> None:
        """Close every connection; a request under way gets so many seconds to be answered, and its
        client to read that."""
        await asyncio.sleep(0)  # what has come is begun
        for connection in tuple(self._open):
            connection.finish()
        if self._open:
            self._is_empty.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_empty.wait(), within_s)
        for connection in tuple(self._open):
            connection.abort()


class Connection(web.RequestHandler):
    """One connection, from where it left the lane (`process.lane`) until it closes."""

    __slots__ = ("_connections", "_front", "_link", "_newest_body", "_unread")

    def __init__(
        self, server: web.Server, front: Front, connections: Connections, *, keep_alive_s: float
    ) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=keep_alive_s,
            access_log=None,  # type: ignore[arg-type]  # the library's own runner says it so
            auto_decompress=False,  # a body is taken as it is sent, or not at all
        )
        self._front = front
        self._connections = connections
        self._link: asyncio.Transport | None = None  # the library forgets it while it still sends
        self._unread: Unread | None = None  # while the connection is open
        self._newest_body: StreamReader = EMPTY_PAYLOAD  # of the last request whose head is read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._link = self.transport
        if self._link is not None:
            self._unread = Unread(self._link)
        self._connections.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        request, task = self._current_request, self._task_handler  # the library forgets both
        super().connection_lost(exc)
        if self._unread is not None:
            self._unread.stop()
            self._unread = None
        self._connections.discard(self)
        if request is not None and task is not None and is_given_up(request.get(OPERATION, "")):
            task.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is not None:
            self._unread.watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.taken()

    def force_close(self) -> None:
        super().force_close()
        if self._unread is not None:
            self._unread.watch()

    def finish(self) -> None:
        """Close the connection, once the requests under way are answered."""
        self.close()
        if not self._request_in_progress and not self._messages:
            self.force_close()

    def abort(self) -> None:
        """Close the connection now."""
        if self._link is not None:
            self._link.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        for message, body in self._messages:
            if isinstance(message, RawRequestMessage):
                self._newest_body = body
            elif not self._newest_body.is_eof():
                assert isinstance(message.exc, HttpProcessingError)
                # The parser is done with the connection; who reads that body would wait for ever.
                break_off(self._newest_body, _refusal(message.exc))

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what could not be read, or not be served; the connection closes with it."""
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the reply is sent; all that is left is to close")
        if not isinstance(exc, HttpProcessingError):
            return self._closing(self._front.fail(UNMATCHED))
        # The library makes up a request of HTTP/1.0 for what it could not read.
        request._version = HttpVersion11  # noqa: SLF001 - there is no other way to say so
        error = _refusal(exc)
        reply = self._front.refuse(UNMATCHED, error)
        if isinstance(error, MethodNotAllowedError):
            reply = reply._replace(headers=(("Allow", METHODS),))
        return self._closing(reply)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if isinstance(resp, web.HTTPException):  # raised before any route was asked
            resp = self._closing(self._front.refuse(UNMATCHED, unserved(resp, request)))
        return await super().finish_response(request, resp, start_time)

    def _closing(self, reply: Reply) -> web.Response:
        response = response_of(reply)
        response.force_close()
        return response


def _refusal(error: HttpProcessingError) -> TuffError:
    """What is wrong with a request that the parser gave up."""
    said = _SAID.fullmatch(error.message)
    reason, line = (said[1], said[2]) if said is not None else (error.message, None)
    quoted = b"" if line is None else literal_eval(line)
    if isinstance(error, BadHttpMethod) and (method := _METHOD.match(quoted)):
        return MethodNotAllowedError(f"the server answers {METHODS}, not {method[1].decode()}")
    if isinstance(error, LineTooLong):
        return BadRequestError(
            f"the address or a header field is longer than {LINE_BYTES_MAX} bytes; send less"
        )
    where = f" at {shown(quoted.decode('latin-1'))}" if quoted else ""
    if isinstance(error, InvalidURLError):
        return BadRequestError(f"the address can't be read{where}; escape it as RFC 3986 says")
    return BadRequestError(f"the request is not HTTP/1.1 as RFC 9112 has it: {reason}{where}")
