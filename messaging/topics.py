"""Topics: their metadata rows, and the registry in memory.

    topic row := flags(1) crc(4) generation(4, signed) log_start(20) JSON object of the properties

The row is never removed. Deleting a topic negates its generation; creating it again takes the next
one, so no row of the old topic can become visible again (protocol §2, design §5).
"""

import asyncio
import json
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from messaging.retention.expiry import TopicRule
from messaging.storage.rows import (
    DamagedRowError,
    Hold,
    Position,
    frame,
    prefix_of,
    topic_key,
    unframe_plain,
)
from tuff.protocol.errors import (
    DamagedRecordError,
    OwnershipMovingError,
    TopicExistsError,
    TopicNotFoundError,
)
from tuff.protocol.exchange import Request, read_query
from tuff.protocol.ids import FIRST_ID, MESSAGE_ID_SIZE, MessageId, TopicId, topic_id

TOPIC_PATH = "/v1/namespaces/{ns}/topics/{t}"
TTL_S_MAX = (1 << 31) - 1  # seconds; what a 32-bit reader of the property can hold

_GENERATION = struct.Struct(">i")
assert _GENERATION.size == 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A metadata row, and the topic's holds and positions by name, which have rows of their own.
    Messages before `log_start` are never shown again; `generation` is negative while the topic is
    deleted."""

    generation: int
    properties: Mapping[str, str]
    log_start: MessageId = FIRST_ID
    holds: Mapping[str, Hold] = field(default_factory=dict)
    positions: Mapping[str, Position] = field(default_factory=dict)
    ttl_s: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ttl_s", int(self.properties["ttl"]))

    @property
    def rule(self) -> TopicRule:
        """The retention rule of the topic, by this record alone."""
        return TopicRule(
            generation=self.generation,
            ttl_s=self.ttl_s,
            log_start=self.log_start.offset,
            holds=tuple(self.holds.values()),
        )

    def to_bytes(self, key: bytes) -> bytes:
        """The stored value under this key; holds and positions are not in it."""
        form = json.dumps(dict(self.properties), sort_keys=True, separators=(",", ":"))
        return frame(
            key, 0, _GENERATION.pack(self.generation) + self.log_start.to_bytes() + form.encode()
        )

    @classmethod
    def from_bytes(cls, key: bytes, value: bytes) -> "TopicRecord":
        """Raises: DamagedRowError."""
        body = unframe_plain(key, value)
        log_start_at = _GENERATION.size
        form_at = log_start_at + MESSAGE_ID_SIZE
        if len(body) < form_at:
            raise DamagedRowError(f"a topic row has {form_at} bytes or more, not {len(body)}")
        try:
            return cls(
                generation=_GENERATION.unpack_from(body)[0],
                log_start=MessageId.from_bytes(body[log_start_at:form_at]),
                properties=json.loads(body[form_at:]),
            )
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise DamagedRowError(f"no topic row has this body: {error}") from None


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
            f"the topic {topic} exists already; change its properties, or delete it first"
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
    that wait for the topic, in the order of arrival. `woken` is called with the id when they wake;
    None: no other work waits for changes of the topic.
    """

    id: TopicId
    decided: TopicRecord | None = None
    durable: TopicRecord | None = None
    damage: str | None = None
    is_released: bool = False  # another server of the cluster owns it, or is about to
    waiters: dict[asyncio.Event, None] = field(default_factory=dict)
    messages_published: int = 0
    bytes_published: int = 0
    woken: Callable[[TopicId], None] | None = None
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

    def require_decided(self) -> TopicRecord:
        """The record by which the next write is decided. Raises: TopicNotFoundError,
        DamagedRecordError."""
        return self._require(self.decided)

    def require_durable(self) -> TopicRecord:
        """The record that readers see. Raises: TopicNotFoundError, DamagedRecordError."""
        return self._require(self.durable)

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

    def _require(self, record: TopicRecord | None) -> TopicRecord:
        self.require_readable()
        if record is None or record.generation < 0:
            raise topic_not_found(self.id)
        return record

    def wake(self) -> None:
        """Wake all long polls that wait for the topic."""
        for waiter in self.waiters:
            waiter.set()
        if self.woken is not None:
            self.woken(self.id)


