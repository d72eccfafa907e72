"""The publisher of the asyncio client: a task publishes the batches."""

import asyncio
import os
from collections.abc import Iterable
from datetime import datetime
from functools import partial

from tuff.aio.driver import AsyncDriver, other_loop
from tuff.errors import ConnectionLostError, WrongStateError
from tuff.flows_and_repeated_calls import Retries, require_own_process
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


class AsyncPublisher:
    """A publisher like `tuff.Publisher`, with coroutines, for the tasks of one event loop.

    What is left of a publisher that is not closed before its event loop ends is lost; a
    ResourceWarning and a line of the log have the number of messages.
    """

    def __init__(self, driver: AsyncDriver, retries: Retries, limits: Limits, ack: Ack) -> None:
        self._driver = driver
        self._retries = retries
        self._deliver = partial(deliver, retries=retries, ack=ack)
        self._max_block_s = limits.max_block_s
        self._accumulator: Accumulator[asyncio.Future[Published]] = Accumulator(
            limits, claim=lambda receipt: not receipt.cancelled()
        )
        self._turn = asyncio.Lock()  # the callers that wait for room keep their order
        self._added = asyncio.Event()
        self._settled = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process_id = os.getpid()

    async def publish(
        self,
        topic: TopicLike,
        *payloads: Publishable,
        key: str | bytes | None = None,
        tags: Iterable[str] = (),
        headers: Headers = (),
        ttl: Duration | None = None,
        delay: Duration | None = None,
        at: datetime | int | None = None,
    ) -> "asyncio.Future[Published]":
        """Add messages to the buffer, like `Publisher.publish`: `future = await
        publisher.publish("shop:orders", "…")`, and `await future` later."""
        self._require_own_loop()
        warn_in_block(self._retries)
        addition = addition_of(
            topic, payloads, key=key, tags=tags, headers=headers, ttl=ttl, delay=delay, at=at
        )
        if self._max_block_s is None:
            return await self._add_in_turn(addition)
        try:
            async with asyncio.timeout(self._max_block_s):
                return await self._add_in_turn(addition)
        except TimeoutError:
            raise self._accumulator.full() from None

    async def _add_in_turn(self, addition: Addition) -> "asyncio.Future[Published]":
        async with self._turn:
            while not (self._accumulator.has_room(addition) or self._is_closed):
                # What waits may be less than a batch, and would linger.
                self._accumulator.flush()
                self._added.set()
                await self._next_settled()
            loop = self._require_open()
            receipt: asyncio.Future[Published] = loop.create_future()
            if self._accumulator.add(addition, receipt, now_s=loop.time()):
                self._added.set()
        return receipt

    async def flush(self) -> None:
        """Wait until all messages are published; see `Publisher.flush`."""
        self._require_own_loop()
        number = self._accumulator.flush()
        self._added.set()
        while not self._accumulator.is_settled(number):
            await self._next_settled()
        failure = self._accumulator.take_failure()
        if failure is not None:
            raise failure

    async def close(self) -> None:
        """Publish what is left and end; see `Publisher.close`."""
        if os.getpid() != self._process_id or (self._is_closed and self._task is None):
            return
        self._require_own_loop()
        try:
            await self.flush()
        finally:
            self._is_closed = True
            self._added.set()
            self._settled.set()
            task, self._task = self._task, None
            if task is not None:
                await task

    async def __aenter__(self) -> "AsyncPublisher":
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close; what it accepted is published even if the block failed."""
        try:
            await self.close()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"and then: {type(failure).__name__}: {failure}")

    def _require_open(self) -> asyncio.AbstractEventLoop:
        if self._is_closed:
            raise WrongStateError("the publisher is closed; make another one")
        loop = self._loop = asyncio.get_running_loop()
        if self._task is None:
            self._task = loop.create_task(self._work())
            self._task.add_done_callback(self._give_up)
        return loop

    def _require_own_loop(self) -> None:
        require_own_process(self._process_id, what="publisher")
        if self._loop not in (None, asyncio.get_running_loop()):
            raise other_loop("publisher")

    async def _next_settled(self) -> None:
        self._settled.clear()
        await self._settled.wait()

    async def _work(self) -> None:
        while await self._wait_for_batch():
            now_s = asyncio.get_running_loop().time()
            await self._publish(self._accumulator.take(now_s=now_s))

    def _give_up(self, _: "asyncio.Task[None]") -> None:
        # Messages are left only if the task was cancelled, for example at the end of its loop,
        # maybe before its first step.
        self._is_closed = True
        error = ConnectionLostError("the loop has ended", outcome_unknown=False)
        for batch in self._accumulator.take_all():
            fail(batch, error)
            self._settle(batch, error)

    def __del__(self) -> None:
        if os.getpid() == self._process_id:
            self._accumulator.warn_of_loss(self)

    async def _publish(self, batch: "Batch[asyncio.Future[Published]]") -> None:
        failure: BaseException | None = ConnectionLostError(
            "the publisher was cancelled before an answer came", outcome_unknown=True
        )
        try:
            failure = await self._driver.run(self._deliver(batch))
        finally:
            self._settle(batch, failure)

    def _settle(
        self, batch: "Batch[asyncio.Future[Published]]", failure: BaseException | None
    ) -> None:
        self._accumulator.settled(batch, failure)
        self._settled.set()
        for receipt in batch.receipts:
            # `flush` raises the error, so asyncio need not warn about unawaited futures.
            if receipt.done() and not receipt.cancelled():
                receipt.exception()

    async def _wait_for_batch(self) -> bool:
        """Returns True when a batch is due, and False when the publisher is closed."""
        loop = asyncio.get_running_loop()
        while (due_in_s := self._accumulator.due_in_s(now_s=loop.time())) != 0:
            if due_in_s is None and self._is_closed:
                return False
            self._added.clear()
            try:
                async with asyncio.timeout(due_in_s):
                    await self._added.wait()
            except TimeoutError:
                continue
        return True
