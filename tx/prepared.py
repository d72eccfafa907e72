"""Prepared transactions, and the changes that they claim (decision 0045, Prepare).

The claims are a part of the state: they survive a restart and a new leader. Those of a commit that
is writing its rows are in `tx.write_gates_and_key_locks`.
"""

from collections.abc import Collection, Iterable, Iterator

from tx.edits import Conflict
from tx.outcomes import OpenTransaction


class PreparedTransactions:
    """The prepared transactions, the oldest first. Changed by edits only."""

    def __init__(self) -> None:
        self._by_id: dict[int, OpenTransaction] = {}
        self._claimed_by: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[OpenTransaction]:
        return iter(self._by_id.values())

    def __contains__(self, transaction_id: int) -> bool:
        return transaction_id in self._by_id

    def add(self, opened: OpenTransaction) -> None:
        """It is prepared, and claims its changes."""
        self._by_id[opened.transaction_id] = opened
        self._claimed_by.update(dict.fromkeys(opened.changes or (), opened.transaction_id))

    def discard(self, opened: OpenTransaction) -> None:
        """It has ended. Does nothing if it was not prepared."""
        if self._by_id.pop(opened.transaction_id, None) is not None:
            for change in opened.changes or ():
                del self._claimed_by[change]

    def conflict(self, changes: Collection[bytes]) -> Conflict | None:
        """The smallest of these changes that a prepared transaction claims; None when all are
        free."""
        if self._claimed_by.keys().isdisjoint(changes):
            return None
        change = min(each for each in changes if each in self._claimed_by)
        holder = self._by_id[self._claimed_by[change]]
        assert holder.prepared is not None
        return Conflict(change, holder.transaction_id, holder.client, holder.prepared.lsn)


def in_order_of_preparation(opened: Iterable[OpenTransaction]) -> list[OpenTransaction]:
    """Those of them that are prepared, the oldest first."""
    found = [(each.prepared.lsn, each) for each in opened if each.prepared is not None]
    return [each for _, each in sorted(found, key=lambda pair: pair[0])]
