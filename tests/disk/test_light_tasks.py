"""Coroutines that run by callbacks (tuff/disk/event_loop.py)."""

import asyncio
from typing import Any

import pytest

from tuff.disk.event_loop import FutureTask, LightTask, SharedTimeout
from tuff.protocol.errors import StorageUnavailableError, TuffError


class Ends:
    """How tasks ended."""

    def __init__(self) -> None:
        self.all: list[tuple[str, object]] = []

    def begin(self, work: Any) -> LightTask[Any]:
        task = LightTask(
            work,
            returned=lambda result: self.all.append(("returned", result)),
            failed=lambda error: self.all.append(("failed", type(error))),
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
async def test_what_is_raised_when_the_caller_has_given_up_is_logged(
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
