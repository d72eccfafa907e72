"""What the transaction room counts, for whoever shows it."""

from dataclasses import dataclass


@dataclass(slots=True)
class TransactionCounters:
    """How often things happened since the process started."""

    starts: int = 0
    commits: int = 0
    aborts: int = 0
    conflicts: int = 0
    invalidations: int = 0
    timeouts: int = 0
    lapses: int = 0
    fences: int = 0
    snapshots: int = 0
