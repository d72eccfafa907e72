"""What is known of the store in memory: read at the start, changed as batches become durable.

Everything here lives on the event loop. All parts of the component share the one `StoreState`.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import itemgetter

from messaging.read.tail_cache import TailCache
from messaging.storage.loading import Loaded
from messaging.storage.metadata import LastBatch, StoreMetadata
from messaging.storage.open_store import OpenStore
from messaging.storage.pointer_index import PointerIndex
from messaging.storage.rows import BEFORE_ALL, LAST_BATCH_KEY, METADATA_KEY
from messaging.topics import Topic, TopicRecord, TopicRegistry
from messaging.transactions_interface import TransactionView
from messaging.write.write_batch import Sequencer, WriteBatch
from tuff.protocol.ids import Offset, TopicId

SETTLED_PER_BATCH_MAX = 10_000  # index rows; bounds what a batch of publishes carries besides


class StoreState:
    """Topics, pointer index, sequencer, metadata, last batch, and the newest rows of the topics.

    `may_delete` tells whether the clock can be trusted so far that messages may expire for good.
    `transactions` is given when the component opens.
    """

    transactions: TransactionView

    def __init__(
        self,
        *,
        now_ms: Callable[[], int],
        may_delete: Callable[[], bool],
        tail_bytes_max: int,
        longest_transaction_s: float,
    ) -> None:
        self.topics = TopicRegistry()
        self.index = PointerIndex()
        self.sequencer = Sequencer()
        self.tail_cache = TailCache(bytes_max=tail_bytes_max)
        self.idle_intervals = IdleIntervals()
        self.high_water_mark = BEFORE_ALL  # readers are shown nothing behind this offset
        self.last_batch = LastBatch()
        self._attempted = LastBatch()  # what the newest batch writes, whatever becomes of it
        self.metadata = StoreMetadata()
        self._durable_metadata: StoreMetadata | None = None  # until the first batch wrote them
        self.now_ms = now_ms
        self.may_delete = may_delete
        self._longest_transaction_ms = round(longest_transaction_s * 1000)
        self._batch_number = 0
        self.seen_lsn: int | None = None  # of the transactions, durably

    def fill(self, loaded: Loaded) -> None:
        """Take in what an opened store holds."""
        for topic_id, record in loaded.topics.items():
            self.topics.load(topic_id, record)
        self.index.load(loaded.index, now_ms=self.now_ms())
        self.last_batch = self._attempted = loaded.last_batch
        self.metadata, self._durable_metadata = loaded.metadata or StoreMetadata(), loaded.metadata
        self.note_longest_transaction(self._longest_transaction_ms)
        self._batch_number = loaded.last_batch.batch_number
        self.seen_lsn = loaded.last_batch.seen_lsn
        self.sequencer.raise_above(loaded.last_batch.last)
        self.idle_intervals.begin(loaded.last_batch.last)
        for each in self.topics:
            if each.durable is not None:
                # A log start that a retention pass raised lies ahead of a clock that was set back
                # since. A message that got an id below it was acknowledged, and no reader would see
                # it.
                self.sequencer.raise_above(each.durable.log_start.offset)
        # Likewise of what observers were handed: they would remove the message at once.
        self.sequencer.raise_above(Offset(self.metadata.handed_ms, 0))
        self.high_water_mark = self.sequencer.last
        self.tail_cache.begin(self.high_water_mark)

    @property
    def possible_last_batches(self) -> tuple[LastBatch, LastBatch]:
        """What a store that failed can have as its last batch: the last durable one, or the
        newest."""
        return self.last_batch, self._attempted

    def reopened(self, last_batch: LastBatch) -> None:
        """The store failed and was opened again: go on above all that is there, and keep in memory
        no rows but those that become durable from now on."""
        self.sequencer.raise_above(last_batch.last)
        self.idle_intervals.begin(last_batch.last)
        self.tail_cache.begin(self.high_water_mark)

    def note_longest_transaction(self, lived_ms: int) -> None:
        """A transaction lives this long, or may; recorded with the next batch. Retention keeps a
        stored payload for the longest life that any transaction ever had."""
        longest_ms = max(self.metadata.longest_transaction_ms, lived_ms)
        self.metadata = replace(self.metadata, longest_transaction_ms=longest_ms)

    def expiry_ms(self) -> int:
        """The time by which messages expire. Region observers may have removed what had expired by
        the time they were handed, so a clock that was set back since must not show what is left."""
        return max(self.now_ms(), self.metadata.handed_ms)

    @property
    def durable_metadata(self) -> StoreMetadata | None:
        """The metadata on the disk, or None while the store is empty."""
        return self._durable_metadata

    @property
    def has_unwritten(self) -> bool:
        """Whether something waits for the next batch."""
        return self.metadata != self._durable_metadata or self.index.settling_count > 0

    def new_batch(self) -> WriteBatch:
        """An empty batch of a number that was never used before."""
        self._batch_number += 1
        return WriteBatch(number=self._batch_number, now_ms=self.now_ms(), sequencer=self.sequencer)

    def finish(self, batch: WriteBatch) -> None:
        """Put into a batch what every batch carries: the last-batch row, changed metadata, and the
        deletion of settled index rows."""
        settling = self.index.settling(count_max=SETTLED_PER_BATCH_MAX)
        for _, keys in settling:
            for key in keys:
                batch.delete(key)
        if self.metadata != self._durable_metadata:
            batch.put(METADATA_KEY, self.metadata.to_bytes(METADATA_KEY))
        last_batch = LastBatch(
            batch_number=batch.number,
            last=batch.last,
            clock_ms=self._clock_ms(),
            seen_lsn=self.seen_lsn,
        )
        self._attempted = last_batch
        batch.put(LAST_BATCH_KEY, last_batch.to_bytes(LAST_BATCH_KEY))
        settled = [pointer for pointer, _ in settling]
        batch.on_durable(partial(self._finished, batch, last_batch, self.metadata, settled))

    def change_topic(
        self, batch: WriteBatch, topic: Topic, record: TopicRecord, *, key: bytes
    ) -> None:
        """Write a topic's row; decisions go by it at once, readers once it is durable."""
        batch.put(key, record.to_bytes(key))
        self.change_record(batch, topic, record)

    def change_record(self, batch: WriteBatch, topic: Topic, record: TopicRecord) -> None:
        """The same for what stands in other rows, which the caller writes."""
        before = topic.decided
        topic.decided = record
        batch.on_durable(partial(_is_durable, topic, record))
        batch.on_lost(partial(_is_lost, topic, before))

    def _finished(
        self, batch: WriteBatch, last_batch: LastBatch, metadata: StoreMetadata, settled: list[int]
    ) -> None:
        self.last_batch = last_batch
        self._durable_metadata = metadata
        self.index.settled(settled)
        self.high_water_mark = max(self.high_water_mark, last_batch.last)
        self.idle_intervals.passed(last_batch.last, since_ms=batch.now_ms)
        self.tail_cache.take(batch.puts, batch.new_rows, high_water_mark=self.high_water_mark)

    def _clock_ms(self) -> int | None:
        # A clock that jumped far ahead must not be recorded before it is confirmed: the next start
        # would find nothing wrong with it, and the retention pass would then expire everything.
        before = self.last_batch.clock_ms
        if not self.may_delete():
            return before
        return max(before or 0, self.now_ms()) or None


