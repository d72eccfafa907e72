"""One connection: reads its requests, and answers them one after the other (protocol §1).

llhttp reads the bytes (process/request_parser.py). The connection is always in one of these states;
a state without progress ends after its time limit:

    state        what is so                                    next states
    IDLE         no request has begun                          HEAD BODY ANSWERING CLOSING
    HEAD         a part of a head is here                      BODY ANSWERING CLOSING
    BODY         a request is admitted, its body is coming     ANSWERING, or as ANSWERING
    ANSWERING    a whole request is under way                  IDLE DISCARDING CLOSING
    DISCARDING   it was answered before its body was whole     IDLE CLOSING
    CLOSING      the last reply is written                     GONE
    GONE         the connection is lost, or became a session

Requests that arrive behind one under way wait, up to a bound; above it the connection is not read.
A connection whose client does not read its replies is aborted.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable, Sequence
from email.utils import formatdate
from enum import Enum, auto
from fcntl import ioctl
from functools import partial
from http import HTTPStatus
from termios import FIONREAD

from kernel.requests_and_replies import Reply, Request, Route
from process.admission_and_dispatch import (
    UNMATCHED,
    Call,
    Dispatcher,
    callee_of,
    stream_callee_of,
)
from process.allowed_hosts import AllowedHosts
from process.open_connections import Connections
from process.request_parser import (
    METHODS,
    HeaderCache,
    ParsedRequest,
    RequestParser,
    body_too_large,
)
from process.route_tree import RouteTree
from process.slow_readers import SlowReader
from process.streamed_replies import ReplyStream, StreamHandler, StreamRoute
from process.tls import names_of
from tuff.protocol.errors import BadRequestError, MethodNotAllowedError, TuffError

SERVER_NAME = "tuff"  # what every reply calls the server
JOINED_BYTES_MAX = 1 << 16  # bytes of a body; a larger one is not copied behind its head
HELD_BYTES_MAX = 1 << 18  # bytes that arrive behind a request under way; then reading pauses
KEEP_ALIVE_S = 75.0  # seconds an idle connection is kept
# Seconds without a byte of a body that was announced. An interrupted network is usually back by
# then. A client that is gone must not count among `server.max_pending_requests` for longer.
UPLOAD_QUIET_S_MAX = 30.0

SWITCHING = 101  # the status of the reply with which HTTP ends
SENT = Reply()  # the reply to a request that was answered in parts
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class State(Enum):
    """What a connection does."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    ANSWERING = auto()
    DISCARDING = auto()
    CLOSING = auto()
    GONE = auto()


IDLE, HEAD, BODY, ANSWERING, DISCARDING, CLOSING, GONE = State

LIMITS_S = {
    IDLE: KEEP_ALIVE_S,
    # From the first byte of a head to its last one. Clients send it in one piece, or nearly so.
    # Without a limit, a client that sends it byte by byte would keep its connection for ever.
    HEAD: 30.0,
    BODY: UPLOAD_QUIET_S_MAX,
    # The rest of the body of a refused request is read and dropped. Closing at once would reset the
    # connection before the client has read the refusal.
    DISCARDING: 10.0,
}


class ReplyEncoder:
    """Encodes the heads of replies.

    `now_ms` is the wall clock. `elapsed_s` is a cheap monotonic clock: the Date field is renewed
    each second of it.
    """

    def __init__(self, *, now_ms: Callable[[], int], elapsed_s: Callable[[], float]) -> None:
        self._now_ms = now_ms
        self._elapsed_s = elapsed_s
        self._dated_s = -1
        self._close = b""
        self._starts: dict[tuple[int, str | None], bytes] = {}

    def head(self, reply: Reply) -> bytes:
        """The head of a reply."""
        status, content_type, body, headers, _ = reply
        try:
            start = self._starts[status, content_type]
        except KeyError:
            start = self._starts[status, content_type] = _start(status, content_type)
        if int(self._elapsed_s()) != self._dated_s:
            self._date()
        more = ""
        for name, value in headers:
            more += f"{name}: {value}\r\n"
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
        self._close = f"Date: {date}\r\nServer: {SERVER_NAME}\r\n\r\n".encode("ascii")


def closing(reply: Reply) -> Reply:
    """A copy of a reply that says that the connection closes after it."""
    return reply._replace(headers=(*reply.headers, ("Connection", "close")))


def _start(status: int, content_type: str | None) -> bytes:
    named = "" if content_type is None else f"Content-Type: {content_type}\r\n"
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{named}Content-Length: ".encode(
        "ascii"
    )


