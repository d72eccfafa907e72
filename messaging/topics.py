"""Topics: their metadata rows, the rules by which these change, and all of them in memory.

    topic row := flags(1) crc(4) generation(4, signed) log_start(20) JSON object of the properties

The row stays for ever. Deleting negates the generation; creating again takes the next one, so no
row of the old topic can be met again (protocol §2, design §5).
"""

import asyncio
import json
import struct
from collections.abc import Iterator, Mapping
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
from tuff.protocol.ids import FIRST_ID, MESSAGE_ID_SIZE, MessageId, TopicId
from tuff.protocol.json_forms import shown

TTL_S_MAX = (1 << 31) - 1  # seconds; what a 32-bit reader of the property can hold
PROPERTIES_BYTES_MAX = 65_536  # bytes of all names and values; 10,000 topics stay within memory

_GENERATION = struct.Struct(">i")
assert _GENERATION.size == 4


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """What GET tells of a topic."""

    topic: TopicId
    generation: int
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A metadata row, and the topic's holds and positions, by name, which have rows of their own.
    Nothing before `floor` is ever shown again; `generation` is negative while the topic is
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
        """What retention needs of it."""
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
        floor_at = _GENERATION.size
        form_at = floor_at + MESSAGE_ID_SIZE
        if len(body) < form_at:
            raise DamagedRowError(f"a topic row has {form_at} bytes or more, not {len(body)}")
        try:
            return cls(
                generation=_GENERATION.unpack_from(body)[0],
                log_start=MessageId.from_bytes(body[floor_at:form_at]),
                properties=json.loads(body[form_at:]),
            )
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise DamagedRowError(f"no topic row has this body: {error}") from None


def parse_properties(value: object) -> dict[str, str]:
    """The properties that a decoded JSON body names, as strings; a `ttl` without leading zeros.

    Raises:
        InvalidTopicPropertiesError: no object, a value that is neither string nor number, a bad
            `ttl`, or `generation`, which is the server's.
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
    """The row of a topic that is created now, for the first time or again.

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
    """The row with new properties. `expire_ms` is the time now, or None while nothing may expire
    for good."""
    changed = replace(record, properties=properties)
    # Without the log start a longer time to live would bring back what a reader was told is gone,
    # and only those rows that no retention pass had come across yet.
    if expire_ms is None or changed.ttl_s <= record.ttl_s:
        return changed
    return with_log_start(changed, MessageId(*record.rule.live_from(now_ms=expire_ms)))


def deleted(record: TopicRecord) -> TopicRecord:
    """The row of the topic once it is deleted, without its holds and positions."""
    assert record.generation > 0
    return replace(record, generation=-record.generation, holds={}, positions={})


def truncated(record: TopicRecord, log_start: MessageId, *, now_ms: int) -> TopicRecord:
    """The row with its log start raised to this id, as a truncation asks for it.

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
    """The holds that are not over."""
    return {name: each for name, each in record.holds.items() if now_ms < each.expires_at_ms}


def with_log_start(record: TopicRecord, log_start: MessageId) -> TopicRecord:
    """The row with its log start raised to this id, never lowered."""
    return replace(record, log_start=max(record.log_start, log_start))


@dataclass(slots=True, eq=False)
class Topic:
    """One topic in memory. Lives on the event loop.

    `decided` is what writes are decided by; `durable` what readers see. They differ while a
    change is on its way to the disk. `damage` says what is wrong with its row and what to do.
    `waiters` are the long polls that sleep on the topic, in the order in which they came.
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
        """What the row keys of a generation begin with."""
        if self._prefix[0] != generation:
            self._prefix = (generation, prefix_of(self.id, generation))
        return self._prefix[1]

    def rule_of(self, record: TopicRecord) -> TopicRule:
        """What readers and retention go by, with this durable record. A hold or a longer time to
        live on its way to the disk counts already: what a reader was told is expired must not come
        back once it is there. A hold on its way out counts until it is gone, as it may stay."""
        decided, rule = self.decided, record.rule
        if decided is record or decided is None or decided.generation != record.generation:
            return rule
        return replace(rule, coming=decided.rule)

    def require_decided(self) -> TopicRecord:
        """What the next write goes by. Raises: TopicNotFoundError, DamagedRecordError."""
        return self._require(self.decided)

    def require_durable(self) -> TopicRecord:
        """What a reader sees. Raises: TopicNotFoundError, DamagedRecordError."""
        return self._require(self.durable)

    def require_whole(self) -> None:
        """Raises: DamagedRecordError: its row can't be read, so its generation is not known."""
        if self.damage is not None:
            raise DamagedRecordError(
                f"the metadata of the topic {self.id} {self.damage}",
                members={"id": topic_key(self.id).hex(), "next": None},
            )

    def _require(self, record: TopicRecord | None) -> TopicRecord:
        self.require_whole()
        if record is None or record.generation < 0:
            raise topic_not_found(self.id)
        return record

    def wake(self) -> None:
        """Let every long poll on the topic look again."""
        for waiter in self.waiters:
            waiter.set()


class TopicRegistry:
    """All topics that ever were, by id. Lives on the event loop."""

    def __init__(self) -> None:
        self._topics: dict[TopicId, Topic] = {}

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def load(self, topic: TopicId, record: TopicRecord | str) -> None:
        """Take in a metadata row that was read, or the reason why it could not be."""
        if isinstance(record, str):
            self._topics[topic] = Topic(topic, damage=record)
        else:
            self._topics[topic] = Topic(topic, decided=record, durable=record)

    def find(self, topic: TopicId) -> Topic:
        """The topic. Raises: TopicNotFoundError: there never was one of that name."""
        found = self._topics.get(topic)
        if found is None:
            raise topic_not_found(topic)
        return found

    def maybe_find(self, topic: TopicId) -> Topic | None:
        """The topic, or None when there never was one of that name."""
        return self._topics.get(topic)

    def find_or_add(self, topic: TopicId) -> Topic:
        """The topic, added if it is new; it exists for callers once it has a durable row."""
        return self._topics.setdefault(topic, Topic(topic))

    def live(self) -> Iterator[TopicInfo]:
        """Every topic that exists, in byte order."""
        for topic in sorted(self._topics.values(), key=lambda each: each.id):
            record = topic.durable
            if record is not None and record.generation > 0:
                yield TopicInfo(topic.id, record.generation, record.properties)


def topic_not_found(topic: TopicId) -> TopicNotFoundError:
    """The refusal of every call, whether or not its caller wants the topic to be there."""
    return TopicNotFoundError(f"there is no topic {topic}: it was never created, or it was deleted")


def topic_was_replaced(topic: TopicId) -> TopicNotFoundError:
    """The refusal of what was meant for an older generation, whether or not there is a new one."""
    return TopicNotFoundError(
        f"the topic {topic} was deleted while the request was under way; if it is there again, it "
        "is another one, and has none of the old messages"
    )
