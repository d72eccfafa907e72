"""Retention holds and named positions of a topic, and their HTTP routes (protocol §3.8, §3.9).

A hold keeps messages from the topic's time to live until it expires. A position is a consumer's
stored offset; it keeps nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from math import ceil

from kernel.requests_and_replies import EMPTY_REPLY, Reply, Request, Route, json_reply, members_of
from messaging.log.state_in_memory import OpenStore, StoreState, require_log, require_topic
from messaging.log.topics import Topic, TopicRecord, live_holds, topic_of
from messaging.model.parameters import id_or_time_from
from messaging.model.row_format import HOLDS, POSITIONS, Hold, Position, named_row_key
from messaging.model.visibility import first_id
from messaging.read.counts import MessageCounts
from messaging.read.lags import Lag, lags_of
from messaging.read.offsets_and_splits import TopicOffsets
from messaging.settings import MessagingSettings
from messaging.write.write_batch import WriteBatch
from messaging.write.write_queue import Write, WriteQueue
from tuff.protocol import operations
from tuff.protocol.errors import (
    BadRequestError,
    HoldNotFoundError,
    PositionNotFoundError,
    TooManyHoldsError,
    TooManyPositionsError,
)
from tuff.protocol.ids import MessageId, TopicId, check_name
from tuff.protocol.json_bodies import shown

HOLDS_COUNT_MAX = 100  # of a topic; every read checks all of them
POSITIONS_COUNT_MAX = 1_000  # of a topic; a page of them is one reply


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionLag:
    """The lag of a named position behind the end of its topic."""

    topic: TopicId
    name: str
    updated_at_ms: int
    lag: Lag


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
        committer: WriteQueue,
        settings: MessagingSettings,
        offsets: TopicOffsets,
        counts: MessageCounts,
    ) -> None:
        self._offsets = offsets
        self._counts = counts
        self.hold_max_s = settings.hold_max_s
        self._kept_ms_max = round(settings.kept_s_max * 1000)  # of a message, with all holds
        self._store = store
        self._state = state
        self._committer = committer

    async def hold(
        self, topic: TopicId, name: str, first: MessageId | int, *, max_age_ms: int
    ) -> Hold:
        """Set or renew a hold that begins at an id or a publish time, in all partitions of a topic,
        or in the one that is named.

        Raises: TopicNotFoundError, TooManyHoldsError.
        """
        require_topic(self._store, self._state, topic)
        hold = partial(
            with_hold,
            name=name,
            first=first_id(first),
            max_age_ms=max_age_ms,
            kept_ms_max=self._kept_ms_max,
        )

        def build(batch: WriteBatch) -> Hold:
            now_ms = self._state.expiry_ms()
            # All of them before the first is written: one may be refused.
            changed = {
                log: hold(log.require_decided(), now_ms=now_ms) for log in self._decided_logs(topic)
            }
            for log, record in changed.items():
                key = partial(named_row_key, HOLDS, log.prefix(record.generation))
                for over in log.require_decided().holds.keys() - record.holds.keys():
                    batch.delete(key(over))
                batch.put(key(name), record.holds[name].to_bytes(key(name)))
                self._change_holds(batch, log, record)
            return _hold_of_all(record.holds[name] for record in changed.values())

        return await self._committer.submit(Write(build))

    def holds(self, topic: TopicId) -> Mapping[str, Hold]:
        """The holds that have not expired, by name, of all partitions of a topic, or of the one
        that is named. Raises: TopicNotFoundError."""
        record = require_topic(self._store, self._state, topic)[1]
        by_name = defaultdict[str, list[Hold]](list)
        for log in self._logs(topic, record):
            live = live_holds(log.require_durable(), now_ms=self._state.expiry_ms())
            for name, each in live.items():
                by_name[name].append(each)
        return {name: _hold_of_all(found) for name, found in sorted(by_name.items())}

    async def release(self, topic: TopicId, name: str) -> None:
        """Delete a hold, in all partitions of a topic that have it, or in the one that is named.
        The topic's time to live applies again at once.

        Raises: TopicNotFoundError, HoldNotFoundError.
        """
        require_topic(self._store, self._state, topic)

        def build(batch: WriteBatch) -> None:
            now_ms = self._state.expiry_ms()
            held = [
                log
                for log in self._decided_logs(topic)
                if name in live_holds(log.require_decided(), now_ms=now_ms)
            ]
            if not held:
                raise HoldNotFoundError(f"the topic {topic} has no hold {name}")
            for log in held:
                record = log.require_decided()
                rest = {each: hold for each, hold in record.holds.items() if each != name}
                batch.delete(named_row_key(HOLDS, log.prefix(record.generation), name))
                self._change_holds(batch, log, replace(record, holds=rest))

        await self._committer.submit_making_room(build)

    def _decided_logs(self, topic: TopicId) -> list[Topic]:
        """What the next write of holds is for, which may have more partitions than readers see."""
        return self._logs(topic, self._state.topics.find(topic).require_decided())

    def _logs(self, topic: TopicId, record: TopicRecord) -> list[Topic]:
        """The partitions of a topic with this record that can be read, or the one that is named."""
        if not record.is_several(topic):
            return [self._state.topics.find(topic)]
        numbers = record.partitions.readable
        return [self._state.topics.find(topic.partition(each)) for each in numbers]

    async def set_position(
        self, topic: TopicId, name: str, position: MessageId
    ) -> tuple[int, Position]:
        """Record how far a consumer has read; returns the topic's generation and the position.

        Raises: FuturePositionError, TopicNotFoundError, TooManyPositionsError.
        """
        found = require_log(self._store, self._state, topic)[0]
        self._state.require_past(position)

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
        """The lag of the first `count_max` named positions, by topic and name.

        Raises: StorageUnavailableError.
        """
        topics = [
            (topic.id, record.positions)
            for topic in self._state.topics
            if (record := topic.durable) is not None and record.positions
        ]
        topics.sort(key=lambda each: each[0])
        shown = {
            (topic, name): positions[name]
            for topic, positions in topics
            for name in sorted(positions)
        }
        afters = {
            (topic, name): (topic, each.position)
            for (topic, name), each in islice(shown.items(), count_max)
        }
        (lags,) = await lags_of(self._offsets, self._counts, [afters])
        return [
            PositionLag(
                topic=topic, name=name, updated_at_ms=shown[topic, name].updated_at_ms, lag=lag
            )
            for (topic, name), lag in lags.items()
        ]

    def _change_holds(self, batch: WriteBatch, topic: Topic, record: TopicRecord) -> None:
        batch.change_record(topic, record)
        # A long poll may be blocked by a message that only this hold kept: it expires now.
        batch.touch(topic)


def _hold_of_all(holds: Iterable[Hold]) -> Hold:
    """A hold of one name in several partitions: from where, and until when, one of them keeps
    messages."""
    found = list(holds)
    return Hold(
        first=min(each.first for each in found),
        set_at_ms=max(each.set_at_ms for each in found),
        expires_at_ms=max(each.expires_at_ms for each in found),
    )


def _no_position(topic: TopicId, name: str) -> PositionNotFoundError:
    return PositionNotFoundError(f"the topic {topic} has no position {name}")


def routes(holds_and_positions: HoldsAndPositions) -> list[Route]:
    """The HTTP routes of holds and positions."""
    handlers = _HoldRoutes(holds_and_positions)
    return [
        Route(operations.LIST_HOLDS, handlers.holds),
        Route(operations.SET_HOLD, handlers.hold),
        Route(operations.DELETE_HOLD, handlers.release),
        Route(operations.LIST_POSITIONS, handlers.positions),
        Route(operations.GET_POSITION, handlers.position),
        Route(operations.SET_POSITION, handlers.set_position),
        Route(operations.DELETE_POSITION, handlers.delete_position),
    ]


class _HoldRoutes:
    def __init__(self, holds_and_positions: HoldsAndPositions) -> None:
        self._component = holds_and_positions

    async def holds(self, request: Request) -> Reply:
        found = self._component.holds(topic_of(request))
        return json_reply({"holds": [hold_body(*each) for each in found.items()]})

    async def hold(self, request: Request) -> Reply:
        topic, name = topic_of(request), _name(request)
        body = members_of(request, members={"from", "maxAge"}, what="a hold")
        first = id_or_time_from(body.get("from"), what="from")
        max_age_ms = _age_ms(body.get("maxAge"), most_s=self._component.hold_max_s)
        hold = await self._component.hold(topic, name, first, max_age_ms=max_age_ms)
        return json_reply(hold_body(name, hold))

    async def release(self, request: Request) -> Reply:
        topic, name = topic_of(request), _name(request)
        members_of(request, members=(), what="the deletion of a hold")
        await self._component.release(topic, name)
        return EMPTY_REPLY

    async def positions(self, request: Request) -> Reply:
        generation, found = self._component.positions(topic_of(request))
        bodies = [position_body(generation, *each) for each in found.items()]
        return json_reply({"positions": bodies})

    async def position(self, request: Request) -> Reply:
        topic, name = topic_of(request), _name(request)
        generation, found = self._component.position(topic, name)
        return json_reply(position_body(generation, name, found))

    async def set_position(self, request: Request) -> Reply:
        topic, name = topic_of(request), _name(request)
        body = members_of(request, members={"position"}, what="a position")
        digits = body.get("position")
        if not isinstance(digits, str):
            raise BadRequestError(f"position is a message id, not {shown(digits)}")
        generation, found = await self._component.set_position(
            topic, name, MessageId.from_hex(digits)
        )
        return json_reply(position_body(generation, name, found))

    async def delete_position(self, request: Request) -> Reply:
        topic, name = topic_of(request), _name(request)
        members_of(request, members=(), what="the deletion of a position")
        await self._component.delete_position(topic, name)
        return EMPTY_REPLY


def _name(request: Request) -> str:
    return check_name(request.parameters["name"], what="name")


def hold_body(name: str, hold: Hold) -> Mapping[str, object]:
    """The JSON of a hold."""
    return {
        "name": name,
        "from": hold.first.hex(),
        "expiresAt": hold.expires_at_ms,
        "setAt": hold.set_at_ms,
    }


def position_body(generation: int, name: str, found: Position) -> Mapping[str, object]:
    """The JSON of a named position."""
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
