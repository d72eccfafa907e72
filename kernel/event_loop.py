"""Waiting for a disk on an event loop: group commit, thread pools, light tasks and timeouts.

A durable write costs one sync, however many writes it contains. So one writer takes all items that
wait, gives them to a thread as one batch, and answers all of them when the batch is durable
(design §4, §5). The other classes do what asyncio also offers, with less processor time per
request: an executor, a task, and a timeout.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

GATHER_S_MAX = 0.004  # seconds; a busy loop takes as long for some dozens of requests


class Arrivals:
    """The number of requests that have arrived so far, of all kinds. The HTTP edge counts. A writer
    checks whether the number still grows. One instance for all writers of an event loop."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


Spawn = Callable[[Coroutine[Any, Any, None]], object]  # starts background work on the event loop
InBackground = Callable[[Callable[[], None]], object]  # runs a function that no caller waits for


class InThread(Protocol):
    """Runs a function in a thread that the server process owns."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


class BatchLoop(Generic[T]):
    """Group commit: gathers items, and writes all that wait as one batch, in the order of arrival.

    A fast disk may finish before the event loop has read the other requests that arrived meanwhile.
    Batches written at once would then contain two or three items each, and the way to the thread
    and back would cost more than everything else. So a batch is written when the loop has nothing
    else to do, or when its first item has waited for `GATHER_S_MAX` (decision 0026).

    Lives on one event loop. `write_batch` answers the callers of its items itself, and must not
    raise: an exception is a bug, and ends `run`.
    """

    def __init__(
        self,
        write_batch: Callable[[list[T]], Awaitable[None]],
        *,
        batch_count_max: int,
        arrivals: Arrivals,
    ) -> None:
        self._write_batch = write_batch
        self._batch_count_max = batch_count_max
        self._arrivals = arrivals
        self._pending: list[T] = []
        self._wake = asyncio.Event()
        self._closing = False

    @property
    def pending_count(self) -> int:
        """The number of items that wait for the next batch."""
        return len(self._pending)

    def put(self, item: T) -> None:
        """Add the item to the next batch, and wake the writer."""
        assert not self._closing, "put after close"
        self._pending.append(item)
        self._wake.set()

    def put_aside(self, item: T) -> None:
        """Add the item to the next batch without waking the writer; see `wake`."""
        assert not self._closing, "put after close"
        self._pending.append(item)

    def wake(self) -> None:
        """Write the items that wait."""
        self._wake.set()

    async def run(self) -> None:
        """Write batch after batch until `close`; returns when the last item is written."""
        while True:
            await self._wake.wait()
            await self._gather()
            self._wake.clear()
            batch = self._pending[: self._batch_count_max]
            del self._pending[: self._batch_count_max]
            if self._pending:
                self._wake.set()
            if batch:
                await self._write_batch(batch)
            if self._closing:
                if not self._pending:
                    return
                self._wake.set()

    async def _gather(self) -> None:
        """Wait until one round of the loop brought no request, or for `GATHER_S_MAX`."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + GATHER_S_MAX
        before = -1, -1
        while loop.time() < until_s:
            now = self._arrivals.count, len(self._pending)
            if now == before or now[1] >= self._batch_count_max or self._closing:
                return
            before = now
            await asyncio.sleep(0)

    def close(self) -> None:
        """Accept no more items; `run` returns once those that wait are written."""
        self._closing = True
        self._wake.set()


class Thread(Protocol):
    """A thread that runs."""

    def join(self) -> None:
        """Wait until it has ended."""


class ThreadPool:
    """Runs functions on up to `count_max` threads, in the order of the calls. Belongs to one event
    loop. `start` starts a thread that runs a function.

    The executor of the standard library makes a second future for each call and connects the two by
    locks and callbacks. Every durable batch goes through here, and that was half of the processor
    time of its way to a thread and back. Here all calls share one queue, and each result wakes the
    loop once.
    """

    def __init__(self, count_max: int, *, start: Callable[[Callable[[], None]], Thread]) -> None:
        self._count_max = count_max
        self._start = start
        self._loop = asyncio.get_running_loop()
        self._threads: list[Thread] = []
        self._is_closed = False
        self._waiting: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None]
        self._waiting = SimpleQueue()

    def run(self, function: Callable[[], T]) -> "asyncio.Future[T]":
        """What the function returns or raises. A function that has begun runs to its end, even
        when the caller cancels the future. After `close` nothing runs: the future is cancelled."""
        future: asyncio.Future[T] = self._loop.create_future()
        if self._is_closed:
            future.cancel()
            return future
        if len(self._threads) < self._count_max:
            self._threads.append(self._start(self._work))
        self._waiting.put((function, future))
        return future

    def close(self) -> None:
        """Wait until all calls are done. Blocks."""
        self._is_closed = True
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _work(self) -> None:
        while (task := self._waiting.get()) is not None:
            if not task[1].cancelled():
                self._do(*task)
            del task  # an idle thread keeps no object of its last call alive

    def _do(self, function: Callable[[], T], future: "asyncio.Future[T]") -> None:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            self._settle(_fail, future, error)
            # The traceback of the error refers to this frame, and keeps its variables alive.
            del future
        else:
            self._settle(_succeed, future, result)

    def _settle(
        self,
        how: Callable[["asyncio.Future[T]", Any], None],
        future: "asyncio.Future[T]",
        told: Any,
    ) -> None:
        try:
            self._loop.call_soon_threadsafe(how, future, told)
        except RuntimeError:
            # The loop is closed: a stop waits for no call of a pool that is never closed, such as
            # one to a disk that hangs. So no caller waits for this one.
            assert self._loop.is_closed()


