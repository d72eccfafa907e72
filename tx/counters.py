"""What the transaction room counts, for whoever shows it."""

from dataclasses import dataclass


@dataclass(slots=True)
class TransactionCounters:
    """How often things happened since the process started. Each of a transaction is counted once,
    however often it is asked for."""

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
