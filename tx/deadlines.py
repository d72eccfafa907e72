"""Deadlines by their time, so that a tick looks at those that have passed and at nobody else."""

from heapq import heappop, heappush

SPAN_MS = 256  # what is due in one span lies together; a tick comes about that often


class Deadlines:
    """When each transaction is due. No clock, no event loop.

    A heap of single deadlines would keep those of all that ended in time; spans lose them at once.
    """

    def __init__(self) -> None:
        # By the number of the span; None where all have gone, until the span has passed.
        self._spans: dict[int, dict[int, int] | None] = {}
        self._order: list[int] = []  # a heap of these numbers

    def set(self, transaction_id: int, at_ms: int) -> None:
        """It is due then; it has no other deadline here."""
        number = at_ms // SPAN_MS
        span = self._spans.get(number)
        if span is None:
            if number not in self._spans:
                heappush(self._order, number)
            span = self._spans[number] = {}
        span[transaction_id] = at_ms

    def discard(self, transaction_id: int, at_ms: int) -> None:
        """It is no longer due then; one that never was is fine."""
        number = at_ms // SPAN_MS
        span = self._spans.get(number)
        if span is not None:
            span.pop(transaction_id, None)
            if not span:
                self._spans[number] = None

    def passed(self, now_ms: int) -> list[int]:
        """Every one whose deadline is not above this time, about in the order of their times; they
        stay until they are discarded."""
        begun: list[tuple[int, dict[int, int]]] = []
        while self._order and self._order[0] * SPAN_MS <= now_ms:
            number = heappop(self._order)
            span = self._spans[number]
            if span is None:
                del self._spans[number]
            else:
                begun.append((number, span))
        for number, _ in begun:
            heappush(self._order, number)
        return [each for _, span in begun for each, at_ms in span.items() if at_ms <= now_ms]
