"""Recovery: reads the state from the transaction files (design §4, Snapshots).

It starts from the newest readable snapshot, by sequence number, and replays every log after it. A
torn tail behind the proven length is cut. Any other inconsistency is damage: the service then stays
down rather than continue with an older or an empty state.
"""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from tuff.disk.files import make_directory, sync_directory, write_again
from tuff.protocol.errors import TransactionUnknownError
from tuff.protocol.ids import Offset
from tx.consistency import contradiction
from tx.files import (
    DamagedFilesError,
    FileKind,
    KnownFile,
    contradicting,
    damaged,
    known_file,
    list_files,
)
from tx.outcomes import EndedState, Outcome
from tx.snapshot_file import read_snapshot
from tx.state import StateImage, TransactionState
from tx.wal import LogContents, read_log

BEFORE_ALL = Offset(0, 0)  # of messages
_ADVICE = (
    "put files of one backup together, and start the transaction service again, or use "
    "`tuff salvage`"
)


@dataclass(frozen=True, slots=True)
class StoreMark:
    """The record that the message store has of the transaction files beside it.

    `store_id` is that of both, empty where it has none; it is stored before the files are made.
    `highest_reserved` is the highest pointer that the files reserved, 0 where it never saw any.
    `seen_lsn` is the edit up to which they were durable at its last write, None where it does not
    say. `last` is the highest offset that it assigned. `carried` are the pointers of its rows that
    are neither settled nor marked, None where they are not to be checked.
    """

    store_id: str
    highest_reserved: int = 0
    seen_lsn: int | None = None
    last: Offset = BEFORE_ALL
    carried: AbstractSet[int] | None = None

    @property
    def has_seen_files(self) -> bool:
        """Whether there were transaction files, so that missing ones are damage."""
        return self.highest_reserved > 0


@dataclass(frozen=True, slots=True)
class Recovered:
    """The state of the files. The newest log has the number `log_sequence`; it was read up to
    `log_length`, and up to `proven_length` it is known to be durable. `notes` are remarks for an
    operator."""

    state: TransactionState
    store_id: str
    log_sequence: int
    log_length: int
    proven_length: int
    files: list[KnownFile]
    notes: list[str] = field(default_factory=list)

    @property
    def next_sequence(self) -> int:
        return max(known.header.sequence for known in self.files) + 1


def recover(directory: Path, mark: StoreMark | None) -> Recovered | None:
    """The state that the files hold, or None where there never was one. Blocks: run it in a thread.

    Raises:
        DamagedFilesError: files are damaged, missing or another store's.
        OSError: they can't be read.
    """
    paths = list_files(directory)
    if not paths:
        if mark is not None and mark.has_seen_files:
            raise DamagedFilesError(
                f"{directory} holds no transaction files, though the message store beside it has "
                f"seen pointers up to {mark.highest_reserved}; put them back, and start the "
                "transaction service again"
            )
        return None
    notes: list[str] = []
    files = _readable(paths, notes)
    newest, image = _newest_snapshot(files, notes)
    state = TransactionState(image)
    logs = _chain(files, newest, image)
    contents = _replay(state, logs, notes)
    state.advance_view(state.lsn)
    _check_store(directory, state, newest, files, mark)
    last_sequence = logs[-1].header.sequence if logs else 0
    length, proven = (contents.length, contents.proven_length) if contents else (0, 0)
    return Recovered(state, newest.header.store_id, last_sequence, length, proven, files, notes)


def recover_durably(directory: Path, mark: StoreMark | None) -> Recovered | None:
    """As `recover`, for a server that continues from there: makes the directory if it is missing,
    and makes durable everything that was read."""
    make_directory(directory)
    # A name whose sync failed, or was cut off, can be read and be gone after a power cut. The
    # next log named it as the one before, and what was built on it was damaged then.
    sync_directory(directory)
    recovered = recover(directory, mark)
    if recovered is not None:
        _write_unproven_again(recovered)
    return recovered


def _write_unproven_again(recovered: Recovered) -> None:
    # What no proof vouches for may be in the kernel's memory only, and the next files vouch for it.
    # After a sync that failed the kernel calls it written, so that another sync would do nothing:
    # a power cut between the next log and its snapshot left a log shorter than the next one said.
    for known in recovered.files:
        if known.header.sequence == recovered.log_sequence:
            start, stop = recovered.proven_length, recovered.log_length
            write_again(known.path, known.path.read_bytes()[start:stop], start=start)


