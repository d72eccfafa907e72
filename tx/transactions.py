"""One transaction as a value: while it is open, and once it has ended, with the errors that its end
means for later calls (protocol §5)."""

from enum import Enum

from tuff.protocol.errors import (
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionConflictError,
    TransactionInvalidatedError,
    TransactionNotInProgressError,
    TransactionTimedOutError,
)
from tuff.protocol.json_forms import payload_to_json, pointer_to_json
from tuff.protocol.requests import RollbackDetail
from tuff.protocol.transaction import POINTERS_PER_MS, Transaction, TransactionType
from tuff.protocol.values import value
from tx.edits import Conflict, InvalidReason

UNKNOWN_CLIENT = "unknown"


class EndedState(Enum):
    """How a transaction ended; the values are the protocol's."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    INVALID = "invalid"


@value(kw_only=True)
class OpenTransaction:
    """A transaction in progress.

    `transaction` holds the snapshot it reads in; `seen` is the LSN up to which ends of
    transactions are in it.
    `changes` is the union of what its can-commits named, None before the first one. `conflict` is
    why it was refused: it can't commit any more. `survived_crash`: it was open when the service
    crashed, so a can-commit of it may have been lost. `lease_ms` is how long it lives without being
    renewed, None for as long as its time-out.
    """

    transaction: Transaction
    seen: int
    client: str
    timeout_ms: int
    started_at_ms: int
    expires_at_ms: int
    changes: frozenset[bytes] | None = None
    conflict: Conflict | None = None
    survived_crash: bool = False
    lease_ms: int | None = None

    @property
    def transaction_id(self) -> int:
        return self.transaction.transaction_id

    @property
    def is_short(self) -> bool:
        return self.transaction.type is TransactionType.SHORT

    @property
    def pointers(self) -> tuple[int, ...]:
        """The transaction id and its checkpoint pointers, ascending."""
        transaction = self.transaction
        return (transaction.transaction_id, *transaction.checkpoint_write_pointers)

    @property
    def state(self) -> str:
        """As the protocol names it."""
        return "in_progress" if self.changes is None else "committing"


@value(kw_only=True)
class Outcome:
    """A transaction that has ended, by the edit of this `lsn`. `reason` is None unless it is
    invalid; `published` is what its commit answers."""

    transaction_id: int
    state: EndedState
    reason: InvalidReason | None
    type: TransactionType
    client: str
    started_at_ms: int
    expires_at_ms: int
    ended_at_ms: int
    checkpoints: tuple[int, ...]
    published: tuple[RollbackDetail, ...]
    topics: tuple[str, ...]
    request_id: str | None
    lsn: int

    @property
    def is_short(self) -> bool:
        return self.type is TransactionType.SHORT

    @property
    def pointers(self) -> tuple[int, ...]:
        """The transaction id and its checkpoint pointers, ascending."""
        return (self.transaction_id, *self.checkpoints)


def lost_outcome(pointer: int) -> Outcome:
    """The outcome of a pointer that may have been handed out to a start that did not reach the
    log."""
    at_ms = pointer // POINTERS_PER_MS
    return Outcome(
        transaction_id=pointer,
        state=EndedState.INVALID,
        reason=InvalidReason.LOST_IN_CRASH,
        type=TransactionType.SHORT,
        client=UNKNOWN_CLIENT,
        started_at_ms=at_ms,
        expires_at_ms=at_ms,
        ended_at_ms=at_ms,
        checkpoints=(),
        published=(),
        topics=(),
        request_id=None,
        lsn=0,
    )


def ended_error(outcome: Outcome) -> TransactionNotInProgressError:
    """The error of a call that needs this transaction in progress."""
    name = f"transaction {outcome.transaction_id}"
    match outcome.state:
        case EndedState.COMMITTED:
            return TransactionCommittedError(f"{name} has committed; start another one")
        case EndedState.ABORTED:
            return TransactionAbortedError(f"{name} was aborted; start another one")
        case EndedState.INVALID:
            return _invalid_error(outcome, name)


def _invalid_error(outcome: Outcome, name: str) -> TransactionNotInProgressError:
    assert outcome.reason is not None
    members = {"reason": outcome.reason.value}
    if outcome.reason is InvalidReason.TIMED_OUT:
        seconds = (outcome.expires_at_ms - outcome.started_at_ms) / 1000
        return TransactionTimedOutError(
            f"{name} did not end within its {seconds:g} seconds; undo its other writes, abort it, "
            "and start another one",
            members=members,
        )
    return TransactionInvalidatedError(
        f"{name} is invalid ({outcome.reason.value}); undo its other writes, abort it, and start "
        "another one",
        members=members,
    )


def conflict_error(transaction_id: int, conflict: Conflict) -> TransactionConflictError:
    """The refusal for a conflict; every call gets the same."""
    return TransactionConflictError(
        f"transaction {transaction_id} conflicts with transaction {conflict.committer} of "
        f"{conflict.committer_client!r}, which committed the same change after this one started; "
        "undo its writes, abort it, and run it again",
        members={
            "key": payload_to_json(conflict.key),
            "conflictingTransaction": pointer_to_json(conflict.committer),
            "conflictingClient": conflict.committer_client,
        },
    )
