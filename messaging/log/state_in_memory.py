"""The state of the message store: whether it is open, and what it contains.

Everything here lives on the event loop. All parts of the component share one `OpenStore`, through
which they read and write, and one `StoreState`, which is read at the start and changes as batches
become durable.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from kernel.event_loop import InThread
from messaging.engines.engine_interface import Corruption, Engine, Interruptible, Rows, StoreError
from messaging.engines.row_store import Store
from messaging.log.delayed_due_times import Due, DueTimes
from messaging.log.loading import Loaded, LoadedProducer, LoadedTopics
from messaging.log.rows_by_transaction import PointerIndex
from messaging.log.sequencer import IdleIntervals, Sequencer
from messaging.log.tail_cache import TailCache
from messaging.log.topics import Topic, TopicRecord, TopicRegistry
from messaging.model.packed_rows import NewRows
from messaging.model.row_format import LastBatch, StoreMetadata, prefix_of
from messaging.settings import MessagingSettings
from messaging.transactions_interface import TransactionView
from messaging.write.producers import Producers
from tuff.protocol.errors import FuturePositionError, StorageUnavailableError
from tuff.protocol.ids import MessageId, Offset, TopicId
from tuff.protocol.requests import Delay

T = TypeVar("T")


class OpenStore:
    """The open store, or the reason why none is open. The engine's calls run in threads."""

    def __init__(
        self,
        open_engine: Callable[[], Engine],
        *,
        in_thread_write: InThread,
        in_thread_read: InThread,
    ) -> None:
        self._open_engine = open_engine
        self._in_thread_write = in_thread_write
        self.in_thread_read = in_thread_read
        self._store: Store | None = None
        self.is_up = False
        self._views: list[RowView] = []
        self.reason = "the message store is not open yet"

    def is_current(self, store: Store) -> bool:
        """Whether this very store is the open one."""
        return self._store is store

    def require_up(self) -> Store:
        """The open store. Raises: StorageUnavailableError."""
        if self._store is None:
            raise StorageUnavailableError(f"the message store can't be used now: {self.reason}")
        return self._store

    async def open(self, read: Callable[[Store], T]) -> T:
        """Open the store and read from it before any other caller can; then it is up.

        Raises: StoreError, and what opening raises: then it is not up.
        """

        def open_and_read() -> tuple[Store, T]:
            store = Store(self._open_engine())
            try:
                return store, read(store)
            except BaseException:
                store.close()
                raise

        self._store, found = await self._in_thread_write(open_and_read)
        self.is_up = True
        return found

    def interrupt(self) -> None:
        """Let calls that hang fail, where the engine can: the process ends, and can't wait."""
        if isinstance(self._open_engine, Interruptible):
            self._open_engine.interrupt()

    async def close(self, reason: str, *, closed: Callable[[], None] = lambda: None) -> None:
        """Be down from now on, for this reason; closes the store if one is open, and calls `closed`
        then, in the same thread."""
        self.reason = reason
        store, self._store, self.is_up = self._store, None, False
        views, self._views = self._views, []
        for view in views:
            view.close(reason)
        if store is None:
            return

        def close_store() -> None:
            store.close()
            closed()

        await self._in_thread_write(close_store)

    async def write(self, write: Callable[[Store], None]) -> None:
        """Run a write on the writing thread. Raises: StoreError, StorageUnavailableError."""
        await self._in_thread_write(partial(write, self._store or self.require_up()))

    async def read(self, read: Callable[[Store], T]) -> T:
        """Run a read on a reading thread.

        Raises:
            StorageUnavailableError: the store can't be read now.
        """
        store = self.require_up()
        try:
            return await self.in_thread_read(lambda: read(store))
        except StoreError as error:
            raise StorageUnavailableError(
                f"the message store can't be read: {error}; `tuff status` says whether it is down, "
                "and `tuff fsck` of the stopped server names a damaged file"
            ) from error

    @contextmanager
    def view(self, start: bytes, stop: bytes) -> Iterator["RowView"]:
        """A snapshot of the rows in a range of keys, as of this call; taken without a wait.

        Raises:
            StorageUnavailableError: the store can't be read now, or has no snapshots.
        """
        store = self.require_up()
        if not store.has_views:
            raise StorageUnavailableError(
                "this message store has no snapshots of its rows, so it has no online backup; copy "
                "it with its own tools"
            )
        try:
            rows = store.records(start, stop, corruption=Corruption.RAISE)
        except StoreError as error:
            raise StorageUnavailableError(f"the message store can't be read: {error}") from error
        view = RowView(rows, in_thread=self.in_thread_read)
        self._views.append(view)
        try:
            yield view
        finally:
            view.close("the caller is done with it")
            if view in self._views:
                self._views.remove(view)


