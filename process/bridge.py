"""Where the two rooms meet (design §6): what each must learn of the other, and when.

Neither room imports the other. Messaging sees transactions through `LateTransactions`, which exists
before the transaction room does; `Bridge` tells messaging what a recovery of the transaction room
decided, and transactions whose rows hold readers back for too long.
"""

import logging
from collections.abc import Callable

from messaging.facts import Facts
from messaging.service import MessagingService
from messaging.transactions import VisibilityState, WritePermit
from tuff.protocol.errors import (
    StorageUnavailableError,
    TransactionsUnavailableError,
    UnavailableError,
)
from tuff.protocol.transaction import Transaction
from tx.ledger import ServiceState
from tx.manager import TransactionManager
from tx.recovery import StoreMark

log = logging.getLogger(__name__)


class LateTransactions:
    """The messaging room's view of a transaction room that is built after it."""

    def __init__(self) -> None:
        self._manager: TransactionManager | None = None

    def connect(self, manager: TransactionManager) -> None:
        self._manager = manager

    def enter(self, pointer: int) -> WritePermit:
        return self._connected().enter(pointer)

    def enter_rollback(self, pointer: int) -> WritePermit | None:
        return self._connected().enter_rollback(pointer)

    def snapshot(self) -> Transaction:
        return self._connected().snapshot()

    def snapshot_of(self, pointer: int) -> Transaction:
        return self._connected().snapshot_of(pointer)

    def holder(self, pointer: int) -> int | None:
        return self._manager.holder(pointer) if self._manager is not None else None

    def visibility_state(self) -> VisibilityState | None:
        state = self._manager.visibility_state() if self._manager is not None else None
        if state is None:
            return None
        return VisibilityState(
            read_pointer=state.read_pointer,
            write_pointer=state.write_pointer,
            in_progress=state.in_progress,
            invalid=state.invalid,
            source=state.source,
        )

    def _connected(self) -> TransactionManager:
        if self._manager is None:
            raise TransactionsUnavailableError("the transaction service has not started yet")
        return self._manager


class Bridge:
    """Lives on the event loop, beside both rooms."""

    def __init__(
        self,
        messaging: MessagingService,
        transactions: TransactionManager,
        *,
        max_block_s: float,
        keeps_messages: bool,
        store_id: Callable[[], str],
        now_ms: Callable[[], int],
    ) -> None:
        """`keeps_messages`: the store still has them after a stop."""
        self._messaging = messaging
        self._transactions = transactions
        self._keeps_messages = keeps_messages
        self._new_store_id = store_id
        self._max_block_ms = round(max_block_s * 1000)
        self._now_ms = now_ms
        self._is_open = False
        self._recorded_store_id: str | None = None

    async def tick(self) -> None:
        """Open what could not be opened yet, record which files belong together, and invalidate
        what holds readers back for too long."""
        await self._open_transactions()
        if self._transactions.status.state is ServiceState.RUNNING:
            self._release_readers()
            await self._record_mark()

    async def _open_transactions(self) -> None:
        # The mark in the message store is what tells missing transaction files from an empty
        # beginning. Opened without it, a new, empty state would call every row visible.
        if self._is_open:
            return
        state, reason = self._messaging.status
        if state != "ok":
            waits = "transactions are recovered once the message store is open, which it is not"
            self._transactions.put_off(f"{waits}: {reason}")
            return
        if self._keeps_messages and not await self._has_store_id():
            return
        self._is_open = True
        await self._transactions.open(self._beside() if self._keeps_messages else None)

    async def _has_store_id(self) -> bool:
        """Whether the message store durably has an id. It gets one before the first transaction
        file is made: then such a file beside an empty store proves that messages are lost."""
        try:
            facts = self._messaging.recorded_facts()
            if facts is not None and facts.store_id is not None:
                return True
            # The files have one already where the loss of the messages was accepted.
            found = await self._transactions.stored_id()
            await self._messaging.record_store_id(found or self._new_store_id())
        except UnavailableError as error:
            self._transactions.put_off(f"the message store can't record its id: {error}")
            return False
        return True

    def _beside(self) -> StoreMark:
        facts = self._messaging.recorded_facts() or Facts()
        return StoreMark(
            facts.store_id or "",
            facts.highest_pointer,
            self._messaging.recorded_lsn(),
            self._messaging.recorded_last(),
            frozenset(self._messaging.indexed_pointers()),
        )

    async def _record_mark(self) -> None:
        store_id = self._transactions.store_id
        if self._recorded_store_id == store_id:
            return  # later blocks ride along with the batches of messages
        try:
            # With the pointers that the transactions noted, which are those that are durable: one
            # that is reserved just now may be lost with its log, and older files were told.
            await self._messaging.record_store_id(store_id)
        except StorageUnavailableError as error:
            log.warning("which transaction files belong to the store is not recorded: %s", error)
        else:
            self._recorded_store_id = store_id

    def _release_readers(self) -> None:
        late = self._messaging.published_by(self._now_ms() - self._max_block_ms)
        for transaction_id in self._transactions.release_readers(late):
            log.warning("transaction %d held readers back for too long", transaction_id)
