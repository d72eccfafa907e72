"""Periodic work of the service: forget old outcomes, prune the invalid list, write snapshots."""

import logging
from collections.abc import Callable

from tuff.protocol.errors import TransactionsUnavailableError
from tx.durable_state import DurableState
from tx.in_flight_writes import Spawn
from tx.invalid_list import InvalidList
from tx.message_rows import MessageRows
from tx.monitoring import TransactionCounters
from tx.settings import (
    FULL_LOG_INTERVAL_MS,
    LOGGED_COUNT_MAX,
    PRUNE_INTERVAL_MS,
    TransactionSettings,
)

log = logging.getLogger(__name__)


class Maintenance:
    """Lives on one event loop; `tick` is called several times a second."""

    def __init__(
        self,
        durable: DurableState,
        invalid_list: InvalidList,
        rows: MessageRows,
        settings: TransactionSettings,
        counters: TransactionCounters,
        *,
        now_ms: Callable[[], int],
        spawn: Spawn,
    ) -> None:
        self._durable = durable
        self._invalid_list = invalid_list
        self._rows = rows
        self._settings = settings
        self._counters = counters
        self._now_ms = now_ms
        self._spawn = spawn
        self._pruned_at_ms = 0
        self._epoch = 0  # of the durable state, and since when it is up
        self._up_since_ms = 0
        self._snapshot_tried_at_ms = 0

    def tick(self) -> None:
        """Raises: TransactionsUnavailableError: the service is not running."""
        now_ms = self._now_ms()
        self._forget()
        if self._settings.prune_invalid and now_ms - self._pruned_at_ms >= PRUNE_INTERVAL_MS:
            self._pruned_at_ms = now_ms
            self._invalid_list.prune(also_lost=self._is_past_crash(now_ms))
        interval_ms = round(self._settings.snapshot_interval_s * 1000)
        if self._durable.logged_count > LOGGED_COUNT_MAX:
            interval_ms = min(interval_ms, FULL_LOG_INTERVAL_MS)
        is_due = now_ms - self._snapshot_tried_at_ms >= interval_ms
        if is_due and self._durable.is_snapshot_due(interval_ms=interval_ms):
            # Each attempt begins a new log, so one that fails is not repeated at every tick.
            self._snapshot_tried_at_ms = now_ms
            self._spawn(self._snapshot_in_background())

    def _is_past_crash(self, now_ms: int) -> bool:
        """Whether clients could ask for transactions that a crash lost for as long as for any other
        outcome."""
        if self._epoch != self._durable.epoch:
            self._epoch, self._up_since_ms = self._durable.epoch, now_ms
        return now_ms - self._up_since_ms >= self._outcomes_kept_ms

    @property
    def _outcomes_kept_ms(self) -> int:
        return round(self._settings.outcome_retention_s * 1000)

    def _forget(self) -> None:
        state = self._durable.state

        def is_needed(lsn: int, pointers: tuple[int, ...]) -> bool:
            return lsn > state.seen or any(
                pointer in state.invalid or self._rows.is_carried(pointer) for pointer in pointers
            )

        ended_before_ms = self._now_ms() - self._outcomes_kept_ms
        state.outcomes.forget(ended_before_ms=ended_before_ms, is_needed=is_needed)

    async def take_snapshot(self) -> tuple[str, int]:
        """Write the state to a file, durably: its name, and its size in bytes.

        Raises:
            TransactionsUnavailableError: the service is down, or the file can't be written.
        """
        self._durable.require_running()
        try:
            taken = await self._durable.snapshot()
        except OSError as error:
            raise TransactionsUnavailableError(f"the snapshot can't be written: {error}") from error
        self._counters.snapshots += 1
        return taken

    async def _snapshot_in_background(self) -> None:
        try:
            name, size = await self._durable.snapshot()
            self._counters.snapshots += 1
            log.info("wrote %s, %d bytes", name, size)
        except (TransactionsUnavailableError, OSError) as error:
            log.warning("no snapshot was written: %s", error)
