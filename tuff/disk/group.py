"""Group commit: what arrived while one batch was on its way to the disk goes out with the next.

A durable write costs one sync, whatever it holds. So one writer takes everything that waits, hands
it to a thread as one batch, and answers all of it when that batch is durable (design §4, §5).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class InThread(Protocol):
    """Runs a function on a worker thread that the server process owns."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


class GroupWriter(Generic[T]):
    """Gathers items, and writes all that wait as one batch, in the order they came.

    Lives on one event loop and belongs to it alone. `write_batch` answers the callers of its items
    itself, and must not raise; what it raises ends `run`, as it is a bug.
    """

    def __init__(
        self, write_batch: Callable[[list[T]], Awaitable[None]], *, batch_count_max: int
    ) -> None:
        self._write_batch = write_batch
        self._batch_count_max = batch_count_max
        self._pending: list[T] = []
        self._wake = asyncio.Event()
        self._closing = False

    @property
    def pending_count(self) -> int:
        """How many items wait for the next batch."""
        return len(self._pending)

    def put(self, item: T) -> None:
        """Let the item go out with the next batch."""
        assert not self._closing, "put after close"
        self._pending.append(item)
        self._wake.set()

    async def run(self) -> None:
        """Write batch after batch until `close`; returns when the last item is written."""
        while True:
            await self._wake.wait()
            batch = self._pending[: self._batch_count_max]
            del self._pending[: self._batch_count_max]
            if batch:
                await self._write_batch(batch)
            if not self._pending:
                if self._closing:
                    return
                self._wake.clear()

    def close(self) -> None:
        """Take nothing more; `run` returns once what waits is written."""
        self._closing = True
        self._wake.set()