def _readable(paths: list[tuple[Path, FileKind]], notes: list[str]) -> list[KnownFile]:
    files = []
    for path, kind in paths:
        try:
            files.append(known_file(path, kind))
        except DamagedFilesError as error:
            # Any log might be the newest one, whose edits nothing else holds.
            if kind is FileKind.LOG:
                raise
            notes.append(str(error))
    return sorted(files, key=lambda known: known.header.sequence)


def _newest_snapshot(files: list[KnownFile], notes: list[str]) -> tuple[KnownFile, StateImage]:
    for known in reversed(files):
        if known.kind is FileKind.SNAPSHOT:
            try:
                _, image = read_snapshot(known.path.name, known.path.read_bytes())
            except DamagedFilesError as error:
                notes.append(f"{error} (the snapshot before it is used instead)")
            else:
                return known, image
    reasons = "; ".join(notes) or "there are logs, and no snapshot for them to start from"
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
        contents = _read(log, proven_length=proven_length)
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


def _read(log: KnownFile, *, proven_length: int | None) -> LogContents:
    return read_log(log.path.name, log.path.read_bytes(), proven_length=proven_length)


def _check_store(
    directory: Path,
    state: TransactionState,
    newest: KnownFile,
    files: list[KnownFile],
    mark: StoreMark | None,
) -> None:
    store_id = newest.header.store_id
    for known in files:
        if known.header.store_id != store_id:
            raise damaged(known.path.name, 0, f"it belongs to another store than {store_id}")
    if mark is None:
        return
    if mark.store_id not in ("", store_id):
        raise DamagedFilesError(
            f"{directory} belongs to store {store_id}, and the message store to {mark.store_id}; "
            f"{_ADVICE}"
        )
    if state.highest_reserved < mark.highest_reserved:
        raise DamagedFilesError(
            f"{directory} knows pointers up to {state.highest_reserved}, and the message store has "
            f"seen {mark.highest_reserved}: the transaction files are older; {_ADVICE}"
        )
    if mark.seen_lsn is not None and state.lsn < mark.seen_lsn:
        raise DamagedFilesError(
            f"{directory} knows edits up to {state.lsn}, and the message store has seen "
            f"{mark.seen_lsn}: the transaction files are older; {_ADVICE}"
        )
    if mark.carried is not None:
        _check_messages(state, mark.carried, mark)


def _check_messages(state: TransactionState, carried: AbstractSet[int], mark: StoreMark) -> None:
    """Raises: DamagedFilesError: the messages are older than the transaction files.

    Rows of a transaction with an unknown outcome would be shown as committed. The index rows of a
    commit stay until a write batch settles them, and that batch records that it has seen the
    commit."""
    for pointer in carried:
        if not is_known(state, pointer):
            raise DamagedFilesError(
                f"the message store has undecided rows of transaction {pointer}, whose "
                "outcome is not known: the messages are older than the transaction files; "
                f"{_ADVICE}"
            )
    for outcome in commits_without_rows(state, carried, seen=mark.seen_lsn, last=mark.last):
        raise DamagedFilesError(
            f"transaction {outcome.transaction_id} committed messages to "
            f"{', '.join(outcome.topics)} that the message store does not have: it is older "
            f"than the transaction files; {_ADVICE}"
        )


def commits_without_rows(
    state: TransactionState, carried: AbstractSet[int], *, seen: int | None, last: Offset
) -> Iterator[Outcome]:
    """Commits whose messages are not all in the message store, the newest first. The store had seen
    edits up to `seen` and assigned offsets up to `last`; its undecided rows carry these pointers.
    """
    for outcome in state.outcomes.newest_first():
        if seen is None or outcome.lsn <= seen:
            return
        is_there = not outcome.topics or not carried.isdisjoint(outcome.pointers)
        is_there = is_there and all(detail.last <= last for detail in outcome.published)
        if outcome.state is EndedState.COMMITTED and not is_there:
            yield outcome


def is_known(state: TransactionState, pointer: int) -> bool:
    """Whether the outcome of a pointer is known, or will be once the service is up: the restart
    makes reserved pointers invalid."""
    try:
        state.find(pointer)
    except TransactionUnknownError:
        return any(block.start <= pointer < block.stop for block in state.blocks)
    return True
