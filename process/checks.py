"""Both stores of a data directory looked at together: what `tuff fsck` finds (promise 8)."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from messaging.check import StoreAccount, check_store
from tuff.disk.findings import Finding
from tuff.disk.leveldb_manifest import holds_files
from tuff.disk.lock import kept_from_owners
from tx.check import FilesAccount, check_files
from tx.files import has_files
from tx.recovery import BEFORE_ALL, StoreMark, commits_without_rows, is_known
from tx.state import TransactionState

ADVICE = "put files of one backup together, or use `tuff salvage`"
LOST_ADVICE = (
    "put the message store back (is its volume mounted?); if it is lost, write the transactions to "
    "a new directory with `tuff salvage --without-messages`"
)


class NoDataError(Exception):
    """A directory that was named is not the data, or has no data; the sentence says which."""


@dataclass(frozen=True, slots=True)
class Data:
    """A data directory: where its two stores are."""

    messages: Path
    snapshots: Path

    @classmethod
    def below(cls, directory: Path, snapshots: Path | None) -> "Data":
        """As the server has it with `--data`; without, the snapshots are somewhere else."""
        return cls(directory / "messages", snapshots or directory / "snapshots")

    @classmethod
    def found(cls, directory: Path, snapshots: Path | None) -> "Data":
        """Of a server that was started with `--data`, or without: then its snapshots lie beside
        the data, in a directory of that name."""
        beside = directory.absolute().parent / "snapshots"
        is_data = (directory / "messages").is_dir() and not (directory / "snapshots").exists()
        if snapshots is None and is_data and has_files(beside):
            return cls.below(directory, beside)
        return cls.below(directory, snapshots)

    def require_there(self, *, with_messages: bool) -> None:
        """`with_messages`: a message store has to be among it, as LevelDB's always is.

        Raises:
            NoDataError: no server keeps its data here, or one of its stores is not there.
        """
        directory = self.messages.parent
        if has_store(directory):
            raise NoDataError(f"{directory} is a message store; name the directory that it is in")
        if has_files(directory):
            raise NoDataError(
                f"{directory} is where transaction files are; name the data directory they belong "
                "to"
            )
        if not self.has_messages and not has_files(self.snapshots):
            raise NoDataError(
                f"there is no data in {directory}: neither messages/ nor snapshot files; where "
                "these lie in another directory, name it with --snapshots"
            )
        if with_messages and not self.has_messages:
            raise NoDataError(
                f"there is no message store in {self.messages}; if a volume is to be mounted "
                "there, mount it. Where messages are in HBase, were in memory, or are lost, say "
                "--without-messages"
            )

    @property
    def is_apart(self) -> bool:
        """Whether the snapshots are no part of the data directory."""
        return self.snapshots.parent != self.messages.parent

    @property
    def has_messages(self) -> bool:
        return has_store(self.messages)

    def hold(self, held: ExitStack) -> None:
        """Keep servers away until `held` is closed. Raises: DirectoryLockedError."""
        for directory in (self.messages.parent, self.messages, self.snapshots):
            held.enter_context(kept_from_owners(directory))


def has_store(directory: Path) -> bool:
    """Whether LevelDB ever began a store there, which may be damaged since."""
    if not directory.is_dir():
        return False
    return holds_files(directory)


def check(data: Data, *, now_ms: int) -> tuple[int, list[Finding]]:
    """How many rows and edits could be read, and everything that is wrong.

    Raises: OSError: a file can't be read.
    """
    store = StoreAccount()
    if data.has_messages:
        store = check_store(data.messages, now_ms=now_ms)
    files = check_files(data.snapshots, recorded(store))
    lost = [_lost_messages(data)] if _is_lost(data, store) else []
    findings = [*lost, *store.findings, *files.findings, *_across(store, files)]
    return store.row_count, findings


def _is_lost(data: Data, store: StoreAccount) -> bool:
    """Whether the message store is empty, and was not: it has its id before the first transaction
    file is made."""
    is_empty = store.facts is None and not store.row_count
    return data.has_messages and is_empty and has_files(data.snapshots)


def _lost_messages(data: Data) -> Finding:
    reason = f"the message store is empty, and the transaction files in {data.snapshots} say that "
    reason += "there was one: its messages are not here"
    return Finding(data.messages.name, reason, LOST_ADVICE)


def recorded(store: StoreAccount) -> StoreMark | None:
    """What the message store remembers of the transaction files, as the server asks for it."""
    facts = store.facts
    if facts is None or facts.store_id is None:
        return None
    seen_lsn = None if store.mark is None else store.mark.seen_lsn
    return StoreMark(facts.store_id, facts.highest_pointer, seen_lsn)


def _across(store: StoreAccount, files: FilesAccount) -> Iterator[Finding]:
    """What one store says and the other denies; only of files from which a server would start."""
    state = files.state
    if state is None:
        if store.highest_pointer and not files.findings:
            reason = "transactions wrote rows, and there are no transaction files"
            yield Finding("both stores", reason, ADVICE)
        return
    for pointer in sorted(store.pointers):
        if not is_known(state, pointer):
            reason = f"rows of transaction {pointer} are undecided, and its outcome is not known"
            yield Finding("both stores", reason, ADVICE)
    if store.highest_pointer > state.highest_reserved:
        reason = (
            f"rows stand under pointer {store.highest_pointer}, and the transaction files know "
            f"pointers up to {state.highest_reserved}"
        )
        yield Finding("both stores", reason, ADVICE)
    yield from _lost_publishes(store, state)
    yield from lost_commits(store, state)


def _lost_publishes(store: StoreAccount, state: TransactionState) -> Iterator[Finding]:
    if store.mark is None:
        return
    last = store.mark.last
    for outcome in state.outcomes:
        for detail in outcome.published:
            if detail.last > last:
                reason = (
                    f"transaction {outcome.transaction_id} published up to {tuple(detail.last)}, "
                    f"and the message store was written up to {tuple(last)} only"
                )
                yield Finding("both stores", reason, ADVICE)


def lost_commits(store: StoreAccount, state: TransactionState) -> Iterator[Finding]:
    """Commits whose messages are not in the message store; it may be one that is not there."""
    is_empty = store.facts is None  # or its messages are somewhere else, as in HBase
    told = None if store.mark is None else store.mark.seen_lsn
    last = BEFORE_ALL if store.mark is None else store.mark.last
    seen = 0 if is_empty else told
    lost = list(commits_without_rows(state, store.pointers, seen=seen, last=last))
    if lost:
        reason = (
            f"transaction {lost[0].transaction_id}, the last of {len(lost)} such, committed "
            f"messages to {', '.join(lost[0].topics)} that the message store does not have"
        )
        yield Finding("both stores", reason, ADVICE, is_damage=not is_empty)
