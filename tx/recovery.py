"""Recovery: reads the state from the transaction files (design §4, Snapshots).

It starts from the newest readable snapshot, by sequence number, and replays every log after it. A
torn tail behind the proven length is cut. What a replaced leader made too late is left out. Any
other inconsistency is damage: the service then stays down rather than continue with an older or an
empty state.
"""

from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from tuff_storage.disk.files import make_directory, sync_directory, write_again
from tx.consistency import contradiction
from tx.file_headers import (
    REPAIR,
    DamagedFilesError,
    FileKind,
    KnownFile,
    contradicting,
    damaged,
    first_sequence,
    known_file,
    leftovers,
    list_files,
)
from tx.leadership import Tenure
from tx.mixed_backups import RecordedFiles, require_one_age
from tx.snapshot_file import read_snapshot
from tx.state import StateImage, TransactionState
from tx.wal import LogContents, read_log

_GO_ON = (
    "; nothing is lost: transactions go on from another snapshot. Take a new one with "
    "`tuff snapshot take`, then remove this file; the next start does not mention it any more"
)


@dataclass(frozen=True, slots=True)
class Recovered:
    """The state of the files. The newest log has the number `log_sequence`; it was read up to
    `log_length`, and up to `proven_length` it is known to be durable. `leftovers` are no part of
    `files`. `notes` are remarks for an operator."""

    state: TransactionState
    store_id: str
    log_sequence: int
    log_length: int
    proven_length: int
    files: list[KnownFile]
    leftovers: list[KnownFile] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def next_sequence(self, epoch: int) -> int:
        """The number of the next file, for a leader of this epoch."""
        found = max(known.header.sequence for known in self.files)
        return max(found + 1, first_sequence(epoch))


def recover(directory: Path, recorded: RecordedFiles | None) -> Recovered | None:
    """The state that the files hold, or None where there never was one. Blocks: run it in a thread.

    Raises:
        DamagedFilesError: files are damaged, missing or another store's.
        OSError: they can't be read.
    """
    paths = list_files(directory)
    if not paths:
        if recorded is not None and recorded.has_seen_files:
            raise DamagedFilesError(
                f"{directory} holds no transaction files, though the message store beside it has "
                f"seen pointers up to {recorded.highest_reserved}; put them back, and start the "
                "transaction service again"
            )
        return None
    unread: list[str] = []
    readable = _readable(paths, unread)
    late = leftovers(readable)
    files = [known for known in readable if known not in late]
    notes = [
        f"{known.path.name} is ignored: its server made it when another one led transactions "
        "already, and nothing in it was acknowledged"
        for known in late
    ]
    newest, image = _newest_snapshot(files, unread, notes)
    state = TransactionState(image)
    logs = _chain(files, newest, image)
    contents = _replay(state, logs, notes)
    state.advance_view(state.lsn)
    require_one_age(directory, state, newest, files, recorded)
    last_sequence = logs[-1].header.sequence if logs else 0
    length, proven = (contents.length, contents.proven_length) if contents else (0, 0)
    store_id = newest.header.store_id
    return Recovered(state, store_id, last_sequence, length, proven, files, late, notes)


def recover_durably(
    directory: Path, recorded: RecordedFiles | None, tenure: Tenure
) -> Recovered | None:
    """Recover for a server that continues from there: make the directory if it is missing,
    and make durable everything that was read. Raises: NotLeaderError."""
    tenure.require()
    make_directory(directory)
    # A name whose sync failed, or was cut off, can be read and be gone after a power cut. The
    # next log named it as the one before, and what was built on it was damaged then.
    sync_directory(directory)
    try:
        recovered = recover(directory, recorded)
        if recovered is not None:
            _require_newest_epoch(recovered, tenure)
    except DamagedFilesError:
        # To a leader that was replaced while it read, the work of its successor can look so.
        tenure.require()
        raise
    if recovered is not None:
        _write_unproven_again(recovered)
    return recovered


