"""The interface for the message store (design §6): permits for its writes, snapshots for its reads.

Everything here answers at once: the async methods are those of an interface with which another
server may be asked. While the end of a transaction is on its way to the disk a crash
could still undo it, so its outcome is not reported; a write is refused as unavailable meanwhile.
"""

from typing import Protocol

from kernel.requests_and_replies import Caller
from tuff.protocol.errors import TransactionCommittedError, TransactionsUnavailableError
from tuff.protocol.ids import TopicId
from tuff.protocol.pointer_list import VisibilityState
from tuff.protocol.transaction import Transaction, TransactionStatus
from tx.claims_and_waits import Recall, UnderWay
from tx.conflicts import conflict_error
from tx.durable_state import ServiceState, ServiceStatus
from tx.file_headers import KnownFile
from tx.outcomes import EndedState, OpenTransaction, Outcome, ended_error, prepared_error, status_of
from tx.state import TransactionState, View
from tx.transaction_principals import require_writer


class Permit:
    """A write that passed."""

    def __init__(
        self,
        writes: "WritePermits",
        under_way: UnderWay,
        transaction_id: int,
        pointer: int,
        *,
        may_be_invalid: bool,
        recall: Recall | None,
    ) -> None:
        self.pointer = pointer
        self._writes = writes
        self._under_way = under_way
        self.transaction_id = transaction_id
        self._may_be_invalid = may_be_invalid
        self._is_inside = True
        self._recall = recall
        under_way.enter(transaction_id, recall)

    def require_open(self) -> None:
        """Raises: TransactionNotInProgressError (its kinds): the transaction ended meanwhile;
        TransactionsUnavailableError: the service went down meanwhile, or the end of the
        transaction is on its way to the disk."""
        self._writes.require_writable(self.pointer, may_be_invalid=self._may_be_invalid)

    def leave(self) -> None:
        """The write is on stable storage, or proven not to be. Leaving twice is harmless."""
        if self._is_inside:
            self._is_inside = False
            self._under_way.leave(self.transaction_id, self._recall)


class ServedState(Protocol):
    """The state of a service, as `DurableState` has it, or of a server that is stopped."""

    newest_snapshot: KnownFile

    @property
    def state(self) -> TransactionState:
        """Raises: TransactionsUnavailableError."""

    @property
    def status(self) -> ServiceStatus:
        """Whether transactions can be used, and why not."""

    def sync_soon(self, lsn: int) -> None:
        """Sync this edit with the next batch, without waiting for it."""


