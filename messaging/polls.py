"""Polls, long polls and offsets (protocol §3.4 to §3.6).

A read takes the snapshot first and the view of the rows second; one that waits takes both anew each
time it wakes, and is registered for wake-ups before it looks, so that none is lost in between.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

from messaging.bookmarks import PositionLag, behind_ms
from messaging.engine import Engine
from messaging.index import IndexedRange
from messaging.insiders import Insiders
from messaging.keys import place_after
from messaging.live import Live
from messaging.page import arrow_form
from messaging.query import LAST_NUMBER, Query, Undecided, start_number, time_in
from messaging.reader import read
from messaging.reading import Offsets, PollResult, Reading
from messaging.retention import TopicRule
from messaging.settings import MessagingSettings
from messaging.splits import Split, split
from messaging.survey import beginning, ending, first_live, newest_id
from messaging.topics import Topic, TopicRecord, topic_was_replaced
from messaging.transactions import TransactionView
from messaging.visibility import HeldRow, Verdict, verdict
from tuff.protocol.errors import BadRequestError
from tuff.protocol.ids import LAST_ID, MessageId, Place, past_group
from tuff.protocol.names import TopicId
from tuff.protocol.transaction import Transaction

__all__ = ["Isolation", "Offsets", "Poll", "PollResult", "Polls", "Undecided"]


class Isolation(Enum):
    """What a read without a transaction sees: every row, or what a fresh snapshot sees."""

    ALL = "all"
    COMMITTED = "committed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """One read. `start`: a message id, a publish time in ms, or None for the oldest live message;
    `limit` None: as many as a reply holds; `transaction`: the snapshot to read in; `tx`: the
    transaction in progress whose snapshot to read in; `through`: the last id to deliver.

    Raises:
        BadRequestError: values that exclude each other, or out of range.
    """

    start: MessageId | int | None = None
    inclusive: bool = True
    limit: int | None = None
    transaction: Transaction | None = None
    tx: int | None = None
    isolation: Isolation = Isolation.ALL
    undecided: Undecided = Undecided.HOLD
    wait_s: float = 0.0
    through: MessageId | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit <= 0:
            raise BadRequestError(f"limit is greater than 0, not {self.limit}")
        if isinstance(self.start, int) and self.start < 0:
            raise BadRequestError(f"a publish time is 0 or more ms, not {self.start}")
        snapshots = (self.transaction is not None, self.tx is not None)
        if sum((*snapshots, self.isolation is Isolation.COMMITTED)) > 1:
            raise BadRequestError("give at most one of isolation, tx and a transaction")
        if self.undecided is Undecided.SKIP and not any(snapshots):
            raise BadRequestError("undecided=skip needs a fixed snapshot: tx, or a transaction")

    @property
    def is_fixed(self) -> bool:
        """Whether it reads in one snapshot however often it looks."""
        return self.transaction is not None or self.tx is not None


class Polls:
    """Serves reads, and keeps those that wait. Lives on the event loop; threads read the rows."""

    def __init__(
        self,
        engine: Engine,
        live: Live,
        transactions: TransactionView,
        settings: MessagingSettings,
        *,
        observe: Callable[[str, float], None],
    ) -> None:
        self._engine = engine
        self._live = live
        self._transactions = transactions
        self._settings = settings
        self._observe = observe
        self._is_stopping = False
        self.insiders = Insiders()
        self.waiting_count = 0  # polls that sleep until something happens

    async def poll(self, topic: TopicId, poll: Poll) -> PollResult:
        """Read, and wait up to `wait_s` if there is nothing yet."""
        self._engine.require_up()
        found = self._live.topics.find(topic)
        generation = found.require_durable().generation
        waiter = asyncio.Event()
        found.waiters[waiter] = None
        try:
            with self.insiders.joined(poll.tx, waiter):
                return await self._poll(found, generation, poll, waiter)
        finally:
            del found.waiters[waiter]

    def stop_waiting(self) -> None:
        """End every long poll, now and from now on, with what it has: nothing."""
        self._is_stopping = True
        for topic in self._live.topics:
            topic.wake()

    async def offsets(
        self, topic: TopicId, *, isolation: Isolation = Isolation.ALL, tx: int | None = None
    ) -> Offsets:
        """The topic's extent for a reader. With `tx` every live row is looked at."""
        poll = Poll(isolation=isolation, tx=tx)
        self._engine.require_up()
        found = self._live.topics.find(topic)
        record = found.require_durable()
        query = self._query(found, record, poll, 0)
        undecided_from = self._undecided_from(found, record, query, poll)
        earliest = await self._earliest(found, record, query)
        ends = await self._engine.read(partial(ending, query=query, undecided_from=undecided_from))
        return Offsets(
            generation=record.generation,
            earliest=earliest,
            end=ends.end,
            blocked_by=self._holder(ends.held_by),
        )

    async def earliest(self, topic: TopicId) -> MessageId | None:
        """Where the live messages begin for a reader without a snapshot."""
        self._engine.require_up()
        found = self._live.topics.find(topic)
        record = found.require_durable()
        return await self._earliest(found, record, self._query(found, record, Poll(), 0))

    async def _earliest(self, topic: Topic, record: TopicRecord, query: Query) -> MessageId | None:
        """In steps, among which others have their turn on the threads that read."""
        while True:
            begins = await self._engine.read(partial(beginning, query=query))
            if begins.go_on_from is None:
                return begins.id
            _require_generation(topic, record.generation)
            query = replace(query, start=begins.go_on_from)

    @property
    def position_count(self) -> int:
        """How many named positions all topics have."""
        records = (topic.durable for topic in self._live.topics)
        return sum(len(record.positions) for record in records if record is not None)

    async def position_lags(self, *, count_max: int) -> list[PositionLag]:
        """How far the first so many named positions are behind, by topic and name. Each topic costs
        one step in the store, whatever it holds.

        Raises: StorageUnavailableError.
        """
        shown = self._positions()[:count_max]
        topics = {topic.id: self._query(topic, record, Poll(), 0) for topic, record, _ in shown}
        ends = await self._engine.read(
            lambda store: {each: newest_id(store, query) for each, query in topics.items()}
        )
        return [
            PositionLag(
                topic=topic.id,
                name=name,
                behind_ms=behind_ms(
                    record.positions[name].position,
                    live_from_ms=first_live(topics[topic.id]).timestamp_ms,
                    end=ends[topic.id],
                ),
                updated_at_ms=record.positions[name].updated_at_ms,
            )
            for topic, record, name in shown
        ]

    def _positions(self) -> list[tuple[Topic, TopicRecord, str]]:
        """Every named position, by topic and name."""
        found = [
            (topic, record)
            for topic in self._live.topics
            if (record := topic.durable) is not None and record.positions
        ]
        found.sort(key=lambda each: each[0].id)
        return [
            (topic, record, name) for topic, record in found for name in sorted(record.positions)
        ]

    async def splits(
        self, topic: TopicId, *, start: MessageId | None, end: MessageId | None, count: int
    ) -> tuple[int, list[Split]]:
        """The topic's generation, and parts of about equal size of what lies behind `start` up to
        `end`."""
        self._engine.require_up()
        found = self._live.topics.find(topic)
        record = found.require_durable()
        number = start_number(start, inclusive=False)
        query = self._query(found, record, Poll(through=end), number)
        cut = partial(split, query=query, start=start, end=end, count=count)
        return record.generation, await self._engine.read(cut)

    async def load_arrow(self) -> None:
        """Have the Arrow form of replies ready. Raises: NotAcceptableError."""
        if not arrow_form.cache_info().currsize:
            await self._engine.read(lambda _store: arrow_form())

    def newest_place(self, topic: TopicId) -> MessageId:
        """A place behind everything published so far: as an exclusive start, it leads to what is
        published from now on."""
        self._engine.require_up()
        self._live.topics.find(topic).require_durable()
        return past_group(self._live.served)

    async def _poll(
        self, topic: Topic, generation: int, poll: Poll, waiter: asyncio.Event
    ) -> PollResult:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + poll.wait_s
        asked = number = start_number(poll.start, inclusive=poll.inclusive)
        live_from = Place(0, 0)
        is_expired = was_caught_up = goes_on = False
        while True:
            waiter.clear()
            self._engine.require_up()
            record = _require_generation(topic, generation)
            query = _begun_anew(self._query(topic, record, poll, number), asked, live_from)
            number, live_from = query.start, query.live_from
            # One that was caught up is woken by all that comes: it misses nothing while it waits.
            is_expired = is_expired or (not was_caught_up and self._is_expired(poll, query))
            # The store may be ahead of memory by a batch: a read that began there goes on there.
            reading = None if goes_on else self._live.tails.read(query)
            if reading is None:
                reading = await self._engine.read(partial(read, query=query))
                self._live.tails.keep(query, reading)
            number = max(number, int.from_bytes(reading.next_id, "big") + 1)
            was_caught_up = reading.caught_up
            goes_on = not reading.finished and not reading.page
            if goes_on:
                continue
            if reading.page or self._is_vain(poll, query, reading) or loop.time() >= deadline_s:
                return self._result(record, reading, is_expired=is_expired)
            alarm_s = deadline_s
            if reading.held is not None:
                left_s = self._left_s(topic.rule_of(record), reading.held)
                if left_s <= 0:  # it expired while it was read
                    continue
                alarm_s = min(deadline_s, loop.time() + left_s)
            await self._wait(waiter, alarm_s, reading)

    def _is_vain(self, poll: Poll, query: Query, reading: Reading) -> bool:
        """Whether waiting can't help."""
        through = query.through
        if self._is_stopping or reading.next_id >= through.to_bytes():
            return True
        if reading.caught_up and through.place <= query.served:
            return True
        if not poll.is_fixed or reading.held_by is None:
            return False
        # Ended, and in the index still: its rows are about to be marked, and the reader goes on.
        return not (self._holder(reading.held_by) or self._live.index.ranges(reading.held_by))

    def _left_s(self, rule: TopicRule, held: HeldRow) -> float:
        """In how many seconds this row expires, and holds nobody back any more. Nobody else tells
        of that: time passes, and no transaction ends."""
        expires_ms = rule.expires_ms(held.place, own_ttl_s=held.ttl_s)
        return (expires_ms - self._live.now_ms()) / 1000

    async def _wait(self, waiter: asyncio.Event, alarm_s: float, reading: Reading) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        self.waiting_count += 1
        alarm = loop.call_at(alarm_s, waiter.set)
        try:
            await waiter.wait()
        finally:
            alarm.cancel()
            self.waiting_count -= 1
        if reading.held_by is not None:
            self._observe("blocked_reader_seconds", loop.time() - began_s)

    def _query(self, topic: Topic, record: TopicRecord, poll: Poll, number: int) -> Query:
        # The snapshot first and the rows second: a row that became durable in between is newer than
        # the snapshot and held, and not taken for one that this reader may pass by.
        snapshot = self._snapshot(poll)
        limit_max = self._settings.poll_limit_max
        now_ms = self._live.expiry_ms()
        return Query(
            prefix=topic.prefix(record.generation),
            start=number,
            through=poll.through or LAST_ID,
            served=self._live.served,
            floor=record.floor,
            live_from=topic.rule_of(record).live_from(now_ms=now_ms),
            now_ms=now_ms,
            limit=min(poll.limit or limit_max, limit_max),
            bytes_max=self._settings.poll_bytes_max,
            snapshot=snapshot,
            undecided=poll.undecided,
        )

    def _snapshot(self, poll: Poll) -> Transaction | None:
        if poll.transaction is not None:
            return poll.transaction
        if poll.tx is not None:
            return self._transactions.snapshot_of(poll.tx)
        return self._transactions.snapshot() if poll.isolation is Isolation.COMMITTED else None

    def _is_expired(self, poll: Poll, query: Query) -> bool:
        """Whether what this reader is to be handed next may have expired before it came."""
        if time_in(query.start) > query.live_from.timestamp_ms:
            return False  # as nearly always
        start = poll.start
        if not (start.publish_timestamp_ms if isinstance(start, MessageId) else start):
            return False  # the beginning
        number = MessageId.from_int(min(query.start, LAST_NUMBER))
        if number.place >= query.live_from:
            return False
        if not isinstance(start, MessageId) or poll.inclusive:
            return True
        # An id that stands before a row, or is that of a message which is a row by itself, is one
        # that a reply handed out: that reader missed nothing if no row came until later.
        at_row = MessageId(*number.place)
        if number.to_int() - at_row.to_int() > 1:
            return True
        unread = number.place if number == at_row else place_after(number.place)
        return self._live.quiet.may_hold(unread, stop=query.live_from)

    def _result(self, record: TopicRecord, reading: Reading, *, is_expired: bool) -> PollResult:
        return PollResult(
            page=reading.page,
            generation=record.generation,
            next_id=reading.next_id,
            caught_up=reading.caught_up,
            blocked_by=self._holder(reading.held_by),
            expired=is_expired,
        )

    def _holder(self, pointer: int | None) -> int | None:
        return None if pointer is None else self._transactions.holder(pointer)

    def _undecided_from(self, topic: Topic, record: TopicRecord, query: Query, poll: Poll) -> Place:
        """The place before which every row is decided for this reader."""
        nothing = Place(query.served.timestamp_ms + 1, 0)
        if query.snapshot is None:
            return nothing
        # A fresh snapshot decides whatever has left the index; an older one may not.
        if poll.isolation is not Isolation.COMMITTED:
            return Place(0, 0)

        def is_held(entry: IndexedRange) -> bool:
            return verdict(entry.pointer, query.snapshot) is Verdict.HOLD

        undecided = self._live.index.undecided_in(topic.id, record.generation)
        return min((entry.first for entry in undecided if is_held(entry)), default=nothing)


def _require_generation(topic: Topic, generation: int) -> TopicRecord:
    record = topic.require_durable()
    if record.generation != generation:
        raise topic_was_replaced(topic.id)
    return record


def _begun_anew(query: Query, asked: int, live_from: Place) -> Query:
    """From where was asked for at first, if messages may be there again that had expired when the
    reader looked last: by a longer time to live, or a clock set back."""
    return replace(query, start=asked) if query.live_from < live_from else query
