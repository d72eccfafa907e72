"""Leases: a transaction that is not renewed in time ends (protocol §5.3)."""

import asyncio

import pytest

from tests.tx.service import TOPIC, NewService, Service, turns
from tuff.protocol.errors import (
    BadRequestError,
    InvalidTimeoutError,
    TransactionInvalidatedError,
    TransactionTimedOutError,
    TransactionUnknownError,
)
from tuff.protocol.transaction import TransactionType
from tx.outcomes import OpenTransaction
from tx.settings import TransactionSettings

LONG = TransactionType.LONG


async def leased(service: Service, seconds: float = 10) -> OpenTransaction:
    return await service.begin(LONG, lease_s=seconds)


async def forced(service: Service) -> None:
    """Everything that was logged before is on the disk."""
    await service.runner.invalidate((await service.begin()).transaction_id)


async def test_a_decision_looks_at_the_lease_itself(service: Service) -> None:
    calls = [
        service.runner.renew,
        service.runner.commit,
        service.runner.checkpoint,
        lambda one: service.runner.can_commit(one, ()),
    ]
    started = [await leased(service) for _ in calls]
    service.now_ms += 10_000

    for tx, call in zip(started, calls, strict=True):
        with pytest.raises(TransactionInvalidatedError) as refusal:
            await call(tx.transaction_id)
        assert refusal.value.members == {"reason": "lease_expired"}
    assert service.manager.counters.lapses == len(calls)
    assert service.manager.counters.timeouts == 0


async def test_a_tick_ends_only_transactions_whose_lease_is_over(service: Service) -> None:
    short, none = await service.begin(timeout_s=60), await service.begin(LONG)
    renewed, lapsed = await leased(service), await leased(service)
    await service.later(9_999)
    await service.runner.renew(renewed.transaction_id)

    await service.later(1)

    assert await service.state_of(lapsed.transaction_id) == ("invalid", "lease_expired")
    for tx in (short, none, renewed):
        assert await service.state_of(tx.transaction_id) == ("in_progress", None)
    assert service.manager.counters.lapses == 1
    assert service.monitoring.figures().leased_count == 1


async def test_a_transaction_with_neither_time_nor_lease_left_has_timed_out(
    new_service: NewService,
) -> None:
    service = await new_service(TransactionSettings(long_timeout_s=10)).open()
    by_tick, by_call = await leased(service), await leased(service)
    service.now_ms += 10_000

    with pytest.raises(TransactionTimedOutError):
        await service.runner.renew(by_call.transaction_id)
    await service.later(0)

    assert await service.state_of(by_tick.transaction_id) == ("invalid", "timed_out")
    assert service.manager.counters.lapses == 0


async def test_what_a_transaction_stored_goes_with_its_lease(service: Service) -> None:
    tx = await leased(service)
    service.rows.carried[tx.transaction_id] = "ns:t"

    await service.later(10_000)

    assert service.rows.marked == [tx.transaction_id]


async def test_a_renewal_waits_neither_for_the_disk_nor_for_a_commit_that_waits(
    service: Service,
) -> None:
    """Else the heartbeat of a job would stop while its commit waits for a slow write, and the lease
    would end the job in the middle of its commit."""
    tx = await leased(service)
    permit = await service.write_permits.enter(tx.transaction_id, TOPIC)
    committing = asyncio.create_task(service.runner.commit(tx.transaction_id))
    await turns()
    syncs = service.disk.sync_count
    service.disk.hold()

    for _ in range(3):
        await service.later(9_000)
        await service.runner.renew(tx.transaction_id)

    assert service.disk.sync_count == syncs
    service.disk.release()
    permit.leave()
    assert (await committing).state.value == "committed"


