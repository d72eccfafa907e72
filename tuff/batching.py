"""Messages that wait in memory: for the next batch of a publisher, or for the commit of a
transaction.

`Accumulator` and `Delivery` are shared by the publisher with a thread and the one with a task.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from tuff import calls
from tuff.calls import Call, of_type
from tuff.client_errors import BufferFullError, ConnectionLostError, WrongStateError
from tuff.flows import Flow
from tuff.new_messages import Checked, columns, publish_request, size_bytes, with_ttl
from tuff.protocol.errors import InternalError
from tuff.protocol.ids import MessageId, Offset, TopicId
from tuff.protocol.requests import Ack, Delay, PublishEntry
from tuff.replies import Published
from tuff.retries import Retries

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
V_contra = TypeVar("V_contra", contravariant=True)
if TYPE_CHECKING:
    # Type checkers know this module, installed or not. What the future of a message gets is its
    # id, except with the ack `NONE`.
    from typing_extensions import TypeVar as TypeVarWithDefault

    Result = TypeVarWithDefault("Result", default=MessageId)
else:
    Result = TypeVar("Result")

BATCHES_HELD = 8  # batches of `batch_bytes` in memory by default; then `send` waits
LINGER_S = 0.002  # seconds; about as long as a sync, so a lone message is at most twice as late
BATCH_BYTES = 256 << 10  # bytes; several hundred small messages share a sync
LINGER_S_MAX = 60.0  # seconds; a program that waits longer can collect messages itself
BUFFER_BYTES_MAX = 1 << 20  # bytes; as JSON at most 6 MiB, and a server accepts 16 MiB
MESSAGE_BYTES = (
    64  # bytes; counted for each message beside its payload, so that empty ones count too
)


class _Waiting(NamedTuple, Generic[R]):
    message: Checked
    receipt: R
    since_s: float


@dataclass(frozen=True, slots=True)
class Batch(Generic[R_co]):
    """The messages of one publish, and the receipt of each: the future that its sender holds."""

    messages: list[Checked]
    receipts: Sequence[R_co]
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a publisher sends a batch, and how much it keeps in memory, what is in flight included.

    `buffer_bytes` None: eight batches. `buffer_count`: messages; None: as many as fit into the
    bytes. `max_block_s`: how long `send` waits for room; None: without limit.

    Raises: ValueError: a number is out of its range.
    """

    batch_bytes: int = BATCH_BYTES
    linger_s: float = LINGER_S
    buffer_bytes: int | None = None
    buffer_count: int | None = None
    max_block_s: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= of_type(self.batch_bytes, int, "batch_bytes") <= BUFFER_BYTES_MAX:
            raise ValueError(
                f"batch_bytes is a number from 1 to {BUFFER_BYTES_MAX}, not {self.batch_bytes}"
            )
        if not 0 <= self.linger_s <= LINGER_S_MAX:
            raise ValueError(
                f"linger is a number of seconds from 0 to {LINGER_S_MAX:g}, not {self.linger_s:g}"
            )
        if (
            self.buffer_bytes is not None
            and of_type(self.buffer_bytes, int, "buffer_bytes") < self.batch_bytes
        ):
            raise ValueError(
                f"buffer_bytes is at least batch_bytes, which is {self.batch_bytes}, and not "
                f"{self.buffer_bytes}"
            )
        if self.buffer_count is not None and of_type(self.buffer_count, int, "buffer_messages") < 1:
            raise ValueError(f"buffer_messages is a number from 1 on, not {self.buffer_count}")


