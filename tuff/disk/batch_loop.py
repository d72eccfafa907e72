"""Group commit: what arrived while one batch was on its way to the disk goes out with the next.

A durable write costs one sync, whatever it holds. So one writer takes everything that waits, hands
it to a thread as one batch, and answers all of it when that batch is durable (design §4, §5).

A disk may be done sooner than the event loop with what has arrived. Batches that leave at once hold
two or three items then, and the hand-over to the thread and back costs more than all else. So a
batch leaves when the loop has nothing else to do, or its first item has waited for long enough
(decision 0026).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")

GATHER_S_MAX = 0.004  # seconds; a busy loop takes as long for some dozens of requests


class Arrivals:
    """How many requests have come in so far, whatever they ask for. The edge counts; a writer looks
    whether the number stands still. One for all writers of an event loop."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class InThread(Protocol):
    """Runs a function on a worker thread that the server process owns."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


class BatchLoop(Generic[T]):
    """Gathers items, and writes all that wait as one batch, in the order they came.

    Lives on one event loop and belongs to it alone. `write_batch` answers the callers of its items
    itself, and must not raise; what it raises ends `run`, as it is a bug.
    """

    def __init__(
        self,
        write_batch: Callable[[list[T]], Awaitable[None]],
        *,
        batch_count_max: int,
        arrivals: Arrivals,
    ) -> None:
        self._write_batch = write_batch
        self._batch_count_max = batch_count_max
        self._arrivals = arrivals
        self._pending: list[T] = []
        self._wake = asyncio.Event()
        self._closing = False

    @property
    def pending_count(self) -> int:
        """How many items wait for the next batch."""
        return len(self._pending)

    def put(self, item: T) -> None:
        """Let the item go out with the next batch, and wake the writer for it."""
        self.put_aside(item)
        self._wake.set()

    def put_aside(self, item: T) -> None:
        """Let the item go out with the next batch, whenever somebody needs one; see `wake`."""
        assert not self._closing, "put after close"
        self._pending.append(item)

    def wake(self) -> None:
        """Write what waits."""
        self._wake.set()

    async def run(self) -> None:
        """Write batch after batch until `close`; returns when the last item is written."""
        while True:
            await self._wake.wait()
            await self._gathered()
            self._wake.clear()
            batch = self._pending[: self._batch_count_max]
            del self._pending[: self._batch_count_max]
            if self._pending:
                self._wake.set()
            if batch:
                await self._write_batch(batch)
            if self._closing:
                if not self._pending:
                    return
                self._wake.set()

    async def _gathered(self) -> None:
        """Wait until the loop has been round once and nothing came in, or for long enough."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + GATHER_S_MAX
        before = -1, -1
        while loop.time() < until_s:
            now = self._arrivals.count, len(self._pending)
            if now == before or now[1] >= self._batch_count_max or self._closing:
                return
            before = now
            await asyncio.sleep(0)

    def close(self) -> None:
        """Take nothing more; `run` returns once what waits is written."""
        self._closing = True
        self._wake.set()
