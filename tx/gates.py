"""Gates: a write passes its transaction's gate, and an ending waits until all that passed are done
(design §4, Endings)."""

import asyncio

from tuff.protocol.errors import TransactionsUnavailableError


class _Gate:
    __slots__ = ("empty", "is_closed", "turn", "user_count", "write_count")

    def __init__(self) -> None:
        self.write_count = 0
        self.user_count = 0  # endings that have, or wait for, their turn, and markings
        self.is_closed = False
        self.turn = asyncio.Lock()
        self.empty = asyncio.Event()
        self.empty.set()


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
        gate.empty.clear()

    def leave(self, transaction_id: int) -> None:
        gate = self._gates[transaction_id]
        gate.write_count -= 1
        if gate.write_count == 0:
            gate.empty.set()
        self._release(transaction_id, gate)

    def has_writes(self, transaction_id: int) -> bool:
        """Whether a write that passed the gate is still under way."""
        gate = self._gates.get(transaction_id)
        return gate is not None and gate.write_count > 0

    def ending(self, transaction_id: int) -> "_Ending":
        """The turn of one ending: nobody else ends the transaction meanwhile, the gate refuses new
        writes, and those that passed it are done."""
        return _Ending(self, transaction_id)

    def has_ending(self, transaction_id: int) -> bool:
        """Whether an ending has its turn."""
        gate = self._gates.get(transaction_id)
        return gate is not None and gate.turn.locked()

    async def emptied(self, transaction_id: int) -> None:
        """Wait until every write that passed the gate is done."""
        gate = self._gates.get(transaction_id)
        if gate is not None:
            await gate.empty.wait()

    async def close(self, transaction_id: int) -> None:
        """What `ending` begins with; `reopen` ends it."""
        gate = self._gate(transaction_id)
        gate.user_count += 1
        try:
            await gate.turn.acquire()
        except BaseException:
            gate.user_count -= 1
            self._release(transaction_id, gate)
            raise
        gate.is_closed = True
        try:
            await gate.empty.wait()
        except BaseException:
            self.reopen(transaction_id)
            raise

    def reopen(self, transaction_id: int) -> None:
        gate = self._gates[transaction_id]
        gate.is_closed = False
        gate.turn.release()
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


class _Ending:
    __slots__ = ("_gates", "_transaction_id")

    def __init__(self, gates: Gates, transaction_id: int) -> None:
        self._gates = gates
        self._transaction_id = transaction_id

    async def __aenter__(self) -> None:
        await self._gates.close(self._transaction_id)

    async def __aexit__(self, *_raised: object) -> None:
        self._gates.reopen(self._transaction_id)
