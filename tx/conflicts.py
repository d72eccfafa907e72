"""Write-write conflicts: a change conflicts if its last committer is not visible to the transaction
(design §4, Conflicts).

A check costs one look-up for each change. A comparison of pointers ("did it commit after this one
started?") would miss a commit that was decided, and not yet durable, when the transaction started.
So the rule is visibility alone.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator

from tuff.protocol.errors import TransactionConflictError
from tuff.protocol.json_bodies import payload_to_json, pointer_to_json, shown
from tuff.protocol.transaction import Transaction
from tuff.protocol.values import value
from tx.log_records import Conflict
from tx.outcomes import OpenTransaction
from tx.transaction_principals import named_change


@value()
class CommittedChanges:
    """The changes that one transaction committed, by the edit of this LSN."""

    lsn: int
    transaction_id: int
    client: str
    changes: frozenset[bytes]


class Committers:
    """The last committer of each change that may still conflict with an open transaction."""

    def __init__(self, commits: Iterable[CommittedChanges] = ()) -> None:
        self._last: dict[bytes, CommittedChanges] = {}
        self._in_order: deque[CommittedChanges] = deque()
        for commit in commits:
            self.add(commit)

    def __len__(self) -> int:
        return len(self._last)

    def add(self, commit: CommittedChanges) -> None:
        self._in_order.append(commit)
        self._last.update(dict.fromkeys(commit.changes, commit))

    def conflict(self, transaction: Transaction, changes: frozenset[bytes]) -> Conflict | None:
        """The smallest change whose last committer this transaction can't see."""
        if self._last.keys().isdisjoint(changes):
            return None
        unseen = [
            change
            for change in changes
            if (commit := self._last.get(change)) is not None
            and not transaction.is_visible(commit.transaction_id)
        ]
        if not unseen:
            return None
        key = min(unseen)
        commit = self._last[key]
        return Conflict(key, commit.transaction_id, commit.client, commit.lsn)

    def forget(self, lsn: int) -> None:
        """Drop the commits up to this LSN: every open short transaction sees them, and so will
        all that start."""
        while self._in_order and self._in_order[0].lsn <= lsn:
            commit = self._in_order.popleft()
            for change in commit.changes:
                if self._last[change] is commit:
                    del self._last[change]

    def in_order(self) -> tuple[CommittedChanges, ...]:
        """Every commit that is remembered, in commit order."""
        return tuple(self._in_order)


class PreparedTransactions:
    """The prepared transactions, the oldest first, and the changes that they claim. Changed by
    edits only, so the claims survive a restart and a new leader. Those of a commit that is writing
    its rows are in `tx.claims_and_waits`."""

    def __init__(self) -> None:
        self._by_id: dict[int, OpenTransaction] = {}
        self._claimed_by: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[OpenTransaction]:
        return iter(self._by_id.values())

    @property
    def last_lsn(self) -> int:
        """The LSN of the newest prepare; 0 without one."""
        newest = next(reversed(self._by_id.values()), None)
        return 0 if newest is None or newest.prepared is None else newest.prepared.lsn

    def __contains__(self, transaction_id: int) -> bool:
        return transaction_id in self._by_id

    def add(self, opened: OpenTransaction) -> None:
        """Add a transaction that is prepared, and claims its changes."""
        self._by_id[opened.transaction_id] = opened
        self._claimed_by.update(dict.fromkeys(opened.changes or (), opened.transaction_id))

    def discard(self, opened: OpenTransaction) -> None:
        """Remove a transaction that has ended. Does nothing if it was not prepared."""
        if self._by_id.pop(opened.transaction_id, None) is not None:
            for change in opened.changes or ():
                del self._claimed_by[change]

    def conflict(self, changes: Collection[bytes]) -> Conflict | None:
        """The smallest of these changes that a prepared transaction claims; None when all are
        free."""
        if self._claimed_by.keys().isdisjoint(changes):
            return None
        change = min(each for each in changes if each in self._claimed_by)
        other = self._by_id[self._claimed_by[change]]
        assert other.prepared is not None
        return Conflict(change, other.transaction_id, other.client, other.prepared.lsn)


def in_order_of_preparation(opened: Iterable[OpenTransaction]) -> list[OpenTransaction]:
    """The given transactions that are prepared, the oldest first."""
    found = [(each.prepared.lsn, each) for each in opened if each.prepared is not None]
    return [each for _, each in sorted(found, key=lambda pair: pair[0])]


def conflict_error(transaction_id: int, conflict: Conflict) -> TransactionConflictError:
    """The refusal for a conflict; every call gets the same."""
    key = payload_to_json(named_change(conflict.key))
    return TransactionConflictError(
        f"transaction {transaction_id} conflicts with transaction {conflict.committer} of "
        f"{conflict.committer_client!r}, which committed or prepared the same change {shown(key)} "
        "after this one started; undo its writes, abort it, and run it again",
        members={
            "key": key,
            "conflictingTransaction": pointer_to_json(conflict.committer),
            "conflictingClient": conflict.committer_client,
        },
    )
