"""Group commit, thread pools, light tasks and timeouts (design §4, §5)."""

import asyncio
import gc
import itertools
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.event_loop import (
    Arrivals,
    BatchLoop,
    FutureTask,
    LightTask,
    SharedTimeout,
    ThreadPool,
    TimedCalls,
)
from tuff.protocol.errors import StorageUnavailableError, TuffError


class SlowDisk:
    """Records every batch; a write ends when the test says so."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.done: asyncio.Queue[None] = asyncio.Queue()
        self.started: asyncio.Queue[list[int]] = asyncio.Queue()

    async def write(self, batch: list[int]) -> None:
        self.batches.append(batch)
        self.started.put_nowait(batch)
        await self.done.get()


@asynccontextmanager
async def writing(
    disk: SlowDisk, arrivals: Arrivals | None = None
) -> AsyncIterator[BatchLoop[int]]:
    """A group commit that runs; at the end it is closed, and the batch in flight is written."""
    writer = BatchLoop(disk.write, batch_count_max=100, arrivals=arrivals or Arrivals())
    running = asyncio.ensure_future(writer.run())
    yield writer
    disk.done.put_nowait(None)
    writer.close()
    await running


async def test_what_arrived_during_a_write_goes_out_with_the_next() -> None:
    disk = SlowDisk()

    async with writing(disk) as writer:
        writer.put(1)
        assert await disk.started.get() == [1]
        for item in (2, 3, 4):
            writer.put(item)
        assert writer.pending_count == 3
        disk.done.put_nowait(None)
        assert await disk.started.get() == [2, 3, 4]
        assert writer.pending_count == 0

    assert disk.batches == [[1], [2, 3, 4]]


async def test_a_batch_never_holds_more_than_its_limit() -> None:
    disk = SlowDisk()
    writer = BatchLoop(disk.write, batch_count_max=2, arrivals=Arrivals())
    for item in range(5):
        writer.put(item)
        disk.done.put_nowait(None)
    writer.close()

    await writer.run()

    assert disk.batches == [[0, 1], [2, 3], [4]]


async def test_a_batch_waits_while_requests_come_in() -> None:
    disk, arrivals = SlowDisk(), Arrivals()

    async with writing(disk, arrivals) as writer:
        writer.put(1)
        for _ in range(10):  # rounds of the loop; each with a request that may bring an item
            arrivals.count += 1
            await asyncio.sleep(0)
        assert disk.batches == []
        writer.put(2)

        assert await disk.started.get() == [1, 2]


async def test_a_batch_waits_no_longer_than_its_bound() -> None:
    disk, arrivals = SlowDisk(), Arrivals()

    async with writing(disk, arrivals) as writer:
        writer.put(1)

        while not disk.batches:  # without the bound it went on like this for ever
            arrivals.count += 1
            await asyncio.sleep(0)


async def test_an_item_that_was_put_aside_is_written_with_the_next_item() -> None:
    disk = SlowDisk()

    async with writing(disk) as writer:
        writer.put_aside(1)
        for _ in range(10):
            await asyncio.sleep(0)
        assert disk.batches == []
        writer.put(2)

        assert await disk.started.get() == [1, 2]


async def test_an_idle_writer_wakes_for_the_next_item() -> None:
    disk = SlowDisk()

    async with writing(disk) as writer:
        for item in range(3):
            disk.done.put_nowait(None)
            writer.put(item)
            assert await disk.started.get() == [item]
            for _ in range(item):
                await asyncio.sleep(0)

    assert disk.batches == [[0], [1], [2]]


async def test_an_empty_writer_closes_without_writing_and_takes_nothing_more() -> None:
    disk = SlowDisk()

    async with writing(disk) as writer:
        pass

    assert disk.batches == []
    with pytest.raises(AssertionError, match="put after close"):
        writer.put(1)


async def test_an_error_of_the_write_is_a_bug_and_ends_the_run() -> None:
    async def write(batch: list[int]) -> None:
        raise ZeroDivisionError(len(batch))

    writer = BatchLoop(write, batch_count_max=2, arrivals=Arrivals())
    writer.put(1)

    with pytest.raises(ZeroDivisionError):
        await writer.run()


@given(st.lists(st.integers(0, 4), max_size=40), st.integers(1, 5))
def test_every_item_is_written_once_and_in_order(arrivals: list[int], limit: int) -> None:
    """`arrivals`: how many items come in while the n-th batch is being written."""
    batches: list[list[int]] = []

    async def history() -> None:
        upcoming = iter(arrivals)
        numbers = itertools.count(1)

        async def write(batch: list[int]) -> None:
            batches.append(batch)
            count = next(upcoming, None)
            if count is None:
                writer.close()
                return
            # One at least, or the writer would wait for ever and the history end here.
            for _ in range(max(count, 1 if writer.pending_count == 0 else 0)):
                writer.put(next(numbers))

        writer = BatchLoop(write, batch_count_max=limit, arrivals=Arrivals())
        writer.put(0)
        await writer.run()

    async def closed_in_time() -> None:
        await asyncio.wait_for(history(), timeout=10)

    asyncio.run(closed_in_time())

    written = [item for batch in batches for item in batch]
    assert written == list(range(len(written)))
    assert all(1 <= len(batch) <= limit for batch in batches)


def start(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.fixture
async def one() -> AsyncIterator[ThreadPool]:
    workers = ThreadPool(1, start=start)
    yield workers
    workers.close()


class LeftError(Exception):
    pass


def fail() -> None:
    raise LeftError("so it goes")


async def test_the_oldest_call_that_is_under_way_is_known(one: ThreadPool) -> None:
    now_s = [100.0]
    watched = TimedCalls(one.run, elapsed_s=lambda: now_s[0])
    begun, may_end = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        may_end.wait()

    assert watched.oldest_s() == 0
    hanging = asyncio.create_task(watched(hang))
    await asyncio.to_thread(begun.wait)
    now_s[0] = 103.0
    waiting = asyncio.create_task(watched(fail))
    await asyncio.sleep(0)
    now_s[0] = 107.0

    assert watched.oldest_s() == 7.0

    may_end.set()
    await hanging
    with pytest.raises(LeftError):
        await waiting
    assert watched.oldest_s() == 0


async def test_results_and_errors_are_returned_to_the_caller(one: ThreadPool) -> None:
    with pytest.raises(LeftError, match="so it goes"):
        await one.run(fail)
    assert await one.run(lambda: 7) == 7
    assert await one.run(threading.get_ident) != threading.get_ident()


async def test_one_thread_runs_calls_in_their_order(one: ThreadPool) -> None:
    done: list[int] = []

    await asyncio.gather(*(one.run(lambda n=n: done.append(n)) for n in range(100)))  # type: ignore[misc] # bound now

    assert done == list(range(100))


async def test_as_many_calls_run_at_once_as_there_are_threads() -> None:
    workers = ThreadPool(3, start=start)
    together = threading.Barrier(3)

    places = await asyncio.gather(*(workers.run(lambda: together.wait(60)) for _ in range(9)))

    assert sorted(places) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    workers.close()


async def test_a_call_after_the_close_is_cancelled_and_starts_no_thread() -> None:
    """Such a thread would outlive the event loop, and end with a stack trace."""
    started: list[threading.Thread] = []

    def note(work: Callable[[], None]) -> threading.Thread:
        started.append(start(work))
        return started[-1]

    workers = ThreadPool(2, start=note)
    workers.close()

    with pytest.raises(asyncio.CancelledError):
        await workers.run(lambda: 7)
    assert started == []


async def test_a_call_that_is_cancelled_before_it_begins_does_not_run(one: ThreadPool) -> None:
    may_end, done = threading.Event(), []
    first = one.run(lambda: may_end.wait(60))
    second = one.run(lambda: done.append("second"))
    third = one.run(lambda: done.append("third"))

    second.cancel()
    may_end.set()
    await asyncio.gather(first, third)

    assert done == ["third"]


async def test_a_call_that_is_cancelled_while_it_runs_ends_without_an_error(
    one: ThreadPool,
) -> None:
    has_begun, may_end, done = threading.Event(), threading.Event(), []
    wrong: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))

    def work() -> None:
        has_begun.set()
        may_end.wait(60)
        done.append("all")

    given_up = one.run(work)
    await asyncio.to_thread(has_begun.wait, 60)
    given_up.cancel()
    may_end.set()

    assert await one.run(lambda: done) == ["all"]
    assert wrong == []


@pytest.mark.parametrize("fails", [False, True])
def test_a_call_that_ends_after_its_loop_raises_in_no_thread(
    monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """Servers of a cluster that stopped ended with a traceback of the thread of the watchdog."""
    may_end = threading.Event()
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)

    def work() -> None:
        may_end.wait(60)
        if fails:
            raise StorageUnavailableError("the disk that hung is gone")

    async def begin() -> ThreadPool:
        pool = ThreadPool(1, start=start)
        pool.run(work)
        return pool

    pool = asyncio.run(begin())
    may_end.set()
    pool.close()

    assert raised == []


async def test_close_waits_for_all_calls() -> None:
    workers = ThreadPool(2, start=start)
    done: list[int] = []
    futures = [workers.run(lambda: done.append(1)) for _ in range(20)]

    workers.close()

    assert len(done) == 20
    await asyncio.gather(*futures)


async def test_an_error_leaves_no_cycle_for_the_garbage_collector(one: ThreadPool) -> None:
    gc.disable()
    try:
        future = one.run(fail)
        await asyncio.wait([future])
        error = future.exception()
        assert error is not None
        gone = weakref.ref(future)
        del future, error
        await one.run(int)
        assert gone() is None
    finally:
        gc.enable()


class Ends:
    """How tasks ended."""

    def __init__(self) -> None:
        self.all: list[tuple[str, object]] = []

    def begin(self, work: Any) -> LightTask[Any]:
        task = LightTask(
            work,
            returned=lambda result: self.all.append(("returned", result)),
            failed=lambda error: self.all.append(("failed", type(error))),
            refusals=StorageUnavailableError,
        )
        task.go_on()
        return task


async def _sum_of(*futures: "asyncio.Future[int]") -> int:
    return sum([await future for future in futures])


async def test_a_task_that_waits_for_nothing_ends_at_once() -> None:
    ends = Ends()

    ends.begin(_sum_of())

    assert ends.all == [("returned", 0)]


async def test_a_task_goes_on_when_the_future_it_waits_for_is_done() -> None:
    ends, loop = Ends(), asyncio.get_running_loop()
    first, second = loop.create_future(), loop.create_future()
    ends.begin(_sum_of(first, second))
    second.set_result(2)
    await asyncio.sleep(0)
    assert ends.all == []

    first.set_result(1)
    await asyncio.sleep(0)

    assert ends.all == [("returned", 3)]


async def test_a_sleep_of_zero_waits_for_the_next_round_of_the_loop() -> None:
    ends = Ends()

    async def yielding() -> str:
        await asyncio.sleep(0)
        return "done"

    ends.begin(yielding())
    assert ends.all == []
    await asyncio.sleep(0)
    assert ends.all == [("returned", "done")]


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
async def test_an_error_or_a_cancellation_ends_a_task(error: type[BaseException]) -> None:
    ends, future = Ends(), asyncio.get_running_loop().create_future()
    ends.begin(_sum_of(future))

    if error is ValueError:
        future.set_exception(ValueError("no"))
    else:
        future.cancel()
    await asyncio.sleep(0)

    assert ends.all == [("failed", error)]


async def test_a_task_that_is_given_up_cleans_up_and_calls_neither_function() -> None:
    ends, future = Ends(), asyncio.get_running_loop().create_future()
    cleaned: list[bool] = []

    async def careful() -> None:
        try:
            await future
        finally:
            cleaned.append(True)

    task = ends.begin(careful())
    task.give_up()
    future.set_result(None)
    await asyncio.sleep(0)

    assert (cleaned, ends.all) == ([True], [])


@pytest.mark.parametrize(
    ("error", "logged"),
    [(StorageUnavailableError("no"), []), (ValueError("no"), ["ERROR"])],
)
async def test_what_was_raised_for_a_task_that_was_given_up_is_logged_only_if_it_is_a_bug(
    caplog: pytest.LogCaptureFixture, error: Exception, logged: list[str]
) -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = Ends().begin(_sum_of(future))

    task.give_up()
    future.set_exception(error)
    await asyncio.sleep(0)
    del task, future
    gc.collect()  # asyncio complains of an exception that nobody has asked for

    assert [each.levelname for each in caplog.records] == logged


async def test_a_coroutine_that_needs_an_asyncio_task_raises() -> None:
    ends = Ends()

    async def timed() -> None:
        async with asyncio.timeout(1):
            await asyncio.sleep(0)

    def outside_of_a_task() -> None:
        ends.begin(timed())

    asyncio.get_running_loop().call_soon(outside_of_a_task)
    await asyncio.sleep(0)

    assert ends.all == [("failed", RuntimeError)]


async def test_the_future_of_a_task_gets_its_result() -> None:
    loop = asyncio.get_running_loop()
    first = loop.create_future()
    task = FutureTask(_sum_of(first), refusals=TuffError)
    task.go_on()
    assert not task.done.done()

    first.set_result(3)

    assert await task.done == 3


async def test_a_task_goes_on_when_its_future_is_cancelled() -> None:
    loop, results, complaints = asyncio.get_running_loop(), [], []
    loop.set_exception_handler(lambda _loop, context: complaints.append(context))

    async def work(first: "asyncio.Future[int]") -> int:
        results.append(await first)
        if results[-1] == 2:
            raise ValueError
        return results[-1]

    for number in (1, 2):
        first = loop.create_future()
        task = FutureTask(work(first), refusals=TuffError)
        task.go_on()
        task.done.cancel()
        first.set_result(number)
        await asyncio.sleep(0)

    assert results == [1, 2]
    assert complaints == []


@pytest.mark.parametrize(
    ("error", "level", "has_trace"),
    [(ValueError("a bug"), "ERROR", True), (StorageUnavailableError("full"), "DEBUG", False)],
)
async def test_an_error_after_the_caller_has_given_up_is_logged(
    caplog: pytest.LogCaptureFixture, error: Exception, level: str, *, has_trace: bool
) -> None:
    caplog.set_level("DEBUG")

    async def work(first: "asyncio.Future[int]") -> int:
        await first
        raise error

    first = asyncio.get_running_loop().create_future()
    task = FutureTask(work(first), refusals=TuffError)
    task.go_on()
    task.done.cancel()
    first.set_result(1)
    await asyncio.sleep(0)

    [record] = caplog.records
    assert (record.levelname, bool(record.exc_info)) == (level, has_trace)
    assert type(error).__name__ in record.getMessage()


async def test_a_timeout_ends_only_the_futures_that_are_late() -> None:
    loop = asyncio.get_running_loop()
    timeout = SharedTimeout(0.0, too_late=lambda: TimeoutError("too late"))
    done, slow, slower = (loop.create_future() for _ in range(3))
    done.set_result(1)
    for each in (done, slow, slower):
        timeout.watch(each)

    for each in (slow, slower):
        with pytest.raises(TimeoutError, match="too late"):
            await each

    assert done.result() == 1


async def test_a_timeout_keeps_no_future_that_is_done() -> None:
    loop = asyncio.get_running_loop()
    timeout = SharedTimeout(3600.0, too_late=TimeoutError)

    for _ in range(100):
        future = loop.create_future()
        timeout.watch(future)
        future.set_result(None)

    assert len(timeout._waiting) == 1
