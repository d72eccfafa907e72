"""The messages of a publisher, which wait in memory for the next batch.

`Accumulator` and `deliver` are shared by the publisher with a thread and the one with a task.
"""

import logging
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

from tuff import publish_calls
from tuff.errors import BufferFullError, ConnectionLostError
from tuff.flows_and_repeated_calls import Flow, Retries
from tuff.protocol.errors import TuffError
from tuff.protocol.ids import TopicId
from tuff.protocol.requests import Ack
from tuff.protocol.sentences import counted
from tuff.publish_calls import BUFFER_BYTES_MAX, Addition, Checked, request_of
from tuff.replies import Published
from tuff.requests_and_responses import maybe_number_of, number_of
from tuff.tracebacks import without_own_frames

log = logging.getLogger(__name__)

R = TypeVar("R")
A = TypeVar("A", bound="Receipt")

BATCHES_HELD = 8  # batches of `batch_bytes` in memory by default; then `publish` waits
LINGER_S = 0.002  # seconds; about as long as a sync, so a lone message is at most twice as late
BATCH_BYTES = 256 << 10  # bytes; several hundred small messages share a sync
LINGER_S_MAX = 60.0  # seconds; a program that waits longer can collect messages itself


class _Waiting(NamedTuple, Generic[R]):
    number: int  # of the addition, by age
    addition: Addition
    size_bytes: int
    receipt: R
    since_s: float


@dataclass(slots=True)
class _Queue(Generic[R]):
    """The additions of one topic that wait, in their order."""

    waiting: deque[_Waiting[R]] = field(default_factory=deque)
    size_bytes: int = 0
    due_count: int = 0  # additions that are sent without lingering