class Accumulator(Generic[R]):
    """Decides which messages make a batch, and when it is sent; it has no clock and no thread.

    One batch is in flight at a time, so that messages keep the order in which they were sent.
    Messages that are sent meanwhile make the next batch; the linger time counts only while no batch
    is in flight. `claim` returns False for a receipt that was cancelled, and its message is left
    out. Times are seconds of a monotonic clock.
    """

    def __init__(self, limits: Limits, *, claim: Callable[[R], bool]) -> None:
        self._batch_bytes = limits.batch_bytes
        self._linger_s = limits.linger_s
        self._max_block_s = limits.max_block_s
        self._buffer_bytes = limits.buffer_bytes or BATCHES_HELD * limits.batch_bytes
        self._buffer_count = limits.buffer_count
        self._claim = claim
        self._waiting: deque[_Waiting[R]] = deque()
        self._waiting_bytes = 0
        self._in_flight_bytes = 0
        self._due_count = 0  # messages that are sent without lingering
        self.added_count = 0
        self.settled_count = 0

    @property
    def is_empty(self) -> bool:
        """Whether no message waits; a batch may be in flight."""
        return not self._waiting

    @property
    def is_full(self) -> bool:
        """Whether the messages that wait fill a batch."""
        return self._waiting_bytes >= self._batch_bytes

    def has_room(self, message: Checked) -> bool:
        """Whether the message may be added; any message may be added to an empty accumulator."""
        if self._buffer_count is not None and self._held_count >= self._buffer_count:
            return False
        held_bytes = self._waiting_bytes + self._in_flight_bytes
        return not held_bytes or held_bytes + _cost_bytes(message) <= self._buffer_bytes

    def full(self) -> BufferFullError:
        """The error of a `send` that found no room in time."""
        return BufferFullError(
            f"the publisher held {self._held_count} messages of "
            f"{self._waiting_bytes + self._in_flight_bytes} bytes, and had no room for another one "
            f"within {self._max_block_s} s; send it again later, or raise buffer_bytes, "
            "buffer_messages or max_block"
        )

    @property
    def _held_count(self) -> int:
        return self.added_count - self.settled_count

    def add(self, message: Checked, receipt: R, *, now_s: float) -> None:
        """Add a message behind all others."""
        self._waiting.append(_Waiting(message, receipt, now_s))
        self._waiting_bytes += _cost_bytes(message)
        self.added_count += 1

    def flush(self) -> None:
        """Let the messages that wait now be sent without lingering."""
        self._due_count = len(self._waiting)

    def due_in_s(self, *, now_s: float) -> float | None:
        """The time until a batch is due, 0 if one is; None: no message waits."""
        if not self._waiting:
            return None
        if self._due_count or self.is_full:
            return 0.0
        return max(0.0, self._waiting[0].since_s + self._linger_s - now_s)

    def take(self) -> Batch[R]:
        """The next batch, to be passed to `settled`; empty if all its messages were cancelled.

        A message that is larger than a batch is a batch of its own, so that it fails alone.
        """
        messages: list[Checked] = []
        receipts: list[R] = []
        size_bytes = 0
        while self._waiting:
            message, receipt, _ = self._waiting[0]
            cost_bytes = _cost_bytes(message)
            if messages and size_bytes + cost_bytes > self._batch_bytes:
                break
            self._waiting.popleft()
            self._waiting_bytes -= cost_bytes
            self._due_count = max(0, self._due_count - 1)
            if self._claim(receipt):
                messages.append(message)
                receipts.append(receipt)
                size_bytes += cost_bytes
            else:
                self.settled_count += 1
        self._in_flight_bytes = size_bytes
        return Batch(messages, receipts, size_bytes)

    def settled(self, batch: Batch[R]) -> None:
        """All receipts of a batch that was taken are settled."""
        self._in_flight_bytes -= batch.size_bytes
        self.settled_count += len(batch.receipts)


