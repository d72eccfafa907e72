"""Create, update, delete, truncate and list topics: rules, operations and HTTP routes (protocol §2,
§3.5)."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from messaging.partitions import ONE_PARTITION, PARTITIONS_COUNT_MAX, Partitions
from messaging.read.offsets_and_splits import TopicOffsets
from messaging.read.poll import id_or_time_from
from messaging.read.visibility import start_number
from messaging.settings import MessagingSettings
from messaging.storage.engine import Store, StoreDamagedError
from messaging.storage.rows import DELAYED, HOLDS, MESSAGES, POSITIONS, named_row_key, prefix_stop
from messaging.storage.store_state import OpenStore, StoreState, require_topic
from messaging.topics import (
    TOPIC_PATH,
    TTL_S_MAX,
    Topic,
    TopicRecord,
    created,
    live_holds,
    topic_of,
    with_log_start,
)
from messaging.write.group_commit import GroupCommitter, Write, WriteBatch
from tuff.protocol.errors import (
    BadRequestError,
    InvalidTopicPropertiesError,
    OwnershipMovingError,
    StorageUnavailableError,
    TopicHeldError,
)
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
from tuff.protocol.json_forms import numbers_as_written, parse_json, shown

PROPERTIES_BYTES_MAX = 65_536  # bytes of all names and values; 10,000 topics stay within memory

Decide = Callable[[WriteBatch], Mapping[Topic, TopicRecord]]


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

    async def create(
        self, topic: TopicId, properties: Mapping[str, str], *, partition_count: int = 1
    ) -> None:
        """Create a topic with so many partitions. Raises: TopicExistsError,
        InvalidTopicPropertiesError."""
        self._committer.require_ready()
        filled = self._filled(properties)
        partitions = ONE_PARTITION
        if partition_count > 1:
            partitions = ONE_PARTITION.resized(partition_count)
        found = self._state.topics.find_or_add(topic)

        def decide(_batch: WriteBatch) -> dict[Topic, TopicRecord]:
            found.require_readable()
            record = created(found.decided, topic, filled)
            records = {found: replace(record, partitions=partitions)}
            return records | self._new_partitions(topic, partitions.active[1:], filled)

        await self._change(decide)

    async def update(
        self, topic: TopicId, properties: Mapping[str, str], *, partition_count: int | None = None
    ) -> None:
        """Replace the properties. With a count, add partitions or retire those with the highest
        numbers. Raises: TopicNotFoundError, InvalidTopicPropertiesError."""
        found = require_topic(self._store, self._state, topic)[0]
        filled = self._filled(properties)

        def decide(_batch: WriteBatch) -> dict[Topic, TopicRecord]:
            # Even if the clock was set back, region observers may have removed messages that had
            # expired by then.
            handed_ms = self._state.metadata.handed_ms or None
            expire_ms = self._state.expiry_ms() if self._state.may_delete() else handed_ms
            record = updated(found.require_decided(), filled, expire_ms=expire_ms)
            before = record.partitions
            after = before if partition_count is None else before.resized(partition_count)
            records = {found: replace(record, partitions=after)}
            for log in self._logs(topic, before):
                changed = updated(log.require_decided(), _of_partition(filled), expire_ms=expire_ms)
                records[log] = replace(changed, is_retired=log.id.number in after.retired)
            added = after.active[len(before.active) :]
            return records | self._new_partitions(topic, added, filled)

        await self._change(decide)

    async def delete(self, topic: TopicId) -> None:
        """Raises: TopicNotFoundError."""
        found = require_topic(self._store, self._state, topic)[0]

        def decide(batch: WriteBatch) -> dict[Topic, TopicRecord]:
            logs = [found, *self._logs(topic, found.require_decided().partitions)]
            records = {log: log.require_decided() for log in logs}
            return {
                each: changed
                for log, record in records.items()
                for each, changed in self._deleted(log, record, batch).items()
            }

        await self._change(decide)

    async def delete_emptied(self) -> None:
        """Delete the retired partitions whose messages are gone. Raises: UnavailableError (its
        kinds)."""
        retired = [
            (log, record.generation)
            for log in self._state.topics
            if (record := log.durable) is not None and record.is_retired and record.generation > 0
            if self._state.topics.maybe_find(log.id.base) is not None
        ]
        for log, generation in retired:
            # In the order in which messages move: one that has left a range is in a later one.
            starts = [table + log.prefix(generation) for table in (DELAYED, MESSAGES)]
            delayed_log = self._state.topics.maybe_find(log.id.delayed_log)
            if delayed_log is not None and delayed_log.damage is not None:
                continue  # its generation is unknown, so it may have messages
            if delayed_log is not None and delayed_log.durable is not None:
                log_prefix = delayed_log.prefix(abs(delayed_log.durable.generation))
                starts.insert(0, MESSAGES + log_prefix)
            if await self._store.read(partial(_are_empty, starts=starts)):
                await self._change(partial(self._without, log, generation))

    async def truncate(self, topic: TopicId, before: MessageId | int) -> MessageId | None:
        """Raise the log start to an id or a publish time, for all readers and for ever; returns the
        oldest message that is left. A topic is truncated with all its partitions.

        A doubtful clock does not prevent it: the caller named the start, and all later ids are
        behind it.

        Raises: TopicNotFoundError, TopicHeldError. StorageUnavailableError: it may be done.
        """
        found = require_topic(self._store, self._state, topic)[0]
        asked = start_number(before, inclusive=True)

        def decide(batch: WriteBatch) -> dict[Topic, TopicRecord]:
            end = past_group(batch.last).to_int() + 1
            log_start = MessageId.from_int(min(asked, end))
            now_ms = self._state.expiry_ms()
            logs = [found]
            if topic.number is None:
                logs += self._logs(topic, found.require_decided().partitions)
            return {log: truncated(log.require_decided(), log_start, now_ms=now_ms) for log in logs}

        records = await self._change(decide)
        try:
            logs = [topic]
            if len(records) > 1:
                logs = [topic.partition(log.id.number or 0) for log in records]
            earliest = [await self._offsets.earliest(each) for each in logs]
            return min((each for each in earliest if each is not None), default=None)
        except OwnershipMovingError as error:
            # That error says that nothing was done.
            raise StorageUnavailableError(f"the topic is truncated, but {error.detail}") from None

    def get(self, topic: TopicId) -> TopicRecord:
        """Raises: TopicNotFoundError."""
        return require_topic(self._store, self._state, topic)[1]

    def names(self, namespace: str) -> list[str]:
        """The names of a namespace's topics, in byte order. Logs that belong to a topic or a group
        are left out."""
        self._store.require_up()
        return [
            each.name
            for each in self._state.topics.live()
            if each.namespace == namespace and not each.is_internal
        ]

    def namespaces(self) -> list[str]:
        """Every namespace that has a topic, in byte order."""
        self._store.require_up()
        live = self._state.topics.live()
        return sorted({each.namespace for each in live if not each.is_internal})

    def figures(self) -> Iterator[tuple[TopicId, int, int]]:
        """The messages and payload bytes that were published to each topic since the start; topics
        without any are left out."""
        for topic in self._state.topics:
            if topic.messages_published and not topic.id.belongs_to_topic:
                yield topic.id, topic.messages_published, topic.bytes_published

    def _filled(self, properties: Mapping[str, str]) -> dict[str, str]:
        filled = {"ttl": str(self._settings.default_ttl), **properties}
        if int(filled["ttl"]) > self._settings.max_ttl:
            raise InvalidTopicPropertiesError(
                f"ttl is {self._settings.max_ttl} seconds or less on this server "
                f"(messaging.max_ttl), not {filled['ttl']}"
            )
        return filled

    def _logs(self, topic: TopicId, partitions: Partitions) -> list[Topic]:
        """The partitions besides the topic itself."""
        numbers = partitions.readable[1:]
        return [self._state.topics.find(topic.partition(number)) for number in numbers]

    def _without(
        self, log: Topic, generation: int, batch: WriteBatch
    ) -> Mapping[Topic, TopicRecord]:
        """The records without a retired partition; none if it was deleted meanwhile, or if the row
        of the topic is damaged."""
        base = self._state.topics.find(log.id.base)
        of_base, record = base.decided, log.decided
        if of_base is None or record is None or record.generation != generation:
            return {}
        assert log.id.number is not None
        partitions = of_base.partitions.without(log.id.number)
        changed = self._deleted(log, record, batch)
        return {base: replace(of_base, partitions=partitions), **changed}

    def _deleted(
        self, log: Topic, record: TopicRecord, batch: WriteBatch
    ) -> dict[Topic, TopicRecord]:
        """The records of a deleted partition and of the logs that belong to it."""
        changed = {log: _without_names(log, record, batch)}
        for each in self._state.topics.unit(log.id.unit):
            is_alive = each.decided is not None and each.decided.generation > 0
            if each.id.belongs_to_topic and each.id.home == log.id and is_alive:
                changed[each] = deleted(each.require_decided())
        return changed

    def _new_partitions(
        self, topic: TopicId, numbers: Sequence[int], properties: Mapping[str, str]
    ) -> dict[Topic, TopicRecord]:
        """The records of partitions that are created, for the first time or again."""
        records = {}
        for number in numbers:
            log = self._state.topics.find_or_add(topic.partition(number))
            log.require_readable()
            before = log.decided
            if before is not None and before.generation > 0:
                before = deleted(before)  # left over: `tuff salvage` found no row of the topic
            records[log] = created(before, log.id, _of_partition(properties))
        return records

    async def _change(self, decide: Decide) -> Mapping[Topic, TopicRecord]:
        """Write the records on which `decide` decides, as one batch."""

        def build(batch: WriteBatch) -> Mapping[Topic, TopicRecord]:
            records = decide(batch)
            for topic, record in records.items():
                batch.change_topic(topic, record)
                batch.touch(topic)
            return records

        return await self._committer.submit(Write(build))


def _of_partition(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties in the row of a partition. The others are in that of the topic only."""
    return {"ttl": properties["ttl"]}


