"""Time-outs: the deadline of each transaction, and leases, which are deadlines that move (protocol
§5.3, Leases).

How long a lease is stands in the log. When it was renewed last does not: a heartbeat would cost a
sync each, and all that it could save is one lease after a restart. So a transaction that survived a
restart has a whole lease from the moment at which the service serves again.
"""

from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush

from tuff.protocol.errors import BadRequestError
from tx.transactions import OpenTransaction

SPAN_MS = 256  # deadlines of one span are kept together; a tick comes about that often


class Deadlines:
    """The deadline of each transaction. No clock, no event loop.

    A heap of single deadlines would keep those of transactions that ended in time; spans drop
    them at once.
    """

    def __init__(self) -> None:
        # By the number of the span; None where all have ended, until the span has passed.
        self._spans: dict[int, dict[int, int] | None] = {}
        self._order: list[int] = []  # a heap of these numbers

    def set(self, transaction_id: int, at_ms: int) -> None:
        """Note its deadline; it has no other one here."""
        number = at_ms // SPAN_MS
        span = self._spans.get(number)
        if span is None:
            if number not in self._spans:
                heappush(self._order, number)
            span = self._spans[number] = {}
        span[transaction_id] = at_ms

    def discard(self, transaction_id: int, at_ms: int) -> None:
        """Drop its deadline, if it has this one."""
        number = at_ms // SPAN_MS
        span = self._spans.get(number)
        if span is not None:
            span.pop(transaction_id, None)
            if not span:
                self._spans[number] = None

    def passed(self, now_ms: int) -> list[int]:
        """Every transaction whose deadline is not above this time, roughly in order; they stay
        until they are discarded."""
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


class Leases:
    """When the lease of each transaction that has one is over. Lives on one event loop."""

    def __init__(self, *, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._ends_ms: dict[int, int] = {}
        self._deadlines = Deadlines()

    def __len__(self) -> int:
        return len(self._ends_ms)

    def begin(self, opened: OpenTransaction) -> None:
        """Begin its lease, if it has one: it has just started, or the service serves it again."""
        if opened.lease_ms is not None:
            self.forget(opened.transaction_id)
            ends_ms = self._ends_ms[opened.transaction_id] = self._now_ms() + opened.lease_ms
            self._deadlines.set(opened.transaction_id, ends_ms)

    def begin_all(self, in_progress: Iterable[OpenTransaction]) -> None:
        """Begin every lease anew: the service serves again."""
        self._ends_ms.clear()
        self._deadlines = Deadlines()
        for opened in in_progress:
            self.begin(opened)

    def forget(self, transaction_id: int) -> None:
        """Drop its lease, if it has one: it has ended."""
        ends_ms = self._ends_ms.pop(transaction_id, None)
        if ends_ms is not None:
            self._deadlines.discard(transaction_id, ends_ms)

    def renew(self, opened: OpenTransaction) -> None:
        """Begin its lease anew. Raises: BadRequestError: it has none."""
        if opened.lease_ms is None:
            raise BadRequestError(
                f"transaction {opened.transaction_id} has no lease; name one when it starts"
            )
        self.begin(opened)

    def ends_at_ms(self, opened: OpenTransaction) -> int | None:
        """When the lease ends unless it is renewed; None without a lease."""
        return self._ends_ms.get(opened.transaction_id)

    def is_over(self, opened: OpenTransaction) -> bool:
        """Whether it has a lease that was not renewed in time."""
        return (
            opened.lease_ms is not None and self._now_ms() >= self._ends_ms[opened.transaction_id]
        )

    def lapsed(self, in_progress: Mapping[int, OpenTransaction]) -> list[OpenTransaction]:
        """Those in progress whose lease is over."""
        lapsed = []
        for transaction_id in self._deadlines.passed(self._now_ms()):
            if (opened := in_progress.get(transaction_id)) is not None:
                lapsed.append(opened)
            else:
                # It ended just before its renewal was noted.
                self.forget(transaction_id)
        return lapsed
