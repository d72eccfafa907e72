"""What the parts of the transaction service share of the world around them."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from tx.counters import TransactionCounters
from tx.rows import MessageRows
from tx.settings import TransactionSettings

Spawn = Callable[[Coroutine[Any, Any, None]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Settings, the rows of messages, the time in ms, and how background work is started."""

    settings: TransactionSettings
    rows: MessageRows
    now_ms: Callable[[], int]
    spawn: Spawn
    counters: TransactionCounters
