"""Participants: the stores whose writes belong to a transaction, beside its messages."""

from abc import abstractmethod
from collections.abc import Awaitable, Collection, Iterable
from typing import TYPE_CHECKING, Protocol

from tuff.protocol.ids import MessageId, PartitionId
from tuff.protocol.transaction import Transaction

if TYPE_CHECKING:
    from tuff.aio.context import AsyncTransactionContext
    from tuff.blocking.context import TransactionContext

_HOOKS = (
    "start_tx",
    "update_tx",
    "tx_changes",
    "commit_tx",
    "post_commit",
    "rollback_tx",
    "leave_tx",
    "name_of_change",
)


class TransactionAware(Protocol):
    """A participant. A class that inherits from this one needs a `name` and three hooks:
    `tx_changes`, `commit_tx` and `rollback_tx`; the others do nothing by default. An object of
    another class is a participant, too, if it has all hooks.

    Several transactions may use one participant at once, even in one task, and end in any order: a
    generator that holds a `with` block ends when its last reference goes. So each hook gets its
    transaction, and a participant keeps what it wrote by `transaction.transaction_id`.
    """

    name: str

    def start_tx(self, transaction: Transaction) -> None:
        """A transaction begins; read what is visible in it."""
        return None  # noqa: RET501 - without a statement, mypy takes it for an abstract method

    def update_tx(self, transaction: Transaction) -> None:
        """After a checkpoint there is a new `write_pointer`; earlier writes stay."""
        return None  # noqa: RET501 - as in `start_tx`

    @abstractmethod
    def tx_changes(self, transaction: Transaction) -> Collection[bytes]:
        """The keys of the writes, for the detection of conflicts."""

    @abstractmethod
    def commit_tx(self, transaction: Transaction) -> None:
        """Make the writes durable, under their write pointers; they are not visible yet."""

    def post_commit(self, transaction: Transaction) -> None:
        """The transaction has committed."""
        return None  # noqa: RET501 - as in `start_tx`

    @abstractmethod
    def rollback_tx(self, transaction: Transaction) -> None:
        """Undo the writes, durably, before it returns; raise if that is impossible."""

    def leave_tx(self, transaction: Transaction) -> None:
        """The transaction ended with neither of the last two hooks: the start of another
        participant failed, or the outcome is unknown. Forget it, and undo nothing."""
        return None  # noqa: RET501 - as in `start_tx`

    def name_of_change(self, key: bytes) -> str | None:
        """What a key of `tx_changes` stands for, such as "row b'apple' of stock", for the error of
        a conflict; None: the key is not of this participant, or says it itself."""
        return None


class AsyncTransactionAware(Protocol):
    """A participant of an asyncio client: `TransactionAware`, and each hook may be a coroutine
    function. Every `TransactionAware` is one."""

    name: str

    def start_tx(self, transaction: Transaction) -> Awaitable[None] | None:
        """A transaction begins; read what is visible in it."""
        return None

    def update_tx(self, transaction: Transaction) -> Awaitable[None] | None:
        """After a checkpoint there is a new `write_pointer`; earlier writes stay."""
        return None

    @abstractmethod
    def tx_changes(
        self, transaction: Transaction
    ) -> Awaitable[Collection[bytes]] | Collection[bytes]:
        """The keys of the writes, for the detection of conflicts."""

    @abstractmethod
    def commit_tx(self, transaction: Transaction) -> Awaitable[None] | None:
        """Make the writes durable, under their write pointers; they are not visible yet."""

    def post_commit(self, transaction: Transaction) -> Awaitable[None] | None:
        """The transaction has committed."""
        return None

    @abstractmethod
    def rollback_tx(self, transaction: Transaction) -> Awaitable[None] | None:
        """Undo the writes, durably, before it returns; raise if that is impossible."""

    def leave_tx(self, transaction: Transaction) -> Awaitable[None] | None:
        """The transaction ended with neither of the last two hooks. Forget it, undo nothing."""
        return None

    def name_of_change(self, key: bytes) -> str | None:
        """What a key of `tx_changes` stands for; None: not of this participant, or it says so."""
        return None


def checked_changes(participant: AsyncTransactionAware, keys: object) -> frozenset[bytes]:
    """Raises: TypeError: its `tx_changes` returned something else than a collection of bytes."""
    if isinstance(keys, Iterable) and not isinstance(keys, bytes | str):
        found = frozenset(keys)
        if all(issubclass(kind, bytes) for kind in set(map(type, found))):
            return found
    raise TypeError(
        f"tx_changes of {type(participant).__name__} (participant {participant.name!r}) returned "
        f"{keys!r:.100}; return a collection of bytes, an empty one if nothing was written"
    )


def checked_participant(participant: AsyncTransactionAware) -> AsyncTransactionAware:
    """Raises: TypeError: it lacks a hook or a name, or is a class."""
    missing = [one for one in _HOOKS if not callable(getattr(participant, one, None))]
    if missing or isinstance(participant, type):
        raise TypeError(
            f"{participant!r:.100} is not a participant"
            + (f": it has no {', '.join(missing)}" if missing else ", but a class of participants")
            + "; pass an object of a class that inherits from tuff.TransactionAware, which has "
            "defaults for all hooks but tx_changes, commit_tx and rollback_tx"
        )
    if not isinstance(getattr(participant, "name", None), str):
        kind = type(participant).__name__
        raise TypeError(
            f"a participant of class {kind} has no `name`; give the class one, for example "
            f'name = "{kind.lower()}"'
        )
    return participant


class Positions(TransactionAware, Protocol):
    """A participant that keeps the positions of a subscriber, one for each partition. Its
    `tx_changes` includes a key of each position that was saved, so that two subscribers that take
    the same batch conflict. Both methods are called within a transaction.
    """

    def load(self, partition: PartitionId) -> MessageId | None:
        """The position that this transaction sees; None: there is none yet."""
        ...

    def save(self, partition: PartitionId, id: MessageId, tx: "TransactionContext") -> None:
        """Keep the position with this transaction's writes."""
        ...


class AsyncPositions(AsyncTransactionAware, Protocol):
    """Positions whose methods may be coroutine functions."""

    def load(self, partition: PartitionId) -> Awaitable[MessageId | None] | MessageId | None: ...
    def save(
        self, partition: PartitionId, id: MessageId, tx: "AsyncTransactionContext"
    ) -> Awaitable[None] | None: ...
