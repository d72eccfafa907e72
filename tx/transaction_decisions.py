"""The decisions of transactions, from the state, the call and the time (docs/architecture.md,
Request by request, and §4, Commit and abort; protocol §5.2).

A decision says what is to be done for one transaction: which edit is recorded, what is waited for,
or why the call is refused. It changes nothing, and waits for nothing. `tx/state_machine.py`
acts on it.
"""

from collections.abc import Sequence

from tuff.protocol.errors import (
    BadRequestError,
    ChangeSetTooLargeError,
    TuffError,
)
from tuff.protocol.requests import PublishEntry
from tuff.protocol.values import value
from tx.calls import Commit
from tx.claims_and_waits import UnderWay
from tx.conflicts import Committers, conflict_error
from tx.log_records import Aborted, Committing, Conflict, Invalidated, InvalidReason, Refused
from tx.outcomes import EndedState, OpenTransaction, Outcome, ended_error, prepared_error
from tx.settings import TransactionSettings
from tx.state import TransactionState


@value()
class Refusal:
    """The call is refused with this error, once the edit of this LSN is durable: an error names
    nothing that a crash can still undo."""

    error: TuffError
    lsn: int


@value()
class Clear:
    """The commit conflicts with nothing. Its entries have their pointers. `changes` are all that a
    short transaction named, and empty for a long one. Without entries it is recorded now, with
    entries as `docs/architecture.md` says (Commit, step 5)."""

    entries: Sequence[PublishEntry]
    changes: frozenset[bytes]


@value()
class Claimed:
    """Another transaction, whose rows are being written, claims one of the changes. Whether they
    conflict is known when that is done."""

    entries: Sequence[PublishEntry]
    transaction_id: int


@value()
class Conflicting:
    """Another transaction has committed one of the changes, or is prepared with it. A prepared one
    may still be aborted, so its end is worth a wait."""

    entries: Sequence[PublishEntry]
    conflict: Conflict
    is_prepared: bool


def refusal(found: OpenTransaction | Outcome) -> Refusal | None:
    """The refusal of a call that needs the transaction in progress; None if the call may go on."""
    if isinstance(found, Outcome):
        return Refusal(ended_error(found), found.lsn)
    if found.prepared is not None:
        return Refusal(prepared_error(found), found.prepared.lsn)
    if found.conflict is not None:
        error = conflict_error(found.transaction_id, found.conflict)
        return Refusal(error, found.conflict.committer_lsn)
    return None


def overdue(
    opened: OpenTransaction, *, now_ms: int, lease_ends_ms: int | None
) -> InvalidReason | None:
    """Why the time of the transaction is over; None while it is not. No time ends a prepared one.
    The tick may be late, so each decision asks this first."""
    if opened.prepared is not None:
        return None
    if now_ms >= opened.expires_at_ms:
        return InvalidReason.TIMED_OUT
    if lease_ends_ms is not None and now_ms >= lease_ends_ms:
        return InvalidReason.LEASE_EXPIRED
    return None


def decide_commit(
    state: TransactionState,
    under_way: UnderWay,
    opened: OpenTransaction,
    call: Commit,
    *,
    settings: TransactionSettings,
) -> Clear | Claimed | Conflicting:
    """Whether a transaction in progress may commit, or be prepared. Raises: BadRequestError: a
    pointer of an entry is not one of the transaction's; and what `all_changes` raises."""
    entries = _with_pointers(opened, call.entries) if call.entries else ()
    changes = all_changes(opened, call.changes or frozenset(), settings=settings)
    if (claimant := under_way.claimed_by(changes)) is not None:
        return Claimed(entries, claimant)
    if (conflict := state.prepared.conflict(changes)) is not None:
        return Conflicting(entries, conflict, is_prepared=True)
    if (conflict := state.committers.conflict(opened.transaction, changes)) is not None:
        return Conflicting(entries, conflict, is_prepared=False)
    return Clear(entries, changes)


