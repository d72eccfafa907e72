"""Retention holds and named positions of a topic, and their HTTP routes (protocol §3.8, §3.9).

A hold keeps messages from the topic's time to live until it expires. A position is a consumer's
stored offset; it keeps nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import ceil

from messaging.read.offsets_and_splits import first_live, newest_id
from messaging.read.poll import Poll, id_or_time_from, query_of
from messaging.read.visibility import LAST_NUMBER, Query, start_number
from messaging.settings import MessagingSettings
from messaging.storage.rows import HOLDS, POSITIONS, Hold, Position, named_row_key
from messaging.storage.store_state import OpenStore, StoreState, require_log
from messaging.topics import TOPIC_PATH, Topic, TopicRecord, live_holds, topic_of
from messaging.write.group_commit import GroupCommitter, Write, WriteBatch
from tuff.protocol.errors import (
    BadRequestError,
    HoldNotFoundError,
    PositionNotFoundError,
    TooManyHoldsError,
    TooManyPositionsError,
)
from tuff.protocol.exchange import EMPTY_REPLY, Reply, Request, Route, json_reply, read_object
from tuff.protocol.ids import MessageId, TopicId, check_name
from tuff.protocol.json_forms import shown

HOLDS_COUNT_MAX = 100  # of a topic; every read checks all of them
POSITIONS_COUNT_MAX = 1_000  # of a topic; a page of them is one reply


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionLag:
    """The lag of a named position behind the end of its topic: ms between their publish times, 0 at
    the end or if the topic has no live message. A position before the oldest live message counts as
    that message."""

    topic: TopicId
    name: str
    behind_ms: int
    updated_at_ms: int


def behind_ms(position: MessageId, *, end: MessageId | None, live_from_ms: int) -> int:
    """The lag that `PositionLag` describes."""
    if end is None or end <= position:
        return 0
    return end.publish_timestamp_ms - max(position.publish_timestamp_ms, live_from_ms)


def with_hold(
    record: TopicRecord,
    name: str,
    first: MessageId,
    *,
    max_age_ms: int,
    kept_ms_max: int,
    now_ms: int,
) -> TopicRecord:
    """The record with a hold set or renewed, without the holds that have expired. The hold begins
    with the oldest live message at the earliest, so that expired messages do not come back. It
    keeps no message for longer than `kept_ms_max` after its publish, even if it is renewed often.

    Raises:
        TooManyHoldsError: the topic has so many others.
    """
    others = live_holds(record, now_ms=now_ms)
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


def with_position(
    record: TopicRecord, name: str, position: MessageId, *, now_ms: int
) -> TopicRecord:
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
    """Sets, lists and deletes holds and positions. Changes are decided in the order of writing;
    reads show durable ones. Lives on the event loop."""

    def __init__(
        self,
        store: OpenStore,
        state: StoreState,
        committer: GroupCommitter,
        settings: MessagingSettings,
    ) -> None:
        self._settings = settings
        self.hold_max_s = settings.hold_max_s
        self._kept_ms_max = round(settings.held_s_max * 1000)  # of a message, with all holds
        self._store = store
        self._state = state
        self._committer = committer

    async def hold(
        self, topic: TopicId, name: str, first: MessageId | int, *, max_age_ms: int
    ) -> Hold:
        """Set or renew a hold that begins at an id or a publish time.

        Raises: TopicNotFoundError, TooManyHoldsError.
        """
        found = require_log(self._store, self._state, topic)[0]
        offset = MessageId.from_int(min(start_number(first, inclusive=True), LAST_NUMBER))

        def build(batch: WriteBatch) -> Hold:
            before = found.require_decided()
            record = with_hold(
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
        """The holds that have not expired, by name. Raises: TopicNotFoundError."""
        found = live_holds(
            require_log(self._store, self._state, topic)[1], now_ms=self._state.expiry_ms()
        )
        return dict(sorted(found.items()))

    async def release(self, topic: TopicId, name: str) -> None:
        """Delete a hold: the topic's time to live applies again at once.

        Raises: TopicNotFoundError, HoldNotFoundError.
        """
        found = require_log(self._store, self._state, topic)[0]

        def build(batch: WriteBatch) -> None:
            record = found.require_decided()
            if name not in live_holds(record, now_ms=self._state.expiry_ms()):
                raise HoldNotFoundError(f"the topic {topic} has no hold {name}")
            rest = {each: hold for each, hold in record.holds.items() if each != name}
            batch.delete(named_row_key(HOLDS, found.prefix(record.generation), name))
            self._change_holds(batch, found, replace(record, holds=rest))

        await self._committer.submit(Write(build))

    async def set_position(
        self, topic: TopicId, name: str, position: MessageId
    ) -> tuple[int, Position]:
        """Record how far a consumer has read; returns the topic's generation and the position.

        Raises: TopicNotFoundError, TooManyPositionsError.
        """
        found = require_log(self._store, self._state, topic)[0]

        def build(batch: WriteBatch) -> tuple[int, Position]:
            before = found.require_decided()
            record = with_position(before, name, position, now_ms=self._state.expiry_ms())
            key = named_row_key(POSITIONS, found.prefix(record.generation), name)
            batch.put(key, record.positions[name].to_bytes(key))
            batch.change_record(found, record)
            return record.generation, record.positions[name]

        return await self._committer.submit(Write(build))

    def positions(self, topic: TopicId) -> tuple[int, Mapping[str, Position]]:
        """The topic's generation, and its positions by name. Raises: TopicNotFoundError."""
        record = require_log(self._store, self._state, topic)[1]
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
        found = require_log(self._store, self._state, topic)[0]

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
        """The lag of the first `count_max` named positions, by topic and name. Each topic costs one
        step in the store, however many messages it has.

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
        return query_of(self._state, self._settings, topic, record, Poll(), 0, None)

    def _change_holds(self, batch: WriteBatch, topic: Topic, record: TopicRecord) -> None:
        batch.change_record(topic, record)
        # A long poll may be blocked by a message that only this hold kept: it expires now.
        batch.touch(topic)


def _no_position(topic: TopicId, name: str) -> PositionNotFoundError:
    return PositionNotFoundError(f"the topic {topic} has no position {name}")


def routes(holds_and_positions: HoldsAndPositions) -> list[Route]:
    """The HTTP routes of holds and positions."""
    handlers = _Routes(holds_and_positions)
    hold, position = f"{TOPIC_PATH}/holds/{{name}}", f"{TOPIC_PATH}/positions/{{name}}"
    return [
        Route("GET", f"{TOPIC_PATH}/holds", handlers.holds),
        Route("PUT", hold, handlers.hold),
        Route("DELETE", hold, handlers.release),
        Route("GET", f"{TOPIC_PATH}/positions", handlers.positions),
        Route("GET", position, handlers.position),
        Route("PUT", position, handlers.set_position),
        Route("DELETE", position, handlers.delete_position),
    ]


class _Routes:
    def __init__(self, holds_and_positions: HoldsAndPositions) -> None:
        self._held = holds_and_positions

    async def holds(self, request: Request) -> Reply:
        found = self._held.holds(topic_of(request))
        return json_reply({"holds": [_hold_form(*each) for each in found.items()]})

    async def hold(self, request: Request) -> Reply:
        topic, name = topic_of(request), _name(request)
        body = read_object(
            request.body, request.content_type, members={"from", "maxAge"}, what="a hold"
        )
        first = id_or_time_from(body.get("from"), what="from")
        max_age_ms = _age_ms(body.get("maxAge"), most_s=self._held.hold_max_s)
        hold = await self._held.hold(topic, name, first, max_age_ms=max_age_ms)
        return json_reply(_hold_form(name, hold))

    async def release(self, request: Request) -> Reply:
        topic, name = topic_of(request), _name(request)
        read_object(request.body, request.content_type, members=(), what="the deletion of a hold")
        await self._held.release(topic, name)
        return EMPTY_REPLY

    async def positions(self, request: Request) -> Reply:
        generation, found = self._held.positions(topic_of(request))
        forms = [_position_form(generation, *each) for each in found.items()]
        return json_reply({"positions": forms})

    async def position(self, request: Request) -> Reply:
        topic, name = topic_of(request), _name(request)
        generation, found = self._held.position(topic, name)
        return json_reply(_position_form(generation, name, found))

    async def set_position(self, request: Request) -> Reply:
        topic, name = topic_of(request), _name(request)
        body = read_object(
            request.body, request.content_type, members={"position"}, what="a position"
        )
        digits = body.get("position")
        if not isinstance(digits, str):
            raise BadRequestError(f"position is a message id, not {shown(digits)}")
        generation, found = await self._held.set_position(topic, name, MessageId.from_hex(digits))
        return json_reply(_position_form(generation, name, found))

    async def delete_position(self, request: Request) -> Reply:
        topic, name = topic_of(request), _name(request)
        read_object(
            request.body, request.content_type, members=(), what="the deletion of a position"
        )
        await self._held.delete_position(topic, name)
        return EMPTY_REPLY


def _name(request: Request) -> str:
    return check_name(request.parameters["name"], what="name")


def _hold_form(name: str, hold: Hold) -> Mapping[str, object]:
    return {
        "name": name,
        "from": hold.first.hex(),
        "expiresAt": hold.expires_at_ms,
        "setAt": hold.set_at_ms,
    }


def _position_form(generation: int, name: str, found: Position) -> Mapping[str, object]:
    return {
        "name": name,
        "position": found.position.hex(),
        "generation": generation,
        "updatedAt": found.updated_at_ms,
    }


def _age_ms(value: object, *, most_s: float) -> int:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most_s:
        return ceil(value * 1000)
    raise BadRequestError(
        f"maxAge is more than 0 and at most {most_s:.0f} seconds, not {shown(value)}"
    )
