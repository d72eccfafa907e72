"""The newest transaction state that transaction files prove, also corrupt ones (promise 8).

Files from which a server would start are taken as they are. Of others, the newest intact snapshot
and the edits that follow it without a gap are certain. After a gap, an edit is used if it has a
meaning by itself: a commit record is the decision, independent of the edits before it.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from admin.findings import Finding, SalvageDecision
from admin.transaction_files import ReadableEdits, TransactionFiles
from tuff.protocol.ids import Offset
from tuff.protocol.sentences import counted
from tx.consistency import contradiction
from tx.log_records import (
    Aborted,
    BlockReserved,
    BlockReturned,
    Checkpointed,
    Committed,
    Committing,
    Confirmed,
    Edit,
    EpochBegun,
    InDoubt,
    Invalidated,
    InvalidReason,
    PointerRange,
    Prepared,
    Refused,
    Restarted,
    SinkForgotten,
    Started,
    StoreJoined,
    Truncated,
)
from tx.mixed_backups import RecordedFiles
from tx.outcomes import EndedState, OpenTransaction, Outcome
from tx.settings import BLOCK_COUNT_MAX
from tx.state import Sink, StateImage, TransactionState, fresh_image

_OF_ONE_TRANSACTION = (
    Checkpointed, Committing, Refused, Prepared, StoreJoined, Committed, InDoubt, Confirmed,
    Aborted, Invalidated,
)  # fmt: skip


class ProvenOutcome(Enum):
    """What the transaction files prove of a pointer. FORGOTTEN: they are complete and do not have
    it, so it ended long ago and had no index row any more; IN_DOUBT: it committed if its rows are
    there; UNKNOWN: they prove nothing."""

    COMMITTED = "committed"
    NOT_COMMITTED = "not committed"
    FORGOTTEN = "forgotten"
    IN_DOUBT = "in doubt"
    UNKNOWN = "unknown"


@dataclass
class ProvenState:
    """What the files prove. `is_complete`: a server could start from them. `committed`
    and `undone` are pointers whose transaction is not in the state, and of which an edit after a
    gap says so."""

    state: TransactionState
    store_id: str | None
    is_complete: bool
    lost: list[Finding] = field(default_factory=list)
    decided: list[SalvageDecision] = field(default_factory=list)
    committed: set[int] = field(default_factory=set)
    undone: set[int] = field(default_factory=set)
    checkpoints: dict[int, set[int]] = field(default_factory=dict)
    highest_lsn: int = 0

    def outcome_of(self, pointer: int) -> ProvenOutcome:
        """What a row with this pointer may be taken for."""
        found = self.state.maybe_find(pointer)
        has_committed = isinstance(found, Outcome) and found.state is EndedState.COMMITTED
        if pointer in self.committed or (has_committed and pointer not in self.undone):
            return ProvenOutcome.COMMITTED
        if pointer in self.undone or isinstance(found, Outcome):
            return ProvenOutcome.NOT_COMMITTED
        if not self.is_complete:
            return ProvenOutcome.UNKNOWN  # one that is open may have committed since
        if isinstance(found, OpenTransaction):
            has_doubt = found.doubt is not None
            return ProvenOutcome.IN_DOUBT if has_doubt else ProvenOutcome.NOT_COMMITTED
        is_forgotten = pointer <= self.state.last_pointer
        return ProvenOutcome.FORGOTTEN if is_forgotten else ProvenOutcome.UNKNOWN

    def remembers_commit(self, pointer: int) -> bool:
        """Whether a server that starts from this state knows that the pointer committed."""
        is_committed = self.outcome_of(pointer) is ProvenOutcome.COMMITTED
        return is_committed and self.state.maybe_find(pointer) is not None

    @property
    def last_published(self) -> Offset:
        """The highest offset among the messages of remembered commits."""
        offsets = (detail.last for each in self.state.outcomes for detail in each.published)
        return max(offsets, default=Offset(0, 0))


def prove_state(directory: Path, recorded: RecordedFiles | None) -> ProvenState:
    """What the files of a directory prove; they may be corrupt or missing. Changes nothing.

    Raises:
        NewerFilesError: a newer version wrote one of them.
        OSError: a file can't be read.
    """
    files = TransactionFiles(directory)
    report = files.check(recorded)
    readable = files.readable_edits()
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
            SalvageDecision(
                directory.name,
                f"{gap} are lost; {counted(len(behind), 'edit')} after them could be read",
            )
        )
    _let_stores_join(proven.state)
    for lsn in behind:
        _apply_after_gap(proven, lsn, readable.edits[lsn])
        proven.highest_lsn = lsn
    proven.decided += [_epoch_in_doubt(sink) for sink in proven.state.sinks]
    return proven


def complete_state(
    proven: ProvenState,
    *,
    now_ms: int,
    committed: Collection[int] = (),
    hidden: Collection[int] = (),
    highest_pointer: int = 0,
) -> StateImage:
    """The state with which a server can go on: no transaction is open, and the next pointers are
    above all that a client can have seen. The rows add the pointers that they prove committed,
    those whose rows salvage hid, and the highest pointer that a client can have seen."""
    state = proven.state
    for opened in list(state.open.values()):
        _apply(state, _end_of_open(proven, opened, committed, now_ms=now_ms))
    lost = sorted(
        pointer
        for pointer in {*hidden, *_pointers_without_start(proven)}
        if state.maybe_find(pointer) is None and pointer not in proven.committed
    )
    if lost:
        reason = "nothing proves that they committed; they are invalid (lost_in_crash)"
        proven.decided.append(SalvageDecision("transactions " + ", ".join(map(str, lost)), reason))
    ranges = tuple(PointerRange(pointer, pointer + 1) for pointer in lost)
    _apply(state, Restarted(now_ms, is_after_crash=True, lost=ranges))
    highest = max(state.highest_reserved, state.last_pointer, highest_pointer)
    _apply(state, BlockReserved(now_ms, PointerRange(highest + 1, highest + BLOCK_COUNT_MAX)))
    _apply(state, BlockReturned(now_ms))
    state.advance_view(state.lsn)
    return _all_visible(state, lsn=max(proven.highest_lsn, state.lsn))


def _epoch_in_doubt(sink: Sink) -> SalvageDecision:
    # A later epoch may be among the lost edits. Its replay would be written a second time, and only
    # the operator of the writer can know.
    return SalvageDecision(
        f"sink {sink.name}",
        f"epoch {sink.epoch} is the newest that is known; check the topics before its writer "
        "goes on",
    )


def _replay(readable: ReadableEdits, lost: list[Finding]) -> ProvenState:
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


def _let_stores_join(state: TransactionState) -> None:
    """An edit that was lost may have let another store join a transaction of messages only."""
    for opened in list(state.open.values()):
        if opened.is_messages_only:
            _apply(state, StoreJoined(opened.started_at_ms, opened.transaction_id))
    state.advance_view(state.lsn)


def _apply_after_gap(proven: ProvenState, lsn: int, edit: Edit) -> None:
    """Apply an edit from after a gap, as far as possible without the lost ones."""
    state = proven.state
    if _is_left_out(state, edit):
        return
    if isinstance(edit, Confirmed):
        edit = _confirmed(state, edit)
    if isinstance(edit, Committed):
        _note_commit(proven, edit)
    if isinstance(edit, Started | EpochBegun):
        edit = replace(edit, seen=state.lsn)
        if isinstance(edit, Started):
            edit = replace(edit, is_messages_only=False)
    elif isinstance(edit, _OF_ONE_TRANSACTION) and edit.transaction_id not in state.open:
        _note_without_start(proven, edit)
        return
    if (reason := contradiction(state, edit, has_gap=True)) is not None:
        name = f"edit {lsn} ({type(edit).__name__})"
        proven.decided.append(
            SalvageDecision(name, f"left out, since it contradicts others: {reason}")
        )
        return
    state.apply(state.lsn + 1, edit)
    state.advance_view(state.lsn)


def _is_left_out(state: TransactionState, edit: Edit) -> bool:
    # Pointers do no harm on the invalid list, and what else was lost may need them. A sink of which
    # nothing is known has its epochs among the lost edits.
    is_of_lost = isinstance(edit, SinkForgotten) and state.sinks.find(edit.sink) is None
    return isinstance(edit, Truncated) or is_of_lost


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


def _confirmed(state: TransactionState, edit: Confirmed) -> Committed:
    """The commit that this edit confirms, with what is left of the edit that had it in doubt."""
    opened = state.open.get(edit.transaction_id)
    if opened is None or opened.doubt is None:
        return _committed(edit.at_ms, edit.transaction_id)
    doubt = opened.doubt
    return Committed(
        doubt.at_ms, doubt.transaction_id, doubt.changes, is_read_only=False,
        published=doubt.published, topics=doubt.topics, request_id=doubt.request_id,
    )  # fmt: skip


def _committed(at_ms: int, transaction_id: int) -> Committed:
    """A commit of which nothing else is known."""
    return Committed(
        at_ms, transaction_id, frozenset(), is_read_only=False, published=(), topics=(),
        request_id=None,
    )  # fmt: skip


def _end_of_open(
    proven: ProvenState, opened: OpenTransaction, committed: Collection[int], *, now_ms: int
) -> Edit:
    name = f"transaction {opened.transaction_id}"
    if not {*committed, *proven.committed}.isdisjoint(opened.pointers):
        reason = "it committed: its rows, or an edit after the lost ones, prove it"
        proven.decided.append(SalvageDecision(name, reason))
        if opened.doubt is not None:
            return Confirmed(now_ms, opened.transaction_id)
        return _committed(now_ms, opened.transaction_id)
    reason = "it was in progress; it is invalid (lost_in_crash)"
    if opened.prepared is not None:
        reason = (
            f"it was prepared, and the database {opened.prepared.database} decides; it is invalid "
            "(lost_in_crash), so look there: if it committed, its messages have to be published "
            "again"
        )
    proven.decided.append(SalvageDecision(name, reason))
    return Invalidated(now_ms, opened.transaction_id, InvalidReason.LOST_IN_CRASH, topics=())


def _pointers_without_start(proven: ProvenState) -> Iterable[int]:
    """Pointers that a client may have been given, whose start edit was never logged or is lost."""
    yield from proven.undone
    for block in proven.state.blocks:
        yield from range(block.start, block.stop)


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
