"""What the parts of the transaction service share."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from tx.counters import TransactionCounters
from tx.leases import Leases
from tx.rows import MessageRows
from tx.settings import TransactionSettings

Spawn = Callable[[Coroutine[Any, Any, None]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Settings, the rows of messages, the time in ms, how background work is started, the leases,
    and what is counted."""

    settings: TransactionSettings
    rows: MessageRows
    now_ms: Callable[[], int]
    spawn: Spawn
    leases: Leases
    counters: TransactionCounters
