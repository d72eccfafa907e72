"""Time-outs, leases and `messaging.max_block`: the limits after which the server ends a transaction
(protocol §5.3, Leases; §6, Bounded blocking).

The log has the length of a lease, but not its renewals: each would cost a sync, and save at most
one lease after a restart. So when the service comes up, every lease begins anew.
"""

from collections.abc import Callable, Iterable, Iterator

from tuff.protocol.errors import BadRequestError, InvalidTimeoutError
from tuff.protocol.transaction import TransactionType
from tx.log_records import InvalidReason
from tx.messaging_interface import MessageRows
from tx.outcomes import OpenTransaction
from tx.settings import TransactionSettings
from tx.state import Deadlines, TransactionState


class Timeouts:
    """The deadlines of leases, and the transactions that are past any limit. Lives on one event
    loop."""

    def __init__(self, rows: MessageRows, *, max_block_s: float, now_ms: Callable[[], int]) -> None:
        self._rows = rows
        self._max_block_ms = round(max_block_s * 1000)
        self._now_ms = now_ms
        self._ends_ms: dict[int, int] = {}
        self._lease_deadlines = Deadlines()

    def overdue(self, state: TransactionState) -> list[tuple[OpenTransaction, InvalidReason]]:
        """Every open transaction that is past a limit, with the reason. Looks at no others."""
        now_ms = self._now_ms()
        reasons = {each.transaction_id: InvalidReason.TIMED_OUT for each in state.expired(now_ms)}
        for transaction_id in self._lease_deadlines.passed(now_ms):
            if transaction_id in state.open:
                reasons.setdefault(transaction_id, InvalidReason.LEASE_EXPIRED)
            else:
                # It ended just before its renewal was noted.
                self.forget(transaction_id)
        for opened in self._blocking(state):
            if opened.prepared is None:
                reasons.setdefault(opened.transaction_id, InvalidReason.BLOCKED_READERS)
        return [(state.open[transaction_id], reason) for transaction_id, reason in reasons.items()]

    def blocking_prepared(self, state: TransactionState) -> list[OpenTransaction]:
        """The prepared transactions that have blocked readers for `max_block`."""
        return [each for each in self._blocking(state) if each.prepared is not None]

    def blocking_now(self) -> frozenset[int]:
        """The pointers whose messages block readers."""
        return frozenset(self._rows.published_by(self._now_ms()))

    def _blocking(self, state: TransactionState) -> Iterator[OpenTransaction]:
        for pointer in self._rows.published_by(self._now_ms() - self._max_block_ms):
            if (opened := state.opened(pointer)) is not None:
                yield opened

    def begin_lease(self, opened: OpenTransaction) -> None:
        """Begin its lease, if it has one: it has just started, or the service serves it again. No
        lease ends a prepared one."""
        if opened.lease_ms is not None and opened.prepared is None:
            self.forget(opened.transaction_id)
            ends_ms = self._ends_ms[opened.transaction_id] = self._now_ms() + opened.lease_ms
            self._lease_deadlines.set(opened.transaction_id, ends_ms)

    def begin_all(self, in_progress: Iterable[OpenTransaction]) -> None:
        """Begin every lease anew: the service serves again."""
        self._ends_ms.clear()
        self._lease_deadlines = Deadlines()
        for opened in in_progress:
            self.begin_lease(opened)

    def renew(self, opened: OpenTransaction) -> None:
        """Begin its lease anew. Raises: BadRequestError: it has none."""
        if opened.lease_ms is None:
            raise BadRequestError(
                f"transaction {opened.transaction_id} has no lease; name one when it starts"
            )
        self.begin_lease(opened)

    def forget(self, transaction_id: int) -> None:
        """Drop its lease, if it has one: it has ended, or is prepared."""
        ends_ms = self._ends_ms.pop(transaction_id, None)
        if ends_ms is not None:
            self._lease_deadlines.discard(transaction_id, ends_ms)

    def lease_ends_at_ms(self, opened: OpenTransaction) -> int | None:
        """When the lease ends unless it is renewed; None without a lease."""
        return self._ends_ms.get(opened.transaction_id)

    @property
    def leased_count(self) -> int:
        """How many transactions have a lease."""
        return len(self._ends_ms)


def durations_ms(
    settings: TransactionSettings,
    kind: TransactionType,
    timeout_s: float | None,
    lease_s: float | None,
) -> tuple[int, int | None]:
    """How long a transaction may live, and how long without being renewed, in ms. A short one with
    a lease and without a time-out may live as long as any short one.

    Raises: InvalidTimeoutError: as `timeout_ms` and `lease_ms`.
    """
    if kind is TransactionType.SHORT and lease_s is not None and timeout_s is None:
        timeout_s = settings.max_timeout_s
    return timeout_ms(settings, kind, timeout_s), lease_ms(settings, lease_s)


def timeout_ms(
    settings: TransactionSettings, kind: TransactionType, timeout_s: float | None
) -> int:
    """How long a transaction may live, in ms, at least 1.

    Raises:
        InvalidTimeoutError: the time is not above 0, above the maximum, or given for a long one.
    """
    if kind is TransactionType.LONG:
        if timeout_s is not None:
            raise InvalidTimeoutError(
                f"a long transaction lives {settings.long_timeout_s:g} seconds; leave timeout out"
            )
        return _in_ms(settings.long_timeout_s)
    if timeout_s is None:
        return _in_ms(settings.default_timeout_s)
    return _checked_ms("timeout", timeout_s, settings.max_timeout_s)


def lease_ms(settings: TransactionSettings, lease_s: float | None) -> int | None:
    """How long a transaction lives without being renewed, in ms, at least 1; None without a lease.

    Raises:
        InvalidTimeoutError: the lease is not above 0, or above the maximum.
    """
    return None if lease_s is None else _checked_ms("lease", lease_s, settings.lease_max_s)


def _checked_ms(what: str, seconds: float, maximum_s: float) -> int:
    if not 0 < seconds <= maximum_s:
        raise InvalidTimeoutError(
            f"a {what} is above 0 and at most {maximum_s:.15g} seconds, not {seconds:.15g}"
        )
    return _in_ms(seconds)


def _in_ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
