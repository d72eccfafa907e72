"""The message store as one component: its parts, and how it is opened, ticked and closed.

Routes and the server process call the parts (`publisher`, `polls`, `topics`, ...). The transaction
service calls `rows`. The server process runs `committer.run()`, which writes, and `delayed.run()`,
which lets delayed messages enter their topics. Everything lives on one event loop and needs no
locks; blocking calls run in the threads of the `OpenStore`.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kernel.log_events import event
from messaging.disk_use import DiskUse
from messaging.engines.engine_interface import StoreError
from messaging.engines.row_store import Store
from messaging.engines.space_on_disk import SpaceOnDisk
from messaging.groups.consumer_coordinator import GroupCoordinator
from messaging.groups.share_coordinator import ShareGroups
from messaging.log.loading import Loaded, load, load_member
from messaging.log.read_lease import StoreHolderCheck
from messaging.log.region_observers import RegionObservers
from messaging.log.state_in_memory import OpenStore, StoreState
from messaging.log.store_end import MessagesLostError, StoreEnd, StoreEndFile, loss_advice
from messaging.model.row_format import StoreMetadata
from messaging.read.counts import MessageCounts
from messaging.read.explanation_facts import Explainer
from messaging.read.inspection import TopicInspection
from messaging.read.long_poll_of_topics import PartitionWaits
from messaging.read.lost_messages import LostMessages
from messaging.read.offsets_and_splits import TopicOffsets
from messaging.read.poll import Polls
from messaging.retention.cleaner import RetentionCleaner
from messaging.retention.compaction import Compaction
from messaging.retention.holds_and_positions import HoldsAndPositions
from messaging.settings import GroupSettings, MessagingSettings
from messaging.topic_changes import TopicChanges
from messaging.topic_overview import TopicOverview
from messaging.transactions_interface import TransactionView
from messaging.write.delayed_messages import DelayedMessages
from messaging.write.publish import Publisher
from messaging.write.transaction_rows import TransactionRows
from messaging.write.write_batch import WriteBatch
from messaging.write.write_queue import Write, WriteQueue
from tuff.protocol.errors import UnavailableError
from tuff.protocol.ids import MessageId, Offset
from tuff.protocol.sentences import counted

if TYPE_CHECKING:
    from messaging.read.archive import ArchiveReader

log = logging.getLogger(__name__)

CLOCK_RECORD_INTERVAL_MS = 60_000  # ms; an idle server still records that it lived until about now


# ms between attempts on a full disk, each of which may leave an empty file, and on a store that has
# lost messages, which each attempt writes again
OPEN_AGAIN_MS = 5_000


def _observers(
    settings: MessagingSettings, store: OpenStore, state: StoreState, committer: WriteQueue
) -> RegionObservers | None:
    if not settings.observer_directory:
        return None
    return RegionObservers(Path(settings.observer_directory), store, state, committer)


class MessagingService:
    """Topics, messages and long polls over one store.

    `new_store_refusal` returns why an empty store must not be accepted as a new one, in a sentence,
    or None. `end_file`: where it is recorded how far the store was written; None for a store that
    keeps nothing, or that several servers write. `holder_check` is None for a store that no other
    server can take over. `archive`: where reads continue that start before the log. A server of a
    cluster opens without any topic; `messaging/topic_handover.py` adds and removes them.
    """

    _is_loaded = False
    _has_lost_batches = False  # as the last attempt to open the store found
    _is_lost = False  # for good: the transaction files prove it
    _records_accepted_loss = False

    def __init__(
        self,
        store: OpenStore,
        state: StoreState,
        committer: WriteQueue,
        settings: MessagingSettings,
        *,
        observe: Callable[[str, float], None],
        groups: GroupSettings = GroupSettings(),  # noqa: B008 - a frozen value
        new_store_refusal: Callable[[], str | None] = lambda: None,
        end_file: StoreEndFile | None = None,
        space: SpaceOnDisk = SpaceOnDisk(),  # noqa: B008 - a frozen value
        holder_check: StoreHolderCheck | None = None,
        archive: "ArchiveReader | None" = None,
    ) -> None:
        self._load: Callable[[Store], Loaded] = load_member
        if not state.topics.is_shared:
            self._load = partial(load, new_store_refusal=new_store_refusal, end_file=end_file)
        self._end_file = end_file
        self._space = space
        committer.make_room = self._make_room
        self._open_again_ms = 0
        self.store, self.state, self.committer = store, state, committer
        self.holder_check = holder_check
        self.publisher = Publisher(state, committer, in_thread=store.in_thread_read)
        self.offsets = TopicOffsets(store, state, archive)
        self.counts = MessageCounts(store, state)
        self.inspection = TopicInspection(store, state, self.counts)
        self.topics = TopicChanges(store, state, committer, settings, self.offsets)
        self.holds_and_positions = HoldsAndPositions(
            store, state, committer, settings, self.offsets, self.counts
        )
        observers = _observers(settings, store, state, committer)
        self.rows = TransactionRows(store, state, committer, self.publisher, observers)
        self.polls = Polls(store, state, self.rows, archive=archive, observe=observe)
        self.partition_waits = PartitionWaits(self.polls, store, state)
        self.delayed = DelayedMessages(store, state, committer, settings, observe=observe)
        self.lost_messages = LostMessages(store, state)
        self.explainer = Explainer(store, state, self.lost_messages, archive=archive)
        self._make_groups(groups, settings)
        self.overview = TopicOverview(
            self.topics, self.offsets, self.holds_and_positions, self.groups
        )
        parts_of_pass = (self.rows, self.topics, observers, Compaction(store, space.free_bytes))
        self.cleaner = RetentionCleaner(
            store, state, committer, *parts_of_pass, before_deletion=self._before_deletion
        )
        self.disk_use = DiskUse(store, state, space, self.cleaner)
        self._written_at_ms = 0

    def _make_groups(self, groups: GroupSettings, settings: MessagingSettings) -> None:
        parts = (self.publisher, self.polls, self.topics, self.offsets, self.lost_messages)
        self.groups = GroupCoordinator(
            self.state, self.committer, *parts, self.counts, groups, log_ttl_s=settings.max_ttl
        )
        self.share_groups = ShareGroups(
            self.store, self.state, self.committer, *parts, settings, window=groups.share_window
        )

    async def open(self, transactions: TransactionView) -> None:
        """Open the store and load the state. If that fails, the component is down with a reason,
        and `tick` tries again.

        Raises:
            DirectoryLockedError: another process, or this one, has the store open.
        """
        self.state.transactions = transactions
        self._look_at_space()
        await self._make_room()
        await self._open_store()

    async def tick(self) -> None:
        """Open a store that failed again, retry rollbacks that failed, write changes that wait
        for a batch, and record the time."""
        self._look_at_space()
        if not self.store.is_up and not self._is_lost:
            await self._open_again()
        if self.store.is_up:
            # The timers of the event loop do not count the time in which the machine was suspended.
            self.state.due_times.changed.set()
            await self.rows.retry_rollbacks()
            await self.groups.tick()
            self.share_groups.forget_moved()
            await self._flush_if_due()
            await self._record_accepted_loss()

    def stop_waiting(self) -> None:
        """Answer every request that waits for messages, now and from now on."""
        self.share_groups.write_attempts()
        self.polls.stop_waiting()

    async def close(self) -> None:
        """End the long polls, write the changes that wait, and close the store."""
        self.stop_waiting()
        self.delayed.close()
        if self.holder_check is not None:
            self.holder_check.close()
        if self.committer.is_running and self.store.is_up and self.state.has_unwritten_changes:
            await self._flush_quietly()
        await self.committer.close()
        await self.store.close("the server is stopping", closed=self._end_recorder())

    @property
    def status(self) -> tuple[str, str | None]:
        """`("ok", None)`, or `("down", reason)`."""
        if not self.store.is_up:
            return "down", self.store.reason
        failing = self.committer.failed_writes.reason
        return ("ok", None) if failing is None else ("down", failing)

    @property
    def last_sweep(self) -> tuple[int, str | None] | None:
        """The time in ms of the last retention pass that knew the transactions, and the name of the
        transaction state that it used."""
        metadata = self.state.metadata
        if metadata.swept_at_ms is None:
            return None
        return metadata.swept_at_ms, metadata.swept_with

    # What the server process compares with the transaction files beside the store.

    def recorded_metadata(self) -> StoreMetadata | None:
        """The durable metadata of the store; None for an empty store. Raises:
        StorageUnavailableError."""
        self.store.require_up()
        return self.state.durable_metadata

    def recorded_lsn(self) -> int | None:
        """The last edit of the transaction log that was durable when the store was last written;
        None if the store does not say. Raises: StorageUnavailableError."""
        self.store.require_up()
        return self.state.last_batch.seen_lsn

    def recorded_last(self) -> Offset:
        """The offset up to which messages were written. Raises: StorageUnavailableError."""
        self.store.require_up()
        return self.state.last_batch.last

    async def record_end(self) -> None:
        """Record how far the store is written, where its engine keeps what it has."""
        await self.store.in_thread_read(self._end_recorder())

    async def lose(self, reason: str) -> None:
        """Be down: another store proves that this one lacks acknowledged messages. It stays down
        until the loss is accepted."""
        end = self._end()
        if self._end_file is None or end is None:
            return
        lost = replace(end, batch_number=end.batch_number + 1)
        await self.store.in_thread_read(partial(self._end_file.write, lost))
        self._is_lost = True
        await self.store.close(f"{reason}; {loss_advice(lost.loss_name)}")

    async def record_store_id(self, store_id: str) -> None:
        """Record durably which transaction files belong to this store, and the other changes that
        wait for a batch."""
        self.state.metadata = replace(self.state.metadata, store_id=store_id)
        await self._flush()

    async def _before_deletion(self) -> None:
        """Count what groups have not read of what is about to be deleted, and delete groups that
        are not used any more."""
        consumer_groups = await self.groups.note_lost_and_expire()
        self.lost_messages.end_pass({*consumer_groups, *await self.share_groups.note_lost()})

    def _end(self) -> StoreEnd | None:
        last, metadata = self.state.last_batch, self.state.durable_metadata
        if not self._is_loaded or metadata is None or metadata.store_id is None:
            return None
        return StoreEnd(store_id=metadata.store_id, batch_number=last.batch_number, last=last.last)

    def _end_recorder(self) -> Callable[[], None]:
        """A call that records how far the store is written as of now. Blocks."""
        end = self._end()
        if self._end_file is None or end is None:
            return lambda: None
        return partial(self._end_file.write, end)

    def _look_at_space(self) -> None:
        # A store that fails to write is closed, and then reads fail too. So no message may fill the
        # disk.
        self.committer.lack_of_space = self._space.lack()
        self.committer.lack_of_last_space = self._space.lack_of_last()

    async def _make_room(self) -> None:
        """Let writes that make room go on while the disk is full, as of now and not as of the last
        tick."""
        self._look_at_space()
        if self.committer.lack_of_last_space is not None:
            await self._space.release_spare()
            self._look_at_space()

    async def _open_again(self) -> None:
        await self._make_room()
        if self.committer.lack_of_last_space is not None or self._has_lost_batches:
            now_ms = self.state.now_ms()
            if now_ms < self._open_again_ms:
                return
            self._open_again_ms = now_ms + OPEN_AGAIN_MS
        if self._is_loaded:
            await self.committer.recover()
        else:
            await self._open_store()

    async def _open_store(self) -> None:
        try:
            loaded = await self.store.open(self._load)
        except StoreError as error:
            self.store.reason = str(error)
            self._has_lost_batches = isinstance(error, MessagesLostError)
            return
        self.state.load(loaded)
        self.lost_messages.start()
        self._records_accepted_loss = loaded.has_accepted_loss
        self._written_at_ms = self.state.now_ms()
        self._is_loaded = True
        last, pending = MessageId(*self.state.last_batch.last), len(self.state.index.pointers())
        log.info(
            "messages are up: written up to %s, rows of %s undecided",
            last.hex(),
            counted(pending, "transaction"),
            extra=event("messages_up", last=last.hex(), undecided=pending),
        )

    async def _flush_if_due(self) -> None:
        if self.committer.lack_of_space is not None:
            return
        if self.committer.failed_writes.reason is not None:
            # Health is down until a write succeeds, and there may be no other one.
            with suppress(UnavailableError):
                await self._flush()
            return
        now_ms = self.state.now_ms()
        if (
            self.state.has_unwritten_changes
            or now_ms - self._written_at_ms >= CLOCK_RECORD_INTERVAL_MS
        ):
            self._written_at_ms = now_ms
            await self._flush_quietly()

    async def _record_accepted_loss(self) -> None:
        """Let no later loss have the name of the accepted one."""
        if self._records_accepted_loss:
            with suppress(UnavailableError):
                await self._flush()
                await self.record_end()
                self._records_accepted_loss = False

    async def _flush_quietly(self) -> None:
        try:
            await self._flush()
        except UnavailableError as error:
            log.warning(
                "changes of the message store still wait to be written: %s",
                error,
                extra=event("changes_not_written"),
            )

    async def _flush(self) -> None:
        await self.committer.submit(Write(WriteBatch.force, internal=True))
