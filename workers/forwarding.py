"""A worker's end of the link: it forwards each call, and gives its reply to the connection."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from process.http_connection import Upload
from process.streamed_replies import ReplyParts, StreamRoute
from tuff.protocol.errors import TuffError
from tuff.protocol.exchange import Reply, Request, Route, problem_reply
from workers.link_frames import (
    CALL,
    REPLY,
    STREAMED,
    Frames,
    Hello,
    Kind,
    call_elements,
    pack,
)

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class ForwardedReply(Reply):
    """A reply of the main process, which has counted it."""

    __slots__ = ()


class MainLink(asyncio.Protocol):
    """The link to the main process. Lives on one event loop.

    `hello` is done with the first frame, and `closing` when the worker has to end: with the seconds
    in which it closes its connections, or None where the main process is gone.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.hello: asyncio.Future[Hello] = self._loop.create_future()
        self.closing: asyncio.Future[float | None] = self._loop.create_future()
        self.ending: Callable[[], None] = _nothing  # lets connections end with their next reply
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self._last_id = 0
        self._waiting: dict[int, asyncio.Future[list[Any]]] = {}  # for the next frame of a call
        self._now_ms = 0  # the clock of the server
        self._told_s = 0.0  # when that was, by the loop's clock

    def now_ms(self) -> int:
        """The clock of the server."""
        return self._now_ms + round((self._loop.time() - self._told_s) * 1000)

    # What the event loop calls.

    def connection_made(  # type: ignore[override]  # a stream's, in uvloop not by its class
        self, transport: asyncio.Transport
    ) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for frame in self._frames.feed(data):
            kind = frame[0]
            if kind == REPLY:
                waiting = self._waiting.pop(frame[1], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(frame)
            else:
                self._take(kind, frame[1:])

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self.closing.done():
            self.closing.set_result(None)

    # What the worker calls.

    def ready(self) -> None:
        """Say that the worker accepts connections."""
        self._write((Kind.READY,))

    def count(self, operation: str, status: int, seconds: float) -> None:
        """Let the main process count a request that the worker has answered alone."""
        self._write((Kind.ANSWERED, operation, status, seconds))

    def routes(self, hello: Hello) -> list[Route]:
        """The routes of the main process, whose handlers forward."""
        return [
            Route(method, path, self._forwards(number))
            for number, (method, path) in enumerate(hello.routes)
        ]

    def streams(self, hello: Hello) -> list[StreamRoute]:
        """The routes whose reply is sent in parts."""
        return [
            StreamRoute(method, path, self._forwards_stream(number))
            for number, (method, path) in enumerate(hello.streams, len(hello.routes))
        ]

    def upload(self, hello: Hello) -> Upload:
        """Forwards a request whose body has not arrived yet."""
        numbers = {f"{method} {path}": n for n, (method, path) in enumerate(hello.routes)}

        async def forward(
            operation: str, head: Request, body: Callable[[], Awaitable[bytes]]
        ) -> Reply:
            return await self._upload(numbers[operation], head, body)

        return forward

    # Calls.

    def _forwards(self, number: int) -> Callable[[Request], Awaitable[Reply]]:
        async def forward(request: Request) -> Reply:
            call_id = self._next_id()
            waiting = self._expect(call_id)
            self._write((CALL, *call_elements(call_id, number, request)))
            try:
                return _reply_of(await waiting)
            finally:
                self._give_up(call_id)

        return forward

    async def _upload(
        self, number: int, head: Request, body: Callable[[], Awaitable[bytes]]
    ) -> Reply:
        call_id = self._next_id()
        waiting = self._expect(call_id)
        self._write((Kind.OPEN, *call_elements(call_id, number, head)))
        try:
            frame = await waiting
            if frame[0] != REPLY:
                waiting = self._expect(call_id)
                self._write((Kind.BODY, call_id, await body()))
                frame = await waiting
            return _reply_of(frame)
        finally:
            self._give_up(call_id)

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _give_up(self, call_id: int) -> None:
        """Say that nothing waits for a call, if it is not answered. It ends with that if it is a
        poll, or its body never comes."""
        if self._waiting.pop(call_id, None) is not None:
            self._write((Kind.CANCEL, call_id))

    def _forwards_stream(
        self, number: int
    ) -> Callable[[Request, ReplyParts], Coroutine[Any, Any, Reply | None]]:
        async def forward(request: Request, sending: ReplyParts) -> Reply | None:
            call_id = self._next_id()
            waiting = self._expect(call_id)
            self._write((CALL, *call_elements(call_id, number, request)))
            try:
                while (frame := await waiting)[0] != REPLY:
                    waiting = self._expect(call_id)
                    await self._send_part(call_id, frame[2:], sending)
            finally:
                self._waiting.pop(call_id, None)
            return None if frame[2] == STREAMED else _reply_of(frame)

        return forward

    async def _send_part(self, call_id: int, part: Sequence[Any], sending: ReplyParts) -> None:
        within_s, content_type, data = part
        try:
            if content_type is not None:
                await sending.start(content_type, within_s=within_s)
            elif data is not None:
                await sending.write(data, within_s=within_s)
            else:
                await sending.end(within_s=within_s)
        except TimeoutError:
            self._write((Kind.LOST, call_id, True))
            raise ConnectionResetError("the client does not read the reply") from None
        except ConnectionError:
            self._write((Kind.LOST, call_id, False))
            raise
        self._write((Kind.TAKEN, call_id))

    def _expect(self, call_id: int) -> "asyncio.Future[list[Any]]":
        self._waiting[call_id] = waiting = self._loop.create_future()
        return waiting

    def _take(self, kind: int, elements: list[Any]) -> None:
        match kind:
            case Kind.PART | Kind.CONTINUE | Kind.ABORT:
                self._pass_on(kind, elements)
            case Kind.PING:
                self._note_time(elements[0])
                self._write((Kind.PONG,))
            case Kind.HELLO:
                hello = Hello.of(elements[0])
                self._note_time(hello.now_ms)
                self.hello.set_result(hello)
            case Kind.ENDING:
                self.ending()
            case Kind.CLOSE:
                self.closing.set_result(elements[0])
            case _:
                raise AssertionError(f"the main process sends no frame of kind {kind}")

    def _pass_on(self, kind: int, elements: list[Any]) -> None:
        waiting = self._waiting.pop(elements[0], None)
        if waiting is None or waiting.done():
            return
        if kind == Kind.ABORT:
            waiting.set_exception(ConnectionResetError("the call was given up"))
        else:
            waiting.set_result([kind, *elements])

    def _note_time(self, now_ms: int) -> None:
        self._now_ms, self._told_s = now_ms, self._loop.time()

    def _write(self, frame: tuple[object, ...]) -> None:
        if self._transport is not None:
            self._transport.write(pack(frame))


def _reply_of(frame: list[Any]) -> ForwardedReply:
    _, _, status, content_type, body, headers = frame
    return ForwardedReply(status, content_type, body, tuple([(n, v) for n, v in headers]))


def _nothing() -> None:
    pass


class ForwardingDispatcher:
    """Calls the handlers of a worker. Replies that the worker makes alone (wrong requests) are
    counted by the main process, too; it has counted the others."""

    def __init__(self, link: MainLink) -> None:
        self._link = link
        self._loop = asyncio.get_running_loop()

    async def answer(
        self,
        operation: str,
        handler: Callable[[Question], Awaitable[Answer]],
        question: Question,
    ) -> Answer | Reply:
        """The handler's reply, or a problem document. Raises: ConnectionError."""
        began_s = self._loop.time()
        answered: Answer | Reply
        try:
            answered = await handler(question)
        except TuffError as error:
            answered = problem_reply(error)
        if type(answered) is Reply:
            self._link.count(operation, answered.status, self._loop.time() - began_s)
        return answered

    def refuse(self, operation: str, error: TuffError) -> Reply:
        """The reply to a request that reached no handler."""
        self._link.count(operation, error.status, 0.0)
        return problem_reply(error)
