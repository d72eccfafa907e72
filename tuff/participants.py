"""What can take part in a transaction (design §7).

Raising is failing; what a hook returns is ignored, but for `tx_changes`.
"""

from collections.abc import Awaitable, Collection
from typing import Protocol

from tuff.protocol.transaction import Transaction


class TransactionAware(Protocol):
    """A participant: any object with these, whatever it keeps its writes in.

    `start_tx`: a transaction begins; read what is visible in it.
    `update_tx`: after a checkpoint there is a new `write_pointer`; what was written stays.
    `tx_changes`: the keys of what was written, for the detection of conflicts.
    `commit_tx`: make the writes durable, under the write pointer; they are not visible yet.
    `post_commit`: the transaction has committed.
    `rollback_tx`: undo the writes, durably, before it returns; raise where that can't be done.

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
