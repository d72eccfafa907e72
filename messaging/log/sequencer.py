"""The sequencer: which offset (publish time and sequence id) a row gets, and when none was assigned
(design §5, One sequencer, one group commit)."""

from bisect import bisect_left
from collections import deque
from operator import itemgetter

from messaging.model.row_format import BEFORE_ALL, offset_after
from tuff.protocol.ids import SEQ_ID_LIMIT, TIMESTAMP_LIMIT, Offset

IDLE_MS_MIN = 100  # shorter intervals are not kept; a tenth of the shortest time to live
IDLE_COUNT_MAX = 1_000  # the latest ones, which are more than a minute and a half


class Sequencer:
    """Assigns the offsets of all message and payload rows, in the order of writing (design §5).

    Offsets never go back. So the rows of one publish are neighbours, and one offset, the high-water
    mark, says up to which all rows are durable.
    """

    def __init__(self, last: Offset = BEFORE_ALL) -> None:
        self.last = max(last, BEFORE_ALL)  # the highest offset that was assigned, or found

    def next_run(self, count: int, *, now_ms: int) -> tuple[Offset, Offset]:
        """The first and the last of the next `count` offsets; at least one. The first is at
        `now_ms`; or after the last one, if the clock stands still or went back, or if the
        millisecond is full and the next one is borrowed."""
        last = self.last
        if now_ms > last.timestamp_ms:
            first = Offset(now_ms, 0)
        elif last.seq_id + 1 < SEQ_ID_LIMIT:
            first = Offset(last.timestamp_ms, last.seq_id + 1)
        else:
            first = Offset(last.timestamp_ms + 1, 0)
        self.last = first if count == 1 else offset_after(first, count - 1)
        assert self.last.timestamp_ms < TIMESTAMP_LIMIT
        return first, self.last

    def raise_above(self, found: Offset) -> None:
        """Assign no offset up to this one, which was found in the store."""
        self.last = max(self.last, found)


class IdleIntervals:
    """The latest idle intervals of the sequencer, in which it assigned no offset. A reader that
    continues from inside one has missed no message before its end."""

    def __init__(self) -> None:
        self._last = BEFORE_ALL
        # Pairs: the last offset before an interval, and the lowest that a row behind it may have.
        self._intervals: deque[tuple[Offset, Offset]] = deque(maxlen=IDLE_COUNT_MAX)

    def assume_rows(self, last: Offset) -> None:
        """There may be rows anywhere up to this offset, except in the known intervals."""
        self._last = max(self._last, last)

    def restart(self, last: Offset) -> None:
        """Other servers may have written rows of a topic anywhere up to this offset."""
        self._intervals.clear()
        self.assume_rows(last)

    def add_batch(self, last: Offset, *, since_ms: int) -> None:
        """A batch wrote rows up to this offset, at `since_ms` or later."""
        if last > self._last:
            if since_ms - self._last.timestamp_ms >= IDLE_MS_MIN:
                self._intervals.append((self._last, Offset(since_ms, 0)))
            self._last = last

    def may_contain_rows(self, start: Offset, *, stop: Offset) -> bool:
        """Whether rows of any topic may have offsets in this range."""
        if start > self._last:
            return False
        at = bisect_left(self._intervals, start, key=itemgetter(1))
        if at < len(self._intervals) and start > self._intervals[at][0]:
            start = self._intervals[at][1]
        return start < stop
