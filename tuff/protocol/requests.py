"""Requests and replies of the message endpoints, as values (protocol §3, §4).

`tuff.protocol.avro` and `tuff.protocol.json_bodies` convert them to bytes and JSON, and back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

from tuff.protocol.attributes import Attributes
from tuff.protocol.errors import RequestTooLargeError
from tuff.protocol.ids import MessageId, Offset, TopicId
from tuff.protocol.transaction import Transaction
from tuff.protocol.values import Headers, frozen_value

DELAY_MS_MAX = 315_360_000_000  # ms, ten years; a longer delay is more likely a wrong unit
# Messages of one request, whatever their size. Each gets a key and a checksum on the event loop,
# which takes about a second for so many, and delays all other requests.
MESSAGES_COUNT_MAX = 1_000_000
# Of these, messages with attributes. Each takes some ten microseconds to check and to store.
WITH_ATTRIBUTES_COUNT_MAX = 100_000


class Isolation(StrEnum):
    """The view of a read without a transaction: all messages, or those that a new snapshot sees."""

    ALL = "all"
    COMMITTED = "committed"


IsolationLike = Isolation | Literal["all", "committed"]


class Ack(StrEnum):
    """When a publish without a transaction is answered (Kafka: acks): once it is checked, once its
    messages have their ids, or once they are durable."""

    NONE = "none"
    RECEIVED = "received"
    DURABLE = "durable"


AckLike = Ack | Literal["none", "received", "durable"]


def too_many_messages(count: int) -> RequestTooLargeError:
    """The refusal of a request with more than `MESSAGES_COUNT_MAX` messages."""
    return RequestTooLargeError(
        f"the request has {count} messages, and {MESSAGES_COUNT_MAX} is the most; send them in "
        "parts"
    )


def too_many_with_attributes() -> RequestTooLargeError:
    """The refusal of a request with more than `WITH_ATTRIBUTES_COUNT_MAX` of such messages."""
    return RequestTooLargeError(
        f"the request has more than {WITH_ATTRIBUTES_COUNT_MAX} messages with a key, tags or "
        "headers, which is the most; send them in parts"
    )


class Delay(NamedTuple):
    """When a delayed message enters its topic: `ms` after its publish, or at this time in ms since
    the epoch if it `is_time`."""

    ms: int
    is_time: bool

    def due_ms(self, now_ms: int) -> int:
        """The time at which it enters, in ms, if it is published now."""
        return max(self.ms if self.is_time else now_ms + self.ms, now_ms)


class PublishRequest(NamedTuple):
    """Payloads for one topic. `pointer` is the write pointer, None without a transaction.

    `ttls_s` has the time to live of each message in seconds (None: the topic's), or is None if no
    message has its own. `ttl_s` is that of the request; `ttls_s` includes it for messages without
    their own. `attributes` has those of each message (None: it has none), or is None if no message
    has any. `delays` has those of all messages, or is None if no message is delayed.
    """

    pointer: int | None
    payloads: Sequence[bytes]
    ttls_s: Sequence[int | None] | None = None
    ttl_s: int | None = None
    attributes: Sequence[Attributes | None] | None = None
    delays: Sequence[Delay] | None = None


@frozen_value(kw_only=True)
class PublishEntry:
    """One publish within a commit (protocol §5.2).

    Without payloads it publishes stored messages. `delays` has those of all messages, or is None.
    `pointer` None: the current write pointer.
    """

    topic: TopicId
    payloads: Sequence[bytes]
    ttls_s: Sequence[int | None] | None = None
    pointer: int | None = None
    attributes: Sequence[Attributes | None] | None = None
    delays: Sequence[Delay] | None = None

    def under(self, pointer: int) -> "PublishEntry":
        """The entry under this pointer. One is made for each commit, and `replace` takes five times
        as long."""
        return PublishEntry(
            topic=self.topic,
            payloads=self.payloads,
            ttls_s=self.ttls_s,
            pointer=pointer,
            attributes=self.attributes,
            delays=self.delays,
        )


@frozen_value()
class RollbackDetail:
    """First and last offset of one transactional publish; clients pass it back unchanged."""

    pointer: int
    first: Offset
    last: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeRequest:
    """Where to start a read, and how much to read. `start`: a message id, a publish time in ms, or
    None for the oldest live message; `transaction`: the snapshot to read in."""

    start: MessageId | int | None = None
    inclusive: bool = True
    limit: int | None = None
    transaction: Transaction | None = None


@frozen_value()
class Message:
    """A message as a consumer receives it. `timestamp_ms` is the publish time. A message without
    attributes has no key, no tags and no headers."""

    id: MessageId
    payload: bytes
    key: bytes | None = None
    tags: tuple[str, ...] = ()
    headers: Headers = ()

    @property
    def timestamp_ms(self) -> int:
        return self.id.publish_timestamp_ms

    def header(self, name: str) -> bytes | None:
        """The value of a header, the last one if its name repeats; None if there is none."""
        return next((value for each, value in reversed(self.headers) if each == name), None)
