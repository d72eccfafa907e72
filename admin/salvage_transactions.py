"""The newest transaction state that transaction files prove, also corrupt ones (promise 8).

Files from which a server would start are taken as they are. Of others, the newest intact snapshot
and the edits that follow it without a gap are certain. Of what follows a gap, each edit that means
something by itself is believed: a commit record is the decision, wherever it stands in the log.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from admin.check_transaction_files import check_transaction_files
from admin.findings import Decision, Finding
from tuff.disk.files import make_directory
from tuff.disk.records import Damage, Frame, read_frame
from tuff.protocol.errors import TransactionUnknownError
from tuff.protocol.ids import Offset
from tx.consistency import contradiction
from tx.edits import (
    Aborted,
    BlockReserved,
    BlockReturned,
    Checkpointed,
    Committed,
    Committing,
    Edit,
    EpochBegun,
    Invalidated,
    InvalidReason,
    MalformedError,
    NewerError,
    PointerRange,
    Refused,
    Restarted,
    SinkForgotten,
    Started,
    Truncated,
    decode_edit,
)
from tx.files import (
    HEAD_SIZE,
    DamagedFilesError,
    FileHeader,
    FileKind,
    KnownFile,
    NewerFilesError,
    free_path,
    list_files,
    newer,
    read_header,
)
from tx.outcomes import EndedState, OpenTransaction
from tx.recovery import StoreMark
from tx.settings import BLOCK_COUNT_MAX
from tx.snapshot_file import read_snapshot, write_snapshot
from tx.state import Sink, StateImage, TransactionState, fresh_image
from tx.wal import DiskFile, create_log, proofs_behind

_OF_ONE_TRANSACTION = (Checkpointed, Committing, Refused, Committed, Aborted, Invalidated)


@dataclass
class ProvenState:
    """What the files prove. `is_complete`: they lack nothing that a server would need. `committed`
    and `undone` are pointers whose transaction is not in the state, and of which an edit after a
    gap says so."""

    state: TransactionState
    store_id: str | None
    is_complete: bool
    lost: list[Finding] = field(default_factory=list)
    decided: list[Decision] = field(default_factory=list)
    committed: set[int] = field(default_factory=set)
    undone: set[int] = field(default_factory=set)
    checkpoints: dict[int, set[int]] = field(default_factory=dict)
    highest_lsn: int = 0

    def ended_as(self, pointer: int) -> EndedState | None:
        """How the transaction of a pointer ended; None if it is open, or if that is unknown."""
        if pointer in self.committed:
            return EndedState.COMMITTED
        if pointer in self.undone:
            return EndedState.INVALID
        try:
            found = self.state.find(pointer)
        except TransactionUnknownError:
            return None
        return None if isinstance(found, OpenTransaction) else found.state

    def is_forgotten(self, pointer: int) -> bool:
        """Whether its end was once recorded, and dropped when no row depended on it any more."""
        if not self.is_complete or pointer > self.state.last_pointer:
            return False
        return self.ended_as(pointer) is None and not self.is_open(pointer)

    def is_open(self, pointer: int) -> bool:
        return any(pointer in opened.pointers for opened in self.state.open.values())

    @property
    def last_published(self) -> Offset:
        """The highest offset among the messages of remembered commits."""
        places = (detail.last for each in self.state.outcomes for detail in each.published)
        return max(places, default=Offset(0, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowEvidence:
    """What the rows add: the pointers that they prove committed, those whose rows salvage hid, and
    the highest pointer that a client can have seen."""

    committed: Collection[int] = ()
    hidden: Collection[int] = ()
    highest_pointer: int = 0


def prove_state(directory: Path, mark: StoreMark | None) -> ProvenState:
    """What the files of a directory prove; they may be corrupt or missing. Changes nothing.

    Raises:
        NewerFilesError: a newer version wrote one of them.
        OSError: a file can't be read.
    """
    report = check_transaction_files(directory, mark)
    readable = _read_corrupt_files(directory)
    if report.state is not None:
        lsn = report.state.lsn
        return ProvenState(
            report.state,
            readable.store_id,
            is_complete=True,
            lost=report.findings,
            highest_lsn=lsn,
        )
    proven = _replay(readable, report.findings)
    behind = sorted(lsn for lsn in readable.edits if lsn > proven.state.lsn)
    if behind and behind[0] > proven.state.lsn + 1:
        gap = f"edits {proven.state.lsn + 1} to {behind[0] - 1}"
        proven.decided.append(
            Decision(directory.name, f"{gap} are lost; {len(behind)} edits after them were read")
        )
    for lsn in behind:
        _apply_after_gap(proven, lsn, readable.edits[lsn])
        proven.highest_lsn = lsn
    proven.decided += [_epoch_in_doubt(sink) for sink in proven.state.sinks]
    return proven


def complete_state(proven: ProvenState, rows: RowEvidence, *, now_ms: int) -> StateImage:
    """The state with which a server can go on: no transaction is open, and the next pointers are
    above all that a client can have seen."""
    state = proven.state
    for opened in list(state.open.values()):
        _apply(state, _end_of_open(proven, opened, rows, now_ms=now_ms))
    lost = sorted(
        pointer
        for pointer in {*rows.hidden, *_pointers_without_start(proven)}
        if _is_unknown(state, pointer) and pointer not in proven.committed
    )
    if lost:
        reason = "nothing proves that they committed; they are invalid (lost_in_crash)"
        proven.decided.append(Decision("transactions " + ", ".join(map(str, lost)), reason))
    ranges = tuple(PointerRange(pointer, pointer + 1) for pointer in lost)
    _apply(state, Restarted(now_ms, is_after_crash=True, lost=ranges))
    highest = max(state.highest_reserved, state.last_pointer, rows.highest_pointer)
    _apply(state, BlockReserved(now_ms, PointerRange(highest + 1, highest + BLOCK_COUNT_MAX)))
    _apply(state, BlockReturned(now_ms))
    state.advance_view(state.lsn)
    return _all_visible(state, lsn=max(proven.highest_lsn, state.lsn))


def write_transaction_files(
    directory: Path, image: StateImage, *, store_id: str, now_ms: int
) -> KnownFile:
    """A log and a snapshot from which a server starts, in a directory that has none.

    Raises: OSError.
    """
    make_directory(directory)
    log = FileHeader(sequence=1, store_id=store_id, created_ms=now_ms, lsn=image.lsn + 1)
    path = free_path(directory, FileKind.LOG, now_ms=now_ms)
    create_log(path, log, (), open_file=DiskFile).file.close()
    snapshot = FileHeader(sequence=2, store_id=store_id, created_ms=now_ms, lsn=image.lsn)
    return write_snapshot(directory, snapshot, image)[0]


def _epoch_in_doubt(sink: Sink) -> Decision:
    # A later epoch may be among the lost edits. Its replay would be written a second time, and only
    # the operator of the writer can know.
    return Decision(
        f"sink {sink.name}",
        f"epoch {sink.epoch} is the newest that is known; check the topics before its writer "
        "goes on",
    )


def _replay(readable: "_ReadableFiles", lost: list[Finding]) -> ProvenState:
    image = max(readable.images, key=lambda each: each.lsn, default=fresh_image(now_ms=0))
    state = TransactionState(image)
    while (edit := readable.edits.get(state.lsn + 1)) is not None:
        # From an edit that contradicts those before it on, each is judged alone, as after a gap.
        if contradiction(state, edit) is not None:
            break
        state.apply(state.lsn + 1, edit)
    state.advance_view(state.lsn)
    return ProvenState(
        state, readable.store_id, is_complete=False, lost=lost, highest_lsn=state.lsn
    )


def _apply_after_gap(proven: ProvenState, lsn: int, edit: Edit) -> None:
    """Apply an edit from after a gap, as far as that is possible without the lost ones."""
    state = proven.state
    if isinstance(edit, Truncated):
        return  # pointers do no harm on the invalid list, and what else was lost may need them
    if isinstance(edit, SinkForgotten) and state.sinks.find(edit.sink) is None:
        return  # its epochs are among the lost edits
    if isinstance(edit, Committed):
        _note_commit(proven, edit)
    if isinstance(edit, Started | EpochBegun):
        edit = replace(edit, seen=state.lsn)
    elif isinstance(edit, _OF_ONE_TRANSACTION) and edit.transaction_id not in state.open:
        _note_without_start(proven, edit)
        return
    if (reason := contradiction(state, edit, has_gap=True)) is not None:
        name = f"edit {lsn} ({type(edit).__name__})"
        proven.decided.append(Decision(name, f"left out, since it contradicts others: {reason}"))
        return
    state.apply(state.lsn + 1, edit)
    state.advance_view(state.lsn)


def _note_without_start(proven: ProvenState, edit: Edit) -> None:
    match edit:
        case Checkpointed():
            proven.checkpoints.setdefault(edit.transaction_id, set()).add(edit.pointer)
            proven.undone.add(edit.pointer)
        case Aborted() | Invalidated():
            proven.undone.add(edit.transaction_id)
        case _:
            pass


def _note_commit(proven: ProvenState, edit: Committed) -> None:
    checkpoints = proven.checkpoints.pop(edit.transaction_id, set())
    published = {detail.pointer for detail in edit.published}
    proven.committed |= {edit.transaction_id} | checkpoints | published


def _end_of_open(
    proven: ProvenState, opened: OpenTransaction, rows: RowEvidence, *, now_ms: int
) -> Edit:
    name = f"transaction {opened.transaction_id}"
    if not {*rows.committed, *proven.committed}.isdisjoint(opened.pointers):
        reason = "it committed: its rows, or an edit after the lost ones, prove it"
        proven.decided.append(Decision(name, reason))
        return Committed(
            now_ms, opened.transaction_id, frozenset(), is_read_only=False, published=(),
            topics=(), request_id=None,
        )  # fmt: skip
    reason = "it was in progress; it is invalid (lost_in_crash)"
    proven.decided.append(Decision(name, reason))
    return Invalidated(now_ms, opened.transaction_id, InvalidReason.LOST_IN_CRASH, topics=())


def _pointers_without_start(proven: ProvenState) -> Iterable[int]:
    """Pointers that a client may have been given, whose start edit was never logged or is lost."""
    yield from proven.undone
    for block in proven.state.blocks:
        yield from range(block.start, block.stop)


def _is_unknown(state: TransactionState, pointer: int) -> bool:
    try:
        state.find(pointer)
    except TransactionUnknownError:
        return True
    return False


def _apply(state: TransactionState, edit: Edit) -> None:
    state.apply(state.lsn + 1, edit)


def _all_visible(state: TransactionState, *, lsn: int) -> StateImage:
    # Every transaction has ended, and committed rows must be visible at once, not only after the
    # next commit.
    image = state.image()
    view = replace(image.view, read_pointer=image.highest_reserved)
    return replace(
        image, lsn=lsn, seen=lsn, last_pointer=image.highest_reserved, view=view, pending=()
    )


# Reading corrupt files. A corrupt length hides where the next frame starts. But each write begins
# with a proof that contains its own offset, and reading goes on at the next one whose offset is
# right.


@dataclass
class _ReadableFiles:
    """What can be read in the files of a directory: headers, intact snapshots, and edits by LSN."""

    headers: list[FileHeader] = field(default_factory=list)
    images: list[StateImage] = field(default_factory=list)
    edits: dict[int, Edit] = field(default_factory=dict)

    @property
    def store_id(self) -> str | None:
        """The one that most of the files have; None if no header can be read."""
        ids = [header.store_id for header in self.headers]
        return max(ids, key=ids.count, default=None)


@dataclass
class _Log:
    name: str
    header: FileHeader | None
    data: bytes
    edits: list[tuple[int, Edit]] = field(default_factory=list)

    @property
    def first_lsn(self) -> int:
        return self.header.lsn if self.header is not None else self.edits[0][0]


def _read_corrupt_files(directory: Path) -> _ReadableFiles:
    """Read every transaction file as far as possible, also past corruption. Changes nothing.

    Raises:
        NewerFilesError: a newer version wrote some of it; if it were left out, it would be lost.
        OSError: a file can't be read.
    """
    readable = _ReadableFiles()
    logs: list[_Log] = []
    for path, kind in list_files(directory) if directory.is_dir() else []:
        data = path.read_bytes()
        header = _header(path.name, kind, data)
        if header is not None:
            readable.headers.append(header)
        if kind is FileKind.LOG:
            logs.append(_Log(path.name, header, data))
        elif header is not None:
            readable.images += _images(path.name, data)
    for log in logs:
        log.edits = list(_edits(log.name, _acknowledged(log, readable.headers)))
    for log in sorted((log for log in logs if log.edits), key=lambda log: log.first_lsn):
        # What an older log has from here on was cut off when this one was begun.
        for lsn in [lsn for lsn in readable.edits if lsn >= log.first_lsn]:
            del readable.edits[lsn]
        readable.edits |= log.edits
    return readable


def _header(name: str, kind: FileKind, data: bytes) -> FileHeader | None:
    try:
        return read_header(name, kind, data)[0]
    except NewerFilesError:
        raise
    except DamagedFilesError:
        return None


def _images(name: str, data: bytes) -> list[StateImage]:
    try:
        return [read_snapshot(name, data)[1]]
    except NewerFilesError:
        raise
    except DamagedFilesError:
        return []


def _acknowledged(log: _Log, headers: list[FileHeader]) -> bytes:
    """The bytes up to the length that the log after it records; all, if there is none."""
    for header in headers:
        if log.header is not None and header.previous_sequence == log.header.sequence:
            return log.data[: header.previous_length]
    return log.data


def _edits(name: str, data: bytes) -> Iterator[tuple[int, Edit]]:
    at = HEAD_SIZE
    while at < len(data):
        found = read_frame(data, at)
        if isinstance(found, Damage):
            at = _next_frame(data, at)
            continue
        at = found.stop
        try:
            yield decode_edit(found.body)
        except NewerError as error:
            raise newer(name, found.start, str(error)) from None
        except MalformedError:
            continue  # the header, or a proof


def _next_frame(data: bytes, corrupt_at: int) -> int:
    """Where reading goes on after a corrupt frame; the end if no later frame is recognisable."""
    stop = corrupt_at + 8 + int.from_bytes(data[corrupt_at : corrupt_at + 4], "big")
    # The length may be right, and the body or the checksum wrong.
    if isinstance(read_frame(data, stop), Frame):
        return stop
    return next((proof.start for proof in proofs_behind(data, corrupt_at + 1)), len(data))
