"""The publisher of the asyncio client: a task publishes the batches."""

import asyncio
import os
from types import TracebackType
from typing import Generic

from tuff.aio.driver import AsyncDriver
from tuff.batching import (
    Accumulator,
    Batch,
    Delivery,
    Limits,
    Result,
    fail,
    require_own_process,
)
from tuff.client_errors import ConnectionLostError, WrongStateError
from tuff.new_messages import Checked, Publishable, checked
from tuff.tracing import traced


class AsyncPublisher(Generic[Result]):
    """As `tuff.Publisher`, with coroutines, for the tasks of one event loop."""

    def __init__(self, delivery: Delivery[Result], driver: AsyncDriver, limits: Limits) -> None:
        self._delivery = delivery
        self._driver = driver
        self._max_block_s = limits.max_block_s
        self._accumulator: Accumulator[asyncio.Future[Result]] = Accumulator(
            limits, claim=lambda receipt: not receipt.cancelled()
        )
        self._turn = asyncio.Lock()  # the senders that wait keep their order
        self._added = asyncio.Event()
        self._settled = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process_id = os.getpid()

    async def send(self, message: Publishable) -> "asyncio.Future[Result]":
        """As `Publisher.send`: `future = await publisher.send("…")`, and `await future` later."""
        self._require_own_loop()
        (data,) = traced(self._delivery.topic, [checked(message)])
        if self._max_block_s is None:
            return await self._add_in_turn(data)
        try:
            async with asyncio.timeout(self._max_block_s):
                return await self._add_in_turn(data)
        except TimeoutError:
            raise self._accumulator.full() from None

    async def _add_in_turn(self, message: Checked) -> "asyncio.Future[Result]":
        async with self._turn:
            while not (self._accumulator.has_room(message) or self._is_closed):
                # What waits may be less than a batch, and would linger.
                self._accumulator.flush()
                self._added.set()
                await self._next_settled()
            loop = self._require_open()
            receipt: asyncio.Future[Result] = loop.create_future()
            was_empty = self._accumulator.is_empty
            self._accumulator.add(message, receipt, now_s=loop.time())
            if was_empty or self._accumulator.is_full:
                self._added.set()
        return receipt

    async def flush(self) -> None:
        """As `Publisher.flush`."""
        self._require_own_loop()
        self._accumulator.flush()
        self._added.set()
        target_count = self._accumulator.added_count
        while self._accumulator.settled_count < target_count:
            await self._next_settled()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def close(self) -> None:
        """As `Publisher.close`."""
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

    async def __aenter__(self) -> "AsyncPublisher[Result]":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; what was sent is published even if the block failed."""
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
        return loop

    def _require_own_loop(self) -> None:
        require_own_process(self._process_id)
        if self._loop not in (None, asyncio.get_running_loop()):
            raise WrongStateError(
                "the publisher belongs to the event loop that used it first; make another one in "
                "this one"
            )

    async def _next_settled(self) -> None:
        self._settled.clear()
        await self._settled.wait()

    async def _work(self) -> None:
        try:
            while await self._wait_for_batch():
                await self._publish(self._accumulator.take())
        finally:
            # Messages are left only if the task was cancelled, for example at the end of its loop.
            self._is_closed = True
            while not self._accumulator.is_empty:
                batch = self._accumulator.take()
                fail(batch, ConnectionLostError("the loop has ended", outcome_unknown=False))
                self._accumulator.settled(batch)
            self._settled.set()

    async def _publish(self, batch: "Batch[asyncio.Future[Result]]") -> None:
        try:
            failure = await self._driver.run(self._delivery.deliver(batch))
            self._failure = self._failure or failure
        finally:
            self._accumulator.settled(batch)
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
