"""Worker threads of an event loop: one queue to them, and one wake-up of the loop for each result.

The standard library's executor keeps a second future for each call and connects the two by locks
and callbacks. Every durable batch goes through here, and that was half of the processor time of its
way to a thread and back.
"""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from tuff.disk.batch_loop import InThread

T = TypeVar("T")


class Thread(Protocol):
    """A thread that runs."""

    def join(self) -> None:
        """Wait until it has ended."""


class TimedCalls:
    """Runs functions on worker threads, and reports for how long the oldest call is under way.
    Belongs to one event loop; `elapsed_s` is a monotonic clock."""

    def __init__(self, in_thread: InThread, *, elapsed_s: Callable[[], float]) -> None:
        self._in_thread = in_thread
        self._elapsed_s = elapsed_s
        self._began_s: dict[object, float] = {}

    async def __call__(self, function: Callable[[], T]) -> T:
        call = object()
        self._began_s[call] = self._elapsed_s()
        try:
            return await self._in_thread(function)
        finally:
            del self._began_s[call]

    def oldest_s(self) -> float:
        """For how long the oldest call is under way, in seconds; 0 when there is none."""
        return self._elapsed_s() - min(self._began_s.values()) if self._began_s else 0.0


class WorkerThreads:
    """Runs functions on up to `count_max` threads, in the order of the calls. Belongs to one event
    loop. `start` starts a thread that runs a function."""

    def __init__(self, count_max: int, *, start: Callable[[Callable[[], None]], Thread]) -> None:
        self._count_max = count_max
        self._start = start
        self._loop = asyncio.get_running_loop()
        self._threads: list[Thread] = []
        self._waiting: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None]
        self._waiting = SimpleQueue()

    def run(self, function: Callable[[], T]) -> "asyncio.Future[T]":
        """What the function returns or raises. A function that has begun runs to its end, also
        when the caller cancels the future."""
        if len(self._threads) < self._count_max:
            self._threads.append(self._start(self._work))
        future: asyncio.Future[T] = self._loop.create_future()
        self._waiting.put((function, future))
        return future

    def close(self) -> None:
        """Wait until all calls are done. Blocks."""
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _work(self) -> None:
        while (task := self._waiting.get()) is not None:
            if not task[1].cancelled():
                self._do(*task)
            del task  # an idle thread keeps nothing of its last call alive

    def _do(self, function: Callable[[], T], future: "asyncio.Future[T]") -> None:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            self._loop.call_soon_threadsafe(_fail, future, error)
            # The error's traceback holds this frame: it, and what it names, would live on.
            del future
        else:
            self._loop.call_soon_threadsafe(_succeed, future, result)


def _succeed(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[Any]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
