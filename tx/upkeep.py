"""What the service does by itself, from time to time: forgetting, pruning, snapshots."""

import logging

from tuff.protocol.errors import TransactionsUnavailableError
from tx.inquiries import InvalidList
from tx.ledger import Ledger
from tx.settings import FULL_LOG_INTERVAL_MS, LOGGED_COUNT_MAX, PRUNE_INTERVAL_MS
from tx.surroundings import Surroundings

log = logging.getLogger(__name__)


class Upkeep:
    """Lives on one event loop; `tick` is called several times a second."""

    def __init__(
        self,
        ledger: Ledger,
        invalid_list: InvalidList,
        around: Surroundings,
    ) -> None:
        self._ledger = ledger
        self._invalid_list = invalid_list
        self._rows = around.rows
        self._settings = around.settings
        self._now_ms = around.now_ms
        self._spawn = around.spawn
        self._counters = around.counters
        self._pruned_at_ms = 0
        self._epoch = 0  # of the ledger, and since when it is up
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
        if self._ledger.logged_count > LOGGED_COUNT_MAX:
            interval_ms = min(interval_ms, FULL_LOG_INTERVAL_MS)
        is_due = now_ms - self._snapshot_tried_at_ms >= interval_ms
        if is_due and self._ledger.is_snapshot_due(interval_ms=interval_ms):
            # Each attempt begins a new log, so one that fails is not repeated at every tick.
            self._snapshot_tried_at_ms = now_ms
            self._spawn(self._snapshot_in_background())

    def _is_past_crash(self, now_ms: int) -> bool:
        """Whether what a crash lost has been told for as long as any other outcome."""
        if self._epoch != self._ledger.epoch:
            self._epoch, self._up_since_ms = self._ledger.epoch, now_ms
        return now_ms - self._up_since_ms >= self._outcomes_kept_ms

    @property
    def _outcomes_kept_ms(self) -> int:
        return round(self._settings.outcome_retention_s * 1000)

    def _forget(self) -> None:
        state = self._ledger.state

        def is_needed(lsn: int, pointers: tuple[int, ...]) -> bool:
            return lsn > state.seen or any(
                pointer in state.invalid or self._rows.is_carried(pointer) for pointer in pointers
            )

        ended_before_ms = self._now_ms() - self._outcomes_kept_ms
        state.outcomes.forget(ended_before_ms=ended_before_ms, is_needed=is_needed)

    async def _snapshot_in_background(self) -> None:
        try:
            name, size = await self._ledger.snapshot()
            self._counters.snapshots += 1
            log.info("wrote %s, %d bytes", name, size)
        except (TransactionsUnavailableError, OSError) as error:
            log.warning("no snapshot was written: %s", error)
