"""Gates: a write passes its transaction's gate, and an ending waits until all that passed are done
(design §4, Endings)."""

import asyncio
from collections import deque

from tuff.protocol.errors import TransactionsUnavailableError


class _Gate:
    """Made and dropped for nearly every commit, so it has no lock until somebody has to wait."""

    __slots__ = ("empty", "is_closed", "reopened", "turns", "user_count", "write_count")

    def __init__(self) -> None:
        self.write_count = 0
        self.user_count = 0  # endings that have, or wait for, their turn, and markings
        self.is_closed = False  # somebody has the turn
        self.turns: deque[asyncio.Future[None]] | None = None  # those who wait for theirs
        self.empty: asyncio.Event | None = None  # for those who wait until all writes are done
        self.reopened: asyncio.Event | None = None  # for those who wait, and want no turn


class Gates:
    """A gate for every transaction that has a write or an ending under way. Gates outlive a
    recovery of the service, as the writes that passed them do."""

    def __init__(self) -> None:
        self._gates: dict[int, _Gate] = {}

    def require_open(self, transaction_id: int) -> None:
        """Raises: TransactionsUnavailableError: an ending is under way, and whether it will stand
        is not known yet. Naming it would speak of what a crash can still undo (protocol §1)."""
        gate = self._gates.get(transaction_id)
        if gate is not None and gate.is_closed:
            raise TransactionsUnavailableError(
                f"an ending of transaction {transaction_id} is under way; try again in a moment"
            )

    def enter(self, transaction_id: int) -> None:
        """Count a write in; `leave` counts it out."""
        gate = self._gate(transaction_id)
        gate.write_count += 1

    def leave(self, transaction_id: int) -> None:
        gate = self._gates[transaction_id]
        gate.write_count -= 1
        if gate.write_count == 0 and gate.empty is not None:
            gate.empty.set()
            gate.empty = None
        self._release(transaction_id, gate)

    def has_writes(self, transaction_id: int) -> bool:
        """Whether a write that passed the gate is still under way."""
        gate = self._gates.get(transaction_id)
        return gate is not None and gate.write_count > 0

    def writing(self) -> list[int]:
        """The transactions with a write under way."""
        return [which for which, gate in self._gates.items() if gate.write_count > 0]

    def ending(self, transaction_id: int) -> "_Ending":
        """The turn of one ending: nobody else ends the transaction meanwhile, the gate refuses new
        writes, and those that passed it are done."""
        return _Ending(self, transaction_id)

    def has_ending(self, transaction_id: int) -> bool:
        """Whether an ending has its turn."""
        gate = self._gates.get(transaction_id)
        return gate is not None and gate.is_closed

    async def reopened(self, transaction_id: int) -> None:
        """Wait until no ending has its turn. Whoever only wants to pass must not take one for that:
        two that did handed it to each other for ever."""
        gate = self._gates.get(transaction_id)
        while gate is not None and gate.is_closed:
            if gate.reopened is None:
                gate.reopened = asyncio.Event()
            await gate.reopened.wait()
            gate = self._gates.get(transaction_id)

    async def emptied(self, transaction_id: int) -> None:
        """Wait until every write that passed the gate is done."""
        gate = self._gates.get(transaction_id)
        if gate is not None:
            await _emptied(gate)

    def close_now(self, transaction_id: int) -> bool:
        """What `close` does, if nobody has to be waited for; whether it did."""
        if transaction_id in self._gates:
            return False
        gate = self._gates[transaction_id] = _Gate()
        gate.user_count = 1
        gate.is_closed = True
        return True

    async def close(self, transaction_id: int) -> None:
        """What `ending` begins with; `reopen` ends it."""
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
        """Wait for one's turn. Whoever has it hands it over, so that nobody can come between."""
        turn = asyncio.get_running_loop().create_future()
        if gate.turns is None:
            gate.turns = deque()
        gate.turns.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.reopen(transaction_id)  # it was handed over, and goes on to the next
            else:
                if turn in gate.turns:
                    gate.turns.remove(turn)
                gate.user_count -= 1
                self._release(transaction_id, gate)
            raise

    def reopen(self, transaction_id: int) -> None:
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
        self._release(transaction_id, gate)

    def _gate(self, transaction_id: int) -> _Gate:
        gate = self._gates.get(transaction_id)
        if gate is None:
            gate = self._gates[transaction_id] = _Gate()
        return gate

    def _release(self, transaction_id: int, gate: _Gate) -> None:
        if gate.write_count == 0 and gate.user_count == 0:
            self._gates.pop(transaction_id, None)


async def _emptied(gate: _Gate) -> None:
    while gate.write_count:
        if gate.empty is None:
            gate.empty = asyncio.Event()
        await gate.empty.wait()


class _Ending:
    __slots__ = ("_gates", "_transaction_id")

    def __init__(self, gates: Gates, transaction_id: int) -> None:
        self._gates = gates
        self._transaction_id = transaction_id

    async def __aenter__(self) -> None:
        await self._gates.close(self._transaction_id)

    async def __aexit__(self, *_raised: object) -> None:
        self._gates.reopen(self._transaction_id)