@dataclass(frozen=True, slots=True, eq=False)
class Batch(Generic[R]):
    """Additions to one topic that are one publish: they have the same time to live and delay."""

    waiting: Sequence[_Waiting[R]]

    @property
    def receipts(self) -> list[R]:
        """The futures that the callers hold, one for each addition."""
        return [each.receipt for each in self.waiting]

    @property
    def messages(self) -> list[Checked]:
        """The messages of all additions."""
        return [message for each in self.waiting for message in each.addition.messages]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a publisher sends a batch, and how much it keeps in memory, what is in flight included.

    `buffer_bytes` None: eight batches. `buffer_count`: messages; None: as many as fit into the
    bytes. `max_block_s`: how long `publish` waits for room; None: without limit. `exit_s`: how long
    the end of a program waits for a blocking publisher that was not closed.

    Raises: ValueError: a number is out of its range.
    """

    batch_bytes: int = BATCH_BYTES
    linger_s: float = LINGER_S
    buffer_bytes: int | None = None
    buffer_count: int | None = None
    max_block_s: float | None = None
    exit_s: float = 30.0

    def __post_init__(self) -> None:
        number_of(self.batch_bytes, "batch_bytes", at_most=BUFFER_BYTES_MAX)
        if not 0 <= self.linger_s <= LINGER_S_MAX:
            raise ValueError(
                f"linger is a number of seconds from 0 to {LINGER_S_MAX:g}, not {self.linger_s:g}"
            )
        if (
            self.buffer_bytes is not None
            and number_of(self.buffer_bytes, "buffer_bytes") < self.batch_bytes
        ):
            raise ValueError(
                f"buffer_bytes is at least batch_bytes, which is {self.batch_bytes}, and not "
                f"{self.buffer_bytes}"
            )
        maybe_number_of(self.buffer_count, "buffer_messages")


class Accumulator(Generic[R]):
    """Decides which messages make a batch, and when it is sent; it has no clock and no thread.

    Each topic has a queue, so its messages keep their order. One batch is in flight at a time: of
    the topics that are due, the one with the oldest message is next. Messages that are added
    meanwhile make later batches; the linger time counts only while no batch is in flight. `claim`
    returns False for a receipt that was cancelled, and its messages are left out. Times are seconds
    of a monotonic clock.
    """

    def __init__(self, limits: Limits, *, claim: Callable[[R], bool]) -> None:
        self._batch_bytes = limits.batch_bytes
        self._linger_s = limits.linger_s
        self._max_block_s = limits.max_block_s
        self._buffer_bytes = limits.buffer_bytes or BATCHES_HELD * limits.batch_bytes
        self._buffer_count = limits.buffer_count
        self._claim = claim
        self._queues: dict[TopicId, _Queue[R]] = {}  # of topics with messages that wait
        self._in_flight: list[Batch[R]] = []
        self._added_count = 0  # additions, and the number of the next one
        self._held_bytes = 0  # of messages that wait or are in flight
        self._held_count = 0
        self._failed_count = 0  # messages that failed since the last `take_failure`
        self._failure: BaseException | None = None  # the first of their errors

    def has_room(self, addition: Addition) -> bool:
        """Whether it may be added; anything may be added to an empty accumulator."""
        if not self._held_count:
            return True
        count = self._held_count + len(addition.messages)
        if self._buffer_count is not None and count > self._buffer_count:
            return False
        return self._held_bytes + addition.size_bytes <= self._buffer_bytes

    def full(self) -> BufferFullError:
        """The error of a `publish` that found no room in time."""
        return BufferFullError(
            f"the publisher held {self._held_count} messages of {self._held_bytes} bytes, and had "
            f"no room for another one within {self._max_block_s} s; publish it again later, or "
            "raise buffer_bytes, buffer_messages or max_block"
        )

    def add(self, addition: Addition, receipt: R, *, now_s: float) -> bool:
        """Add messages behind all others of their topic; returns whether a batch may be due sooner
        than before."""
        is_first = not self._queues
        queue = self._queues.get(addition.topic)
        if queue is None:
            queue = self._queues[addition.topic] = _Queue()
        size_bytes = addition.size_bytes
        queue.waiting.append(_Waiting(self._added_count, addition, size_bytes, receipt, now_s))
        queue.size_bytes += size_bytes
        self._added_count += 1
        self._held_bytes += size_bytes
        self._held_count += len(addition.messages)
        return is_first or queue.size_bytes >= self._batch_bytes

    def flush(self) -> int:
        """Let all that waits now be sent without lingering; returns the number for
        `is_settled`."""
        for queue in self._queues.values():
            queue.due_count = len(queue.waiting)
        return self._added_count

    def is_settled(self, number: int) -> bool:
        """Whether all that was added before the flush that returned this number is settled."""
        oldest = [queue.waiting[0].number for queue in self._queues.values()]
        oldest += [batch.waiting[0].number for batch in self._in_flight]
        return min(oldest, default=number) >= number

    def due_in_s(self, *, now_s: float) -> float | None:
        """The time until a batch is due, 0 if one is; None: no message waits."""
        if not self._queues:
            return None
        return max(0.0, min(map(self._due_s, self._queues.values())) - now_s)

    def _due_s(self, queue: _Queue[R]) -> float:
        if queue.due_count or queue.size_bytes >= self._batch_bytes:
            return 0.0
        return queue.waiting[0].since_s + self._linger_s

    def take(self, *, now_s: float) -> Batch[R]:
        """The next batch, of those that are due, to be passed to `settled`; empty if all its
        messages were cancelled.

        Additions that are larger than a batch are batches of their own, so that they fail alone.
        """
        due = [queue for queue in self._queues.values() if self._due_s(queue) <= now_s]
        queue = min(due, key=lambda queue: queue.waiting[0].number)
        head = queue.waiting[0].addition
        taken: list[_Waiting[R]] = []
        size_bytes = 0
        while queue.waiting:
            each = queue.waiting[0]
            is_full = taken and size_bytes + each.size_bytes > self._batch_bytes
            addition = each.addition
            if is_full or addition.ttl_s != head.ttl_s or addition.delay != head.delay:
                break
            queue.waiting.popleft()
            queue.size_bytes -= each.size_bytes
            queue.due_count = max(0, queue.due_count - 1)
            if self._claim(each.receipt):
                taken.append(each)
                size_bytes += each.size_bytes
            else:
                self._release(each)
        if not queue.waiting:
            del self._queues[head.topic]
        batch = Batch(taken)
        if taken:
            self._in_flight.append(batch)
        return batch

    def take_all(self) -> list[Batch[R]]:
        """The batches of all that waits, to be passed to `settled`."""
        self.flush()
        batches: list[Batch[R]] = []
        while self._queues:
            batches.append(self.take(now_s=0.0))
        return batches

    def settled(self, batch: Batch[R], failure: BaseException | None = None) -> None:
        """All receipts of a batch that was taken are settled; `failure`: its publish failed."""
        if batch.waiting:
            self._in_flight.remove(batch)
        for each in batch.waiting:
            self._release(each)
        if failure is not None:
            self._failed_count += len(batch.messages)
            self._failure = self._failure or failure

    def take_failure(self) -> BaseException | None:
        """The first error since the last call, which the caller raises."""
        failure, self._failure, self._failed_count = self._failure, None, 0
        return failure

    def warn_of_loss(self, publisher: object) -> None:
        """Report what a publisher that was not closed has not published, failed messages included,
        by a line of the log and a ResourceWarning."""
        count, failure = self._held_count + self._failed_count, self._failure
        if not count:
            return
        why = "" if failure is None else f" ({type(failure).__name__}: {failure})"
        sentence = (
            f"{counted(count, 'message')} of a publisher that was not closed may not have been "
            f"published{why}; use the publisher in a `with` block, or close it before its client"
        )
        log.warning("%s", sentence)
        warnings.warn(sentence, ResourceWarning, source=publisher, stacklevel=2)

    def _release(self, each: _Waiting[R]) -> None:
        self._held_bytes -= each.size_bytes
        self._held_count -= len(each.addition.messages)


class Receipt(Protocol):
    """The future of an addition: one of `concurrent.futures`, or of asyncio."""

    def done(self) -> bool: ...
    def set_result(self, result: Published, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


def deliver(batch: Batch[A], *, retries: Retries, ack: Ack) -> Flow[BaseException | None]:
    """Publish a batch and settle its receipts; returns the error of a failed publish, or None.

    Like any publish, it may be repeated, and has the effect of one.
    """
    if not batch.waiting:
        return None
    topic, _, ttl_s, delay = batch.waiting[0].addition
    request = request_of(batch.messages, None, ttl_s)
    call = partial(publish_calls.publish, topic, request, ack=ack, delay=delay)
    try:
        published = yield from retries.publish(call)
    except Exception as error:  # noqa: BLE001 - the callers get it, by their receipts
        if isinstance(error, TuffError):
            without_own_frames(error, None)
        fail(batch, error)
        return error
    except BaseException as error:
        # The event loop or the program ends, so no response will be read.
        sentence = f"{type(error).__name__} ended the publisher before an answer came"
        fail(batch, ConnectionLostError(sentence, outcome_unknown=True))
        raise
    for receipt, share in zip(batch.receipts, _shares(published, batch), strict=True):
        if not receipt.done():
            receipt.set_result(share)
    return None


def _shares(published: Published, batch: Batch[A]) -> Iterator[Published]:
    """What each addition of a batch has written."""
    ids, delayed_ids, partitions = published.ids, published.delayed_ids, published.partitions
    start = 0
    for each in batch.waiting:
        stop = start + len(each.addition.messages)
        yield Published(
            ids=ids[start:stop],
            delayed_ids=delayed_ids[start:stop] if delayed_ids else (),
            partitions=partitions,
        )
        start = stop


def fail(batch: Batch[A], error: BaseException) -> None:
    """Let every receipt that is not settled raise this error."""
    for receipt in batch.receipts:
        if not receipt.done():
            receipt.set_exception(error)
