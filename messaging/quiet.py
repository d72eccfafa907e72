"""Stretches of time in which no row at all got a place: a reader that went on from inside of one
has missed nothing that came before its end.
"""

from bisect import bisect_left
from collections import deque
from operator import itemgetter

from messaging.sequence import BEFORE_ALL
from tuff.protocol.ids import Place

QUIET_MS = 100  # shorter stretches are not noted; a tenth of the shortest time to live
QUIETS_COUNT_MAX = 1_000  # the latest ones, which are more than a minute and a half


class Quiet:
    """The latest quiet stretches, and the last place of a row. Lives on the event loop."""

    def __init__(self) -> None:
        self._last = BEFORE_ALL
        # Pairs of the last place before a stretch, and the first that a row behind it may have.
        self._stretches: deque[tuple[Place, Place]] = deque(maxlen=QUIETS_COUNT_MAX)

    def begin(self, last: Place) -> None:
        """Rows up to this place may be there; of what lay between them nothing more is known."""
        self._last = max(self._last, last)

    def passed(self, last: Place, *, since_ms: int) -> None:
        """Rows up to this place are there now; the new ones were made at this time or later."""
        if last > self._last:
            if since_ms - self._last.timestamp_ms >= QUIET_MS:
                self._stretches.append((self._last, Place(since_ms, 0)))
            self._last = last

    def may_hold(self, start: Place, *, stop: Place) -> bool:
        """Whether rows of any topic may have got places in this range."""
        if start > self._last:
            return False
        at = bisect_left(self._stretches, start, key=itemgetter(1))
        if at < len(self._stretches) and start > self._stretches[at][0]:
            start = self._stretches[at][1]
        return start < stop
