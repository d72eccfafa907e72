"""Copy the rows of a corrupt message store to a new one: `tuff salvage` (promise 8).

Every readable row is copied, and no row stays undecided. A row with a write pointer stays visible
only if its commit is proven: by the transaction files, or because its pointer has left the pointer
index, which happens after a durable commit, or because the files have its commit in doubt, and the
index has its rows. In any other row the pointer is inverted, as a rollback does: readers without
isolation see the row as before, snapshot readers never will.

So the new store needs no index rows but those of messages that were set aside (decision 0045 §2).
Their rows are rolled back, and an index row says that they return when their transaction commits.
If its commit is proven, that index row is kept, and the next server returns the messages.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace

from admin.findings import Finding, SalvageDecision
from admin.readable_rows import (
    SALVAGE_ADVICE,
    TABLE_NAMES,
    Range,
    Ranges,
    ReadableRows,
    ReadRow,
    Version,
    row_name,
)
from admin.salvage_transactions import ProvenOutcome
from messaging.engines.engine_interface import Engine, StoreError
from messaging.log.rows_by_transaction import ASIDE_ROWS, IndexedRange
from messaging.log.topics import TTL_S_MAX, TopicRecord, partition_rows
from messaging.model.row_format import (
    BEFORE_ALL,
    DELAYED,
    INDEX,
    LAST_BATCH_KEY,
    MESSAGES,
    METADATA,
    METADATA_KEY,
    PAYLOADS,
    TOPICS,
    DamagedRowError,
    LastBatch,
    MessageRow,
    PayloadRange,
    StoreMetadata,
    delayed_key,
    is_undecided,
    offset_in,
    pointer_in,
    row_prefix,
    split_prefix,
    split_topic,
    split_undecided,
    topic_key,
)
from tuff.protocol.ids import Offset, TopicId
from tuff.protocol.sentences import counted
from tuff_storage.leveldb.manifest import LOG_SUFFIX
from tx.file_headers import NEWER

BATCH_BYTES_MAX = 4 << 20  # bytes of one write to the new store; a sync each
_POINTER_SIZE = 8


@dataclass
class SalvageReport:
    """The kept rows by table, the lost ones, and the decisions; `hidden` and `committed` are those
    of `RowVisibility`."""

    kept: Counter[str] = field(default_factory=Counter)
    lost: list[Finding] = field(default_factory=list)
    decided: list[SalvageDecision] = field(default_factory=list)
    metadata: StoreMetadata = field(default_factory=StoreMetadata)
    hidden: Set[int] = frozenset()
    committed: Set[int] = frozenset()
    highest_pointer: int = 0


class MessageSalvage:
    """Reads a corrupt store, and writes a new one. Blocks."""

    def __init__(
        self,
        readable: ReadableRows,
        new: Engine,
        *,
        outcome: Callable[[int], ProvenOutcome],
        remembers_commit: Callable[[int], bool],
    ) -> None:
        self._readable = readable
        self._outcome = outcome
        self._remembers_commit = remembers_commit
        self._new = new
        self._visibility = RowVisibility(readable, outcome)
        self.report = SalvageReport(
            lost=readable.findings(),
            hidden=self._visibility.hidden,
            committed=self._visibility.committed,
        )
        self._last = BEFORE_ALL
        self._batch_number = 0
        self._clock_ms: int | None = None
        self._generations: dict[TopicId, int] = {}
        self._topics: dict[TopicId, TopicRecord] = {}
        # By prefix and pointer: messages that were set aside, and the rows that reference others.
        self._aside = Ranges[IndexedRange]()
        self._references = Ranges[tuple[bytes, MessageRow, PayloadRange]]()
        self._delayed_counts: Counter[int] = Counter()  # of committed transactions
        self._batch: list[tuple[bytes, bytes | None]] = []
        self._batch_bytes = 0
        self._takers: Mapping[bytes, Callable[[ReadRow, bytes], None]] = {
            INDEX: self._note_index,
            MESSAGES: self._keep_message,
            PAYLOADS: self._keep_payload,
            DELAYED: self._keep_delayed,
            TOPICS: self._note_topic,
            METADATA: self._note_metadata,
        }

    def copy_rows(self) -> SalvageReport:
        """Write every row but the store's metadata. Raises: StoreError, OSError."""
        for found in self._readable.rows():
            if found.corruption is not None:
                self._report_lost(found, found.corruption)
            if found.value is not None:
                self._takers.get(found.key[:1], self._copy)(found, found.value)
        for reference in self._references:
            self._keep_reference(reference)
        for aside in self._aside:
            for first, last in aside.runs:
                entry = replace(aside.row, first=first, last=last)
                self._put(entry.key, entry.to_bytes(entry.key))
        for pointer, count in self._delayed_counts.items():
            reason = f"it committed: {counted(count, 'delayed message')} of it can enter"
            self._decide(f"transaction {pointer}", reason)
        self._keep_topics()
        return self.report

    def write_metadata(self, metadata: StoreMetadata, published: Offset) -> None:
        """Write the metadata, and a last batch above all that was published. It has seen no edit of
        the transactions, so that a check finds messages that are missing. Raises: StoreError."""
        self._last = max(self._last, published)
        last_batch = LastBatch(
            batch_number=self._batch_number + 1, last=self._last, clock_ms=self._clock_ms
        )
        self._put(METADATA_KEY, metadata.to_bytes(METADATA_KEY))
        self._put(LAST_BATCH_KEY, last_batch.to_bytes(LAST_BATCH_KEY))
        self._flush()

    def _report_lost(self, found: ReadRow, corruption: str) -> None:
        if found.is_newer_format:
            # If it were left out, the version that can read it would not have it either.
            raise StoreError(f"{row_name(found.key)}: {corruption}; {NEWER}")
        self.report.lost.append(Finding(row_name(found.key), corruption, SALVAGE_ADVICE))
        if found.value is not None:
            reason = "its newest version is corrupt, and the one before it was taken"
            self._decide(row_name(found.key), reason)

    def _decide(self, location: str, reason: str) -> None:
        self.report.decided.append(SalvageDecision(location, reason))

    def _put(self, key: bytes, value: bytes) -> None:
        self._batch.append((key, value))
        self._batch_bytes += len(key) + len(value)
        self.report.kept[TABLE_NAMES.get(key[:1], "unknown")] += 1
        if self._batch_bytes >= BATCH_BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        self._new.write(self._batch)
        self._batch, self._batch_bytes = [], 0

    def _copy(self, found: ReadRow, value: bytes) -> None:
        self._put(found.key, value)

    def _note_index(self, found: ReadRow, value: bytes) -> None:
        entry = IndexedRange.from_bytes(found.key, value)
        self._note_pointer(entry.pointer)
        self._last = max(self._last, entry.last)
        if entry.kind == ASIDE_ROWS:
            self._note_aside(entry)

    def _note_aside(self, entry: IndexedRange) -> None:
        name = f"transaction {entry.pointer}"
        if self._remembers_commit(entry.pointer):
            covered = Range(entry, entry.first, entry.last)
            self._aside.add((entry.prefix, entry.pointer), covered)
            reason = f"it committed: its messages of {entry.topic} that were set aside return"
        elif self._outcome(entry.pointer) is ProvenOutcome.COMMITTED:
            reason = (
                f"it committed, but its start is lost: its messages of {entry.topic} that were set "
                "aside do not return; read them with isolation=all, and publish them again"
            )
        else:
            self._visibility.hidden.add(entry.pointer)
            return
        self._decide(name, reason)

    def _note_pointer(self, pointer: int) -> None:
        self.report.highest_pointer = max(self.report.highest_pointer, pointer)

    def _note_offset(self, key: bytes) -> None:
        self._last = max(self._last, offset_in(key))
        topic, generation = split_prefix(row_prefix(key))
        self._generations[topic] = max(self._generations.get(topic, 0), generation)

    def _keep_message(self, found: ReadRow, value: bytes) -> None:
        self._note_offset(found.key)
        row, prefix = MessageRow.from_bytes(found.key, value), row_prefix(found.key)
        if row.tx_pointer is not None:
            self._note_pointer(abs(row.tx_pointer))
            row = self._visibility.decided(found, row)
            # A row that is rolled back may return.
            self._aside.note((prefix, -(row.tx_pointer or 0)), offset_in(found.key))
        if (payloads := row.reference) is None:
            self._put(found.key, row.to_bytes(found.key))
            return
        covered = Range((found.key, row, payloads), payloads.first, payloads.last)
        self._references.add((prefix, abs(row.tx_pointer or 0)), covered)

    def _keep_payload(self, found: ReadRow, value: bytes) -> None:
        self._note_offset(found.key)
        self._note_pointer(pointer_in(found.key))
        self._put(found.key, value)
        owner = row_prefix(found.key), pointer_in(found.key)
        self._references.note(owner, offset_in(found.key))

    def _keep_delayed(self, found: ReadRow, value: bytes) -> None:
        self._note_offset(found.key)
        if not is_undecided(found.key):
            self._put(found.key, value)
            return
        pointer, delayed_id, delayed = split_undecided(found.key, value)
        self._note_pointer(pointer)
        # A version that may be stale may be one that a commit has replaced: its message entered.
        if not self._visibility.has_committed(pointer) or found.may_be_stale:
            self._visibility.hidden.add(pointer)
            return
        self._put(delayed_key(row_prefix(found.key), delayed_id), delayed)
        self._delayed_counts[pointer] += 1

    def _keep_reference(self, reference: Range[tuple[bytes, MessageRow, PayloadRange]]) -> None:
        key, row, payloads = reference.row
        if reference.found < payloads.count:
            row = replace(row, reference=replace(payloads, count=reference.found))
            reason = f"of its {payloads.count} stored messages {reference.found} are left"
            self._decide(row_name(key), reason)
        self._put(key, row.to_bytes(key))

    def _note_topic(self, found: ReadRow, value: bytes) -> None:
        topic = split_topic(found.key[1:])
        self._topics[topic] = TopicRecord.from_bytes(found.key, value)
        if found.may_be_stale:
            self._decide(
                f"topic {topic}",
                "its row may be an older one: a later change, truncation or deletion may be undone",
            )

    def _note_metadata(self, found: ReadRow, value: bytes) -> None:
        if found.key == METADATA_KEY:
            self.report.metadata = StoreMetadata.from_bytes(found.key, value)
        elif found.key == LAST_BATCH_KEY:
            last_batch = LastBatch.from_bytes(found.key, value)
            self._last = max(self._last, last_batch.last)
            self._batch_number, self._clock_ms = last_batch.batch_number, last_batch.clock_ms
        else:
            self._put(found.key, value)

    def _keep_topics(self) -> None:
        records = {}
        for topic in sorted({*self._topics, *self._generations}):
            record, generation = self._topics.get(topic), self._generations.get(topic, 0)
            if record is None:
                record = TopicRecord(generation=generation, properties={"ttl": str(TTL_S_MAX)})
                reason = (
                    f"its row is lost; created again with generation {generation} and the longest "
                    "ttl, so deleted, truncated or expired messages may be back: set its properties"
                )
                self._decide(f"topic {topic}", reason)
            elif generation > abs(record.generation):
                record = replace(record, generation=generation)
                self._decide(f"topic {topic}", f"generation {generation}, as its newest rows have")
            records[topic] = record
        self._repair_partitions(records)
        for topic, record in records.items():
            self._last = max(self._last, record.log_start.offset)
            self._put(topic_key(topic), record.to_bytes(topic_key(topic)))

    def _repair_partitions(self, records: dict[TopicId, TopicRecord]) -> None:
        """Let the row of each topic have the partitions that have rows, and the other way round."""
        for topic, rows in partition_rows(records).items():
            of_topic = records.get(topic)
            if of_topic is None:
                longest_s = max((row.ttl_s for row in rows.values()), default=TTL_S_MAX)
                of_topic = TopicRecord(generation=1, properties={"ttl": str(longest_s)})
            if of_topic.generation < 0:
                continue
            partitions = of_topic.partitions.joined_with(
                {number: row.is_retired for number, row in rows.items()}
            )
            if topic not in records or partitions != of_topic.partitions:
                self._decide(f"topic {topic}", "its row has the partitions that were found")
            records[topic] = replace(of_topic, partitions=partitions)
            for number in partitions.readable[1:]:
                self._repair_partition(records, topic, number)

    def _repair_partition(
        self, records: dict[TopicId, TopicRecord], topic: TopicId, number: int
    ) -> None:
        partition, of_topic = topic.partition(number), records[topic]
        row = records.get(partition)
        if row is None or row.generation < 0:
            generation = 1 if row is None else 1 - row.generation
            row = TopicRecord(generation=generation, properties={"ttl": str(of_topic.ttl_s)})
            self._decide(f"topic {partition}", "its row and its messages are lost; created again")
        is_retired = number in of_topic.partitions.retired
        if is_retired != row.is_retired:
            self._decide(f"topic {partition}", "it is retired, as the row of the topic says")
        records[partition] = replace(row, is_retired=is_retired)