def updated(
    record: TopicRecord, properties: Mapping[str, str], *, expire_ms: int | None
) -> TopicRecord:
    """The record with new properties. `expire_ms` is the current time, or None while messages may
    not expire for good."""
    changed = replace(record, properties=properties)
    # A longer time to live must not show expired messages again: it would show only those that no
    # retention pass had deleted yet. So the log start rises.
    if expire_ms is None or changed.ttl_s <= record.ttl_s:
        return changed
    return with_log_start(changed, MessageId(*record.rule.live_from(now_ms=expire_ms)))


def deleted(record: TopicRecord) -> TopicRecord:
    """The record of a deleted topic, without its holds and positions."""
    assert record.generation > 0
    return replace(record, generation=-record.generation, holds={}, positions={})


def _without_names(topic: Topic, record: TopicRecord, batch: WriteBatch) -> TopicRecord:
    prefix = topic.prefix(record.generation)
    for table, names in ((HOLDS, record.holds), (POSITIONS, record.positions)):
        for name in names:
            batch.delete(named_row_key(table, prefix, name))
    return deleted(record)


def _are_empty(store: Store, *, starts: Sequence[bytes]) -> bool:
    """Whether no row's key begins with one of these."""
    try:
        for start in starts:
            with closing(store.scan(start, prefix_stop(start))) as rows:
                if next(rows, None) is not None:
                    return False
    except StoreDamagedError:
        return False
    return True


