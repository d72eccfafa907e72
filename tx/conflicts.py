"""Conflict detection: the last committer of each change, and whether a transaction sees it (design
§4, Conflicts).

A check costs one look-up for each change of the transaction at hand. Comparing pointers with a
"commit pointer" would miss a commit that was decided, and not yet durable, when the transaction
started; so the rule asks for visibility and nothing else.
"""

from collections import deque
from collections.abc import Iterable

from tuff.protocol.transaction import Transaction
from tuff.protocol.values import value
from tx.edits import Conflict


@value()
class CommittedChanges:
    """What one transaction committed, by the edit of this LSN."""

    lsn: int
    transaction_id: int
    client: str
    changes: frozenset[bytes]


class Committers:
    """The last committer of each change for which a transaction may still have to be refused."""

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
        """Drop what was committed up to this LSN: every open short transaction sees it, and so
        will all that start."""
        while self._in_order and self._in_order[0].lsn <= lsn:
            commit = self._in_order.popleft()
            for change in commit.changes:
                if self._last[change] is commit:
                    del self._last[change]

    def in_order(self) -> tuple[CommittedChanges, ...]:
        """Every commit that is remembered, in commit order."""
        return tuple(self._in_order)
