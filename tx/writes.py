"""What the messaging room sees of transactions (design §6): gates for writes, snapshots for reads.

Everything here answers at once. While an ending is on its way to the disk its outcome is nobody's
to tell, since a crash could still undo it; a write is then refused as unavailable, for a moment.
"""

from tuff.protocol.errors import (
    TransactionCommittedError,
    TransactionsUnavailableError,
    TransactionUnknownError,
)
from tuff.protocol.transaction import Transaction
from tx.gates import Gates
from tx.ledger import Ledger, ServiceState
from tx.records import EndedState, OpenTransaction, Outcome, conflict_error, ended_error
from tx.view import View, VisibilityState


class Permit:
    """A write's place inside its transaction's gate."""

    def __init__(
        self,
        writes: "Writes",
        gates: Gates,
        transaction_id: int,
        pointer: int,
        *,
        may_be_invalid: bool,
    ) -> None:
        self.pointer = pointer
        self._writes = writes
        self._gates = gates
        self._transaction_id = transaction_id
        self._may_be_invalid = may_be_invalid
        self._is_inside = True
        gates.enter(transaction_id)

    def require_open(self) -> None:
        """Raises: TransactionNotInProgressError (its kinds): the transaction ended meanwhile;
        TransactionsUnavailableError: the service went down meanwhile, or an ending is on its way
        to the disk."""
        self._writes.require_writable(self.pointer, may_be_invalid=self._may_be_invalid)

    def leave(self) -> None:
        """The write is on stable storage, or proven not to be. Leaving twice is harmless."""
        if self._is_inside:
            self._is_inside = False
            self._gates.leave(self._transaction_id)


class Writes:
    """Lets writes and readers of messages look at transactions. Lives on one event loop."""

    def __init__(self, ledger: Ledger, gates: Gates) -> None:
        self._ledger = ledger
        self._gates = gates
        self._reader: tuple[View, Transaction] | None = None

    def enter(self, pointer: int) -> Permit:
        """Raises: TransactionError (its kinds): not in progress, or refused for a conflict;
        TransactionsUnavailableError: down, or an ending is under way."""
        found = self.require_writable(pointer, may_be_invalid=False)
        self._gates.require_open(found.transaction_id)
        return Permit(self, self._gates, found.transaction_id, pointer, may_be_invalid=False)

    def enter_rollback(self, pointer: int) -> Permit | None:
        """As `enter`, also for an invalid transaction; None where there is nothing to do.

        Raises:
            TransactionCommittedError: it committed.
            TransactionsUnavailableError: down, or an ending is under way, which may be a commit.
        """
        try:
            found = self._ledger.state.find(pointer)
        except TransactionUnknownError:
            return None
        if isinstance(found, Outcome) and found.state is EndedState.ABORTED:
            return None
        found = self.require_writable(pointer, may_be_invalid=True)
        if isinstance(found, OpenTransaction):
            self._gates.require_open(found.transaction_id)
        return Permit(self, self._gates, found.transaction_id, pointer, may_be_invalid=True)

    def require_writable(self, pointer: int, *, may_be_invalid: bool) -> OpenTransaction | Outcome:
        """The transaction, if rows may be written under this pointer, or marked.

        Raises:
            TransactionError (its kinds), TransactionsUnavailableError: they may not.
        """
        found = self._ledger.state.find(pointer)
        if isinstance(found, OpenTransaction):
            if found.conflict is not None and not may_be_invalid:
                self._require_seen(found.conflict.committer_lsn)
                raise conflict_error(found.transaction_id, found.conflict)
            return found
        if may_be_invalid and found.state is not EndedState.COMMITTED:
            return found
        self._require_seen(found.lsn)
        if may_be_invalid:
            raise TransactionCommittedError(
                f"transaction {found.transaction_id} has committed; its messages can't be rolled "
                "back"
            )
        raise ended_error(found)

    def snapshot(self) -> Transaction:
        """A fresh snapshot of what has durably ended. Raises: TransactionsUnavailableError."""
        view = self._ledger.state.view
        if self._reader is None or self._reader[0] is not view:
            # One value as long as the view is the same: readers with the same share their replies.
            self._reader = view, view.reader()
        return self._reader[1]

    def snapshot_of(self, pointer: int) -> Transaction:
        """The snapshot of a transaction that is in progress. Raises as `enter`, less a conflict."""
        found = self._ledger.state.find(pointer)
        if isinstance(found, OpenTransaction):
            return found.transaction
        self._require_seen(found.lsn)
        raise ended_error(found)

    def holder(self, pointer: int) -> int | None:
        """The id of the transaction of this pointer, while nobody is shown that it ended."""
        if self._ledger.status.state is not ServiceState.RUNNING:
            return None
        state = self._ledger.state
        if pointer not in state.view.in_progress:
            return None
        return state.find(pointer).transaction_id

    def visibility_state(self) -> VisibilityState | None:
        """What retention may use now; None while the service is down."""
        if self._ledger.status.state is not ServiceState.RUNNING:
            return None
        state = self._ledger.state
        return VisibilityState(
            read_pointer=state.view.read_pointer,
            write_pointer=state.last_pointer,
            in_progress=state.view.in_progress,
            invalid=state.view.invalid,
            source=self._ledger.snapshot_name,
        )

    def _require_seen(self, lsn: int) -> None:
        state = self._ledger.state
        if lsn > state.seen:
            self._ledger.want(lsn)
            raise TransactionsUnavailableError(
                "an ending that this depends on is on its way to the disk; try again in a moment"
            )
