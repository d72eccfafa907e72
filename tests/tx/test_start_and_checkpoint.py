"""Pointers, blocks and checkpoints."""

import asyncio
import math

import pytest

from tests.tx.service import NOW_MS, Service, turns
from tuff.protocol.errors import (
    BadRequestError,
    InvalidTimeoutError,
    OverloadedError,
    TransactionInvalidatedError,
    TransactionsUnavailableError,
    TransactionUnknownError,
)
from tuff.protocol.transaction import TransactionType
from tx.edits import PointerRange
from tx.pointer_blocks import PointerBlocks
from tx.routes import client_of
from tx.settings import BLOCK_COUNT_MAX, BLOCK_COUNT_MIN, InvalidSettingError, TransactionSettings


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
    blocks.add(PointerRange(1, 2001))
    for _ in range(2000):
        blocks.take()
    blocks.add(PointerRange(2001, 2005))
    for _ in range(3):
        blocks.take()

    assert first == BLOCK_COUNT_MIN
    assert reserved(blocks, after_ms=1000) == round(2003 / 5)
    assert reserved(blocks, after_ms=2000, waiting_count=10**6) == BLOCK_COUNT_MAX


def test_a_few_starts_at_once_have_no_large_block_reserved() -> None:
    blocks = PointerBlocks()
    reserved(blocks, after_ms=0)
    blocks.add(PointerRange(1, 5))
    for _ in range(4):
        blocks.take()

    assert reserved(blocks, after_ms=1) == 4 * 4


def test_blocks_shrink_by_and_by() -> None:
    blocks = PointerBlocks()
    sizes = [48]
    for nth in range(5):
        blocks.add(PointerRange(1, 1 + sizes[-1]))
        sizes.append(reserved(blocks, after_ms=10_000 * nth))

    assert sizes == [48, 24, 12, 6, 4, 4]


async def started_fast(service: Service, count: int) -> None:
    """So many starts, a thousand in a second."""
    for _ in range(count):
        service.now_ms += 1
        await service.completion.commit((await service.begin()).transaction_id, read_only=True)
        await turns(5)


async def test_a_crash_of_an_idle_service_takes_a_handful_of_pointers(service: Service) -> None:
    for _ in range(3):
        service = await service.crash()

    assert len(service.write_permits.snapshot().invalids) == 3 * 4
    await service.kill()


async def test_pointers_that_no_start_wants_are_given_back(service: Service) -> None:
    await started_fast(service, 1000)
    wanted = reserved_count(service)
    await service.later(2_000)
    service.disk.hold()
    lost = [await service.begin() for _ in range(4)]
    waiting = asyncio.create_task(service.begin())
    await turns()
    waits = not waiting.done()

    again = await service.crash()

    assert wanted > 100
    assert waits
    assert len(again.write_permits.snapshot().invalids) == 4
    for one in lost:
        assert await again.state_of(one.transaction_id) == ("invalid", "lost_in_crash")
    await again.kill()


def reserved_count(service: Service) -> int:
    """How many pointers a crash would take now."""
    return sum(block.count for block in service.durable.decided.image().blocks)


async def test_what_is_wanted_is_not_given_back(service: Service) -> None:
    await started_fast(service, 1000)
    wanted = reserved_count(service)

    await service.later(200)

    assert reserved_count(service) == wanted


async def test_a_block_on_its_way_to_the_disk_is_not_given_back(service: Service) -> None:
    await started_fast(service, 1000)
    service.now_ms += 2_000
    service.disk.hold()
    await service.begin()  # it has a fresh block reserved
    await turns()
    await service.later(500)
    service.disk.release()
    await turns()
    service.disk.hold()
    lost = await service.begin()

    again = await service.crash()

    assert lost.transaction_id >= (NOW_MS + 2_000) * 1_000_000
    assert await again.state_of(lost.transaction_id) == ("invalid", "lost_in_crash")
    await again.kill()


async def test_after_an_idle_time_pointers_name_the_present_again(service: Service) -> None:
    before = (await service.begin()).transaction_id
    service.now_ms += 60_000

    # The first one waits for no disk; it has the fresh block reserved.
    late = (await service.begin()).transaction_id
    await turns()
    fresh = (await service.begin()).transaction_id

    assert late == before + 1
    assert fresh == (NOW_MS + 60_000) * 1_000_000


def test_a_block_starts_at_the_clock_or_above_what_was_reserved() -> None:
    blocks = PointerBlocks()
    ahead = (NOW_MS + 1) * 1_000_000
    assert blocks.next_block(lowest=5, waiting_count=0, now_ms=NOW_MS).start == NOW_MS * 1_000_000
    assert blocks.next_block(lowest=ahead, waiting_count=0, now_ms=NOW_MS).start == ahead


async def test_a_checkpoint_is_a_pointer_of_the_same_transaction(service: Service) -> None:
    tx = await service.begin()
    checked = await service.starts.checkpoint(tx.transaction_id)
    pointer = checked.transaction.write_pointer

    assert checked.transaction_id == tx.transaction_id
    assert checked.transaction.checkpoint_write_pointers == (pointer,)
    assert pointer in service.write_permits.snapshot().in_progress
    assert service.write_permits.holder(pointer) == tx.transaction_id
    again = await service.crash()
    assert (await again.completion.outcome(pointer)).transaction_id == tx.transaction_id
    await again.completion.commit(pointer, changes=[])
    assert again.write_permits.snapshot().is_visible(pointer)
    await again.kill()


