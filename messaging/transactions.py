"""What the messaging room may know of transactions (design §6).

`server.py` hands an implementation over; messaging never imports the room behind it. Every method
runs on the event loop, waits for nothing, and raises `TransactionsUnavailableError` while the
transaction service is down, unless it says otherwise.
"""

from dataclasses import dataclass
from typing import Protocol

from tuff.protocol.pointers import PointerList
from tuff.protocol.transaction import Transaction


class WritePermit(Protocol):
    """A place inside a transaction's gate: an ending waits until it is left (design §4, Endings).

    An invalidation does not wait, so `require_open` is asked once more when ids are given.
    """

    pointer: int

    def require_open(self) -> None:
        """Raises: TransactionNotInProgressError (its kinds): the transaction ended meanwhile;
        TransactionsUnavailableError: the service went down meanwhile."""

    def leave(self) -> None:
        """The write is on stable storage, or proven not to be. Leaving twice is harmless."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibilityState:
    """The part of the transaction state that retention needs: pointers and the invalid list.

    `source` names the newest snapshot file, for the record of what a sweep used.
    """

    read_pointer: int
    write_pointer: int
    in_progress: PointerList
    invalid: PointerList
    source: str | None


class TransactionView(Protocol):
    """The transaction service, as narrow as messaging needs it."""

    def enter(self, pointer: int) -> WritePermit:
        """Let one write under this pointer (a transaction id or a checkpoint pointer) pass the
        gate. Raises: TransactionNotInProgressError (its kinds), TransactionConflictError when the
        transaction was refused for a conflict before, TransactionUnknownError."""

    def enter_rollback(self, pointer: int) -> WritePermit | None:
        """As `enter`, for a rollback: also while the transaction is invalid. None for an aborted
        transaction, whose rows are marked, and for a pointer nobody knows: nothing to do.
        Raises: TransactionCommittedError: it has committed; TransactionsUnavailableError: an ending
        is under way, which may be a commit."""

    def snapshot(self) -> Transaction:
        """A fresh snapshot of what has durably ended, for a reader without a transaction."""

    def snapshot_of(self, pointer: int) -> Transaction:
        """The snapshot of a transaction that is in progress. Raises as `enter`."""

    def holder(self, pointer: int) -> int | None:
        """The id of the transaction that wrote under this pointer, while it is in progress; None
        once it ended, when nobody knows it, and while the service is down. Never raises."""

    def visibility_state(self) -> VisibilityState | None:
        """What retention may use now; None while the service is down. Never raises."""
