"""Whether a store is whole, and its rows fit together: what `tuff fsck` tells of it (promise 8)."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from messaging.bookmarks import Hold
from messaging.facts import Facts, Mark
from messaging.index import MESSAGE_ROWS, IndexedRange
from messaging.keys import (
    FACTS,
    FACTS_KEY,
    HOLDS,
    INDEX,
    MARK_KEY,
    MESSAGES,
    PAYLOADS,
    TOPICS,
    place_in,
    pointer_in,
    row_prefix,
    split_bookmark,
    split_prefix,
    split_topic,
)
from messaging.remains import Remain, Remains, shown
from messaging.rows import MessageRow, PayloadRange
from messaging.sequence import BEFORE_ALL
from messaging.storage.leveldb_files import Hole
from messaging.topics import TopicRecord
from tuff.disk.findings import NEWER, Finding
from tuff.protocol.ids import Place
from tuff.protocol.names import TopicId

SALVAGE = "read what is whole into a new directory with `tuff salvage`, or restore a backup"

_Owned = tuple[bytes, int]  # a prefix, and the pointer of its rows


@dataclass
class StoreAccount:
    """What the rows say, as far as transaction files must agree with it. `pointers` are those with
    index rows, `highest_pointer` the highest under which any row was written."""

    findings: list[Finding] = field(default_factory=list)
    facts: Facts | None = None
    mark: Mark | None = None
    pointers: set[int] = field(default_factory=set)
    highest_pointer: int = 0
    row_count: int = 0


@dataclass
class _Brought:
    key: bytes
    brings: PayloadRange
    found: int = 0


@dataclass
class _Indexed:
    entry: IndexedRange
    found: int = 0


def check_store(directory: Path, *, now_ms: int) -> StoreAccount:
    """Read every row of a store that nobody has open. Changes nothing.

    Raises: OSError: a file can't be read.
    """
    check = _Check(now_ms)
    remains = Remains(directory)
    # A damaged block has a hole for each stretch between two whole rows, and is told once.
    findings = (hole_finding(directory.name, hole) for hole in remains.holes)
    check.account.findings += dict.fromkeys(findings)
    for remain in remains.rows():
        check.take(remain)
    check.finish()
    return check.account


def hole_finding(directory: str, hole: Hole) -> Finding:
    """What a hole in the engine's files is to a person."""
    reason = hole.reason
    if hole.is_tail:
        reason += "; a write that a crash cut off, of which nothing was acknowledged, or damage"
    place = f"{directory}/{hole.file} at byte {hole.offset}"
    return Finding(place, reason, SALVAGE, is_damage=not hole.is_tail)


