"""Many small messages of one program, published in batches and acknowledged one by one."""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition, Lock, current_thread
from threading import Thread as _Thread  # noqa: TID251 - who sends goes on while a batch is on its way
from time import perf_counter
from types import TracebackType
from typing import Generic, NamedTuple, Protocol, TypeVar

from tuff import calls
from tuff.calls import Payload
from tuff.commit import BUFFER_BYTES_MAX, MESSAGE_BYTES
from tuff.driver import Driver
from tuff.flows import Flow
from tuff.protocol.errors import InternalError
from tuff.protocol.ids import MessageId, Offset, TopicId
from tuff.replies import Published
from tuff.retries import Retries
from tuff.transport import ConnectionLostError

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

BATCHES_HELD_MAX = 8  # times `batch_bytes` are held in memory; then who sends has to wait
LINGER_S_MAX = 60.0  # seconds; more is no publisher but a schedule


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
        """The next batch, to be given back by `settled`; empty where nobody wants its messages.

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


def _cost_bytes(payload: bytes) -> int:
    return len(payload) + MESSAGE_BYTES


log = logging.getLogger(__name__)

LINGER_S = 0.002  # seconds; about what a sync takes, so that it costs who is alone little
BATCH_BYTES = 256 << 10  # bytes; several hundred small messages share a sync


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
            # Where the loop, or the program, ends: nobody will hear what became of it.
            sentence = f"{type(error).__name__} ended the publisher before an answer came"
            fail(batch, ConnectionLostError(sentence, outcome_unknown=True))
            raise
        for receipt, id in zip(batch.receipts, ids, strict=True):
            if not receipt.done():
                receipt.set_result(id)
        return None


class Publisher:
    """`client.publisher(topic)`: sends messages one by one, and publishes them in batches.

    Safe to share between threads. Messages keep the order in which they were sent. Use it in a
    `with` block, or close it: a program that ends without it loses what still waits. It belongs to
    the process that made it: after a fork the new process is refused, and makes one of its own.
    """

    def __init__(
        self,
        delivery: Delivery,
        driver: Driver,
        *,
        batch_bytes: int,
        linger_s: float,
        elapsed_s: Callable[[], float] = perf_counter,
    ) -> None:
        self._delivery = delivery
        self._driver = driver
        self._elapsed_s = elapsed_s
        self._box: Accumulator[Future[MessageId]] = Accumulator(
            batch_bytes=batch_bytes,
            linger_s=linger_s,
            claim=lambda receipt: receipt.set_running_or_notify_cancel(),
        )
        lock = Lock()  # guards the box, and what stands below
        self._added = Condition(lock)
        self._settled = Condition(lock)
        self._thread: _Thread | None = None
        self._is_closed = False
        self._failure: BaseException | None = None
        self._process_id = os.getpid()

    def send(self, payload: Payload) -> "Future[MessageId]":
        """Hand over one message; the future has its id once it is durable.

            with client.publisher(orders) as publisher:
                future = publisher.send("sold one apple")
            print(future.result())

        It returns at once, but waits while eight batches of messages are in memory. Cancelling the
        future takes the message back, if it is not on its way.

        The future raises what `Client.publish` would. Where that is a ConnectionLostError with
        `outcome_unknown`, the message may have been published, and is never sent again by itself.
        The messages after a failed one are published all the same.

        Raises:
            TypeError, ValueError: it is neither a str nor bytes, or has no UTF-8.
            RuntimeError: the publisher is closed, or was made before a fork.
        """
        require_own_process(self._process_id)
        data = calls.payload_of(payload)
        receipt = _Receipt()
        with self._added:
            # A callback of a future runs in the publisher's own thread, which is the one that makes
            # room: it would wait for itself.
            while not (self._box.has_room(data) or self._is_own_thread or self._is_closed):
                self._settled.wait()
            self._require_open()
            was_empty = self._box.is_empty
            self._box.add(data, receipt, now_s=self._elapsed_s())
            if was_empty or self._box.is_full:
                self._added.notify()
        return receipt

    def flush(self) -> None:
        """Publish what was sent so far without waiting for more, and wait until that is settled.

        Raises:
            TuffError: the first error of those that were sent since the last flush; each future
                says what became of its message.
        """
        require_own_process(self._process_id)
        self._refuse_own_thread()
        with self._settled:
            self._box.flush()
            self._added.notify()
            target_count = self._box.added_count
            while self._box.settled_count < target_count:
                self._settled.wait()
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Flush, and take nothing more. Repeating it is harmless. In a forked process it does
        nothing: what was sent is the parent's, which publishes it.

        Raises: as `flush`.
        """
        if os.getpid() != self._process_id:
            return
        self._refuse_own_thread()
        try:
            self.flush()
        finally:
            with self._added:
                self._is_closed = True
                self._added.notify()
                self._settled.notify_all()
                thread, self._thread = self._thread, None
            if thread is not None:
                thread.join()

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; what was sent is published also where the block failed."""
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"and then: {type(failure).__name__}: {failure}")

    @property
    def _is_own_thread(self) -> bool:
        return current_thread() is self._thread

    def _refuse_own_thread(self) -> None:
        if self._is_own_thread:
            raise RuntimeError("a callback of a future can't wait for the publisher it is run by")

    def _require_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("the publisher is closed; make another one")
        if self._thread is None:
            # A daemon, as a publisher that nobody closed would keep the program from its end.
            self._thread = _Thread(
                target=self._work, name=f"publisher of {self._delivery.topic}", daemon=True
            )
            self._thread.start()

    def _work(self) -> None:
        try:
            while (batch := self._next()) is not None:
                self._publish(batch)
        finally:
            self._give_up()

    def _publish(self, batch: "Batch[Future[MessageId]]") -> None:
        failure: BaseException | None = None
        try:
            failure = self._driver.run(self._delivery.deliver(batch))
        finally:
            with self._settled:
                self._box.settled(batch)
                self._failure = self._failure or failure
                self._settled.notify_all()

    def _give_up(self) -> None:
        # An error ended this thread, unless it was closed; then nothing is left.
        error = ConnectionLostError("the publisher's thread has ended", outcome_unknown=False)
        left: list[Batch[Future[MessageId]]] = []
        with self._settled:
            if not self._is_closed:
                self._failure = self._failure or error
            self._is_closed = True
            while not self._box.is_empty:
                left.append(self._box.take())
        for batch in left:
            fail(batch, error)
        with self._settled:
            for batch in left:
                self._box.settled(batch)
            self._settled.notify_all()

    def _next(self) -> "Batch[Future[MessageId]] | None":
        with self._added:
            while True:
                due_in_s = self._box.due_in_s(now_s=self._elapsed_s())
                if due_in_s == 0:
                    return self._box.take()
                if due_in_s is None and self._is_closed:
                    return None
                self._added.wait(due_in_s)


class _Receipt(Future[MessageId]):
    """One whose callbacks end nothing but themselves. A future keeps to itself what they raise, but
    for what ends a program: after a `sys.exit` in one nobody would publish, or be told.

    In a forked process it is never settled, so waiting for it is refused there.
    """

    def __init__(self) -> None:
        super().__init__()
        self._process_id = os.getpid()
        self._is_settled = False

    def result(self, timeout: float | None = None) -> MessageId:
        self._require_settled_here()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._require_settled_here()
        return super().exception(timeout)

    def set_result(self, result: MessageId) -> None:
        with self._contained():
            super().set_result(result)
        self._is_settled = True

    def set_exception(self, exception: BaseException | None) -> None:
        with self._contained():
            super().set_exception(exception)
        self._is_settled = True

    def _require_settled_here(self) -> None:
        if not self._is_settled:
            require_own_process(self._process_id)

    @contextmanager
    def _contained(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            raise
        except BaseException:
            log.exception("a callback of %r raised", self)


def require_own_process(process_id: int) -> None:
    """Raises: RuntimeError: a publisher is of another process, where its thread, or task, is."""
    if os.getpid() != process_id:
        raise RuntimeError(
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
