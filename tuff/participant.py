"""Participants: the stores whose writes belong to a transaction, beside its messages."""

from collections.abc import Awaitable, Callable, Collection
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from tuff.flows import Flow, hook
from tuff.protocol.ids import MessageId
from tuff.protocol.transaction import Transaction

if TYPE_CHECKING:
    from tuff.aio.context import AsyncTransactionContext
    from tuff.blocking.context import TransactionContext

# Most hooks have no argument that names their transaction, and two transactions of one participant
# may end in any order.
_hook_of: ContextVar[int | None] = ContextVar("transaction whose hook runs", default=None)


def hook_transaction_id() -> int | None:
    """The id of the transaction whose hook runs; None outside of a context's hooks.

    A participant with state for each transaction finds it by this id.
    """
    return _hook_of.get()


def hook_of(transaction: Transaction, function: Callable[[], object]) -> Flow[Any]:
    """Run a hook of a participant; in it, `hook_transaction_id` returns this transaction."""
    around = _hook_of.get()
    _hook_of.set(transaction.transaction_id)
    try:
        return (yield from hook(function))
    finally:
        # A flow that is closed before its end may be closed in the context of another task.
        if _hook_of.get() == transaction.transaction_id:
            _hook_of.set(around)


class TransactionAware(Protocol):
    """A participant: any object with these hooks.

    `start_tx`: a transaction begins; read what is visible in it.
    `update_tx`: after a checkpoint there is a new `write_pointer`; earlier writes stay.
    `tx_changes`: returns the keys of the writes, for the detection of conflicts.
    `commit_tx`: make the writes durable, under the write pointer; they are not visible yet.
    `post_commit`: the transaction has committed.
    `rollback_tx`: undo the writes, durably, before it returns; raise if that is impossible.

    Several transactions may use one participant at once, even in one task, and end in any order: a
    generator that holds a `with` block ends when its last reference goes. In a hook,
    `tuff.hook_transaction_id()` returns the transaction of that hook.

    A participant may also have `leave_tx()`. It is called if a transaction ends with neither of the
    last two hooks (the start of another participant failed, or the outcome is unknown), and undoes
    nothing.
    """

    name: str

    def start_tx(self, transaction: Transaction) -> None: ...
    def update_tx(self, transaction: Transaction) -> None: ...
    def tx_changes(self) -> Collection[bytes]: ...
    def commit_tx(self) -> None: ...
    def post_commit(self) -> None: ...
    def rollback_tx(self) -> None: ...


class AsyncTransactionAware(Protocol):
    """A participant of an asyncio client: as `TransactionAware`, and each hook may be a coroutine
    function. Every `TransactionAware` is one."""

    name: str

    def start_tx(self, transaction: Transaction) -> Awaitable[None] | None: ...
    def update_tx(self, transaction: Transaction) -> Awaitable[None] | None: ...
    def tx_changes(self) -> Awaitable[Collection[bytes]] | Collection[bytes]: ...
    def commit_tx(self) -> Awaitable[None] | None: ...
    def post_commit(self) -> Awaitable[None] | None: ...
    def rollback_tx(self) -> Awaitable[None] | None: ...


class Positions(TransactionAware, Protocol):
    """A participant that keeps one subscriber's position. Its `tx_changes` includes a key of the
    position, so that two subscribers that take the same batch conflict. Both methods are called
    within a transaction.

    It may also have `keep_for(topic)`: `client.subscriber` calls it with its topic, and it raises
    if it keeps the position of another topic.
    """

    def load(self) -> MessageId | None:
        """The position that this transaction sees; None: there is none yet."""
        ...

    def save(self, id: MessageId, tx: "TransactionContext") -> None:
        """Keep the position with this transaction's writes."""
        ...


class AsyncPositions(AsyncTransactionAware, Protocol):
    """As `Positions`; both may be coroutine functions."""

    def load(self) -> Awaitable[MessageId | None] | MessageId | None: ...
    def save(self, id: MessageId, tx: "AsyncTransactionContext") -> Awaitable[None] | None: ...