class RowView:
    """A snapshot of rows, read piece by piece, for as long as it takes.

    An engine waits for its readers before it closes. A slow reader must not delay it, and with it
    all writes; so the engine closes its views first.
    """

    def __init__(self, rows: Rows, *, in_thread: InThread) -> None:
        self._rows = rows
        self._in_thread = in_thread
        self._closed_for: str | None = None

    async def read(self, take: Callable[[Rows], T]) -> T:
        """The result of `take`, which reads the next rows on a reading thread. One call at a time.

        Raises:
            StorageUnavailableError: the store was closed, or can't be read.
        """
        if self._closed_for is not None:
            raise StorageUnavailableError(
                f"the message store was closed while it was read: {self._closed_for}"
            )
        try:
            return await self._in_thread(lambda: take(self._rows))
        except StoreError as error:
            raise StorageUnavailableError(f"the message store can't be read: {error}") from error
        finally:
            if self._closed_for is not None:
                self.close(self._closed_for)  # it could not be closed while the thread read it

    def close(self, reason: str) -> None:
        """Release the snapshot; repeating it is harmless."""
        self._closed_for = self._closed_for or reason
        # Rows that a thread is reading can't be closed; `read` does it when the thread is done.
        with suppress(ValueError):
            self._rows.close()


NAMED_COUNT_MAX = 10_000  # due times; some 1 MiB


