"""Check both stores of a data directory, and each against the other: `tuff fsck` (promise 8)."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from admin.data_directory import DataDirectory
from admin.findings import Finding
from admin.readable_rows import (
    SALVAGE_ADVICE,
    Range,
    Ranges,
    ReadableRows,
    ReadRow,
    row_name,
)
from admin.transaction_files import TransactionFiles, TransactionFilesReport
from messaging.log.rows_by_transaction import PAYLOAD_ROWS, IndexedRange
from messaging.log.store_end import FILE_NAME, DamagedEndError, loss_advice, read_end
from messaging.log.topics import TopicRecord, partition_rows
from messaging.model.partitions import ONE_PARTITION
from messaging.model.row_format import (
    BEFORE_ALL,
    DELAYED,
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
from tuff.protocol.ids import Offset, TopicId
from tx.file_headers import NEWER, has_files
from tx.mixed_backups import BEFORE_ALL as BEFORE_ALL_PUBLISHED
from tx.mixed_backups import (
    RecordedFiles,
    commits_without_rows,
    is_known,
    prepared_without_rows,
)
from tx.state import TransactionState

MISMATCH_ADVICE = "restore both stores from one backup, or use `tuff salvage`"
LOST_STORE_ADVICE = (
    "put the message store back (is its volume mounted?); if it is lost, write the transactions to "
    "a new directory with `tuff salvage --without-messages`"
)


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


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The number of readable rows, and all findings."""

    row_count: int
    findings: list[Finding]

    @property
    def corruptions(self) -> list[Finding]:
        """The findings that are certainly corruption."""
        return [finding for finding in self.findings if finding.is_corruption]


def check(data: DataDirectory, *, now_ms: int) -> CheckReport:
    """Read everything in the directory. Changes nothing.

    Raises: OSError: a file can't be read.
    """
    store = check_message_store(ReadableRows(data.messages), now_ms=now_ms)
    files = TransactionFiles(data.snapshots).check(recorded_files(store))
    findings = [*_lost_store(data, store), *_lost_batches(data, store), *store.findings]
    findings += [*files.findings, *_mismatches(store, files)]
    return CheckReport(store.row_count, findings)


def recorded_files(store: MessageStoreReport) -> RecordedFiles | None:
    """What the message store has recorded of the transaction files, as recovery takes it."""
    metadata = store.metadata
    if metadata is None or metadata.store_id is None:
        return None
    seen_lsn = None if store.last_batch is None else store.last_batch.seen_lsn
    return RecordedFiles(metadata.store_id, metadata.highest_pointer, seen_lsn)


def _lost_batches(data: DataDirectory, store: MessageStoreReport) -> Iterator[Finding]:
    """Batches that the server had written when it stopped, and that are missing."""
    try:
        end = read_end(data.snapshots)
    except DamagedEndError as error:
        reason = f"{error}, so it proves nothing about lost messages"
        yield Finding(FILE_NAME, reason, "remove the file; the next stop of the server writes it")
        return
    if end is None or not data.has_messages or store.last_batch is None:
        return
    loss = end.loss(store.last_batch, None if store.metadata is None else store.metadata.store_id)
    if loss is not None:
        yield Finding(data.messages.name, loss, loss_advice(end.loss_name))


def _lost_store(data: DataDirectory, store: MessageStoreReport) -> Iterator[Finding]:
    """The message store is empty and once was not: a server writes the id of the message store
    before it creates the first transaction file."""
    is_empty = store.metadata is None and not store.row_count
    if data.has_messages and is_empty and has_files(data.snapshots):
        reason = (
            f"the message store is empty, but the transaction files in {data.snapshots} belong to "
            "a store that was not: its messages are missing"
        )
        yield Finding(data.messages.name, reason, LOST_STORE_ADVICE)


def _mismatches(store: MessageStoreReport, files: TransactionFilesReport) -> Iterator[Finding]:
    """Contradictions between the stores; only for files from which a server would start."""
    state = files.state
    if state is None:
        if store.highest_pointer and not files.findings:
            yield _mismatch("transactions wrote rows, and there are no transaction files")
        return
    for pointer in sorted(store.pointers):
        if not is_known(state, pointer):
            yield _mismatch(f"rows of transaction {pointer} are undecided: its outcome is unknown")
    if store.highest_pointer > state.highest_reserved:
        yield _mismatch(
            f"rows have the write pointer {store.highest_pointer}, and the transaction files know "
            f"pointers up to {state.highest_reserved} only"
        )
    yield from _lost_publishes(store, state)
    yield from lost_commits(store, state)


def _mismatch(reason: str, *, is_corruption: bool = True) -> Finding:
    return Finding("both stores", reason, MISMATCH_ADVICE, is_corruption)


def _lost_publishes(store: MessageStoreReport, state: TransactionState) -> Iterator[Finding]:
    if store.last_batch is None:
        return
    last = store.last_batch.last
    for outcome in state.outcomes:
        for detail in outcome.published:
            if detail.last > last:
                yield _mismatch(
                    f"transaction {outcome.transaction_id} published up to {tuple(detail.last)}, "
                    f"and the message store was written up to {tuple(last)} only"
                )


def lost_commits(store: MessageStoreReport, state: TransactionState) -> Iterator[Finding]:
    """Committed messages that the message store lacks; the report of a missing store is empty."""
    is_absent = store.metadata is None  # the messages may be elsewhere, as in HBase
    seen_lsn = None if store.last_batch is None else store.last_batch.seen_lsn
    last = BEFORE_ALL_PUBLISHED if store.last_batch is None else store.last_batch.last
    seen = 0 if is_absent else seen_lsn
    for opened in prepared_without_rows(state, store.pointers, seen=seen):
        yield _mismatch(
            f"transaction {opened.transaction_id} is prepared with messages that the message store "
            "does not have",
            is_corruption=not is_absent,
        )
    lost = list(commits_without_rows(state, store.pointers, seen=seen, last=last))
    if lost:
        yield _mismatch(
            f"transaction {lost[0].transaction_id}, the last of {len(lost)}, committed messages to "
            f"{', '.join(lost[0].topics)} that the message store does not have",
            is_corruption=not is_absent,
        )


