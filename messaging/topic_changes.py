"""Creating, changing, deleting and truncating topics (protocol §2)."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from messaging.batch import Batch
from messaging.engine import Engine
from messaging.keys import HOLDS, POSITIONS, bookmark_key, topic_key
from messaging.live import Live
from messaging.query import start_number
from messaging.settings import MessagingSettings
from messaging.topics import (
    Topic,
    TopicInfo,
    TopicRecord,
    created,
    deleted,
    truncated,
    updated,
)
from messaging.writer import Write, Writer
from tuff.protocol.errors import InvalidTopicPropertiesError
from tuff.protocol.ids import MessageId, past_group
from tuff.protocol.names import TopicId

Decide = Callable[[Batch], TopicRecord]


class TopicChanges:
    """Decides changes in the order of writing. Lives on the event loop."""

    def __init__(
        self,
        engine: Engine,
        live: Live,
        writer: Writer,
        settings: MessagingSettings,
        *,
        may_delete: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._live = live
        self._writer = writer
        self._settings = settings
        self._may_delete = may_delete

    async def create(self, topic: TopicId, properties: Mapping[str, str]) -> None:
        """Raises: TopicExistsError, InvalidTopicPropertiesError."""
        self._writer.require_ready()
        filled = self._filled(properties)
        found = self._live.topics.find_or_add(topic)

        def decide(_batch: Batch) -> TopicRecord:
            found.require_whole()
            return created(found.decided, topic, filled)

        await self._change(found, decide)

    async def update(self, topic: TopicId, properties: Mapping[str, str]) -> None:
        """Raises: TopicNotFoundError."""
        found = self._find(topic)
        filled = self._filled(properties)

        def decide(_batch: Batch) -> TopicRecord:
            # Whatever the clock says now, observers may have removed what expired by then.
            handed_ms = self._live.facts.handed_ms or None
            expire_ms = self._live.expiry_ms() if self._may_delete() else handed_ms
            return updated(found.require_decided(), filled, expire_ms=expire_ms)

        await self._change(found, decide)

    async def delete(self, topic: TopicId) -> None:
        """Raises: TopicNotFoundError."""
        found = self._find(topic)

        def decide(batch: Batch) -> TopicRecord:
            record = found.require_decided()
            prefix = found.prefix(record.generation)
            for table, names in ((HOLDS, record.holds), (POSITIONS, record.positions)):
                for name in names:
                    batch.delete(bookmark_key(table, prefix, name))
            return deleted(record)

        await self._change(found, decide)

    async def truncate(self, topic: TopicId, before: MessageId | int) -> None:
        """Raise the floor, however doubtful the clock is: the place was named by somebody, and ids
        that are given out from now on lie behind it. Raises: TopicNotFoundError, TopicHeldError."""
        found = self._find(topic)
        asked = start_number(before, inclusive=True)

        def decide(batch: Batch) -> TopicRecord:
            all_there_is = past_group(batch.last).to_int() + 1
            floor = MessageId.from_int(min(asked, all_there_is))
            return truncated(found.require_decided(), floor, now_ms=self._live.expiry_ms())

        await self._change(found, decide)

    def get(self, topic: TopicId) -> TopicInfo:
        """Raises: TopicNotFoundError."""
        record = self._find(topic).require_durable()
        return TopicInfo(topic, record.generation, record.properties)

    def names(self, namespace: str) -> list[str]:
        """The names of a namespace's topics, in byte order."""
        self._engine.require_up()
        return [
            info.topic.name
            for info in self._live.topics.live()
            if info.topic.namespace == namespace
        ]

    def namespaces(self) -> list[str]:
        """Every namespace that has a topic, in byte order."""
        self._engine.require_up()
        return sorted({info.topic.namespace for info in self._live.topics.live()})

    def figures(self) -> Iterator[tuple[TopicId, int, int]]:
        """Each topic that was published to since the start: messages and payload bytes."""
        for topic in self._live.topics:
            if topic.messages_published:
                yield topic.id, topic.messages_published, topic.bytes_published

    def _find(self, topic: TopicId) -> Topic:
        self._engine.require_up()
        found = self._live.topics.find(topic)
        found.require_durable()
        return found

    def _filled(self, properties: Mapping[str, str]) -> dict[str, str]:
        filled = {"ttl": str(self._settings.default_ttl), **properties}
        if int(filled["ttl"]) > self._settings.max_ttl:
            raise InvalidTopicPropertiesError(
                f"ttl is {self._settings.max_ttl} seconds or less on this server "
                f"(messaging.max_ttl), not {filled['ttl']}"
            )
        return filled

    async def _change(self, topic: Topic, decide: Decide) -> None:
        await self._writer.submit(Write(partial(self._put, topic, decide)))

    def _put(self, topic: Topic, decide: Decide, batch: Batch) -> None:
        self._live.change_topic(batch, topic, decide(batch), key=topic_key(topic.id))
        batch.touch(topic)
