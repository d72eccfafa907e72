"""What is under way in transactions: writes of messages, ends that are not recorded yet, and the
keys that a commit claims (design §4, Commit and abort). No clock, no event loop.

A write of messages passes, unless an end of its transaction is under way. An end waits until every
write that passed is done. In a cluster, a server that has joined the transaction counts as one
write, and is recalled once an end waits for the writes. A commit that publishes claims its changes
while its rows are written: it has passed its check, and its record is not handed to the log yet.
Without the claim two commits with equal changes could both pass, and a time-out could end what is
about to commit.

What can't go on now is *parked* under the transaction that it waits for, as a function and its
argument. It goes on when something of that transaction changes, and then looks at everything again.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from tuff.protocol.errors import TransactionsUnavailableError

Recall = Callable[[], None]  # asks a server that has joined to end its writes, and to leave
Step = tuple[Callable[[Any], None], Any]


class _Activity:
    """What is under way in one transaction. Made and dropped for nearly every commit."""

    __slots__ = ("claim", "end", "is_awaited", "parked", "recalls", "write_count")

    def __init__(self) -> None:
        self.write_count = 0  # writes that passed and are not done
        self.end: object | None = None  # the call that ends it, and is not recorded yet
        self.claim: frozenset[bytes] | None = None  # the changes of that call
        self.is_awaited = False  # something waits for the writes
        self.recalls: list[Recall] | None = None  # of servers that joined and were not recalled
        self.parked: list[Step] | None = None


class UnderWay:
    """The activities of all transactions. They outlive a recovery of the service, as the writes do.

    `ready` are the steps that were parked and can go on, in order. `wake` is called when the first
    one of them comes.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.ready: list[Step] = []
        self._wake = wake
        self._of: dict[int, _Activity] = {}
        self._claimed_by: dict[bytes, int] = {}  # the transaction that claims each change

    def is_unused(self, transaction_id: int) -> bool:
        """Whether nothing of the transaction is under way."""
        return transaction_id not in self._of

    # Steps that wait.

    def park(self, transaction_id: int, step: Callable[[Any], None], argument: object) -> None:
        """Let this go on when something of the transaction changes."""
        activity = self._activity(transaction_id)
        if activity.parked is None:
            activity.parked = []
        activity.parked.append((step, argument))

    def resume(self, transaction_id: int) -> None:
        """Let everything go on that is parked under the transaction."""
        activity = self._of.get(transaction_id)
        if activity is None:
            return
        parked, activity.parked = activity.parked, None
        if parked:
            self.let_go_on(parked)
        if activity.write_count == 0 and activity.end is None:
            del self._of[transaction_id]

    def let_go_on(self, steps: Sequence[Step]) -> None:
        """Let steps go on that have waited, under a transaction or for something else."""
        if steps and not self.ready:
            self._wake()
        self.ready += steps

    def resume_all(self) -> None:
        """Let everything go on that is parked."""
        for transaction_id in list(self._of):
            self.resume(transaction_id)

    # Writes.

    def require_open(self, transaction_id: int) -> None:
        """Raises: TransactionsUnavailableError: an end is under way, and whether it will stand is
        not known yet. Naming it would speak of what a crash can still undo (protocol §1)."""
        activity = self._of.get(transaction_id)
        if activity is not None and activity.end is not None:
            raise TransactionsUnavailableError(
                f"transaction {transaction_id} is being committed or aborted; try again in a moment"
            )

    def enter(self, transaction_id: int, recall: Recall | None = None) -> None:
        """Count a write in, or a server that joins, which has a `recall`; `leave` counts it out."""
        activity = self._activity(transaction_id)
        activity.write_count += 1
        if recall is None:
            return
        if activity.is_awaited:
            recall()
        elif activity.recalls is None:
            activity.recalls = [recall]
        else:
            activity.recalls.append(recall)

    def leave(self, transaction_id: int, recall: Recall | None = None) -> None:
        """The write is done."""
        activity = self._of[transaction_id]
        activity.write_count -= 1
        if recall is not None and activity.recalls and recall in activity.recalls:
            activity.recalls.remove(recall)
        if activity.write_count == 0:
            activity.is_awaited = False
            if activity.end is None or activity.parked:
                self.resume(transaction_id)

    def has_writes(self, transaction_id: int) -> bool:
        """Whether a write that passed is still under way."""
        activity = self._of.get(transaction_id)
        return activity is not None and activity.write_count > 0

    def writing(self) -> list[int]:
        """The transactions with a write under way."""
        return [which for which, activity in self._of.items() if activity.write_count > 0]

    def await_writes(
        self, transaction_id: int, step: Callable[[Any], None], argument: object
    ) -> None:
        """Let this go on when the writes under way are done, and recall the servers that joined."""
        activity = self._of[transaction_id]
        activity.is_awaited = True
        recalls, activity.recalls = activity.recalls, None
        self.park(transaction_id, step, argument)
        for recall in recalls or ():
            recall()

    # Ends.

    def ends(self, transaction_id: int) -> object | None:
        """The call that ends the transaction, and is not recorded yet; None without one."""
        activity = self._of.get(transaction_id)
        return None if activity is None else activity.end

    def begin_end(self, transaction_id: int, call: object) -> None:
        """From now on no write passes, and no other call ends the transaction."""
        activity = self._activity(transaction_id)
        assert activity.end in (None, call), f"two calls end {transaction_id}"
        activity.end = call

    def finish_end(self, transaction_id: int) -> None:
        """The end is recorded, or will not be: give back what it claimed, and let others go on."""
        activity = self._of.get(transaction_id)
        if activity is None or activity.end is None:
            return
        for change in activity.claim or ():
            del self._claimed_by[change]
        activity.claim = activity.end = None
        if activity.write_count or activity.parked:
            self.resume(transaction_id)
        else:
            del self._of[transaction_id]

    def begin_commit(self, transaction_id: int, call: object, changes: frozenset[bytes]) -> None:
        """This call ends the transaction, and begins to write its rows: from now on no other write
        passes, and it has the changes, which no other transaction claims. `leave` says that the
        rows are written, `finish_end` that the end is recorded."""
        assert self._claimed_by.keys().isdisjoint(changes)
        activity = self._activity(transaction_id)
        assert activity.end in (None, call), f"two calls end {transaction_id}"
        activity.write_count += 1
        activity.end = call
        activity.claim = changes
        self._claimed_by.update(dict.fromkeys(changes, transaction_id))

    def has_claim(self, transaction_id: int) -> bool:
        """Whether this transaction has a claim."""
        activity = self._of.get(transaction_id)
        return activity is not None and activity.claim is not None

    def claiming(self) -> set[int]:
        """The transactions with a claim."""
        return {which for which, activity in self._of.items() if activity.claim is not None}

    def claimed_by(self, changes: Collection[bytes]) -> int | None:
        """A transaction that claims one of these changes; None when they are free."""
        if self._claimed_by.keys().isdisjoint(changes):
            return None
        return next(self._claimed_by[each] for each in changes if each in self._claimed_by)

    def _activity(self, transaction_id: int) -> _Activity:
        activity = self._of.get(transaction_id)
        if activity is None:
            activity = self._of[transaction_id] = _Activity()
        return activity
