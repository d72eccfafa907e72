"""One connection: reads its requests, and answers them one after the other (protocol §1).

A connection reads in two ways. At first it looks for *plain* requests (process/plain_requests.py),
which need no parser. At the first request that is not plain it begins to parse
(process/request_parser.py), from that request on until it closes. Everything else is the same for
both: admission, limits, replies (whole, or sent in parts), idle time, and how it is closed.

Bytes that arrive while a whole request waits for its answer are held, up to a bound; above it the
connection is not read. A connection whose client does not read its replies is aborted.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from email.utils import formatdate
from fcntl import ioctl
from functools import partial
from http import HTTPStatus
from termios import FIONREAD

from process.allowed_hosts import AllowedHosts
from process.connections import Connections
from process.dispatch import UNMATCHED, RequestDispatcher, RouteTree, ends_with_connection
from process.parsed_requests import RoutedRequest, whole_body
from process.plain_requests import PlainHeads, RequestLines
from process.request_parser import (
    METHODS,
    ParsedRequest,
    RequestParser,
    authorization_of,
    read_target,
    refusal_of_head,
    require_no_coding,
)
from process.slow_readers import SlowReader
from process.streamed_replies import ReplyParts, ReplyStream, StreamRoute
from process.tls import names_of
from tuff.disk.event_loop import LightTask
from tuff.disk.locks import StoreError
from tuff.protocol.errors import BadRequestError, MethodNotAllowedError, TuffError
from tuff.protocol.exchange import Reply, Request, Route

SERVER_NAME = "tuff"  # what every reply calls the server
PLAIN_BODY_BYTES_MAX = 1 << 20  # bytes; a request with a larger body is parsed
JOINED_BYTES_MAX = 1 << 16  # bytes of a body; a larger one is not copied behind its head
HELD_BYTES_MAX = 1 << 18  # bytes that wait behind a request under way; then reading pauses
KEEP_ALIVE_S = 75.0  # seconds an idle connection is kept
# Seconds from the first byte of a head to its last one. Clients send it in one piece, or nearly
# so. Without a limit, a client that sends it byte by byte would keep its connection for ever.
HEAD_S_MAX = 30.0
# Seconds in which the rest of the body of a refused request is read and dropped. Closing at once
# would reset the connection before the client has read the refusal.
LINGER_S_MAX = 10.0

SWITCHING = 101  # the status of the reply with which HTTP ends
REFUSALS = (TuffError, StoreError)  # no bug if the client that would be told has disconnected
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


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
        self._close = f"Date: {date}\r\nServer: {SERVER_NAME}\r\n\r\n".encode("ascii")


def closing(reply: Reply) -> Reply:
    """The same reply, which says that the connection closes after it."""
    return reply._replace(headers=(*reply.headers, ("Connection", "close")))


def _start(status: int, content_type: str | None) -> bytes:
    named = "" if content_type is None else f"Content-Type: {content_type}\r\n"
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{named}Content-Length: ".encode(
        "ascii"
    )


RequireAccess = Callable[[str, Request], None]
# Answers a request whose body has not arrived yet: its operation, its head, and a way to the body.
Upload = Callable[[str, Request, Callable[[], Awaitable[bytes]]], Awaitable[Reply]]


def require_nothing(_operation: str, _head: Request) -> None:
    """Every client has access."""


class HttpService:
    """What all connections share. Lives on one event loop. `now_ms` is the wall clock."""

    def __init__(
        self,
        routes: Sequence[Route],
        streams: Sequence[StreamRoute],
        dispatcher: RequestDispatcher,
        hosts: AllowedHosts,
        *,
        max_request_bytes: int,
        now_ms: Callable[[], int],
        require_access: RequireAccess = require_nothing,
        upload: Upload | None = None,
        holds_bodies: bool = True,
        connections: Connections | None = None,
    ) -> None:
        """`require_access` is called with the head of a request, before its body is read. It raises
        the refusal of a request that no body makes allowed. `upload` is called in its place where
        another process decides. `holds_bodies`: the rest of the body of a plain request is waited
        for without a parser."""
        self.require_access = require_access
        self.upload = upload
        self.holds_bodies = holds_bodies
        self.loop = asyncio.get_running_loop()
        self.heads = PlainHeads(RequestLines(RouteTree(routes)), hosts)
        self.streams = {f"{each.method} {each.path}": each.handler for each in streams}
        of_streams = [Route(each.method, each.path, _never) for each in streams]
        self.tree = RouteTree([*routes, *of_streams])
        self.dispatcher = dispatcher
        self.hosts = hosts
        self.replies = ReplyEncoder(now_ms=now_ms, elapsed_s=self.loop.time)
        self.max_request_bytes = max_request_bytes
        self.plain_body_bytes_max = min(max_request_bytes, PLAIN_BODY_BYTES_MAX)
        self.connections = Connections() if connections is None else connections
        # Continues a connection whose client has changed the protocol, with what its request says
        # about the client.
        self.switch: Callable[[asyncio.Transport, Request], None] | None = None


class HttpConnection(asyncio.Protocol):
    """One connection, until it closes."""

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
        self._transport: asyncio.Transport | None = None
        self._held = bytearray()  # bytes that were received and not read
        self._needed = 0  # bytes that must be held before a plain request is whole
        self._parser: RequestParser | None = None  # from the first request that is not plain
        self._head_watched: ParsedRequest | None = None  # its head has a time limit that runs
        # The parsed request that is under way, or whose body is still to come.
        self._current: ParsedRequest | None = None
        self._work: LightTask[Reply] | LightTask[Reply | ReplyParts] | None = None  # under way
        self._operation = ""  # of the request under way, or of the last one
        self._is_paused = False  # the client does not read its replies
        self._writable: asyncio.Future[None] | None = None  # done when it reads again
        self._is_closing = service.connections.is_ending  # after the next reply
        self._is_closed = False  # nothing more is read or answered
        self._idle_since_s = 0.0  # when the last request was answered; 0 at first
        self._timer: asyncio.TimerHandle | None = None  # of idle time
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
        self._close_if_idle()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._service.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._slow_reader is not None:
            self._slow_reader.stop()
        if self._parser is not None:
            self._parser.stop()
        lost = ConnectionResetError("the client has closed the connection")
        if ends_with_connection(self._operation):
            self._give_up()
        elif self._current is not None and not self._current.is_whole:
            self._current.fail(lost)
        if self._writable is not None and not self._writable.done():
            self._writable.set_exception(lost)

    def data_received(self, data: bytes) -> None:
        if self._held or self._work is not None or self._is_paused or self._parser is not None:
            self._held += data
            self._go_on()
        else:
            self._take_plain(data)

    def pause_writing(self) -> None:
        self._is_paused = True
        self._watch_reader()

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._slow_reader is not None:
            self._slow_reader.caught_up()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._go_on()

    # What the listener calls.

    def end_with_reply(self) -> None:
        """Close the connection after the next reply, which says so."""
        self._is_closing = True

    def close(self) -> None:
        """Close the connection, once what has arrived is answered."""
        self._is_closing = True
        if not (self._is_busy() or self._held or self._has_unread_bytes()):
            self._hang_up()

    def abort(self) -> None:
        """Close the connection now, and give up the request under way."""
        self._give_up()
        if self._transport is not None:
            self._transport.abort()

    # Reading.

    def _go_on(self) -> None:
        """Read on, and begin the next request if its turn has come."""
        if self._transport is None or self._is_closed:
            return
        if self._is_paused:
            self._bound_held()
        elif self._parser is not None:
            self._go_on_parsing(self._parser)
        elif self._work is not None:
            self._bound_held()
        elif self._held and len(self._held) >= self._needed:
            self._needed = 0
            self._take_plain(self._take_held())

    def _bound_held(self) -> None:
        if len(self._held) > HELD_BYTES_MAX and self._transport is not None:
            self._transport.pause_reading()

    def _take_held(self) -> bytes:
        data = bytes(self._held)
        self._held.clear()
        if self._transport is not None:
            self._transport.resume_reading()
        return data

    def _take_plain(self, data: bytes) -> None:
        """Begin the plain request at the start of the bytes, or hold them until it is whole. From
        any other request on, parse."""
        service = self._service
        head = service.heads.read(data)
        if head is None or head.fields.content_length > service.plain_body_bytes_max:
            self._held += data
            self._begin_parsing()
            return
        (operation, handler, parameters, query), fields, size = head
        stop = size + fields.content_length
        if len(data) > stop:
            self._held += data[stop:]
        request = Request(
            parameters,
            query,
            fields.content_type,
            fields.accept,
            data[size:stop],
            fields.is_forwarded,
            fields.wants_redirect,
            fields.authorization,
            self._certificate,
            self._address,
        )
        if len(data) < stop:
            self._held += data
            if self._has_access(operation, request):
                self._needed = stop
            else:
                self._begin_parsing()  # which refuses it without the rest of its body
            return
        self._operation = operation
        work = service.dispatcher.answer(operation, handler, request)
        self._work = LightTask(work, self._answer_plain, self._fail, REFUSALS)
        self._work.go_on()

    def _has_access(self, operation: str, head: Request) -> bool:
        if not self._service.holds_bodies:
            return False  # it is not known yet
        try:
            self._service.require_access(operation, head)
        except TuffError:
            return False
        return True

    def _begin_parsing(self) -> None:
        self._parser = RequestParser(
            max_request_bytes=self._service.max_request_bytes, now_s=self._loop.time
        )
        self._go_on()

    def _go_on_parsing(self, parser: RequestParser) -> None:
        if self._current is not None and not self._current.is_whole:
            self._parse_held(parser)  # the rest of its body, also where that is dropped
        if self._work is not None or (self._current is not None and not self._current.is_whole):
            self._bound_held()
            return
        self._current = None
        if not parser.queue:
            self._parse_held(parser)
        if parser.queue:
            self._begin(parser.queue.popleft())
        elif parser.refusal is not None:
            self._refuse(parser.refusal)

    def _parse_held(self, parser: RequestParser) -> None:
        # The parser gets no more bytes while a whole request waits for its answer.
        if not self._held or parser.queue:
            return
        parser.feed(self._take_held())
        if parser.in_head is not None and parser.in_head is not self._head_watched:
            self._head_watched = parser.in_head
            self._loop.call_later(HEAD_S_MAX, self._end_head, parser, parser.in_head)

    def _end_head(self, parser: RequestParser, parsed: ParsedRequest) -> None:
        """Refuse a request whose head takes too long."""
        if self._transport is None or parser.in_head is not parsed:
            return
        if self._held:  # the rest may be there, behind a request under way
            self._loop.call_later(HEAD_S_MAX, self._end_head, parser, parsed)
            return
        parser.break_off(
            BadRequestError(
                f"the head of the request was not complete after {HEAD_S_MAX:g} seconds; send it "
                "again"
            )
        )
        self._go_on()

    # Answering.

    def _answer_plain(self, reply: Reply) -> None:
        self._work = None
        if self._transport is None:
            return
        if self._is_closing:
            reply = closing(reply)
        head = self._service.replies.head(reply)
        if len(reply.body) < JOINED_BYTES_MAX:
            self._transport.write(head + reply.body)
        else:
            self._transport.writelines((head, reply.body))
        if self._is_closing:
            self._hang_up()
            return
        self._idle_since_s = self._loop.time()
        if self._held:
            # Not called directly: a thousand requests in one segment would nest as many calls.
            self._loop.call_soon(self._go_on)

    def _begin(self, parsed: ParsedRequest) -> None:
        self._current = parsed
        refusal = refusal_of_head(parsed.version, parsed.target, parsed.fields)
        if refusal is not None:
            self._refuse(refusal)
            return
        try:
            target = read_target(parsed.target)
        except BadRequestError as error:
            self._refuse(error)
            return
        routed = RoutedRequest(self._service.tree, parsed, target)
        self._operation = routed.operation
        foreign = self._service.hosts.refusal(parsed.fields, authority=target.authority)
        if foreign is not None:
            self._answer(self._service.dispatcher.refuse(routed.operation, foreign))
            return
        work = self._service.dispatcher.answer(routed.operation, self._call, routed)
        self._work = LightTask(work, self._answer, self._fail, REFUSALS)
        self._work.go_on()
        if not parsed.is_whole and self._held:
            self._loop.call_soon(self._go_on)

    async def _call(self, routed: RoutedRequest) -> Reply | ReplyParts:
        """What the dispatcher calls. Raises: TuffError, ConnectionError."""
        service, parsed, handler = self._service, routed.parsed, routed.handler
        require_no_coding(parsed.fields)
        if handler is None:
            return routed.refuse()
        head = routed.head(self._certificate, self._address)
        stream = service.streams.get(routed.operation)
        if service.upload is not None and not parsed.is_whole and stream is None:
            return await service.upload(routed.operation, head, partial(self._body_of, parsed))
        service.require_access(routed.operation, head)
        request = head._replace(body=await self._body_of(parsed))
        if stream is None:
            return await handler(request)
        sending = ReplyStream(parsed, head=service.replies.stream_head, send=self._send_waiting)
        return await stream(request, sending) or sending

    def _refuse(self, refusal: TuffError) -> None:
        """Answer, and close the connection."""
        reply = self._service.dispatcher.refuse(UNMATCHED, refusal)
        if isinstance(refusal, MethodNotAllowedError):
            reply = reply._replace(headers=(("Allow", METHODS),))
        if self._current is not None:
            self._current.is_kept_alive = False
        self._answer(reply)

    def _answer(self, answer: Reply | ReplyParts) -> None:
        self._work = None
        if self._transport is None:
            return
        parsed = self._current
        if isinstance(answer, Reply):
            if parsed is not None and parsed.is_begun:
                self.abort()  # a part of another reply is sent, so only closing is possible
                return
            if answer.status == SWITCHING and parsed is not None:
                self._switch(answer, parsed)
                return
            self._write(answer, parsed)
        if parsed is None or not parsed.is_kept_alive or self._is_closing:
            self._hang_up()
            return
        self._idle_since_s = self._loop.time()
        if not parsed.is_whole:
            parsed.is_discarded = True
            self._loop.call_later(LINGER_S_MAX, self._end_linger, parsed)
        # Not called directly: a thousand requests in one segment would nest as many calls.
        self._loop.call_soon(self._go_on)

    def _switch(self, reply: Reply, parsed: ParsedRequest) -> None:
        """Leave the connection to the protocol that the reply names."""
        parser, transport = self._parser, self._transport
        assert parser is not None
        assert transport is not None
        assert self._service.switch is not None
        if self._held or parser.queue or parser.is_in_request or parser.refusal is not None:
            self._refuse(
                BadRequestError("the client sent more before the server had changed the protocol")
            )
            return
        self._transport = None
        self._is_closed = True
        parser.stop()
        if self._timer is not None:
            self._timer.cancel()
        if self._slow_reader is not None:
            self._slow_reader.stop()
        lines = "".join([f"{name}: {value}\r\n" for name, value in reply.headers])
        transport.write(f"HTTP/1.1 101 Switching Protocols\r\n{lines}\r\n".encode("ascii"))
        head = Request(
            {}, (), None, None, b"",
            authorization=authorization_of(parsed.fields), certificate=self._certificate,
            address=self._address,
        )  # fmt: skip
        self._service.switch(transport, head)
        self._service.connections.discard(self)

    def _write(self, reply: Reply, parsed: ParsedRequest | None) -> None:
        assert self._transport is not None
        if parsed is None or not parsed.is_kept_alive or self._is_closing:
            reply = closing(reply)
        elif parsed.version == "1.0":
            reply = reply._replace(headers=(*reply.headers, ("Connection", "keep-alive")))
        head = self._service.replies.head(reply)
        if parsed is not None and parsed.method == "HEAD":
            self._transport.write(head)
        else:
            self._transport.writelines((head, reply.body))

    def _fail(self, error: BaseException) -> None:
        self._work = None
        self.abort()
        if not isinstance(error, ConnectionError | asyncio.CancelledError):
            raise error

    def _give_up(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.give_up()

    # Closing.

    def _hang_up(self) -> None:
        self._is_closed = True
        self._held.clear()
        if self._parser is not None:
            self._parser.stop()
        if self._transport is not None:
            self._transport.close()
            self._watch_reader()

    def _end_linger(self, parsed: ParsedRequest) -> None:
        if self._current is parsed and not parsed.is_whole:
            self._hang_up()

    def _watch_reader(self) -> None:
        if self._slow_reader is None and self._transport is not None:
            self._slow_reader = SlowReader(self._transport)
        if self._slow_reader is not None:
            self._slow_reader.watch()

    def _close_if_idle(self) -> None:
        """Close the connection when it was idle for `KEEP_ALIVE_S`."""
        if self._idle_since_s == 0.0 or self._is_busy():
            self._idle_since_s = self._loop.time()
        elif self._loop.time() - self._idle_since_s >= KEEP_ALIVE_S:
            if not self._needed:
                self.close()
                if self._is_closed:
                    return
            else:
                # The rest of a plain request's body is missing. The parser limits that time.
                self._needed = 0
                self._begin_parsing()
            self._idle_since_s = self._loop.time()
        self._timer = self._loop.call_at(self._idle_since_s + KEEP_ALIVE_S, self._close_if_idle)

    def _is_busy(self) -> bool:
        return self._work is not None or (self._parser is not None and self._parser.is_in_request)

    def _has_unread_bytes(self) -> bool:
        # A close with unread bytes resets the connection, and the client can't know whether its
        # request was executed.
        connected = None if self._transport is None else self._transport.get_extra_info("socket")
        return connected is not None and any(ioctl(connected.fileno(), FIONREAD, bytes(4)))

    # What a handler needs.

    async def _body_of(self, parsed: ParsedRequest) -> bytes:
        """All of the body. Raises: TuffError, ConnectionError: it will never be whole."""
        is_expected = parsed.version == "1.1" and "expect" in parsed.fields
        if is_expected and not parsed.is_whole and parsed.error is None:
            self._send(_CONTINUE)
        return await whole_body(parsed)

    def _send(self, data: bytes) -> None:
        if self._transport is None:
            raise ConnectionResetError("the client has closed the connection")
        self._transport.write(data)

    async def _send_waiting(self, data: bytes, *, within_s: float) -> None:
        """Write, and wait until the client has taken enough of it.

        Raises:
            TimeoutError: it has not, for so many seconds.
            ConnectionError: the connection is closed.
        """
        self._send(data)
        if not self._is_paused:
            return
        self._writable = self._loop.create_future()
        timer = self._loop.call_later(within_s, _time_out, self._writable)
        try:
            await self._writable
        finally:
            timer.cancel()
            self._writable = None


async def _never(_request: Request) -> Reply:
    raise AssertionError("a stream answers in parts")


def _time_out(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_exception(TimeoutError())
