"""Coroutines that run by callbacks (tuff/disk/event_loop.py)."""

import asyncio
from typing import Any

import pytest

from tuff.disk.event_loop import FutureTask, LightTask, SharedTimeout
from tuff.protocol.errors import StorageUnavailableError, TuffError


class Told:
    """How it ended."""

    def __init__(self) -> None:
        self.ends: list[tuple[str, object]] = []

    def begin(self, work: Any) -> LightTask[Any]:
        steps = LightTask(
            work,
            returned=lambda result: self.ends.append(("returned", result)),
            failed=lambda error: self.ends.append(("failed", type(error))),
        )
        steps.go_on()
        return steps


async def _sum_of(*futures: "asyncio.Future[int]") -> int:
    return sum([await future for future in futures])


async def test_what_waits_for_nothing_ends_at_once() -> None:
    told = Told()

    told.begin(_sum_of())

    assert told.ends == [("returned", 0)]


async def test_it_goes_on_when_what_it_waits_for_is_done() -> None:
    told, loop = Told(), asyncio.get_running_loop()
    first, second = loop.create_future(), loop.create_future()
    told.begin(_sum_of(first, second))
    second.set_result(2)
    await asyncio.sleep(0)
    assert told.ends == []

    first.set_result(1)
    await asyncio.sleep(0)

    assert told.ends == [("returned", 3)]


async def test_it_lets_others_go_first() -> None:
    told = Told()

    async def yielding() -> str:
        await asyncio.sleep(0)
        return "done"

    told.begin(yielding())
    assert told.ends == []
    await asyncio.sleep(0)
    assert told.ends == [("returned", "done")]


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
async def test_an_error_ends_it(error: type[BaseException]) -> None:
    told, future = Told(), asyncio.get_running_loop().create_future()
    told.begin(_sum_of(future))

    if error is ValueError:
        future.set_exception(ValueError("no"))
    else:
        future.cancel()
    await asyncio.sleep(0)

    assert told.ends == [("failed", error)]


async def test_who_is_given_up_cleans_up_and_tells_nobody() -> None:
    told, future = Told(), asyncio.get_running_loop().create_future()
    cleaned: list[bool] = []

    async def careful() -> None:
        try:
            await future
        finally:
            cleaned.append(True)

    steps = told.begin(careful())
    steps.give_up()
    future.set_result(None)
    await asyncio.sleep(0)

    assert (cleaned, told.ends) == ([True], [])


async def test_what_needs_a_task_is_told_so() -> None:
    told = Told()

    async def timed() -> None:
        async with asyncio.timeout(1):
            await asyncio.sleep(0)

    def outside_of_a_task() -> None:
        told.begin(timed())

    asyncio.get_running_loop().call_soon(outside_of_a_task)
    await asyncio.sleep(0)

    assert told.ends == [("failed", RuntimeError)]


async def test_a_promise_is_what_the_steps_end_with() -> None:
    loop = asyncio.get_running_loop()
    first = loop.create_future()
    promised = FutureTask(_sum_of(first), refusals=TuffError)
    promised.go_on()
    assert not promised.done.done()

    first.set_result(3)

    assert await promised.done == 3


async def test_steps_go_on_when_nobody_waits_for_their_promise() -> None:
    loop, ends, complaints = asyncio.get_running_loop(), [], []
    loop.set_exception_handler(lambda _loop, context: complaints.append(context))

    async def work(first: "asyncio.Future[int]") -> int:
        ends.append(await first)
        if ends[-1] == 2:
            raise ValueError
        return ends[-1]

    for number in (1, 2):
        first = loop.create_future()
        promised = FutureTask(work(first), refusals=TuffError)
        promised.go_on()
        promised.done.cancel()
        first.set_result(number)
        await asyncio.sleep(0)

    assert ends == [1, 2]
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
    promised = FutureTask(work(first), refusals=TuffError)
    promised.go_on()
    promised.done.cancel()
    first.set_result(1)
    await asyncio.sleep(0)

    [record] = caplog.records
    assert (record.levelname, bool(record.exc_info)) == (level, has_trace)
    assert type(error).__name__ in record.getMessage()


async def test_patience_ends_what_takes_too_long_and_nothing_else() -> None:
    loop = asyncio.get_running_loop()
    patience = SharedTimeout(0.0, too_late=lambda: TimeoutError("too late"))
    done, slow, slower = (loop.create_future() for _ in range(3))
    done.set_result(1)
    for each in (done, slow, slower):
        patience.watch(each)

    for each in (slow, slower):
        with pytest.raises(TimeoutError, match="too late"):
            await each

    assert done.result() == 1


async def test_patience_lets_go_of_what_is_done() -> None:
    loop = asyncio.get_running_loop()
    patience = SharedTimeout(3600.0, too_late=TimeoutError)

    for _ in range(100):
        future = loop.create_future()
        patience.watch(future)
        future.set_result(None)

    assert len(patience._waiting) == 1
