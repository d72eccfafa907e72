"""Pointers come from blocks that are reserved durably beforehand (design §4, Pointers)."""

import asyncio

import pytest

from tests.tx.service import NOW_MS, Service, turns
from tuff.protocol.errors import (
    TransactionsUnavailableError,
)
from tx.log_records import PointerRange
from tx.pointer_reservation import PointerBlocks
from tx.settings import BLOCK_COUNT_MAX, BLOCK_COUNT_MIN, BLOCK_STALE_MS


async def test_pointers_rise_from_the_clock_on(service: Service) -> None:
    first, second = await service.begin(), await service.begin()

    assert first.transaction_id == NOW_MS * 1_000_000 + 1
    assert first.transaction.read_pointer == NOW_MS * 1_000_000
    assert second.transaction_id == first.transaction_id + 1
    assert list(second.transaction.in_progress) == [first.transaction_id]


async def test_starts_go_on_while_a_new_block_is_reserved(service: Service) -> None:
    started = [(await service.begin()).transaction_id for _ in range(10 * BLOCK_COUNT_MIN)]

    assert started == sorted(set(started))
    assert service.rows.reserved >= started[-1]


async def test_a_start_that_finds_no_pointer_waits_for_the_renewal(service: Service) -> None:
    service.disk.hold()
    for _ in range(BLOCK_COUNT_MIN):
        await service.begin()
    waiting = [asyncio.create_task(service.begin()) for _ in range(200)]
    await turns()

    assert not any(task.done() for task in waiting)

    service.disk.release()
    pointers = [one.transaction_id for one in await asyncio.gather(*waiting)]
    assert pointers == sorted(set(pointers))
    assert service.disk.sync_count == 2  # for the block under way, and for one for all that wait


async def test_starts_that_wait_for_a_pointer_fail_when_the_log_fails(service: Service) -> None:
    service.disk.hold()
    for _ in range(BLOCK_COUNT_MIN):
        await service.begin()
    waiting = asyncio.create_task(service.begin())
    await turns()
    service.disk.fails = True
    service.disk.release()

    with pytest.raises(TransactionsUnavailableError):
        await waiting


def reserved(blocks: PointerBlocks, *, after_ms: int, waiting_count: int = 0) -> int:
    """The size of the block that is reserved then."""
    now_ms = NOW_MS + after_ms
    return blocks.next_block(lowest=1, waiting_count=waiting_count, now_ms=now_ms).count


def test_a_block_holds_a_fifth_of_a_second_at_the_recent_rate() -> None:
    blocks = PointerBlocks()
    first = reserved(blocks, after_ms=0)
    blocks.add(PointerRange(1, 2001), now_ms=NOW_MS)
    for _ in range(2000):
        blocks.take(now_ms=NOW_MS)
    blocks.add(PointerRange(2001, 2005), now_ms=NOW_MS)
    for _ in range(3):
        blocks.take(now_ms=NOW_MS)

    assert first == BLOCK_COUNT_MIN
    assert reserved(blocks, after_ms=1000) == round(2003 / 5)
    assert reserved(blocks, after_ms=2000, waiting_count=10**6) == BLOCK_COUNT_MAX


def test_a_few_starts_at_once_have_no_large_block_reserved() -> None:
    blocks = PointerBlocks()
    reserved(blocks, after_ms=0)
    blocks.add(PointerRange(1, 5), now_ms=NOW_MS)
    for _ in range(4):
        blocks.take(now_ms=NOW_MS)

    assert reserved(blocks, after_ms=1) == 4 * 4


def test_blocks_shrink_by_and_by() -> None:
    blocks = PointerBlocks()
    sizes = [48]
    for nth in range(5):
        blocks.add(PointerRange(1, 1 + sizes[-1]), now_ms=NOW_MS)
        sizes.append(reserved(blocks, after_ms=10_000 * nth))

    assert sizes == [48, 24, 12, 6, 4, 4]


async def started_fast(service: Service, count: int) -> None:
    """So many starts, a thousand in a second."""
    for _ in range(count):
        service.now_ms += 1
        await service.runner.commit((await service.begin()).transaction_id, read_only=True)
        await turns(5)


async def test_a_crash_of_an_idle_service_takes_a_handful_of_pointers(service: Service) -> None:
    for _ in range(3):
        service = await service.crash()

    assert len((await service.write_permits.snapshot()).invalids) == 3 * 4


async def test_pointers_that_no_start_wants_are_given_back(service: Service) -> None:
    await started_fast(service, 1000)
    wanted = reserved_count(service)
    await service.later(2_000)
    given_back = wanted - reserved_count(service)

    again = await service.crash()

    assert wanted > 100
    assert given_back == wanted
    assert list((await again.write_permits.snapshot()).invalids) == []


async def test_pointers_that_were_given_back_are_not_handed_out_when_the_clock_is_set_back(
    service: Service,
) -> None:
    """A crash would have taken them for pointers of starts that did not come."""
    await started_fast(service, 1000)
    await service.later(2_000)
    service.now_ms -= 2_000
    service.disk.hold()
    waiting = asyncio.create_task(service.begin())
    await turns()
    assert not waiting.done()

    service.disk.release()
    lost = await waiting
    service.disk.hold()
    last = await service.begin()
    again = await service.crash()

    for one in (lost, last):
        assert await again.state_of(one.transaction_id) in {
            ("in_progress", None), ("invalid", "lost_in_crash"),
        }  # fmt: skip


