"""Connects the message store and the transaction service at the start and while they run.

It recovers transactions once the message store is open, and lets each store record which files of
the other belong to it.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from messaging.model.row_format import StoreMetadata
from messaging.service import MessagingService
from metadata.store_interface import MetadataError
from tuff.protocol.errors import StorageUnavailableError, UnavailableError
from tx.durable_state import ServiceState
from tx.mixed_backups import RecordedFiles
from tx.service import TransactionManager

if TYPE_CHECKING:
    from process.cluster_member import ClusterMember

log = logging.getLogger(__name__)


class ComponentLink:
    """Opens transactions after messages, and keeps the record of which files belong together. Lives
    on the event loop."""

    def __init__(
        self,
        messaging: MessagingService,
        transactions: TransactionManager,
        *,
        keeps_messages: bool,
        new_store_id: Callable[[], str],
        cluster: "ClusterMember | None",
    ) -> None:
        """`keeps_messages`: the store is durable."""
        self._cluster = cluster
        self._messaging = messaging
        self._transactions = transactions
        self._keeps_messages = keeps_messages
        self._new_store_id = new_store_id
        self._is_open = False
        self._recorded_store_id: str | None = None

    async def tick(self) -> None:
        """Open transactions that could not be opened yet, and record which files belong
        together."""
        await self._open_transactions()
        if self._transactions.status.state is ServiceState.RUNNING:
            await self._record_files()

    async def _open_transactions(self) -> None:
        # Only with the message store can missing transaction files be distinguished from a first
        # start. Opened without it, a new and empty state would make every row visible.
        if self._is_open:
            return
        state, reason = self._messaging.status
        if state != "ok":
            waits = "transactions are recovered once the message store is open, which it is not"
            self._transactions.put_off(f"{waits}: {reason}")
            return
        if self._keeps_messages and not await self._has_store_id():
            return
        if self._cluster is not None:
            await self._open_leading(self._cluster)
            return
        self._is_open = True
        await self._transactions.open(self._recorded_files() if self._keeps_messages else None)
        if self._transactions.durable.lost_messages is not None:
            await self._messaging.lose(self._transactions.durable.lost_messages)

    async def _open_leading(self, cluster: "ClusterMember") -> None:
        leadership = cluster.tenancy()
        if leadership is None:
            self._transactions.put_off(cluster.why_not_leading())
            return
        if not cluster.transactions.may_open(leadership.epoch):
            self._transactions.put_off("the other servers have to acknowledge the new leader first")
            return
        try:
            highest = await cluster.take_files_record()
        except MetadataError as error:
            self._transactions.put_off(f"it is not known whether there were transactions: {error}")
            return
        self._is_open = True
        # The message store of a server knows of the files only what they were while it led.
        recorded = RecordedFiles(cluster.cluster_id, highest_reserved=highest)
        await self._transactions.open(recorded, leadership=leadership)

    async def _has_store_id(self) -> bool:
        """Whether the message store has a durable id. It gets one before the first transaction
        file is written. So such a file beside an empty store proves that messages are lost."""
        try:
            metadata = self._messaging.recorded_metadata()
            if metadata is not None and metadata.store_id is not None:
                return True
            if self._cluster is not None:
                # Without a look at the files: a standby serves while the shared directory hangs.
                found: str | None = self._cluster.cluster_id
            else:
                # They have one already where the loss of the messages was accepted.
                found = await self._transactions.durable.stored_id()
            await self._messaging.record_store_id(found or self._new_store_id())
            if found:
                await self._messaging.record_end()  # so that no later loss has the name of this one
        except UnavailableError as error:
            self._transactions.put_off(f"the message store can't record its id: {error}")
            return False
        return True

    def _recorded_files(self) -> RecordedFiles:
        metadata = self._messaging.recorded_metadata() or StoreMetadata()
        return RecordedFiles(
            metadata.store_id or "",
            metadata.highest_pointer,
            self._messaging.recorded_lsn(),
            self._messaging.recorded_last(),
            frozenset(self._messaging.rows.indexed_pointers()),
        )

    async def _record_files(self) -> None:
        store_id = self._transactions.durable.store_id
        if self._recorded_store_id == store_id:
            return  # later pointer blocks are recorded with the batches of messages
        try:
            if self._cluster is not None:
                await self._cluster.record_transaction_files()
            # This records the durable pointer blocks too. A block that is still being reserved must
            # not be among them: if it is lost with the log, the files seem older than the messages.
            await self._messaging.record_store_id(store_id)
        except (StorageUnavailableError, MetadataError) as error:
            log.warning("which transaction files belong to the store is not recorded: %s", error)
        else:
            self._recorded_store_id = store_id