async def test_a_checkpoint_waits_for_its_sync(service: Service) -> None:
    tx = await service.begin()
    service.disk.hold()
    checking = asyncio.create_task(service.starts.checkpoint(tx.transaction_id))
    await turns()
    assert not checking.done()

    service.disk.release()
    await checking


async def test_a_checkpoint_that_waited_for_a_pointer_looks_at_its_transaction_again(
    service: Service,
) -> None:
    service.disk.hold()
    tx = await service.begin()
    for _ in range(BLOCK_COUNT_MIN - 1):
        await service.begin()
    checking = asyncio.create_task(service.starts.checkpoint(tx.transaction_id))
    await turns()
    ending = asyncio.create_task(service.completion.invalidate(tx.transaction_id))
    await turns()
    service.disk.release()

    with pytest.raises(TransactionInvalidatedError):
        await checking
    await ending


@pytest.mark.parametrize("timeout_s", [0, -1, 86_400.1, math.inf, math.nan])
async def test_a_timeout_out_of_range_is_refused(service: Service, timeout_s: float) -> None:
    with pytest.raises(InvalidTimeoutError):
        await service.begin(timeout_s=timeout_s)


async def test_a_long_one_takes_no_timeout(service: Service) -> None:
    with pytest.raises(InvalidTimeoutError):
        await service.begin(TransactionType.LONG, timeout_s=5)
    tx = await service.begin(TransactionType.LONG)
    assert tx.expires_at_ms == NOW_MS + 86_400_000


@pytest.mark.parametrize("client", ["x" * 257, "\ud800"])
def test_a_client_name_that_is_too_long_or_no_unicode_is_refused(client: str) -> None:
    with pytest.raises(BadRequestError):
        client_of({"client": client})


async def test_pointers_that_no_start_got_are_unknown(service: Service) -> None:
    tx = await service.begin()
    for pointer in (0, 1, tx.transaction_id + 1, 2**63 - 1):
        with pytest.raises(TransactionUnknownError):
            await service.completion.outcome(pointer)
        assert service.write_permits.holder(pointer) is None


async def test_the_overview_shows_pointers_and_transactions_in_progress(service: Service) -> None:
    ended, opened = await service.begin(), await service.begin()
    await service.completion.can_commit(opened.transaction_id, [])
    await service.completion.invalidate(ended.transaction_id)

    shown = await service.monitoring.overview()

    assert [one.transaction_id for one in shown.open] == [opened.transaction_id]
    assert shown.oldest_in_progress == opened.transaction_id
    # The one that is open does not see the other, although that has ended since.
    assert shown.visibility_upper_bound == ended.transaction_id - 1
    assert (shown.invalid_count, shown.committing_count) == (1, 1)
    assert shown.read_pointer == ended.transaction_id
    assert service.monitoring.figures().open_count == 1


async def test_a_reader_without_a_transaction_owns_nothing(service: Service) -> None:
    tx = await service.begin()
    reader = service.write_permits.snapshot()

    assert not reader.is_visible(tx.transaction_id)
    assert not reader.is_own(tx.transaction_id)
    state = service.write_permits.visibility_state()
    assert state is not None
    assert state.write_pointer == tx.transaction_id
    assert state.source is not None
    assert state.source.startswith("snapshot.")


@pytest.mark.parametrize(
    "bad",
    [
        {"default_timeout_s": 0}, {"max_timeout_s": 10}, {"snapshot_retain": 0},
        {"ending_timeout_s": -1}, {"change_set_count_max": 0}, {"long_timeout_s": math.nan},
    ],
)  # fmt: skip
def test_a_setting_out_of_range_is_named(bad: dict[str, float]) -> None:
    with pytest.raises(InvalidSettingError, match=r"^tx\."):
        TransactionSettings(**bad)  # type: ignore[arg-type] # what a file may hold


async def test_a_start_that_finds_too_much_waiting_for_the_disk_is_refused(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tx.durable_state.PENDING_EDITS_MAX", 3)
    service.disk.hold()
    for _ in range(3):
        await service.begin()

    with pytest.raises(OverloadedError, match="3 edits wait"):
        await service.begin()

    service.disk.release()
    before = service.disk.write_count
    while service.disk.write_count == before:
        await turns(1)
    await service.begin()


async def test_no_more_transactions_are_in_progress_than_the_limit(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tx.start_and_checkpoint.OPEN_COUNT_MAX", 2)
    await service.begin()
    await service.begin()

    with pytest.raises(OverloadedError, match="2 transactions are in progress"):
        await service.begin()


async def test_a_block_that_is_not_stale_is_used_up_before_the_next(service: Service) -> None:
    started = [(await service.begin()).transaction_id for _ in range(BLOCK_COUNT_MIN // 2 + 1)]
    await turns()

    started += [(await service.begin()).transaction_id for _ in range(BLOCK_COUNT_MIN // 2)]

    first = NOW_MS * 1_000_000 + 1
    assert started == list(range(first, first + BLOCK_COUNT_MIN + 1))


async def test_edits_that_no_caller_waits_for_are_written_soon(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tx.wal.UNWANTED_S_MAX", 0.001)
    before = service.disk.sync_count
    for _ in range(2):
        write_count = service.disk.write_count
        await service.begin()
        async with asyncio.timeout(5):
            while service.disk.write_count == write_count:
                await turns(1)

    assert service.disk.sync_count == before
