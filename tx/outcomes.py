"""How transactions ended, for as long as somebody may ask (protocol §5.2, Commit after a lost
reply).

The memory is bounded by time, by count and by size. What it drops is no edit: a replay remembers a
little longer, and the next tick drops it again.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from tx.records import Outcome

OUTCOME_COUNT_MAX = 1_000_000  # outcomes
OUTCOME_BYTES_MAX = 64 * 1024 * 1024  # bytes, as `Outcome.size_bytes` counts them
LOOKED_AT_COUNT_MAX = 2_000  # outcomes of one pass; keeps a tick to a few milliseconds


class Outcomes:
    """Ended transactions by id, in the order in which they ended."""

    def __init__(self, outcomes: Iterable[Outcome] = ()) -> None:
        self._by_id: dict[int, Outcome] = {}
        self._owners: dict[int, int] = {}
        self._by_request: dict[str, int] = {}
        self._in_order: deque[Outcome] = deque()
        # Too old, and yet needed: on the invalid list, or rows still carry them.
        self._held: deque[Outcome] = deque()
        self.size_bytes = 0
        for outcome in outcomes:
            self.put(outcome)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Outcome]:
        return iter(self._by_id.values())

    def put(self, outcome: Outcome) -> None:
        """Remember this, instead of what was known of that transaction."""
        self._drop(outcome.transaction_id)
        self._by_id[outcome.transaction_id] = outcome
        for pointer in outcome.checkpoints:
            self._owners[pointer] = outcome.transaction_id
        if outcome.request_id is not None:
            self._by_request[outcome.request_id] = outcome.transaction_id
        self.size_bytes += outcome.size_bytes
        self._in_order.append(outcome)

    def find(self, pointer: int) -> Outcome | None:
        """By transaction id or checkpoint pointer; None where nothing is remembered."""
        return self._by_id.get(self._owners.get(pointer, pointer))

    def of_request(self, request_id: str) -> Outcome | None:
        """The committed run of that request; None where nothing is remembered."""
        transaction_id = self._by_request.get(request_id)
        return None if transaction_id is None else self._by_id.get(transaction_id)

    def forget(self, *, ended_before_ms: int, is_needed: Callable[[Outcome], bool]) -> None:
        """Drop what ended before that time, and the oldest above the bounds, unless it is needed.

        A pass looks at a bounded number, so that it may take several.
        """
        for _ in range(min(len(self._held), LOOKED_AT_COUNT_MAX)):
            self._release(self._held.popleft(), is_needed)
        for _ in range(LOOKED_AT_COUNT_MAX):
            if not self._in_order or not self._is_due(self._in_order[0], ended_before_ms):
                return
            self._release(self._in_order.popleft(), is_needed)

    def _is_due(self, outcome: Outcome, ended_before_ms: int) -> bool:
        return (
            outcome.ended_at_ms < ended_before_ms
            or self._by_id.get(outcome.transaction_id) is not outcome
            or len(self._by_id) - len(self._held) > OUTCOME_COUNT_MAX
            or self.size_bytes > OUTCOME_BYTES_MAX
        )

    def _release(self, outcome: Outcome, is_needed: Callable[[Outcome], bool]) -> None:
        if self._by_id.get(outcome.transaction_id) is not outcome:
            return  # it ended once more, and stands further behind
        if is_needed(outcome):
            self._held.append(outcome)
        else:
            self._drop(outcome.transaction_id)

    def _drop(self, transaction_id: int) -> None:
        outcome = self._by_id.pop(transaction_id, None)
        if outcome is None:
            return
        self.size_bytes -= outcome.size_bytes
        for pointer in outcome.checkpoints:
            self._owners.pop(pointer, None)
        if outcome.request_id is not None:
            self._by_request.pop(outcome.request_id, None)
