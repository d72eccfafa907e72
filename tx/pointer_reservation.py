"""Pointers are reserved durably in blocks beforehand, so that a start waits for no disk (design §4,
Pointers).

A crash makes every reserved pointer invalid, since a start may have received it without reaching
the log. So no more pointers are reserved than the recent rate of starts needs.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from tuff.protocol.errors import TransactionsUnavailableError
from tuff.protocol.transaction import POINTERS_PER_MS
from tx.durable_state import DurableState
from tx.edits import BlockKept, BlockReserved, PointerRange
from tx.message_rows import MessageRows, Spawn
from tx.settings import (
    BLOCK_COUNT_MAX,
    BLOCK_COUNT_MIN,
    BLOCK_GROWTH_MAX,
    BLOCK_SECONDS,
    BLOCK_STALE_MS,
)
from tx.state import TransactionState


class ReservedPointers:
    """Hands out reserved pointers, and reserves the next block before they run out. Lives on one
    event loop."""

    def __init__(
        self,
        durable: DurableState,
        rows: MessageRows,
        *,
        now_ms: Callable[[], int],
        spawn: Spawn,
    ) -> None:
        self._durable = durable
        self._rows = rows
        self._now_ms = now_ms
        self._spawn = spawn
        self._blocks = PointerBlocks()
        self._renewal: asyncio.Future[None] | None = None
        self._waiting_count = 0

    def take(self) -> int | None:
        """A pointer that was not handed out before; None while there is none. Record its start or
        checkpoint before anything is waited for, so that edits enter the log in pointer order."""
        return self._blocks.take()

    def renew_if_due(self, *, now_ms: int) -> None:
        """Begin to reserve the next block if few pointers are left, or stale ones."""
        if self._renewal is None and self._blocks.is_due(now_ms=now_ms):
            self._begin_renewal()

    async def renewed(self) -> None:
        """Wait until there are pointers again. Raises: TransactionsUnavailableError."""
        self._durable.require_running()
        self._waiting_count += 1
        try:
            await self._durable.within_time(_done(self._renewal or self._begin_renewal()))
        finally:
            self._waiting_count -= 1

    def tick(self) -> None:
        """Give back most reserved pointers when starts no longer come. Raises:
        TransactionsUnavailableError: the service is not running."""
        state, now_ms = self._durable.state, self._now_ms()
        reserved_count = sum(block.count for block in state.blocks)
        # Not while a block is on its way to the disk: its pointers are handed out once it is
        # durable, but a crash would have dropped it from the state.
        if self._renewal is None and self._blocks.has_surplus(
            reserved_count=reserved_count, now_ms=now_ms
        ):
            self._durable.sync_soon(
                self._durable.record(BlockKept(now_ms, self._blocks.keep_few()))
            )

    def next_block(self, state: TransactionState) -> BlockReserved:
        """The edit that reserves the next block; also used when the service comes up."""
        now_ms = self._now_ms()
        block = self._blocks.next_block(
            lowest=state.next_block_start, waiting_count=self._waiting_count, now_ms=now_ms
        )
        return BlockReserved(now_ms, block)

    def came_up(self, state: TransactionState) -> None:
        """The service came up: the blocks of this state are durable."""
        self._blocks.clear()
        for block in state.blocks:
            self._blocks.add(block)
        self._rows.note_reserved(state.highest_reserved)

    def _begin_renewal(self) -> asyncio.Future[None]:
        renewal = self._renewal = asyncio.get_running_loop().create_future()
        self._spawn(self._renew(renewal))
        return renewal

    async def _renew(self, done: asyncio.Future[None]) -> None:
        recovery_count = self._durable.recovery_count
        try:
            edit = self.next_block(self._durable.state)
            await self._durable.synced(self._durable.record(edit))
            if self._durable.recovery_count == recovery_count:
                if self._blocks.is_stale(now_ms=self._now_ms()):
                    self._blocks.clear()
                self._blocks.add(edit.block)
                self._rows.note_reserved(edit.block.stop - 1)
        except TransactionsUnavailableError:
            pass  # callers that wait check the service themselves, and raise the reason
        finally:
            self._renewal = None
            done.set_result(None)


async def _done(future: asyncio.Future[None]) -> None:
    await asyncio.shield(future)


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
        """Add a durably reserved block; its pointers are above all that were added before."""
        self._later.append(block)
        self.rest_count += block.count
        self._size = block.count

    def clear(self) -> None:
        """Hand out none of the pointers that were added."""
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
        """Whether it is time to reserve more: few pointers are left, or they are stale."""
        return (
            self.is_stale(now_ms=now_ms) or self.rest_count < max(self._size, BLOCK_COUNT_MIN) // 2
        )

    def is_stale(self, *, now_ms: int) -> bool:
        """Whether the time in the next pointer is more than `BLOCK_STALE_MS` ago. It would be
        correct, but mislead people who read it."""
        if not self.rest_count:
            return False
        following = self._next if self._next < self._stop else self._later[0].start
        return now_ms - following // POINTERS_PER_MS > BLOCK_STALE_MS

    def has_surplus(self, *, reserved_count: int, now_ms: int) -> bool:
        """Whether most of what is reserved should be given back: starts no longer come, or the
        first of them would have had a block of fresh pointers reserved."""
        return reserved_count > 2 * BLOCK_COUNT_MIN and self.is_stale(now_ms=now_ms)

    def keep_few(self) -> PointerRange:
        """Keep only a few of the pointers, and return these; there must be some."""
        newest = self._later[-1] if self._later else PointerRange(self._next, self._stop)
        kept = PointerRange(newest.start, min(newest.start + BLOCK_COUNT_MIN, newest.stop))
        self.clear()
        self.add(kept)
        return kept

    def next_block(self, *, lowest: int, waiting_count: int, now_ms: int) -> PointerRange:
        """The block to reserve now, from `lowest` or the clock on: enough for `BLOCK_SECONDS` at
        the recent rate, and for all callers that wait."""
        elapsed_ms = max(1, now_ms - self._since_ms)
        expected_count = round(self._taken_count / elapsed_ms * 1000 * BLOCK_SECONDS)
        # A few starts at once look like a high rate, and mean little.
        expected_count = min(expected_count, BLOCK_GROWTH_MAX * self._taken_count)
        self._taken_count, self._since_ms = 0, now_ms
        # After a burst another one is likely, so the size shrinks only by half at a time.
        wanted_count = max(expected_count, waiting_count, self._size // 2)
        count = min(max(wanted_count, BLOCK_COUNT_MIN), BLOCK_COUNT_MAX)
        start = max(lowest, now_ms * POINTERS_PER_MS)
        return PointerRange(start, start + count)
