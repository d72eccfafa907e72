"""Topics: their metadata rows, and the registry in memory.

    topic row := flags(1) crc(4) generation(4, signed) log_start(20) JSON object of the properties
    flags     := 1 the object has the properties and the partitions | 2 is a retired partition

The row is never removed. Deleting a topic negates its generation; creating it again takes the next
one, so no row of the old topic can become visible again (protocol §2, design §5). Each partition
has a topic row; that of the topic itself, which is partition 0, says which others there are.
"""

import asyncio
import json
import struct
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from kernel.requests_and_replies import Request, read_query
from messaging.model.expiry import TopicRule
from messaging.model.partitions import ONE_PARTITION, Partitions
from messaging.model.row_format import (
    DamagedRowError,
    Hold,
    Position,
    frame,
    newer_flags,
    prefix_of,
    topic_key,
    unframe,
)
from tuff.protocol.errors import (
    DamagedRecordError,
    OwnershipMovingError,
    PartitionRequiredError,
    PartitionRetiredError,
    TopicExistsError,
    TopicNotFoundError,
)
from tuff.protocol.ids import FIRST_ID, GROUP_LOG, MESSAGE_ID_SIZE, MessageId, TopicId, topic_id

TTL_S_MAX = (1 << 31) - 1  # seconds; what a 32-bit reader of the property can hold

