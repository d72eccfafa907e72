"""The pointer index: which transaction published what (design §5, Pointer index).

    index row := key: pointer kind prefix first    value: flags(1) crc(4) last(10) final(1) ms(8)

A batch with rows under a pointer also contains one index row with their range. It is deleted once
the transaction is durably committed, or its rows are rolled back. So after a crash the
index says which rows to roll back, which are undecided, and which a client may roll back, without a
scan of messages. `ms` is the time of the write, for `max_block`.

A commit also moves rows: those that were set aside return to their topics, and undecided delayed
messages wait for their due times. Such an index row stays until the batch that moves its rows.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice, repeat

from messaging.model.row_format import (
    HEAD,
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
from tuff.protocol.ids import GROUP_LOG, SHARE_LOG, Offset, TopicId
from tuff.protocol.values import value
from tuff_storage.checksum import crc32

MESSAGE_ROWS = b"m"
PAYLOAD_ROWS = b"p"  # stored, and not yet published by a reference row
ASIDE_ROWS = b"a"  # set aside: rolled back, until a commit publishes them again
DELAYED_ROWS = b"d"  # undecided rows of delayed messages
MOVED_KINDS = frozenset((ASIDE_ROWS, DELAYED_ROWS))  # a commit moves the rows
PUBLISHED_KINDS = frozenset((MESSAGE_ROWS, DELAYED_ROWS))
_KINDS = (MESSAGE_ROWS, PAYLOAD_ROWS, ASIDE_ROWS, DELAYED_ROWS)
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
    def blocks_readers(self) -> bool:
        """Whether readers wait for the end of the transaction: not for delayed messages, and not
        for the logs of groups, whose own rows the groups read."""
        return self.kind == MESSAGE_ROWS and not _is_of_group(self.topic)

    @property
    def key(self) -> bytes:
        return index_key(self.pointer, self.kind, self.prefix, self.first)

    @property
    def set_aside(self) -> IndexedRange:
        """The range after its rows were set aside."""
        return replace(self, kind=ASIDE_ROWS)

    def to_bytes(self, key: bytes) -> bytes:
        """The stored value under this key."""
        return frame(key, 0, _VALUE.pack(*self.last, self.final, self.written_ms))

    @classmethod
    def from_bytes(cls, key: bytes, value: bytes) -> IndexedRange:
        """Raises: DamagedRowError."""
        body = unframe_plain(key, value)
        kind = key[_KIND_AT : _KIND_AT + 1]
        if kind not in _KINDS:
            # With an unknown kind, no code would roll back its rows after an abort.
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


def final_index_rows(
    prefix: bytes,
    pointers: Sequence[int],
    firsts: Sequence[bytes],
    lasts: Sequence[bytes],
    *,
    written_ms: int,
) -> tuple[list[bytes], list[bytes]]:
    """The keys and values of the index rows of final message rows in one generation of a topic, by
    the packed offsets of the first and the last row of each pointer. They are those of
    `IndexedRange`, in a tenth of the time."""
    kind_and_prefix = MESSAGE_ROWS + prefix
    keys = [
        INDEX + pointer + kind_and_prefix + first
        for pointer, first in zip(map(_POINTER.pack, pointers), firsts, strict=True)
    ]
    end = b"\x01" + written_ms.to_bytes(8, "big")
    values = [
        HEAD.pack(0, crc32(key + b"\x00" + last + end)) + last + end
        for key, last in zip(keys, lasts, strict=True)
    ]
    return keys, values


# The keys of index rows, their topics, and the value of the only one of a packed pointer.
_Rows = tuple[Sequence[bytes], frozenset[TopicId], bytes]


def _is_of_group(topic: TopicId) -> bool:
    return topic.name.endswith((GROUP_LOG, SHARE_LOG))


class PointerIndex:
    """The index in memory: that on the disk with the changes of the batch in flight. Lives on the
    event loop."""

    def __init__(self) -> None:
        self._ranges: dict[int, dict[bytes, IndexedRange]] = {}
        # Pointers of which the only range is the final one of a commit, as its index row. Nearly
        # all of them end before anything is asked about the range.
        self._packed: dict[int, _Rows] = {}
        # Those of payload rows, also by topic and then by partition: a transaction may store for
        # thousands of them.
        self._stored: dict[int, dict[TopicId, dict[TopicId, dict[bytes, IndexedRange]]]] = {}
        # How many ranges of a pointer block readers, and the time of the first; the earliest
        # pointer first. Read several times a second, so a scan of all ranges would be too slow.
        self._publishes: dict[int, tuple[int, int]] = {}
        # Committed pointers with index rows on the disk. If the transaction service forgot them too
        # early, a crash would leave index rows whose outcome is unknown. Public, since each batch
        # checks whether there are any.
        self.ending: dict[int, _Rows] = {}
        # Pointers that ended, and whose rows are still to be rolled back.
        self.rolling_back: set[int] = set()
        # Pointers whose rows this process did not write, or not alone: a rollback of them may have
        # been cut off between two steps.
        self._found: set[int] = set()
        # The topics of pointers that ended recently, to wake readers there; their index rows may
        # already be deleted.
        self._ended_topics: OrderedDict[int, frozenset[TopicId]] = OrderedDict()

    def load(self, entries: Iterable[IndexedRange], *, now_ms: int) -> None:
        """Add ranges that may be older than those added before, as those of an opened store. If the
        clock was set back since, their times may be in the future; these are replaced by the
        current time, from which `max_block` counts."""
        for entry in entries:
            self.add(entry)
            self._found.add(entry.pointer)
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
        if entry.pointer in self._packed:
            self._unpack(entry.pointer)
        ranges = self._ranges.setdefault(entry.pointer, {})
        if entry.blocks_readers and key not in ranges:
            count, first_ms = self._publishes.get(entry.pointer, (0, entry.written_ms))
            self._publishes[entry.pointer] = count + 1, min(first_ms, entry.written_ms)
        if entry.kind == PAYLOAD_ROWS:
            logs = self._stored.setdefault(entry.pointer, {}).setdefault(entry.topic.base, {})
            logs.setdefault(entry.topic, {})[key] = entry
        ranges[key] = entry

    def add_final(
        self,
        pointers: Sequence[int],
        keys: Sequence[bytes],
        values: Sequence[bytes],
        *,
        topic: TopicId,
        written_ms: int,
    ) -> None:
        """Add final message rows of one topic by their index rows, which are not older than any
        range here."""
        topics = frozenset((topic,))
        rows = zip(zip(keys, strict=False), repeat(topics), values, strict=False)
        new = dict(zip(pointers, rows, strict=False))
        if (
            len(new) < len(pointers)
            or not self._packed.keys().isdisjoint(new)
            or not self._ranges.keys().isdisjoint(new)
        ):
            for key, value in zip(keys, values, strict=True):
                self.add_under(key, IndexedRange.from_bytes(key, value))
            return
        self._packed.update(new)
        if not _is_of_group(topic):
            self._publishes.update(dict.fromkeys(pointers, (1, written_ms)))

    def _unpack(self, pointer: int) -> None:
        (key,), _, value = self._packed.pop(pointer)
        self._ranges[pointer] = {key: IndexedRange.from_bytes(key, value)}

    def _unpack_all(self) -> None:
        for pointer in [*self._packed]:
            self._unpack(pointer)

    def _ranges_of(self, pointer: int) -> dict[bytes, IndexedRange]:
        if pointer in self._packed:
            self._unpack(pointer)
        return self._ranges.get(pointer, {})

    def discard(self, entry: IndexedRange) -> None:
        """Remove a range; one that is not there is ignored."""
        self.discard_under(entry.key)

    def discard_under(self, key: bytes) -> None:
        """Remove the range of an index row, by the key of the row; one that is not there is
        ignored."""
        (pointer,) = _POINTER.unpack_from(key, len(INDEX))
        ranges = self._ranges_of(pointer)
        entry = ranges.pop(key, None)
        if entry is None:
            return
        if entry.kind == PAYLOAD_ROWS:
            self._discard_stored(entry)
        elif entry.blocks_readers:
            # The time of the first publish stays while the pointer has other rows.
            count, first_ms = self._publishes[entry.pointer]
            if count > 1:
                self._publishes[entry.pointer] = count - 1, first_ms
            else:
                del self._publishes[entry.pointer]
        if not ranges:
            del self._ranges[pointer]

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
        self._unpack_all()
        for entry in [
            entry
            for ranges in self._ranges.values()
            for entry in ranges.values()
            if entry.topic == topic
        ]:
            self.discard(entry)

    def is_ending(self, topic: TopicId) -> bool:
        """Whether index rows of the topic are about to be deleted."""
        return any(topic in topics for _, topics, _ in self.ending.values())

    def ranges(self, pointer: int) -> list[IndexedRange]:
        """The ranges of a pointer whose transaction has not ended."""
        return list(self._ranges_of(pointer).values())

    def first_ranges(self, pointers: Iterable[int], count: int) -> list[IndexedRange]:
        """The first ranges of these pointers, up to `count`."""
        ranges = chain.from_iterable(self._ranges_of(pointer).values() for pointer in pointers)
        return list(islice(ranges, count))

    def message_ranges(self, pointer: int) -> list[IndexedRange]:
        return [entry for entry in self.ranges(pointer) if entry.kind == MESSAGE_ROWS]

    def has(self, entry: IndexedRange) -> bool:
        """Whether the range is here, and its transaction has not ended."""
        return entry.key in self._ranges_of(entry.pointer)

    def has_ranges(self, pointer: int) -> bool:
        """Whether the pointer has ranges, and its transaction has not ended with a commit."""
        return pointer in self._ranges or pointer in self._packed

    def may_lack_rows(self, pointers: Iterable[int]) -> bool:
        """Whether a rollback may have left only a part of these pointers' rows until now: it is
        under way, or a crash may have cut it off."""
        return any(each in self.rolling_back or each in self._found for each in pointers)

    def published_ranges(self, pointer: int) -> list[IndexedRange]:
        """The ranges of messages, also of delayed ones."""
        return [entry for entry in self.ranges(pointer) if entry.kind in PUBLISHED_KINDS]

    def moved_ranges(self, pointer: int) -> list[IndexedRange]:
        """The ranges whose rows a commit moves, in the order of their publishes."""
        found = [entry for entry in self.ranges(pointer) if entry.kind in MOVED_KINDS]
        return sorted(found, key=lambda entry: entry.first)

    def has_rows_to_move(self, pointers: Collection[int]) -> bool:
        """Whether one of these pointers has ranges whose rows a commit moves."""
        if self._ranges.keys().isdisjoint(pointers):  # the usual case
            return False
        return any(map(self.moved_ranges, pointers))

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
        """All pointers with rows that are neither ended nor rolled back."""
        return [*self._ranges, *self._packed]

    def may_be_on_disk(self, pointer: int) -> bool:
        """Whether an index row of the pointer may be on disk."""
        return pointer in self._ranges or pointer in self._packed or pointer in self.ending

    def topics(self, pointers: Iterable[int]) -> set[TopicId]:
        """All topics with index rows of these pointers."""
        found: set[TopicId] = set()
        for pointer in pointers:
            if pointer in self._packed:
                found.update(self._packed[pointer][1])
            elif pointer in self._ranges:
                found.update([entry.topic for entry in self._ranges[pointer].values()])
            if pointer in self.ending:
                found.update(self.ending[pointer][1])
        return found

    def final_pointers(self) -> set[int]:
        return {
            *self._packed,
            *(
                pointer
                for pointer, ranges in self._ranges.items()
                if any(entry.final for entry in ranges.values())
            ),
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
        aside: they block no reader."""
        self._unpack_all()
        for ranges in self._ranges.values():
            for entry in ranges.values():
                is_here = (entry.topic, entry.generation) == (topic, generation)
                if is_here and entry.kind == MESSAGE_ROWS:
                    yield entry

    def end_committed(self, pointers: Iterable[int]) -> list[int]:
        """These pointers committed: remove their rows from the index, in memory now and on the disk
        with the next batch. Those whose rows a commit moves stay; returns the pointers that have
        some."""
        staying: list[int] = []
        for pointer in pointers:
            packed = self._packed.pop(pointer, None)
            if packed is not None:
                self._publishes.pop(pointer, None)
                self._note_ended(pointer, packed[1])
                self.ending[pointer] = packed
                continue
            if pointer not in self._ranges:
                continue
            moved = self.moved_ranges(pointer)
            ranges = self._ranges.pop(pointer)
            self._publishes.pop(pointer, None)
            self._stored.pop(pointer, None)
            topics = frozenset([entry.topic for entry in ranges.values()])
            self._note_ended(pointer, topics)
            if moved:
                staying.append(pointer)
                for entry in moved:
                    del ranges[entry.key]
                    self.add(entry)
                topics = frozenset([entry.topic for entry in ranges.values()])
            if ranges:
                self.ending[pointer] = list(ranges), topics, b""
        return staying

    def next_ending(self, *, count_max: int) -> tuple[list[int], list[bytes]]:
        """Committed pointers, and the keys of their index rows to delete, up to about `count_max`
        of them."""
        pointers: list[int] = []
        deleted: list[bytes] = []
        for pointer, (keys, _, _) in self.ending.items():
            pointers.append(pointer)
            deleted += keys
            if len(deleted) >= count_max:
                break
        return pointers, deleted

    def forget_ended(self, pointers: Iterable[int]) -> None:
        """The index rows of these pointers are deleted durably."""
        for pointer in pointers:
            self.ending.pop(pointer, None)

    def rolled_back(self, entries: Iterable[IndexedRange]) -> None:
        """The rows of these ranges are rolled back, and their index rows deleted, durably."""
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
