"""Pointers are reserved durably in blocks beforehand, so that a start waits for no disk (design §4,
Pointers).

A crash makes every reserved pointer invalid, since a start may have received it without reaching
the log. So no more pointers are reserved than the recent rate of starts needs. After an idle time
they are passed over, so that the time in a pointer is that of its transaction's start.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from kernel.event_loop import Spawn
from tuff.protocol.errors import TransactionsUnavailableError
from tuff.protocol.transaction import POINTERS_PER_MS
from tx.claims_and_waits import Step
from tx.durable_state import DurableState
from tx.log_records import BlockKept, BlockReserved, PointerRange
from tx.messaging_interface import MessageRows
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
        let_go_on: Callable[[Sequence[Step]], None],
        now_ms: Callable[[], int],
        spawn: Spawn,
    ) -> None:
        self._durable = durable
        self._rows = rows
        self._let_go_on = let_go_on
        self._now_ms = now_ms
        self._spawn = spawn
        self._blocks = PointerBlocks()
        self._is_renewing = False
        self._waiting: list[Step] = []

    def take(self, *, now_ms: int) -> int | None:
        """A pointer that was not handed out before, of about this time; None while there is none.
        Record its start or checkpoint before anything is waited for, so that edits enter the log in
        pointer order."""
        return self._blocks.take(now_ms=now_ms)

    def renew_if_due(self) -> None:
        """Begin to reserve the next block if few pointers are left."""
        if not self._is_renewing and self._blocks.is_due:
            self._begin_renewal()

    def wait(self, step: Step) -> None:
        """Let this go on once there are pointers again, or reserving them failed."""
        self._waiting.append(step)
        if not self._is_renewing:
            self._begin_renewal()

    async def renewed(self) -> None:
        """Wait until there are pointers again. Raises: TransactionsUnavailableError."""
        self._durable.require_running()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.wait((_set, future))
        await future

    def tick(self) -> None:
        """Give the reserved pointers back when starts no longer come. Raises:
        TransactionsUnavailableError: the service is not running."""
        state, now_ms = self._durable.state, self._now_ms()
        reserved_count = sum(block.count for block in state.blocks)
        # Not while a block is on its way to the disk: its pointers are handed out once it is
        # durable, but a crash would have dropped it from the state.
        if not self._is_renewing and self._blocks.has_surplus(
            reserved_count=reserved_count, now_ms=now_ms
        ):
            self._blocks.clear()
            none = PointerRange(state.next_block_start, state.next_block_start)
            self._durable.sync_soon(self._durable.record(BlockKept(now_ms, none)))

    def next_block(self, state: TransactionState) -> BlockReserved:
        """The edit that reserves the next block; also used when the service comes up."""
        now_ms = self._now_ms()
        block = self._blocks.next_block(
            lowest=state.next_block_start, waiting_count=len(self._waiting), now_ms=now_ms
        )
        return BlockReserved(now_ms, block)

    def came_up(self, state: TransactionState) -> None:
        """The service came up: the blocks of this state are durable."""
        self._blocks.clear()
        for block in state.blocks:
            self._blocks.add(block, now_ms=self._now_ms())
        self._rows.note_reserved(state.highest_reserved)

    def _begin_renewal(self) -> None:
        self._is_renewing = True
        self._spawn(self._renew())

    async def _renew(self) -> None:
        recovery_count = self._durable.recovery_count
        try:
            edit = self.next_block(self._durable.state)
            await self._durable.synced(self._durable.record(edit))
            if self._durable.recovery_count == recovery_count:
                # By the time at which it is there: a slow disk must not make it stale at once.
                self._blocks.add(edit.block, now_ms=self._now_ms())
                self._rows.note_reserved(edit.block.stop - 1)
        except TransactionsUnavailableError:
            pass  # what waits checks the service itself, and gets the reason
        self._is_renewing = False
        waiting, self._waiting = self._waiting, []
        self._let_go_on(waiting)


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class PointerBlocks:
    """The pointers that may be handed out now, and how many the next block should hold."""

    def __init__(self) -> None:
        self._next = self._stop = 0  # what is left of the block that is being handed out
        self._fresh_until_ms = 0  # it; pointers are passed over after that
        self._later: deque[tuple[PointerRange, int]] = deque()  # with the same time
        self._size = 0
        self._taken_count = 0
        self._since_ms = 0
        self.rest_count = 0

    def add(self, block: PointerRange, *, now_ms: int) -> None:
        """Add a durably reserved block; its pointers are above all that were added before."""
        self._later.append((block, now_ms + BLOCK_STALE_MS))
        self.rest_count += block.count
        self._size = block.count

    def clear(self) -> None:
        """Hand out none of the pointers that were added."""
        self._next = self._stop = 0
        self._later.clear()
        self.rest_count = 0

    def take(self, *, now_ms: int) -> int | None:
        """The next pointer that is not stale, always rising; None without one."""
        while self._next == self._stop or now_ms > self._fresh_until_ms:
            self.rest_count -= self._stop - self._next
            self._next = self._stop = 0
            if not self._later:
                return None
            block, self._fresh_until_ms = self._later.popleft()
            self._next, self._stop = block.start, block.stop
        pointer = self._next
        self._next += 1
        self.rest_count -= 1
        self._taken_count += 1
        return pointer

    @property
    def is_due(self) -> bool:
        """Whether so few pointers are left that more have to be reserved."""
        return self.rest_count < max(self._size, BLOCK_COUNT_MIN) // 2

    def has_surplus(self, *, reserved_count: int, now_ms: int) -> bool:
        """Whether what is reserved should be given back: all of it is stale, since starts no longer
        come. A few pointers are not worth a record."""
        newest_until_ms = self._later[-1][1] if self._later else self._fresh_until_ms
        return reserved_count > 2 * BLOCK_COUNT_MIN and now_ms > newest_until_ms

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