def truncated(record: TopicRecord, log_start: MessageId, *, now_ms: int) -> TopicRecord:
    """The record with its log start raised to this id by a truncation.

    Raises:
        TopicHeldError: a hold keeps messages before it.
    """
    names = [
        name for name, hold in live_holds(record, now_ms=now_ms).items() if hold.first < log_start
    ]
    if names and log_start > record.log_start:
        raise TopicHeldError(
            f"messages before {log_start.hex()} are held by {', '.join(names)}; delete these "
            "holds first, or truncate to an earlier id",
            members={"holds": names},
        )
    return with_log_start(record, log_start)


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
        topic, properties, count = self._named_properties(request)
        await self._changes.create(topic, properties, partition_count=1 if count is None else count)
        return EMPTY_REPLY

    async def update(self, request: Request) -> Reply:
        topic, properties, count = self._named_properties(request)
        await self._changes.update(topic, properties, partition_count=count)
        return EMPTY_REPLY

    def _named_properties(self, request: Request) -> tuple[TopicId, Mapping[str, str], int | None]:
        topic = topic_of(request)
        _require_whole(topic)
        require_json(request.content_type, request.body)
        if not request.body:
            return topic, {}, None
        try:
            value = parse_json(request.body)
        except BadRequestError as error:
            raise InvalidTopicPropertiesError(error.detail) from None
        if isinstance(value, dict):
            value = {**value, **numbers_as_written(request.body)}
        return topic, *parse_properties(value)

    async def get(self, request: Request) -> Reply:
        topic = topic_of(request)
        record = self._changes.get(topic)
        form: dict[str, object] = {
            "name": topic.name,
            "properties": dict(record.properties),
            "generation": record.generation,
        }
        if topic.number is None:
            form["partitions"] = record.partitions.active
            form["retired"] = record.partitions.retired
        return json_reply(form)

    async def delete(self, request: Request) -> Reply:
        topic = topic_of(request)
        _require_whole(topic)
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


