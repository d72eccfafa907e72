"""When to look for work on delayed messages next: one time for each topic, however many messages
wait (decision 0043, section 5)."""

import asyncio
import heapq
from collections.abc import Collection
from typing import NamedTuple

from tuff.protocol.ids import DelayedId, TopicId

AT_ONCE = 0  # ms; a time that has passed


class Due(NamedTuple):
    """Which delayed messages may enter their topics: those that are due by `by_ms`. While the clock
    may be ahead, that is the earliest time which it can be; and of the messages that were accepted
    from `accepted_from_ms` on, by this clock, those may enter that are due by it: they have waited
    as long as they were to. None: no others."""

    by_ms: int
    accepted_from_ms: int | None = None

    def includes(self, each: DelayedId, named_ms: Collection[int]) -> bool:
        """Whether a message may enter that is due by the clock. `named_ms`: due times that clients
        named as such, for which a clock that may be ahead is not enough."""
        if each.due_ms <= self.by_ms:
            return True
        from_ms = self.accepted_from_ms
        is_measured = from_ms is not None and each.offset.timestamp_ms >= from_ms
        return is_measured and each.due_ms not in named_ms


NOTHING_DUE = Due(-1)


class DueTimes:
    """The time of the next look at each topic, in ms since the epoch: the due time of its next
    delayed message, or at once for a call that cancels one. Lives on the event loop. `changed` is
    set when a time becomes the earliest."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._times_ms: dict[TopicId, int] = {}
        self._heap: list[tuple[int, TopicId]] = []  # has older times, too; fewer than topics

    def note(self, topic: TopicId, at_ms: int) -> None:
        """Look at this topic at this time, or earlier."""
        before_ms = self._times_ms.get(topic)
        if before_ms is None or at_ms < before_ms:
            self._times_ms[topic] = at_ms
            heapq.heappush(self._heap, (at_ms, topic))
            if len(self._heap) > 2 * len(self._times_ms):
                self._heap = [(each_ms, each) for each, each_ms in self._times_ms.items()]
                heapq.heapify(self._heap)
            if self._heap[0][0] == at_ms:
                self.changed.set()

    def forget(self, topic: TopicId) -> None:
        """Don't look at this topic when a message is due. A look at once takes place: a call may
        wait for it."""
        if self._times_ms.get(topic, AT_ONCE) != AT_ONCE:
            del self._times_ms[topic]

    def next_ms(self) -> int | None:
        """The earliest time; None without any."""
        while self._heap:
            at_ms, topic = self._heap[0]
            if self._times_ms.get(topic) == at_ms:
                return at_ms
            heapq.heappop(self._heap)
        return None

    def take(self, *, now_ms: int) -> TopicId | None:
        """A topic whose time has come, the earliest first; its time is forgotten."""
        next_ms = self.next_ms()
        if next_ms is None or next_ms > now_ms:
            return None
        _, topic = heapq.heappop(self._heap)
        del self._times_ms[topic]
        return topic
