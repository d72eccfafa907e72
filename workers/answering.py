"""The main process's end of the link to one worker: it answers the calls that the worker forwards.

A call goes to the handler of its route through the dispatcher, as a request of a connection of the
main process does. So admission, rights, quotas, errors and metrics have one implementation.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from process.dispatch import Dispatcher, ends_with_connection
from process.http_connection import REFUSALS, RequireAccess
from process.streamed_replies import ReplyParts, StreamHandler, StreamRoute
from tuff.disk.event_loop import LightTask
from tuff.protocol.exchange import Handler, Reply, Request, Route
from workers.link_frames import (
    CALL,
    REPLY,
    STREAMED,
    Frames,
    Hello,
    Kind,
    names_in,
    pack,
    reply_frame,
    request_of,
)

# Bytes of replies that wait for the worker to read them. Above it no more calls of it are read.
UNREAD_BYTES_MAX = 4 << 20


class _Callee(NamedTuple):
    operation: str
    names: tuple[str, ...]
    handler: Handler | None
    stream: StreamHandler | None


_Handler = Callable[[Request], Awaitable[Reply | ReplyParts]]


class Answering:
    """What the links to all workers share: the routes by their number, and how calls are
    answered."""

    def __init__(
        self,
        routes: Sequence[Route],
        streams: Sequence[StreamRoute],
        dispatcher: Dispatcher,
        *,
        require_access: RequireAccess,
    ) -> None:
        self.dispatcher = dispatcher
        self.require_access = require_access
        self.routes = [(each.method, each.path) for each in routes]
        self.streams = [(each.method, each.path) for each in streams]
        self.callees = [
            *(
                _Callee(f"{each.method} {each.path}", names_in(each.path), each.handler, None)
                for each in routes
            ),
            *(_Callee(f"{m} {p}", (), None, handler) for m, p, handler in streams),
        ]


class WorkerLink(asyncio.Protocol):
    """The link to one worker process, until one of the two ends. `ready` is called when the worker
    accepts connections, and `lost` when the link has ended."""

    def __init__(
        self,
        answering: Answering,
        hello: Hello,
        *,
        ready: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        self._answering = answering
        self._hello = hello
        self._ready = ready
        self._lost = lost
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._under_way: dict[int, LightTask[Reply | ReplyParts]] = {}
        self._polls: set[int] = set()  # those of them that end with their connection
        self._streams: dict[int, _RemoteStream] = {}
        self._bodies: dict[int, asyncio.Future[bytes]] = {}  # of the calls that wait for them
        self.unanswered_count = 0  # pings in a row

    # What the event loop calls.

    def connection_made(  # type: ignore[override]  # a stream's, in uvloop not by its class
        self, transport: asyncio.Transport
    ) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=UNREAD_BYTES_MAX)
        transport.write(self._hello.frame())

    def data_received(self, data: bytes) -> None:
        for kind, *elements in self._frames.feed(data):
            if kind == CALL:
                self._begin(elements)
            else:
                self._take(kind, elements)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for call_id in tuple(self._polls):
            self._give_up(call_id)
        bodies, self._bodies = self._bodies, {}
        for body in bodies.values():
            body.set_exception(_client_lost())
        for stream in tuple(self._streams.values()):
            stream.fail(ConnectionResetError("the worker process has ended"))
        self._lost()

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    # What the process calls.

    def ping(self, *, now_ms: int) -> None:
        """Ask for a sign of life; `now_ms` is the clock of the server, which the worker shows."""
        self.unanswered_count += 1
        self.write((Kind.PING, now_ms))

    def end_with_replies(self) -> None:
        """End each connection of the worker with its next reply."""
        self.write((Kind.ENDING,))

    def close(self, *, within_s: float) -> None:
        """Let the worker close its connections within so many seconds, and end."""
        self.write((Kind.CLOSE, within_s))

    def write(self, frame: tuple[object, ...]) -> None:
        if self._transport is not None:
            self._transport.write(pack(frame))

    @property
    def is_lost(self) -> bool:
        """Whether the worker has ended."""
        return self._transport is None

    # Calls.

    def _take(self, kind: int, elements: list[Any]) -> None:
        match kind:
            case Kind.OPEN:
                self._open(elements)
            case Kind.BODY | Kind.CANCEL | Kind.TAKEN | Kind.LOST:
                self._go_on(kind, *elements)
            case Kind.ANSWERED:
                self._answering.dispatcher.count(*elements)
            case Kind.PONG:
                self.unanswered_count = 0
            case Kind.READY:
                self._ready()
            case _:
                raise AssertionError(f"a worker sends no frame of kind {kind}")

    def _go_on(self, kind: int, call_id: int, told: Any = None) -> None:
        """What the worker says about a call that is under way, or has just ended."""
        stream = self._streams.get(call_id)
        body = self._bodies.pop(call_id, None) if kind in (Kind.BODY, Kind.CANCEL) else None
        if body is not None and kind == Kind.BODY:
            body.set_result(told)
        elif body is not None:
            body.set_exception(_client_lost())
        elif kind == Kind.CANCEL and call_id in self._polls:
            self._give_up(call_id)
        elif kind == Kind.TAKEN and stream is not None:
            stream.go_on()
        elif kind == Kind.LOST and stream is not None:
            stream.fail(TimeoutError() if told else _client_lost())

    def _begin(self, elements: list[Any]) -> None:
        call_id, number, *rest = elements
        callee = self._answering.callees[number]
        handler: _Handler | None = callee.handler
        if handler is None:
            handler = self._streamed(call_id, callee)
        self._start(call_id, callee.operation, handler, request_of(rest, callee.names))

    def _open(self, elements: list[Any]) -> None:
        """Begin a call whose body follows."""
        call_id, number, *rest = elements
        operation, names, handler, _ = self._answering.callees[number]
        assert handler is not None

        async def handle(head: Request) -> Reply:
            self._answering.require_access(operation, head)
            body: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            self._bodies[call_id] = body
            self.write((Kind.CONTINUE, call_id))
            reply: Reply = await handler(head._replace(body=await body))
            return reply

        self._start(call_id, operation, handle, request_of(rest, names))

    def _start(self, call_id: int, operation: str, handler: _Handler, request: Request) -> None:
        work = self._answering.dispatcher.answer(operation, handler, request)
        try:
            awaited = work.send(None)
        except StopIteration as end:  # nothing had to be waited for, so no task is needed
            self._reply(call_id, end.value)
        except BaseException as error:  # noqa: BLE001 - as in a task
            self._fail(call_id, error)
        else:
            returned, failed = partial(self._answered, call_id), partial(self._failed, call_id)
            self._under_way[call_id] = call = LightTask(work, returned, failed, REFUSALS)
            if ends_with_connection(operation):
                self._polls.add(call_id)
            call.wait_for(awaited)

    def _streamed(self, call_id: int, callee: _Callee) -> _Handler:
        async def handle(request: Request) -> Reply | ReplyParts:
            assert callee.stream is not None
            stream = self._streams[call_id] = _RemoteStream(self, call_id)
            try:
                return await callee.stream(request, stream) or stream
            finally:
                del self._streams[call_id]

        return handle

    def _answered(self, call_id: int, reply: Reply | ReplyParts) -> None:
        self._remove(call_id)
        self._reply(call_id, reply)

    def _failed(self, call_id: int, error: BaseException) -> None:
        self._remove(call_id)
        self._fail(call_id, error)

    def _remove(self, call_id: int) -> LightTask[Reply | ReplyParts]:
        self._polls.discard(call_id)
        return self._under_way.pop(call_id)

    def _reply(self, call_id: int, reply: Reply | ReplyParts) -> None:
        if self._transport is None:
            return
        if isinstance(reply, Reply):
            self._transport.write(reply_frame(call_id, reply))
        else:
            self.write((REPLY, call_id, STREAMED, None, b"", ()))

    def _fail(self, call_id: int, error: BaseException) -> None:
        self.write((Kind.ABORT, call_id))
        if not isinstance(error, ConnectionError | asyncio.CancelledError):
            raise error

    def _give_up(self, call_id: int) -> None:
        self._bodies.pop(call_id, None)
        self._remove(call_id).give_up()


def _client_lost() -> ConnectionResetError:
    return ConnectionResetError("the client has closed the connection")


class _RemoteStream:
    """Sends a reply in parts to a client of the worker. The worker says when the client has taken
    enough of a part, or why it never will. So one part is on its way at a time."""

    status = 200

    def __init__(self, link: WorkerLink, call_id: int) -> None:
        self._link = link
        self._call_id = call_id
        self._taken: asyncio.Future[None] | None = None

    async def start(self, content_type: str, *, within_s: float) -> None:
        await self._send(content_type, None, within_s)

    async def write(self, part: bytes, *, within_s: float) -> None:
        await self._send(None, part, within_s)

    async def end(self, *, within_s: float) -> None:
        await self._send(None, None, within_s)

    def go_on(self) -> None:
        """The client has taken enough of the last part."""
        if self._taken is not None and not self._taken.done():
            self._taken.set_result(None)

    def fail(self, error: Exception) -> None:
        """The client takes no more."""
        if self._taken is not None and not self._taken.done():
            self._taken.set_exception(error)

    async def _send(self, content_type: str | None, part: bytes | None, within_s: float) -> None:
        self._taken = asyncio.get_running_loop().create_future()
        self._link.write((Kind.PART, self._call_id, within_s, content_type, part))
        if self._link.is_lost:
            raise ConnectionResetError("the worker process has ended")
        await self._taken