def _require_whole(topic: TopicId) -> None:
    if topic.number is not None:
        raise BadRequestError(
            f"{topic} is a partition of {topic.base}: it is created, changed and deleted with the "
            "topic, whose property partitions is the number of its partitions"
        )


def parse_properties(value: object) -> tuple[dict[str, str], int | None]:
    """The properties in a decoded JSON body, as strings; a `ttl` without leading zeros; and the
    number of partitions, None if it is not named.

    Raises:
        InvalidTopicPropertiesError: not an object, a value that is neither string nor number, a bad
            `ttl` or `partitions`, or `generation`, which only the server sets.
    """
    if not isinstance(value, dict):
        raise InvalidTopicPropertiesError(
            f"topic properties are a JSON object of strings or numbers, not {shown(value)}"
        )
    properties = {str(name): _property_text(name, given) for name, given in value.items()}
    if sum(len(name) + len(text) for name, text in properties.items()) > PROPERTIES_BYTES_MAX:
        raise InvalidTopicPropertiesError(
            f"topic properties are longer than {PROPERTIES_BYTES_MAX} characters in all"
        )
    if "generation" in properties:
        raise InvalidTopicPropertiesError(
            "generation is counted by the server and can't be set; leave it out"
        )
    if "ttl" in properties:
        properties["ttl"] = str(_whole(properties["ttl"], TTL_S_MAX, what="ttl is whole seconds"))
    count = properties.pop("partitions", None)
    if count is None:
        return properties, None
    return properties, _whole(count, PARTITIONS_COUNT_MAX, what="partitions is a whole number")


def _property_text(name: object, given: object) -> str:
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise InvalidTopicPropertiesError(
            f"the property {name!r} is a string or a number, not {shown(given)}"
        )
    text = given if isinstance(given, str) else json.dumps(given)
    if any("\ud800" <= character <= "\udfff" for character in f"{name}{text}"):
        raise InvalidTopicPropertiesError(
            f"the property {name!r} has half a surrogate pair in it, which is no character"
        )
    return text


def _whole(text: str, most: int, *, what: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 20 and 1 <= int(text) <= most:
        return int(text)
    raise InvalidTopicPropertiesError(f"{what} from 1 to {most}, not {text[:40]!r}")
