"""Setting and deleting retention holds and named positions (protocol §3.8, §3.9)."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from messaging.batch import Batch
from messaging.bookmarks import Hold, Position
from messaging.engine import Engine
from messaging.keys import HOLDS, POSITIONS, bookmark_key
from messaging.live import Live
from messaging.query import LAST_NUMBER, start_number
from messaging.topics import Topic, TopicRecord, alive, held, positioned
from messaging.writer import Write, Writer
from tuff.protocol.errors import HoldNotFoundError, PositionNotFoundError
from tuff.protocol.ids import MessageId
from tuff.protocol.names import TopicId


class Bookmarks:
    """Decides changes in the order of writing; what it tells is durable. Lives on the event
    loop."""

    def __init__(self, engine: Engine, live: Live, writer: Writer, *, kept_ms_max: int) -> None:
        """`kept_ms_max`: how long a message is kept at the most, whoever holds it."""
        self._kept_ms_max = kept_ms_max
        self._engine = engine
        self._live = live
        self._writer = writer

    async def hold(
        self, topic: TopicId, name: str, first: MessageId | int, *, max_age_ms: int
    ) -> Hold:
        """Set a hold from a place or a publish time on, or set it anew.

        Raises: TopicNotFoundError, TooManyHoldsError.
        """
        found = self._find(topic)
        place = MessageId.from_int(min(start_number(first, inclusive=True), LAST_NUMBER))

        def build(batch: Batch) -> Hold:
            before = found.require_decided()
            record = held(
                before,
                name,
                place,
                max_age_ms=max_age_ms,
                kept_ms_max=self._kept_ms_max,
                now_ms=self._live.expiry_ms(),
            )
            key = partial(bookmark_key, HOLDS, found.prefix(record.generation))
            for over in before.holds.keys() - record.holds.keys():
                batch.delete(key(over))
            batch.put(key(name), record.holds[name].to_bytes(key(name)))
            self._change_holds(batch, found, record)
            return record.holds[name]

        return await self._writer.submit(Write(build))

    def holds(self, topic: TopicId) -> Mapping[str, Hold]:
        """The holds that are not over, by name. Raises: TopicNotFoundError."""
        found = alive(self._find(topic).require_durable(), now_ms=self._live.expiry_ms())
        return dict(sorted(found.items()))

    async def release(self, topic: TopicId, name: str) -> None:
        """End a hold: the topic's time to live counts again at once.

        Raises: TopicNotFoundError, HoldNotFoundError.
        """
        found = self._find(topic)

        def build(batch: Batch) -> None:
            record = found.require_decided()
            if name not in alive(record, now_ms=self._live.expiry_ms()):
                raise HoldNotFoundError(f"the topic {topic} has no hold {name}")
            rest = {each: hold for each, hold in record.holds.items() if each != name}
            batch.delete(bookmark_key(HOLDS, found.prefix(record.generation), name))
            self._change_holds(batch, found, replace(record, holds=rest))

        await self._writer.submit(Write(build))

    async def set_position(
        self, topic: TopicId, name: str, position: MessageId
    ) -> tuple[int, Position]:
        """Record how far somebody has read; the topic's generation, and what is recorded.

        Raises: TopicNotFoundError, TooManyPositionsError.
        """
        found = self._find(topic)

        def build(batch: Batch) -> tuple[int, Position]:
            before = found.require_decided()
            record = positioned(before, name, position, now_ms=self._live.expiry_ms())
            key = bookmark_key(POSITIONS, found.prefix(record.generation), name)
            batch.put(key, record.positions[name].to_bytes(key))
            self._live.change_record(batch, found, record)
            return record.generation, record.positions[name]

        return await self._writer.submit(Write(build))

    def positions(self, topic: TopicId) -> tuple[int, Mapping[str, Position]]:
        """The topic's generation, and its positions by name. Raises: TopicNotFoundError."""
        record = self._find(topic).require_durable()
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
        found = self._find(topic)

        def build(batch: Batch) -> None:
            record = found.require_decided()
            if name not in record.positions:
                raise _no_position(topic, name)
            rest = {each: one for each, one in record.positions.items() if each != name}
            batch.delete(bookmark_key(POSITIONS, found.prefix(record.generation), name))
            self._live.change_record(batch, found, replace(record, positions=rest))

        await self._writer.submit(Write(build))

    def _find(self, topic: TopicId) -> Topic:
        self._engine.require_up()
        found = self._live.topics.find(topic)
        found.require_durable()
        return found

    def _change_holds(self, batch: Batch, topic: Topic, record: TopicRecord) -> None:
        self._live.change_record(batch, topic, record)
        # What is let go may be what a sleeping reader is held behind: it expires now.
        batch.touch(topic)


def _no_position(topic: TopicId, name: str) -> PositionNotFoundError:
    return PositionNotFoundError(f"the topic {topic} has no position {name}")
