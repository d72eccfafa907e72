"""The counters of transactions for the metrics (protocol §5.2)."""

from dataclasses import dataclass

from tx.log_records import InvalidReason


@dataclass(slots=True)
class TransactionCounters:
    """Counts since the process started. A repeated call counts once for its transaction."""

    starts: int = 0
    commits: int = 0
    aborts: int = 0
    conflicts: int = 0
    invalidations: int = 0
    timeouts: int = 0
    lapses: int = 0
    fences: int = 0
    snapshots: int = 0

    def note_abort(self, *, is_short: bool) -> None:
        """Count a transaction that was asked to abort; a long one becomes invalid by that."""
        if is_short:
            self.aborts += 1
        else:
            self.invalidations += 1

    def note_invalidation(self, reason: InvalidReason) -> None:
        """Count a transaction that became invalid."""
        self.invalidations += 1
        if reason is InvalidReason.TIMED_OUT:
            self.timeouts += 1
        elif reason is InvalidReason.LEASE_EXPIRED:
            self.lapses += 1
