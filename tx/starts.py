"""Starts and checkpoints: whoever needs a new pointer (design §4, Pointers)."""

import asyncio

from tuff.protocol.errors import OverloadedError, TransactionsUnavailableError
from tuff.protocol.transaction import TransactionType
from tx import decisions
from tx.blocks import PointerBlocks
from tx.edits import BlockKept, BlockReserved, EpochBegun, Started, StartedWithLease
from tx.endings import Endings
from tx.ledger import Ledger
from tx.records import OpenTransaction
from tx.settings import OPEN_COUNT_MAX
from tx.state import TransactionState
from tx.surroundings import Surroundings


class Starts:
    """Hands out pointers in the order in which their edits enter the log."""

    def __init__(
        self,
        ledger: Ledger,
        endings: Endings,
        around: Surroundings,
    ) -> None:
        self._ledger = ledger
        self._endings = endings
        self._leases = around.leases
        self._rows = around.rows
        self._settings = around.settings
        self._now_ms = around.now_ms
        self._spawn = around.spawn
        self._counters = around.counters
        self._blocks = PointerBlocks()
        self._renewal: asyncio.Future[None] | None = None
        self._waiting_count = 0

    async def start(
        self,
        kind: TransactionType,
        timeout_s: float | None,
        client: str,
        *,
        lease_s: float | None = None,
    ) -> OpenTransaction:
        """See `TransactionManager.start`."""
        lives_ms = decisions.timeout_ms(self._settings, kind, timeout_s)
        lease_ms = decisions.lease_ms(self._settings, kind, lease_s)
        decisions.check_client(client)
        self.require_room()
        while (pointer := self._blocks.take()) is None:
            await self.renewed()
        # Nothing is waited for from here on, so that edits enter the log in pointer order.
        return self.record(
            decisions.start(
                self._ledger.state,
                pointer,
                kind=kind,
                lives_ms=lives_ms,
                client=client,
                now_ms=self._now_ms(),
                lease_ms=lease_ms,
            )
        )

    def require_room(self) -> None:
        """Raises: OverloadedError: too many are in progress, or too much waits for the disk."""
        self._ledger.require_room()
        if len(self._ledger.state.open) >= OPEN_COUNT_MAX:
            raise OverloadedError(f"{OPEN_COUNT_MAX} transactions are in progress; end some first")

    def take_pointer(self) -> int | None:
        """One that nobody was given; None while there is none. Record its start before anything is
        waited for."""
        return self._blocks.take()

    def record(self, edit: Started | StartedWithLease | EpochBegun) -> OpenTransaction:
        """The transaction that this starts."""
        self._counters.starts += 1
        self._ledger.record(edit)
        opened = self._ledger.state.open[edit.pointer]
        self._leases.begin(opened)
        self._renew_if_due(now_ms=edit.at_ms)
        return opened

    async def checkpoint(self, pointer: int) -> OpenTransaction:
        """See `TransactionManager.checkpoint`."""
        while True:
            # What is found holds until the next wait, so it is looked for again after each.
            opened = await self._endings.open_now(pointer)
            new_pointer = self._blocks.take()
            if new_pointer is not None:
                break
            await self.renewed()
        self._ledger.require_room()
        now_ms = self._now_ms()
        lsn = self._ledger.record(decisions.checkpoint(opened, new_pointer, now_ms=now_ms))
        checkpointed = self._ledger.state.open[opened.transaction_id]
        self._renew_if_due(now_ms=now_ms)
        await self._endings.durable_soon(lsn)
        return checkpointed

    def tick(self) -> None:
        """Give back what is reserved, but for a few, when starts no longer come. Raises:
        TransactionsUnavailableError: the service is not running."""
        state, now_ms = self._ledger.state, self._now_ms()
        reserved_count = sum(block.count for block in state.blocks)
        # A block that is on its way to the disk is not given back: it is handed out once it is
        # there, and a crash would have forgotten that it could be.
        if self._renewal is None and self._blocks.has_surplus(
            reserved_count=reserved_count, now_ms=now_ms
        ):
            self._ledger.want(self._ledger.record(BlockKept(now_ms, self._blocks.keep_few())))

    def first_block(self, state: TransactionState) -> BlockReserved:
        """What a service that comes up reserves."""
        return self._next_block(state)

    def opened(self, state: TransactionState) -> None:
        """The service came up: the blocks of this state are durable."""
        self._blocks.clear()
        for block in state.blocks:
            self._blocks.add(block)
        self._rows.note_reserved(state.highest_reserved)

    def closed(self) -> None:
        """The service went down: what is reserved now is decided by recovery."""
        self._blocks.clear()

    def _next_block(self, state: TransactionState) -> BlockReserved:
        now_ms = self._now_ms()
        block = self._blocks.next_block(
            lowest=state.next_block_start, waiting_count=self._waiting_count, now_ms=now_ms
        )
        return BlockReserved(now_ms, block)

    def _renew_if_due(self, *, now_ms: int) -> None:
        if self._renewal is None and self._blocks.is_due(now_ms=now_ms):
            self._begin_renewal()

    async def renewed(self) -> None:
        """Wait until there are pointers again. Raises: TransactionsUnavailableError."""
        self._ledger.require_running()
        self._waiting_count += 1
        try:
            await self._endings.bounded(_done(self._renewal or self._begin_renewal()))
        finally:
            self._waiting_count -= 1

    def _begin_renewal(self) -> asyncio.Future[None]:
        renewal = self._renewal = asyncio.get_running_loop().create_future()
        self._spawn(self._renew(renewal))
        return renewal

    async def _renew(self, done: asyncio.Future[None]) -> None:
        epoch = self._ledger.epoch
        try:
            edit = self._next_block(self._ledger.state)
            await self._ledger.durable(self._ledger.record(edit))
            if self._ledger.epoch == epoch:
                if self._blocks.is_stale(now_ms=self._now_ms()):
                    self._blocks.clear()
                self._blocks.add(edit.block)
                self._rows.note_reserved(edit.block.stop - 1)
        except TransactionsUnavailableError:
            pass  # those who wait for it ask the service themselves, and are told why
        finally:
            self._renewal = None
            done.set_result(None)


async def _done(future: asyncio.Future[None]) -> None:
    await asyncio.shield(future)
