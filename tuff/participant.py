"""Participants: what takes part in a transaction beside the messages, and whose hook runs."""

from collections.abc import Awaitable, Callable, Collection
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from tuff.flows import Flow, hook
from tuff.protocol.ids import MessageId
from tuff.protocol.transaction import Transaction

if TYPE_CHECKING:
    from tuff.aio.context import AsyncTransactionContext
    from tuff.blocking.context import TransactionContext

# Most hooks have no argument that names their transaction, and two transactions over one
# participant may end in any order.
_hook_of: ContextVar[int | None] = ContextVar("transaction whose hook runs", default=None)


def hook_transaction_id() -> int | None:
    """Which transaction the hook that runs is about; None outside of a context's hooks.

    A participant that keeps something for each transaction finds it by this, and not by which of
    them began last.
    """
    return _hook_of.get()


def hook_of(transaction: Transaction, function: Callable[[], object]) -> Flow[Any]:
    """Run a hook of a participant, which can ask whose it is."""
    around = _hook_of.get()
    _hook_of.set(transaction.transaction_id)
    try:
        return (yield from hook(function))
    finally:
        # A flow that is dropped half-way may end in the context of another task.
        if _hook_of.get() == transaction.transaction_id:
            _hook_of.set(around)


class TransactionAware(Protocol):
    """A participant: any object with these, whatever it keeps its writes in.

    `start_tx`: a transaction begins; read what is visible in it.
    `update_tx`: after a checkpoint there is a new `write_pointer`; what was written stays.
    `tx_changes`: the keys of what was written, for the detection of conflicts.
    `commit_tx`: make the writes durable, under the write pointer; they are not visible yet.
    `post_commit`: the transaction has committed.
    `rollback_tx`: undo the writes, durably, before it returns; raise where that can't be done.

    Several transactions may use one participant at once, in one task too, and end in any order: a
    generator that holds a `with` block ends where its last reference goes. Inside of a hook
    `tuff.hook_transaction_id()` returns the transaction of that hook.

    A participant may also have `leave_tx()`: it is called where a transaction is over and none of
    the last two is (another one's start failed; the outcome is unknown), and undoes nothing.
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
    """A participant that keeps one subscriber's position; it names it in `tx_changes`, so that two
    who take the same batch conflict. Both methods are called within a transaction.

    It may also have `keep_for(topic)`: `client.subscriber` calls it with the topic whose position
    it is, and it raises where it keeps another's.
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