def reserved_count(service: Service) -> int:
    """How many pointers a crash would take now."""
    return sum(block.count for block in service.durable.decided.image().blocks)


async def test_what_is_wanted_is_not_given_back(service: Service) -> None:
    await started_fast(service, 1000)
    wanted = reserved_count(service)

    await service.later(200)

    assert reserved_count(service) == wanted


def test_two_of_the_smallest_blocks_are_no_surplus() -> None:
    blocks = PointerBlocks()
    blocks.add(PointerRange(1, 100), now_ms=NOW_MS - 2_000)

    enough_count = 2 * BLOCK_COUNT_MIN
    assert not blocks.has_surplus(reserved_count=enough_count, now_ms=NOW_MS)
    assert blocks.has_surplus(reserved_count=enough_count + 1, now_ms=NOW_MS)


def test_a_block_that_is_fresh_is_no_surplus() -> None:
    blocks = PointerBlocks()
    blocks.add(PointerRange(1, 100), now_ms=NOW_MS - 2_000)
    blocks.add(PointerRange(100, 200), now_ms=NOW_MS)

    assert not blocks.has_surplus(reserved_count=199, now_ms=NOW_MS + BLOCK_STALE_MS)
    assert blocks.has_surplus(reserved_count=199, now_ms=NOW_MS + BLOCK_STALE_MS + 1)


def test_stale_pointers_are_passed_over() -> None:
    blocks = PointerBlocks()
    blocks.add(PointerRange(1, 5), now_ms=NOW_MS)
    blocks.add(PointerRange(5, 9), now_ms=NOW_MS + 2_000)

    taken = [blocks.take(now_ms=NOW_MS + after_ms) for after_ms in (0, 1_000, 1_001, 3_000, 3_001)]

    assert taken == [1, 2, 5, 6, None]
    assert blocks.rest_count == 0


async def test_a_block_on_its_way_to_the_disk_is_not_given_back(service: Service) -> None:
    await started_fast(service, 1000)
    service.now_ms += 2_000
    service.disk.hold()
    waiting = asyncio.create_task(service.begin())  # for a fresh block
    await turns()
    await service.later(500)
    service.disk.release()
    await waiting
    await turns()  # what the tick recorded is durable
    service.disk.hold()
    lost = await service.begin()

    again = await service.crash()

    assert lost.transaction_id >= (NOW_MS + 2_000) * 1_000_000
    assert await again.state_of(lost.transaction_id) == ("invalid", "lost_in_crash")


@pytest.mark.parametrize("idle_ms", [1_001, 60_000, 80_000_000])
async def test_after_an_idle_time_pointers_name_the_present(service: Service, idle_ms: int) -> None:
    """A program that computes an age from it refused a fresh transaction."""
    tx = await service.begin(timeout_s=86_400)
    service.now_ms += idle_ms

    late = await service.begin()
    checked = await service.runner.checkpoint(tx.transaction_id)

    assert late.transaction_id == (NOW_MS + idle_ms) * 1_000_000
    assert checked.transaction.write_pointer == late.transaction_id + 1


async def test_a_pointer_is_of_its_start_to_a_second_as_long_as_the_disk_is_fast(
    service: Service,
) -> None:
    for pause_ms in (0, 300, 400, 299, 1, 999, 1_000, 1_001, 5_000, 700, 700):
        service.now_ms += pause_ms
        opened = await service.begin()
        await turns()

        assert 0 <= opened.started_at_ms - opened.transaction_id // 1_000_000 <= BLOCK_STALE_MS


async def test_a_block_that_a_slow_disk_reserved_is_handed_out(service: Service) -> None:
    """Starts waited for one block after the other."""
    service.now_ms += 60_000
    service.disk.hold()
    waiting = asyncio.create_task(service.begin())
    await turns()
    service.now_ms += 5_000
    service.disk.release()

    late = await waiting

    assert late.transaction_id == (NOW_MS + 60_000) * 1_000_000
    assert service.disk.sync_count == 1


def test_a_block_starts_at_the_clock_or_above_what_was_reserved() -> None:
    blocks = PointerBlocks()
    ahead = (NOW_MS + 1) * 1_000_000
    assert blocks.next_block(lowest=5, waiting_count=0, now_ms=NOW_MS).start == NOW_MS * 1_000_000
    assert blocks.next_block(lowest=ahead, waiting_count=0, now_ms=NOW_MS).start == ahead


async def test_a_block_that_is_not_stale_is_used_up_before_the_next(service: Service) -> None:
    started = [(await service.begin()).transaction_id for _ in range(BLOCK_COUNT_MIN // 2 + 1)]
    await turns()

    started += [(await service.begin()).transaction_id for _ in range(BLOCK_COUNT_MIN // 2)]

    first = NOW_MS * 1_000_000 + 1
    assert started == list(range(first, first + BLOCK_COUNT_MIN + 1))
