"""Names and positions: namespaces, topics, offsets, floors, message ids (protocol §1; design §5).

    message id = publish_ts(8) seq(2) write_ts(8) payload_seq(2)      big-endian, 20 bytes

Byte order is message order. The last two are 0 for a payload that is stored inline. Readers count
through ids as one 160-bit number, so that "after this id" is "from the next number on".
"""

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, total_ordering
from typing import NamedTuple, overload

from tuff.protocol.errors import InvalidMessageIdError, InvalidNameError
from tuff.protocol.values import frozen_value

NAME_LENGTH_MAX = 128  # characters; keeps a row key prefix under 300 bytes
SINK_NAME_LENGTH_MAX = 128  # characters, as for these names
TOPIC_IDS_COUNT_MAX = 4_096  # cached topics, whose names are not checked again
PARTITION_NUMBER_MAX = 9_999  # of all partitions that a topic ever had; four digits of a name
MESSAGE_ID_SIZE = 20  # bytes
GROUP_LOG = ":group"  # behind the name of a consumer group: its log
SHARE_LOG = ":share"  # behind the names of a partition and of a share group: its log
SEQ_ID_LIMIT = 65_536  # rows of one millisecond; a sequence id has 16 bits
TIMESTAMP_LIMIT = 1 << 64  # ms; a timestamp has 64 bits

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_PARTS = re.compile(
    r":0|(:[1-9][0-9]{0,3})?|:group|(:[1-9][0-9]{0,3})?:[A-Za-z0-9._-]{1,128}:share"
)
_PARTITION = re.compile(r"[^:]*:(0|[1-9][0-9]{0,3})")
_DELAYED_HEX = re.compile(r"[0-9A-Fa-f]{36}")
_LAYOUT = struct.Struct(">QHQH")
assert _LAYOUT.size == MESSAGE_ID_SIZE
_DELAYED_ID = struct.Struct(">QQH")
DELAYED_ID_SIZE = 18  # bytes
NEVER_MS = TIMESTAMP_LIMIT - 1  # in place of a due time: of no message that waits
assert _DELAYED_ID.size == DELAYED_ID_SIZE


def check_name(name: str, *, what: str) -> str:
    """Returns the name if it is legal.

    Raises:
        InvalidNameError: it has other characters, is empty, too long, or is `.` or `..`.
        TypeError: it is no string.
    """
    try:
        is_legal = _NAME.fullmatch(name) is not None
    except TypeError:
        raise TypeError(f"{what} is a string, not {name!r:.100}") from None
    if not is_legal or name in {".", ".."}:
        raise InvalidNameError(
            f"{what} {shown_name(name)} is not a legal name: use 1 to {NAME_LENGTH_MAX} characters "
            "of A-Z a-z 0-9 . _ - (and not . or ..)"
        )
    return name


def shown_name(name: str) -> str:
    """A name of any length, as an error message shows it."""
    return repr(name if len(name) <= NAME_LENGTH_MAX else name[:NAME_LENGTH_MAX] + "…")


