"""The pointer index: which transaction published what (design §5, Pointer index).

    index row := key: pointer kind prefix first    value: flags(1) crc(4) last(10) final(1) ms(8)

A batch with rows under a pointer also contains one index row with their range. It is deleted once
the transaction is durably committed, or its rows are marked as rolled back. So after a crash the
index says which rows to mark, which are undecided, and which a rollback may change, without a scan
of messages. `ms` is the time of the write, for `max_block`.
"""

import struct
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from messaging.storage.rows import (
    INDEX,
    DamagedRowError,
    NewerRowError,
    count_between,
    frame,
    index_key,
    offset_in,
    prefix_of,
    split_prefix,
    unframe_plain,
)
from tuff.protocol.ids import Offset, TopicId
from tuff.protocol.values import value

MESSAGE_ROWS = b"m"
PAYLOAD_ROWS = b"p"  # stored, and not yet published by a reference row
ASIDE_ROWS = b"a"  # message rows that were set aside: marked, until a commit publishes them again
_KINDS = (MESSAGE_ROWS, PAYLOAD_ROWS, ASIDE_ROWS)
ENDED_COUNT_MAX = 16_384  # pointers; readers are woken long before so many others end

_VALUE = struct.Struct(">QHBQ")
_POINTER = struct.Struct(">Q")
assert (_VALUE.size, _POINTER.size) == (19, 8)
_KIND_AT = len(INDEX) + _POINTER.size


@value(kw_only=True)
class IndexedRange:
    """Neighbouring rows of one write under a pointer; both offsets are included. `payload_bytes`
    counts stored payloads; only the process that stored them knows it, later ones read 0."""

    pointer: int
    kind: bytes
    topic: TopicId
    generation: int
    first: Offset
    last: Offset
    final: bool
    written_ms: int
    payload_bytes: int = 0

    @property
    def prefix(self) -> bytes:
        """The prefix of the row keys of its topic and generation."""
        return prefix_of(self.topic, self.generation)

    @property
    def count(self) -> int:
        """The number of rows: those of one write are neighbours."""
        return count_between(self.first, self.last)

    @property
    def key(self) -> bytes:
        return index_key(self.pointer, self.kind, self.prefix, self.first)

    @property
    def set_aside(self) -> "IndexedRange":
        """The same rows once they are set aside."""
        return replace(self, kind=ASIDE_ROWS)

    def to_bytes(self, key: bytes) -> bytes:
        """The stored value under this key."""
        return frame(key, 0, _VALUE.pack(*self.last, self.final, self.written_ms))

    @classmethod
    def from_bytes(cls, key: bytes, value: bytes) -> "IndexedRange":
        """Raises: DamagedRowError."""
        body = unframe_plain(key, value)
        kind = key[_KIND_AT : _KIND_AT + 1]
        if kind not in _KINDS:
            # With an unknown kind, no code would mark its rows after an abort.
            raise NewerRowError(f"a newer version wrote it, for rows of the kind {kind!r}")
        try:
            topic, generation = split_prefix(key[_KIND_AT + 1 : -10])
            last_ts, last_seq, final, written_ms = _VALUE.unpack(body)
        except (struct.error, ValueError) as error:
            raise DamagedRowError(f"no index row looks like this: {error}") from None
        if final not in (0, 1):
            raise NewerRowError(f"a newer version wrote it, with {final} as its `final`")
        return cls(
            pointer=_POINTER.unpack_from(key, len(INDEX))[0],
            kind=kind,
            topic=topic,
            generation=generation,
            first=offset_in(key),
            last=Offset(last_ts, last_seq),
            final=bool(final),
            written_ms=written_ms,
        )


class _Settling(NamedTuple):
    """The index rows that the next batch deletes, and their topics."""

    keys: list[bytes]
    topics: frozenset[TopicId]


