"""The interface of the transaction service for the message store (design §6).

The server process passes an implementation when the component opens; messaging never imports the
transaction service. All methods run on the event loop. In a single server the async ones do not
wait; in a cluster they may ask the server that leads transactions (decision 0042). Unless stated
otherwise, they raise `TransactionsUnavailableError` while the transaction service is down.
"""

from typing import Protocol

from kernel.requests_and_replies import Caller
from tuff.protocol.ids import TopicId
from tuff.protocol.pointer_list import VisibilityState
from tuff.protocol.transaction import Transaction, TransactionStatus


class WritePermit(Protocol):
    """Permission for a write in flight. A commit or abort waits until `leave` is called (design §4,
    Commit and abort).

    An invalidation does not wait, so `require_open` is called again when offsets are assigned.
    """

    pointer: int

    def require_open(self) -> None:
        """Raises: TransactionNotInProgressError (its kinds): the transaction ended meanwhile;
        TransactionsUnavailableError: the service went down meanwhile."""

    def leave(self) -> None:
        """The write is on stable storage, or proven not to be. Leaving twice is harmless."""


class TransactionView(Protocol):
    """The methods of the transaction service that messaging needs."""

    async def enter(
        self, pointer: int, topic: TopicId, caller: Caller | None = None, /
    ) -> WritePermit:
        """Let one write of this caller to this topic, under this pointer (a transaction id or a
        checkpoint pointer), pass. Raises: ForbiddenError: the transaction belongs to
        another principal; TransactionNotInProgressError (its kinds),
        TransactionConflictError when the transaction was refused for a conflict before,
        TransactionUnknownError."""

    async def enter_rollback(
        self, pointer: int, topic: TopicId, caller: Caller | None = None, /
    ) -> WritePermit | None:
        """A permit for a rollback, which is also given while the transaction is invalid. None for
        an aborted transaction, whose rows are rolled back, and for an unknown pointer: nothing to
        do.
        Raises: ForbiddenError; TransactionCommittedError: it has committed;
        TransactionsUnavailableError: an ending is under way, which may be a commit."""

    async def snapshot(self) -> Transaction:
        """A snapshot taken after this call, for a reader without a transaction."""

    async def snapshot_of(self, pointer: int) -> Transaction:
        """The snapshot of a transaction that is in progress. Raises as `enter`."""

    def open_transaction_id(self, pointer: int) -> int | None:
        """The id of the transaction that wrote under this pointer, while it is in progress; None
        once it ended, for an unknown pointer, and while the service is down. Never raises."""

    def preparation(self, transaction_id: int, /) -> tuple[str, int] | None:
        """The database that decides this transaction, and since when in ms, if it is durably
        prepared and known here. Never raises."""

    async def status(self, pointer: int, /) -> TransactionStatus | None:
        """The state of the transaction that wrote under this pointer, for diagnosis; None for an
        unknown pointer."""

    async def visibility_state(self) -> VisibilityState | None:
        """The state for retention; None while the service is down. Never raises."""
