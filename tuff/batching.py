"""Messages that wait in memory: in batches of a publisher, or in the buffer of a transaction.

A publisher's batches: which messages go together, when, and what became of each; shared by the
publisher with a thread and the one with a task. A transaction's messages wait for its commit.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from tuff import calls
from tuff.calls import Call
from tuff.client_errors import ConnectionLostError, WrongStateError
from tuff.flows import Flow
from tuff.protocol.errors import InternalError
from tuff.protocol.ids import MessageId, Offset, TopicId
from tuff.protocol.requests import PublishEntry
from tuff.replies import Published
from tuff.retries import Retries

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

BATCHES_HELD_MAX = 8  # times `batch_bytes` are held in memory; then who sends has to wait
LINGER_S = 0.002  # seconds; about what a sync takes, so that it costs who is alone little
BATCH_BYTES = 256 << 10  # bytes; several hundred small messages share a sync
LINGER_S_MAX = 60.0  # seconds; more is no publisher but a schedule
BUFFER_BYTES_MAX = 1 << 20  # bytes in memory; as JSON at most six times that, and a request has 16
MESSAGE_BYTES = 64  # bytes; what a message costs beside its payload, so that empty ones count too


class _Waiting(NamedTuple, Generic[R]):
    payload: bytes
    receipt: R
    since_s: float


@dataclass(frozen=True, slots=True)
class Batch(Generic[R_co]):
    """Messages of one publish, and for each the receipt that its sender holds."""

    payloads: list[bytes]
    receipts: Sequence[R_co]
    size_bytes: int


class Accumulator(Generic[R]):
    """Decides which messages make a batch, and when it is sent; it has no clock and no thread.

    One batch is in flight at a time, so that messages keep the order in which they were sent. What
    is sent meanwhile makes the next batch; the linger time counts only while no batch is in flight.

    `claim` says of a receipt whether its message is still wanted; if not, it is
    left out. Times are seconds of any clock that does not step."""

    def __init__(self, *, batch_bytes: int, linger_s: float, claim: Callable[[R], bool]) -> None:
        """Raises: ValueError: a number is out of its range."""
        if not 1 <= batch_bytes <= BUFFER_BYTES_MAX:
            raise ValueError(
                f"batch_bytes is a number from 1 to {BUFFER_BYTES_MAX}, not {batch_bytes}"
            )
        if not 0 <= linger_s <= LINGER_S_MAX:
            raise ValueError(
                f"linger is a number of seconds from 0 to {LINGER_S_MAX:g}, not {linger_s:g}"
            )
        self._batch_bytes = batch_bytes
        self._linger_s = linger_s
        self._claim = claim
        self._waiting: deque[_Waiting[R]] = deque()
        self._waiting_bytes = 0
        self._under_way_bytes = 0
        self._due_count = 0  # of those that wait, so many go without waiting for company
        self.added_count = 0
        self.settled_count = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits; a batch may be on its way."""
        return not self._waiting

    @property
    def is_full(self) -> bool:
        """Whether what waits fills a batch."""
        return self._waiting_bytes >= self._batch_bytes

    def has_room(self, payload: bytes) -> bool:
        """Whether this one may be added; nothing is too large where nothing else is held."""
        held_bytes = self._waiting_bytes + self._under_way_bytes
        most_bytes = BATCHES_HELD_MAX * self._batch_bytes
        return not held_bytes or held_bytes + _cost_bytes(payload) <= most_bytes

    def add(self, payload: bytes, receipt: R, *, now_s: float) -> None:
        """Take a message in, behind all others."""
        self._waiting.append(_Waiting(payload, receipt, now_s))
        self._waiting_bytes += _cost_bytes(payload)
        self.added_count += 1

    def flush(self) -> None:
        """Have all that waits now go without waiting for company."""
        self._due_count = len(self._waiting)

    def due_in_s(self, *, now_s: float) -> float | None:
        """How long until a batch is due, 0 if one is; None: nothing waits."""
        if not self._waiting:
            return None
        if self._due_count or self.is_full:
            return 0.0
        return max(0.0, self._waiting[0].since_s + self._linger_s - now_s)

    def take(self) -> Batch[R]:
        """The next batch, to be given back by `settled`; empty if its messages were cancelled.

        A message that is larger than a batch goes alone, so that it fails alone.
        """
        payloads: list[bytes] = []
        receipts: list[R] = []
        size_bytes = 0
        while self._waiting:
            payload, receipt, _ = self._waiting[0]
            cost_bytes = _cost_bytes(payload)
            if payloads and size_bytes + cost_bytes > self._batch_bytes:
                break
            self._waiting.popleft()
            self._waiting_bytes -= cost_bytes
            self._due_count = max(0, self._due_count - 1)
            if self._claim(receipt):
                payloads.append(payload)
                receipts.append(receipt)
                size_bytes += cost_bytes
            else:
                self.settled_count += 1
        self._under_way_bytes = size_bytes
        return Batch(payloads, receipts, size_bytes)

    def settled(self, batch: Batch[R]) -> None:
        """It is known what became of a batch."""
        self._under_way_bytes -= batch.size_bytes
        self.settled_count += len(batch.receipts)


