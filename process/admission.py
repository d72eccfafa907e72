"""Admits requests, or refuses them with 429 and 503: the limit on requests under way, the start and
the stop (protocol §1, §8). The limit on connections is process/listener.py's.
"""

import asyncio
import logging
from collections.abc import Callable

from tuff.disk.event_loop import Arrivals
from tuff.protocol.errors import OverloadedError, ShuttingDownError, StartingError

log = logging.getLogger(__name__)

DRAIN_S_MAX = 5.0  # seconds; what is under way at a stop gets this long

_PROBES = ("/health/live", "/health/startup", "/health/ready", "/metrics")
ALWAYS_ADMITTED = frozenset(f"{method} {path}" for method in ("GET", "HEAD") for path in _PROBES)


class Admission:
    """Counts the requests under way, and refuses requests before the start is done, above the
    limit, and during a stop.

    `waiting` counts the polls among them that only wait, which the limit leaves out.
    """

    def __init__(self, *, pending_max: int, waiting: Callable[[], int], arrivals: Arrivals) -> None:
        self._pending_max = pending_max
        self._waiting = waiting
        self._arrivals = arrivals
        self._is_open = False
        self.is_stopping = False
        self._idle = asyncio.Event()
        self.under_way = 0

    def enter(self) -> None:
        """Raises: StartingError, ShuttingDownError, OverloadedError."""
        if not self._is_open:
            self._refuse()
        if self.under_way >= self._pending_max:
            self._require_capacity()
        self.under_way += 1
        self._arrivals.count += 1

    def open(self) -> None:
        """Admit requests, unless it was stopped before."""
        self._is_open = not self.is_stopping

    def _refuse(self) -> None:
        if self.is_stopping:
            raise ShuttingDownError("the server is stopping; try again when it is back")
        raise StartingError("the server is starting, and recovers its stores; try again soon")

    def _require_capacity(self) -> None:
        pending = self.under_way - self._waiting()
        if pending >= self._pending_max:
            raise OverloadedError(
                f"{pending} requests are under way, the limit of "
                f"server.max_pending_requests={self._pending_max}; try again"
            )

    def leave(self) -> None:
        self.under_way -= 1
        if self.is_stopping and not self.under_way:
            self._idle.set()

    def stop(self) -> None:
        """Refuse new work from now on."""
        self.is_stopping, self._is_open = True, False
        if not self.under_way:
            self._idle.set()

    async def drained(self) -> None:
        """Wait, after `stop`, until nothing is under way, for `DRAIN_S_MAX` at most."""
        try:
            await asyncio.wait_for(self._idle.wait(), DRAIN_S_MAX)
        except TimeoutError:
            log.warning("%d requests were still under way at the stop", self.under_way)
