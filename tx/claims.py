"""Claims: a commit that publishes holds its changes and its ending while its rows are written.

It has passed its check, and its record is not handed to the log yet. Without a claim two commits
with equal changes could both pass, and a time-out could end what is about to commit (design §4).
"""

import asyncio
from collections.abc import Iterable


class Claims:
    """Who holds which change, and which transactions hold their ending."""

    def __init__(self) -> None:
        self._released: dict[int, asyncio.Future[None]] = {}
        self._pointers: dict[int, tuple[int, ...]] = {}
        self._holders: dict[bytes, int] = {}
        self._changes: dict[int, frozenset[bytes]] = {}

    def claim(
        self, transaction_id: int, *, pointers: tuple[int, ...], changes: frozenset[bytes]
    ) -> None:
        """Take the changes, which nobody holds, and the ending."""
        assert self.holder_of(changes) is None
        self._released[transaction_id] = asyncio.get_running_loop().create_future()
        self._pointers[transaction_id] = pointers
        self._changes[transaction_id] = changes
        for change in changes:
            self._holders[change] = transaction_id

    def release(self, transaction_id: int) -> None:
        """Give back what this transaction claimed; those who wait look again."""
        for change in self._changes.pop(transaction_id):
            del self._holders[change]
        del self._pointers[transaction_id]
        self._released.pop(transaction_id).set_result(None)

    def holds(self, transaction_id: int) -> bool:
        """Whether this transaction has a claim."""
        return transaction_id in self._released

    def holder_of(self, changes: Iterable[bytes]) -> int | None:
        """Somebody who holds one of these changes; None when they are free."""
        if not self._holders:
            return None
        return next((self._holders[change] for change in changes if change in self._holders), None)

    async def released(self, transaction_id: int) -> None:
        """Wait until this transaction has no claim."""
        future = self._released.get(transaction_id)
        if future is not None:
            await asyncio.shield(future)

    def pointers(self) -> set[int]:
        """Every pointer of a transaction that has a claim."""
        return {pointer for pointers in self._pointers.values() for pointer in pointers}
