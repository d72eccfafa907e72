"""The newest transaction state that can be proven, and nothing in it undecided (promise 8).

Files from which a server would start are taken as they are. Of others, the newest whole snapshot
and the edits that follow it without a gap are certain; of what stands behind a gap, each edit that
says something by itself is believed: a commit's record is the decision, wherever it stands.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from tuff.disk.files import make_directory
from tuff.disk.findings import Decision, Finding
from tuff.protocol.errors import TransactionUnknownError
from tuff.protocol.ids import Place
from tx.check import check_files
from tx.contradictions import contradiction
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
    PointerRange,
    Refused,
    Restarted,
    SinkForgotten,
    Started,
    StartedWithLease,
    Truncated,
)
from tx.files import FileHeader, KnownFile
from tx.filestore import FileStore
from tx.log import DiskFile
from tx.records import EndedState, OpenTransaction
from tx.recovery import StoreMark
from tx.scraps import Scraps, gather
from tx.settings import BLOCK_COUNT_MAX
from tx.sinks import Sink
from tx.state import StateImage, TransactionState, fresh_image

_OF_ONE = (Checkpointed, Committing, Refused, Committed, Aborted, Invalidated)


@dataclass
class Proven:
    """What the files prove. `is_whole`: they lack nothing that a server would need. `committed` and
    `undone` are pointers of which an edit behind a gap says so."""

    state: TransactionState
    store_id: str | None
    is_whole: bool
    lost: list[Finding] = field(default_factory=list)
    decided: list[Decision] = field(default_factory=list)
    committed: set[int] = field(default_factory=set)
    undone: set[int] = field(default_factory=set)
    checkpoints: dict[int, set[int]] = field(default_factory=dict)
    highest_lsn: int = 0

    def ended_as(self, pointer: int) -> EndedState | None:
        """How the transaction of a pointer ended; None where that is open, or nobody knows."""
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
        """Whether its end was remembered once, and was forgotten since, for it needed nothing."""
        if not self.is_whole or pointer > self.state.last_pointer:
            return False
        return self.ended_as(pointer) is None and not self.is_open(pointer)

    def is_open(self, pointer: int) -> bool:
        return any(pointer in opened.pointers for opened in self.state.open.values())

    @property
    def last_published(self) -> Place:
        """The highest place that a remembered commit answered."""
        places = (detail.last for each in self.state.outcomes for detail in each.published)
        return max(places, default=Place(0, 0))


def prove(directory: Path, mark: StoreMark | None) -> Proven:
    """What the files of a directory prove; they may be damaged, or not be there. Changes nothing.

    Raises:
        NewerFilesError: a newer version wrote one of them.
        OSError: a file can't be read.
    """
    account = check_files(directory, mark)
    scraps = gather(directory)
    if account.state is not None:
        lsn = account.state.lsn
        return Proven(
            account.state, scraps.store_id, is_whole=True, lost=account.findings, highest_lsn=lsn
        )
    proven = _replayed(scraps, account.findings)
    behind = sorted(lsn for lsn in scraps.edits if lsn > proven.state.lsn)
    if behind and behind[0] > proven.state.lsn + 1:
        gap = f"edits {proven.state.lsn + 1} to {behind[0] - 1}"
        proven.decided.append(
            Decision(directory.name, f"{gap} are lost; {len(behind)} behind them were read")
        )
    for lsn in behind:
        _believe(proven, lsn, scraps.edits[lsn])
        proven.highest_lsn = lsn
    proven.decided += [_doubt(sink) for sink in proven.state.sinks]
    return proven


def _doubt(sink: Sink) -> Decision:
    # A later epoch may be among what is lost. Its replay would be written a second time, and only
    # who runs the writer can know.
    return Decision(
        f"sink {sink.name}",
        f"epoch {sink.epoch} is the newest that is known; look at the topics before its writer "
        "goes on",
    )


def _replayed(scraps: Scraps, lost: list[Finding]) -> Proven:
    image = max(scraps.images, key=lambda each: each.lsn, default=fresh_image(now_ms=0))
    state = TransactionState(image)
    while (edit := scraps.edits.get(state.lsn + 1)) is not None:
        # From an edit that contradicts those before it on, each is read by itself, as behind a gap.
        if contradiction(state, edit) is not None:
            break
        state.apply(state.lsn + 1, edit)
    state.advance_view(state.lsn)
    return Proven(state, scraps.store_id, is_whole=False, lost=lost, highest_lsn=state.lsn)


def _believe(proven: Proven, lsn: int, edit: Edit) -> None:
    """Apply an edit from behind a gap, as far as it can be without those that are lost."""
    state = proven.state
    if isinstance(edit, Truncated):
        return  # on the list they do no harm, and what else was lost they might need
    if isinstance(edit, SinkForgotten) and state.sinks.find(edit.sink) is None:
        return  # its epochs are among what is lost
    if isinstance(edit, Committed):
        _believe_commit(proven, edit)
    if isinstance(edit, Started | StartedWithLease | EpochBegun):
        edit = replace(edit, seen=state.lsn)
    elif isinstance(edit, _OF_ONE) and edit.transaction_id not in state.open:
        _believe_ending(proven, edit)
        return
    if (reason := contradiction(state, edit, has_gap=True)) is not None:
        name = f"edit {lsn} ({type(edit).__name__})"
        proven.decided.append(Decision(name, f"left out, since it contradicts others: {reason}"))
        return
    state.apply(state.lsn + 1, edit)
    state.advance_view(state.lsn)


def _believe_ending(proven: Proven, edit: Edit) -> None:
    match edit:
        case Checkpointed():
            proven.checkpoints.setdefault(edit.transaction_id, set()).add(edit.pointer)
            proven.undone.add(edit.pointer)
        case Aborted() | Invalidated():
            proven.undone.add(edit.transaction_id)
        case _:
            pass


def _believe_commit(proven: Proven, edit: Committed) -> None:
    checkpoints = proven.checkpoints.pop(edit.transaction_id, set())
    published = {detail.pointer for detail in edit.published}
    proven.committed |= {edit.transaction_id} | checkpoints | published


@dataclass(frozen=True, slots=True)
class Rest:
    """What the rows add: pointers they prove committed, those whose rows were hidden, and the
    highest that anybody can have seen."""

    settled: Collection[int]
    hidden: Collection[int]
    highest_pointer: int


def finish(proven: Proven, rest: Rest, *, now_ms: int) -> StateImage:
    """The state with which a server can go on: nobody in progress, and pointers above all seen."""
    state = proven.state
    for opened in list(state.open.values()):
        _apply(state, _ending(proven, opened, rest, now_ms=now_ms))
    lost = sorted(
        pointer
        for pointer in {*rest.hidden, *_unfinished(proven)}
        if _is_unknown(state, pointer) and pointer not in proven.committed
    )
    if lost:
        reason = "nothing proves that they committed; they are invalid (lost_in_crash)"
        proven.decided.append(Decision("transactions " + ", ".join(map(str, lost)), reason))
    ranges = tuple(PointerRange(pointer, pointer + 1) for pointer in lost)
    _apply(state, Restarted(now_ms, is_after_crash=True, lost=ranges))
    highest = max(state.highest_reserved, state.last_pointer, rest.highest_pointer)
    _apply(state, BlockReserved(now_ms, PointerRange(highest + 1, highest + BLOCK_COUNT_MAX)))
    _apply(state, BlockReturned(now_ms))
    state.advance_view(state.lsn)
    return _above_all(state, lsn=max(proven.highest_lsn, state.lsn))


def _ending(proven: Proven, opened: OpenTransaction, rest: Rest, *, now_ms: int) -> Edit:
    name = f"transaction {opened.transaction_id}"
    if not {*rest.settled, *proven.committed}.isdisjoint(opened.pointers):
        reason = "it committed: its rows, or an edit behind what is lost, prove it"
        proven.decided.append(Decision(name, reason))
        return Committed(
            now_ms, opened.transaction_id, frozenset(), is_read_only=False, published=(),
            topics=(), request_id=None,
        )  # fmt: skip
    reason = "it was in progress; it is invalid (lost_in_crash)"
    proven.decided.append(Decision(name, reason))
    return Invalidated(now_ms, opened.transaction_id, InvalidReason.LOST_IN_CRASH, topics=())


def _unfinished(proven: Proven) -> Iterable[int]:
    """Pointers that somebody may have been given whose start did not reach the log, or is lost."""
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


def _above_all(state: TransactionState, *, lsn: int) -> StateImage:
    # All have ended, and what is settled must be seen at once, not after the next commit.
    image = state.image()
    view = replace(image.view, read_pointer=image.highest_reserved)
    return replace(
        image, lsn=lsn, seen=lsn, last_pointer=image.highest_reserved, view=view, pending=()
    )


def write_files(directory: Path, image: StateImage, *, store_id: str, now_ms: int) -> KnownFile:
    """A log and a snapshot from which a server starts, in a directory that has none.

    Raises: OSError.
    """
    make_directory(directory)
    store = FileStore(directory, open_file=DiskFile)
    log = FileHeader(sequence=1, store_id=store_id, created_ms=now_ms, lsn=image.lsn + 1)
    store.put_log(log, ()).file.close()
    snapshot = FileHeader(sequence=2, store_id=store_id, created_ms=now_ms, lsn=image.lsn)
    return store.put_snapshot(snapshot, image)[0]