class Receipt(Protocol[V_contra]):
    """The future of a message: one of `concurrent.futures`, or of asyncio."""

    def done(self) -> bool: ...
    def set_result(self, result: V_contra, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Delivery(Generic[Result]):
    """Publishes batches to one topic. `publish` is `with_ids` or `without_ids`, with the topic."""

    topic: TopicId
    publish: Callable[[Sequence[Checked]], Flow[list[Result]]]

    def __post_init__(self) -> None:
        calls.checked_topic(self.topic)

    def deliver(self, batch: Batch[Receipt[Result]]) -> Flow[BaseException | None]:
        """Publish a batch and settle its receipts; returns the error of a failed publish, or None.

        Like any plain publish, it is repeated only if the server says that it did not execute it.
        """
        if not batch.messages:
            return None
        try:
            results = yield from self.publish(batch.messages)
        except Exception as error:  # noqa: BLE001 - the senders get it, by their receipts
            fail(batch, error)
            return error
        except BaseException as error:
            # The event loop or the program ends, so no response will be read.
            sentence = f"{type(error).__name__} ended the publisher before an answer came"
            fail(batch, ConnectionLostError(sentence, outcome_unknown=True))
            raise
        for receipt, result in zip(batch.receipts, results, strict=True):
            if not receipt.done():
                receipt.set_result(result)
        return None


def with_ids(
    topic: TopicId, retries: Retries, ack: Ack, ttl_s: int | None, messages: Sequence[Checked]
) -> Flow[list[MessageId]]:
    """Publish messages; returns the id of each. `ack` is not `NONE`."""
    request = publish_request(messages, pointer=None, ttl_s=ttl_s)
    published = yield from retries.ask(calls.publish(topic, request, ack=ack))
    return list(_ids(published, len(messages)))


def without_ids(
    topic: TopicId, retries: Retries, ttl_s: int | None, messages: Sequence[Checked]
) -> Flow[list[None]]:
    """Publish messages with the ack `NONE`."""
    request = publish_request(messages, pointer=None, ttl_s=ttl_s)
    yield from retries.ask(calls.publish_unacknowledged(topic, request, None))
    return [None] * len(messages)


def require_own_process(process_id: int, *, what: str = "publisher") -> None:
    """Raises: WrongStateError: the publisher, with its thread or task, is of another process."""
    if os.getpid() != process_id:
        raise WrongStateError(
            f"the {what} was made before this process was forked, and works in its parent alone; "
            "make another one here"
        )


def _ids(published: Published, count: int) -> Iterator[MessageId]:
    """The ids of the messages of one publish: their offsets are consecutive (protocol §3.1)."""
    first, last = published.first_id.offset.to_int(), published.last_id.offset.to_int()
    if last - first + 1 != count:
        raise InternalError(
            f"{count} messages were published, but the server answered {last - first + 1} offsets; "
            "the messages exist, and their ids are unknown"
        )
    for number in range(first, last + 1):
        yield MessageId(*Offset.from_int(number))


def fail(batch: Batch[Receipt[Result]], error: BaseException) -> None:
    """Let every receipt that is not settled raise this error."""
    for receipt in batch.receipts:
        if not receipt.done():
            receipt.set_exception(error)


@dataclass(slots=True)
class _Held:
    """The messages of one topic under one write pointer."""

    messages: list[Checked] = field(default_factory=list)
    is_spilled: bool = False


class MessageBuffer:
    """The messages of one transaction, by topic and write pointer, in their order (protocol §3.2).

    Up to `BUFFER_BYTES_MAX` wait here and are sent with the commit. Later messages are stored on
    the server at once, and the commit refers to them; so a long transaction needs little memory.
    """

    def __init__(self) -> None:
        self._size_bytes = 0
        self._by_topic_and_pointer: dict[tuple[TopicId, int], _Held] = {}

    def add(
        self,
        topic: TopicId,
        pointer: int,
        messages: Sequence[Checked],
        *,
        ttl_s: int | None,
        delay: Delay | None = None,
    ) -> list[Call[Any]]:
        """Add messages; returns the calls that store those that do not fit, to be sent in order.
        Those with a delay are published by a call at once, under the transaction."""
        if delay is not None:
            request = publish_request(messages, pointer=pointer, ttl_s=ttl_s)
            return [calls.publish_delayed(topic, request, delay)]
        held = self._by_topic_and_pointer.setdefault((topic, pointer), _Held())
        spilled: list[Checked] = []
        for message in messages:
            size_bytes = self._size_bytes + _cost_bytes(message)
            # After the first stored message of a topic all later ones are stored too: the commit
            # places stored messages after inline ones, so a later inline one would overtake them.
            if held.is_spilled or size_bytes > BUFFER_BYTES_MAX:
                held.is_spilled = True
                spilled.append(message)
            else:
                self._size_bytes = size_bytes
                held.messages.append(with_ttl(message, ttl_s))
        return [
            calls.store(topic, publish_request(batch, pointer=pointer, ttl_s=ttl_s))
            for batch in _batches(spilled)
        ]

    def entries(self) -> list[PublishEntry]:
        """The publishes of the commit: of each topic and pointer its messages, then the stored."""
        entries: list[PublishEntry] = []
        for (topic, pointer), held in self._by_topic_and_pointer.items():
            if held.messages:
                payloads, ttls_s, attributes = columns(held.messages)
                entries.append(
                    PublishEntry(
                        topic=topic,
                        payloads=payloads,
                        ttls_s=ttls_s,
                        pointer=pointer,
                        attributes=attributes,
                    )
                )
            if held.is_spilled:
                entries.append(PublishEntry(topic=topic, payloads=(), pointer=pointer))
        return entries


def _cost_bytes(message: Checked) -> int:
    if type(message) is bytes:  # as nearly always, and called several times for each message
        return len(message) + MESSAGE_BYTES
    return size_bytes(message) + MESSAGE_BYTES


def _batches(messages: Sequence[Checked]) -> Iterator[list[Checked]]:
    batch: list[Checked] = []
    batch_bytes = 0
    for message in messages:
        batch_bytes += _cost_bytes(message)
        if batch and batch_bytes > BUFFER_BYTES_MAX:
            yield batch
            batch, batch_bytes = [], _cost_bytes(message)
        batch.append(message)
    if batch:
        yield batch
