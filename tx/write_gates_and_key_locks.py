"""Locks of transactions: the write gate of each one, and the keys that a commit under way claims
(design §4, Commit and abort).

A write of messages passes its transaction's write gate. A commit or abort closes the gate, and
waits until every write that passed it is done. In a cluster, a server that has joined the
transaction counts as one write, and is recalled once a caller waits for the writes. A commit that
publishes claims its changes while its rows are written.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection

from tuff.protocol.errors import TransactionsUnavailableError

Recall = Callable[[], None]  # asks a server that has joined to end its writes, and to leave


class _Gate:
    """The write gate of one transaction. Made and dropped for nearly every commit, so it makes a
    future only for a caller that has to wait."""

    __slots__ = (
        "_changed", "_waiting_count", "claim", "is_closed", "recalls", "turns", "write_count",
    )  # fmt: skip

    def __init__(self) -> None:
        self.write_count = 0  # writes that passed and are not done
        self.is_closed = False  # a commit or abort has its turn
        self.turns: deque[asyncio.Future[None]] | None = None  # of those that wait for theirs
        self.claim: frozenset[bytes] | None = None  # the changes of the commit that has its turn
        self.recalls: list[Recall] | None = None  # of servers that joined and were not recalled
        self._waiting_count = 0  # callers that wait for the writes
        self._changed: asyncio.Event | None = None

    def add_recall(self, recall: Recall) -> None:
        """Recall this server once a caller waits for the writes, and now if one does."""
        if self._waiting_count:
            recall()
        elif self.recalls is None:
            self.recalls = [recall]
        else:
            self.recalls.append(recall)

    def notify(self) -> None:
        """Let every caller that waits for a change of this gate look again."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def changed(self) -> None:
        """Wait until the last write is done, the gate is opened, or the claim is released."""
        if self._changed is None:
            self._changed = asyncio.Event()
        await self._changed.wait()

    async def emptied(self) -> None:
        """Wait until every write is done."""
        if not self.write_count:
            return
        self._waiting_count += 1
        try:
            recalls, self.recalls = self.recalls, None
            for recall in recalls or ():
                recall()
            while self.write_count:
                await self.changed()
        finally:
            self._waiting_count -= 1