class TopicRegistry:
    """All topics that ever existed, by id; in a cluster those that this server owns. Lives on the
    event loop.

    `is_shared`: other servers own the topics that are not here, so it is not known here whether
    they exist. `log_woken` is called with the id of each log of delayed messages that is loaded or
    changed.
    """

    def __init__(self, *, log_woken: Callable[[TopicId], None], is_shared: bool = False) -> None:
        self.is_shared = is_shared
        self._log_woken = log_woken
        self._topics: dict[TopicId, Topic] = {}

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def load(self, topic: TopicId, record: TopicRecord | str | None) -> None:
        """Add a topic from its metadata row, or the reason why the row can't be read; None: it has
        no row yet."""
        loaded = self._topics[topic] = self._new(topic)
        if isinstance(record, str):
            loaded.damage = record
        elif record is not None:
            loaded.decided = loaded.durable = record
            loaded.wake()

    def is_foreign(self, topic: TopicId) -> bool:
        """Whether another server of the cluster owns a topic, or is about to: nothing of it may be
        written here."""
        found = self._topics.get(topic)
        return self.is_shared and (found is None or found.is_released)

    def remove(self, topic: TopicId) -> None:
        """Forget a topic that another server owns from now on. Requests under way that hold it are
        refused, and its long polls wake."""
        found = self._topics.pop(topic)
        found.is_released = True
        found.wake()

    def find(self, topic: TopicId) -> Topic:
        """The topic. Raises: TopicNotFoundError: no topic ever had this id; OwnershipMovingError:
        this server of a cluster does not own it."""
        found = self._topics.get(topic)
        if found is None:
            raise (ownership_moving if self.is_shared else topic_not_found)(topic)
        return found

    def maybe_find(self, topic: TopicId) -> Topic | None:
        """The topic, or None if no topic ever had this id."""
        return self._topics.get(topic)

    def find_or_add(self, topic: TopicId) -> Topic:
        """The topic, added if it is new; it exists for clients once it has a durable row. Raises:
        OwnershipMovingError: this server of a cluster does not own it."""
        if self.is_shared:
            return self.find(topic)
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = self._new(topic)
        return found

    def _new(self, topic: TopicId) -> Topic:
        return Topic(topic, woken=self._log_woken if topic.is_delayed_log else None)

    def live(self) -> Iterator[TopicId]:
        """All topics that exist, in byte order, less the logs of their delayed messages."""
        for topic in sorted(self._topics):
            record = self._topics[topic].durable
            if record is not None and record.generation > 0 and not topic.is_delayed_log:
                yield topic


def ownership_moving(topic: TopicId) -> OwnershipMovingError:
    """The error for a topic that another server of the cluster owns, or is about to."""
    return OwnershipMovingError(
        f"the topic {topic} is moving to another server, or has moved; try again"
    )


def topic_not_found(topic: TopicId) -> TopicNotFoundError:
    """The error for a topic that does not exist, the same in all calls."""
    return TopicNotFoundError(f"there is no topic {topic}: it was never created, or it was deleted")


def topic_was_replaced(topic: TopicId) -> TopicNotFoundError:
    """The error for a write to an older generation, whether or not a new one exists."""
    return TopicNotFoundError(
        f"the topic {topic} was deleted while the request was under way; if it is there again, it "
        "is another one, and has none of the old messages"
    )


def topic_of(request: Request, *, parameters: Collection[str] = ()) -> TopicId:
    """The topic in the path of a request, whose query may have only these `parameters`.

    Raises: BadRequestError (its kinds).
    """
    read_query(request.query, parameters=parameters)
    return topic_id(request.parameters["ns"], request.parameters["t"])