def require_topic(store: OpenStore, state: StoreState, topic: TopicId) -> tuple[Topic, TopicRecord]:
    """A topic that exists, and its durable record.

    Raises: StorageUnavailableError, TopicNotFoundError, DamagedRecordError.
    """
    store.require_up()
    found = state.topics.find(topic)
    return found, found.require_durable()


def _is_durable(topic: Topic, record: TopicRecord) -> None:
    topic.durable = record


def _is_lost(topic: Topic, record: TopicRecord | None) -> None:
    topic.decided = record
    # What only this change kept may be what a sleeping reader is held behind: it expires now.
    topic.wake()


QUIET_MS = 100  # shorter stretches are not noted; a tenth of the shortest time to live
QUIETS_COUNT_MAX = 1_000  # the latest ones, which are more than a minute and a half


class IdleIntervals:
    """The latest intervals in which the sequencer gave out no offset: a reader that goes on from
    inside of one has missed nothing that came before its end."""

    def __init__(self) -> None:
        self._last = BEFORE_ALL
        # Pairs of the last offset before a stretch, and the first that a row behind it may have.
        self._stretches: deque[tuple[Offset, Offset]] = deque(maxlen=QUIETS_COUNT_MAX)

    def begin(self, last: Offset) -> None:
        """Rows up to this offset may be there; of what lay between them nothing more is known."""
        self._last = max(self._last, last)

    def passed(self, last: Offset, *, since_ms: int) -> None:
        """Rows up to this offset are there now; the new ones were made at this time or later."""
        if last > self._last:
            if since_ms - self._last.timestamp_ms >= QUIET_MS:
                self._stretches.append((self._last, Offset(since_ms, 0)))
            self._last = last

    def may_hold(self, start: Offset, *, stop: Offset) -> bool:
        """Whether rows of any topic may have got offsets in this range."""
        if start > self._last:
            return False
        at = bisect_left(self._stretches, start, key=itemgetter(1))
        if at < len(self._stretches) and start > self._stretches[at][0]:
            start = self._stretches[at][1]
        return start < stop
