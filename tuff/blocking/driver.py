"""Runs a flow in the calling thread (design §7)."""

import time
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeVar

from tuff.calls import Call
from tuff.flows import Flow, Hook, Pause, Step, Stop, Unless, is_under_way, run_hook
from tuff.tracing import TRACING

T = TypeVar("T")


class Sender(Protocol):
    """Sends a call once."""

    @property
    def url(self) -> str: ...
    def send(self, call: Call[T], *, stop: Stop | None = None) -> T: ...
    def close(self) -> None: ...


def pause(seconds: float, stop: Stop | None) -> None:
    """Wait. Raises: StoppedError: `stop` is set."""
    if stop is None:
        time.sleep(seconds)
    else:
        stop.wait(seconds)


class Driver:
    """Runs flows, and blocks meanwhile. Safe to share between threads."""

    runs_coroutines: ClassVar[bool] = False  # as a step of a flow

    def __init__(
        self, transport: Sender, *, pause: Callable[[float, Stop | None], None] = pause
    ) -> None:
        self._transport = transport
        self._pause = pause

    def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end; returns its result.

        An interrupt between two steps is thrown into the flow, like one within a step: otherwise
        the flow would not roll back.
        """
        answer: object = None
        error: BaseException | None = None
        while True:
            try:
                # An inner loop, since Python raises an interrupt at the jump back to the head of a
                # loop.
                while True:
                    step = flow.send(answer) if error is None else flow.throw(error)
                    answer, error = self._attempt(step)
            except BaseException as raised:
                if is_under_way(flow):
                    error = raised
                elif isinstance(raised, StopIteration):
                    result: T = raised.value
                    return result
                else:
                    raise

    def _attempt(self, step: Step) -> tuple[object, BaseException | None]:
        try:
            return self._do(step), None
        except BaseException as error:  # noqa: BLE001 - thrown into the flow
            return None, error

    def _do(self, step: Step) -> object:
        match step:
            case Hook():
                return _no_coroutine(run_hook(step))
            case Unless(stop, within):
                return self._wait(within, stop)
            case _:
                return self._wait(step, None)

    def _wait(self, step: Call[Any] | Pause, stop: Stop | None) -> object:
        if isinstance(step, Pause):
            return self._pause(step.seconds, stop)
        tracer = TRACING.tracer
        if tracer is None:
            return self._transport.send(step, stop=stop)
        with tracer.sending(step, self._transport.url) as traced:
            answer: object = self._transport.send(traced.call, stop=stop)
            traced.answered(answer)
            return answer


def _no_coroutine(result: object) -> object:
    if hasattr(result, "__await__"):
        # It has not run, so the hook did nothing, which would look like a success.
        getattr(result, "close", lambda: None)()
        raise TypeError(
            "a participant of a blocking client has a coroutine function; use tuff.AsyncClient"
        )
    return result
