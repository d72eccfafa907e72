"""A new store with every row that is whole, and nothing undecided: `tuff salvage` (promise 8).

A row with a pointer stays visible to snapshots only where a commit is proven: by the transaction
files, or by the index, from which a pointer goes once it is durably committed. Any other row gets
its pointer's sign turned, as a rollback does: readers without a snapshot see it as before, readers
in a snapshot never will. So the new store needs no index rows.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from messaging.check import SALVAGE, hole_finding
from messaging.facts import Facts, Mark
from messaging.index import IndexedRange
from messaging.keys import (
    FACTS,
    FACTS_KEY,
    INDEX,
    MARK_KEY,
    MESSAGES,
    PAYLOADS,
    TOPICS,
    place_in,
    pointer_in,
    row_prefix,
    split_prefix,
    split_topic,
    topic_key,
)
from messaging.remains import LOG_SUFFIX, TABLES, Remain, Remains, shown
from messaging.rows import MessageRow, PayloadRange
from messaging.sequence import BEFORE_ALL
from messaging.storage.leveldb_files import Version
from messaging.storage.seam import Store, StoreError
from messaging.topics import TTL_S_MAX, TopicRecord
from tuff.disk.findings import NEWER, Decision, Finding
from tuff.protocol.ids import Place
from tuff.protocol.names import TopicId

BATCH_BYTES_MAX = 4 << 20  # bytes of one write to the new store; a sync each

_POINTER_SIZE = 8


class Ending(Enum):
    """What the transaction files prove of a pointer. FORGOTTEN: they are whole and know nothing of
    it, so that it ended long ago and its index row was gone; UNKNOWN: they prove nothing."""

    COMMITTED = "committed"
    NOT_COMMITTED = "not committed"
    FORGOTTEN = "forgotten"
    UNKNOWN = "unknown"


@dataclass
class Salvaged:
    """What was kept, lost and decided. `hidden` and `settled` are the pointers whose rows were
    turned, and those whose rows are proven committed by the rows alone."""

    kept: Counter[str] = field(default_factory=Counter)
    lost: list[Finding] = field(default_factory=list)
    decided: list[Decision] = field(default_factory=list)
    facts: Facts = field(default_factory=Facts)
    hidden: set[int] = field(default_factory=set)
    settled: set[int] = field(default_factory=set)
    highest_pointer: int = 0


@dataclass
class _Reference:
    key: bytes
    row: MessageRow
    found: int = 0


def begin_store(new: Store, facts: Facts, published: Place) -> None:
    """Write a store of which nothing is left but what is known elsewhere. Its mark has seen no edit
    of the transactions: that messages are missing from it is known. Raises: StoreError."""
    mark = Mark(batch_number=1, last=max(BEFORE_ALL, published))
    new.write([(FACTS_KEY, facts.to_bytes(FACTS_KEY)), (MARK_KEY, mark.to_bytes(MARK_KEY))])


class Salvage:
    """Reads a damaged store, and writes a new one. Blocks."""

    def __init__(self, directory: Path, new: Store, *, ending: Callable[[int], Ending]) -> None:
        """Raises: OSError: a file can't be read."""
        self._remains = Remains(directory)
        self._new = new
        self._ending = ending
        self.account = Salvaged()
        findings = (hole_finding(directory.name, hole) for hole in self._remains.holes)
        self.account.lost += dict.fromkeys(findings)
        self._indexed, self._unmarked = _pointers_in_doubt(self._remains)
        self._has_log_holes = any(hole.first is not None for hole in self._remains.holes)
        self._last = BEFORE_ALL
        self._batch_number = 0
        self._clock_ms: int | None = None
        self._generations: dict[TopicId, int] = {}
        self._topics: dict[TopicId, TopicRecord] = {}
        self._references: dict[tuple[bytes, int], list[_Reference]] = {}
        self._batch: list[tuple[bytes, bytes | None]] = []
        self._batch_bytes = 0
        self._takers: Mapping[bytes, Callable[[Remain, bytes], None]] = {
            INDEX: self._pass_index,
            MESSAGES: self._keep_message,
            PAYLOADS: self._keep_payload,
            TOPICS: self._note_topic,
            FACTS: self._note_fact,
        }

    def run(self) -> Salvaged:
        """Write every row but the facts. Raises: StoreError, OSError."""
        for remain in self._remains.rows():
            if remain.damage is not None:
                self._lose(remain)
            if remain.value is not None:
                self._takers.get(remain.key[:1], self._copy)(remain, remain.value)
        for references in self._references.values():
            for reference in references:
                self._keep_reference(reference)
        self._keep_topics()
        return self.account

    def finish(self, facts: Facts, published: Place) -> None:
        """Write the facts, and the mark above all that was published. Raises: StoreError."""
        self._last = max(self._last, published)
        mark = Mark(batch_number=self._batch_number + 1, last=self._last, clock_ms=self._clock_ms)
        self._put(FACTS_KEY, facts.to_bytes(FACTS_KEY))
        self._put(MARK_KEY, mark.to_bytes(MARK_KEY))
        self._flush()

    def _lose(self, remain: Remain) -> None:
        assert remain.damage is not None
        if remain.is_newer:
            # Left out, it would be lost to the version that can read it.
            raise StoreError(f"{shown(remain.key)}: {remain.damage}; {NEWER}")
        self.account.lost.append(Finding(shown(remain.key), remain.damage, SALVAGE))
        if remain.value is not None:
            reason = "its newest version is damaged, and the one before it was taken"
            self._decide(shown(remain.key), reason)

    def _decide(self, place: str, reason: str) -> None:
        self.account.decided.append(Decision(place, reason))

    def _put(self, key: bytes, value: bytes) -> None:
        self._batch.append((key, value))
        self._batch_bytes += len(key) + len(value)
        self.account.kept[TABLES.get(key[:1], "unknown")] += 1
        if self._batch_bytes >= BATCH_BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        self._new.write(self._batch)
        self._batch, self._batch_bytes = [], 0

    def _copy(self, remain: Remain, value: bytes) -> None:
        self._put(remain.key, value)

    def _pass_index(self, remain: Remain, value: bytes) -> None:
        entry = IndexedRange.from_bytes(remain.key, value)
        self._note_pointer(entry.pointer)
        self._last = max(self._last, entry.last)

    def _note_pointer(self, pointer: int) -> None:
        self.account.highest_pointer = max(self.account.highest_pointer, pointer)

    def _note_place(self, key: bytes) -> None:
        self._last = max(self._last, place_in(key))
        topic, generation = split_prefix(row_prefix(key))
        self._generations[topic] = max(self._generations.get(topic, 0), generation)

    def _keep_message(self, remain: Remain, value: bytes) -> None:
        self._note_place(remain.key)
        row = MessageRow.from_bytes(remain.key, value)
        if row.tx_pointer is not None:
            self._note_pointer(abs(row.tx_pointer))
            row = self._decided(remain, row, row.tx_pointer)
        if row.reference is None:
            self._put(remain.key, row.to_bytes(remain.key))
            return
        pointer = abs(row.tx_pointer or 0)
        owned = self._references.setdefault((row_prefix(remain.key), pointer), [])
        owned.append(_Reference(remain.key, row))

    def _decided(self, remain: Remain, row: MessageRow, pointer: int) -> MessageRow:
        """The row, with its pointer's sign turned unless its commit is proven."""
        if pointer < 0:
            return row
        ending = self._ending(pointer)
        if ending is Ending.COMMITTED:
            return row
        if ending is not Ending.NOT_COMMITTED and self._is_settled(remain, pointer, ending):
            self.account.settled.add(pointer)
            return row
        self.account.hidden.add(pointer)
        return replace(row, tx_pointer=-pointer)

    def _is_settled(self, remain: Remain, pointer: int, ending: Ending) -> bool:
        """Whether the rows alone prove that this one's transaction committed."""
        # A newer version of this very row may be lost, which said that it was rolled back.
        if remain.is_doubtful or pointer in self._unmarked:
            return False
        if pointer in self._indexed:
            # An index row that came back, since its deletion is lost, and nothing else can be.
            return ending is Ending.FORGOTTEN and not self._has_log_holes and self._hides(pointer)
        return ending is Ending.FORGOTTEN or not self._hides(pointer)

    def _hides(self, pointer: int) -> bool:
        """Whether an index row of this pointer, or its deletion, may be lost in a table."""
        low = INDEX + pointer.to_bytes(_POINTER_SIZE, "big")
        return self._remains.hides(low, low + b"\xff")

    def _keep_payload(self, remain: Remain, value: bytes) -> None:
        self._note_place(remain.key)
        pointer, place = pointer_in(remain.key), place_in(remain.key)
        self._note_pointer(pointer)
        self._put(remain.key, value)
        for reference in self._references.get((row_prefix(remain.key), pointer), ()):
            brings = reference.row.reference
            if brings is not None and brings.first <= place <= brings.last:
                reference.found += 1

    def _keep_reference(self, reference: _Reference) -> None:
        brings = reference.row.reference
        assert brings is not None
        row = reference.row
        if reference.found < brings.count:
            there = PayloadRange(brings.first, brings.last, reference.found)
            row = replace(row, reference=there)
            reason = f"of its {brings.count} stored messages {reference.found} are left"
            self._decide(shown(reference.key), reason)
        self._put(reference.key, row.to_bytes(reference.key))

    def _note_topic(self, remain: Remain, value: bytes) -> None:
        topic = split_topic(remain.key[1:])
        self._topics[topic] = TopicRecord.from_bytes(remain.key, value)
        if remain.is_doubtful:
            self._decide(
                f"topic {topic}",
                "its row may be an older one: a later change, truncation or deletion may be undone",
            )

    def _note_fact(self, remain: Remain, value: bytes) -> None:
        if remain.key == FACTS_KEY:
            self.account.facts = Facts.from_bytes(remain.key, value)
        elif remain.key == MARK_KEY:
            mark = Mark.from_bytes(remain.key, value)
            self._last = max(self._last, mark.last)
            self._batch_number, self._clock_ms = mark.batch_number, mark.clock_ms
        else:
            self._put(remain.key, value)

    def _keep_topics(self) -> None:
        for topic in sorted({*self._topics, *self._generations}):
            record, generation = self._topics.get(topic), self._generations.get(topic, 0)
            if record is None:
                record = TopicRecord(generation=generation, properties={"ttl": str(TTL_S_MAX)})
                reason = (
                    f"its row is lost; made anew with generation {generation} and the longest ttl, "
                    "so what was deleted, truncated or expired may be back: set its properties"
                )
                self._decide(f"topic {topic}", reason)
            elif generation > abs(record.generation):
                record = replace(record, generation=generation)
                self._decide(f"topic {topic}", f"generation {generation}, as its newest rows have")
            self._last = max(self._last, record.floor.place)
            self._put(topic_key(topic), record.to_bytes(topic_key(topic)))


def _pointers_in_doubt(remains: Remains) -> tuple[set[int], set[int]]:
    """Pointers with index rows; and those whose marks may be lost in a hole of a log, though their
    index rows were removed behind it: more rows than fit one batch are marked by several."""
    stops = [hole.stop for hole in remains.holes if hole.stop is not None]
    indexed: set[int] = set()
    unmarked: set[int] = set()
    for versions in remains.versions():
        key = versions[0].key
        if key[:1] != INDEX:
            continue
        pointer = int.from_bytes(key[1 : 1 + _POINTER_SIZE], "big")
        if any(_is_between(versions, stop) for stop in stops):
            unmarked.add(pointer)
        if versions[0].value is not None:
            indexed.add(pointer)
    return indexed, unmarked


def _is_between(versions: list[Version], stop: int) -> bool:
    newest, oldest = versions[0], versions[-1]
    is_removed_behind = newest.value is None and newest.sequence >= stop
    return is_removed_behind and oldest.sequence < stop and newest.file.endswith(LOG_SUFFIX)
