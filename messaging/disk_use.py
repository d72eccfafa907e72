"""What the store takes on its disk, by table and by topic, and a retention pass on request.

Lives on the event loop; threads ask the engine (protocol §7). Sizes are the engine's estimates for
its files: rows in memory do not count.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernel.requests_and_replies import Reply, Request, Route, json_reply, read_object, read_query
from messaging.engines.row_store import Store
from messaging.engines.space_on_disk import SpaceOnDisk
from messaging.log.state_in_memory import OpenStore, StoreState
from messaging.log.topics import Topic, topic_of
from messaging.model.row_format import (
    DELAYED,
    MESSAGES,
    PAYLOADS,
    message_key,
    prefix_of,
    prefix_stop,
)
from messaging.retention.cleaner import RetentionCleaner
from tuff.protocol import operations
from tuff.protocol.ids import TopicId
from tuff.protocol.json_objects import to_json

TOPICS_COUNT_MAX = 100  # of a reply: those that take most

_TABLES = {MESSAGES: "messages", PAYLOADS: "stored payloads", DELAYED: "delayed messages"}
_ALL_KEYS = (b"\x00", b"\xff")

_KeyRange = tuple[bytes, bytes]  # start <= key < stop


@dataclass(frozen=True, slots=True)
class TopicSpace:
    """The bytes of a topic that are live, and those that its files take. The rest has expired, was
    truncated or belongs to a deleted topic of that name, and waits for a compaction."""

    live_bytes: int
    disk_bytes: int

    def plus(self, other: "TopicSpace") -> "TopicSpace":
        """Both together."""
        return TopicSpace(self.live_bytes + other.live_bytes, self.disk_bytes + other.disk_bytes)


class DiskUse:
    """Asks the store for sizes, and has what can be freed freed."""

    def __init__(
        self, store: OpenStore, state: StoreState, space: SpaceOnDisk, cleaner: RetentionCleaner
    ) -> None:
        self._store = store
        self._state = state
        self._space = space
        self._cleaner = cleaner

    async def of_topic(self, topic: TopicId) -> TopicSpace:
        """A topic with all its partitions, or one of them. Raises: TopicNotFoundError,
        StorageUnavailableError."""
        record = self._state.topics.find(topic).require_durable()
        numbers = record.partitions.readable if topic.number is None else (topic.number,)
        logs = [self._state.topics.maybe_find(topic.partition(each).log) for each in numbers]
        found = await self._sizes([each for each in logs if each is not None])
        return found.get(topic.base, TopicSpace(0, 0))

    async def body(self) -> dict[str, object]:
        """The reply about the disks and the whole store. Raises: StorageUnavailableError."""
        tables = await self._store.read(_table_sizes)
        topics = await self._sizes(list(self._state.topics))
        largest = sorted(topics.items(), key=lambda each: -each[1].disk_bytes)
        return {
            "disks": [to_json(each) for each in self._space.disks()],
            "tables": [{"name": name, "diskBytes": size} for name, size in tables.items()],
            "topics": [
                {"namespace": topic.namespace, "name": topic.name, **to_json(space)}
                for topic, space in largest[:TOPICS_COUNT_MAX]
                if space.disk_bytes
            ],
            "topicCount": len(topics),
        }

    async def reclaim(self) -> dict[str, object]:
        """Delete what has expired, and free the space of all that was deleted, within the bounds of
        a retention pass. Raises: UnavailableError (its kinds)."""
        freed = await self._cleaner.run_requested_pass()
        return {"freedBytes": freed.size_bytes, "isComplete": freed.is_complete}

    async def _sizes(self, topics: Sequence[Topic]) -> dict[TopicId, TopicSpace]:
        """The sizes of these logs, those of the partitions of a topic together."""
        logs = [(each.id.base, *self._ranges(each)) for each in topics if each.durable is not None]
        sizes = await self._store.read(
            lambda store: [(size_of(store, live), size_of(store, disk)) for _, live, disk in logs]
        )
        found: dict[TopicId, TopicSpace] = {}
        for (topic, _, _), size in zip(logs, sizes, strict=True):
            found[topic] = found.get(topic, TopicSpace(0, 0)).plus(TopicSpace(*size))
        return found

    def _ranges(self, topic: Topic) -> tuple[list[_KeyRange], list[_KeyRange]]:
        """The keys of the rows that are live, and of all."""
        record = topic.durable
        assert record is not None
        stop = prefix_of(topic.id, abs(record.generation) + 1)
        disk = [(table + prefix_of(topic.id, 0), table + stop) for table in _TABLES]
        if record.generation < 0:  # it was deleted
            return [], disk
        prefix = topic.prefix(record.generation)
        live_from = topic.rule_of(record).live_from(now_ms=self._state.expiry_ms())
        first = message_key(prefix, max(live_from, record.log_start.offset))
        live = [(first, MESSAGES + stop)]
        live += [(table + prefix, table + stop) for table in (PAYLOADS, DELAYED)]
        return live, disk


def size_of(store: Store, ranges: Iterable[_KeyRange]) -> int:
    """The bytes of these ranges in the engine's files. Raises: StoreError."""
    return sum(store.approximate_size(*each) for each in ranges if each[0] < each[1])


def _table_sizes(store: Store) -> dict[str, int]:
    sizes = {name: size_of(store, [(tag, prefix_stop(tag))]) for tag, name in _TABLES.items()}
    return {**sizes, "other": max(0, size_of(store, [_ALL_KEYS]) - sum(sizes.values()))}


def routes(use: DiskUse) -> list[Route]:
    """The HTTP routes of the space on disk."""

    async def of_topic(request: Request) -> Reply:
        return json_reply(to_json(await use.of_topic(topic_of(request))))

    async def show(request: Request) -> Reply:
        read_query(request.query, parameters=())
        return json_reply(await use.body())

    async def reclaim(request: Request) -> Reply:
        read_query(request.query, parameters=())
        read_object(request.body, request.content_type, members=(), what="the reclaiming of space")
        return json_reply(await use.reclaim())

    return [
        Route(operations.GET_TOPIC_SPACE, of_topic),
        Route(operations.SHOW_DISK, show),
        Route(operations.RECLAIM_SPACE, reclaim),
    ]
