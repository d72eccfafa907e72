"""Create, update, delete, truncate and list topics: rules, operations and HTTP routes (protocol §2,
§3.5)."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Annotated

from kernel.request_bodies import numbers_as_written
from kernel.requests_and_replies import (
    EMPTY_REPLY,
    Reply,
    Request,
    Route,
    json_reply,
    read_object,
    read_query,
    require_json,
)
from messaging.engines.engine_interface import StoreDamagedError
from messaging.engines.row_store import Store
from messaging.log.state_in_memory import OpenStore, StoreState, require_topic
from messaging.log.topics import (
    TTL_S_MAX,
    Topic,
    TopicRecord,
    created,
    live_holds,
    topic_of,
    with_log_start,
)
from messaging.model.packed_rows import is_packed, row_count
from messaging.model.parameters import boolean, id_or_time_from
from messaging.model.partitions import ONE_PARTITION, PARTITIONS_COUNT_MAX, Partitions
from messaging.model.row_format import (
    DELAYED,
    HOLDS,
    MESSAGES,
    POSITIONS,
    DamagedRowError,
    Hold,
    MessageRow,
    message_key,
    named_row_key,
    offset_after,
    offset_in,
    prefix_stop,
)
from messaging.model.visibility import first_id
from messaging.read.offsets_and_splits import TopicOffsets
from messaging.settings import MessagingSettings
from messaging.write.write_batch import WriteBatch
from messaging.write.write_queue import Write, WriteQueue
from tuff.protocol import operations
from tuff.protocol.errors import (
    BadRequestError,
    InvalidTopicPropertiesError,
    OwnershipMovingError,
    StorageOutcomeUnknownError,
    StorageUnavailableError,
    TopicHeldError,
)
from tuff.protocol.ids import GROUP_LOG, MessageId, TopicId, check_name
from tuff.protocol.json_bodies import parse_json, shown
from tuff.protocol.json_objects import to_json
from tuff.protocol.values import Member

PROPERTIES_BYTES_MAX = 65_536  # bytes of all names and values; 10,000 topics stay within memory

EXPIRING_ROWS_MAX = 200_000  # rows that are counted before a change; a third of a second

Decide = Callable[[WriteBatch], Mapping[Topic, TopicRecord]]
Fill = Callable[[Mapping[str, str]], dict[str, str]]  # new properties from the present ones


@dataclass(frozen=True, slots=True)
class PropertyChange:
    """Properties to set, names of properties to remove, and the number of partitions, None to leave
    it."""

    given: Mapping[str, str]
    removed: Collection[str] = ()
    partition_count: int | None = None


@dataclass(frozen=True, slots=True)
class Expiring:
    """Messages that a shorter time to live lets expire at once: how many (at least so many, if
    `is_lower_bound`), and the publish times in ms of the oldest of them, and of the first message
    that is kept, if there is one."""

    count: Annotated[int, Member("messages")]
    is_lower_bound: bool
    oldest_ms: int
    kept_from_ms: int


@dataclass(frozen=True, slots=True)
class ChangedTopic:
    """The properties and partitions after a change, and what expires by it."""

    properties: Mapping[str, str]
    partitions: Partitions
    expiring: Expiring | None


class TopicChanges:
    """Creates, changes and lists topics. Changes are decided in the order of writing. Lives on the
    event loop."""

    def __init__(
        self,
        store: OpenStore,
        state: StoreState,
        committer: WriteQueue,
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
        await self._update(topic, found, lambda _before: filled, partition_count)

    async def change(
        self, topic: TopicId, change: PropertyChange, *, is_dry_run: bool
    ) -> ChangedTopic:
        """Change the properties that are named, and no others; a dry run changes nothing.

        Raises: TopicNotFoundError, InvalidTopicPropertiesError.
        """
        found, record = require_topic(self._store, self._state, topic)
        fill = partial(self._changed, change)
        filled = fill(record.properties)
        expiring = await self._expiring(topic, found, record, ttl_s=int(filled["ttl"]))
        if not is_dry_run:
            record = await self._update(topic, found, fill, change.partition_count)
            return ChangedTopic(record.properties, record.partitions, expiring)
        partitions = record.partitions
        if change.partition_count is not None:
            partitions = partitions.resized(change.partition_count)
        return ChangedTopic(filled, partitions, expiring)

    async def _update(
        self, topic: TopicId, found: Topic, fill: Fill, partition_count: int | None
    ) -> TopicRecord:
        def decide(batch: WriteBatch) -> dict[Topic, TopicRecord]:
            # Even if the clock was set back, region observers may have removed messages that had
            # expired by then.
            handed_ms = self._state.metadata.handed_ms or None
            expire_ms = self._state.expiry_ms() if self._state.may_delete() else handed_ms
            present = found.require_decided()
            filled = fill(present.properties)
            changed = updated(present, filled, expire_ms=expire_ms)
            before = changed.partitions
            after = before if partition_count is None else before.resized(partition_count)
            records = {found: replace(changed, partitions=after)}
            for log in self._logs(topic, before):
                changed = updated(log.require_decided(), _of_partition(filled), expire_ms=expire_ms)
                records[log] = replace(changed, is_retired=log.id.number in after.retired)
            added = after.active[len(before.active) :]
            held = self._holds_of_all([*records.values()])
            new = self._new_partitions(topic, added, filled)
            return records | {log: _held(log, record, held, batch) for log, record in new.items()}

        present = found.require_decided()
        is_shorter = int(fill(present.properties)["ttl"]) < present.ttl_s
        records = await self._change(decide, makes_room=is_shorter and partition_count is None)
        return records[found]

    async def _expiring(
        self, topic: TopicId, found: Topic, record: TopicRecord, *, ttl_s: int
    ) -> Expiring | None:
        if ttl_s >= record.ttl_s:
            return None
        now_ms = self._state.expiry_ms()
        ranges, kept_from_ms = [], 0
        for log in (found, *self._logs(topic, record.partitions)):
            rule = log.rule_of(log.require_durable())
            first = max(rule.log_start, rule.live_from(now_ms=now_ms))
            kept_from = replace(rule, ttl_s=ttl_s, pending=None).live_from(now_ms=now_ms)
            prefix = log.prefix(rule.generation)
            if first < kept_from:
                ranges.append((message_key(prefix, first), message_key(prefix, kept_from)))
                kept_from_ms = max(kept_from_ms, kept_from.timestamp_ms)
        count, oldest_ms = await self._store.read(partial(_count_messages, ranges=ranges))
        if oldest_ms is None:
            return None
        return Expiring(count, count >= EXPIRING_ROWS_MAX, oldest_ms, kept_from_ms)

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

        await self._change(decide, makes_room=True)

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
            if await self._store.read(partial(_are_empty, starts=starts)):
                await self._change(partial(self._without, log, generation), makes_room=True)

    async def truncate(self, topic: TopicId, before: MessageId | int) -> MessageId | None:
        """Raise the log start to an id or a publish time, for all readers and for ever; returns the
        oldest message that is left. A topic is truncated with all its partitions.

        A doubtful clock does not prevent it: the caller named the start, and all later ids are
        behind it.

        Raises: TopicNotFoundError, TopicHeldError. StorageOutcomeUnknownError: it may be done.
        """
        found = require_topic(self._store, self._state, topic)[0]

        def decide(batch: WriteBatch) -> dict[Topic, TopicRecord]:
            log_start = min(first_id(before), MessageId(*offset_after(batch.last)))
            now_ms = self._state.expiry_ms()
            logs = [found]
            if topic.number is None:
                logs += self._logs(topic, found.require_decided().partitions)
            return {log: truncated(log.require_decided(), log_start, now_ms=now_ms) for log in logs}

        records = await self._change(decide, makes_room=True)
        try:
            logs = [topic]
            if len(records) > 1:
                logs = [topic.partition(log.id.number or 0) for log in records]
            earliest = [await self._offsets.earliest(each) for each in logs]
            return min((each for each in earliest if each is not None), default=None)
        except (OwnershipMovingError, StorageUnavailableError) as error:
            # These errors say that nothing was done.
            raise StorageOutcomeUnknownError(
                f"the topic is truncated, but {error.detail}"
            ) from None

    def get(self, topic: TopicId) -> TopicRecord:
        """Raises: TopicNotFoundError."""
        return require_topic(self._store, self._state, topic)[1]

    async def live(self, namespace: str | None) -> list[TopicId]:
        """The topics and logs of consumer groups that exist in a namespace, or in all, in byte
        order. Raises: StorageUnavailableError."""
        self._store.require_up()
        return [each for each in self._state.topics.live() if namespace in (None, each.namespace)]

    def figures(self) -> Iterator[tuple[TopicId, int, int]]:
        """The messages and payload bytes that were published to each topic since the start; topics
        without any are left out."""
        for topic in self._state.topics:
            if topic.messages_published and not topic.id.belongs_to_topic:
                yield topic.id, topic.messages_published, topic.bytes_published

    def _changed(self, change: PropertyChange, before: Mapping[str, str]) -> dict[str, str]:
        after = {name: text for name, text in before.items() if name not in change.removed}
        after |= change.given
        _require_size(after)
        names_ttl = "ttl" in change.given or "ttl" in change.removed
        return self._filled(after) if names_ttl else after

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
        """The records of a topic without a retired partition; none if the topic was deleted
        meanwhile, or if its row is damaged."""
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
        self._state.producers.delete(log.prefix(record.generation), batch)
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

    def _holds_of_all(self, records: Sequence[TopicRecord]) -> dict[str, Hold]:
        """The holds that all of these partitions have: they are of the topic."""
        now_ms = self._state.expiry_ms()
        found = [live_holds(each, now_ms=now_ms) for each in records]
        names = set.intersection(*(set(each) for each in found))
        by_first = attrgetter("first")
        return {name: min((each[name] for each in found), key=by_first) for name in names}

    async def _change(
        self, decide: Decide, *, makes_room: bool = False
    ) -> Mapping[Topic, TopicRecord]:
        """Write the records on which `decide` decides, as one batch."""

        def build(batch: WriteBatch) -> Mapping[Topic, TopicRecord]:
            records = decide(batch)
            for topic, record in records.items():
                batch.change_topic(topic, record)
                batch.touch(topic)
            return records

        if makes_room:
            return await self._committer.submit_making_room(build)
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


def _held(
    log: Topic, record: TopicRecord, holds: Mapping[str, Hold], batch: WriteBatch
) -> TopicRecord:
    """The record of a new partition with the holds of its topic."""
    for name, hold in holds.items():
        key = named_row_key(HOLDS, log.prefix(record.generation), name)
        batch.put(key, hold.to_bytes(key))
    return replace(record, holds=holds)


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


def _count_messages(
    store: Store, *, ranges: Sequence[tuple[bytes, bytes]]
) -> tuple[int, int | None]:
    """How many messages there are, up to a number of rows, and the publish time in ms of the first
    of them; those that were rolled back are none. Blocks."""
    count, row_count_seen, oldest_ms = 0, 0, None
    for start, stop in ranges:
        with closing(store.records(start, stop)) as records:
            for key, value in records:
                found = 1
                if is_packed(value):
                    found = row_count(value)
                else:
                    with suppress(DamagedRowError):
                        row = MessageRow.from_bytes(key, value)
                        is_message = row.tx_pointer is None or row.tx_pointer > 0
                        found = is_message * (1 if row.reference is None else row.reference.count)
                if found and (oldest_ms is None or offset_in(key).timestamp_ms < oldest_ms):
                    oldest_ms = offset_in(key).timestamp_ms
                count += found
                row_count_seen += row_count(value)
                if row_count_seen >= EXPIRING_ROWS_MAX:
                    return count, oldest_ms
    return count, oldest_ms


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
    handlers = _TopicRoutes(changes)
    return [
        Route(operations.TRUNCATE_TOPIC, handlers.truncate),
        Route(operations.UPDATE_TOPIC, handlers.update),
        Route(operations.CHANGE_TOPIC, handlers.change),
        Route(operations.CREATE_TOPIC, handlers.create),
        Route(operations.GET_TOPIC, handlers.get),
        Route(operations.DELETE_TOPIC, handlers.delete),
        *listing_routes(changes.live),
    ]


def listing_routes(live: Callable[[str | None], Awaitable[Sequence[TopicId]]]) -> list[Route]:
    """The HTTP routes that list namespaces, topics and consumer groups; `live` as in
    `TopicChanges`."""

    async def namespaces(request: Request) -> Reply:
        read_query(request.query, parameters=())
        topics = await live(None)
        return json_reply(sorted({each.namespace for each in topics if not each.is_internal}))

    async def names_in(request: Request) -> list[str]:
        read_query(request.query, parameters=())
        topics = await live(check_name(request.parameters["ns"], what="namespace"))
        return [each.name for each in topics]

    async def topics(request: Request) -> Reply:
        return json_reply([each for each in await names_in(request) if ":" not in each])

    async def groups(request: Request) -> Reply:
        names = await names_in(request)
        return json_reply([each[: -len(GROUP_LOG)] for each in names if each.endswith(GROUP_LOG)])

    return [
        Route(operations.LIST_NAMESPACES, namespaces),
        Route(operations.LIST_TOPICS, topics),
        Route(operations.LIST_GROUPS, groups),
    ]


def topic_body(topic: TopicId, record: TopicRecord) -> dict[str, object]:
    """The JSON of a topic or partition."""
    body: dict[str, object] = {
        "name": topic.name,
        "properties": dict(record.properties),
        "generation": record.generation,
    }
    if topic.number is None:
        body["partitions"] = record.partitions.active
        body["retired"] = record.partitions.retired
    return body


class _TopicRoutes:
    def __init__(self, changes: TopicChanges) -> None:
        self._changes = changes

    async def create(self, request: Request) -> Reply:
        topic, properties, count = self._named_properties(request)
        await self._changes.create(topic, properties, partition_count=1 if count is None else count)
        return EMPTY_REPLY

    async def update(self, request: Request) -> Reply:
        topic, properties, count = self._named_properties(request)
        await self._changes.update(topic, properties, partition_count=count)
        return EMPTY_REPLY

    async def change(self, request: Request) -> Reply:
        topic = _whole_topic(request, parameters={"dryRun"})
        value = _properties_value(request)
        removed = [name for name, given in value.items() if given is None]
        if kept := sorted({"generation", "partitions"} & set(removed)):
            raise InvalidTopicPropertiesError(f"{kept[0]} can't be removed; leave it out")
        given, count = parse_properties({k: v for k, v in value.items() if v is not None})
        changed = await self._changes.change(
            topic,
            PropertyChange(given, removed, count),
            is_dry_run=boolean(dict(request.query).get("dryRun", "false"), what="dryRun"),
        )
        return json_reply(
            {
                "properties": changed.properties,
                "partitions": changed.partitions.active,
                "retired": changed.partitions.retired,
                "expires": changed.expiring and to_json(changed.expiring),
            }
        )

    def _named_properties(self, request: Request) -> tuple[TopicId, Mapping[str, str], int | None]:
        topic = _whole_topic(request)
        return topic, *parse_properties(_properties_value(request))

    async def get(self, request: Request) -> Reply:
        topic = topic_of(request)
        return json_reply(topic_body(topic, self._changes.get(topic)))

    async def delete(self, request: Request) -> Reply:
        topic = _whole_topic(request)
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


def _properties_value(request: Request) -> Mapping[str, object]:
    require_json(request.content_type, request.body)
    if not request.body:
        return {}
    try:
        value = parse_json(request.body)
    except BadRequestError as error:
        raise InvalidTopicPropertiesError(error.detail) from None
    if not isinstance(value, dict):
        raise InvalidTopicPropertiesError(
            f"topic properties are a JSON object of strings or numbers, not {shown(value)}"
        )
    return {**value, **numbers_as_written(request.body)}


def _whole_topic(request: Request, *, parameters: Collection[str] = ()) -> TopicId:
    """The topic of a request, which may name no partition."""
    topic = topic_of(request, parameters=parameters)
    if topic.number is not None:
        raise BadRequestError(
            f"{topic} is a partition of {topic.base}: it is created, changed and deleted with the "
            "topic, whose property partitions is the number of its partitions"
        )
    return topic


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
    _require_size(properties)
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


def _require_size(properties: Mapping[str, str]) -> None:
    if sum(len(name) + len(text) for name, text in properties.items()) > PROPERTIES_BYTES_MAX:
        raise InvalidTopicPropertiesError(
            f"topic properties are longer than {PROPERTIES_BYTES_MAX} characters in all"
        )


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
