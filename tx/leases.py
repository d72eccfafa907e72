"""Leases: a long transaction that nobody renews in time ends (protocol §5.3, Leases).

How long a lease is stands in the log. When it was renewed last does not: a heartbeat would cost a
sync each, and all that it could save is one lease after a restart. So whoever survived one has a
whole lease from the moment at which the service serves again.
"""

from collections.abc import Callable

from tuff.protocol.errors import BadRequestError
from tx.deadlines import Deadlines
from tx.records import OpenTransaction
from tx.state import TransactionState


class Leases:
    """When the lease of each transaction that has one is over. Lives on one event loop."""

    def __init__(self, *, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._ends_ms: dict[int, int] = {}
        self._deadlines = Deadlines()

    def __len__(self) -> int:
        return len(self._ends_ms)

    def begin(self, opened: OpenTransaction) -> None:
        """It has just started, or the service serves it again: one whole lease, if it has one."""
        if opened.lease_ms is not None:
            self.forget(opened.transaction_id)
            ends_ms = self._ends_ms[opened.transaction_id] = self._now_ms() + opened.lease_ms
            self._deadlines.set(opened.transaction_id, ends_ms)

    def begin_all(self, state: TransactionState) -> None:
        """The service serves again."""
        self._ends_ms.clear()
        self._deadlines = Deadlines()
        for opened in state.open.values():
            self.begin(opened)

    def forget(self, transaction_id: int) -> None:
        """It has ended; one without a lease is fine."""
        ends_ms = self._ends_ms.pop(transaction_id, None)
        if ends_ms is not None:
            self._deadlines.discard(transaction_id, ends_ms)

    def renew(self, opened: OpenTransaction) -> None:
        """One whole lease from now on. Raises: BadRequestError: it has none."""
        if opened.lease_ms is None:
            raise BadRequestError(
                f"transaction {opened.transaction_id} has no lease; name one when it starts"
            )
        self.begin(opened)

    def ends_at_ms(self, opened: OpenTransaction) -> int | None:
        """When the lease is over unless somebody renews it; None without a lease."""
        return self._ends_ms.get(opened.transaction_id)

    def is_over(self, opened: OpenTransaction) -> bool:
        """Whether it has a lease, and nobody renewed it in time."""
        return (
            opened.lease_ms is not None and self._now_ms() >= self._ends_ms[opened.transaction_id]
        )

    def lapsed(self, state: TransactionState) -> list[OpenTransaction]:
        """Those in progress whose lease is over."""
        lapsed = []
        for transaction_id in self._deadlines.passed(self._now_ms()):
            if (opened := state.open.get(transaction_id)) is not None:
                lapsed.append(opened)
            else:
                # It ended just before its renewal was noted.
                self.forget(transaction_id)
        return lapsed