@total_ordering
@dataclass(frozen=True, slots=True)
class TopicId:
    """A topic's namespace and name, both legal names.

    Behind its name, a log that belongs to a topic has parts that no name has (decision 0043):
    `orders:3` is a further partition, `orders:billing:share` is the log of the share group
    `billing` of partition 0, and `billing:group` is the log of a consumer group. `orders` is the
    log of partition 0; a request for this partition alone names it `orders:0`.

    Raises:
        InvalidNameError: one of the two is not.
    """

    namespace: str
    name: str

    def __post_init__(self) -> None:
        check_name(self.namespace, what="namespace")
        name, colon, _ = self.name.partition(":")
        check_name(name, what="topic")
        if colon and _PARTS.fullmatch(self.name, len(name)) is None:
            raise InvalidNameError(
                f"topic {shown_name(self.name)} is not a legal name: only the number of a "
                f"partition, 0 to {PARTITION_NUMBER_MAX}, can follow a colon"
            )

    # The id of a log is the same value as a TopicId and as a PartitionId.
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TopicId):
            return NotImplemented
        return self.name == other.name and self.namespace == other.namespace

    def __lt__(self, other: "TopicId") -> bool:
        return (self.namespace, self.name) < (other.namespace, other.name)

    @property
    def base(self) -> "TopicId":
        """The topic itself, of a topic or of one of its partitions."""
        return topic_id(self.namespace, self.name.partition(":")[0])

    @property
    def number(self) -> int | None:
        """The number of the partition that the name gives; None for a topic."""
        _, colon, number = self.name.partition(":")
        return int(number) if colon and number.isdigit() else None

    @property
    def log(self) -> "TopicId":
        """The id under which its messages are stored: `orders` for `orders:0`."""
        return self.base if self.number == 0 else self

    def partition(self, number: int) -> "PartitionId":
        """A partition of the topic, 0 to 9,999. Raises: InvalidNameError."""
        return partition_id(self.namespace, f"{self.name.partition(':')[0]}:{number}")

    def __str__(self) -> str:
        return f"{self.namespace}:{self.name}"

    @property
    def is_internal(self) -> bool:
        """Whether it is a log that belongs to a topic or to a consumer group."""
        return ":" in self.name

    @property
    def unit(self) -> "TopicId":
        """What one server owns as a whole: a topic with its partitions and the logs of its share
        groups; or the log of a consumer group."""
        return self if self.name.endswith(GROUP_LOG) else self.base

    def share_log(self, group: str) -> "TopicId":
        """The log of a share group of this partition. Raises: InvalidNameError."""
        group = check_name(group, what="share group")
        return TopicId(self.namespace, f"{self.log.name}:{group}{SHARE_LOG}")

    @property
    def share_group(self) -> str | None:
        """The share group of which this is the log; None for any other topic."""
        if not self.name.endswith(SHARE_LOG):
            return None
        return self.name.removesuffix(SHARE_LOG).rpartition(":")[2]

    @property
    def belongs_to_topic(self) -> bool:
        """Whether this is the log of a share group of a topic."""
        return self.home is not self

    @property
    def home(self) -> "TopicId":
        """The topic whose share group this log has; of any other topic, the topic itself."""
        if self.name.endswith(SHARE_LOG):
            return replace(self, name=self.name.removesuffix(SHARE_LOG).rpartition(":")[0])
        return self


