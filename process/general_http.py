"""The general path of HTTP: every request that the fast path does not take (protocol §1).

llhttp, the parser of Node.js, reads the bytes (package `httptools`) and decides where each request
ends. This module adds what a server owes around it: chunked and large bodies, `Expect`, `HEAD`,
HTTP/1.0, replies that are sent in parts, and problem documents for what can't be read.

A connection comes here from the fast path (process/fast_http.py) and stays until it closes. Its
requests are answered one after the other. The parser gets no more bytes while a whole request waits
for its answer; what arrives meanwhile is held, up to a bound, and then the connection is not read.
"""

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
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
from process.connections import Connections, SlowReader
from process.dispatch import Dispatcher, RouteTree, is_given_up
from process.fast_http import (
    HELD_BYTES_MAX,
    KEEP_ALIVE_S,
    LINE_BYTES_MAX,
    HeaderFields,
    ReplyBytes,
    accept_of,
    add_field,
    refusal_of_fields,
)
from tuff.disk.event_loop import LightTask
from tuff.protocol.errors import (
    BadRequestError,
    MethodNotAllowedError,
    NotFoundError,
    RequestTooLargeError,
    TuffError,
    UnsupportedMediaTypeError,
)
from tuff.protocol.exchange import Handler, Reply, Request, Route, problem_reply
from tuff.protocol.json_forms import shown

METHODS = "DELETE, GET, POST, PUT"  # what the addresses of the protocol answer
UNMATCHED = "unmatched"  # the operation, in metrics, of a request that no route serves
HEAD_BYTES_MAX = 1 << 17  # bytes of a request line and its header fields, and of a trailer
# Seconds without a byte of a body that was announced. A network that lost its way has found it
# again by then, and a client that is gone must not keep one of `server.max_pending_requests`.
UPLOAD_QUIET_S_MAX = 30.0
# Seconds in which the rest of a body is read and dropped that came with a request that is already
# refused. Closing at once would reset the connection before the client has read the refusal.
LINGER_S_MAX = 10.0

_CALLS = "/v1/"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_TLS_HANDSHAKE = b"\x16"
_METHOD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}) ")


class Sent(NamedTuple):
    """The answer of a handler that has sent its reply itself, in parts."""

    status: int


class Exchange:
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


class Target(NamedTuple):
    """What a request asks for: the path as it came, its segments and query without escapes.
    `authority` is that of an absolute request target (RFC 9112 §3.2.2)."""

    path: str
    segments: list[str]
    query: tuple[tuple[str, str], ...]
    authority: str | None


StreamHandler = Callable[[Request, "ReplyStream"], Awaitable[None]]


class StreamRoute(NamedTuple):
    """A route whose reply is sent in parts. Its path has no names to fill in."""

    method: str
    path: str
    handler: StreamHandler


class GeneralServer:
    """What all connections of the general path share. Lives on one event loop."""

    def __init__(
        self,
        routes: Iterable[Route],
        streams: Iterable[StreamRoute],
        dispatcher: Dispatcher,
        hosts: AllowedHosts,
        *,
        replies: ReplyBytes,
        max_request_bytes: int,
    ) -> None:
        streams = list(streams)
        self.streams = {f"{each.method} {each.path}": each.handler for each in streams}
        of_streams = [Route(each.method, each.path, _never) for each in streams]
        self.tree = RouteTree([*routes, *of_streams])
        self.dispatcher = dispatcher
        self.hosts = hosts
        self.replies = replies
        self.max_request_bytes = max_request_bytes
        self.connections: Connections[GeneralConnection] = Connections()

    def connect(self) -> asyncio.Protocol:
        """One more connection."""
        return GeneralConnection(self)