def abort_edit(
    opened: OpenTransaction, topics: Sequence[str], *, has_rows: bool, now_ms: int
) -> Aborted | Invalidated:
    """The first step of an abort. A long transaction ends as invalid, since its changes were not
    tracked. A short one with rows is invalid until they are rolled back, since they must not become
    visible in between."""
    if opened.is_short and not has_rows:
        return Aborted(now_ms, opened.transaction_id, tuple(topics))
    reason = InvalidReason.INVALIDATED if opened.is_short else InvalidReason.ABORT_OF_LONG
    return Invalidated(now_ms, opened.transaction_id, reason, tuple(topics))


def may_be_aborted(outcome: Outcome) -> bool:
    """Whether an abort turns this invalid transaction into an aborted one."""
    return outcome.is_short and outcome.reason is not InvalidReason.LOST_IN_CRASH


def refused_end(outcome: Outcome, wanted: EndedState) -> TuffError | None:
    """Why a call that ends a transaction in this way is refused; None if that is how it ended."""
    return None if outcome.state is wanted else ended_error(outcome)


def can_commit(
    committers: Committers,
    opened: OpenTransaction,
    changes: frozenset[bytes],
    *,
    settings: TransactionSettings,
    now_ms: int,
) -> Committing | Refused:
    """The edit that remembers the changes, or that refuses the transaction for a conflict. Raises:
    as `all_changes`."""
    if not opened.is_short:
        return Committing(now_ms, opened.transaction_id, frozenset())
    every = all_changes(opened, changes, settings=settings)
    conflict = committers.conflict(opened.transaction, every)
    if conflict is not None:
        return Refused(now_ms, opened.transaction_id, conflict)
    return Committing(now_ms, opened.transaction_id, changes - (opened.changes or frozenset()))


def all_changes(
    opened: OpenTransaction, changes: frozenset[bytes], *, settings: TransactionSettings
) -> frozenset[bytes]:
    """All changes that the transaction has named, before and now; none for a long one, which takes
    no part in conflict detection. Raises: ChangeSetTooLargeError: too many, or too large ones."""
    if not opened.is_short:
        return frozenset()
    every = changes if not opened.changes else changes | opened.changes
    size_bytes = sum(map(len, every))
    if len(every) > settings.change_set_count_max or size_bytes > settings.change_set_bytes_max:
        raise ChangeSetTooLargeError(
            f"transaction {opened.transaction_id} names {len(every)} changes of {size_bytes} bytes "
            f"and may name {settings.change_set_count_max} of {settings.change_set_bytes_max}, "
            "so change less, or use a long transaction"
        )
    return every


def loses_changes(opened: OpenTransaction, *, names_changes: bool) -> bool:
    """Whether a crash may have lost the changes that this commit leaves to its can-commits, which
    wait for no disk. It would pass unchecked, and overwrite another transaction's update."""
    return (
        opened.survived_crash and opened.is_short and opened.changes is None and not names_changes
    )


def check_read_only(opened: OpenTransaction, call: Commit, *, has_rows: bool) -> None:
    """Raises: BadRequestError: the transaction wrote, or names, something to commit."""
    name = f"transaction {opened.transaction_id}"
    if call.entries or call.changes or opened.changes:
        raise BadRequestError(f"readOnly says that {name} wrote nothing, but it names writes")
    if opened.transaction.checkpoint_write_pointers:
        raise BadRequestError(f"{name} has a checkpoint, and can't be committed as readOnly")
    if has_rows:
        raise BadRequestError(f"{name} has published or stored, and can't be committed as readOnly")


def _with_pointers(opened: OpenTransaction, publish: Sequence[PublishEntry]) -> list[PublishEntry]:
    """The entries, each with its pointer: the current write pointer where it names none."""
    for entry in publish:
        if entry.pointer is not None and entry.pointer not in opened.pointers:
            raise BadRequestError(
                f"pointer {entry.pointer} is none of transaction {opened.transaction_id}'s"
            )
    pointer = opened.transaction.write_pointer
    return [entry.under(pointer) if entry.pointer is None else entry for entry in publish]