class PartitionId(TopicId):
    """A partition of a topic, by its number; its name is that of its log, as `orders:3`.

    Raises:
        InvalidNameError: the name has no number.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if _PARTITION.fullmatch(self.name) is None:
            raise InvalidNameError(
                f"{shown_name(self.name)} names no partition: a colon and its number follow the "
                "name of the topic, as in orders:3"
            )

    @property
    def number(self) -> int:
        """The number of the partition."""
        return int(self.name.partition(":")[2])


TopicLike = str | TopicId  # what a program may give as a topic or a partition
_FORMS = (
    "a topic is its namespace and its name, as in 'shop:orders', and one of its partitions has its "
    f"number, 0 to {PARTITION_NUMBER_MAX}, as in 'shop:orders/3'"
)


def topic_of(topic: object) -> TopicId:
    """The topic or partition that a program names: a `TopicId`, or text like `shop:orders` or
    `shop:orders/3`. The form that HTTP and errors have for a partition, `shop:orders:3`, is text
    for it as well.

    Raises:
        InvalidNameError: the text has none of these forms.
        TypeError: it is neither a text nor a TopicId.
    """
    if isinstance(topic, TopicId):
        return topic
    if isinstance(topic, str):
        return _topic_of_text(topic)
    raise TypeError(f"{topic!r:.100} is no topic: {_FORMS}")


def names_of(topic: TopicLike) -> tuple[str, str]:
    """The parameters of a topic in a path. Raises: TypeError, InvalidNameError: it is no topic."""
    found = topic_of(topic)
    return found.namespace, found.name


@lru_cache(TOPIC_IDS_COUNT_MAX)
def _topic_of_text(text: str) -> TopicId:
    namespace, _, rest = text.partition(":")
    name, slash, number = rest.partition("/")
    is_empty = not (namespace and name)
    if slash:
        name = f"{name}:{number}"
    if is_empty or (":" in name and _PARTITION.fullmatch(name) is None):
        is_name = _NAME.fullmatch(text.partition("/")[0]) is not None
        hint = f"; that of the namespace default is 'default:{text}'" if is_name else ""
        raise InvalidNameError(f"{shown_name(text)} is no topic: {_FORMS}{hint}")
    return topic_id(namespace, name)


@lru_cache(TOPIC_IDS_COUNT_MAX)
def partition_id(namespace: str, name: str) -> PartitionId:
    """The partition with this name, as `orders:3`. Raises: InvalidNameError."""
    return PartitionId(namespace, name)


@lru_cache(TOPIC_IDS_COUNT_MAX)
def topic_id(namespace: str, name: str) -> TopicId:
    """The topic or partition that a request names. Calls with the same names return the same
    value.

    Raises:
        InvalidNameError: one of the two is not legal, or names another log of a topic.
    """
    if ":" not in name:
        return TopicId(namespace, name)
    if _PARTITION.fullmatch(name) is None:
        raise InvalidNameError(
            f"topic {shown_name(name)} can't be named in a request: only the number of a "
            f"partition, 0 to {PARTITION_NUMBER_MAX}, can follow a colon"
        )
    return partition_id(namespace, name)


def name_in(namespace: str, topic: TopicId) -> str:
    """How a call in a namespace names a topic or partition: one of another namespace has that in
    front, as `other:orders` and `other:orders:0`."""
    return topic.name if topic.namespace == namespace else str(topic)


def names_in(namespace: str, name: str) -> tuple[str, str]:
    """The namespace and the name, unchecked, of a topic or partition that a call in this namespace
    names. `orders:0` is a partition of this namespace, and `other:orders` a topic of another."""
    first, colon, rest = name.partition(":")
    return (first, rest) if colon and not rest.isdigit() else (namespace, name)


def topic_in(namespace: str, name: str) -> TopicId:
    """The topic or partition that a call in this namespace names. Raises: InvalidNameError."""
    return topic_id(*names_in(namespace, name))


def partition_in(namespace: str, name: str) -> PartitionId:
    """The partition that a call in this namespace names. Raises: InvalidNameError."""
    return partition_id(*names_in(namespace, name))


class Offset(NamedTuple):
    """The position of a row in its topic."""

    timestamp_ms: int
    seq_id: int

    def to_int(self) -> int:
        """The offset as a number; the next possible offset is one more."""
        return self.timestamp_ms * SEQ_ID_LIMIT + self.seq_id

    @classmethod
    def from_int(cls, number: int) -> "Offset":
        return cls(*divmod(number, SEQ_ID_LIMIT))


@frozen_value(order=True)
class MessageId:
    """The id of one message; ids of one topic are ordered as its messages are."""

    publish_timestamp_ms: int
    seq_id: int
    write_timestamp_ms: int = 0
    payload_seq_id: int = 0

    def __repr__(self) -> str:
        return f"MessageId.from_hex({self.hex()!r})"

    def __str__(self) -> str:
        return self.hex()

    @property
    def offset(self) -> Offset:
        """The offset of the row that publishes this message."""
        return Offset(self.publish_timestamp_ms, self.seq_id)

    def to_bytes(self) -> bytes:
        return _LAYOUT.pack(
            self.publish_timestamp_ms, self.seq_id, self.write_timestamp_ms, self.payload_seq_id
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "MessageId":
        """Raises: InvalidMessageIdError: not 20 bytes."""
        if len(data) != MESSAGE_ID_SIZE:
            raise InvalidMessageIdError(
                f"a message id has {MESSAGE_ID_SIZE} bytes, and this one has {len(data)}"
            )
        return cls(*_LAYOUT.unpack(data))

    def hex(self) -> str:
        """40 lower-case hex digits, as in JSON."""
        return self.to_bytes().hex()

    @classmethod
    def from_hex(cls, digits: str) -> "MessageId":
        """Raises: InvalidMessageIdError: not 40 hex digits."""
        if len(digits) != 2 * MESSAGE_ID_SIZE or not digits.isascii() or not digits.isalnum():
            raise InvalidMessageIdError(
                f"{digits[:80]!r} is not a message id: it takes {2 * MESSAGE_ID_SIZE} hex digits"
            )
        try:
            return cls.from_bytes(bytes.fromhex(digits))
        except ValueError:
            raise InvalidMessageIdError(f"{digits!r} has characters that are not hex") from None

    def to_int(self) -> int:
        """The id as a 160-bit number; the next possible id is one more."""
        return int.from_bytes(self.to_bytes(), "big")

    @classmethod
    def from_int(cls, number: int) -> "MessageId":
        return cls.from_bytes(number.to_bytes(MESSAGE_ID_SIZE, "big"))


@frozen_value()
class MessageIds(Sequence[MessageId]):
    """The ids of messages at consecutive offsets. Each is made when it is used, since most programs
    use none of a large publish."""

    first: Offset
    message_count: int

    def __len__(self) -> int:
        return self.message_count

    @overload
    def __getitem__(self, index: int) -> MessageId: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[MessageId]: ...
    def __getitem__(self, index: int | slice) -> MessageId | Sequence[MessageId]:
        start = self.first.to_int()
        numbers = range(start, start + self.message_count)[index]
        if isinstance(numbers, int):
            return MessageId(*Offset.from_int(numbers))
        if numbers.step == 1:
            return MessageIds(Offset.from_int(numbers.start), len(numbers))
        return tuple([MessageId(*Offset.from_int(number)) for number in numbers])

    def __eq__(self, other: object) -> bool:
        """Equal to a tuple of equal ids, too."""
        if isinstance(other, MessageIds):
            return (self.first, self.message_count) == (other.first, other.message_count)
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))


class DelayedId(NamedTuple):
    """The id of a message that waits for its time: when it is due, in ms since the epoch, and the
    offset at which it was accepted. Ids of one topic are ordered as its messages become due."""

    due_ms: int
    offset: Offset

    def __repr__(self) -> str:
        return f"DelayedId.from_hex({self.hex()!r})"

    def to_bytes(self) -> bytes:
        return _DELAYED_ID.pack(self.due_ms, *self.offset)

    @classmethod
    def from_bytes(cls, data: bytes) -> "DelayedId":
        """The id in the 18 bytes at the end of a key."""
        due_ms, timestamp_ms, seq_id = _DELAYED_ID.unpack(data[-DELAYED_ID_SIZE:])
        return cls(due_ms, Offset(timestamp_ms, seq_id))

    def hex(self) -> str:
        """36 lower-case hex digits, as in JSON."""
        return self.to_bytes().hex()

    @classmethod
    def from_hex(cls, digits: str) -> "DelayedId":
        """Raises: InvalidMessageIdError: not 36 hex digits, or no message can have it."""
        if _DELAYED_HEX.fullmatch(digits) is None:
            raise InvalidMessageIdError(
                f"{digits[:80]!r} is not the id of a delayed message: it takes "
                f"{2 * DELAYED_ID_SIZE} hex digits"
            )
        found = cls.from_bytes(bytes.fromhex(digits))
        if found.due_ms == NEVER_MS:
            raise InvalidMessageIdError(
                f"{digits} is not the id of a delayed message: none is due then"
            )
        return found


FIRST_ID = MessageId(0, 0)
LAST_ID = MessageId(TIMESTAMP_LIMIT - 1, SEQ_ID_LIMIT - 1, TIMESTAMP_LIMIT - 1, SEQ_ID_LIMIT - 1)


def past_group(offset: Offset) -> MessageId:
    """The last id that the row at this offset could have. As an exclusive start it continues at the
    next row, however many messages the row publishes."""
    return MessageId(offset.timestamp_ms, offset.seq_id, TIMESTAMP_LIMIT - 1, SEQ_ID_LIMIT - 1)
