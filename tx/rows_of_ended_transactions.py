"""The end of message rows: after a commit their index rows are deleted, after any other end the
rows are rolled back, and readers wake (design §6). No event loop.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from tx.claims_and_waits import UnderWay
from tx.messaging_interface import MessageRows
from tx.outcomes import EndedState, Outcome
from tx.state import TransactionState, ViewChange

Rollback = tuple[int, Sequence[int]]  # a transaction, and its pointers
Then = Callable[[bool], None]  # takes whether all rows are rolled back


class EndedRows:
    """Ends the rows of durable commits, and says which rows of other transactions are to be rolled
    back.

    A rollback waits for the writes under way. A transaction has one rollback at a time. `begun` are
    those that have to be made now; `rolled_back` takes what came of each.
    """

    def __init__(self, under_way: UnderWay, rows: MessageRows) -> None:
        self._under_way = under_way
        self._rows = rows
        self.begun: list[Rollback] = []
        self._rolling_back: dict[int, list[Then]] = {}  # and what waits for it
        self._to_wake: deque[tuple[int, int]] = deque()  # LSN, and the pointer that committed by it
        # Confirmed commits: the LSN, and their pointers. A crash before it needs their index rows.
        self._confirmed: deque[tuple[int, Sequence[int]]] = deque()

    def synced(self, lsn: int, changes: Iterable[ViewChange]) -> None:
        """Edits up to this LSN are durable, and these changes are in the view now, in log order.
        Called before any call that waits for an edit is answered."""
        self._rows.note_durable(lsn)
        committed: list[int] = []
        to_wake: list[int] = []
        for change in changes:
            if change.state is None:
                continue
            pointers = change.ended or change.cleared
            if change.state is EndedState.COMMITTED:
                committed += pointers
            elif change.state is EndedState.INVALID:
                self._roll_back_if_needed(change.transaction_id, pointers)
            to_wake += pointers
        while self._confirmed and self._confirmed[0][0] <= lsn:
            committed += self._confirmed.popleft()[1]
        while self._to_wake and self._to_wake[0][0] <= lsn:
            to_wake.append(self._to_wake.popleft()[1])
        if committed:
            self._rows.end_committed(committed)
        self._rows.wake_readers(to_wake)

    def wake_once_durable(self, lsn: int, pointer: int) -> None:
        """Wake the readers in the snapshot of a transaction that committed without writes, by the
        edit of this LSN. They are refused from then on, and a refusal may name nothing that a crash
        can still undo."""
        self._to_wake.append((lsn, pointer))

    def confirmed(self, lsn: int, pointers: Sequence[int]) -> None:
        """These pointers committed durably, and the edit of this LSN, which confirms it, need not
        be durable. Wake readers; the rows end once the edit is durable."""
        self._confirmed.append((lsn, pointers))
        self._rows.wake_readers(pointers)

    @property
    def unsynced_lsn(self) -> int | None:
        """The LSN of the newest edit that confirms a commit and is not durable; None without."""
        return self._confirmed[-1][0] if self._confirmed else None

    def came_up(self, state: TransactionState) -> None:
        """The service came up, and all that the state holds is durable. A crash may have kept the
        rows of ended transactions from being ended or rolled back, and readers from being woken."""
        self._rows.note_durable(state.lsn)
        self._to_wake.clear()
        self._confirmed.clear()
        ended: set[int] = set()
        # This looks at the rows: few have any left, and a million transactions may have ended.
        for pointer in self._concerned():
            ended.update(self._end_rows_of(pointer, state))
        # A log that failed, and has an ending all the same, left readers asleep behind it.
        self._rows.wake_readers(ended)

    def found(self, pointers: Iterable[int], state: TransactionState) -> None:
        """Rows of these pointers were found that may not have been ended or rolled back: do so for
        the transactions that have durably ended."""
        for pointer in pointers:
            outcome = state.outcomes.find(pointer)
            if outcome is None or outcome.lsn <= state.seen:
                self._rows.wake_readers(self._end_rows_of(pointer, state))

    def _end_rows_of(self, pointer: int, state: TransactionState) -> Sequence[int]:
        """End or roll back the rows of a transaction that has ended; its pointers, none if it has
        not."""
        outcome = state.maybe_find(pointer)
        if not isinstance(outcome, Outcome):
            return ()
        if outcome.state is EndedState.COMMITTED:
            self._rows.end_committed(outcome.pointers)
        else:
            self._roll_back_if_needed(outcome.transaction_id, outcome.pointers)
        return outcome.pointers

    def _concerned(self) -> set[int]:
        """Every pointer that rows carry, or that a write under way may yet give rows, or in whose
        snapshot a reader reads."""
        rows = self._rows
        return {*rows.indexed_pointers(), *self._under_way.writing(), *rows.reading_pointers()}

    def _roll_back_if_needed(self, transaction_id: int, pointers: Sequence[int]) -> None:
        # Also what a write under way is about to publish.
        if self._under_way.has_writes(transaction_id) or self._is_carried(pointers):
            self._begin(transaction_id, pointers)

    def roll_back(self, transaction_id: int, pointers: Sequence[int], then: Then) -> None:
        """Roll back the rows of these pointers, and then call this."""
        if transaction_id not in self._rolling_back and not self._is_carried(pointers):
            then(True)  # noqa: FBT003 - as a Then
        else:
            self._begin(transaction_id, pointers).append(then)

    def rolled_back(self, transaction_id: int, *, is_done: bool) -> None:
        """A rollback was made, or it failed; the message store then tries again by itself."""
        for then in self._rolling_back.pop(transaction_id):
            then(is_done)

    def _is_carried(self, pointers: Sequence[int]) -> bool:
        return any(map(self._rows.is_carried, pointers))

    def _begin(self, transaction_id: int, pointers: Sequence[int]) -> list[Then]:
        waiting = self._rolling_back.get(transaction_id)
        if waiting is None:
            waiting = self._rolling_back[transaction_id] = []
            self._start((transaction_id, pointers))
        return waiting

    def _start(self, rollback: Rollback) -> None:
        transaction_id, _ = rollback
        if self._under_way.has_writes(transaction_id):
            self._under_way.await_writes(transaction_id, self._start, rollback)
        else:
            self.begun.append(rollback)