class Receipt(Protocol):
    """What a sender holds: the future of `concurrent.futures`, or that of asyncio."""

    def done(self) -> bool: ...
    def set_result(self, result: MessageId, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Delivery:
    """Publishes batches to one topic."""

    topic: TopicId
    ttl_s: int | None
    retries: Retries

    def __post_init__(self) -> None:
        calls.checked_topic(self.topic)

    def deliver(self, batch: Batch[Receipt]) -> Flow[BaseException | None]:
        """Publish a batch and settle its receipts; what it failed with, or None.

        It is sent again only where the server did not do it, as any plain publish.
        """
        if not batch.payloads:
            return None
        call = calls.publish(self.topic, batch.payloads, pointer=None, ttl_s=self.ttl_s)
        try:
            published = yield from self.retries.ask(call)
            ids = list(_ids(published, len(batch.payloads)))
        except Exception as error:  # noqa: BLE001 - it is the senders', by their receipts
            fail(batch, error)
            return error
        except BaseException as error:
            # The loop, or the program, ends, so no answer will be read.
            sentence = f"{type(error).__name__} ended the publisher before an answer came"
            fail(batch, ConnectionLostError(sentence, outcome_unknown=True))
            raise
        for receipt, id in zip(batch.receipts, ids, strict=True):
            if not receipt.done():
                receipt.set_result(id)
        return None


def require_own_process(process_id: int) -> None:
    """Raises: WrongStateError: a publisher is of another process, where its thread, or task, is."""
    if os.getpid() != process_id:
        raise WrongStateError(
            "the publisher was made before this process was forked, and works in its parent alone; "
            "make another one here"
        )


def _ids(published: Published, count: int) -> Iterator[MessageId]:
    """The ids of one publish: its places follow each other without a gap (protocol §3.1)."""
    first, last = published.first_id.offset.to_int(), published.last_id.offset.to_int()
    if last - first + 1 != count:
        raise InternalError(
            f"{count} messages were published, and the server names {last - first + 1} places; the "
            "messages are there, and their ids are not known"
        )
    for number in range(first, last + 1):
        yield MessageId(*Offset.from_int(number))


def fail(batch: Batch[Receipt], error: BaseException) -> None:
    """Every receipt that is not settled raises this."""
    for receipt in batch.receipts:
        if not receipt.done():
            receipt.set_exception(error)


@dataclass(slots=True)
class _Held:
    """The messages of one topic under one write pointer."""

    payloads: list[bytes] = field(default_factory=list)
    ttls_s: list[int | None] = field(default_factory=list)
    is_spilled: bool = False


class MessageBuffer:
    """The messages of one transaction, by topic and write pointer, in their order (protocol §3.2).

    Up to `BUFFER_BYTES_MAX` wait here and travel in the commit. What comes after that is stored at
    once, and the commit only refers to it; so a long transaction holds little in memory.
    """

    def __init__(self) -> None:
        self._size_bytes = 0
        self._by_place: dict[tuple[TopicId, int], _Held] = {}

    def add(
        self, topic: TopicId, pointer: int, payloads: Sequence[bytes], *, ttl_s: int | None
    ) -> list[Call[None]]:
        """Take messages in; answers the calls that store what does not fit, to be sent in order."""
        held = self._by_place.setdefault((topic, pointer), _Held())
        spilled: list[bytes] = []
        for payload in payloads:
            size_bytes = self._size_bytes + _cost_bytes(payload)
            # Once one message of a place is stored, the later ones follow it there: the reference
            # comes after what is inline, so going back to the buffer would overtake it.
            if held.is_spilled or size_bytes > BUFFER_BYTES_MAX:
                held.is_spilled = True
                spilled.append(payload)
            else:
                self._size_bytes = size_bytes
                held.payloads.append(payload)
                held.ttls_s.append(ttl_s)
        return [
            calls.store(topic, batch, pointer=pointer, ttl_s=ttl_s) for batch in _batches(spilled)
        ]

    def entries(self) -> list[PublishEntry]:
        """What the commit carries: of each place its messages, then the reference to the stored."""
        entries: list[PublishEntry] = []
        for (topic, pointer), held in self._by_place.items():
            if held.payloads:
                entries.append(
                    PublishEntry(
                        topic=topic, payloads=held.payloads, ttls_s=held.ttls_s, pointer=pointer
                    )
                )
            if held.is_spilled:
                entries.append(PublishEntry(topic=topic, payloads=(), pointer=pointer))
        return entries


def _cost_bytes(payload: bytes) -> int:
    return len(payload) + MESSAGE_BYTES


def _batches(payloads: Sequence[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size_bytes = 0
    for payload in payloads:
        size_bytes += _cost_bytes(payload)
        if batch and size_bytes > BUFFER_BYTES_MAX:
            yield batch
            batch, size_bytes = [], _cost_bytes(payload)
        batch.append(payload)
    if batch:
        yield batch
