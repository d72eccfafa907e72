"""The publisher of the blocking client: a thread publishes the batches."""

import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Condition, Lock, current_thread
from threading import Thread as _Thread  # noqa: TID251 - it publishes while the program continues
from time import perf_counter
from types import TracebackType
from typing import Generic

from tuff.batching import (
    Accumulator,
    Batch,
    Delivery,
    Limits,
    Result,
    fail,
    require_own_process,
)
from tuff.blocking.driver import Driver
from tuff.client_errors import ConnectionLostError, WrongStateError
from tuff.new_messages import Checked, Publishable, checked
from tuff.tracing import traced

log = logging.getLogger(__name__)


class Publisher(Generic[Result]):
    """`client.publisher(topic)`: sends messages one by one, and publishes them in batches.

    Safe to share between threads. Messages keep the order in which they were sent. Use it in a
    `with` block, or close it: a program that ends before that loses the messages that still wait.
    It belongs to the process that made it; a forked process makes its own.
    """

    def __init__(
        self,
        delivery: Delivery[Result],
        driver: Driver,
        limits: Limits,
        *,
        elapsed_s: Callable[[], float] = perf_counter,
    ) -> None:
        self._delivery = delivery
        self._driver = driver
        self._elapsed_s = elapsed_s
        self._max_block_s = limits.max_block_s
        self._accumulator: Accumulator[Future[Result]] = Accumulator(
            limits, claim=lambda receipt: receipt.set_running_or_notify_cancel()
        )
        lock = Lock()  # guards the accumulator and the fields below
        self._added = Condition(lock)
        self._settled = Condition(lock)
        self._thread: _Thread | None = None
        self._is_closed = False
        self._failure: BaseException | None = None
        self._process_id = os.getpid()

    def send(self, message: Publishable) -> "Future[Result]":
        """Send one message; the future has its id once it is durable.

            with client.publisher(orders) as publisher:
                future = publisher.send("sold one apple")
            print(future.result())

        It returns at once, but waits while the buffer is full. Cancelling the future withdraws the
        message, unless it is in flight. With the ack `received` the future has the id before the
        message is durable, and with `none` its result is None once the server has accepted it.

        The future raises what `Client.publish` would. After a ConnectionLostError with
        `outcome_unknown` the message may have been published, and is not repeated. The messages
        after a failed one are published nevertheless.

        Raises:
            TypeError, ValueError: it is neither a str nor bytes, or has no UTF-8.
            BufferFullError: the buffer stayed full for `max_block`.
            WrongStateError: the publisher is closed, or was made before a fork.
        """
        require_own_process(self._process_id)
        (data,) = traced(self._delivery.topic, [checked(message)])
        receipt: _Receipt[Result] = _Receipt()
        with self._added:
            self._wait_for_room(data)
            self._require_open()
            was_empty = self._accumulator.is_empty
            self._accumulator.add(data, receipt, now_s=self._elapsed_s())
            if was_empty or self._accumulator.is_full:
                self._added.notify()
        return receipt

    def _wait_for_room(self, message: Checked) -> None:
        until_s = None if self._max_block_s is None else self._elapsed_s() + self._max_block_s
        # A callback of a future runs in the publisher's own thread, which makes the room: it would
        # wait for itself.
        while not (self._accumulator.has_room(message) or self._is_own_thread or self._is_closed):
            left_s = None if until_s is None else until_s - self._elapsed_s()
            if left_s is not None and left_s <= 0:
                raise self._accumulator.full()
            # What waits may be less than a batch, and would linger.
            self._accumulator.flush()
            self._added.notify()
            self._settled.wait(left_s)

    def flush(self) -> None:
        """Publish all messages that were sent so far without lingering, and wait for that.

        Raises:
            TuffError: the first error since the last flush; each future has the outcome of its
                message.
        """
        require_own_process(self._process_id)
        self._refuse_own_thread()
        with self._settled:
            self._accumulator.flush()
            self._added.notify()
            target_count = self._accumulator.added_count
            while self._accumulator.settled_count < target_count:
                self._settled.wait()
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Flush, and accept no more messages. Repeating it is harmless. In a forked process it does
        nothing: the parent publishes what was sent.

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

    def __enter__(self) -> "Publisher[Result]":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; what was sent is published even if the block failed."""
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

    def _publish(self, batch: "Batch[Future[Result]]") -> None:
        failure: BaseException | None = None
        try:
            failure = self._driver.run(self._delivery.deliver(batch))
        finally:
            with self._settled:
                self._accumulator.settled(batch)
                self._failure = self._failure or failure
                self._settled.notify_all()

    def _give_up(self) -> None:
        # An error ended this thread, or the publisher was closed, and then no message is left.
        error = ConnectionLostError("the publisher's thread has ended", outcome_unknown=False)
        left: list[Batch[Future[Result]]] = []
        with self._settled:
            if not self._is_closed:
                self._failure = self._failure or error
            self._is_closed = True
            while not self._accumulator.is_empty:
                left.append(self._accumulator.take())
        for batch in left:
            fail(batch, error)
        with self._settled:
            for batch in left:
                self._accumulator.settled(batch)
            self._settled.notify_all()

    def _next(self) -> "Batch[Future[Result]] | None":
        with self._added:
            while True:
                due_in_s = self._accumulator.due_in_s(now_s=self._elapsed_s())
                if due_in_s == 0:
                    return self._accumulator.take()
                if due_in_s is None and self._is_closed:
                    return None
                self._added.wait(due_in_s)


class _Receipt(Future[Result]):
    """A future whose callbacks can't end the publisher. A plain future only logs their exceptions,
    but a `sys.exit` in a callback would end the publisher's thread, and no later future would be
    settled.

    In a forked process it is never settled, so waiting for it raises there.
    """

    def __init__(self) -> None:
        super().__init__()
        self._process_id = os.getpid()
        self._is_settled = False

    def result(self, timeout: float | None = None) -> Result:
        self._require_settled_here()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._require_settled_here()
        return super().exception(timeout)

    def set_result(self, result: Result) -> None:
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
