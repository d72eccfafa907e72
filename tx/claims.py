"""Claims: a commit that publishes holds its changes and its ending while its rows are written.

It has passed its check, and its record is not handed to the log yet. Without a claim two commits
with equal changes could both pass, and a time-out could end what is about to commit (design §4).
"""

import asyncio
from collections.abc import Collection


class Claims:
    """Who holds which change, and which transactions hold their ending."""

    def __init__(self) -> None:
        self._claims: dict[int, _Claim] = {}
        self._holders: dict[bytes, int] = {}

    def claim(
        self, transaction_id: int, *, pointers: tuple[int, ...], changes: frozenset[bytes]
    ) -> None:
        """Take the changes, which nobody holds, and the ending."""
        assert self.holder_of(changes) is None
        self._claims[transaction_id] = _Claim(pointers, changes)
        self._holders.update(dict.fromkeys(changes, transaction_id))

    def release(self, transaction_id: int) -> None:
        """Give back what this transaction claimed; those who wait look again."""
        claim = self._claims.pop(transaction_id)
        for change in claim.changes:
            del self._holders[change]
        if claim.released is not None:
            claim.released.set_result(None)

    def holds(self, transaction_id: int) -> bool:
        """Whether this transaction has a claim."""
        return transaction_id in self._claims

    def holder_of(self, changes: Collection[bytes]) -> int | None:
        """Somebody who holds one of these changes; None when they are free."""
        if self._holders.keys().isdisjoint(changes):
            return None
        return next(self._holders[change] for change in changes if change in self._holders)

    async def released(self, transaction_id: int) -> None:
        """Wait until this transaction has no claim."""
        claim = self._claims.get(transaction_id)
        if claim is not None:
            if claim.released is None:
                claim.released = asyncio.get_running_loop().create_future()
            await asyncio.shield(claim.released)

    def pointers(self) -> set[int]:
        """Every pointer of a transaction that has a claim."""
        return {pointer for claim in self._claims.values() for pointer in claim.pointers}


class _Claim:
    """Made for nearly every commit that publishes, so it has no future until somebody waits."""

    __slots__ = ("changes", "pointers", "released")

    def __init__(self, pointers: tuple[int, ...], changes: frozenset[bytes]) -> None:
        self.pointers = pointers
        self.changes = changes
        self.released: asyncio.Future[None] | None = None