class TransactionLocks:
    """The gate and the claim of every transaction that has a write, a commit or an abort under way.
    They outlive a recovery of the service, as the writes that passed a gate do.

    A claim holds the changes and the end of a commit while its rows are written: it has passed its
    check, and its record is not handed to the log yet. Without a claim two commits with equal
    changes could both pass, and a time-out could end what is about to commit.
    """

    def __init__(self) -> None:
        self._gates: dict[int, _Gate] = {}
        self._claimed_by: dict[bytes, int] = {}  # the transaction that claims each change

    def require_open(self, transaction_id: int) -> None:
        """Raises: TransactionsUnavailableError: a commit or abort is under way, and whether it will
        stand is not known yet. Naming it would speak of what a crash can still undo (protocol §1).
        """
        if self.is_closed(transaction_id):
            raise TransactionsUnavailableError(
                f"transaction {transaction_id} is being committed or aborted; try again in a moment"
            )

    def is_closed(self, transaction_id: int) -> bool:
        """Whether a commit or abort has its turn."""
        gate = self._gates.get(transaction_id)
        return gate is not None and gate.is_closed

    async def opened(self, transaction_id: int) -> None:
        """Wait until no commit or abort has its turn. A caller that only wants to pass must not
        take a turn to wait: two that did handed it to each other for ever."""
        while self.is_closed(transaction_id):
            await self._gates[transaction_id].changed()

    def enter(self, transaction_id: int, recall: Recall | None = None) -> None:
        """Count a write in, or a server that joins, which has a `recall`; `leave` counts it out."""
        gate = self._gate(transaction_id)
        gate.write_count += 1
        if recall is not None:
            gate.add_recall(recall)

    def leave(self, transaction_id: int, recall: Recall | None = None) -> None:
        """The write is done."""
        gate = self._gates[transaction_id]
        gate.write_count -= 1
        if recall is not None and gate.recalls and recall in gate.recalls:
            gate.recalls.remove(recall)
        if gate.write_count == 0:
            gate.notify()
            self._drop_if_unused(transaction_id, gate)

    def has_writes(self, transaction_id: int) -> bool:
        """Whether a write that passed the gate is still under way."""
        gate = self._gates.get(transaction_id)
        return gate is not None and gate.write_count > 0

    def writing(self) -> list[int]:
        """The transactions with a write under way."""
        return [which for which, gate in self._gates.items() if gate.write_count > 0]

    async def writes_done(self, transaction_id: int) -> None:
        """Wait until every write that passed the gate is done."""
        gate = self._gates.get(transaction_id)
        if gate is not None:
            await gate.emptied()

    def is_unused(self, transaction_id: int) -> bool:
        """Whether the transaction has no write, commit or abort under way."""
        return transaction_id not in self._gates

    def close_now(self, transaction_id: int) -> bool:
        """Do what `close` does if it would not have to wait; whether it was done."""
        if transaction_id in self._gates:
            return False
        self._gates[transaction_id] = gate = _Gate()
        gate.is_closed = True
        return True

    async def close(self, transaction_id: int) -> None:
        """Begin the turn of a commit or abort, in the order of the calls. From then until `open` no
        other one ends the transaction, the gate refuses new writes, and those that passed it are
        done."""
        gate = self._gate(transaction_id)
        if gate.is_closed:
            await self._turn(transaction_id, gate)
        gate.is_closed = True
        try:
            await gate.emptied()
        except BaseException:
            self.open(transaction_id)
            raise

    async def _turn(self, transaction_id: int, gate: _Gate) -> None:
        """Wait for a turn. `open` hands it over, so that no other caller can come between."""
        turn = asyncio.get_running_loop().create_future()
        if gate.turns is None:
            gate.turns = deque()
        gate.turns.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.open(transaction_id)  # it was handed over, and goes on to the next
            raise

    def open(self, transaction_id: int) -> None:
        """End a turn, and hand it to the next caller that waits for one."""
        gate = self._gates[transaction_id]
        while gate.turns:
            turn = gate.turns.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        gate.is_closed = False
        gate.notify()
        self._drop_if_unused(transaction_id, gate)

    def claim(self, transaction_id: int, changes: frozenset[bytes]) -> None:
        """Take the changes, which no other transaction claims, and the end of this transaction,
        whose turn it is."""
        assert self.claimed_by(changes) is None
        self._gates[transaction_id].claim = changes
        self._claimed_by.update(dict.fromkeys(changes, transaction_id))

    def release(self, transaction_id: int) -> None:
        """Give back what this transaction claimed."""
        gate = self._gates[transaction_id]
        for change in gate.claim or ():
            del self._claimed_by[change]
        gate.claim = None
        gate.notify()

    def has_claim(self, transaction_id: int) -> bool:
        """Whether this transaction has a claim."""
        gate = self._gates.get(transaction_id)
        return gate is not None and gate.claim is not None

    def claiming(self) -> set[int]:
        """The transactions with a claim."""
        return {which for which, gate in self._gates.items() if gate.claim is not None}

    def claimed_by(self, changes: Collection[bytes]) -> int | None:
        """A transaction that claims one of these changes; None when they are free."""
        if self._claimed_by.keys().isdisjoint(changes):
            return None
        return next(self._claimed_by[each] for each in changes if each in self._claimed_by)

    async def released(self, transaction_id: int) -> None:
        """Wait until this transaction has no claim."""
        while self.has_claim(transaction_id):
            await self._gates[transaction_id].changed()

    def _gate(self, transaction_id: int) -> _Gate:
        gate = self._gates.get(transaction_id)
        if gate is None:
            gate = self._gates[transaction_id] = _Gate()
        return gate

    def _drop_if_unused(self, transaction_id: int, gate: _Gate) -> None:
        if gate.write_count == 0 and not gate.is_closed:
            self._gates.pop(transaction_id, None)