class WritePermits:
    """Permits for writes, and snapshots for readers. Lives on one event loop."""

    def __init__(self, durable: ServedState, under_way: UnderWay) -> None:
        self._durable = durable
        self._under_way = under_way
        self._reader: tuple[View, Transaction] | None = None

    async def enter(self, pointer: int, _topic: TopicId, caller: Caller | None = None, /) -> Permit:
        """Raises: TransactionError (its kinds): not in progress, or refused for a conflict;
        TransactionsUnavailableError: down, or the transaction is being committed or aborted;
        ForbiddenError: it belongs to another principal than the caller."""
        self._require_writer(caller, pointer)
        return self.join(pointer, recall=None)

    def join(self, pointer: int, *, recall: Recall | None) -> Permit:
        """A permit for another server, which then lets writes pass by itself. `recall` is called
        once, when a commit or abort waits for the writes of the transaction."""
        found = self.require_writable(pointer, may_be_invalid=False)
        self._under_way.require_open(found.transaction_id)
        return Permit(
            self,
            self._under_way,
            found.transaction_id,
            pointer,
            may_be_invalid=False,
            recall=recall,
        )

    async def enter_rollback(
        self, pointer: int, _topic: TopicId, caller: Caller | None = None, /
    ) -> Permit | None:
        """A permit for a rollback, also for an invalid transaction; None where there is nothing to
        do.

        Raises:
            TransactionCommittedError: it committed.
            TransactionsUnavailableError: down, or the transaction is being committed or aborted.
            ForbiddenError: it belongs to another principal than the caller.
        """
        self._require_writer(caller, pointer)
        return self.join_rollback(pointer, recall=None)

    def principal_of(self, pointer: int) -> str | None:
        """The principal of the transaction of this pointer; None where none is known. Raises:
        TransactionsUnavailableError."""
        found = self._durable.state.maybe_find(pointer)
        return None if found is None else self._durable.state.principals.of(found.transaction_id)

    def join_rollback(self, pointer: int, *, recall: Recall | None) -> Permit | None:
        """A permit for a rollback at another server; `recall` is that of `join`. None also for an
        invalid transaction: no caller waits for its writes any more, so the server would not be
        recalled, and its rows are rolled back anyway. Raises as `enter_rollback`.
        """
        known = self._durable.state.maybe_find(pointer)
        if known is None or (isinstance(known, Outcome) and known.state is EndedState.ABORTED):
            return None
        found = self.require_writable(pointer, may_be_invalid=True)
        if isinstance(found, OpenTransaction):
            self._under_way.require_open(found.transaction_id)
        elif recall is not None:
            self._require_seen(found.lsn)
            return None
        return Permit(
            self, self._under_way, found.transaction_id, pointer, may_be_invalid=True, recall=recall
        )

    def require_writable(self, pointer: int, *, may_be_invalid: bool) -> OpenTransaction | Outcome:
        """The transaction, if rows may be written under this pointer, or rolled back.

        Raises:
            TransactionError (its kinds), TransactionsUnavailableError: they may not.
        """
        found = self._durable.state.find(pointer)
        if isinstance(found, OpenTransaction):
            if found.conflict is not None and not may_be_invalid:
                self._require_seen(found.conflict.committer_lsn)
                raise conflict_error(found.transaction_id, found.conflict)
            if found.prepared is not None:
                self._require_seen(found.prepared.lsn)
                raise prepared_error(found)
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

    async def snapshot(self) -> Transaction:
        """A fresh snapshot of what has durably ended. Raises: TransactionsUnavailableError."""
        view = self._durable.state.view
        if self._reader is None or self._reader[0] is not view:
            # One value as long as the view is the same: readers with the same share their replies.
            self._reader = view, view.reader()
        return self._reader[1]

    async def snapshot_of(self, pointer: int) -> Transaction:
        """The snapshot of a transaction that is in progress. Raises as `enter`, less a conflict."""
        found = self._durable.state.find(pointer)
        if isinstance(found, OpenTransaction):
            return found.transaction
        self._require_seen(found.lsn)
        raise ended_error(found)

    def open_transaction_id(self, pointer: int) -> int | None:
        """The id of the transaction of this pointer, until readers can see that it ended."""
        if self._durable.status.state is not ServiceState.RUNNING:
            return None
        state = self._durable.state
        if pointer not in state.view.in_progress:
            return None
        return state.find(pointer).transaction_id

    def preparation(self, transaction_id: int) -> tuple[str, int] | None:
        """The database that decides this transaction, and since when in ms, if it is durably
        prepared."""
        opened = self._durable.state.open.get(transaction_id)
        prepared = None if opened is None else opened.prepared
        if prepared is None or prepared.lsn > self._durable.state.seen:
            return None
        return prepared.database, prepared.at_ms

    async def status(self, pointer: int, /) -> TransactionStatus | None:
        """The state of the transaction of this pointer; an end that a crash could still undo does
        not count yet."""
        found = self._durable.state.maybe_find(pointer)
        if isinstance(found, Outcome):
            self._require_seen(found.lsn)
        return None if found is None else status_of(found)

    async def visibility_state(self) -> VisibilityState | None:
        """The state that retention may use now; None while the service is down."""
        if self._durable.status.state is not ServiceState.RUNNING:
            return None
        state = self._durable.state
        return VisibilityState(
            read_pointer=state.view.read_pointer,
            write_pointer=state.last_pointer,
            in_progress=state.view.in_progress,
            invalid=state.view.invalid,
            source=self._durable.newest_snapshot.path.name,
        )

    def _require_writer(self, caller: Caller | None, pointer: int) -> None:
        if caller is not None:
            require_writer(caller, pointer, self.principal_of(pointer))

    def _require_seen(self, lsn: int) -> None:
        state = self._durable.state
        if not state.is_durable(lsn):
            self._durable.sync_soon(lsn)
            raise TransactionsUnavailableError(
                "the end of a transaction is on its way to the disk; try again in a moment"
            )
