"""Pointers that are reserved durably beforehand, so that a start waits for no disk (design §4,
Pointers).

What is reserved and not handed out becomes invalid by a crash, since nobody can tell then that no
start was given it. So there are never many more than are likely to be wanted.
"""

from collections import deque

from tuff.protocol.transaction import POINTERS_PER_MS
from tx.edits import PointerRange
from tx.settings import (
    BLOCK_COUNT_MAX,
    BLOCK_COUNT_MIN,
    BLOCK_GROWTH_MAX,
    BLOCK_SECONDS,
    BLOCK_STALE_MS,
)


class PointerBlocks:
    """The pointers that may be handed out now, and how many the next block should hold."""

    def __init__(self) -> None:
        self._next = self._stop = 0  # what is left of the block that is being handed out
        self._later: deque[PointerRange] = deque()
        self._size = 0
        self._taken_count = 0
        self._since_ms = 0
        self.rest_count = 0

    def add(self, block: PointerRange) -> None:
        """These are reserved durably; they stand above all that were added before."""
        self._later.append(block)
        self.rest_count += block.count
        self._size = block.count

    def clear(self) -> None:
        """Nothing of what was reserved may be handed out any more."""
        self._next = self._stop = 0
        self._later.clear()
        self.rest_count = 0

    def take(self) -> int | None:
        """The next pointer, always rising; None when all are handed out."""
        if self._next == self._stop:
            if not self._later:
                return None
            block = self._later.popleft()
            self._next, self._stop = block.start, block.stop
        pointer = self._next
        self._next += 1
        self.rest_count -= 1
        self._taken_count += 1
        return pointer

    def is_due(self, *, now_ms: int) -> bool:
        """Whether it is time to reserve more: few are left, or they speak of a time long past."""
        return (
            self.is_stale(now_ms=now_ms) or self.rest_count < max(self._size, BLOCK_COUNT_MIN) // 2
        )

    def is_stale(self, *, now_ms: int) -> bool:
        """Whether the next pointer names a time that is more than `BLOCK_STALE_MS` ago. It would
        be right all the same, and mislead a person who reads it."""
        if not self.rest_count:
            return False
        following = self._next if self._next < self._stop else self._later[0].start
        return now_ms - following // POINTERS_PER_MS > BLOCK_STALE_MS

    def has_surplus(self, *, reserved_count: int, now_ms: int) -> bool:
        """Whether most of what is reserved should be given back: starts no longer come, or the
        first of them would have had a block of fresh pointers reserved."""
        return reserved_count > 2 * BLOCK_COUNT_MIN and self.is_stale(now_ms=now_ms)

    def keep_few(self) -> PointerRange:
        """Hand out nothing more of what is reserved now than these few; there are some."""
        newest = self._later[-1] if self._later else PointerRange(self._next, self._stop)
        kept = PointerRange(newest.start, min(newest.start + BLOCK_COUNT_MIN, newest.stop))
        self.clear()
        self.add(kept)
        return kept

    def next_block(self, *, lowest: int, waiting_count: int, now_ms: int) -> PointerRange:
        """The block to reserve now, from `lowest` or the clock on: what a fifth of a second takes
        at the recent rate, and enough for everybody who waits for one."""
        elapsed_ms = max(1, now_ms - self._since_ms)
        expected_count = round(self._taken_count / elapsed_ms * 1000 * BLOCK_SECONDS)
        # A few starts at once are a high rate too, and mean little.
        expected_count = min(expected_count, BLOCK_GROWTH_MAX * self._taken_count)
        self._taken_count, self._since_ms = 0, now_ms
        # Where some came at once, there will be such again: it shrinks by and by.
        wanted_count = max(expected_count, waiting_count, self._size // 2)
        count = min(max(wanted_count, BLOCK_COUNT_MIN), BLOCK_COUNT_MAX)
        start = max(lowest, now_ms * POINTERS_PER_MS)
        return PointerRange(start, start + count)