class _Check:
    """Takes the rows in the order of their keys: holds, index, messages, payloads,
    positions, facts, topics."""

    def __init__(self, now_ms: int) -> None:
        self.account = StoreAccount()
        self._now_ms = now_ms
        self._last = BEFORE_ALL
        self._prefixes: dict[bytes, int] = defaultdict(int)
        self._topics: dict[TopicId, TopicRecord] = {}
        self._holds: dict[tuple[TopicId, int], list[Hold]] = defaultdict(list)
        self._indexed: dict[_Owned, list[_Indexed]] = defaultdict(list)
        self._brought: dict[_Owned, list[_Brought]] = defaultdict(list)
        self._takers: Mapping[bytes, Callable[[bytes, bytes], None]] = {
            INDEX: self._take_index,
            MESSAGES: self._take_message,
            PAYLOADS: self._take_payload,
            TOPICS: self._take_topic,
            FACTS: self._take_fact,
            HOLDS: self._take_hold,
        }

    def take(self, remain: Remain) -> None:
        """Note what a row says, or how it is damaged."""
        if remain.damage is not None:
            advice = NEWER if remain.is_newer else SALVAGE
            self._find(shown(remain.key), remain.damage, advice)
        if remain.value is None:
            return
        self.account.row_count += 1
        key, value = remain.key, remain.value
        taker = self._takers.get(key[:1])
        if taker is not None:
            taker(key, value)

    def finish(self) -> None:
        """Compare what the rows said of each other."""
        self._check_topics()
        self._check_references()
        self._check_index()
        self._check_mark()

    def _find(self, place: str, reason: str, advice: str, *, is_damage: bool = True) -> None:
        self.account.findings.append(Finding(place, reason, advice, is_damage))

    def _take_topic(self, key: bytes, value: bytes) -> None:
        self._topics[split_topic(key[1:])] = TopicRecord.from_bytes(key, value)

    def _take_hold(self, key: bytes, value: bytes) -> None:
        topic, generation, _ = split_bookmark(key)
        self._holds[topic, generation].append(Hold.from_bytes(key, value))

    def _take_index(self, key: bytes, value: bytes) -> None:
        entry = IndexedRange.from_bytes(key, value)
        self._note_pointer(entry.pointer)
        self.account.pointers.add(entry.pointer)
        self._indexed[entry.prefix, entry.pointer].append(_Indexed(entry))

    def _take_message(self, key: bytes, value: bytes) -> None:
        row = MessageRow.from_bytes(key, value)
        prefix, place = row_prefix(key), place_in(key)
        self._note_row(prefix, place)
        if row.tx_pointer is None:
            return
        pointer = abs(row.tx_pointer)
        self._note_pointer(pointer)
        self._note_indexed(prefix, pointer, place, is_message=True)
        if row.reference is not None and row.reference.count:
            self._brought[prefix, pointer].append(_Brought(key, row.reference))

    def _take_payload(self, key: bytes, _value: bytes) -> None:
        prefix, place, pointer = row_prefix(key), place_in(key), pointer_in(key)
        self._note_row(prefix, place)
        self._note_pointer(pointer)
        self._note_indexed(prefix, pointer, place, is_message=False)
        for brought in self._brought.get((prefix, pointer), ()):
            if brought.brings.first <= place <= brought.brings.last:
                brought.found += 1

    def _take_fact(self, key: bytes, value: bytes) -> None:
        if key == MARK_KEY:
            self.account.mark = Mark.from_bytes(key, value)
        elif key == FACTS_KEY:
            self.account.facts = Facts.from_bytes(key, value)

    def _note_row(self, prefix: bytes, place: Place) -> None:
        self._prefixes[prefix] += 1
        self._last = max(self._last, place)

    def _note_pointer(self, pointer: int) -> None:
        self.account.highest_pointer = max(self.account.highest_pointer, pointer)

    def _note_indexed(self, prefix: bytes, pointer: int, place: Place, *, is_message: bool) -> None:
        for indexed in self._indexed.get((prefix, pointer), ()):
            entry = indexed.entry
            if (entry.kind == MESSAGE_ROWS) == is_message and entry.first <= place <= entry.last:
                indexed.found += 1

    def _check_topics(self) -> None:
        for prefix, count in self._prefixes.items():
            topic, generation = split_prefix(prefix)
            record = self._topics.get(topic)
            if record is None:
                reason = f"{count} rows of generation {generation} are there, and no topic row"
                self._find(f"topic {topic}", reason, SALVAGE)
            elif generation > abs(record.generation):
                reason = f"{count} rows are of generation {generation}, and the topic row says "
                self._find(f"topic {topic}", reason + str(record.generation), SALVAGE)

    def _check_references(self) -> None:
        longest_ms = self.account.facts.longest_transaction_ms if self.account.facts else 0
        for brought in (each for found in self._brought.values() for each in found):
            brings = brought.brings
            if brought.found < brings.count and self._is_shown(brought.key):
                # Retention drops no payload earlier, whatever its own time to live.
                is_damage = self._now_ms < brings.first.timestamp_ms + longest_ms
                reason = f"it brings {brings.count} stored messages, and {brought.found} are there"
                if not is_damage:
                    reason += "; those with a short time to live of their own may have expired"
                self._find(shown(brought.key), reason, SALVAGE, is_damage=is_damage)

    def _is_shown(self, key: bytes) -> bool:
        topic, generation = split_prefix(row_prefix(key))
        record, place = self._topics.get(topic), place_in(key)
        if record is None or record.generation != generation:
            return False
        rule = replace(record.rule, holds=tuple(self._holds[topic, generation]))
        return place >= max(rule.floor, rule.live_from(now_ms=self._now_ms))

    def _check_index(self) -> None:
        for indexed in (each for found in self._indexed.values() for each in found):
            entry = indexed.entry
            if indexed.found < entry.count:
                reason = f"it stands for {entry.count} rows, and {indexed.found} are there; "
                reason += "others may have expired"
                self._find(shown(entry.key), reason, SALVAGE, is_damage=False)

    def _check_mark(self) -> None:
        mark = self.account.mark
        if mark is None and self.account.row_count:
            self._find("the mark of the store", "it is missing", SALVAGE)
        elif mark is not None and self._last > mark.last:
            reason = f"it stands at {_text(mark.last)}, and rows up to {_text(self._last)}"
            self._find("the mark of the store", reason, SALVAGE)
        if self.account.facts is None and self.account.row_count:
            reason = "it is missing, and the first batch of rows wrote it"
            self._find("the store's record of the transaction files", reason, SALVAGE)


def _text(place: Place) -> str:
    return f"{place.timestamp_ms}:{place.seq_id}"