def _succeed(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[Any]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def settle(future: "asyncio.Future[T]", result: T | Exception) -> None:
    """Give a result, or the exception, to a future that a caller may have given up."""
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


class TimedCalls:
    """Runs functions in threads, and reports for how long the oldest call is under way.
    Belongs to one event loop; `elapsed_s` is a monotonic clock."""

    def __init__(self, in_thread: InThread, *, elapsed_s: Callable[[], float]) -> None:
        self._in_thread = in_thread
        self._elapsed_s = elapsed_s
        self._began_s: dict[object, float] = {}

    async def __call__(self, function: Callable[[], T]) -> T:
        call = object()
        self._began_s[call] = self._elapsed_s()
        try:
            return await self._in_thread(function)
        finally:
            del self._began_s[call]

    def oldest_s(self) -> float:
        """For how long the oldest call is under way, in seconds; 0 when there is none."""
        return self._elapsed_s() - min(self._began_s.values()) if self._began_s else 0.0


class LightTask(Generic[T]):
    """Runs a coroutine by callbacks, without an asyncio task: until it waits for a future, and on
    when that future is done.

    A request waits for one or two futures. A task for it would cost as much as the request itself:
    it is registered, begins in the next round of the loop, and is woken in another round.

    The coroutine may await futures, and coroutines that await them. It may not use
    `asyncio.timeout` or a task group: these need a task, and raise at once. When it ends, it calls
    `returned` with its result, or `failed` with its exception.

    If it was given up before, the exception of the future that it waited for is logged: as a bug,
    unless it is one of the `refusals`.
    """

    __slots__ = ("_failed", "_refusals", "_returned", "_work")

    def __init__(
        self,
        work: Coroutine[Any, Any, T] | Generator[Any, Any, T],
        returned: Callable[[T], None],
        failed: Callable[[BaseException], None],
        refusals: type[Exception] | tuple[type[Exception], ...],
    ) -> None:
        self._work: Coroutine[Any, Any, T] | Generator[Any, Any, T] | None = work
        self._returned = returned
        self._failed = failed
        self._refusals = refusals

    def go_on(self, _awaited: "asyncio.Future[Any] | None" = None) -> None:
        """Run the first step at once; callbacks run the later ones."""
        if self._work is None:
            if _awaited is not None and not _awaited.cancelled():
                _log_unclaimed(_awaited.exception(), self._refusals)
            return
        try:
            awaited = self._work.send(None)
        except StopIteration as end:
            self._work = None
            self._returned(end.value)
        except BaseException as error:  # noqa: BLE001 - the callback gets it
            self._work = None
            self._failed(error)
        else:
            self.wait_for(awaited)

    def wait_for(self, awaited: "asyncio.Future[Any] | None") -> None:
        """Go on when this is done, which the coroutine has yielded."""
        if awaited is None:  # asyncio.sleep(0)
            asyncio.get_running_loop().call_soon(self.go_on)
        else:
            awaited.add_done_callback(self.go_on)

    def give_up(self) -> None:
        """Let the coroutine clean up, and call neither function."""
        work, self._work = self._work, None
        if work is not None:
            work.close()


class FutureTask(LightTask[T]):
    """A light task whose result is the future `done`. The task continues when the caller stops
    waiting for `done`.

    If no caller waits any more, an exception is logged: as a bug, unless it is one of the
    `refusals`, which callers can ask for again.
    """

    __slots__ = ("done",)

    def __init__(self, work: Coroutine[Any, Any, T], *, refusals: type[Exception]) -> None:
        self.done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        super().__init__(work, self._return, self._fail, refusals)

    def _return(self, result: T) -> None:
        # A caller that timed out or disconnected has ended the future.
        if not self.done.done():
            self.done.set_result(result)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            self.done.cancel()  # the server stops
        elif self.done.done():
            _log_unclaimed(error, self._refusals)
        else:
            self.done.set_exception(error)


def _log_unclaimed(
    error: BaseException | None, refusals: type[Exception] | tuple[type[Exception], ...]
) -> None:
    """Log what was raised when no caller waited any more: as a bug, unless it is a refusal."""
    name = type(error).__name__
    if isinstance(error, refusals):
        log.debug("the caller has given up, and does not get %s: %s", name, error)
    elif error is not None:
        log.error("the caller has given up, and %s was raised", name, exc_info=error)


class Limited(Protocol):
    """What has a limited time: a future, or what is answered like one."""

    def done(self) -> bool: ...

    def set_exception(self, error: Exception, /) -> None: ...


class SharedTimeout:
    """Limits the time of futures and calls: each gets the same number of seconds, then the error
    that `too_late` makes. They share one timer, since nearly all are done long before."""

    def __init__(self, seconds: float, *, too_late: Callable[[], Exception]) -> None:
        self._seconds = seconds
        self._too_late = too_late
        self._waiting: deque[tuple[float, Limited]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, limited: Limited) -> None:
        """Limit the time of this one, which begins now."""
        loop = asyncio.get_running_loop()
        self._drop_done()
        self._waiting.append((loop.time() + self._seconds, limited))
        if self._timer is None:
            self._timer = loop.call_later(self._seconds, self._look)

    def _drop_done(self) -> None:
        waiting = self._waiting
        while waiting and waiting[0][1].done():
            waiting.popleft()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        self._drop_done()
        while self._waiting and self._waiting[0][0] <= loop.time():
            self._waiting.popleft()[1].set_exception(self._too_late())
            self._drop_done()
        if self._waiting:
            self._timer = loop.call_at(self._waiting[0][0], self._look)
