"""Check every row of a message store, and the rows against each other: a part of `tuff fsck`."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from admin.findings import Finding
from admin.leveldb_survey import Hole
from admin.readable_rows import ReadableRows, ReadRow, row_name
from messaging.storage.pointer_index import MESSAGE_ROWS, IndexedRange
from messaging.storage.rows import (
    BEFORE_ALL,
    HOLDS,
    INDEX,
    LAST_BATCH_KEY,
    MESSAGES,
    METADATA,
    METADATA_KEY,
    PAYLOADS,
    TOPICS,
    Hold,
    LastBatch,
    MessageRow,
    PayloadRange,
    StoreMetadata,
    offset_in,
    pointer_in,
    row_prefix,
    split_named_row_key,
    split_prefix,
    split_topic,
)
from messaging.topics import TopicRecord
from tuff.protocol.ids import Offset, TopicId
from tx.files import NEWER

SALVAGE_ADVICE = (
    "write what can be read to a new directory with `tuff salvage`, or restore a backup"
)

_Owned = tuple[bytes, int]  # a prefix, and the pointer of its rows


@dataclass
class MessageStoreReport:
    """What is wrong with the store, and what the transaction files must agree with. `pointers` are
    those with index rows, `highest_pointer` is the highest one with which any row was written."""

    findings: list[Finding] = field(default_factory=list)
    metadata: StoreMetadata | None = None
    last_batch: LastBatch | None = None
    pointers: set[int] = field(default_factory=set)
    highest_pointer: int = 0
    row_count: int = 0


@dataclass
class _Reference:
    """A message row that references payload rows, and how many of these were found."""

    key: bytes
    payloads: PayloadRange
    found: int = 0


@dataclass
class _IndexEntry:
    """An index row, and how many of the rows that it stands for were found."""

    entry: IndexedRange
    found: int = 0


def check_message_store(directory: Path, *, now_ms: int) -> MessageStoreReport:
    """Read every row of a store that no process has open. Changes nothing.

    Raises: OSError: a file can't be read.
    """
    check = _Check(now_ms)
    readable = ReadableRows(directory)
    check.report.findings += hole_findings(directory, readable)
    for row in readable.rows():
        check.take(row)
    check.finish()
    return check.report


def hole_findings(directory: Path, readable: ReadableRows) -> list[Finding]:
    """A finding for each stretch of the engine's files that can't be read."""
    # A corrupt block has a hole for each gap between two intact rows, and is reported once.
    return list(dict.fromkeys(_hole_finding(directory.name, hole) for hole in readable.holes))


def _hole_finding(directory: str, hole: Hole) -> Finding:
    reason = hole.reason
    if hole.is_tail:
        reason += (
            "; either a write that a crash cut off and that was not acknowledged, or corruption"
        )
    location = f"{directory}/{hole.file} at byte {hole.offset}"
    return Finding(location, reason, SALVAGE_ADVICE, is_corruption=not hole.is_tail)


class _Check:
    """Takes the rows in the order of their keys: holds, index, messages, payloads,
    positions, facts, topics."""

    def __init__(self, now_ms: int) -> None:
        self.report = MessageStoreReport()
        self._now_ms = now_ms
        self._last = BEFORE_ALL
        self._prefixes: dict[bytes, int] = defaultdict(int)
        self._topics: dict[TopicId, TopicRecord] = {}
        self._holds: dict[tuple[TopicId, int], list[Hold]] = defaultdict(list)
        self._index: dict[_Owned, list[_IndexEntry]] = defaultdict(list)
        self._references: dict[_Owned, list[_Reference]] = defaultdict(list)
        self._takers: Mapping[bytes, Callable[[bytes, bytes], None]] = {
            INDEX: self._take_index,
            MESSAGES: self._take_message,
            PAYLOADS: self._take_payload,
            TOPICS: self._take_topic,
            METADATA: self._take_metadata,
            HOLDS: self._take_hold,
        }

    def take(self, row: ReadRow) -> None:
        """Note what a row says, or how it is corrupt."""
        if row.corruption is not None:
            advice = NEWER if row.is_newer_format else SALVAGE_ADVICE
            self._find(row_name(row.key), row.corruption, advice)
        if row.value is None:
            return
        self.report.row_count += 1
        taker = self._takers.get(row.key[:1])
        if taker is not None:
            taker(row.key, row.value)

    def finish(self) -> None:
        """Compare what the rows say of each other."""
        self._check_topics()
        self._check_references()
        self._check_index()
        self._check_metadata()

    def _find(
        self,
        location: str,
        reason: str,
        advice: str = SALVAGE_ADVICE,
        *,
        is_corruption: bool = True,
    ) -> None:
        self.report.findings.append(Finding(location, reason, advice, is_corruption))

    def _take_topic(self, key: bytes, value: bytes) -> None:
        self._topics[split_topic(key[1:])] = TopicRecord.from_bytes(key, value)

    def _take_hold(self, key: bytes, value: bytes) -> None:
        topic, generation, _ = split_named_row_key(key)
        self._holds[topic, generation].append(Hold.from_bytes(key, value))

    def _take_index(self, key: bytes, value: bytes) -> None:
        entry = IndexedRange.from_bytes(key, value)
        self._note_pointer(entry.pointer)
        self.report.pointers.add(entry.pointer)
        self._index[entry.prefix, entry.pointer].append(_IndexEntry(entry))

    def _take_message(self, key: bytes, value: bytes) -> None:
        row = MessageRow.from_bytes(key, value)
        prefix, offset = row_prefix(key), offset_in(key)
        self._note_row(prefix, offset)
        if row.tx_pointer is None:
            return
        pointer = abs(row.tx_pointer)
        self._note_pointer(pointer)
        self._note_indexed(prefix, pointer, offset, is_message=True)
        if row.reference is not None and row.reference.count:
            self._references[prefix, pointer].append(_Reference(key, row.reference))

    def _take_payload(self, key: bytes, _value: bytes) -> None:
        prefix, offset, pointer = row_prefix(key), offset_in(key), pointer_in(key)
        self._note_row(prefix, offset)
        self._note_pointer(pointer)
        self._note_indexed(prefix, pointer, offset, is_message=False)
        for reference in self._references.get((prefix, pointer), ()):
            if reference.payloads.first <= offset <= reference.payloads.last:
                reference.found += 1

    def _take_metadata(self, key: bytes, value: bytes) -> None:
        if key == LAST_BATCH_KEY:
            self.report.last_batch = LastBatch.from_bytes(key, value)
        elif key == METADATA_KEY:
            self.report.metadata = StoreMetadata.from_bytes(key, value)

    def _note_row(self, prefix: bytes, offset: Offset) -> None:
        self._prefixes[prefix] += 1
        self._last = max(self._last, offset)

    def _note_pointer(self, pointer: int) -> None:
        self.report.highest_pointer = max(self.report.highest_pointer, pointer)

    def _note_indexed(
        self, prefix: bytes, pointer: int, offset: Offset, *, is_message: bool
    ) -> None:
        for indexed in self._index.get((prefix, pointer), ()):
            entry = indexed.entry
            if (entry.kind == MESSAGE_ROWS) == is_message and entry.first <= offset <= entry.last:
                indexed.found += 1

    def _check_topics(self) -> None:
        for prefix, count in self._prefixes.items():
            topic, generation = split_prefix(prefix)
            record = self._topics.get(topic)
            if record is None:
                reason = f"there are {count} rows of generation {generation}, but no topic row"
                self._find(f"topic {topic}", reason)
            elif generation > abs(record.generation):
                reason = (
                    f"there are {count} rows of generation {generation}, but the topic row says "
                    f"{record.generation}"
                )
                self._find(f"topic {topic}", reason)

    def _check_references(self) -> None:
        longest_ms = self.report.metadata.longest_transaction_ms if self.report.metadata else 0
        for reference in (each for found in self._references.values() for each in found):
            payloads = reference.payloads
            if reference.found < payloads.count and self._is_live(reference.key):
                # Until then retention drops no payload row, whatever its own time to live.
                is_corruption = self._now_ms < payloads.first.timestamp_ms + longest_ms
                reason = (
                    f"it references {payloads.count} stored messages, and {reference.found} of "
                    "them exist"
                )
                if not is_corruption:
                    reason += "; those with a short time to live of their own may have expired"
                self._find(row_name(reference.key), reason, is_corruption=is_corruption)

    def _is_live(self, key: bytes) -> bool:
        topic, generation = split_prefix(row_prefix(key))
        record, offset = self._topics.get(topic), offset_in(key)
        if record is None or record.generation != generation:
            return False
        rule = replace(record.rule, holds=tuple(self._holds[topic, generation]))
        return offset >= max(rule.log_start, rule.live_from(now_ms=self._now_ms))

    def _check_index(self) -> None:
        for indexed in (each for found in self._index.values() for each in found):
            entry = indexed.entry
            if indexed.found < entry.count:
                reason = (
                    f"it stands for {entry.count} rows, and {indexed.found} of them exist; the "
                    "others may have expired"
                )
                self._find(row_name(entry.key), reason, is_corruption=False)

    def _check_metadata(self) -> None:
        last_batch = self.report.last_batch
        if last_batch is None and self.report.row_count:
            self._find("the high-water mark of the store", "it is missing")
        elif last_batch is not None and self._last > last_batch.last:
            reason = (
                f"it is {_shown(last_batch.last)}, but there are rows up to {_shown(self._last)}"
            )
            self._find("the high-water mark of the store", reason)
        if self.report.metadata is None and self.report.row_count:
            reason = "it is missing, though the first batch of rows wrote it"
            self._find("the store's record of the transaction files", reason)


def _shown(offset: Offset) -> str:
    return f"{offset.timestamp_ms}:{offset.seq_id}"
