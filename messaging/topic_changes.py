"""Create, update, delete, truncate and list topics (protocol §2, §3.5)."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from messaging.read.offsets import TopicOffsets
from messaging.read.query import start_number
from messaging.settings import MessagingSettings
from messaging.storage.rows import HOLDS, POSITIONS, named_row_key, topic_key
from messaging.storage.store_state import OpenStore, StoreState, require_topic
from messaging.topics import Topic, TopicInfo, TopicRecord, created, deleted, truncated, updated
from messaging.write.group_commit import GroupCommitter, Write, WriteBatch
from tuff.protocol.errors import InvalidTopicPropertiesError
from tuff.protocol.ids import MessageId, TopicId, past_group

Decide = Callable[[WriteBatch], TopicRecord]


class TopicChanges:
    """Decides changes in the order of writing. Lives on the event loop."""

    def __init__(
        self,
        store: OpenStore,
        state: StoreState,
        committer: GroupCommitter,
        settings: MessagingSettings,
        offsets: TopicOffsets,
    ) -> None:
        self._store = store
        self._state = state
        self._committer = committer
        self._settings = settings
        self._offsets = offsets

    async def create(self, topic: TopicId, properties: Mapping[str, str]) -> None:
        """Raises: TopicExistsError, InvalidTopicPropertiesError."""
        self._committer.require_ready()
        filled = self._filled(properties)
        found = self._state.topics.find_or_add(topic)

        def decide(_batch: WriteBatch) -> TopicRecord:
            found.require_whole()
            return created(found.decided, topic, filled)

        await self._change(found, decide)

    async def update(self, topic: TopicId, properties: Mapping[str, str]) -> None:
        """Raises: TopicNotFoundError."""
        found = require_topic(self._store, self._state, topic)[0]
        filled = self._filled(properties)

        def decide(_batch: WriteBatch) -> TopicRecord:
            # Whatever the clock says now, observers may have removed what expired by then.
            handed_ms = self._state.metadata.handed_ms or None
            expire_ms = self._state.expiry_ms() if self._state.may_delete() else handed_ms
            return updated(found.require_decided(), filled, expire_ms=expire_ms)

        await self._change(found, decide)

    async def delete(self, topic: TopicId) -> None:
        """Raises: TopicNotFoundError."""
        found = require_topic(self._store, self._state, topic)[0]

        def decide(batch: WriteBatch) -> TopicRecord:
            record = found.require_decided()
            prefix = found.prefix(record.generation)
            for table, names in ((HOLDS, record.holds), (POSITIONS, record.positions)):
                for name in names:
                    batch.delete(named_row_key(table, prefix, name))
            return deleted(record)

        await self._change(found, decide)

    async def truncate(self, topic: TopicId, before: MessageId | int) -> MessageId | None:
        """Raise the log start to an id or a publish time, for every reader and for ever; returns
        the oldest message that is left.

        It is done however doubtful the clock is: the caller named the start, and ids that are given
        out from now on lie behind it.

        Raises: TopicNotFoundError, TopicHeldError.
        """
        found = require_topic(self._store, self._state, topic)[0]
        asked = start_number(before, inclusive=True)

        def decide(batch: WriteBatch) -> TopicRecord:
            all_there_is = past_group(batch.last).to_int() + 1
            log_start = MessageId.from_int(min(asked, all_there_is))
            return truncated(found.require_decided(), log_start, now_ms=self._state.expiry_ms())

        await self._change(found, decide)
        return await self._offsets.earliest(topic)

    def get(self, topic: TopicId) -> TopicInfo:
        """Raises: TopicNotFoundError."""
        record = require_topic(self._store, self._state, topic)[1]
        return TopicInfo(topic, record.generation, record.properties)

    def names(self, namespace: str) -> list[str]:
        """The names of a namespace's topics, in byte order."""
        self._store.require_up()
        return [
            info.topic.name
            for info in self._state.topics.live()
            if info.topic.namespace == namespace
        ]

    def namespaces(self) -> list[str]:
        """Every namespace that has a topic, in byte order."""
        self._store.require_up()
        return sorted({info.topic.namespace for info in self._state.topics.live()})

    def figures(self) -> Iterator[tuple[TopicId, int, int]]:
        """Each topic that was published to since the start: messages and payload bytes."""
        for topic in self._state.topics:
            if topic.messages_published:
                yield topic.id, topic.messages_published, topic.bytes_published

    def _filled(self, properties: Mapping[str, str]) -> dict[str, str]:
        filled = {"ttl": str(self._settings.default_ttl), **properties}
        if int(filled["ttl"]) > self._settings.max_ttl:
            raise InvalidTopicPropertiesError(
                f"ttl is {self._settings.max_ttl} seconds or less on this server "
                f"(messaging.max_ttl), not {filled['ttl']}"
            )
        return filled

    async def _change(self, topic: Topic, decide: Decide) -> None:
        await self._committer.submit(Write(partial(self._put, topic, decide)))

    def _put(self, topic: Topic, decide: Decide, batch: WriteBatch) -> None:
        batch.change_topic(topic, decide(batch), key=topic_key(topic.id))
        batch.touch(topic)
