"""Worker threads: what comes back from them, and what they leave behind."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tuff.disk.event_loop import TimedCalls, WorkerThreads


def start(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.fixture
async def one() -> AsyncIterator[WorkerThreads]:
    workers = WorkerThreads(1, start=start)
    yield workers
    workers.close()


class LeftError(Exception):
    pass


def fail() -> None:
    raise LeftError("so it goes")


async def test_the_oldest_call_that_is_under_way_is_known(one: WorkerThreads) -> None:
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


async def test_results_and_errors_are_returned_to_the_caller(one: WorkerThreads) -> None:
    with pytest.raises(LeftError, match="so it goes"):
        await one.run(fail)
    assert await one.run(lambda: 7) == 7
    assert await one.run(threading.get_ident) != threading.get_ident()


async def test_one_thread_runs_calls_in_their_order(one: WorkerThreads) -> None:
    done: list[int] = []

    await asyncio.gather(*(one.run(lambda n=n: done.append(n)) for n in range(100)))  # type: ignore[misc] # bound now

    assert done == list(range(100))


async def test_as_many_calls_run_at_once_as_there_are_threads() -> None:
    workers = WorkerThreads(3, start=start)
    together = threading.Barrier(3)

    places = await asyncio.gather(*(workers.run(lambda: together.wait(60)) for _ in range(9)))

    assert sorted(places) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    workers.close()


async def test_a_call_that_is_cancelled_before_it_begins_does_not_run(one: WorkerThreads) -> None:
    may_end, done = threading.Event(), []
    first = one.run(lambda: may_end.wait(60))
    second = one.run(lambda: done.append("second"))
    third = one.run(lambda: done.append("third"))

    second.cancel()
    may_end.set()
    await asyncio.gather(first, third)

    assert done == ["third"]


async def test_a_call_that_is_cancelled_while_it_runs_ends_without_an_error(
    one: WorkerThreads,
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


async def test_close_waits_for_all_calls() -> None:
    workers = WorkerThreads(2, start=start)
    done: list[int] = []
    futures = [workers.run(lambda: done.append(1)) for _ in range(20)]

    workers.close()

    assert len(done) == 20
    await asyncio.gather(*futures)


async def test_an_error_leaves_no_cycle_for_the_garbage_collector(one: WorkerThreads) -> None:
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
