"""Runs a flow in the calling task (design §7)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Protocol, TypeVar

from tuff.calls import Call
from tuff.flows import Flow, Hook, Pause, Step, Stop, StoppedError, Unless, is_under_way, run_hook
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

    def __init__(
        self,
        transport: AsyncSender,
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._transport = transport
        self._pause = pause

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end; returns its result. A cancellation is thrown into the flow like an
        error, and raised after its clean-up. When the coroutine is closed, so is the flow, by a
        GeneratorExit: nothing can be awaited any more."""
        answer: object = None
        error: BaseException | None = None
        while True:
            try:
                step = flow.send(answer) if error is None else flow.throw(error)
                answer, error = await self._do(step), None
            except BaseException as raised:
                if is_under_way(flow):
                    error = raised
                elif isinstance(raised, StopIteration):
                    result: T = raised.value
                    return result
                else:
                    raise

    async def _do(self, step: Step) -> object:
        match step:
            case Hook():
                result = run_hook(step)
                return await result if isinstance(result, Awaitable) else result
            case Pause():
                await self._pause(step.seconds)
                return None
            case Unless(stop, within):
                return await self._do_unless(stop, within)
            case _:
                return await self._send(step)

    async def _send(self, call: Call[Any]) -> object:
        tracer = TRACING.tracer
        if tracer is None:
            return await self._transport.send(call)
        with tracer.sending(call, self._transport.url) as traced:
            answer: object = await self._transport.send(traced.call)
            traced.answered(answer)
            return answer

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