def _require_newest_epoch(recovered: Recovered, tenure: Tenure) -> None:
    """Raises: DamagedFilesError: there are files of a later leader."""
    newest = max(known.header.epoch for known in recovered.files)
    if tenure.is_shared and newest > tenure.epoch:
        raise DamagedFilesError(
            f"there are transaction files of epoch {newest}, and this server leads in epoch "
            f"{tenure.epoch}: the metadata store was replaced, or belongs to other servers; use "
            "the right one, or raise its epoch above that of the files"
        )


def _write_unproven_again(recovered: Recovered) -> None:
    # What no proof vouches for may be in the kernel's memory only, and the next files vouch for it.
    # After a sync that failed the kernel calls it written, so that another sync would do nothing:
    # a power cut between the next log and its snapshot left a log shorter than the next one said.
    for known in recovered.files:
        if known.header.sequence == recovered.log_sequence:
            start, stop = recovered.proven_length, recovered.log_length
            write_again(known.path, known.path.read_bytes()[start:stop], start=start)


def _readable(paths: list[tuple[Path, FileKind]], unread: list[str]) -> list[KnownFile]:
    files = []
    for path, kind in paths:
        try:
            files.append(known_file(path, kind))
        except DamagedFilesError as error:
            # Any log might be the newest one, whose edits nothing else holds.
            if kind is FileKind.LOG:
                raise
            unread.append(str(error))
    return sorted(files, key=lambda known: known.header.sequence)


def _newest_snapshot(
    files: list[KnownFile], unread: list[str], notes: list[str]
) -> tuple[KnownFile, StateImage]:
    for known in reversed(files):
        if known.kind is FileKind.SNAPSHOT:
            try:
                _, image = read_snapshot(known.path.name, known.path.read_bytes())
            except DamagedFilesError as error:
                unread.append(str(error))
            else:
                notes += [each.removesuffix(f"; {REPAIR}") + _GO_ON for each in unread]
                return known, image
    reasons = (
        "; ".join((*notes, *unread)) or "there are logs, and no snapshot for them to start from"
    )
    raise DamagedFilesError(
        f"no snapshot can be read: {reasons}; look at the files with `tuff salvage`, or restore "
        "one, then start the transaction service again"
    )


def _chain(files: list[KnownFile], snapshot: KnownFile, image: StateImage) -> list[KnownFile]:
    """The logs after a snapshot. A log is always made before its snapshot; only the very first
    snapshot, which holds nothing, may stand alone."""
    logs = [known for known in files if known.kind is FileKind.LOG]
    behind = [known for known in logs if known.header.lsn > image.lsn]
    if (not behind and image.lsn > 0) or (behind and behind[0].header.lsn != image.lsn + 1):
        raise DamagedFilesError(
            f"the log that goes on from {snapshot.path.name} at edit {image.lsn + 1} is missing; "
            "put it back, and start the transaction service again"
        )
    return behind


def _replay(state: TransactionState, logs: list[KnownFile], notes: list[str]) -> LogContents | None:
    contents = None
    for log, successor in zip_longest(logs, logs[1:]):
        name, sequence = log.path.name, log.header.sequence
        proven_length = None
        if successor is not None:
            if successor.header.previous_sequence != sequence:
                raise damaged(
                    successor.path.name, 0, f"the log before it is missing; it is not {name}"
                )
            proven_length = successor.header.previous_length
        contents = read_log(name, log.path.read_bytes(), proven_length=proven_length)
        if log.header.lsn != state.lsn + 1:
            raise damaged(name, 0, f"it starts with another edit than {state.lsn + 1}")
        if contents.cut_bytes:
            notes.append(
                f"{name}: cut {contents.cut_bytes} bytes of a torn tail at byte {contents.length}; "
                "nothing of them was acknowledged"
            )
        _apply_all(state, name, contents)
    return contents


def _apply_all(state: TransactionState, name: str, contents: LogContents) -> None:
    for offset, (lsn, edit) in zip(contents.offsets, contents.edits, strict=True):
        try:
            reason = contradiction(state, edit)
            if reason is None:
                state.apply(lsn, edit)
        # Any error: messages have to work without transactions (promise 7), and the reason has to
        # name the edit.
        except Exception as error:
            reason = f"it can't be applied ({type(error).__name__}: {error})"
            raise contradicting(name, offset, lsn, edit, reason) from error
        if reason is not None:
            raise contradicting(name, offset, lsn, edit, reason)
