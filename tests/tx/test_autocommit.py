"""Runs, and the periodic work of the service: forgetting and pruning."""

import asyncio
from pathlib import Path

import pytest

from tests.tx.service import Service, entry, turns
from tuff.protocol.errors import (
    StorageUnavailableError,
    TransactionsUnavailableError,
)
from tx.outcomes import EndedState
from tx.settings import TransactionSettings


async def test_a_run_is_one_transaction_and_its_request_id_runs_once(service: Service) -> None:
    service.rows.writing.clear()
    runs = [
        asyncio.create_task(service.autocommit.run([entry(b"a")], client="me", request_id="r"))
        for _ in range(3)
    ]
    await turns()
    service.rows.writing.set()

    outcomes = await asyncio.gather(*runs)

    assert len({outcome.transaction_id for outcome in outcomes}) == 1
    assert len(service.rows.published) == 1
    repeated = await service.autocommit.run([entry(b"x")], client="me", request_id="r")
    assert repeated == outcomes[0]


async def test_endings_under_way_at_a_stop_get_their_outcome(service: Service) -> None:
    """They were answered as if nothing had happened, so that who tried again published twice."""
    tx, other = await service.begin(), await service.begin()
    service.rows.writing.clear()
    runs = [
        asyncio.create_task(service.autocommit.run([entry(b"a")], client="me", request_id=each))
        for each in ("r", "r", None)
    ]
    runs.append(
        asyncio.create_task(service.completion.commit(tx.transaction_id, publish=[entry(b"b")]))
    )
    await turns()
    service.disk.hold()
    runs.append(asyncio.create_task(service.completion.abort(other.transaction_id)))
    await turns()

    await service.manager.stop_service()
    service.rows.writing.set()
    service.disk.release()
    *committed, aborted = await asyncio.gather(*runs)

    assert {outcome.state for outcome in committed} == {EndedState.COMMITTED}
    assert committed[0] == committed[1]
    assert aborted.state is EndedState.ABORTED
    assert len(service.rows.published) == 3
    with pytest.raises(TransactionsUnavailableError):
        await service.autocommit.run([entry(b"a")], client="me", request_id="r")


async def test_a_run_that_fails_ends_as_aborted_and_frees_its_request_id(
    service: Service,
) -> None:
    service.rows.failure = StorageUnavailableError("disk full")
    with pytest.raises(StorageUnavailableError):
        await service.autocommit.run([entry(b"a")], client="me", request_id="r")

    [aborted] = (await service.durable.durable_image()).outcomes
    assert aborted.state is EndedState.ABORTED
    service.rows.failure = None
    await service.autocommit.run([entry(b"a")], client="me", request_id="r")


async def test_outcomes_are_forgotten_in_time_unless_they_are_needed(service: Service) -> None:
    gone, invalid, carried = [await service.begin() for _ in range(3)]
    await service.completion.commit(gone.transaction_id)
    await service.completion.invalidate(invalid.transaction_id)
    await service.completion.commit(carried.transaction_id)
    service.rows.carried[carried.transaction_id] = "ns:t"

    await service.later(900_001)

    with pytest.raises(Exception, match="remembered"):
        await service.completion.outcome(gone.transaction_id)
    assert await service.state_of(invalid.transaction_id) == ("invalid", "invalidated")
    assert await service.state_of(carried.transaction_id) == ("committed", None)
    service.rows.carried.clear()
    await service.completion.abort(invalid.transaction_id)
    await service.later(900_001)
    for tx in (invalid, carried):
        with pytest.raises(Exception, match="remembered"):
            await service.completion.outcome(tx.transaction_id)


async def test_what_region_servers_have_not_cleared_stays_on_the_list(tmp_path: Path) -> None:
    service = await Service(tmp_path, TransactionSettings(prune_invalid=True)).open()
    first, second = await service.begin(), await service.begin()
    await service.completion.invalidate(first.transaction_id)
    await service.completion.invalidate(second.transaction_id)
    service.rows.uncleared = {second.transaction_id}

    await service.later(2000)

    assert list(service.write_permits.snapshot().invalids) == [second.transaction_id]
    assert (await service.invalid_list.shown()).prunable == []
    _, kept = await service.invalid_list.truncate(pointers=[second.transaction_id])
    assert kept == [second.transaction_id]
    service.rows.uncleared = set()
    await service.later(2000)
    assert list(service.write_permits.snapshot().invalids) == []
    await service.kill()


async def test_pruning_keeps_pointers_that_a_crash_lost_for_as_long_as_outcomes(
    tmp_path: Path,
) -> None:
    """Off the list it was a transaction that nobody knows, two seconds after the crash."""
    settings = TransactionSettings(prune_invalid=True, outcome_retention_s=60)
    service = await Service(tmp_path, settings).open()
    service.disk.hold()
    lost = await service.begin()

    again = await service.crash()
    await again.later(0)
    await again.later(59_000)
    assert await again.state_of(lost.transaction_id) == ("invalid", "lost_in_crash")

    await again.later(2_000)
    assert list(again.write_permits.snapshot().invalids) == []
    await again.kill()


async def test_pruning_takes_off_only_what_no_row_carries(tmp_path: Path) -> None:
    service = await Service(tmp_path, TransactionSettings(prune_invalid=True)).open()
    service.rows.marking_fails = True
    idle, carried = await service.begin(), await service.begin()
    service.rows.carried[carried.transaction_id] = "ns:t"
    await service.completion.invalidate(idle.transaction_id)
    await service.completion.invalidate(carried.transaction_id)

    await service.later(2000)

    assert list(service.write_permits.snapshot().invalids) == [carried.transaction_id]
    await service.kill()
