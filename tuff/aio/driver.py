"""Runs a flow in the calling task (design §7)."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Protocol, TypeVar

from tuff.errors import WrongStateError
from tuff.flows_and_repeated_calls import (
    Call,
    Flow,
    Hook,
    Pause,
    Retries,
    Step,
    Unless,
    Use,
    run_hook,
)
from tuff.protocol.errors import TuffError
from tuff.stop_signals import Stop, StoppedError
from tuff.tracebacks import without_frames, without_own_frames
from tuff.tracing import TRACING

T = TypeVar("T")


class AsyncSender(Protocol):
    """Sends a call once, without blocking the event loop."""

    @property
    def url(self) -> str: ...
    async def send(self, call: Call[T]) -> T: ...
    async def close(self) -> None: ...


class AsyncDriver:
    """Runs every step, including hooks, in the calling task, so that a context variable that a hook
    sets keeps its value."""

    runs_coroutines: ClassVar[bool] = True  # as a step of a flow

    def __init__(self, transport: AsyncSender, retries: Retries) -> None:
        self._transport = transport
        self.retries = retries

    async def ask(self, call: Call[T]) -> T:
        """Send a call, and repeat it if that is safe; returns the value of the response."""
        return await self.run(self.retries.ask(call))

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end; returns its result. A cancellation is thrown into the flow like an
        error, and raised after its clean-up. When the coroutine is closed, so is the flow, by a
        GeneratorExit: nothing can be awaited any more. An error of Tuff is raised without the
        frames of the flow."""
        handled = sys.exception()
        answer: object = None
        error: BaseException | None = None
        while True:
            try:
                step = flow.send(answer) if error is None else flow.throw(error)
                answer, error = await self._do(step), None
            except BaseException as raised:
                if getattr(flow, "gi_frame", None) is not None:  # it waits for a result
                    error = raised
                elif isinstance(raised, StopIteration):
                    result: T = raised.value
                    return result
                else:
                    if isinstance(raised, TuffError):
                        without_own_frames(raised, handled)
                    raise

    async def _do(self, step: Step) -> object:
        match step:
            case Hook():
                result = run_hook(step)
                return await result if isinstance(result, Awaitable) else result
            case Pause():
                await asyncio.sleep(step.seconds)
                return None
            case Unless(stop, within):
                return await self._do_unless(stop, within)
            case _:
                return await self._send(step)

    async def _send(self, call: Call[Any]) -> object:
        tracer, handled = TRACING.tracer, sys.exception()
        try:
            if tracer is None:
                return await self._transport.send(call)
            with tracer.sending(call, self._transport.url) as traced:
                answer: object = await self._transport.send(traced.call)
                traced.answered(answer)
                return answer
        except TuffError as error:
            without_frames(error, handled)
            raise

    async def _do_unless(self, stop: Stop, step: Step) -> object:
        stop.check()
        loop = asyncio.get_running_loop()
        limit = asyncio.timeout(None)

        def give_up() -> None:
            loop.remove_reader(stop)
            limit.reschedule(loop.time())

        try:
            async with limit:
                loop.add_reader(stop, give_up)
                try:
                    return await self._do(step)
                finally:
                    loop.remove_reader(stop)
        except TimeoutError:
            if limit.expired():
                raise StoppedError from None
            raise


def other_loop(what: str) -> WrongStateError:
    """The error for an object that another event loop has begun to use."""
    return WrongStateError(
        f"the {what} belongs to the event loop that used it first; make another one in this one"
    )


class AsyncHeartbeats:
    """Runs one flow beside the program, for the object `what`, as long as it is used. Belongs to
    one event loop."""

    def __init__(self, driver: AsyncDriver, *, what: str) -> None:
        self.use = Use(what)
        self._driver = driver
        self._task: asyncio.Task[None] | None = None

    async def begin(self, flow: Callable[[], Flow[None]]) -> None:
        """Run the flow; nothing happens if it was begun before.

        Raises: WrongStateError: the object is closed, or of another process or event loop.
        """
        self.use.require()
        loop = asyncio.get_running_loop()
        if self._task is None:
            self._task = loop.create_task(self._driver.run(flow()))
        elif self._task.get_loop() is not loop:
            raise other_loop(self.use.what)

    async def join(self) -> None:
        """Wait until the flow has ended."""
        if self._task is not None:
            await self._task
