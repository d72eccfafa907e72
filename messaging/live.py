"""What the room knows of its store, in memory: read at the start, changed as batches get durable.

Lives on the event loop. Everything else of the room is handed this one object.
"""

from collections.abc import Callable
from functools import partial

from messaging.batch import Batch
from messaging.facts import Facts, Mark
from messaging.index import PointerIndex
from messaging.keys import FACTS_KEY, MARK_KEY
from messaging.loading import Loaded
from messaging.quiet import Quiet
from messaging.sequence import BEFORE_ALL, Sequencer
from messaging.tail import Tails
from messaging.topics import Topic, TopicRecord, TopicRegistry
from tuff.protocol.ids import Place

SETTLED_PER_BATCH_MAX = 10_000  # index rows; bounds what rides along with somebody's publish


class Live:
    """Topics, pointer index, sequencer, mark, facts, and the tails of the topics."""

    def __init__(
        self,
        *,
        now_ms: Callable[[], int],
        may_delete: Callable[[], bool],
        tail_bytes_max: int,
    ) -> None:
        self.topics = TopicRegistry()
        self.index = PointerIndex()
        self.sequencer = Sequencer()
        self.tails = Tails(bytes_max=tail_bytes_max)
        self.quiet = Quiet()
        self.served = BEFORE_ALL  # readers are shown nothing behind this place
        self.mark = Mark()
        self._attempted = Mark()  # what the newest batch writes, whatever becomes of it
        self.facts = Facts()
        self._durable_facts: Facts | None = None  # until the first batch wrote them
        self.now_ms = now_ms
        self._may_delete = may_delete
        self._batch_number = 0
        self.seen_lsn: int | None = None  # of the transactions, durably

    def fill(self, loaded: Loaded) -> None:
        """Take in what an opened store holds."""
        for topic_id, record in loaded.topics.items():
            self.topics.load(topic_id, record)
        self.index.load(loaded.index, now_ms=self.now_ms())
        self.mark = self._attempted = loaded.mark
        self.facts, self._durable_facts = loaded.facts or Facts(), loaded.facts
        self._batch_number = loaded.mark.batch_number
        self.seen_lsn = loaded.mark.seen_lsn
        self.sequencer.raise_above(loaded.mark.last)
        self.quiet.begin(loaded.mark.last)
        for each in self.topics:
            if each.durable is not None:
                # A floor that a sweep raised lies ahead of a clock that was set back since. A
                # message that got an id below it was acknowledged, and shown to nobody.
                self.sequencer.raise_above(each.durable.floor.place)
        # Likewise of what observers were handed: they would remove the message at once.
        self.sequencer.raise_above(Place(self.facts.handed_ms, 0))
        self.served = self.sequencer.last
        self.tails.begin(self.served)

    @property
    def possible_marks(self) -> tuple[Mark, Mark]:
        """What a store that failed can say of itself: the mark of the last durable batch, or that
        of the newest one."""
        return self.mark, self._attempted

    def reopened(self, mark: Mark) -> None:
        """The store failed and was opened again: go on above all that is there, and keep in memory
        no rows but those that become durable from now on."""
        self.sequencer.raise_above(mark.last)
        self.quiet.begin(mark.last)
        self.tails.begin(self.served)

    def expiry_ms(self) -> int:
        """The time by which messages expire. Region observers may have removed what had expired by
        the time they were handed, so a clock that was set back since must not show what is left."""
        return max(self.now_ms(), self.facts.handed_ms)

    @property
    def durable_facts(self) -> Facts | None:
        """The facts on the disk, or None while the store is empty."""
        return self._durable_facts

    @property
    def has_unwritten(self) -> bool:
        """Whether something waits to ride along with a batch."""
        return self.facts != self._durable_facts or self.index.settling_count > 0

    def new_batch(self) -> Batch:
        """An empty batch of a number that was never used before."""
        self._batch_number += 1
        return Batch(number=self._batch_number, now_ms=self.now_ms(), sequencer=self.sequencer)

    def finish(self, batch: Batch) -> None:
        """Put into a batch what rides along with every one: the mark, changed facts, and the end of
        settled index rows."""
        settling = self.index.settling(count_max=SETTLED_PER_BATCH_MAX)
        for _, keys in settling:
            for key in keys:
                batch.delete(key)
        if self.facts != self._durable_facts:
            batch.put(FACTS_KEY, self.facts.to_bytes(FACTS_KEY))
        mark = Mark(
            batch_number=batch.number,
            last=batch.last,
            clock_ms=self._clock_mark(),
            seen_lsn=self.seen_lsn,
        )
        self._attempted = mark
        batch.put(MARK_KEY, mark.to_bytes(MARK_KEY))
        settled = [pointer for pointer, _ in settling]
        batch.on_durable(partial(self._finished, batch, mark, self.facts, settled))

    def change_topic(self, batch: Batch, topic: Topic, record: TopicRecord, *, key: bytes) -> None:
        """Write a topic's row; decisions go by it at once, readers once it is durable."""
        batch.put(key, record.to_bytes(key))
        self.change_record(batch, topic, record)

    def change_record(self, batch: Batch, topic: Topic, record: TopicRecord) -> None:
        """The same for what stands in other rows, which the caller writes."""
        before = topic.decided
        topic.decided = record
        batch.on_durable(partial(_told, topic, record))
        batch.on_lost(partial(_took_back, topic, before))

    def _finished(self, batch: Batch, mark: Mark, facts: Facts, settled: list[int]) -> None:
        self.mark = mark
        self._durable_facts = facts
        self.index.settled(settled)
        self.served = max(self.served, mark.last)
        self.quiet.passed(mark.last, since_ms=batch.now_ms)
        self.tails.take(batch.puts, batch.runs, served=self.served)

    def _clock_mark(self) -> int | None:
        # A clock that jumped far ahead must not be recorded before it is confirmed: the next start
        # would find nothing wrong with it, and the sweep would then expire everything.
        before = self.mark.clock_ms
        if not self._may_delete():
            return before
        return max(before or 0, self.now_ms()) or None


def _told(topic: Topic, record: TopicRecord) -> None:
    topic.durable = record


def _took_back(topic: Topic, record: TopicRecord | None) -> None:
    topic.decided = record
    # What only this change kept may be what a sleeping reader is held behind: it expires now.
    topic.wake()
