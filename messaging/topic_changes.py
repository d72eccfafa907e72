"""Create, update, delete, truncate and list topics: the operations and their HTTP routes (protocol
§2, §3.5)."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from messaging.read.offsets import TopicOffsets
from messaging.read.visibility import start_number
from messaging.read_routes import id_or_time_from
from messaging.settings import MessagingSettings
from messaging.storage.rows import HOLDS, POSITIONS, named_row_key, topic_key
from messaging.storage.store_state import OpenStore, StoreState, require_topic
from messaging.topics import (
    TOPIC_PATH,
    Topic,
    TopicInfo,
    TopicRecord,
    created,
    deleted,
    parse_properties,
    topic_of,
    truncated,
    updated,
)
from messaging.write.group_commit import GroupCommitter, Write, WriteBatch
from tuff.protocol.errors import BadRequestError, InvalidTopicPropertiesError
from tuff.protocol.exchange import (
    EMPTY_REPLY,
    Reply,
    Request,
    Route,
    json_reply,
    read_object,
    read_query,
    require_json,
)
from tuff.protocol.ids import MessageId, TopicId, check_name, past_group
from tuff.protocol.json_forms import numbers_as_written, parse_json

Decide = Callable[[WriteBatch], TopicRecord]


class TopicChanges:
    """Creates, changes and lists topics. Changes are decided in the order of writing. Lives on the
    event loop."""

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
            found.require_readable()
            return created(found.decided, topic, filled)

        await self._change(found, decide)

    async def update(self, topic: TopicId, properties: Mapping[str, str]) -> None:
        """Raises: TopicNotFoundError."""
        found = require_topic(self._store, self._state, topic)[0]
        filled = self._filled(properties)

        def decide(_batch: WriteBatch) -> TopicRecord:
            # Even if the clock was set back, region observers may have removed messages that had
            # expired by then.
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
        """Raise the log start to an id or a publish time, for all readers and for ever; returns the
        oldest message that is left.

        A doubtful clock does not prevent it: the caller named the start, and all later ids are
        behind it.

        Raises: TopicNotFoundError, TopicHeldError.
        """
        found = require_topic(self._store, self._state, topic)[0]
        asked = start_number(before, inclusive=True)

        def decide(batch: WriteBatch) -> TopicRecord:
            end = past_group(batch.last).to_int() + 1
            log_start = MessageId.from_int(min(asked, end))
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
        """The messages and payload bytes that were published to each topic since the start; topics
        without any are left out."""
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


def routes(changes: TopicChanges) -> list[Route]:
    """The HTTP routes of topics."""
    handlers = _Routes(changes)
    return [
        Route("POST", f"{TOPIC_PATH}/truncate", handlers.truncate),
        Route("PUT", f"{TOPIC_PATH}/properties", handlers.update),
        Route("PUT", TOPIC_PATH, handlers.create),
        Route("GET", TOPIC_PATH, handlers.get),
        Route("DELETE", TOPIC_PATH, handlers.delete),
        Route("GET", "/v1/namespaces", handlers.namespaces),
        Route("GET", "/v1/namespaces/{ns}/topics", handlers.list),
    ]


class _Routes:
    def __init__(self, changes: TopicChanges) -> None:
        self._changes = changes

    async def namespaces(self, request: Request) -> Reply:
        read_query(request.query, parameters=())
        return json_reply(self._changes.namespaces())

    async def list(self, request: Request) -> Reply:
        read_query(request.query, parameters=())
        namespace = check_name(request.parameters["ns"], what="namespace")
        return json_reply(self._changes.names(namespace))

    async def create(self, request: Request) -> Reply:
        topic, properties = self._named_properties(request)
        await self._changes.create(topic, properties)
        return EMPTY_REPLY

    async def update(self, request: Request) -> Reply:
        topic, properties = self._named_properties(request)
        await self._changes.update(topic, properties)
        return EMPTY_REPLY

    def _named_properties(self, request: Request) -> tuple[TopicId, Mapping[str, str]]:
        topic = topic_of(request)
        require_json(request.content_type, request.body)
        if not request.body:
            return topic, {}
        try:
            value = parse_json(request.body)
        except BadRequestError as error:
            raise InvalidTopicPropertiesError(error.detail) from None
        if isinstance(value, dict):
            value = {**value, **numbers_as_written(request.body)}
        return topic, parse_properties(value)

    async def get(self, request: Request) -> Reply:
        info = self._changes.get(topic_of(request))
        form = {
            "name": info.topic.name,
            "properties": dict(info.properties),
            "generation": info.generation,
        }
        return json_reply(form)

    async def delete(self, request: Request) -> Reply:
        topic = topic_of(request)
        read_object(request.body, request.content_type, members=(), what="the deletion of a topic")
        await self._changes.delete(topic)
        return EMPTY_REPLY

    async def truncate(self, request: Request) -> Reply:
        topic = topic_of(request)
        body = read_object(
            request.body,
            request.content_type,
            members={"before"},
            what="a truncation",
        )
        offset = id_or_time_from(body.get("before"), what="before")
        earliest = await self._changes.truncate(topic, offset)
        return json_reply({"earliest": earliest and earliest.hex()})
