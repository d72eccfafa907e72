"""Places for rows: one order over the whole store, that never goes back (design §5).

Message and payload rows of all topics draw from it, in the order in which they are written. So the
rows of one publish are neighbours, and "everything up to here is durable" is one place.
"""

from messaging.keys import place_after
from tuff.protocol.ids import SEQ_ID_LIMIT, TIMESTAMP_LIMIT, Place

# The first millisecond of all counts as full: no row ever stands at (0, 0), so that an exclusive
# start at the id of all zeros leaves nothing out.
BEFORE_ALL = Place(0, SEQ_ID_LIMIT - 1)


class Sequencer:
    """Gives out places, each above all before it. Owned by the writer's event loop."""

    def __init__(self, last: Place = BEFORE_ALL) -> None:
        self._last = max(last, BEFORE_ALL)

    @property
    def last(self) -> Place:
        """The highest place given out, or found in the store."""
        return self._last

    def next(self, *, now_ms: int) -> Place:
        """The next place: at `now_ms`, or behind the last one when the clock stands still or went
        back, or when this millisecond is full and the next must be borrowed."""
        last = self._last
        if now_ms > last.timestamp_ms:
            self._last = Place(now_ms, 0)
        elif last.seq_id + 1 < SEQ_ID_LIMIT:
            self._last = Place(last.timestamp_ms, last.seq_id + 1)
        else:
            self._last = Place(last.timestamp_ms + 1, 0)
        assert self._last.timestamp_ms < TIMESTAMP_LIMIT
        return self._last

    def next_run(self, count: int, *, now_ms: int) -> tuple[Place, Place]:
        """The next so many places, at least one: the first and the last of them."""
        first = self.next(now_ms=now_ms)
        if count == 1:
            return first, first
        last = place_after(first, count - 1)
        assert last.timestamp_ms < TIMESTAMP_LIMIT
        self._last = last
        return first, last

    def raise_above(self, found: Place) -> None:
        """Give out nothing up to this place, which was found in the store."""
        self._last = max(self._last, found)
