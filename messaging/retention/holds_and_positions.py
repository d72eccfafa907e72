"""Retention holds and named positions of a topic (protocol §3.8, §3.9).

A hold keeps messages from the topic's time to live until it expires. A position is a consumer's
stored offset; it keeps nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from messaging.read.offsets import first_live, newest_id
from messaging.read.poll import Poll, query_of
from messaging.read.query import LAST_NUMBER, Query, start_number
from messaging.settings import MessagingSettings
from messaging.storage.rows import HOLDS, POSITIONS, Hold, Position, named_row_key
from messaging.storage.store_state import OpenStore, StoreState, require_topic
from messaging.topics import Topic, TopicRecord, alive
from messaging.write.group_commit import GroupCommitter, Write, WriteBatch
from tuff.protocol.errors import (
    HoldNotFoundError,
    PositionNotFoundError,
    TooManyHoldsError,
    TooManyPositionsError,
)
from tuff.protocol.ids import MessageId, TopicId

HOLDS_COUNT_MAX = 100  # of a topic; each is looked at by every read of it
POSITIONS_COUNT_MAX = 1_000  # of a topic; a page of them is one reply


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionLag:
    """How far a named position lies behind the end of its topic: ms between their publish times, 0
    at the end or where nothing is live. A position before all that is live counts from there."""

    topic: TopicId
    name: str
    behind_ms: int
    updated_at_ms: int


def behind_ms(position: MessageId, *, end: MessageId | None, live_from_ms: int) -> int:
    """As `PositionLag` has it."""
    if end is None or end <= position:
        return 0
    return end.publish_timestamp_ms - max(position.publish_timestamp_ms, live_from_ms)


def held(
    record: TopicRecord,
    name: str,
    first: MessageId,
    *,
    max_age_ms: int,
    kept_ms_max: int,
    now_ms: int,
) -> TopicRecord:
    """The record with a hold set, or set anew; those that are over are gone. What has expired does
    not come back: the hold begins with what is live, at the earliest. Nor does it keep any message
    for longer than `kept_ms_max` since that was published, however often it is set anew.

    Raises:
        TooManyHoldsError: the topic has so many others.
    """
    others = alive(record, now_ms=now_ms)
    if name not in others and len(others) >= HOLDS_COUNT_MAX:
        raise TooManyHoldsError(
            f"the topic has {HOLDS_COUNT_MAX} holds, which is the most; delete one of them"
        )
    expires_at_ms = now_ms + max_age_ms
    live_from = MessageId(*record.rule.live_from(now_ms=now_ms))
    keepable = MessageId(max(0, expires_at_ms - kept_ms_max), 0)
    hold = Hold(
        first=max(first, record.log_start, live_from, keepable),
        set_at_ms=now_ms,
        expires_at_ms=expires_at_ms,
    )
    return replace(record, holds={**others, name: hold})


def positioned(record: TopicRecord, name: str, position: MessageId, *, now_ms: int) -> TopicRecord:
    """The record with a position set, forward or back.

    Raises:
        TooManyPositionsError: the topic has so many others.
    """
    if name not in record.positions and len(record.positions) >= POSITIONS_COUNT_MAX:
        raise TooManyPositionsError(
            f"the topic has {POSITIONS_COUNT_MAX} positions, which is the most; delete one of them"
        )
    found = Position(position=position, updated_at_ms=now_ms)
    return replace(record, positions={**record.positions, name: found})


class HoldsAndPositions:
    """Changes are decided in the order of writing; reads show durable ones. Lives on the event
    loop."""

    def __init__(
        self,
        store: OpenStore,
        state: StoreState,
        committer: GroupCommitter,
        settings: MessagingSettings,
    ) -> None:
        self._settings = settings
        self.hold_max_s = settings.hold_max_s
        self._kept_ms_max = round(settings.held_s_max * 1000)  # of a message, by all holds together
        self._store = store
        self._state = state
        self._committer = committer

    async def hold(
        self, topic: TopicId, name: str, first: MessageId | int, *, max_age_ms: int
    ) -> Hold:
        """Set a hold from an offset or a publish time on, or set it anew.

        Raises: TopicNotFoundError, TooManyHoldsError.
        """
        found = require_topic(self._store, self._state, topic)[0]
        offset = MessageId.from_int(min(start_number(first, inclusive=True), LAST_NUMBER))

        def build(batch: WriteBatch) -> Hold:
            before = found.require_decided()
            record = held(
                before,
                name,
                offset,
                max_age_ms=max_age_ms,
                kept_ms_max=self._kept_ms_max,
                now_ms=self._state.expiry_ms(),
            )
            key = partial(named_row_key, HOLDS, found.prefix(record.generation))
            for over in before.holds.keys() - record.holds.keys():
                batch.delete(key(over))
            batch.put(key(name), record.holds[name].to_bytes(key(name)))
            self._change_holds(batch, found, record)
            return record.holds[name]

        return await self._committer.submit(Write(build))

    def holds(self, topic: TopicId) -> Mapping[str, Hold]:
        """The holds that are not over, by name. Raises: TopicNotFoundError."""
        found = alive(
            require_topic(self._store, self._state, topic)[1], now_ms=self._state.expiry_ms()
        )
        return dict(sorted(found.items()))

    async def release(self, topic: TopicId, name: str) -> None:
        """End a hold: the topic's time to live counts again at once.

        Raises: TopicNotFoundError, HoldNotFoundError.
        """
        found = require_topic(self._store, self._state, topic)[0]

        def build(batch: WriteBatch) -> None:
            record = found.require_decided()
            if name not in alive(record, now_ms=self._state.expiry_ms()):
                raise HoldNotFoundError(f"the topic {topic} has no hold {name}")
            rest = {each: hold for each, hold in record.holds.items() if each != name}
            batch.delete(named_row_key(HOLDS, found.prefix(record.generation), name))
            self._change_holds(batch, found, replace(record, holds=rest))

        await self._committer.submit(Write(build))

    async def set_position(
        self, topic: TopicId, name: str, position: MessageId
    ) -> tuple[int, Position]:
        """Record how far a consumer has read; returns the topic's generation, and what is recorded.

        Raises: TopicNotFoundError, TooManyPositionsError.
        """
        found = require_topic(self._store, self._state, topic)[0]

        def build(batch: WriteBatch) -> tuple[int, Position]:
            before = found.require_decided()
            record = positioned(before, name, position, now_ms=self._state.expiry_ms())
            key = named_row_key(POSITIONS, found.prefix(record.generation), name)
            batch.put(key, record.positions[name].to_bytes(key))
            batch.change_record(found, record)
            return record.generation, record.positions[name]

        return await self._committer.submit(Write(build))

    def positions(self, topic: TopicId) -> tuple[int, Mapping[str, Position]]:
        """The topic's generation, and its positions by name. Raises: TopicNotFoundError."""
        record = require_topic(self._store, self._state, topic)[1]
        return record.generation, dict(sorted(record.positions.items()))

    def position(self, topic: TopicId, name: str) -> tuple[int, Position]:
        """The topic's generation and one position. Raises: TopicNotFoundError,
        PositionNotFoundError."""
        generation, positions = self.positions(topic)
        if name not in positions:
            raise _no_position(topic, name)
        return generation, positions[name]

    async def delete_position(self, topic: TopicId, name: str) -> None:
        """Forget a position. Raises: TopicNotFoundError, PositionNotFoundError."""
        found = require_topic(self._store, self._state, topic)[0]

        def build(batch: WriteBatch) -> None:
            record = found.require_decided()
            if name not in record.positions:
                raise _no_position(topic, name)
            rest = {each: one for each, one in record.positions.items() if each != name}
            batch.delete(named_row_key(POSITIONS, found.prefix(record.generation), name))
            batch.change_record(found, replace(record, positions=rest))

        await self._committer.submit(Write(build))

    def position_count(self) -> int:
        """How many named positions all topics have."""
        records = (topic.durable for topic in self._state.topics)
        return sum(len(record.positions) for record in records if record is not None)

    async def position_lags(self, *, count_max: int) -> list[PositionLag]:
        """How far the first so many named positions are behind, by topic and name. Each topic costs
        one step in the store, whatever it holds.

        Raises: StorageUnavailableError.
        """
        shown = self._positions()[:count_max]
        topics = {topic.id: self._query(topic, record) for topic, record, _ in shown}
        ends = await self._store.read(
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
            for topic in self._state.topics
            if (record := topic.durable) is not None and record.positions
        ]
        found.sort(key=lambda each: each[0].id)
        return [
            (topic, record, name) for topic, record in found for name in sorted(record.positions)
        ]

    def _query(self, topic: Topic, record: TopicRecord) -> Query:
        return query_of(self._state, self._settings, topic, record, Poll(), 0)

    def _change_holds(self, batch: WriteBatch, topic: Topic, record: TopicRecord) -> None:
        batch.change_record(topic, record)
        # What is let go may be what a sleeping reader is held behind: it expires now.
        batch.touch(topic)


def _no_position(topic: TopicId, name: str) -> PositionNotFoundError:
    return PositionNotFoundError(f"the topic {topic} has no position {name}")
