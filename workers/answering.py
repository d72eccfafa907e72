"""The main process's end of the link to one worker: it answers the calls that the worker forwards.

A call goes to the handler of its route through the dispatcher, as a request of a connection of the
main process does. So admission, rights, quotas, errors and metrics have one implementation.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from process.dispatch import Dispatcher, ends_with_connection
from process.http_connection import (
    REFUSALS,
    ReplyParts,
    RequireAccess,
    StreamHandler,
    StreamRoute,
)
from tuff.disk.event_loop import LightTask
from tuff.protocol.errors import TuffError
from tuff.protocol.exchange import EMPTY_REPLY, Handler, Reply, Request, Route
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
            *(_Callee(f"{m} {p}", names_in(p), handler, None) for m, p, handler in routes),
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
        self._under_way: dict[int, _UnderWay] = {}
        self._streams: dict[int, _RemoteStream] = {}
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
        for call in [each for each in self._under_way.values() if each.ends_with_connection]:
            self._cancel(call.call_id)
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
            case Kind.CHECK:
                self._check(elements)
            case Kind.CANCEL:
                call = self._under_way.get(elements[0])
                if call is not None and call.ends_with_connection:
                    self._cancel(call.call_id)
            case Kind.TAKEN:
                if (stream := self._streams.get(elements[0])) is not None:
                    stream.go_on()
            case Kind.LOST:
                self._fail_stream(*elements)
            case Kind.ANSWERED:
                self._answering.dispatcher.count(*elements)
            case Kind.PONG:
                self.unanswered_count = 0
            case Kind.READY:
                self._ready()
            case _:
                raise AssertionError(f"a worker sends no frame of kind {kind}")

    def _begin(self, elements: list[Any]) -> None:
        call_id, number, *rest = elements
        operation, names, handler, stream = self._answering.callees[number]
        request = request_of(rest, names)
        dispatcher = self._answering.dispatcher
        if handler is not None:
            work: Coroutine[Any, Any, Reply | _RemoteStream]
            work = dispatcher.answer(operation, handler, request)
        else:
            assert stream is not None
            work = dispatcher.answer(operation, self._streamed(call_id, stream), request)
        try:
            awaited = work.send(None)
        except StopIteration as end:  # nothing had to be waited for, so no task is needed
            self._reply(call_id, end.value)
        except BaseException as error:  # noqa: BLE001 - as in a task
            self._fail(call_id, error)
        else:
            is_read = ends_with_connection(operation)
            self._under_way[call_id] = call = _UnderWay(self, call_id, work, is_read)
            call.wait_for(awaited)

    def _streamed(
        self, call_id: int, handler: StreamHandler
    ) -> Callable[[Request], Coroutine[Any, Any, "Reply | _RemoteStream"]]:
        async def handle(request: Request) -> Reply | _RemoteStream:
            stream = self._streams[call_id] = _RemoteStream(self, call_id)
            try:
                return await handler(request, stream) or stream
            finally:
                del self._streams[call_id]

        return handle

    def _check(self, elements: list[Any]) -> None:
        """Answer whether a request may send its body."""
        call_id, number, *rest = elements
        operation, names, _, _ = self._answering.callees[number]
        reply = EMPTY_REPLY
        try:
            self._answering.require_access(operation, request_of(rest, names))
        except TuffError as error:
            reply = self._answering.dispatcher.refuse(operation, error)
        self._reply(call_id, reply)

    def answered(self, call_id: int, reply: "Reply | _RemoteStream") -> None:
        del self._under_way[call_id]
        self._reply(call_id, reply)

    def failed(self, call_id: int, error: BaseException) -> None:
        del self._under_way[call_id]
        self._fail(call_id, error)

    def _reply(self, call_id: int, reply: "Reply | _RemoteStream") -> None:
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

    def _cancel(self, call_id: int) -> None:
        self._under_way.pop(call_id).give_up()

    def _fail_stream(self, call_id: int, is_timeout: bool) -> None:  # noqa: FBT001 - of a frame
        stream = self._streams.get(call_id)
        if stream is not None:
            lost = ConnectionResetError("the client has closed the connection")
            stream.fail(TimeoutError() if is_timeout else lost)


class _UnderWay(LightTask[Reply | ReplyParts]):
    """A call that waits."""

    __slots__ = ("_link", "call_id", "ends_with_connection")

    def __init__(
        self,
        link: WorkerLink,
        call_id: int,
        work: Coroutine[Any, Any, Any],
        ends_with_connection: bool,  # noqa: FBT001 - by position, since one is made for each call
    ) -> None:
        self._link = link
        self.call_id = call_id
        self.ends_with_connection = ends_with_connection
        super().__init__(work, returned=self._return, failed=self._raise, refusals=REFUSALS)

    def _return(self, reply: Any) -> None:
        self._link.answered(self.call_id, reply)

    def _raise(self, error: BaseException) -> None:
        self._link.failed(self.call_id, error)


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
