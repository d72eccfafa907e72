"""One atomic batch, from the decisions on the event loop to the write on a worker thread.

Building gives out ids and collects rows; whatever it changes in memory it can take back, as long as
nobody was told. Rows that are to be inverted are read in the writing thread: there is one such
thread at a time, so nothing can remove a row between the reading and the writing, and a row that is
gone is never written again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from messaging.keys import message_key, place_after, place_number
from messaging.rows import DamagedRowError, MessageRow
from messaging.run_table import records_of
from messaging.sequence import Sequencer
from messaging.storage.seam import Store
from messaging.topics import Topic
from tuff.protocol.ids import Place


class Inversion(NamedTuple):
    """Rows to mark as rolled back: those of this very pointer within these keys."""

    pointer: int
    start: bytes
    stop: bytes


class Run(NamedTuple):
    """Rows of one publish with their payloads, in the order of their keys. `is_plain`: they are
    nothing but payloads; else at least one has a pointer, or a time to live of its own."""

    prefix: bytes
    keys: Sequence[bytes]
    values: Sequence[bytes]
    is_plain: bool


class Batch:
    """Rows on their way to the disk, and what follows once they are there, or are not.

    Lives on the event loop while it is built; then `write` has it for itself.
    """

    def __init__(self, *, number: int, now_ms: int, sequencer: Sequencer) -> None:
        self.number = number
        self.now_ms = now_ms
        self.puts: dict[bytes, bytes | None] = {}
        self.runs: list[Run] = []
        self.stored: list[tuple[Sequence[bytes], Sequence[bytes]]] = []
        self.inversions: list[Inversion] = []
        self.touched: dict[Topic, None] = {}
        self.published: dict[Topic, tuple[int, int]] = {}
        self._sequencer = sequencer
        self._when_durable: list[Callable[[], None]] = []
        self._when_lost: list[Callable[[], None]] = []
        self._forced = False

    @property
    def last(self) -> Place:
        """The highest place given out so far."""
        return self._sequencer.last

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.puts or self.runs or self.stored or self.inversions or self._forced)

    def next_place(self) -> Place:
        """The place of the next row; rows built one after the other are neighbours."""
        return self._sequencer.next(now_ms=self.now_ms)

    def next_places(self, count: int) -> tuple[Place, Place]:
        """The first and the last place of so many rows that are neighbours, at least one."""
        return self._sequencer.next_run(count, now_ms=self.now_ms)

    def put(self, key: bytes, value: bytes) -> None:
        self.puts[key] = value

    def put_run(self, run: Run) -> None:
        """Write the rows of one publish, which are new."""
        self.runs.append(run)

    def put_stored(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Write rows of the Payload Table, which are new, and which no reader is shown yet."""
        self.stored.append((keys, values))

    def delete(self, key: bytes) -> None:
        self.puts[key] = None

    def invert(self, pointer: int, prefix: bytes, first: Place, last: Place) -> None:
        """Mark the rows of a pointer from one place to another, both included."""
        start, stop = message_key(prefix, first), message_key(prefix, place_after(last))
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
        """Have whoever sleeps on the topic look again, once the batch is there."""
        self.touched[topic] = None

    def on_durable(self, then: Callable[[], None]) -> None:
        """What to do on the event loop once the batch is on stable storage."""
        self._when_durable.append(then)

    def on_lost(self, undo: Callable[[], None]) -> None:
        """How to take back what building changed in memory, if the batch is proven not there."""
        self._when_lost.append(undo)

    def is_durable(self) -> None:
        """Let follow what waits for the batch; wakes nobody yet."""
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
        for keys, values in (*_neighbours(self.runs), *self.stored):
            records += records_of(store, keys, values)
        store.write(records)


def _neighbours(runs: Sequence[Run]) -> Iterator[tuple[Sequence[bytes], Sequence[bytes]]]:
    """The rows of these publishes; plain ones together that follow each other in one topic."""
    together: dict[bytes, tuple[list[bytes], list[bytes]]] = {}
    for run in runs:
        if not run.is_plain:
            yield run.keys, run.values
            continue
        keys, values = together.get(run.prefix, ([], []))
        if keys and place_number(keys[-1]) + 1 != place_number(run.keys[0]):
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
        return None  # never served to anyone, and reported where it is read
    if row.tx_pointer != pointer:
        return None
    return replace(row, tx_pointer=-pointer).to_bytes(key)
