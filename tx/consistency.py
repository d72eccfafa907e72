"""Whether whole records of the transaction files contradict each other (design §4, promise 8).

A record whose checksum is right can still be impossible: files of two histories were mixed, or a
bug wrote it. Replay and the reader of snapshots check here before anything is applied, and report
the file and the offset. The live service does not: its decisions check more, and answer a client
with an error of the protocol. A test holds the two together: no decision may produce an edit that
is a contradiction here.
"""

from itertools import pairwise
from typing import assert_never

from tx.log_records import (
    Aborted,
    BlockKept,
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
    PointerRange,
    Prepared,
    Refused,
    Restarted,
    SinkForgotten,
    Started,
    StoreJoined,
    Truncated,
)
from tx.outcomes import EndedState, OpenTransaction
from tx.state import StateImage, TransactionState

# Pointers of one edit; far more than a block ever has, and few enough to be listed in memory.
POINTERS_MAX = 1 << 22

_OfOpen = (
    Committing | Refused | Prepared | StoreJoined | InDoubt | Committed | Confirmed | Invalidated
)


def contradiction(state: TransactionState, edit: Edit, *, has_gap: bool = False) -> str | None:
    """Why this edit can't be the next one after this state; None if it can. `has_gap`: edits before
    it are lost, and with them the blocks that they reserved."""
    if isinstance(edit, _OfOpen):
        return _check_of_open(state, edit)
    match edit:
        case Started() | EpochBegun() | Checkpointed():
            reason = _check_pointer(state, edit, has_gap=has_gap)
        case Aborted():
            reason = _check_abort(state, edit.transaction_id)
        case BlockReserved():
            reason = _check_block(state, edit.block)
        case Restarted():
            reason = _check_lost(state, edit.lost, has_gap=has_gap)
        case SinkForgotten():
            is_recorded = state.sinks.find(edit.sink) is not None
            reason = None if is_recorded else f"nothing is recorded of the sink {edit.sink!r}"
        case BlockKept() | BlockReturned() | Truncated():
            reason = None  # it may name pointers that are not there
        case _:
            assert_never(edit)
    return reason


def _check_pointer(
    state: TransactionState, edit: Started | EpochBegun | Checkpointed, *, has_gap: bool
) -> str | None:
    if isinstance(edit, Checkpointed):
        if (reason := _check_undecided(state, edit.transaction_id)) is not None:
            return reason
    elif not state.seen <= edit.seen <= state.lsn:
        return (
            f"transaction {edit.pointer} started with the endings up to edit {edit.seen}, which "
            f"are those from edit {state.seen} to edit {state.lsn}"
        )
    pointer = edit.pointer
    if pointer <= state.last_pointer:
        return f"pointer {pointer} was handed out, and pointer {state.last_pointer} before it"
    if pointer > state.highest_reserved and not has_gap:
        return (
            f"pointer {pointer} was handed out, and those up to {state.highest_reserved} "
            "are reserved"
        )
    return None


def _check_open(state: TransactionState, transaction_id: int) -> str | None:
    is_open = transaction_id in state.open
    return None if is_open else f"transaction {transaction_id} is not in progress"


def _check_of_open(state: TransactionState, edit: _OfOpen) -> str | None:
    transaction_id = edit.transaction_id
    match edit:
        case Invalidated():
            return _check_open(state, transaction_id)
        case Confirmed():
            is_in_doubt = _is_in_doubt(state, transaction_id)
            return None if is_in_doubt else f"transaction {transaction_id} is not in doubt"
        case Committed() if transaction_id in state.prepared:
            return None
    return _check_undecided(state, transaction_id)


def _check_undecided(state: TransactionState, transaction_id: int) -> str | None:
    if transaction_id in state.prepared:
        return f"transaction {transaction_id} is prepared"
    if _is_in_doubt(state, transaction_id):
        return _in_doubt(transaction_id)
    return _check_open(state, transaction_id)


def _is_in_doubt(state: TransactionState, transaction_id: int) -> bool:
    opened = state.open.get(transaction_id)
    return opened is not None and opened.doubt is not None


def _in_doubt(transaction_id: int) -> str:
    return f"the commit of transaction {transaction_id} is in doubt"


def _check_abort(state: TransactionState, transaction_id: int) -> str | None:
    if transaction_id in state.open:
        is_in_doubt = _is_in_doubt(state, transaction_id)
        return _in_doubt(transaction_id) if is_in_doubt else None
    outcome = state.outcomes.find(transaction_id)
    is_invalid = outcome is not None and outcome.state is EndedState.INVALID
    if outcome is not None and is_invalid and outcome.transaction_id == transaction_id:
        return None
    return f"transaction {transaction_id} is neither in progress nor invalid"


