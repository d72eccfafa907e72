"""Coming up: what a service records first, and what it makes good for those that ended while it
was down (design §4)."""

from collections.abc import Iterator

from tx.claims import Claims
from tx.edits import Edit, Invalidated, InvalidReason, Restarted
from tx.markings import Markings
from tx.records import EndedState, lost_outcome
from tx.starts import Starts
from tx.state import TransactionState
from tx.surroundings import Surroundings


class Resumption:
    """Between a recovered state and the first call. Lives on one event loop."""

    def __init__(
        self, claims: Claims, markings: Markings, starts: Starts, around: Surroundings
    ) -> None:
        self._rows = around.rows
        self._claims = claims
        self._markings = markings
        self._starts = starts
        self._leases = around.leases
        self._now_ms = around.now_ms

    def edits(self, state: TransactionState) -> Iterator[Edit]:
        """With what the log goes on; each is asked for when the one before was applied."""
        now_ms = self._now_ms()
        yield Restarted(now_ms, not state.is_clean, state.blocks)
        # A commit that was cut off: its rows are there, or on their way, and its record is not.
        cut_off = self._rows.final_pointers() | self._claims.pointers()
        for opened in list(state.open.values()):
            if not cut_off.isdisjoint(opened.pointers):
                topics = tuple(self._rows.topics(opened.pointers))
                reason = InvalidReason.LOST_IN_CRASH
                yield Invalidated(now_ms, opened.transaction_id, reason, topics)
        yield self._starts.first_block(state)

    def opened(self, state: TransactionState) -> None:
        """The service is up, and all that the state holds is durable."""
        self._rows.note_durable(state.lsn)
        self._starts.opened(state)
        self._leases.begin_all(state)
        # What a crash kept from being told, or done, to the rows of those that have ended. It is
        # asked from the side of the rows: few have any left, and a million may have ended.
        ended: set[int] = set()
        for pointer in self._markings.concerned():
            outcome = state.outcomes.find(pointer)
            if outcome is None and pointer in state.invalid:
                outcome = lost_outcome(pointer)
            if outcome is None:
                continue
            ended.update(outcome.pointers)
            if outcome.state is EndedState.COMMITTED:
                self._rows.settle(outcome.pointers)
            else:
                self._markings.mark_if_needed(outcome.transaction_id, outcome.pointers)
        # A log that failed, and has an ending all the same, left readers asleep behind it.
        self._rows.wake_readers(ended)

    def failed(self) -> None:
        """The service went down."""
        self._starts.closed()