def check_message_store(readable: ReadableRows, *, now_ms: int) -> MessageStoreReport:
    """Check every row of a store that no process has open, and the rows against each other."""
    check = _MessageStoreCheck(now_ms)
    check.report.findings += readable.findings()
    for row in readable.rows():
        check.take(row)
    check.finish()
    return check.report


class _MessageStoreCheck:
    """Takes the rows in the order of their keys: delayed messages, holds, index, producers,
    messages, payloads, positions, metadata, topics."""

    def __init__(self, now_ms: int) -> None:
        self.report = MessageStoreReport()
        self._now_ms = now_ms
        self._last = BEFORE_ALL
        self._prefixes: dict[bytes, int] = defaultdict(int)
        self._topics: dict[TopicId, TopicRecord] = {}
        self._holds: dict[tuple[TopicId, int], list[Hold]] = defaultdict(list)
        # By whether they cover messages, and by prefix and pointer.
        self._index = Ranges[IndexedRange]()
        # By prefix and pointer; the keys of message rows, and what they reference.
        self._references = Ranges[tuple[bytes, PayloadRange]]()
        self._takers: Mapping[bytes, Callable[[bytes, bytes], None]] = {
            INDEX: self._take_index,
            MESSAGES: self._take_message,
            PAYLOADS: self._take_payload,
            DELAYED: self._take_delayed,
            TOPICS: self._take_topic,
            METADATA: self._take_metadata,
            HOLDS: self._take_hold,
        }

    def take(self, row: ReadRow) -> None:
        """Note the content of a row, or its corruption."""
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
        """Check the rows against each other."""
        self._check_topics()
        self._check_partitions()
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
        owner = entry.kind != PAYLOAD_ROWS, entry.prefix, entry.pointer
        self._index.add(owner, Range(entry, entry.first, entry.last))

    def _take_message(self, key: bytes, value: bytes) -> None:
        row = MessageRow.from_bytes(key, value)
        prefix, offset = row_prefix(key), offset_in(key)
        self._note_row(prefix, offset)
        if row.tx_pointer is None:
            return
        pointer = abs(row.tx_pointer)
        self._note_pointer(pointer)
        self._index.note((True, prefix, pointer), offset)
        if (payloads := row.reference) is not None and payloads.count:
            covered = Range((key, payloads), payloads.first, payloads.last)
            self._references.add((prefix, pointer), covered)

    def _take_payload(self, key: bytes, _value: bytes) -> None:
        prefix, offset, pointer = row_prefix(key), offset_in(key), pointer_in(key)
        self._note_row(prefix, offset)
        self._note_pointer(pointer)
        self._index.note((False, prefix, pointer), offset)
        self._references.note((prefix, pointer), offset)

    def _take_delayed(self, key: bytes, _value: bytes) -> None:
        self._note_row(row_prefix(key), offset_in(key))

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

    def _check_partitions(self) -> None:
        for topic, rows in partition_rows(self._topics).items():
            of_topic = self._topics.get(topic)
            if of_topic is not None and of_topic.generation < 0:
                continue
            partitions = ONE_PARTITION if of_topic is None else of_topic.partitions
            for number in partitions.readable:
                row = rows.get(number)
                is_right = row is not None and row.is_retired == (number in partitions.retired)
                if number and not is_right:
                    reason = "its own row is missing" if row is None else "its own row differs"
                    self._find(f"topic {topic}", f"it has the partition {number}, but {reason}")
            for number in sorted(rows.keys() - {*partitions.readable}):
                reason = f"there is a row of the partition {number}, but the topic row has not it"
                self._find(f"topic {topic}", reason)

    def _check_references(self) -> None:
        longest_ms = self.report.metadata.longest_transaction_ms if self.report.metadata else 0
        for reference in self._references:
            key, payloads = reference.row
            if reference.found < payloads.count and self._is_live(key):
                # Until then retention drops no payload row, whatever its own time to live.
                is_corruption = self._now_ms < payloads.first.timestamp_ms + longest_ms
                reason = (
                    f"it references {payloads.count} stored messages, and {reference.found} of "
                    "them exist"
                )
                if not is_corruption:
                    reason += "; those with a short time to live of their own may have expired"
                self._find(row_name(key), reason, is_corruption=is_corruption)

    def _is_live(self, key: bytes) -> bool:
        topic, generation = split_prefix(row_prefix(key))
        record, offset = self._topics.get(topic), offset_in(key)
        if record is None or record.generation != generation:
            return False
        rule = replace(record.rule, holds=tuple(self._holds[topic, generation]))
        return offset >= max(rule.log_start, rule.live_from(now_ms=self._now_ms))

    def _check_index(self) -> None:
        for indexed in self._index:
            entry = indexed.row
            # Of a publish to several partitions, other partitions have some of the offsets.
            is_part = entry.kind != PAYLOAD_ROWS and self._has_several(entry.topic)
            if indexed.found < (1 if is_part else entry.count):
                reason = (
                    f"it covers {entry.count} rows, and {indexed.found} of them exist; the "
                    "others may have expired"
                )
                self._find(row_name(entry.key), reason, is_corruption=False)

    def _has_several(self, topic: TopicId) -> bool:
        record = self._topics.get(topic.base)
        return record is not None and len(record.partitions.readable) > 1

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