class GeneralConnection(asyncio.Protocol):
    """One connection, from where it left the fast path until it closes."""

    def __init__(self, server: GeneralServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._slow_reader: SlowReader | None = None
        self._parser = HttpRequestParser(self)
        self._reading: Exchange | None = None  # the request that the parser is in
        self._overhead_bytes = 0  # since the first segment of a request, or the last byte of a body
        self._is_head_whole = False
        self._first_line = b""  # begins the bytes in which an error is found
        self._queue: deque[Exchange] = deque()  # read, and not begun
        self._current: Exchange | None = None  # under way, or answered with its body still to come
        self._work: LightTask[Reply | Sent] | None = None
        self._operation = ""
        self._refusal: TuffError | None = None  # of what can't be read, behind the queue
        self._is_broken = False  # the parser gets no more bytes
        self._held = bytearray()  # what came while a whole request waits for its answer
        self._is_paused = False  # the client does not read its replies
        self._writable: asyncio.Future[None] | None = None  # done when it reads again
        self._is_closing = False
        self._timer: asyncio.TimerHandle | None = None  # of idle time, an upload or a linger
        self._quiet_s = 0.0

    # What the event loop calls.

    def connection_made(  # type: ignore[override]  # a stream's, in uvloop not by its class
        self, transport: asyncio.Transport
    ) -> None:
        self._transport = transport
        self._slow_reader = SlowReader(transport)
        self._server.connections.add(self)
        self._rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._server.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._slow_reader is not None:
            self._slow_reader.stop()
        del self._parser  # it refers to this connection, and nothing is read any more
        lost = ConnectionResetError("the client has closed the connection")
        if is_given_up(self._operation):
            self._give_up()
        elif self._current is not None and not self._current.is_whole:
            self._current.fail(lost)
        if self._writable is not None and not self._writable.done():
            self._writable.set_exception(lost)

    def data_received(self, data: bytes) -> None:
        if self._is_broken:
            return
        if self._held or self._is_paused or not self._is_parsing():
            self._held += data
            if len(self._held) > HELD_BYTES_MAX and self._transport is not None:
                self._transport.pause_reading()
        else:
            self._parse(data)
            self._go_on()

    def pause_writing(self) -> None:
        self._is_paused = True
        if self._slow_reader is not None:
            self._slow_reader.watch()

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._slow_reader is not None:
            self._slow_reader.taken()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._go_on()

    # What the listener calls.

    def close(self) -> None:
        """Close the connection, once the request under way is answered."""
        self._is_closing = True
        if self._work is None:
            self._hang_up()

    def abort(self) -> None:
        """Close the connection now, and give up the request under way."""
        self._give_up()
        if self._transport is not None:
            self._transport.abort()

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._reading, self._is_head_whole, self._overhead_bytes = Exchange(), False, 0

    def on_url(self, part: bytes) -> None:
        assert self._reading is not None
        self._reading.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self._reading is not None
        if not self._is_head_whole:  # else a trailer: it must not change what the head says
            add_field(self._reading.fields, name, value)

    def on_headers_complete(self) -> None:
        exchange = self._reading
        assert exchange is not None
        self._is_head_whole = True
        exchange.method = self._parser.get_method().decode("ascii")
        exchange.version = self._parser.get_http_version()
        exchange.is_kept_alive = self._parser.should_keep_alive() and exchange.method != "CONNECT"
        exchange.last_byte_s = self._loop.time()
        self._queue.append(exchange)

    def on_body(self, part: bytes) -> None:
        exchange = self._reading
        assert exchange is not None
        exchange.last_byte_s = self._loop.time()
        self._overhead_bytes = 0
        if exchange.is_discarded:
            return
        exchange.body += part
        if len(exchange.body) > self._server.max_request_bytes:
            exchange.fail(
                RequestTooLargeError(
                    "the body is larger than server.max_request_bytes="
                    f"{self._server.max_request_bytes}; send it in parts"
                )
            )

    def on_message_complete(self) -> None:
        assert self._reading is not None
        self._reading.complete()
        self._reading = None
        self._first_line = b""  # what follows in the same bytes is another request

    # Reading.

    def _is_parsing(self) -> bool:
        """Whether the parser may have more: no whole request waits for its answer."""
        return not self._queue and (self._current is None or not self._current.is_whole)

    def _parse(self, data: bytes) -> None:
        if self._reading is None:
            self._first_line = data[: LINE_BYTES_MAX + 1].partition(b"\r\n")[0]
        else:
            self._overhead_bytes += len(data)
        try:
            self._feed(data)
        except HttpParserError as error:
            self._break_off(self._refusal_of(error))
            return
        # The parser keeps the field that it is in, of a head or of a trailer, however long it gets.
        if self._reading is not None and self._overhead_bytes > HEAD_BYTES_MAX:
            part = "trailer" if self._is_head_whole else "head"
            self._break_off(
                BadRequestError(f"the {part} of the request is longer than {HEAD_BYTES_MAX} bytes")
            )

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self._parser.feed_data(data)
            except HttpParserUpgrade as upgrade:
                # No upgrade is offered: the request is answered, and HTTP goes on behind it.
                self._parser = HttpRequestParser(self)
                data = data[upgrade.args[0] :]
            else:
                return

    def _break_off(self, refusal: TuffError) -> None:
        """Answer what was read, then this, and close: where the next request begins is unknown."""
        exchange, self._reading, self._is_broken = self._reading, None, True
        self._held.clear()
        if exchange is not None and self._is_head_whole:
            exchange.is_kept_alive = False
            exchange.fail(refusal)  # the client gets it as the answer to that request
        else:
            self._refusal = refusal

    def _refusal_of(self, error: HttpParserError) -> TuffError:
        line = self._first_line
        if line.startswith(_TLS_HANDSHAKE):
            return BadRequestError("the client speaks HTTPS, and the server HTTP; use http://")
        if isinstance(error, HttpParserInvalidMethodError) and (method := _METHOD.match(line)):
            return MethodNotAllowedError(f"the server answers {METHODS}, not {method[1].decode()}")
        if isinstance(error, HttpParserInvalidURLError):
            return _unreadable_address(line)
        quoted = f" {shown(line.decode('latin-1'))}" if line else ""
        return BadRequestError(f"the request{quoted} is not HTTP/1.1 as RFC 9112 has it: {error}")

    # Answering.

    def _go_on(self) -> None:
        """Read on, and begin the next request if its turn has come."""
        if self._transport is None or self._is_paused:
            return
        if self._current is not None and not self._current.is_whole:
            self._parse_held()  # the rest of its body, also where that is dropped
        if self._work is not None or (self._current is not None and not self._current.is_whole):
            return
        self._current = None
        if not self._queue:
            self._parse_held()
        if self._queue:
            self._begin(self._queue.popleft())
        elif self._refusal is not None:
            self._refuse(UNMATCHED, self._refusal)

    def _parse_held(self) -> None:
        if self._held and not self._queue and self._transport is not None:
            data = bytes(self._held)
            self._held.clear()
            self._transport.resume_reading()
            self._parse(data)

    def _begin(self, exchange: Exchange) -> None:
        self._current = exchange
        refusal = refusal_of_fields(exchange.fields) or _refusal_of_head(exchange)
        if refusal is not None:
            self._refuse(UNMATCHED, refusal)
            return
        try:
            target = _target_of(exchange.target)
        except HttpParserInvalidURLError:
            self._refuse(UNMATCHED, _unreadable_address(exchange.target))
            return
        call = _Call(self._server, exchange, target)
        self._operation = call.operation
        foreign = self._server.hosts.refusal(exchange.fields, authority=target.authority)
        if foreign is not None:
            self._answer(self._server.dispatcher.refuse(call.operation, foreign))
            return
        work = self._server.dispatcher.answer(call.operation, call.answer, self)
        self._work = LightTask(work, returned=self._answer, failed=self._fail)
        self._work.go_on()
        if not exchange.is_whole and self._held:
            self._loop.call_soon(self._go_on)

    def _refuse(self, operation: str, refusal: TuffError) -> None:
        """Answer, and close the connection."""
        reply = self._server.dispatcher.refuse(operation, refusal)
        if isinstance(refusal, MethodNotAllowedError):
            reply = reply._replace(headers=(("Allow", METHODS),))
        if self._current is not None:
            self._current.is_kept_alive = False
        self._answer(reply)

    def _answer(self, answer: Reply | Sent) -> None:
        self._work = None
        if self._transport is None:
            return
        exchange = self._current
        if isinstance(answer, Reply):
            if exchange is not None and exchange.is_begun:
                self.abort()  # a part of another reply is sent: all that is left is to close
                return
            self._write(answer, exchange)
        if exchange is None or not exchange.is_kept_alive or self._is_closing:
            self._hang_up()
            return
        self._quiet_s = self._loop.time()
        if not exchange.is_whole:
            exchange.is_discarded = True
            self._loop.call_later(LINGER_S_MAX, self._end_linger, exchange)
        # Not from here: a thousand requests in one segment would nest as deep.
        self._loop.call_soon(self._go_on)

    def _write(self, reply: Reply, exchange: Exchange | None) -> None:
        assert self._transport is not None
        if exchange is None or not exchange.is_kept_alive:
            reply = reply._replace(headers=(*reply.headers, ("Connection", "close")))
        elif exchange.version == "1.0":
            reply = reply._replace(headers=(*reply.headers, ("Connection", "keep-alive")))
        head = self._server.replies.head(reply)
        if exchange is not None and exchange.method == "HEAD":
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

    def _hang_up(self) -> None:
        self._is_broken = True
        if self._transport is not None:
            self._transport.close()
            if self._slow_reader is not None:
                self._slow_reader.watch()

    def _end_linger(self, exchange: Exchange) -> None:
        if self._current is exchange and not exchange.is_whole:
            self._hang_up()

    # What a handler calls.

    async def body_of(self, exchange: Exchange) -> bytes:
        """All of the body. Raises: TuffError, ConnectionError: it will never be whole."""
        if exchange.error is not None:
            raise exchange.error
        if not exchange.is_whole:
            if exchange.version == "1.1" and "expect" in exchange.fields:
                self._send(_CONTINUE)
            exchange.waiter = self._loop.create_future()
            exchange.last_byte_s = self._loop.time()
            self._loop.call_later(UPLOAD_QUIET_S_MAX, self._look_at_upload, exchange)
            await exchange.waiter
        return bytes(exchange.body)

    def _look_at_upload(self, exchange: Exchange) -> None:
        if exchange.is_whole or exchange.error is not None or self._transport is None:
            return
        left_s = exchange.last_byte_s + UPLOAD_QUIET_S_MAX - self._loop.time()
        if left_s > 0:
            self._loop.call_later(left_s, self._look_at_upload, exchange)
            return
        exchange.is_kept_alive = False
        exchange.fail(
            BadRequestError(
                f"no byte of the body came for {UPLOAD_QUIET_S_MAX:g} seconds, after "
                f"{len(exchange.body)} bytes; send it again"
            )
        )

    def _send(self, data: bytes) -> None:
        if self._transport is None:
            raise ConnectionResetError("the client has closed the connection")
        self._transport.write(data)

    async def send(self, data: bytes, *, within_s: float) -> None:
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

    def _rest(self) -> None:
        """Close the connection when it was idle for long."""
        is_busy = self._work is not None or self._reading is not None or self._quiet_s == 0.0
        if is_busy:
            self._quiet_s = self._loop.time()
        elif self._loop.time() - self._quiet_s >= KEEP_ALIVE_S:
            self.close()
            return
        self._timer = self._loop.call_at(self._quiet_s + KEEP_ALIVE_S, self._rest)


class _Call:
    """One request and the route that answers it, if there is one."""

    def __init__(self, server: GeneralServer, exchange: Exchange, target: Target) -> None:
        self._server = server
        self._exchange = exchange
        self._target = target
        self._resource = server.tree.resource(target.segments)
        self._found: Handler | None = None
        operation = UNMATCHED
        if self._resource is not None and exchange.method in self._methods():
            self._found = self._resource.handlers["GET" if self._is_head() else exchange.method]
            operation = self._resource.path
        # Not the path: the names of topics would make a series of metrics each.
        self.operation = f"{exchange.method} {operation}"

    def _is_head(self) -> bool:
        return self._exchange.method == "HEAD"

    def _methods(self) -> list[str]:
        assert self._resource is not None
        methods = list(self._resource.handlers)
        # Probes ask with HEAD. As a call of the protocol it would do a read's work for nothing.
        if "GET" in methods and not self._resource.path.startswith(_CALLS):
            methods.append("HEAD")
        return sorted(methods)

    async def answer(self, connection: GeneralConnection) -> Reply | Sent:
        """What the dispatcher calls. Raises: TuffError, ConnectionError."""
        exchange, target, found = self._exchange, self._target, self._found
        _require_no_coding(exchange.fields)
        if self._resource is None:
            raise NotFoundError(
                f"there is nothing at {target.path}; /openapi.json says what there is"
            )
        if found is None:
            allowed = ", ".join(self._methods())
            error = MethodNotAllowedError(f"{target.path} answers {allowed}, not {exchange.method}")
            return problem_reply(error)._replace(headers=(("Allow", allowed),))
        request = Request(
            self._resource.parameters,
            target.query,
            exchange.fields.get("content-type", [None])[0],
            accept_of(exchange.fields),
            await connection.body_of(exchange),
        )
        stream = self._server.streams.get(self.operation)
        if stream is None:
            return await found(request)
        sending = ReplyStream(connection, exchange, self._server.replies)
        await stream(request, sending)
        return Sent(sending.status)


class ReplyStream:
    """Sends the reply to one request in parts."""

    status = 200

    def __init__(
        self, connection: GeneralConnection, exchange: Exchange, replies: ReplyBytes
    ) -> None:
        self._connection = connection
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
        await self._connection.send(head, within_s=within_s)

    async def write(self, part: bytes, *, within_s: float) -> None:
        """Send a part, and wait until the client has taken enough.

        Raises:
            TimeoutError: it takes nothing for so many seconds.
            ConnectionError: the connection is closed.
        """
        data = b"%x\r\n%b\r\n" % (len(part), part) if self._is_chunked else part
        await self._connection.send(data, within_s=within_s)

    async def end(self, *, within_s: float) -> None:
        """The reply is whole. Raises: as `write`."""
        if self._is_chunked:
            await self._connection.send(b"0\r\n\r\n", within_s=within_s)


async def _never(_request: Request) -> Reply:
    raise AssertionError("a stream answers in parts")


def _refusal_of_head(exchange: Exchange) -> TuffError | None:
    """Why a request is refused, and its connection closed, before a route is looked for."""
    if exchange.version == "1.1" and "host" not in exchange.fields:
        return BadRequestError("the request has no Host field, which HTTP/1.1 asks for")
    if len(exchange.target) > LINE_BYTES_MAX:
        return BadRequestError(f"the address is longer than {LINE_BYTES_MAX} bytes; send less")
    expected = ", ".join(exchange.fields.get("expect", ()))
    if expected and expected.lower() != "100-continue":
        return BadRequestError(
            f"the server meets no expectation but 100-continue, not {shown(expected)}"
        )
    return None


def _unreadable_address(text: bytes) -> TuffError:
    quoted = shown(text.decode("latin-1"))
    return BadRequestError(f"the address can't be read at {quoted}; escape it as RFC 3986 says")


def _target_of(target: bytes) -> Target:
    """Raises: HttpParserInvalidURLError: it is neither a path nor an absolute address."""
    authority = None
    if target.startswith(b"/") or target == b"*":
        path_bytes, _, query_bytes = target.partition(b"#")[0].partition(b"?")
    else:
        url = parse_url(target)
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


def _require_no_coding(fields: HeaderFields) -> None:
    # One that is taken for the body itself, or unpacked in part, would be stored as what it is not.
    codings = ", ".join(fields.get("content-encoding", ()))
    if codings.strip().lower() not in ("", "identity"):
        raise UnsupportedMediaTypeError(
            f"the content encoding is {shown(codings)}; send the body as it is"
        )


def _time_out(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_exception(TimeoutError())