class PointerIndex:
    """The index in memory: that on the disk with the changes of the batch in flight. Lives on the
    event loop."""

    def __init__(self) -> None:
        self._ranges: dict[int, dict[bytes, IndexedRange]] = {}
        # Those of payload rows, also by topic and then by partition: a transaction may store for
        # thousands of them.
        self._stored: dict[int, dict[TopicId, dict[TopicId, dict[bytes, IndexedRange]]]] = {}
        # The number of ranges of message rows of a pointer, and the time of the first; the earliest
        # pointer first. Read several times a second, so a scan of all ranges would be too slow.
        self._publishes: dict[int, tuple[int, int]] = {}
        # Committed pointers with index rows on the disk. If the transaction service forgot them too
        # early, a crash would leave index rows whose outcome is unknown. Public, since each batch
        # checks whether there are any.
        self.settling: dict[int, _Settling] = {}
        # The topics of pointers that ended recently, to wake readers there; their index rows may
        # already be deleted.
        self._ended_topics: OrderedDict[int, frozenset[TopicId]] = OrderedDict()

    def load(self, entries: Iterable[IndexedRange], *, now_ms: int) -> None:
        """Add ranges that may be older than those added before, as those of an opened store. If the
        clock was set back since, their times may be in the future; these are replaced by the
        current time, from which `max_block` counts."""
        for entry in entries:
            self.add(entry)
        self._publishes = {
            pointer: (count, min(first_ms, now_ms))
            for pointer, (count, first_ms) in sorted(
                self._publishes.items(), key=lambda publish: publish[1][1]
            )
        }

    def add(self, entry: IndexedRange) -> None:
        """Add a range that is not older than those added before."""
        self.add_under(entry.key, entry)

    def add_under(self, key: bytes, entry: IndexedRange) -> None:
        """Add a range whose key is known."""
        ranges = self._ranges.setdefault(entry.pointer, {})
        if entry.kind == MESSAGE_ROWS and key not in ranges:
            count, first_ms = self._publishes.get(entry.pointer, (0, entry.written_ms))
            self._publishes[entry.pointer] = count + 1, min(first_ms, entry.written_ms)
        if entry.kind == PAYLOAD_ROWS:
            logs = self._stored.setdefault(entry.pointer, {}).setdefault(entry.topic.base, {})
            logs.setdefault(entry.topic, {})[key] = entry
        ranges[key] = entry

    def discard(self, entry: IndexedRange) -> None:
        """Remove a range; one that is not there is ignored."""
        ranges = self._ranges.get(entry.pointer, {})
        is_known = ranges.pop(entry.key, None) is not None
        if is_known and entry.kind == PAYLOAD_ROWS:
            self._discard_stored(entry)
        elif is_known and entry.kind == MESSAGE_ROWS:
            # The time of the first publish stays while the pointer has other rows.
            count, first_ms = self._publishes[entry.pointer]
            if count > 1:
                self._publishes[entry.pointer] = count - 1, first_ms
            else:
                del self._publishes[entry.pointer]
        if not ranges:
            self._ranges.pop(entry.pointer, None)

    def _discard_stored(self, entry: IndexedRange) -> None:
        by_topic = self._stored[entry.pointer]
        logs = by_topic[entry.topic.base]
        del logs[entry.topic][entry.key]
        if not logs[entry.topic]:
            del logs[entry.topic]
        if not logs:
            del by_topic[entry.topic.base]
        if not by_topic:
            del self._stored[entry.pointer]

    def forget(self, topic: TopicId) -> None:
        """Remove all ranges of a topic that another server owns from now on."""
        for entry in [
            entry
            for ranges in self._ranges.values()
            for entry in ranges.values()
            if entry.topic == topic
        ]:
            self.discard(entry)

    def is_settling(self, topic: TopicId) -> bool:
        """Whether index rows of the topic are about to be deleted."""
        return any(topic in each.topics for each in self.settling.values())

    def ranges(self, pointer: int) -> list[IndexedRange]:
        """The ranges of a pointer that is not settled."""
        return list(self._ranges.get(pointer, {}).values())

    def message_ranges(self, pointer: int) -> list[IndexedRange]:
        return [entry for entry in self.ranges(pointer) if entry.kind == MESSAGE_ROWS]

    def aside_ranges(self, pointer: int) -> list[IndexedRange]:
        """The ranges that were set aside, in the order of their publishes."""
        found = [entry for entry in self.ranges(pointer) if entry.kind == ASIDE_ROWS]
        return sorted(found, key=lambda entry: entry.first)

    def first_aside(self) -> dict[tuple[TopicId, int], Offset]:
        """Where the first row is that was set aside, by topic and generation."""
        found: dict[tuple[TopicId, int], Offset] = {}
        for ranges in self._ranges.values():
            for entry in ranges.values():
                if entry.kind == ASIDE_ROWS:
                    log = entry.topic, entry.generation
                    found[log] = min(found.get(log, entry.first), entry.first)
        return found

    def stored(self, pointer: int, topic: TopicId) -> list[IndexedRange]:
        """Payload rows stored for a topic that no reference row has published yet, of all
        generations, in the order of storing."""
        found = self._logs_with_stored(pointer, topic).get(topic, {})
        return sorted(found.values(), key=lambda entry: entry.first)

    def stored_in(self, pointer: int, topic: TopicId) -> Collection[TopicId]:
        """The partitions of a topic, also deleted ones, for which `stored` has some."""
        return self._logs_with_stored(pointer, topic).keys()

    def _logs_with_stored(
        self, pointer: int, topic: TopicId
    ) -> dict[TopicId, dict[bytes, IndexedRange]]:
        by_topic = self._stored.get(pointer)
        return {} if by_topic is None else by_topic.get(topic.base, {})

    def pointers(self) -> Collection[int]:
        """All pointers with rows that are neither settled nor marked."""
        return self._ranges.keys()

    def may_be_on_disk(self, pointer: int) -> bool:
        """Whether an index row of the pointer may be on disk."""
        return pointer in self._ranges or pointer in self.settling

    def topics(self, pointers: Iterable[int]) -> set[TopicId]:
        """All topics with index rows of these pointers."""
        found: set[TopicId] = set()
        for pointer in pointers:
            if pointer in self._ranges:
                found.update([entry.topic for entry in self._ranges[pointer].values()])
            if pointer in self.settling:
                found.update(self.settling[pointer].topics)
        return found

    def final_pointers(self) -> set[int]:
        return {
            pointer
            for pointer, ranges in self._ranges.items()
            if any(entry.final for entry in ranges.values())
        }

    def published_by(self, at_ms: int) -> Iterator[int]:
        """The pointers whose first message row was written not after this time, the earliest first.
        Takes time in proportion to these pointers only."""
        for pointer, (_, first_ms) in self._publishes.items():
            if first_ms > at_ms:
                return
            yield pointer

    def first_publish_ms(self, pointer: int) -> int | None:
        """When the first message row of the pointer was written; None without undecided ones."""
        found = self._publishes.get(pointer)
        return None if found is None else found[1]

    def undecided_in(self, topic: TopicId, generation: int) -> Iterator[IndexedRange]:
        """All ranges of message rows in one generation of a topic, less those that were set
        aside: they hold no reader back."""
        for ranges in self._ranges.values():
            for entry in ranges.values():
                is_here = (entry.topic, entry.generation) == (topic, generation)
                if is_here and entry.kind == MESSAGE_ROWS:
                    yield entry

    def settle(self, pointers: Iterable[int]) -> list[int]:
        """These pointers committed: remove their rows from the index, in memory now and on the disk
        with the next batch. Those that were set aside stay; returns the pointers that have some."""
        staying: list[int] = []
        for pointer in pointers:
            if pointer not in self._ranges:
                continue
            aside = self.aside_ranges(pointer)
            ranges = self._ranges.pop(pointer)
            self._publishes.pop(pointer, None)
            self._stored.pop(pointer, None)
            topics = frozenset([entry.topic for entry in ranges.values()])
            self._note_ended(pointer, topics)
            if aside:
                staying.append(pointer)
                for entry in aside:
                    del ranges[entry.key]
                    self.add(entry)
                topics = frozenset([entry.topic for entry in ranges.values()])
            if ranges:
                self.settling[pointer] = _Settling(list(ranges), topics)
        return staying

    def next_settling(self, *, count_max: int) -> list[tuple[int, list[bytes]]]:
        """Committed pointers with their index rows to delete, up to about `count_max` rows."""
        taken: list[tuple[int, list[bytes]]] = []
        count = 0
        for pointer, (keys, _) in self.settling.items():
            taken.append((pointer, keys))
            count += len(keys)
            if count >= count_max:
                break
        return taken

    def settled(self, pointers: Iterable[int]) -> None:
        """The index rows of these pointers are deleted durably."""
        for pointer in pointers:
            self.settling.pop(pointer, None)

    def marked(self, entries: Iterable[IndexedRange]) -> None:
        """The rows of these ranges are marked, and their index rows deleted, durably."""
        for entry in entries:
            known = self._ended_topics.get(entry.pointer, frozenset())
            self._note_ended(entry.pointer, known | {entry.topic})
            self.discard(entry)

    def ended_topics(self, pointers: Iterable[int]) -> set[TopicId]:
        """The topics on which readers may wait for one of these pointers."""
        found = self.topics(pointers)
        for pointer in pointers:
            if pointer in self._ended_topics:
                found |= self._ended_topics.pop(pointer)
        return found

    def _note_ended(self, pointer: int, topics: frozenset[TopicId]) -> None:
        self._ended_topics[pointer] = topics
        while len(self._ended_topics) > ENDED_COUNT_MAX:
            self._ended_topics.popitem(last=False)
