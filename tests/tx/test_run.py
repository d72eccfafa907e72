"""Runs: a transaction in one call, and its request id (protocol §5.2, `run`)."""

import asyncio

import pytest

from tests.tx.service import Service, entry, turns
from tuff.protocol.errors import (
    StorageUnavailableError,
    TransactionsUnavailableError,
)
from tx.calls import Run, StartRequest
from tx.outcomes import EndedState


async def test_a_run_is_one_transaction_and_its_request_id_runs_once(service: Service) -> None:
    service.rows.writing.clear()
    runs = [
        asyncio.create_task(service.runner.run([entry(b"a")], client="me", request_id="r"))
        for _ in range(3)
    ]
    await turns()
    service.rows.writing.set()

    outcomes = await asyncio.gather(*runs)

    assert len({detail.pointer for published in outcomes for detail in published}) == 1
    assert len(service.rows.published) == 1
    repeated = await service.runner.run([entry(b"x")], client="me", request_id="r")
    assert repeated == outcomes[0]


async def test_runs_that_come_together_share_a_write_and_a_sync(service: Service) -> None:
    answers = [asyncio.get_running_loop().create_future() for _ in range(3)]
    syncs_before = service.disk.sync_count

    service.runner.take(
        [Run(answer.set_result, [entry(b"a")], StartRequest(), None) for answer in answers]
    )
    published = await asyncio.gather(*answers)

    assert len({detail.pointer for (detail,) in published}) == 3
    assert service.rows.batches == [3]
    assert service.disk.sync_count == syncs_before + 1


async def test_a_run_that_waits_for_another_runs_itself_if_that_one_fails(
    service: Service,
) -> None:
    service.rows.writing.clear()
    service.rows.failure = StorageUnavailableError("disk full")
    first, second = (
        asyncio.create_task(service.runner.run([entry(b"a")], client="me", request_id="r"))
        for _ in range(2)
    )
    await turns()
    service.rows.writing.set()

    with pytest.raises(StorageUnavailableError):
        await first
    with pytest.raises(StorageUnavailableError):
        await second

    outcomes = (await service.durable.durable_image()).outcomes
    assert [outcome.state for outcome in outcomes] == [EndedState.ABORTED] * 2


async def test_endings_under_way_at_a_stop_get_their_outcome(service: Service) -> None:
    """They were answered as if nothing had happened, so that who tried again published twice."""
    tx, other = await service.begin(), await service.begin()
    service.rows.writing.clear()
    runs = [
        asyncio.create_task(service.runner.run([entry(b"a")], client="me", request_id=each))
        for each in ("r", "r", None)
    ]
    runs.append(
        asyncio.create_task(service.runner.commit(tx.transaction_id, publish=[entry(b"b")]))
    )
    await turns()
    service.disk.hold()
    runs.append(asyncio.create_task(service.runner.abort(other.transaction_id)))
    await turns()

    await service.manager.stop_service()
    service.rows.writing.set()
    service.disk.release()
    *published, committed, aborted = await asyncio.gather(*runs)

    assert [len(each) for each in published] == [1, 1, 1]
    assert published[0] == published[1] != published[2]
    assert committed.state is EndedState.COMMITTED
    assert aborted.state is EndedState.ABORTED
    assert len(service.rows.published) == 3
    with pytest.raises(TransactionsUnavailableError):
        await service.runner.run([entry(b"a")], client="me", request_id="r")


@pytest.mark.parametrize("fails_at", ["refusal", "failure"])  # before and during its rows
async def test_a_run_that_fails_ends_as_aborted_and_frees_its_request_id(
    service: Service, fails_at: str
) -> None:
    setattr(service.rows, fails_at, StorageUnavailableError("disk full"))
    with pytest.raises(StorageUnavailableError):
        await service.runner.run([entry(b"a")], client="me", request_id="r")

    [aborted] = (await service.durable.durable_image()).outcomes
    assert aborted.state is EndedState.ABORTED
    setattr(service.rows, fails_at, None)
    await service.runner.run([entry(b"a")], client="me", request_id="r")