class RowVisibility:
    """Decides row by row. `hidden` are the pointers that were inverted, `committed` those that the
    rows alone prove committed; `outcome` is what the transaction files prove of a pointer."""

    def __init__(self, readable: ReadableRows, outcome: Callable[[int], ProvenOutcome]) -> None:
        self.hidden: set[int] = set()
        self.committed: set[int] = set()
        self._readable = readable
        self._outcome = outcome
        self._has_log_holes = any(hole.first is not None for hole in readable.holes)
        self._indexed: set[int] = set()  # pointers with index rows
        self._final: set[int] = set()  # of these, those with rows of a commit
        # Pointers whose index rows were removed after a hole in a log, in which some of their rows
        # may have been rolled back: a rollback of more rows than fit one batch takes several.
        self._pointers_to_roll_back: set[int] = set()
        for versions in readable.versions():
            if versions[0].key[:1] == INDEX:
                self._note_index(versions)

    def _note_index(self, versions: list[Version]) -> None:
        key, stored = versions[0].key, versions[0].value
        pointer = int.from_bytes(key[1 : 1 + _POINTER_SIZE], "big")
        stops = (hole.stop for hole in self._readable.holes if hole.stop is not None)
        if any(_is_removed_after(versions, stop) for stop in stops):
            self._pointers_to_roll_back.add(pointer)
        if stored is not None:
            self._indexed.add(pointer)
            with suppress(DamagedRowError):
                if IndexedRange.from_bytes(key, stored).final:
                    self._final.add(pointer)

    def decided(self, found: ReadRow, row: MessageRow) -> MessageRow:
        """The row, with an inverted pointer unless its commit is proven."""
        pointer = row.tx_pointer
        if pointer is None or pointer < 0:
            return row
        if self.has_committed(pointer):
            return row
        outcome = self._outcome(pointer)
        is_decided = outcome in (ProvenOutcome.NOT_COMMITTED, ProvenOutcome.IN_DOUBT)
        if not is_decided and self._is_proven_committed(found, pointer, outcome):
            self.committed.add(pointer)
            return row
        self.hidden.add(pointer)
        return replace(row, tx_pointer=-pointer)

    def has_committed(self, pointer: int) -> bool:
        """Whether the transaction files prove it, or have it in doubt while its rows are there."""
        outcome = self._outcome(pointer)
        if outcome is ProvenOutcome.IN_DOUBT and pointer in self._final:
            self.committed.add(pointer)
            return True
        return outcome is ProvenOutcome.COMMITTED

    def _is_proven_committed(self, found: ReadRow, pointer: int, outcome: ProvenOutcome) -> bool:
        """Whether the rows alone prove that the transaction of this row committed."""
        # A newer version of this very row may be lost, in which a rollback inverted the pointer.
        if found.may_be_stale or pointer in self._pointers_to_roll_back:
            return False
        is_forgotten = outcome is ProvenOutcome.FORGOTTEN
        if pointer in self._indexed:
            # The deletion of its index row is lost, so that the row is there again: only if no
            # other write can be lost.
            return is_forgotten and not self._has_log_holes and self._may_hide_index(pointer)
        return is_forgotten or not self._may_hide_index(pointer)

    def _may_hide_index(self, pointer: int) -> bool:
        """Whether an index row of this pointer, or its deletion, may be lost in a table."""
        low = INDEX + pointer.to_bytes(_POINTER_SIZE, "big")
        return self._readable.may_hide(low, low + b"\xff")


def _is_removed_after(versions: list[Version], stop: int) -> bool:
    newest, oldest = versions[0], versions[-1]
    is_removed_behind = newest.value is None and newest.sequence >= stop
    return is_removed_behind and oldest.sequence < stop and newest.file.endswith(LOG_SUFFIX)