class StoreState:
    """What is known of the store in memory: topics, pointer index, producers, sequencer, high-water
    mark, tail cache, metadata and last batch.

    `may_delete` returns whether the clock can be trusted so far that messages may expire for good,
    `due` which delayed messages may enter their topics by it.
    `transactions` is set when the component opens, and `load` sets what the store says.
    """

    transactions: TransactionView
    high_water_mark: Offset  # readers see no row behind this offset

    def __init__(
        self,
        *,
        now_ms: Callable[[], int],
        may_delete: Callable[[], bool],
        due: Callable[[], Due],
        settings: MessagingSettings,
        longest_transaction_s: float,
        is_shared: bool = False,
    ) -> None:
        """`is_shared`: servers of a cluster share the store, and each owns some of the topics."""
        self.settings = settings
        self.due_times = DueTimes()
        self.topics = TopicRegistry(is_shared=is_shared)
        self.index = PointerIndex()
        self.producers = Producers(now_ms=now_ms)
        self.sequencer = Sequencer()
        self.tail_cache = TailCache(bytes_max=settings.tail_bytes_max)
        self.idle_intervals = IdleIntervals()
        self.last_batch = LastBatch()
        self._attempted = LastBatch()  # of the newest batch, which may not be durable
        self.metadata = StoreMetadata()
        self.durable_metadata: StoreMetadata | None = None  # None while the store is empty
        self.now_ms = now_ms
        self.may_delete = may_delete
        self.due = due
        self.named_due_ms: set[int] = set()  # `note_named`
        self._longest_transaction_ms = round(longest_transaction_s * 1000)
        self.seen_lsn: int | None = None  # of the transactions, durably
        # The clock that the opened store had recorded; None for a new store.
        self.recovered_clock_ms: int | None = None

    def load(self, loaded: Loaded) -> None:
        """Set the state from an opened store."""
        for topic_id, record in loaded.topics.items():
            self.topics.load(topic_id, record)
        for topic_id, due_ms in loaded.due_ms.items():
            self.due_times.note(topic_id, due_ms)
        self.index.load(loaded.index, now_ms=self.now_ms())
        self._load_producers(loaded.producers)
        self.last_batch = self._attempted = loaded.last_batch
        self.recovered_clock_ms = loaded.last_batch.clock_ms
        self.metadata, self.durable_metadata = loaded.metadata or StoreMetadata(), loaded.metadata
        self.raise_longest_transaction(self._longest_transaction_ms)
        self.seen_lsn = loaded.last_batch.seen_lsn
        self.sequencer.raise_above(loaded.last_batch.last)
        self.idle_intervals.assume_rows(loaded.last_batch.last)
        for each in self.topics:
            if each.durable is not None:
                # A log start that a retention pass raised is ahead of a clock that was set back
                # since. A message with an id below it would be acknowledged, and no reader would
                # see it.
                self.sequencer.raise_above(each.durable.log_start.offset)
        # Region observers would remove a message with an id below this time at once.
        self.sequencer.raise_above(Offset(self.metadata.handed_ms, 0))
        self.high_water_mark = self.sequencer.last
        self.tail_cache.restart(self.high_water_mark)

    def require_past(self, position: MessageId, *, skew_ms: int = 0) -> None:
        """Refuse a position behind all that can have been published. A reader there would pass over
        everything that is published until then.

        Raises: FuturePositionError.
        """
        now_ms = max(self.now_ms(), self.high_water_mark.timestamp_ms)
        ahead_ms = position.publish_timestamp_ms - now_ms
        if ahead_ms > skew_ms:
            raise FuturePositionError(
                f"the position {position.hex()} is {ahead_ms / 1000:.0f} seconds in the future, so "
                "messages until then would be passed over; name an id, or a time in ms since the "
                "epoch that is over"
            )

    def add_topics(self, loaded: LoadedTopics) -> None:
        """This server owns these topics from now on. The sequencer is above all of their rows.
        Those that it owns already stay as they are: what was loaded may be older."""
        last = self.sequencer.last
        units = {each.unit for each in loaded.records if self.topics.is_foreign(each)}
        new = {topic: record for topic, record in loaded.records.items() if topic.unit in units}
        for topic, record in new.items():
            self.topics.load(topic, record)
            if topic in loaded.due_ms:
                self.due_times.note(topic, loaded.due_ms[topic])
            if isinstance(record, TopicRecord) and record.generation > 0:
                # A read that was under way when the topic was given away may have been cached.
                self.tail_cache.forget(prefix_of(topic, record.generation))
        index = [entry for entry in loaded.index if entry.topic.unit in units]
        self.index.load(index, now_ms=self.now_ms())
        self._load_producers(each for each in loaded.producers if each.topic.unit in units)
        # What these know of other topics' rows was learnt from the batches of this server.
        self.tail_cache.skip_to(last)
        self.idle_intervals.restart(last)

    def _load_producers(self, loaded: Iterable[LoadedProducer]) -> None:
        for each in loaded:
            prefix = prefix_of(each.topic, each.generation)
            self.producers.load(each.key, self.topics.find(each.topic), prefix, each.row)

    def remove_topic(self, topic: Topic) -> None:
        """Another server owns this topic from now on."""
        self.topics.remove(topic.id)
        self.due_times.forget(topic.id)
        self.index.forget(topic.id)
        self.producers.forget_topic(topic)
        if topic.durable is not None and topic.durable.generation > 0:
            self.tail_cache.forget(topic.prefix(topic.durable.generation))

    @property
    def possible_last_batches(self) -> tuple[LastBatch, LastBatch]:
        """What a store that failed can have as its last batch: the last durable one, or the
        newest."""
        return self.last_batch, self._attempted

    def reopened(self, last_batch: LastBatch) -> None:
        """The store failed and was opened again: continue above all rows in it, and cache only rows
        that become durable from now on."""
        self.sequencer.raise_above(last_batch.last)
        self.idle_intervals.assume_rows(last_batch.last)
        self.tail_cache.restart(self.high_water_mark)

    def raise_longest_transaction(self, lived_ms: int) -> None:
        """A transaction has lived this long, or may; recorded with the next batch. Retention keeps
        a stored payload for the longest life that any transaction ever had."""
        longest_ms = max(self.metadata.longest_transaction_ms, lived_ms)
        self.metadata = replace(self.metadata, longest_transaction_ms=longest_ms)

    def expiry_ms(self) -> int:
        """The time by which messages expire. Region observers may have removed messages that had
        expired by the time of their newest state. So when the clock was set back since, the
        messages around these must not reappear."""
        return max(self.now_ms(), self.metadata.handed_ms)

    def note_named(self, delays: Sequence[Delay], due_ms: Sequence[int]) -> None:
        """Messages with these delays are accepted, and due at these times. While the clock may be
        ahead, remember the times that were named: how far off they are is not known. Beyond
        `NAMED_COUNT_MAX` of them, no message is measured any more."""
        due = self.due()
        if due.accepted_from_ms is None or len(self.named_due_ms) > NAMED_COUNT_MAX:
            return
        named = [at_ms for each, at_ms in zip(delays, due_ms, strict=True) if each.is_time]
        self.named_due_ms.update(at_ms for at_ms in named if at_ms > due.by_ms)

    def due_messages(self) -> Due:
        """Which delayed messages may enter now."""
        due = self.due()
        return due if len(self.named_due_ms) <= NAMED_COUNT_MAX else Due(due.by_ms)

    @property
    def has_unwritten_changes(self) -> bool:
        """Whether changes wait for the next batch."""
        return self.metadata != self.durable_metadata or bool(self.index.ending)

    def next_last_batch(self) -> LastBatch:
        """The last-batch row of the batch that is written now, with a number that was never used
        before."""
        # A clock that jumped far ahead must not be recorded before it is confirmed: the next start
        # would trust it, and the retention pass would then expire everything.
        clock_ms = self.last_batch.clock_ms
        if self.may_delete():
            clock_ms = max(clock_ms or 0, self.now_ms()) or None
        self._attempted = LastBatch(
            batch_number=self._attempted.batch_number + 1,
            last=self.sequencer.last,
            clock_ms=clock_ms,
            seen_lsn=self.seen_lsn,
        )
        return self._attempted

    def batch_is_durable(
        self,
        last_batch: LastBatch,
        metadata: StoreMetadata,
        *,
        since_ms: int,
        puts: Mapping[bytes, bytes | None],
        new_rows: Sequence[NewRows],
    ) -> None:
        """A batch is durable that contained these rows, this last-batch row and this metadata. Its
        offsets were assigned at `since_ms` or later."""
        self.last_batch = last_batch
        self.durable_metadata = metadata
        self.high_water_mark = max(self.high_water_mark, last_batch.last)
        self.idle_intervals.add_batch(last_batch.last, since_ms=since_ms)
        self.tail_cache.apply_batch(puts, new_rows, high_water_mark=self.high_water_mark)


def require_topic(store: OpenStore, state: StoreState, topic: TopicId) -> tuple[Topic, TopicRecord]:
    """A topic that exists, and its durable record.

    Raises: StorageUnavailableError, TopicNotFoundError, DamagedRecordError.
    """
    store.require_up()
    found = state.topics.find(topic)
    return found, found.require_durable()


def require_log(store: OpenStore, state: StoreState, topic: TopicId) -> tuple[Topic, TopicRecord]:
    """A partition that exists, or a topic with a single one, and its durable record.

    Raises: StorageUnavailableError, TopicNotFoundError, DamagedRecordError, PartitionRequiredError.
    """
    found, record = require_topic(store, state, topic)
    record.require_one_log(topic)
    return found, record