async def test_the_length_of_a_lease_is_durable_with_the_start(service: Service) -> None:
    """A start and its lease are one record. In two, a torn tail could keep the start of a job that
    died and lose its lease, and it would hold everybody back for a day."""
    log = max(service.directory.glob("txlog.*"), key=lambda path: path.stat().st_mtime_ns)
    made_size = log.stat().st_size
    tx = await leased(service)
    await forced(service)
    whole = log.read_bytes()
    await service.kill()

    found = set()
    for size in (*range(made_size, len(whole), 8), len(whole)):
        log.write_bytes(whole[:size])
        again = await service.next_life().open()
        try:
            opened = await again.runner.outcome(tx.transaction_id)
            found.add(getattr(opened, "lease_ms", "lost"))
        except TransactionUnknownError:
            found.add("lost")
        await again.kill()
        for made in (*service.directory.glob("txlog.*"), *service.directory.glob("snapshot.*")):
            if made.stat().st_mtime_ns > log.stat().st_mtime_ns:
                made.unlink()

    assert found == {"lost", 10_000}


@pytest.mark.parametrize("is_clean", [True, False])
async def test_after_a_restart_a_lease_is_whole_again(service: Service, is_clean: bool) -> None:
    tx = await leased(service)
    await service.runner.checkpoint(tx.transaction_id)
    service.now_ms += 9_000

    again = await service.restart() if is_clean else await service.crash()
    await again.later(9_999)
    assert await again.state_of(tx.transaction_id) == ("in_progress", None)
    await again.later(1)

    assert await again.state_of(tx.transaction_id) == ("invalid", "lease_expired")
    third = await again.crash()
    assert await third.state_of(tx.transaction_id) == ("invalid", "lease_expired")


async def test_a_recovery_of_the_log_begins_every_lease_anew(service: Service) -> None:
    tx, other = await leased(service), await service.begin()
    await forced(service)
    await service.break_log(other)

    service.now_ms += 60_000
    await service.manager.start_service()
    await service.later(9_999)

    assert await service.state_of(tx.transaction_id) == ("in_progress", None)


async def test_a_start_of_a_stopped_service_begins_every_lease_anew(
    service: Service,
) -> None:
    """A stopped service refuses renewals: its start would end every job at once."""
    tx = await leased(service)
    await service.manager.stop_service()
    service.now_ms += 60_000

    await service.manager.start_service()
    await service.later(9_999)

    assert await service.state_of(tx.transaction_id) == ("in_progress", None)


async def test_a_start_of_a_service_that_runs_renews_nothing(service: Service) -> None:
    tx = await leased(service)
    service.now_ms += 9_000

    await service.manager.start_service()
    await service.later(1_000)

    assert await service.state_of(tx.transaction_id) == ("invalid", "lease_expired")


@pytest.mark.parametrize("lease_s", [0, -1, 3600.1, float("inf")])
async def test_a_lease_out_of_range_is_refused(service: Service, lease_s: float) -> None:
    with pytest.raises(InvalidTimeoutError, match="a lease is above 0 and at most 3600 seconds"):
        await leased(service, lease_s)


async def test_a_short_transaction_with_a_lease_takes_any_time_while_it_is_renewed(
    service: Service,
) -> None:
    """That of a batch of messages ended after 30 seconds, however alive its consumer was."""
    renewed, lapsed = await service.begin(lease_s=10), await service.begin(lease_s=10)
    for _ in range(10):
        await service.later(9_000)
        await service.runner.renew(renewed.transaction_id)

    assert await service.state_of(lapsed.transaction_id) == ("invalid", "lease_expired")
    await service.runner.commit(renewed.transaction_id, changes=[])


async def test_a_renewal_does_not_lengthen_a_time_out(service: Service) -> None:
    tx = await service.begin(timeout_s=15, lease_s=10)
    await service.later(9_000)
    await service.runner.renew(tx.transaction_id)
    await service.later(6_000)

    assert await service.state_of(tx.transaction_id) == ("invalid", "timed_out")


async def test_only_a_transaction_with_a_lease_can_renew_it(service: Service) -> None:
    tx = await service.begin(LONG)

    with pytest.raises(BadRequestError, match="has no lease"):
        await service.runner.renew(tx.transaction_id)


async def test_a_lease_of_a_transaction_that_has_ended_is_forgotten(service: Service) -> None:
    """A renewal that waited may be noted after the end."""
    tx = await leased(service)
    await service.runner.abort(tx.transaction_id)
    service.manager.timeouts.renew(tx)
    assert service.monitoring.figures().leased_count == 1

    await service.later(10_000)

    assert service.monitoring.figures().leased_count == 0
