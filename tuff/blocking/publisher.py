"""The publisher of the blocking client: a thread publishes the batches."""

import atexit
import logging
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from datetime import datetime
from functools import partial
from threading import Condition, Lock, current_thread
from threading import Thread as _Thread  # noqa: TID251 - it publishes while the program continues
from time import perf_counter
from typing import TypeVar

from tuff.errors import ConnectionLostError, WrongStateError
from tuff.flows_and_repeated_calls import Driver, Retries, require_own_process
from tuff.protocol.durations import Duration
from tuff.protocol.ids import TopicLike
from tuff.protocol.requests import Ack
from tuff.publish_calls import Addition, Headers, Publishable, addition_of, warn_in_block
from tuff.publisher_batches import (
    Accumulator,
    Batch,
    Limits,
    deliver,
    fail,
)
from tuff.replies import Published

log = logging.getLogger(__name__)

T = TypeVar("T")


class Publisher:
    """`client.publisher()`: accepts messages for all topics, and publishes them in batches.

    Safe to share between threads. The messages of a topic keep their order. Use it in a
    `with` block, or close it before its client. A publisher that is not closed publishes what is
    left at the end of the program, within the client's `timeout`; what it could not publish is
    counted by a ResourceWarning and a line of the log. A process that is killed loses it.
    A publisher belongs to the process that made it; a forked process makes its own.
    """

    def __init__(
        self,
        driver: Driver,
        retries: Retries,
        limits: Limits,
        ack: Ack,
        *,
        elapsed_s: Callable[[], float] = perf_counter,
    ) -> None:
        self._driver = driver
        self._retries = retries
        self._deliver = partial(deliver, retries=retries, ack=ack)
        self._elapsed_s = elapsed_s
        self._exit_s = limits.exit_s
        self._max_block_s = limits.max_block_s
        self._accumulator: Accumulator[Future[Published]] = Accumulator(
            limits, claim=lambda receipt: receipt.set_running_or_notify_cancel()
        )
        lock = Lock()  # guards the accumulator and the fields below
        self._added = Condition(lock)
        self._settled = Condition(lock)
        self._thread: _Thread | None = None
        self._is_closed = False
        self._process_id = os.getpid()

    def publish(
        self,
        topic: TopicLike,
        *payloads: Publishable,
        key: str | bytes | None = None,
        tags: Iterable[str] = (),
        headers: Headers = (),
        ttl: Duration | None = None,
        delay: Duration | None = None,
        at: datetime | int | None = None,
    ) -> "Future[Published]":
        """Publish messages to a topic with the next batch; the future has what `Client.publish`
        returns for them, once they are durable.

            with client.publisher() as publisher:
                future = publisher.publish("shop:orders", "sold one apple", key="apple")
            print(future.result().ids[0])

        The parameters are those of `Client.publish`; messages of one call are adjacent, and
        published together or not at all. It returns at once, but waits while the buffer is full.
        Cancelling the future withdraws the messages, unless they are in flight. With the ack
        `received` the future has ids before the messages are durable, and with `none` it is done
        once the server has accepted them. `delay` begins when the server has the batch. The
        `partitions` of a result are those of its batch.

        The future raises what `Client.publish` would. After a ConnectionLostError with
        `outcome_unknown` the messages may have been published. Later messages are published
        nevertheless.

        Raises:
            TypeError, ValueError: as `Client.publish`.
            EmptyPublishError: there are no messages.
            BufferFullError: the buffer stayed full for `max_block`.
            WrongStateError: the publisher is closed, or was made before a fork.
        """
        require_own_process(self._process_id, what="publisher")
        warn_in_block(self._retries)
        addition = addition_of(
            topic, payloads, key=key, tags=tags, headers=headers, ttl=ttl, delay=delay, at=at
        )
        receipt = _Receipt()
        with self._added:
            self._wait_for_room(addition)
            self._require_open()
            if self._accumulator.add(addition, receipt, now_s=self._elapsed_s()):
                self._added.notify()
        return receipt

    def _wait_for_room(self, addition: Addition) -> None:
        until_s = None if self._max_block_s is None else self._elapsed_s() + self._max_block_s
        # A callback of a future runs in the publisher's own thread, which makes the room: it would
        # wait for itself.
        while not (self._accumulator.has_room(addition) or self._is_own_thread or self._is_closed):
            left_s = None if until_s is None else until_s - self._elapsed_s()
            if left_s is not None and left_s <= 0:
                raise self._accumulator.full()
            # What waits may be less than a batch, and would linger.
            self._accumulator.flush()
            self._added.notify()
            self._settled.wait(left_s)

    def flush(self) -> None:
        """Publish all messages that it accepted so far without lingering, and wait for that.

        Raises:
            TuffError: the first error since the last flush; each future has the outcome of its
                message.
        """
        require_own_process(self._process_id, what="publisher")
        self._refuse_own_thread()
        with self._settled:
            number = self._accumulator.flush()
            self._added.notify()
            while not self._accumulator.is_settled(number):
                self._settled.wait()
            failure = self._accumulator.take_failure()
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Flush, and accept no more messages. Repeating it is harmless. In a forked process it does
        nothing: the parent publishes what it accepted.

        Raises: as `flush`.
        """
        if os.getpid() != self._process_id:
            return
        self._refuse_own_thread()
        atexit.unregister(self._end_program)
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

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close; what it accepted is published even if the block failed."""
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
            raise WrongStateError(
                "a callback of a future can't wait for the publisher that runs it"
            )

    def _require_open(self) -> None:
        if self._is_closed:
            raise WrongStateError("the publisher is closed; make another one")
        if self._thread is None:
            # A daemon: a publisher that is not closed must not prevent the end of the program.
            self._thread = _Thread(target=self._work, name="tuff publisher", daemon=True)
            self._thread.start()
            atexit.register(self._end_program)

    def _end_program(self) -> None:
        """Publish what is left at the end of a program that did not close the publisher."""
        if os.getpid() != self._process_id:
            return
        until_s = self._elapsed_s() + self._exit_s
        with self._settled:
            number = self._accumulator.flush()
            self._added.notify()
            while not self._accumulator.is_settled(number):
                if (left_s := until_s - self._elapsed_s()) <= 0:
                    break
                self._settled.wait(left_s)
            self._accumulator.warn_of_loss(self)

    def _work(self) -> None:
        try:
            while (batch := self._next()) is not None:
                self._publish(batch)
        finally:
            self._give_up()

    def _publish(self, batch: "Batch[Future[Published]]") -> None:
        failure: BaseException | None = _ended(outcome_unknown=True)
        try:
            failure = self._driver.run(self._deliver(batch))
        finally:
            with self._settled:
                self._accumulator.settled(batch, failure)
                self._settled.notify_all()

    def _give_up(self) -> None:
        # An error ended this thread, or the publisher was closed, and then no message is left.
        error = _ended(outcome_unknown=False)
        with self._settled:
            self._is_closed = True
            left = self._accumulator.take_all()
        for batch in left:
            fail(batch, error)
        with self._settled:
            for batch in left:
                self._accumulator.settled(batch, error)
            self._settled.notify_all()

    def _next(self) -> "Batch[Future[Published]] | None":
        with self._added:
            while True:
                now_s = self._elapsed_s()
                due_in_s = self._accumulator.due_in_s(now_s=now_s)
                if due_in_s == 0:
                    return self._accumulator.take(now_s=now_s)
                if due_in_s is None and self._is_closed:
                    return None
                self._added.wait(due_in_s)


def _ended(*, outcome_unknown: bool) -> ConnectionLostError:
    sentence = "the publisher's thread has ended"
    return ConnectionLostError(sentence, outcome_unknown=outcome_unknown)


class _Receipt(Future[Published]):
    """A future whose callbacks can't end the publisher. A plain future only logs their exceptions,
    but a `sys.exit` in a callback would end the publisher's thread, and no later future would be
    settled.

    In a forked process it is never settled, so waiting for it raises there.
    """

    def __init__(self) -> None:
        super().__init__()
        self._process_id = os.getpid()
        self._is_settled = False

    def result(self, timeout: float | None = None) -> Published:
        self._require_settled_here()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._require_settled_here()
        return super().exception(timeout)

    def set_result(self, result: Published) -> None:
        self._settle(super().set_result, result)

    def set_exception(self, exception: BaseException | None) -> None:
        self._settle(super().set_exception, exception)

    def _settle(self, settle: Callable[[T], None], outcome: T) -> None:
        try:
            settle(outcome)
        except Exception:
            raise
        except BaseException:
            log.exception("a callback of %r raised", self)
        self._is_settled = True

    def _require_settled_here(self) -> None:
        if not self._is_settled:
            require_own_process(self._process_id, what="publisher")
