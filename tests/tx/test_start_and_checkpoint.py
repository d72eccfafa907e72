"""Starts and checkpoints: their limits, and what they wait for."""

import asyncio
import math

import pytest

from kernel.requests_and_replies import Caller
from tests.tx.service import NOW_MS, Service, entry, turns
from tuff.protocol.errors import (
    BadRequestError,
    InvalidTimeoutError,
    OverloadedError,
    QuotaExceededError,
    TransactionInvalidatedError,
    TransactionUnknownError,
)
from tuff.protocol.transaction import TransactionType
from tx.calls import StartRequest
from tx.routes import client_of
from tx.settings import BLOCK_COUNT_MIN, InvalidSettingError, TransactionSettings


async def test_a_checkpoint_is_a_pointer_of_the_same_transaction(service: Service) -> None:
    tx = await service.begin()
    checked = await service.runner.checkpoint(tx.transaction_id)
    pointer = checked.transaction.write_pointer

    assert checked.transaction_id == tx.transaction_id
    assert checked.transaction.checkpoint_write_pointers == (pointer,)
    assert pointer in (await service.write_permits.snapshot()).in_progress
    assert service.write_permits.open_transaction_id(pointer) == tx.transaction_id
    again = await service.crash()
    assert (await again.runner.outcome(pointer)).transaction_id == tx.transaction_id
    await again.runner.commit(pointer, changes=[])
    assert (await again.write_permits.snapshot()).is_visible(pointer)


async def test_a_checkpoint_waits_for_its_sync(service: Service) -> None:
    tx = await service.begin()
    service.disk.hold()
    checking = asyncio.create_task(service.runner.checkpoint(tx.transaction_id))
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
    checking = asyncio.create_task(service.runner.checkpoint(tx.transaction_id))
    await turns()
    ending = asyncio.create_task(service.runner.invalidate(tx.transaction_id))
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
            await service.runner.outcome(pointer)
        assert service.write_permits.open_transaction_id(pointer) is None


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
    monkeypatch.setattr("tx.state_machine.OPEN_COUNT_MAX", 2)
    await service.begin()
    await service.begin()

    with pytest.raises(OverloadedError, match="2 transactions are in progress"):
        await service.begin()


async def test_a_run_and_a_checkpoint_that_waited_for_a_pointer_end_without_a_tick(
    service: Service,
) -> None:
    """What they asked for was done at the next event: nothing wrote the rows or synced the edit."""
    service.disk.hold()
    tx = await service.begin()
    for _ in range(BLOCK_COUNT_MIN - 1):
        await service.begin()
    running = asyncio.create_task(service.runner.run([entry(b"a")], client="c", request_id=None))
    checking = asyncio.create_task(service.runner.checkpoint(tx.transaction_id))
    await turns()

    service.disk.release()

    published, checked = await asyncio.wait_for(asyncio.gather(running, checking), 5)
    assert len(published) == 1
    assert checked.transaction.checkpoint_write_pointers


async def test_starts_that_wait_for_a_pointer_keep_the_quota(service: Service) -> None:
    caller = Caller("alice", open_transactions_max=2)
    service.disk.hold()
    for _ in range(BLOCK_COUNT_MIN):
        await service.begin()
    waiting = [
        asyncio.create_task(service.runner.start(StartRequest(client="c", caller=caller)))
        for _ in range(8)
    ]
    await turns()

    service.disk.release()

    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert sum(isinstance(each, QuotaExceededError) for each in found) == 6
