"""A write batch: its effects as data, what a thread writes, and what follows in memory (design §5).

Writes append effects to a batch on the event loop, in their order. Then only the thread that writes
it (`write_batch`) changes the batch: it makes the rows of large publishes. It also fills
`WrittenRows` with what it reads. After that, exactly one of `apply_durable` and
`apply_lost` runs on the event loop.

Three kinds of effects are in memory from the moment at which they are added, since later writes and
calls that come during the write depend on them: the decided records of topics, the ranges of the
pointer index, and the publishes of producers. `apply_lost` takes them back. All others change
memory in `apply_durable`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from messaging.engines.row_store import Store
from messaging.log.loading import LoadedTopics
from messaging.log.rows_by_transaction import (
    DELAYED_ROWS,
    PUBLISHED_KINDS,
    IndexedRange,
    PointerIndex,
)
from messaging.log.sequencer import Sequencer
from messaging.log.state_in_memory import StoreState
from messaging.log.topics import Topic, TopicRecord
from messaging.model.packed_rows import Columns, NewRows, joined_neighbours
from messaging.model.row_format import (
    HEAD,
    DamagedRowError,
    LastBatch,
    StoreMetadata,
    frame,
    inline_values,
    inverted,
    message_key,
    message_keys,
    offset_after,
    offset_in,
    topic_key,
    undecided_key,
)
from messaging.write.producers import ChangedProducers
from tuff.protocol.ids import Offset, TopicId

RUN_BYTES_MAX = 64 << 10  # bytes of payloads; the tail cache keeps or drops a run as a whole
LARGE_COUNT = 2_000  # rows of one publish; more are made in a thread
# What one batch rolls back of ended transactions; the publishes behind it wait some ms.
ROLLBACK_ROWS_MAX = 4_000
ROLLBACK_BYTES_MAX = 2 << 20  # of the rows that are written again


class Inversion(NamedTuple):
    """Rows to roll back: those of this pointer in this range of keys. `aside`: the range that they
    are, if they are set aside; what is set aside gets index rows."""

    pointer: int
    start: bytes
    stop: bytes
    aside: IndexedRange | None


@dataclass(slots=True)
class RollbackStep:
    """Ranges of ended transactions to roll back, as many of their rows as the batch has room for.
    `reached`: the key of a range, and the offset up to which its rows are done.

    The thread that writes the batch adds the ranges to `ended` of which all rows are done, and
    their index rows deleted, and sets `reached` for the next step. Both hold once the batch is
    durable.
    """

    entries: Sequence[IndexedRange]
    reached: tuple[bytes, Offset] | None
    ended: list[IndexedRange] = field(default_factory=list)


class Renewal(NamedTuple):
    """Rows that were rolled back, to write again: those of this pointer in this range of
    keys. They get offsets from `first` on."""

    pointer: int
    prefix: bytes
    start: bytes
    stop: bytes
    first: Offset


@dataclass(slots=True)
class _Run:
    """Plain messages of one topic with neighbouring offsets, of any number of publishes."""

    prefix: bytes
    first: Offset
    last: Offset
    payloads: list[bytes]
    size_bytes: int


@dataclass(slots=True, kw_only=True)
class WriteBatch:
    """Rows that are written together, and the other effects of their writes."""

    now_ms: int
    sequencer: Sequencer

    # What is written.
    puts: dict[bytes, bytes | None] = field(default_factory=dict)  # None: deleted
    new_rows: list[NewRows] = field(default_factory=list)  # in the order of their offsets
    run: _Run | None = None  # behind them
    # What makes rows in a thread, by their places in `new_rows`.
    unmade: list[tuple[int, Callable[[], NewRows]]] = field(default_factory=list)
    # Rows of the Payload Table, which are new, and which readers don't see yet.
    stored: list[Columns] = field(default_factory=list)
    # Rows of delayed messages, None if deleted. No reader of messages sees them.
    delayed: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    inversions: list[Inversion] = field(default_factory=list)
    renewals: list[Renewal] = field(default_factory=list)
    dropped: list[tuple[bytes, bytes]] = field(default_factory=list)  # ranges of undecided rows
    rollbacks: list[RollbackStep] = field(default_factory=list)
    is_forced: bool = False  # written even if it contains only the last-batch row

    # The pointer index: `indexed` and `unindexed` are in memory already.
    indexed: list[bytes] = field(default_factory=list)  # keys of index rows
    unindexed: list[IndexedRange] = field(default_factory=list)
    moved: list[IndexedRange] = field(default_factory=list)  # ranges whose rows this batch moves
    ended: Sequence[int] = ()  # committed pointers whose index rows are deleted

    # By topic, the decided record before this batch, and the one that it writes.
    changed: dict[Topic, tuple[TopicRecord | None, TopicRecord]] = field(default_factory=dict)
    # Topics whose long polls wake, with the messages published to them and their bytes.
    touched: dict[Topic, tuple[int, int]] = field(default_factory=dict)
    look_times_ms: list[tuple[TopicId, int]] = field(default_factory=list)  # of delayed messages
    loaded: list[LoadedTopics] = field(default_factory=list)  # this server owns them once durable
    producers: ChangedProducers = field(default_factory=ChangedProducers)

    # What the store then says of itself; set when the batch is complete.
    last_batch: LastBatch | None = None
    metadata: StoreMetadata | None = None

    @property
    def number(self) -> int:
        """The number of a batch that is complete."""
        assert self.last_batch is not None
        return self.last_batch.batch_number

    @property
    def last(self) -> Offset:
        """The highest offset assigned so far."""
        return self.sequencer.last

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (
            self.puts
            or self.new_rows
            or self.unmade
            or self.run
            or self.stored
            or self.delayed
            or self.inversions
            or self.renewals
            or self.dropped
            or self.rollbacks
            or self.is_forced
        )

    def force(self) -> None:
        """Write the batch even if it contains only the last-batch row."""
        self.is_forced = True

    def next_offsets(self, count: int) -> tuple[Offset, Offset]:
        """The first and the last offset of `count` neighbouring rows, at least one. Rows built one
        after the other are neighbours."""
        return self.sequencer.next_run(count, now_ms=self.now_ms)

    def put_plain(self, prefix: bytes, payloads: Sequence[bytes]) -> tuple[Offset, Offset]:
        """Add messages that have nothing besides their payloads, at least one; their first and
        their last offset. Those of neighbouring publishes to one topic become rows together, since
        a call for each publish takes longer than all the rest of its row."""
        run, before = self.run, self.sequencer.last
        first, last = self.sequencer.next_run(len(payloads), now_ms=self.now_ms)
        size_bytes = len(payloads[0]) if len(payloads) == 1 else sum(map(len, payloads))
        if run is None or run.prefix != prefix or run.last != before:
            self.finish_rows()
            self.run = _Run(prefix, first, last, list(payloads), size_bytes)
            return first, last
        run.payloads += payloads
        run.last = last
        run.size_bytes += size_bytes
        if run.size_bytes >= RUN_BYTES_MAX:
            self.finish_rows()
        return first, last

    def put_rows(self, rows: NewRows) -> None:
        """Add rows that are behind all of this batch."""
        self.finish_rows()
        self.new_rows.append(rows)

    def put_made(self, count: int, make: Callable[[], NewRows]) -> None:
        """Add rows that this makes, behind all of this batch. Many are made in a thread, by
        `make_rows`: the event loop serves others meanwhile. Of few, the thread would take the
        interpreter from it for nothing."""
        self.finish_rows()
        self._append(count, make)

    def _append(self, count: int, make: Callable[[], NewRows]) -> None:
        if count > LARGE_COUNT:
            self.unmade.append((len(self.new_rows) + len(self.unmade), make))
        else:
            self.new_rows.append(make())

    def finish_rows(self) -> None:
        """Make the rows of all messages but those for `make_rows`. Called on the event loop before
        the batch is written."""
        run, self.run = self.run, None
        if run is not None:
            self._append(len(run.payloads), partial(_plain_rows, run))

    def make_rows(self) -> None:
        """Make the rows of large publishes, in the thread that writes the batch."""
        for place, make in self.unmade:
            self.new_rows.insert(place, make())
        self.unmade.clear()

    def put(self, key: bytes, value: bytes) -> None:
        self.puts[key] = value

    def delete(self, key: bytes) -> None:
        self.puts[key] = None

    def invert(
        self,
        pointer: int,
        prefix: bytes,
        first: Offset,
        last: Offset,
        *,
        aside: IndexedRange | None = None,
    ) -> None:
        """Roll back the rows of a pointer from `first` to `last` inclusive."""
        start, stop = message_key(prefix, first), message_key(prefix, offset_after(last))
        self.inversions.append(Inversion(pointer, start, stop, aside))

    def publish_again(
        self, pointer: int, prefix: bytes, first: Offset, last: Offset, *, at: Offset
    ) -> None:
        """Write the rows of a pointer that are rolled back, from `first` to `last`
        inclusive, once more behind all others: with their pointer, from the offset `at` on."""
        start, stop = message_key(prefix, first), message_key(prefix, offset_after(last))
        self.renewals.append(Renewal(pointer, prefix, start, stop, at))

    def drop_undecided(self, prefix: bytes, first: Offset, last: Offset) -> None:
        """Delete the undecided rows of delayed messages, from `first` to `last` inclusive."""
        start, stop = undecided_key(prefix, first), undecided_key(prefix, offset_after(last))
        self.dropped.append((start, stop))

    def change_topic(self, topic: Topic, record: TopicRecord) -> None:
        """Write a topic's row. Later writes are decided by it at once; readers see it once it is
        durable."""
        key = topic_key(topic.id)
        self.puts[key] = record.to_bytes(key)
        self.change_record(topic, record)

    def change_record(self, topic: Topic, record: TopicRecord) -> None:
        """Change the record of a topic by holds and positions, whose own rows the caller writes."""
        before, _ = self.changed.get(topic, (topic.decided, record))
        self.changed[topic] = before, record
        topic.decided = record

    def published(self, topic: Topic, *, count: int, size_bytes: int) -> None:
        """Count messages of a topic once the batch is durable, and wake its long polls."""
        before = self.touched.get(topic, (0, 0))
        self.touched[topic] = (before[0] + count, before[1] + size_bytes)

    def touch(self, topic: Topic) -> None:
        """Wake the long polls of the topic once the batch is durable."""
        self.touched.setdefault(topic, (0, 0))


def _plain_rows(run: _Run) -> NewRows:
    keys = message_keys(run.prefix, run.first, len(run.payloads))
    return NewRows(run.prefix, keys, inline_values(keys, run.payloads, pointer=None), is_plain=True)


@dataclass(slots=True)
class WrittenRows:
    """What the thread that wrote a batch has read in the store: rows that it wrote inverted or once
    more, or deleted with a rollback, by their keys, and the ranges of rows that it set aside."""

    rows: dict[bytes, bytes | None] = field(default_factory=dict)
    asides: list[IndexedRange] = field(default_factory=list)


def write_batch(batch: WriteBatch, written: WrittenRows, store: Store) -> None:
    """Write a batch, atomically and durably. Blocks. Raises: StoreError: the batch may be written,
    and `written` is complete if it is.

    Only one thread writes. So no row can be removed between the read of a row and its write, and a
    row that is gone is not written again.
    """
    if batch.unmade:
        batch.make_rows()
    for inversion in batch.inversions:
        _invert(batch, store, inversion, written)
    for step in batch.rollbacks:
        _roll_back(batch, store, step, written)
    for renewal in batch.renewals:
        _renew(batch, store, renewal, written)
    records = [*batch.puts.items(), *written.rows.items(), *batch.delayed]
    if written.asides:
        records += [(aside.key, aside.to_bytes(aside.key)) for aside in written.asides]
    for start, stop in batch.dropped:
        records += [(key, None) for key, _ in store.scan(start, stop)]
    for keys, values in (*joined_neighbours(batch.new_rows), *batch.stored):
        records += store.packed(keys, values)
    store.write(records)


def _invert(batch: WriteBatch, store: Store, inversion: Inversion, written: WrittenRows) -> None:
    """Roll back rows. What is set aside is each run of neighbours, without rows that had been
    rolled back before: they do not return."""
    runs: list[tuple[Offset, Offset]] = []
    is_in_run = False
    for key, value in store.scan(inversion.start, inversion.stop):
        # A row that this batch deletes stays deleted, and one that it has inverted counts once.
        is_decided = key in batch.puts or key in written.rows
        new_value = None if is_decided else _inverted(key, value, inversion.pointer)
        if new_value is not None:
            written.rows[key] = new_value
            offset = offset_in(key)
            first = runs.pop()[0] if is_in_run else offset
            runs.append((first, offset))
        is_in_run = new_value is not None
    if inversion.aside is not None:
        for first, last in runs:
            written.asides.append(replace(inversion.aside, first=first, last=last))


def _roll_back(batch: WriteBatch, store: Store, step: RollbackStep, written: WrittenRows) -> None:
    """Roll back the first rows of a step. All steps of a batch have equal parts, so that a large
    publish holds up no small one."""
    rows_left = max(1, ROLLBACK_ROWS_MAX // len(batch.rollbacks))
    bytes_left = ROLLBACK_BYTES_MAX // len(batch.rollbacks)
    before, step.reached = step.reached, None
    for entry in step.entries:
        key_at = undecided_key if entry.kind == DELAYED_ROWS else message_key
        first = entry.first
        if before is not None and before[0] == entry.key:
            first = offset_after(before[1])
        start, stop = key_at(entry.prefix, first), key_at(entry.prefix, offset_after(entry.last))
        for key, value in store.scan(start, stop) if entry.kind in PUBLISHED_KINDS else ():
            if rows_left <= 0 or bytes_left < 0:
                return
            step.reached = entry.key, offset_in(key)
            rows_left -= 1
            if entry.kind == DELAYED_ROWS:
                written.rows[key] = None
            elif key not in batch.puts and key not in written.rows:
                new_value = _inverted(key, value, entry.pointer)
                if new_value is not None:
                    written.rows[key] = new_value
                    bytes_left -= len(new_value)
        step.reached = None
        step.ended.append(entry)
        written.rows[entry.key] = None


def _renew(batch: WriteBatch, store: Store, renewal: Renewal, written: WrittenRows) -> None:
    offset = renewal.first
    for key, stored in store.scan(renewal.start, renewal.stop):
        # This batch may have inverted it, or delete it.
        value = written.rows.get(key) or batch.puts.get(key, stored)
        # Checked under its old key, and framed under its new one.
        again = None if value is None else _inverted(key, value, -renewal.pointer)
        if again is not None:
            new_key = message_key(renewal.prefix, offset)
            written.rows[new_key] = frame(new_key, again[0], again[HEAD.size :])
            offset = offset_after(offset)


def _inverted(key: bytes, value: bytes, pointer: int) -> bytes | None:
    """The value of a row with this pointer, inverted; None if it has another one."""
    try:
        return inverted(key, value, pointer)
    except DamagedRowError:
        return None  # never shown to a reader, and reported where it is read


def apply_durable(batch: WriteBatch, written: WrittenRows, state: StoreState) -> None:
    """The batch is on the disk. In this order:

    1. Readers are decided by the new records of topics.
    2. The pointer index forgets what was moved, rolled back or ended, and has what was set aside.
    3. Delayed messages are looked at when they are due, and topics that were given to this server
       are served. What they bring is older than the rows of this batch.
    4. The high-water mark rises, and the tail cache has the rows.
    5. Messages are counted.

    The long polls of the `touched` topics wake after the writes are answered.
    """
    assert batch.last_batch is not None
    assert batch.metadata is not None
    for topic, (_, record) in batch.changed.items():
        topic.durable = record
    _apply_to_index(batch, written, state.index)
    for topic_id, due_ms in batch.look_times_ms:
        state.due_times.note(topic_id, due_ms)
    for loaded in batch.loaded:
        state.add_topics(loaded)
    state.batch_is_durable(
        batch.last_batch,
        batch.metadata,
        since_ms=batch.now_ms,
        puts=batch.puts | written.rows if written.rows else batch.puts,
        new_rows=batch.new_rows,
    )
    for topic, (count, size_bytes) in batch.touched.items():
        topic.messages_published += count
        topic.bytes_published += size_bytes


def _apply_to_index(batch: WriteBatch, written: WrittenRows, index: PointerIndex) -> None:
    if batch.inversions:
        for entry in _set_aside(batch):
            index.discard(entry)
    for entry in written.asides:
        index.add(entry)
    for entry in batch.moved:
        index.discard(entry)
    for step in batch.rollbacks:
        index.rolled_back(step.ended)
    if batch.ended:
        index.forget_ended(batch.ended)


def apply_lost(batch: WriteBatch, state: StoreState) -> None:
    """The batch is proven not to be on the disk: take back what is in memory already.

    A range that this batch added and removed again was not there before. So the removed ones come
    back first.
    """
    if batch.unindexed:
        state.index.load(batch.unindexed, now_ms=batch.now_ms)
    for key in (*batch.indexed, *(each.key for each in _set_aside(batch))):
        state.index.discard_under(key)
    state.producers.take_back(batch.producers)
    for topic, (before, _) in batch.changed.items():
        topic.decided = before
        # A long poll may be blocked by a message that only this change kept: it expires now.
        topic.wake()


def _set_aside(batch: WriteBatch) -> list[IndexedRange]:
    """The ranges that stand in the index for what is set aside, until it is known what that is."""
    return [each.aside for each in batch.inversions if each.aside is not None]
