"""Pointers, blocks and checkpoints."""

import asyncio
import math

import pytest

from tests.tx.harness import NOW_MS, Service, turns
from tuff.protocol.errors import (
    BadRequestError,
    InvalidTimeoutError,
    TransactionsUnavailableError,
    TransactionUnknownError,
)
from tuff.protocol.transaction import TransactionType
from tx.blocks import PointerBlocks
from tx.edits import PointerRange
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


async def test_starts_that_wait_are_told_when_the_log_fails(service: Service) -> None:
    service.disk.hold()
    for _ in range(BLOCK_COUNT_MIN):
        await service.begin()
    waiting = asyncio.create_task(service.begin())
    await turns()
    service.disk.fails = True
    service.disk.release()

    with pytest.raises(TransactionsUnavailableError):
        await waiting


def test_a_block_holds_a_fifth_of_a_second_at_the_recent_rate() -> None:
    blocks = PointerBlocks()
    first = blocks.next_block(lowest=1, waiting_count=0, now_ms=NOW_MS)
    blocks.add(PointerRange(1, 5001))
    for _ in range(5000):
        blocks.take()

    second = blocks.next_block(lowest=1, waiting_count=0, now_ms=NOW_MS + 1000)
    third = blocks.next_block(lowest=1, waiting_count=10**6, now_ms=NOW_MS + 2000)

    sizes = [block.stop - block.start for block in (first, second, third)]
    assert sizes == [BLOCK_COUNT_MIN, 1000, BLOCK_COUNT_MAX]


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
    checked = await service.manager.checkpoint(tx.transaction_id)
    pointer = checked.transaction.write_pointer

    assert checked.transaction_id == tx.transaction_id
    assert checked.transaction.checkpoint_write_pointers == (pointer,)
    assert pointer in service.manager.snapshot().in_progress
    assert service.manager.holder(pointer) == tx.transaction_id
    again = await service.crash()
    assert (await again.manager.outcome(pointer)).transaction_id == tx.transaction_id
    await again.manager.commit(pointer, changes=[])
    assert again.manager.snapshot().is_visible(pointer)
    await again.kill()


async def test_a_checkpoint_waits_for_its_sync(service: Service) -> None:
    tx = await service.begin()
    service.disk.hold()
    checking = asyncio.create_task(service.manager.checkpoint(tx.transaction_id))
    await turns()
    assert not checking.done()

    service.disk.release()
    await checking


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
async def test_a_client_name_that_can_not_be_kept_is_refused(service: Service, client: str) -> None:
    with pytest.raises(BadRequestError):
        await service.begin(client=client)


async def test_pointers_nobody_was_given_are_unknown(service: Service) -> None:
    tx = await service.begin()
    for pointer in (0, 1, tx.transaction_id + 1, 2**63 - 1):
        with pytest.raises(TransactionUnknownError):
            await service.manager.outcome(pointer)
        assert service.manager.holder(pointer) is None


async def test_the_overview_shows_pointers_and_who_is_in_progress(service: Service) -> None:
    ended, opened = await service.begin(), await service.begin()
    await service.manager.can_commit(opened.transaction_id, [])
    await service.manager.invalidate(ended.transaction_id)

    shown = await service.manager.overview()

    assert [one.transaction_id for one in shown.open] == [opened.transaction_id]
    assert shown.oldest_in_progress == opened.transaction_id
    # The one that is open does not see the other, although that has ended since.
    assert shown.visibility_upper_bound == ended.transaction_id - 1
    assert (shown.invalid_count, shown.committing_count) == (1, 1)
    assert shown.read_pointer == ended.transaction_id
    assert service.manager.figures().open_count == 1


async def test_a_reader_without_a_transaction_owns_nothing(service: Service) -> None:
    tx = await service.begin()
    reader = service.manager.snapshot()

    assert not reader.is_visible(tx.transaction_id)
    assert not reader.is_own(tx.transaction_id)
    state = service.manager.visibility_state()
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
