"""A write batch: from decisions on the event loop to one atomic write on a worker thread.

Building a batch assigns offsets and collects rows. Until the batch is durable, no caller is
answered and no reader sees it, so its changes to memory can be taken back. Rows to invert are read
in the writing thread. There is one such thread at a time: nothing can remove a row between the read
and the write, and a row that is gone is never written again.

The `Sequencer` assigns offsets: one order over the whole store that never goes back (design §5).
Message and payload rows of all topics draw from it in the order in which they are written. So the
rows of one publish are neighbours, and "everything up to here is durable" is one offset.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from messaging.storage.engine import Store
from messaging.storage.packed_rows import records_of
from messaging.storage.rows import (
    BEFORE_ALL,
    DamagedRowError,
    MessageRow,
    message_key,
    offset_after,
    offset_number,
)
from messaging.topics import Topic
from tuff.protocol.ids import SEQ_ID_LIMIT, TIMESTAMP_LIMIT, Offset


class Sequencer:
    """Gives out offsets, each above all before it. Lives on the event loop."""

    def __init__(self, last: Offset = BEFORE_ALL) -> None:
        self._last = max(last, BEFORE_ALL)

    @property
    def last(self) -> Offset:
        """The highest offset given out, or found in the store."""
        return self._last

    def next(self, *, now_ms: int) -> Offset:
        """The next offset: at `now_ms`, or behind the last one when the clock stands still or went
        back, or when this millisecond is full and the next must be borrowed."""
        last = self._last
        if now_ms > last.timestamp_ms:
            self._last = Offset(now_ms, 0)
        elif last.seq_id + 1 < SEQ_ID_LIMIT:
            self._last = Offset(last.timestamp_ms, last.seq_id + 1)
        else:
            self._last = Offset(last.timestamp_ms + 1, 0)
        assert self._last.timestamp_ms < TIMESTAMP_LIMIT
        return self._last

    def next_run(self, count: int, *, now_ms: int) -> tuple[Offset, Offset]:
        """The next so many offsets, at least one: the first and the last of them."""
        first = self.next(now_ms=now_ms)
        if count == 1:
            return first, first
        last = offset_after(first, count - 1)
        assert last.timestamp_ms < TIMESTAMP_LIMIT
        self._last = last
        return first, last

    def raise_above(self, found: Offset) -> None:
        """Give out nothing up to this offset, which was found in the store."""
        self._last = max(self._last, found)


class Inversion(NamedTuple):
    """Rows to mark as rolled back: those of this very pointer within these keys."""

    pointer: int
    start: bytes
    stop: bytes


class NewRows(NamedTuple):
    """Rows of one publish with their payloads, in the order of their keys. `is_plain`: they are
    nothing but payloads; else at least one has a pointer, or a time to live of its own."""

    prefix: bytes
    keys: Sequence[bytes]
    values: Sequence[bytes]
    is_plain: bool


class WriteBatch:
    """Rows on their way to the disk, and what follows once they are there, or are not.

    Lives on the event loop while it is built; then `write` has it for itself.
    """

    def __init__(self, *, number: int, now_ms: int, sequencer: Sequencer) -> None:
        self.number = number
        self.now_ms = now_ms
        self.puts: dict[bytes, bytes | None] = {}
        self.new_rows: list[NewRows] = []
        self.stored: list[tuple[Sequence[bytes], Sequence[bytes]]] = []
        self.inversions: list[Inversion] = []
        self.touched: dict[Topic, None] = {}
        self.published: dict[Topic, tuple[int, int]] = {}
        self._sequencer = sequencer
        self._when_durable: list[Callable[[], None]] = []
        self._when_lost: list[Callable[[], None]] = []
        self._forced = False

    @property
    def last(self) -> Offset:
        """The highest offset given out so far."""
        return self._sequencer.last

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.puts or self.new_rows or self.stored or self.inversions or self._forced)

    def next_offset(self) -> Offset:
        """The offset of the next row; rows built one after the other are neighbours."""
        return self._sequencer.next(now_ms=self.now_ms)

    def next_offsets(self, count: int) -> tuple[Offset, Offset]:
        """The first and the last offset of so many rows that are neighbours, at least one."""
        return self._sequencer.next_run(count, now_ms=self.now_ms)

    def put(self, key: bytes, value: bytes) -> None:
        self.puts[key] = value

    def put_new_rows(self, run: NewRows) -> None:
        """Write the rows of one publish, which are new."""
        self.new_rows.append(run)

    def put_stored(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Write rows of the Payload Table, which are new, and which no reader is shown yet."""
        self.stored.append((keys, values))

    def delete(self, key: bytes) -> None:
        self.puts[key] = None

    def invert(self, pointer: int, prefix: bytes, first: Offset, last: Offset) -> None:
        """Mark the rows of a pointer from one offset to another, both included."""
        start, stop = message_key(prefix, first), message_key(prefix, offset_after(last))
        self.inversions.append(Inversion(pointer, start, stop))

    def force(self) -> None:
        """Write the batch even if it holds nothing but the mark."""
        self._forced = True

    def count_published(self, topic: Topic, *, messages: int, payload_bytes: int) -> None:
        """Note what was published to a topic, which is then woken."""
        before = self.published.get(topic, (0, 0))
        self.published[topic] = (before[0] + messages, before[1] + payload_bytes)
        self.touch(topic)

    def touch(self, topic: Topic) -> None:
        """Wake the long polls of the topic once the batch is durable."""
        self.touched[topic] = None

    def on_durable(self, then: Callable[[], None]) -> None:
        """What to do on the event loop once the batch is on stable storage."""
        self._when_durable.append(then)

    def on_lost(self, undo: Callable[[], None]) -> None:
        """How to take back what building changed in memory, if the batch is proven not there."""
        self._when_lost.append(undo)

    def is_durable(self) -> None:
        """Run what waits for the batch; long polls are woken later."""
        for then in self._when_durable:
            then()
        for topic, (messages, payload_bytes) in self.published.items():
            topic.messages_published += messages
            topic.bytes_published += payload_bytes

    def is_lost(self) -> None:
        """Take back what building changed, the last first."""
        for undo in reversed(self._when_lost):
            undo()

    def write(self, store: Store) -> None:
        """Write it, atomically and durably; on a worker thread. Raises: StoreError."""
        for inversion in self.inversions:
            for key, value in store.scan(inversion.start, inversion.stop):
                # A row that this batch deletes stays deleted.
                if key not in self.puts:
                    inverted = _inverted(key, value, inversion.pointer)
                    if inverted is not None:
                        self.puts[key] = inverted
        records: list[tuple[bytes, bytes | None]] = list(self.puts.items())
        for keys, values in (*_neighbours(self.new_rows), *self.stored):
            records += records_of(store, keys, values)
        store.write(records)


def _neighbours(new_rows: Sequence[NewRows]) -> Iterator[tuple[Sequence[bytes], Sequence[bytes]]]:
    """The rows of these publishes; plain ones together that follow each other in one topic."""
    together: dict[bytes, tuple[list[bytes], list[bytes]]] = {}
    for run in new_rows:
        if not run.is_plain:
            yield run.keys, run.values
            continue
        keys, values = together.get(run.prefix, ([], []))
        if keys and offset_number(keys[-1]) + 1 != offset_number(run.keys[0]):
            yield keys, values
            keys, values = [], []
        keys += run.keys
        values += run.values
        together[run.prefix] = keys, values
    yield from together.values()


def _inverted(key: bytes, value: bytes, pointer: int) -> bytes | None:
    try:
        row = MessageRow.from_bytes(key, value)
    except DamagedRowError:
        return None  # never shown to a reader, and reported where it is read
    if row.tx_pointer != pointer:
        return None
    return replace(row, tx_pointer=-pointer).to_bytes(key)