def _check_block(state: TransactionState, block: PointerRange) -> str | None:
    if not 0 < block.count <= POINTERS_MAX:
        return f"the block from pointer {block.start} to {block.stop} has no possible size"
    if block.start < state.next_block_start:
        return (
            f"the block starts at pointer {block.start}, and those below {state.next_block_start} "
            "are reserved or handed out"
        )
    return None


def _check_lost(
    state: TransactionState, lost: tuple[PointerRange, ...], *, has_gap: bool
) -> str | None:
    if any(each.count < 0 for each in lost):
        return "a range of lost pointers ends before it starts"
    if sum(each.count for each in lost) > POINTERS_MAX:
        return "more pointers are lost than can have been reserved"
    blocks = state.blocks
    for each in lost:
        is_reserved = any(b.start <= each.start and each.stop <= b.stop for b in blocks)
        if not is_reserved and not has_gap:
            return f"pointers {each.start} to {each.stop} are lost, and are not reserved"
    return None


def inconsistency(image: StateImage) -> str | None:
    """Why a snapshot contradicts itself; None if it does not."""
    reasons = (
        _check_numbers(image),
        _check_blocks(image),
        _check_transactions(image),
        _check_prepared(image),
        _check_view(image),
        _check_sinks(image),
    )
    return next((reason for reason in reasons if reason is not None), None)


def _check_numbers(image: StateImage) -> str | None:
    if image.seen > image.lsn:
        return f"edit {image.seen} was durable, and edit {image.lsn} is the last"
    if image.last_pointer > image.highest_reserved:
        return (
            f"pointer {image.last_pointer} was handed out, and those up to "
            f"{image.highest_reserved} are reserved"
        )
    if image.view.read_pointer > image.last_pointer:
        return (
            f"the read pointer {image.view.read_pointer} is above the last one that was handed "
            f"out, {image.last_pointer}"
        )
    lsns = [image.seen, *(lsn for lsn, _ in image.pending), image.lsn + 1]
    if not all(before < after for before, after in pairwise(lsns)):
        return "the endings that are not durable are not in the order of their edits"
    return None


def _check_blocks(image: StateImage) -> str | None:
    above = image.last_pointer + 1
    for block in image.blocks:
        if not above <= block.start < block.stop <= image.highest_reserved + 1:
            return f"the block from pointer {block.start} to {block.stop} was not free"
        above = block.stop
    reserved_count = sum(block.stop - block.start for block in image.blocks)
    return None if reserved_count <= POINTERS_MAX else "the blocks have no possible size"


def _check_transactions(image: StateImage) -> str | None:
    known: set[int] = set()
    before: OpenTransaction | None = None
    for opened in image.open:
        name = f"transaction {opened.transaction_id}"
        pointers = opened.pointers
        if not known.isdisjoint(pointers) or any(a >= b for a, b in pairwise(pointers)):
            return f"a pointer of {name} is listed twice"
        if pointers[-1] > image.last_pointer:
            return f"{name} has pointer {pointers[-1]}, which was not handed out yet"
        if opened.seen > image.seen or (before is not None and opened.seen < before.seen):
            return f"{name} started with the endings up to edit {opened.seen}, out of its order"
        known.update(pointers)
        before = opened
    requests = [each.request_id for each in image.open if each.request_id is not None]
    if len(requests) != len(set(requests)):
        return "two transactions in progress have one request id"
    return None


def _check_prepared(image: StateImage) -> str | None:
    claimed: set[bytes] = set()
    for opened in image.open:
        if opened.prepared is None:
            continue
        if opened.prepared.lsn > image.lsn:
            return f"transaction {opened.transaction_id} was prepared by a later edit"
        changes = opened.changes or frozenset()
        if not claimed.isdisjoint(changes):
            return f"another prepared transaction has a change of {opened.transaction_id}"
        claimed |= changes
    return None


def _check_view(image: StateImage) -> str | None:
    """A pointer is excluded from the start of its transaction until its end is in the view."""
    view = image.view
    expected = {pointer for opened in image.open for pointer in opened.pointers}
    for _, change in image.pending:
        expected.update(change.ended)
    found = set(view.in_progress)
    if difference := expected ^ found:
        pointer = min(difference)
        has = "no transaction has" if pointer in found else "the list does not have"
        return f"pointer {pointer} does not agree with the list of those in progress: {has} it"
    if not found.issuperset(view.short_in_progress):
        return "a short transaction is in progress that is not among those in progress"
    return None


def _check_sinks(image: StateImage) -> str | None:
    opened = {each.transaction_id for each in image.open}
    names = [sink.name for sink in image.sinks]
    if len(names) != len(set(names)):
        return "a sink is listed twice"
    for sink in image.sinks:
        if sink.state is None and sink.transaction_id not in opened:
            return f"transaction {sink.transaction_id} of the sink {sink.name} is not in progress"
    return None
