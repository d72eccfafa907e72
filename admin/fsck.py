"""Check both stores of a data directory, and each against the other: `tuff fsck` (promise 8)."""

from collections.abc import Iterator
from dataclasses import dataclass

from admin.check_message_store import MessageStoreReport, check_message_store
from admin.check_transaction_files import TransactionFilesReport, check_transaction_files
from admin.data_directory import DataDirectory
from admin.findings import Finding
from tx.files import has_files
from tx.recovery import BEFORE_ALL, StoreMark, commits_without_rows, is_known
from tx.state import TransactionState

MISMATCH_ADVICE = "restore both stores from one backup, or use `tuff salvage`"
LOST_STORE_ADVICE = (
    "put the message store back (is its volume mounted?); if it is lost, write the transactions to "
    "a new directory with `tuff salvage --without-messages`"
)


@dataclass(frozen=True, slots=True)
class CheckReport:
    """How many rows could be read, and everything that is wrong."""

    row_count: int
    findings: list[Finding]

    @property
    def corruptions(self) -> list[Finding]:
        """The findings that are certain."""
        return [finding for finding in self.findings if finding.is_corruption]


def check(data: DataDirectory, *, now_ms: int) -> CheckReport:
    """Read everything in the directory. Changes nothing.

    Raises: OSError: a file can't be read.
    """
    store = MessageStoreReport()
    if data.has_messages:
        store = check_message_store(data.messages, now_ms=now_ms)
    files = check_transaction_files(data.snapshots, store_mark(store))
    lost = [_lost_store(data)] if _is_lost(data, store) else []
    findings = [*lost, *store.findings, *files.findings, *_mismatches(store, files)]
    return CheckReport(store.row_count, findings)


def store_mark(store: MessageStoreReport) -> StoreMark | None:
    """What the message store has recorded of the transaction files, as recovery takes it."""
    metadata = store.metadata
    if metadata is None or metadata.store_id is None:
        return None
    seen_lsn = None if store.last_batch is None else store.last_batch.seen_lsn
    return StoreMark(metadata.store_id, metadata.highest_pointer, seen_lsn)


def _is_lost(data: DataDirectory, store: MessageStoreReport) -> bool:
    """Whether the message store is empty and was not always: a server writes the id of the message
    store before it makes the first transaction file."""
    is_empty = store.metadata is None and not store.row_count
    return data.has_messages and is_empty and has_files(data.snapshots)


def _lost_store(data: DataDirectory) -> Finding:
    reason = (
        f"the message store is empty, but the transaction files in {data.snapshots} belong to a "
        "store that was not: its messages are missing"
    )
    return Finding(data.messages.name, reason, LOST_STORE_ADVICE)


def _mismatches(store: MessageStoreReport, files: TransactionFilesReport) -> Iterator[Finding]:
    """What one store says and the other denies; only for files from which a server would start."""
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
    """Committed messages that the message store lacks; an empty report stands for no store."""
    is_absent = store.metadata is None  # the messages may be elsewhere, as in HBase
    seen_lsn = None if store.last_batch is None else store.last_batch.seen_lsn
    last = BEFORE_ALL if store.last_batch is None else store.last_batch.last
    seen = 0 if is_absent else seen_lsn
    lost = list(commits_without_rows(state, store.pointers, seen=seen, last=last))
    if lost:
        yield _mismatch(
            f"transaction {lost[0].transaction_id}, the last of {len(lost)}, committed messages to "
            f"{', '.join(lost[0].topics)} that the message store does not have",
            is_corruption=not is_absent,
        )