_HAS_PARTITIONS, _IS_RETIRED = 1, 2  # flags of a topic row
_GENERATION = struct.Struct(">i")
assert _GENERATION.size == 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A metadata row, and the topic's holds and positions by name, which have rows of their own.
    Messages before `log_start` are never shown again; `generation` is negative while the topic is
    deleted. `partitions` are those of a topic, and `is_retired` is that of a partition."""

    generation: int
    properties: Mapping[str, str]
    log_start: MessageId = FIRST_ID
    holds: Mapping[str, Hold] = field(default_factory=dict)
    positions: Mapping[str, Position] = field(default_factory=dict)
    partitions: Partitions = ONE_PARTITION
    is_retired: bool = False
    ttl_s: int = field(init=False)
    rule: TopicRule = field(init=False, repr=False, compare=False)  # of retention, by this record

    def __post_init__(self) -> None:
        object.__setattr__(self, "ttl_s", int(self.properties["ttl"]))
        rule = TopicRule(
            generation=self.generation,
            ttl_s=self.ttl_s,
            log_start=self.log_start.offset,
            holds=tuple(self.holds.values()),
        )
        object.__setattr__(self, "rule", rule)

    def to_bytes(self, key: bytes) -> bytes:
        """The stored value under this key; holds and positions are not in it."""
        members: dict[str, object] = dict(self.properties)
        flags = _IS_RETIRED if self.is_retired else 0
        if self.partitions != ONE_PARTITION:
            members = {"properties": members, **self.partitions.to_json()}
            flags |= _HAS_PARTITIONS
        text = json.dumps(members, sort_keys=True, separators=(",", ":"))
        return frame(
            key,
            flags,
            _GENERATION.pack(self.generation) + self.log_start.to_bytes() + text.encode(),
        )

    @classmethod
    def from_bytes(cls, key: bytes, value: bytes) -> "TopicRecord":
        """Raises: DamagedRowError."""
        flags, body = unframe(key, value)
        if flags & ~(_HAS_PARTITIONS | _IS_RETIRED):
            raise newer_flags(flags)
        log_start_at = _GENERATION.size
        members_at = log_start_at + MESSAGE_ID_SIZE
        if len(body) < members_at:
            raise DamagedRowError(f"a topic row has {members_at} bytes or more, not {len(body)}")
        try:
            members = json.loads(body[members_at:])
            is_divided = flags & _HAS_PARTITIONS
            return cls(
                generation=_GENERATION.unpack_from(body)[0],
                log_start=MessageId.from_bytes(body[log_start_at:members_at]),
                properties=members["properties"] if is_divided else members,
                partitions=Partitions.from_json(members) if is_divided else ONE_PARTITION,
                is_retired=bool(flags & _IS_RETIRED),
            )
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise DamagedRowError(f"no topic row has this body: {error}") from None

    def is_several(self, topic: TopicId) -> bool:
        """Whether the id names this topic with all its partitions, and it has several."""
        return (
            self.partitions is not ONE_PARTITION
            and topic.number is None
            and len(self.partitions.readable) > 1
        )

    def require_one_log(self, topic: TopicId) -> None:
        """Raises: PartitionRequiredError: the id names a topic with several partitions, and none of
        these."""
        if self.is_several(topic):
            numbers = self.partitions.readable
            raise PartitionRequiredError(
                f"the topic {topic} has {len(numbers)} partitions, and this call is for one of "
                f"them; name it: {topic}/{numbers[-1]} in a program or a command, "
                f"{topic.name}:{numbers[-1]} in a path",
                members={"partitions": list(numbers)},
            )


def partition_rows(
    records: Mapping[TopicId, TopicRecord],
) -> dict[TopicId, dict[int, TopicRecord]]:
    """The records of the partitions that exist besides the topics themselves, by topic and number;
    also for topics without any. The log of a consumer group is of no topic."""
    found: dict[TopicId, dict[int, TopicRecord]] = {}
    for topic, record in records.items():
        if topic.name.endswith(GROUP_LOG):
            continue
        of_topic = found.setdefault(topic.base, {})
        if topic.number is not None and record.generation > 0:
            of_topic[topic.number] = record
    return found


def created(
    record: TopicRecord | None, topic: TopicId, properties: Mapping[str, str]
) -> TopicRecord:
    """The record of a topic that is created, for the first time or again.

    Raises:
        TopicExistsError: it exists.
    """
    if record is None:
        return TopicRecord(generation=1, properties=properties)
    if record.generation > 0:
        raise TopicExistsError(
            f"the topic {topic} exists already; change its properties, delete it first, or keep "
            "it: exist_ok=True in Python, --if-not-exists in a command"
        )
    return TopicRecord(generation=1 - record.generation, properties=properties)


def live_holds(record: TopicRecord, *, now_ms: int) -> dict[str, Hold]:
    """The holds that have not expired."""
    return {name: each for name, each in record.holds.items() if now_ms < each.expires_at_ms}


def with_log_start(record: TopicRecord, log_start: MessageId) -> TopicRecord:
    """The record with its log start raised to this id, never lowered."""
    return replace(record, log_start=max(record.log_start, log_start))


@dataclass(slots=True, eq=False)
class Topic:
    """One topic in memory. Lives on the event loop.

    Writes are decided by the record `decided`; readers see `durable`. They differ while a change is
    being written. `damage` says how its row is damaged and what to do. `waiters` are the long polls
    that wait for the topic, in the order of arrival.
    """

    id: TopicId
    decided: TopicRecord | None = None
    durable: TopicRecord | None = None
    damage: str | None = None
    is_released: bool = False  # another server of the cluster owns it, or is about to
    waiters: dict[asyncio.Event, None] = field(default_factory=dict)
    turn: int = 0  # of the partitions, for messages without a key
    messages_published: int = 0
    bytes_published: int = 0
    _prefix: tuple[int, bytes] = (0, b"")

    def prefix(self, generation: int) -> bytes:
        """The prefix of the row keys of a generation."""
        if self._prefix[0] != generation:
            self._prefix = (generation, prefix_of(self.id, generation))
        return self._prefix[1]

    def rule_of(self, record: TopicRecord) -> TopicRule:
        """The retention rule for readers and for retention, by this durable record. A hold or a
        longer time to live that is still being written counts already: a message that a reader
        found expired must not come back when the change is durable. A hold whose deletion is
        being written counts until it is deleted, since the write may fail."""
        decided, rule = self.decided, record.rule
        if decided is record or decided is None or decided.generation != record.generation:
            return rule
        return replace(rule, pending=decided.rule)

    def has_generation(self, generation: int) -> bool:
        """Whether the next write goes to this generation. Raises: DamagedRecordError,
        OwnershipMovingError."""
        self.require_readable()
        return self.decided is not None and self.decided.generation == generation

    def require_decided(self) -> TopicRecord:
        """The record by which the next write is decided. Raises: TopicNotFoundError,
        DamagedRecordError."""
        record = self.decided
        if self.is_released or self.damage is not None:
            self.require_readable()
        if record is None or record.generation < 0:
            raise topic_not_found(self.id)
        return record

    def require_durable(self) -> TopicRecord:
        """The record that readers see. Raises: TopicNotFoundError, DamagedRecordError."""
        record = self.durable
        if self.is_released or self.damage is not None:
            self.require_readable()
        if record is None or record.generation < 0:
            raise topic_not_found(self.id)
        return record

    def require_readable(self) -> None:
        """Raises: DamagedRecordError: its row can't be read, so its generation is unknown;
        OwnershipMovingError: another server owns it."""
        if self.is_released:
            raise ownership_moving(self.id)
        if self.damage is not None:
            raise DamagedRecordError(
                f"the metadata of the topic {self.id} {self.damage}",
                members={"id": topic_key(self.id).hex(), "next": None},
            )

    def wake(self) -> None:
        """Wake all long polls that wait for the topic."""
        for waiter in self.waiters:
            waiter.set()


class TopicRegistry:
    """All topics that ever existed, by id; in a cluster those that this server owns. Lives on the
    event loop.

    `is_shared`: other servers own the topics that are not here, so it is not known here whether
    they exist.
    """

    def __init__(self, *, is_shared: bool = False) -> None:
        self.is_shared = is_shared
        self._topics: dict[TopicId, Topic] = {}
        self._units: defaultdict[TopicId, list[Topic]] = defaultdict(list)  # what has one owner

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def load(self, topic: TopicId, record: TopicRecord | str | None) -> None:
        """Add a topic from its metadata row, or the reason why the row can't be read; None: it has
        no row yet."""
        loaded = self._add(topic)
        if isinstance(record, str):
            loaded.damage = record
        elif record is not None:
            loaded.decided = loaded.durable = record

    def is_foreign(self, topic: TopicId) -> bool:
        """Whether another server of the cluster owns a topic, or is about to: nothing of it may be
        written here."""
        found = self._topics.get(topic.unit)
        return self.is_shared and (found is None or found.is_released)

    def unit(self, topic: TopicId) -> list[Topic]:
        """The topic, its partitions, and the logs of their share groups."""
        return list(self._units.get(topic, ()))

    def remove(self, topic: TopicId) -> None:
        """Forget a topic that another server owns from now on. Requests under way that hold it are
        refused, and its long polls wake."""
        found = self._topics.pop(topic)
        self._units[topic.unit].remove(found)
        if not self._units[topic.unit]:
            del self._units[topic.unit]
        found.is_released = True
        found.wake()

    def find(self, topic: TopicId) -> Topic:
        """The topic or partition. Raises: TopicNotFoundError: no topic ever had this id;
        OwnershipMovingError: this server of a cluster does not own it."""
        found = self._topics.get(topic) or self._topics.get(topic.log)
        if found is None:
            raise ownership_moving(topic) if self.is_foreign(topic) else self._not_found(topic)
        return found

    def _not_found(self, topic: TopicId) -> TopicNotFoundError:
        base = self._topics.get(topic.base)
        record = None if topic.number is None or base is None else base.durable
        if record is None or record.generation < 0:
            return topic_not_found(topic)
        numbers = record.partitions.readable
        return TopicNotFoundError(
            f"there is no topic {topic}: {topic.base} has {len(numbers)} "
            f"{'partition' if len(numbers) == 1 else 'partitions'}, the last of which is "
            f"{topic.base}:{numbers[-1]}; name one of them, or the topic"
        )

    def maybe_find(self, topic: TopicId) -> Topic | None:
        """The topic, or None if no topic ever had this id."""
        return self._topics.get(topic)

    def find_or_add(self, topic: TopicId) -> Topic:
        """The topic, added if it is new; it exists for clients once it has a durable row. Raises:
        OwnershipMovingError: this server of a cluster does not own it."""
        if self.is_foreign(topic):
            raise ownership_moving(topic)
        return self._topics.get(topic) or self._add(topic)

    def _add(self, topic: TopicId) -> Topic:
        made = Topic(topic)
        self._topics[topic] = made
        self._units[topic.unit].append(made)
        return made

    def live(self) -> Iterator[TopicId]:
        """All topics and logs of consumer groups that exist, in byte order; partitions and the logs
        that belong to a topic are left out."""
        for topic in sorted(self._topics):
            record = self._topics[topic].durable
            # Most have no part behind the name, and need no look at it.
            is_part = topic.is_internal and (topic.number is not None or topic.belongs_to_topic)
            if record is not None and record.generation > 0 and not is_part:
                yield topic


def ownership_moving(topic: TopicId) -> OwnershipMovingError:
    """The error for a topic that another server of the cluster owns, or is about to."""
    return OwnershipMovingError(
        f"the topic {topic} is moving to another server, or has moved; try again"
    )


def topic_not_found(topic: TopicId) -> TopicNotFoundError:
    """The error for a topic that does not exist, the same in all calls."""
    return TopicNotFoundError(f"there is no topic {topic}", members={"topic": str(topic.base)})


def topic_was_replaced(topic: TopicId) -> TopicNotFoundError:
    """The error for a write to an older generation, whether or not a new one exists."""
    return TopicNotFoundError(
        f"the topic {topic} was deleted while the request was under way; if it is there again, it "
        "is another one, and has none of the old messages"
    )


def partition_retired(partition: TopicId) -> PartitionRetiredError:
    """The error for a write to a retired partition."""
    return PartitionRetiredError(
        f"the partition {partition} is retired: it can be read until its messages expire, and "
        f"takes no more; publish to {partition.base}, or to one of its other partitions"
    )


def topic_of(request: Request, *, parameters: Collection[str] = ()) -> TopicId:
    """The topic or partition in the path of a request, whose query has only these `parameters`.

    Raises: BadRequestError (its kinds).
    """
    read_query(request.query, parameters=parameters)
    return topic_id(request.parameters["ns"], request.parameters["t"])
