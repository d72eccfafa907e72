"""The message store as one component: how its parts fit together, from open to close.

Routes and the server process call the parts (`publisher`, `polls`, `topics`, ...). The transaction
service calls `rows`. Everything runs on one event loop and needs no locks; what blocks goes through
the worker threads that the `OpenStore` was given.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from messaging.read.offsets import TopicOffsets
from messaging.read.poll import Polls
from messaging.retention.cleaner import RetentionCleaner
from messaging.retention.holds_and_positions import HoldsAndPositions
from messaging.retention.region_observers import RegionObservers
from messaging.settings import MessagingSettings
from messaging.storage.engine import StoreError
from messaging.storage.loading import load
from messaging.storage.metadata import StoreMetadata
from messaging.storage.open_store import OpenStore
from messaging.storage.store_ownership import StoreOwnership
from messaging.storage.store_state import StoreState
from messaging.topic_changes import TopicChanges
from messaging.transactions_interface import TransactionView
from messaging.write.group_commit import GroupCommitter, Write
from messaging.write.publish import Publisher
from messaging.write.settle_and_mark import TransactionRows
from messaging.write.write_batch import WriteBatch
from tuff.protocol.errors import UnavailableError
from tuff.protocol.ids import Offset

log = logging.getLogger(__name__)

CLOCK_MARK_INTERVAL_MS = 60_000  # ms; an idle server still records that it lived until about now


def _no_reason() -> str | None:
    return None


class MessagingService:
    """Topics, messages and long polls over one store.

    `why_not_begin` says why an empty store must not be taken for a beginning, and `lack_of_space`
    why the disk should take no more messages; both in a sentence, or None. `ownership` is None for
    a store that no other server can take over.
    """

    def __init__(
        self,
        store: OpenStore,
        state: StoreState,
        committer: GroupCommitter,
        settings: MessagingSettings,
        *,
        observe: Callable[[str, float], None],
        why_not_begin: Callable[[], str | None] = _no_reason,
        lack_of_space: Callable[[], str | None] = _no_reason,
        ownership: StoreOwnership | None = None,
    ) -> None:
        self._load = partial(load, why_not_begin=why_not_begin)
        self._lack_of_space = lack_of_space
        self.store, self.state, self._committer = store, state, committer
        self.ownership = ownership
        self.publisher = Publisher(state, committer)
        self.polls = Polls(store, state, settings, observe=observe)
        self.offsets = TopicOffsets(store, state, settings)
        self.topics = TopicChanges(store, state, committer, settings, self.offsets)
        self.holds_and_positions = HoldsAndPositions(store, state, committer, settings)
        observers = None
        if settings.observer_directory:
            directory = Path(settings.observer_directory)
            observers = RegionObservers(directory, store, state, committer)
        self.rows = TransactionRows(
            state, committer, self.publisher, self.polls.transaction_readers, observers
        )
        self.cleaner = RetentionCleaner(store, state, committer, self.rows, observers)
        self._is_loaded = False
        self._is_running = False
        self._ran = asyncio.Event()
        self._written_at_ms = 0
        self._recovered_mark_ms: int | None = None

    async def open(self, transactions: TransactionView) -> None:
        """Open the store and read what is kept in memory. If the store can't be opened or read, the
        component is down with a reason, and `tick` tries again.

        Raises:
            DirectoryLockedError: another process, or this one, has the store open.
        """
        self.state.transactions = transactions
        await self._open_store()

    async def run(self) -> None:
        """Write what comes in, until `close`."""
        self._is_running = True
        try:
            await self._committer.run()
        finally:
            self._ran.set()

    async def tick(self) -> None:
        """Do what is due: open a store that failed again, retry rollback marks that failed, write
        what waits for a batch, record the time."""
        # A store that fails to write is closed, and reads fail with it. So no message may fill the
        # disk.
        self._committer.lack = self._lack_of_space()
        if not self._is_loaded:
            await self._open_store()
        elif not self.store.is_up:
            await self._committer.recover()
        if self.store.is_up:
            await self.rows.retry_marks()
            await self._flush_if_due()

    async def close(self) -> None:
        """End the long polls, write what waits, and close the store."""
        self.polls.stop_waiting()
        if self.ownership is not None:
            self.ownership.close()
        is_writing = self._is_running and not self._ran.is_set()
        if is_writing and self.store.is_up and self.state.has_unwritten:
            await self._flush_quietly()
        self._committer.close()
        if is_writing:
            await self._ran.wait()
        await self.store.close("the server is stopping")

    @property
    def status(self) -> tuple[str, str | None]:
        """`("ok", None)`, or `("down", reason)`."""
        return ("ok", None) if self.store.is_up else ("down", self.store.reason)

    @property
    def recovered_mark_ms(self) -> int | None:
        """When the server last ran, as the opened store recorded it; None for a new store."""
        return self._recovered_mark_ms

    @property
    def last_sweep(self) -> tuple[int, str | None] | None:
        """When the last retention pass that knew the transactions ran, in ms, and which transaction
        state it used."""
        metadata = self.state.metadata
        if metadata.swept_at_ms is None:
            return None
        return metadata.swept_at_ms, metadata.swept_with

    # What the server process compares with the transaction files beside the store.

    def recorded_metadata(self) -> StoreMetadata | None:
        """What the store durably remembers of itself and of the transaction files that belong to
        it; None for an empty store. Raises: StorageUnavailableError."""
        self.store.require_up()
        return self.state.durable_metadata

    def recorded_lsn(self) -> int | None:
        """Up to which edit the transactions were durable when the store was last written; None if
        the store does not say. Raises: StorageUnavailableError."""
        self.store.require_up()
        return self.state.last_batch.seen_lsn

    def recorded_last(self) -> Offset:
        """The offset up to which messages were written. Raises: StorageUnavailableError."""
        self.store.require_up()
        return self.state.last_batch.last

    async def record_store_id(self, store_id: str) -> None:
        """Record which transaction files belong to this store, and what else waits, durably."""
        self.state.metadata = replace(self.state.metadata, store_id=store_id)
        await self._flush()

    async def _open_store(self) -> None:
        try:
            loaded = await self.store.open(self._load)
        except StoreError as error:
            self.store.reason = str(error)
            return
        self.state.fill(loaded)
        self._recovered_mark_ms = loaded.last_batch.clock_ms
        self._written_at_ms = self.state.now_ms()
        self._is_loaded = True

    async def _flush_if_due(self) -> None:
        if self._committer.lack is not None:
            return
        now_ms = self.state.now_ms()
        if self.state.has_unwritten or now_ms - self._written_at_ms >= CLOCK_MARK_INTERVAL_MS:
            self._written_at_ms = now_ms
            await self._flush_quietly()

    async def _flush_quietly(self) -> None:
        try:
            await self._flush()
        except UnavailableError as error:
            log.warning("what waited for a write is still waiting: %s", error)

    async def _flush(self) -> None:
        await self._committer.submit(Write(WriteBatch.force, internal=True))
