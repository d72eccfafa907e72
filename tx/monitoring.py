"""Monitoring: the overview of transactions, and the figures of the metrics (protocol §5.2)."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tx.deadlines_and_leases import Timeouts
from tx.durable_state import DurableState, ServiceState
from tx.outcomes import OpenTransaction
from tx.state import TransactionState


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The reply to `GET /v1/transactions`. `oldest_in_progress` is None if none is in progress.

    Every transaction in progress, and every later one, sees all commits up to the
    `visibility_upper_bound`. So a table may drop versions that were overwritten by then.
    """

    read_pointer: int
    write_pointer: int
    open: list[OpenTransaction]
    visibility_upper_bound: int
    invalid_count: int
    committing_count: int
    oldest_in_progress: int | None


@dataclass(frozen=True, slots=True)
class Figures:
    """Gauges of the metrics. `oldest_ms` is the age of the oldest transaction in progress,
    `oldest_prepared_ms` the time since the oldest prepared one was prepared."""

    open_count: int = 0
    leased_count: int = 0
    invalid_count: int = 0
    oldest_ms: int = 0
    prepared_count: int = 0
    oldest_prepared_ms: int = 0


class Monitoring:
    """Lives on one event loop."""

    def __init__(
        self, durable: DurableState, timeouts: Timeouts, *, now_ms: Callable[[], int]
    ) -> None:
        self._durable = durable
        self._timeouts = timeouts
        self._now_ms = now_ms

    async def overview(self) -> Overview:
        """The pointers, and the transactions in progress, with every end that was decided so far
        durable."""
        await self._durable.synced_in_time(self._durable.state.last_pending_lsn)
        return overview(self._durable.state)

    def figures(self) -> Figures:
        """The sizes now; zeros while the service is not running."""
        if self._durable.status.state is not ServiceState.RUNNING:
            return Figures()
        state = self._durable.state
        oldest = next(iter(state.open.values()), None)
        return Figures(
            len(state.open),
            self._timeouts.leased_count,
            len(state.view.invalid),
            0 if oldest is None else max(0, self._now_ms() - oldest.started_at_ms),
            len(state.prepared),
            max((self._prepared_for_ms(each) for each in state.prepared), default=0),
        )

    async def prepared(self, database: str | None) -> list[OpenTransaction]:
        """The prepared transactions, durably, the oldest first; with `database` only those that it
        decides."""
        state = self._durable.state
        found = [
            each
            for each in state.prepared
            if each.prepared is not None and database in (None, each.prepared.database)
        ]
        await self._durable.synced_in_time(state.prepared.last_lsn)
        return found

    def long_prepared(self, *, alarm_s: float) -> list[OpenTransaction]:
        """The transactions that have been prepared for longer than this, the oldest first; none
        while the service is not running."""
        if self._durable.status.state is not ServiceState.RUNNING:
            return []
        prepared = self._durable.state.prepared
        return [each for each in prepared if self._prepared_for_ms(each) > alarm_s * 1000]

    def _prepared_for_ms(self, opened: OpenTransaction) -> int:
        assert opened.prepared is not None
        return max(0, self._now_ms() - opened.prepared.at_ms)


def overview(state: TransactionState) -> Overview:
    """The pointers, and the transactions in progress."""
    # Others may have been prepared while the caller waited; a crash can still undo that.
    opened = [
        each
        if each.prepared is None or each.prepared.lsn <= state.seen
        else replace(each, prepared=None)
        for each in state.open.values()
    ]
    # A transaction in progress may not see what has ended since it started. When only the view was
    # asked, a table dropped the versions that such a reader still reads. The first to start sees
    # the least.
    first = opened[0].transaction if opened else state.view
    return Overview(
        read_pointer=state.view.read_pointer,
        write_pointer=state.last_pointer,
        open=opened,
        visibility_upper_bound=first.visibility_upper_bound,
        invalid_count=len(state.view.invalid),
        committing_count=sum(one.state == "committing" for one in opened),
        oldest_in_progress=opened[0].transaction_id if opened else None,
    )
