"""Group commit: what waits goes out together, in order, and once (design §4, §5)."""

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuff.disk.event_loop import Arrivals, BatchLoop


class SlowDisk:
    """Keeps every batch, and ends a write when the test says so."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.done: asyncio.Queue[None] = asyncio.Queue()
        self.started: asyncio.Queue[list[int]] = asyncio.Queue()

    async def write(self, batch: list[int]) -> None:
        self.batches.append(batch)
        self.started.put_nowait(batch)
        await self.done.get()


async def test_what_arrived_during_a_write_goes_out_with_the_next() -> None:
    disk = SlowDisk()
    writer = BatchLoop(disk.write, batch_count_max=100, arrivals=Arrivals())
    running = asyncio.ensure_future(writer.run())

    writer.put(1)
    assert await disk.started.get() == [1]
    for item in (2, 3, 4):
        writer.put(item)
    assert writer.pending_count == 3
    disk.done.put_nowait(None)
    assert await disk.started.get() == [2, 3, 4]
    assert writer.pending_count == 0
    disk.done.put_nowait(None)
    writer.close()
    await running

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
    writer = BatchLoop(disk.write, batch_count_max=100, arrivals=arrivals)
    running = asyncio.ensure_future(writer.run())
    writer.put(1)

    for _ in range(10):  # rounds of the loop; each with a request that may bring an item, or none
        arrivals.count += 1
        await asyncio.sleep(0)
    assert disk.batches == []
    writer.put(2)
    assert await disk.started.get() == [1, 2]

    disk.done.put_nowait(None)
    writer.close()
    await running


async def test_a_batch_waits_no_longer_than_its_bound() -> None:
    disk, arrivals = SlowDisk(), Arrivals()
    writer = BatchLoop(disk.write, batch_count_max=100, arrivals=arrivals)
    running = asyncio.ensure_future(writer.run())
    writer.put(1)

    while not disk.batches:  # without the bound it went on like this for ever
        arrivals.count += 1
        await asyncio.sleep(0)

    disk.done.put_nowait(None)
    writer.close()
    await running


async def test_an_item_that_was_put_aside_is_written_with_the_next_item() -> None:
    disk = SlowDisk()
    writer = BatchLoop(disk.write, batch_count_max=100, arrivals=Arrivals())
    running = asyncio.ensure_future(writer.run())
    writer.put_aside(1)
    for _ in range(10):
        await asyncio.sleep(0)
    assert disk.batches == []

    writer.put(2)

    assert await disk.started.get() == [1, 2]
    disk.done.put_nowait(None)
    writer.close()
    await running


async def test_an_idle_writer_wakes_for_the_next_item() -> None:
    disk = SlowDisk()
    writer = BatchLoop(disk.write, batch_count_max=100, arrivals=Arrivals())
    running = asyncio.ensure_future(writer.run())

    for item in range(3):
        disk.done.put_nowait(None)
        writer.put(item)
        assert await disk.started.get() == [item]
        for _ in range(item):
            await asyncio.sleep(0)
    writer.close()
    await running

    assert disk.batches == [[0], [1], [2]]


async def test_an_empty_writer_closes_without_writing() -> None:
    disk = SlowDisk()
    writer: BatchLoop[int] = BatchLoop(disk.write, batch_count_max=2, arrivals=Arrivals())
    running = asyncio.ensure_future(writer.run())

    writer.close()
    await running

    assert disk.batches == []


async def test_nothing_is_taken_after_close() -> None:
    disk = SlowDisk()
    writer: BatchLoop[int] = BatchLoop(disk.write, batch_count_max=2, arrivals=Arrivals())
    writer.close()

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
