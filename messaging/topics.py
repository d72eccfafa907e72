"""Topics: their metadata rows, the rules by which these change, and the registry in memory.

    topic row := flags(1) crc(4) generation(4, signed) log_start(20) JSON object of the properties

The row is never removed. Deleting a topic negates its generation; creating it again takes the next
one, so no row of the old topic can become visible again (protocol §2, design §5).
"""

import asyncio
import json
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from messaging.retention.decision import TopicRule
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
    InvalidTopicPropertiesError,
    TopicExistsError,
    TopicHeldError,
    TopicNotFoundError,
)
from tuff.protocol.exchange import Request, read_query
from tuff.protocol.ids import FIRST_ID, MESSAGE_ID_SIZE, MessageId, TopicId, topic_id
from tuff.protocol.json_forms import shown

TOPIC_PATH = "/v1/namespaces/{ns}/topics/{t}"
TTL_S_MAX = (1 << 31) - 1  # seconds; what a 32-bit reader of the property can hold
PROPERTIES_BYTES_MAX = 65_536  # bytes of all names and values; 10,000 topics stay within memory

_GENERATION = struct.Struct(">i")
assert _GENERATION.size == 4


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """What a GET of a topic returns."""

    topic: TopicId
    generation: int
    properties: Mapping[str, str]


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


def parse_properties(value: object) -> dict[str, str]:
    """The properties in a decoded JSON body, as strings; a `ttl` without leading zeros.

    Raises:
        InvalidTopicPropertiesError: not an object, a value that is neither string nor number, a bad
            `ttl`, or `generation`, which only the server sets.
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
        properties["ttl"] = str(_ttl(properties["ttl"]))
    return properties


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


def _ttl(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 20 and 1 <= int(text) <= TTL_S_MAX:
        return int(text)
    raise InvalidTopicPropertiesError(
        f"ttl is whole seconds from 1 to {TTL_S_MAX}, not {text[:40]!r}"
    )


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


def updated(
    record: TopicRecord, properties: Mapping[str, str], *, expire_ms: int | None
) -> TopicRecord:
    """The record with new properties. `expire_ms` is the current time, or None while messages may
    not expire for good."""
    changed = replace(record, properties=properties)
    # A longer time to live must not bring back messages that readers were told have expired; it
    # would bring back only those that no retention pass had removed yet. So the log start rises.
    if expire_ms is None or changed.ttl_s <= record.ttl_s:
        return changed
    return with_log_start(changed, MessageId(*record.rule.live_from(now_ms=expire_ms)))


def deleted(record: TopicRecord) -> TopicRecord:
    """The record of a deleted topic, without its holds and positions."""
    assert record.generation > 0
    return replace(record, generation=-record.generation, holds={}, positions={})


def truncated(record: TopicRecord, log_start: MessageId, *, now_ms: int) -> TopicRecord:
    """The record with its log start raised to this id by a truncation.

    Raises:
        TopicHeldError: a hold keeps messages before it.
    """
    names = [name for name, hold in alive(record, now_ms=now_ms).items() if hold.first < log_start]
    if names and log_start > record.log_start:
        raise TopicHeldError(
            f"messages before {log_start.hex()} are held by {', '.join(names)}; delete what holds "
            "them first, or truncate before it",
            members={"holds": names},
        )
    return with_log_start(record, log_start)


def alive(record: TopicRecord, *, now_ms: int) -> dict[str, Hold]:
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
    waiters: dict[asyncio.Event, None] = field(default_factory=dict)
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
        was told has expired must not come back when the change is durable. A hold whose deletion is
        being written counts until it is deleted, since the write may fail."""
        decided, rule = self.decided, record.rule
        if decided is record or decided is None or decided.generation != record.generation:
            return rule
        return replace(rule, coming=decided.rule)

    def require_decided(self) -> TopicRecord:
        """The record by which the next write is decided. Raises: TopicNotFoundError,
        DamagedRecordError."""
        return self._require(self.decided)

    def require_durable(self) -> TopicRecord:
        """The record that readers see. Raises: TopicNotFoundError, DamagedRecordError."""
        return self._require(self.durable)

    def require_readable(self) -> None:
        """Raises: DamagedRecordError: its row can't be read, so its generation is unknown."""
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


class TopicRegistry:
    """All topics that ever existed, by id. Lives on the event loop."""

    def __init__(self) -> None:
        self._topics: dict[TopicId, Topic] = {}

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def load(self, topic: TopicId, record: TopicRecord | str) -> None:
        """Add a topic from its metadata row, or the reason why the row can't be read."""
        if isinstance(record, str):
            self._topics[topic] = Topic(topic, damage=record)
        else:
            self._topics[topic] = Topic(topic, decided=record, durable=record)

    def find(self, topic: TopicId) -> Topic:
        """The topic. Raises: TopicNotFoundError: no topic ever had this id."""
        found = self._topics.get(topic)
        if found is None:
            raise topic_not_found(topic)
        return found

    def maybe_find(self, topic: TopicId) -> Topic | None:
        """The topic, or None if no topic ever had this id."""
        return self._topics.get(topic)

    def find_or_add(self, topic: TopicId) -> Topic:
        """The topic, added if it is new; it exists for clients once it has a durable row."""
        return self._topics.setdefault(topic, Topic(topic))

    def live(self) -> Iterator[TopicInfo]:
        """All topics that exist, in byte order."""
        for topic in sorted(self._topics.values(), key=lambda each: each.id):
            record = topic.durable
            if record is not None and record.generation > 0:
                yield TopicInfo(topic.id, record.generation, record.properties)


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
