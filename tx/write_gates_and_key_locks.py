"""Locks of transactions: the write gate of each one, and the keys that a commit under way claims
(design §4, Commit and abort).

A write of messages passes its transaction's write gate. A commit or abort closes the gate and waits
until every write that passed it is done. A commit that publishes claims its changes while its rows
are written.
"""

import asyncio
from collections import deque
from collections.abc import Collection

from tuff.protocol.errors import TransactionsUnavailableError


class _Gate:
    """The write gate of one transaction. Made and dropped for nearly every commit, so it has no
    lock and no future until a caller has to wait."""

    __slots__ = (
        "changes",
        "empty",
        "is_closed",
        "pointers",
        "released",
        "reopened",
        "turns",
        "user_count",
        "write_count",
    )

    def __init__(self) -> None:
        self.write_count = 0
        self.user_count = 0  # commits and aborts that have their turn, or wait for it
        self.is_closed = False  # one of them has its turn
        self.turns: deque[asyncio.Future[None]] | None = None  # of those that wait for theirs
        self.empty: asyncio.Event | None = None  # set when the last write is done
        self.reopened: asyncio.Event | None = None  # for callers that wait, and want no turn
        # The claim of a commit, which lasts no longer than its turn; no pointers: there is none.
        self.pointers: tuple[int, ...] = ()
        self.changes: frozenset[bytes] = frozenset()
        self.released: asyncio.Future[None] | None = None


class TransactionLocks:
    """The write gate, and the claim, of every transaction that has a write, a commit or an abort
    under way. They outlive a recovery of the service, as the writes that passed them do.

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
        gate = self._gates.get(transaction_id)
        if gate is not None and gate.is_closed:
            raise TransactionsUnavailableError(
                f"transaction {transaction_id} is being committed or aborted; try again in a moment"
            )

    def enter(self, transaction_id: int) -> None:
        """Count a write in; `leave` counts it out."""
        gate = self._gate(transaction_id)
        gate.write_count += 1

    def leave(self, transaction_id: int) -> None:
        """The write is done."""
        gate = self._gates[transaction_id]
        gate.write_count -= 1
        if gate.write_count == 0 and gate.empty is not None:
            gate.empty.set()
            gate.empty = None
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
            await _emptied(gate)

    def ending(self, transaction_id: int) -> "_Ending":
        """The turn of one commit or abort: no other one ends the transaction meanwhile, the gate
        refuses new writes, and those that passed it are done."""
        return _Ending(self, transaction_id)

    def has_ending(self, transaction_id: int) -> bool:
        """Whether a commit or abort has its turn."""
        gate = self._gates.get(transaction_id)
        return gate is not None and gate.is_closed

    async def reopened(self, transaction_id: int) -> None:
        """Wait until no commit or abort has its turn. A caller that only wants to pass must not
        take a turn to wait: two that did handed it to each other for ever."""
        gate = self._gates.get(transaction_id)
        while gate is not None and gate.is_closed:
            if gate.reopened is None:
                gate.reopened = asyncio.Event()
            await gate.reopened.wait()
            gate = self._gates.get(transaction_id)

    def close_now(self, transaction_id: int) -> bool:
        """Do what `close` does if it would not have to wait; whether it was done."""
        if transaction_id in self._gates:
            return False
        gate = self._gates[transaction_id] = _Gate()
        gate.user_count = 1
        gate.is_closed = True
        return True

    async def close(self, transaction_id: int) -> None:
        """Begin a turn as `ending` does; `reopen` ends it."""
        gate = self._gate(transaction_id)
        gate.user_count += 1
        if gate.is_closed:
            await self._turn(transaction_id, gate)
        gate.is_closed = True
        if gate.write_count:
            try:
                await _emptied(gate)
            except BaseException:
                self.reopen(transaction_id)
                raise

    async def _turn(self, transaction_id: int, gate: _Gate) -> None:
        """Wait for a turn. It is handed over, so that no other caller can come between."""
        turn = asyncio.get_running_loop().create_future()
        if gate.turns is None:
            gate.turns = deque()
        gate.turns.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.reopen(transaction_id)  # it was handed over, and goes on to the next
            else:  # the caller that hands its turn over passes over this one
                gate.user_count -= 1
                self._drop_if_unused(transaction_id, gate)
            raise

    def reopen(self, transaction_id: int) -> None:
        """End a turn, and hand it to the next that waits."""
        gate = self._gates[transaction_id]
        gate.is_closed = False
        while gate.turns:
            turn = gate.turns.popleft()
            if not turn.done():
                gate.is_closed = True
                turn.set_result(None)
                break
        if gate.reopened is not None and not gate.is_closed:
            gate.reopened.set()
            gate.reopened = None
        gate.user_count -= 1
        self._drop_if_unused(transaction_id, gate)

    def claim(
        self, transaction_id: int, *, pointers: tuple[int, ...], changes: frozenset[bytes]
    ) -> None:
        """Take the changes, which no other transaction claims, and the end of this transaction,
        whose turn it is."""
        assert self.claimed_by(changes) is None
        gate = self._gates[transaction_id]
        gate.pointers, gate.changes = pointers, changes
        self._claimed_by.update(dict.fromkeys(changes, transaction_id))

    def release(self, transaction_id: int) -> None:
        """Give back what this transaction claimed; callers that wait for it look again."""
        gate = self._gates[transaction_id]
        for change in gate.changes:
            del self._claimed_by[change]
        gate.pointers, gate.changes = (), frozenset()
        if gate.released is not None:
            gate.released.set_result(None)
            gate.released = None

    def has_claim(self, transaction_id: int) -> bool:
        """Whether this transaction has a claim."""
        gate = self._gates.get(transaction_id)
        return gate is not None and bool(gate.pointers)

    def claimed_by(self, changes: Collection[bytes]) -> int | None:
        """A transaction that claims one of these changes; None when they are free."""
        if self._claimed_by.keys().isdisjoint(changes):
            return None
        return next(self._claimed_by[each] for each in changes if each in self._claimed_by)

    async def released(self, transaction_id: int) -> None:
        """Wait until this transaction gives back its claim, if it has one."""
        gate = self._gates.get(transaction_id)
        if gate is not None and gate.pointers:
            if gate.released is None:
                gate.released = asyncio.get_running_loop().create_future()
            await asyncio.shield(gate.released)

    def claimed_pointers(self) -> set[int]:
        """Every pointer of a transaction that has a claim."""
        return {pointer for gate in self._gates.values() for pointer in gate.pointers}

    def _gate(self, transaction_id: int) -> _Gate:
        gate = self._gates.get(transaction_id)
        if gate is None:
            gate = self._gates[transaction_id] = _Gate()
        return gate

    def _drop_if_unused(self, transaction_id: int, gate: _Gate) -> None:
        if gate.write_count == 0 and gate.user_count == 0:
            self._gates.pop(transaction_id, None)


async def _emptied(gate: _Gate) -> None:
    while gate.write_count:
        if gate.empty is None:
            gate.empty = asyncio.Event()
        await gate.empty.wait()


class _Ending:
    __slots__ = ("_locks", "_transaction_id")

    def __init__(self, locks: TransactionLocks, transaction_id: int) -> None:
        self._locks = locks
        self._transaction_id = transaction_id

    async def __aenter__(self) -> None:
        await self._locks.close(self._transaction_id)

    async def __aexit__(self, *_raised: object) -> None:
        self._locks.reopen(self._transaction_id)