class HttpService:
    """What all connections share. Lives on one event loop. `now_ms` is the wall clock."""

    def __init__(
        self,
        routes: Sequence[Route],
        streams: Sequence[StreamRoute],
        dispatcher: Dispatcher,
        hosts: AllowedHosts,
        *,
        max_request_bytes: int,
        now_ms: Callable[[], int],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.tree = RouteTree([*map(callee_of, routes), *map(stream_callee_of, streams)])
        self.dispatcher = dispatcher
        self.hosts = hosts
        self.fields = HeaderCache(hosts)
        self.replies = ReplyEncoder(now_ms=now_ms, elapsed_s=self.loop.time)
        self.max_request_bytes = max_request_bytes
        self.connections = Connections()
        # Continues a connection whose client has changed the protocol, with what its request says
        # about the client.
        self.switch: Callable[[asyncio.Transport, Request], None] | None = None


class HttpConnection(asyncio.Protocol):
    """One connection, until it closes."""

    _transport: asyncio.Transport  # from the moment at which it is open

    def __init__(
        self,
        service: HttpService,
        *,
        opened: "Callable[[HttpConnection], None]" = lambda _connection: None,
    ) -> None:
        """`opened` is called when requests can come: with TLS, after the handshake."""
        self._service = service
        self._opened = opened
        self._loop = service.loop
        self._certificate: tuple[str, ...] = ()  # the names in that of the client
        self._address = ""  # of the client; empty for a Unix socket
        self._parser = RequestParser(
            max_request_bytes=service.max_request_bytes, read_fields=service.fields.read
        )
        self._state = IDLE
        self._since_s = 0.0  # when it last made progress in its state, where that has a limit
        self._timer: asyncio.TimerHandle | None = None  # checks the limit, or earlier
        self._current: ParsedRequest | None = None  # the last request that was begun
        self._call: Call | None = None  # of the request in BODY and ANSWERING, if it is admitted
        self._head: Request | None = None  # of the request in BODY
        self._held_bytes = 0  # that have arrived behind the request under way
        self._is_last = service.connections.is_ending  # the connection closes after the next reply
        self._is_paused = False  # the client does not read its replies
        self._writable: asyncio.Future[None] | None = None  # done when it reads again
        self._slow_reader: SlowReader | None = None  # once the transport has paused

    # What the event loop calls.

    def connection_made(  # type: ignore[override]  # a stream's, in uvloop not by its class
        self, transport: asyncio.Transport
    ) -> None:
        self._transport = transport
        self._service.connections.add(self)
        self._opened(self)
        self._certificate = names_of(transport.get_extra_info("peercert"))
        peer = transport.get_extra_info("peername")
        self._address = peer[0] if isinstance(peer, tuple) else ""
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._enter(IDLE)

    def connection_lost(self, exc: Exception | None) -> None:
        was, self._state = self._state, GONE
        self._stop()
        if self._slow_reader is not None:
            self._slow_reader.stop()
        self._service.connections.discard(self)
        lost = ConnectionResetError("the client has closed the connection")
        call = self._call
        if call is not None and was is BODY:
            call.fail(lost)
        elif call is not None and call.callee.ends_with_connection:
            call.give_up()
        if self._writable is not None and not self._writable.done():
            self._writable.set_exception(lost)

    def data_received(self, data: bytes) -> None:
        self._parser.feed(data)
        state, current = self._state, self._current
        if (state is IDLE or state is HEAD) and not self._is_paused:
            self._begin_next()
        elif current is not None and state is BODY:
            self._since_s = self._loop.time()
            if current.is_whole or current.error is not None:
                self._begin_whole(current)
        elif current is not None and state is DISCARDING:
            if current.is_whole:
                self._end_discarding()
        else:
            self._held_bytes += len(data)
            if self._held_bytes > HELD_BYTES_MAX:
                self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._is_paused = True
        self._watch_reader()

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._slow_reader is not None:
            self._slow_reader.caught_up()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._begin_next()

    # What the listener calls.

    def end_with_reply(self) -> None:
        """Close the connection after the next reply, which says so."""
        self._is_last = True

    def close(self) -> None:
        """Close the connection, once what has arrived is answered."""
        self._is_last = True
        is_idle = self._state is IDLE and self._parser.is_at_start
        if is_idle and not self._has_unread_bytes():
            self._hang_up()

    def abort(self) -> None:
        """Close the connection now, and give up the request under way."""
        if self._call is not None:
            self._call.give_up()
        self._transport.abort()

    # Reading.

    def _begin_next(self) -> None:
        """Begin the next request, if its turn has come and its head is whole."""
        if self._is_paused or not (self._state is IDLE or self._state is HEAD):
            return
        parser = self._parser
        parsed = parser.queue.popleft() if parser.queue else None
        if self._held_bytes and not parser.queue:
            self._held_bytes = 0
            self._transport.resume_reading()
        if parsed is not None:
            self._begin(parsed)
        elif parser.refusal is not None:
            self._current = None
            self._refuse(parser.refusal)
        elif parser.reading is not None and self._state is IDLE:
            self._enter(HEAD)

    def _begin(self, parsed: ParsedRequest) -> None:
        self._current = parsed
        self._state = ANSWERING
        service, fields = self._service, parsed.fields
        dispatcher = service.dispatcher
        if parsed.refusal is not None:
            self._refuse(parsed.refusal)
            return
        try:
            line = service.tree.find(parsed.method, parsed.target)
        except BadRequestError as error:
            self._refuse(error)
            return
        callee, host = line.callee, line.authority
        of_host = service.hosts.refusal
        foreign = fields.foreign if host is None else of_host(fields.by_name, authority=host)
        if foreign is not None:
            self.answered(None, dispatcher.refuse(callee.operation, foreign))
            return
        if callee.stream is not None:
            callee = callee._replace(handler=partial(self._stream, callee.stream, parsed))
        try:
            call = Call(dispatcher, self, 0, callee)
        except TuffError as error:
            self.answered(None, dispatcher.refuse(callee.operation, error))
            return
        self._call = call
        if (refusal := fields.coding or line.refusal) is not None:
            call.reply(refusal)
            return
        head = Request(
            line.parameters, line.query, fields.content_type, fields.accept,
            bytes(parsed.body) if parsed.is_whole else b"",
            fields.is_forwarded, fields.wants_redirect, fields.authorization,
            self._certificate, self._address, fields.traceparent,
            fields.upgrade if parsed.version == "1.1" else None, None, 0, call,
        )  # fmt: skip
        if not parsed.is_whole or parsed.error is not None:
            self._begin_body(call, parsed, head)
            return
        parsed.body = b""  # it is in the request
        dispatcher.begin(call, head)

    def _begin_body(self, call: Call, parsed: ParsedRequest, head: Request) -> None:
        """Wait for the body of a request, unless its head is refused."""
        try:
            self._service.dispatcher.begin_head(call, head)
        except TuffError as error:
            call.reply(error)
            return
        limit = self._service.max_request_bytes
        if parsed.error is not None or parsed.fields.content_length > limit:
            # Before its first byte: a client that waits for `100 Continue` sends none of it.
            call.reply(parsed.error or body_too_large(limit))
            return
        if parsed.fields.is_expecting and parsed.version == "1.1":
            self._transport.write(_CONTINUE)
        self._head = head
        self._enter(BODY)

    def _end_discarding(self) -> None:
        self._enter(IDLE)
        self._begin_next()
        if self._is_last:
            self.close()

    def _begin_whole(self, parsed: ParsedRequest) -> None:
        """Begin a request for whose body the connection waited."""
        call, head = self._call, self._head
        assert call is not None
        assert head is not None
        self._head = None
        self._state = ANSWERING
        if parsed.error is not None:
            call.reply(parsed.error)
        else:
            request, parsed.body = head._replace(body=bytes(parsed.body)), b""
            self._service.dispatcher.begin(call, request)

    async def _stream(
        self, handler: StreamHandler, parsed: ParsedRequest, request: Request
    ) -> Reply:
        head = self._service.replies.stream_head
        sending = ReplyStream(parsed, head=head, send=self._send_waiting)
        await handler(request, sending)
        return SENT

    # Answering.

    def answered(self, _call: Call | None, reply: Reply) -> None:
        """Send the reply to the request under way."""
        self._call = None
        parsed = self._current
        if self._state is GONE:
            return
        self._is_last |= parsed is not None and not parsed.is_kept_alive
        if reply.status == SWITCHING and parsed is not None:
            self._switch(reply, parsed)
            return
        if reply is not SENT:
            if parsed is not None and parsed.is_begun:
                self.abort()  # a part of another reply is sent, so only closing is possible
                return
            self._write(reply, parsed)
        if self._is_last or parsed is None:
            self._hang_up()
        elif parsed.is_whole:
            # Without a look at the timer: no state lasts longer, so it is set already.
            self._current, self._state, self._since_s = None, IDLE, self._loop.time()
            if self._held_bytes or not self._parser.is_at_start:
                # Not called directly: a thousand requests in one segment would nest as many calls.
                self._loop.call_soon(self._begin_next)
        else:
            parsed.is_discarded = True
            self._enter(DISCARDING)

    def fail(self, error: BaseException) -> None:
        """Close the connection without a reply. Raises: the error, unless the connection is lost or
        the server stops."""
        self._call = None
        self.abort()
        if not isinstance(error, ConnectionError | asyncio.CancelledError):
            raise error

    def _refuse(self, refusal: TuffError) -> None:
        """Answer what can't be read, and close the connection."""
        reply = self._service.dispatcher.refuse(UNMATCHED, refusal)
        if isinstance(refusal, MethodNotAllowedError):
            reply = reply._replace(headers=(("Allow", METHODS),))
        self._is_last = True
        self.answered(None, reply)

    def _write(self, reply: Reply, parsed: ParsedRequest | None) -> None:
        if self._is_last:
            reply = closing(reply)
        elif parsed is not None and parsed.version == "1.0":
            reply = reply._replace(headers=(*reply.headers, ("Connection", "keep-alive")))
        head, body = self._service.replies.head(reply), reply.body
        if parsed is not None and parsed.method == b"HEAD":
            self._transport.write(head)
        elif len(body) < JOINED_BYTES_MAX:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    def _switch(self, reply: Reply, parsed: ParsedRequest) -> None:
        """Leave the connection to the protocol that the reply names."""
        assert self._service.switch is not None
        if not self._parser.is_at_start:
            self._refuse(
                BadRequestError("the client sent more before the server had changed the protocol")
            )
            return
        self._state = GONE
        self._stop()
        if self._slow_reader is not None:
            self._slow_reader.stop()
        lines = "".join([f"{name}: {value}\r\n" for name, value in reply.headers])
        self._transport.write(f"HTTP/1.1 101 Switching Protocols\r\n{lines}\r\n".encode("ascii"))
        head = Request(
            {}, (), None, None, b"", authorization=parsed.fields.authorization,
            certificate=self._certificate, address=self._address,
        )  # fmt: skip
        self._service.switch(self._transport, head)
        self._service.connections.discard(self)

    async def _send_waiting(self, data: bytes, *, within_s: float) -> None:
        """Write, and wait until the client has taken enough of it.

        Raises:
            TimeoutError: it has not, for so many seconds.
            ConnectionError: the connection is closed.
        """
        if self._state is GONE:
            raise ConnectionResetError("the client has closed the connection")
        self._transport.write(data)
        if not self._is_paused:
            return
        self._writable = self._loop.create_future()
        timer = self._loop.call_later(within_s, _time_out, self._writable)
        try:
            await self._writable
        finally:
            timer.cancel()
            self._writable = None

    # Time limits and the end.

    def _enter(self, state: State) -> None:
        """Be in this state from now on, for as long as its limit lets it."""
        self._state, self._since_s = state, self._loop.time()
        until_s = self._since_s + LIMITS_S[state]
        if self._timer is None or until_s < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(until_s, self._check)

    def _check(self) -> None:
        """End a state that lasts too long."""
        self._timer = None
        now_s = self._loop.time()
        limit_s = LIMITS_S.get(self._state, KEEP_ALIVE_S)
        if self._state in LIMITS_S and now_s - self._since_s >= limit_s:
            self._end_state(limit_s)
            self._since_s = now_s
        if self._state not in (CLOSING, GONE) and self._timer is None:
            since_s = self._since_s if self._state in LIMITS_S else now_s
            self._timer = self._loop.call_at(since_s + limit_s, self._check)

    def _end_state(self, limit_s: float) -> None:
        if self._state is IDLE:
            self.close()
        elif self._state is DISCARDING:
            self._hang_up()
        elif self._state is HEAD:
            self._parser.break_off(
                BadRequestError(
                    f"the head of the request was not complete after {limit_s:g} seconds; send it "
                    "again"
                )
            )
            self._begin_next()
        elif self._current is not None:
            self._current.is_kept_alive = False
            self._current.fail(
                BadRequestError(
                    f"no byte of the body came for {limit_s:g} seconds, after "
                    f"{len(self._current.body)} bytes; send it again"
                )
            )
            self._begin_whole(self._current)

    def _hang_up(self) -> None:
        self._state = CLOSING
        self._stop()
        self._transport.close()
        self._watch_reader()

    def _stop(self) -> None:
        """Read nothing more, and limit no time."""
        self._parser.stop()
        if self._timer is not None:
            self._timer.cancel()

    def _watch_reader(self) -> None:
        if self._slow_reader is None:
            self._slow_reader = SlowReader(self._transport)
        self._slow_reader.watch()

    def _has_unread_bytes(self) -> bool:
        # A close with unread bytes resets the connection, and the client can't know whether its
        # request was executed.
        connected = self._transport.get_extra_info("socket")
        return connected is not None and any(ioctl(connected.fileno(), FIONREAD, bytes(4)))


def _time_out(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_exception(TimeoutError())
