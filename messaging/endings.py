"""What becomes of a transaction's rows when it ends: settled, or marked as rolled back (design §6).

Settling only takes index rows away, and rides along with somebody's batch. Marking inverts every
row that the index knows; what could not be marked stays queued, and is tried again until it is.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial

from messaging.batch import Batch
from messaging.index import MESSAGE_ROWS, IndexedRange
from messaging.live import Live
from messaging.writer import Write, Writer
from tuff.protocol.errors import UnavailableError

# Rows inverted by one batch, unless one publish has more; publishes behind it wait some tens of ms.
MARK_ROWS_MAX = 10_000


class Endings:
    """Settles and marks. Lives on the event loop."""

    def __init__(self, live: Live, writer: Writer) -> None:
        self._live = live
        self._writer = writer
        self._unmarked: set[int] = set()

    @property
    def unmarked(self) -> Collection[int]:
        """Pointers that ended and whose rows are still to be marked."""
        return self._unmarked

    def settle(self, pointers: Collection[int]) -> None:
        """These durably committed: their index rows go with the next batch."""
        self._live.index.settle(pointers)

    async def mark(self, pointers: Collection[int]) -> None:
        """Invert every row of these, durably, and forget their index rows. Idempotent.

        Raises:
            UnavailableError (its kinds): it will be tried again by `retry`.
        """
        carried = [pointer for pointer in pointers if self._live.index.ranges(pointer)]
        self._unmarked.update(carried)
        if carried:
            await self._mark(carried)

    async def retry(self) -> None:
        """Mark what could not be marked before; what fails again stays queued."""
        if self._unmarked:
            try:
                await self._mark(sorted(self._unmarked))
            except UnavailableError:
                return

    def wake_readers(self, pointers: Collection[int]) -> None:
        """These durably ended: readers that wait on their topics look again."""
        for topic in sorted(self._live.index.ended_topics(pointers)):
            found = self._live.topics.maybe_find(topic)
            if found is not None:
                found.wake()

    async def _mark(self, pointers: Sequence[int]) -> None:
        entries = [entry for pointer in pointers for entry in self._live.index.ranges(pointer)]
        batches = list(_batches(entries)) or [[]]
        for ranges in batches[:-1]:
            await self._submit(partial(self._invert, ranges))
        await self._submit(partial(self._invert_last, batches[-1], entries))
        self._unmarked.difference_update(pointers)

    async def _submit(self, build: "partial[None]") -> None:
        await self._writer.submit(Write(build, internal=True))

    def _invert(self, ranges: Sequence[IndexedRange], batch: Batch) -> None:
        for entry in ranges:
            batch.invert(entry.pointer, entry.prefix, entry.first, entry.last)
            topic = self._live.topics.maybe_find(entry.topic)
            if topic is not None:
                batch.touch(topic)

    def _invert_last(
        self, ranges: Sequence[IndexedRange], entries: Sequence[IndexedRange], batch: Batch
    ) -> None:
        self._invert(ranges, batch)
        for entry in entries:
            batch.delete(entry.key)
        batch.on_durable(partial(self._live.index.marked, entries))


def _batches(entries: Iterable[IndexedRange]) -> Iterator[list[IndexedRange]]:
    """The ranges of message rows for each batch. What was published at once is marked at once: a
    transaction that ended may still be read by its own snapshot, which saw the rest of it."""
    gathered: list[IndexedRange] = []
    count = 0
    for entry in entries:
        if entry.kind != MESSAGE_ROWS:
            continue
        if gathered and count + entry.count > MARK_ROWS_MAX:
            yield gathered
            gathered, count = [], 0
        gathered.append(entry)
        count += entry.count
    if gathered:
        yield gathered
