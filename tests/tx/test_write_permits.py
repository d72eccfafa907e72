"""Permits for writes of the message store, and snapshots for its readers."""

import asyncio

import pytest

from tests.tx.service import TOPIC, Service, entry, turns
from tuff.protocol.errors import TransactionCommittedError, TransactionsUnavailableError


async def test_a_rollback_passes_the_gate_while_invalid_and_not_once_committed(
    service: Service,
) -> None:
    opened, invalid, aborted, committed = [await service.begin() for _ in range(4)]
    await service.runner.invalidate(invalid.transaction_id)
    await service.runner.abort(aborted.transaction_id)
    await service.runner.commit(committed.transaction_id)

    for tx in (opened, invalid):
        permit = await service.write_permits.enter_rollback(tx.transaction_id, TOPIC)
        assert permit is not None
        permit.require_open()
        permit.leave()
    assert (await service.write_permits.enter_rollback(aborted.transaction_id, TOPIC)) is None
    assert (await service.write_permits.enter_rollback(12345, TOPIC)) is None
    with pytest.raises(TransactionCommittedError):
        await service.write_permits.enter_rollback(committed.transaction_id, TOPIC)


async def test_a_rollback_does_not_report_a_commit_before_that_is_durable(service: Service) -> None:
    tx = await service.begin()
    service.disk.hold()
    committing = asyncio.create_task(service.runner.commit(tx.transaction_id))
    await turns()

    with pytest.raises(TransactionsUnavailableError):
        await service.write_permits.enter_rollback(tx.transaction_id, TOPIC)

    service.disk.release()
    await committing
    with pytest.raises(TransactionCommittedError):
        await service.write_permits.enter_rollback(tx.transaction_id, TOPIC)


async def test_a_commit_is_reported_before_the_sync_of_its_confirmation(service: Service) -> None:
    """Its rows and the record of its doubt are durable. It was "on its way to the disk" until a
    tick synced the confirmation."""
    tx = await service.begin()
    await service.runner.commit(tx.transaction_id, publish=[entry(b"a")])
    assert service.manager.durable.state.seen < service.manager.durable.state.lsn

    service.disk.hold()
    with pytest.raises(TransactionCommittedError):
        await service.write_permits.enter_rollback(tx.transaction_id, TOPIC)
    assert (await service.runner.outcome(tx.transaction_id)).state == "committed"
    service.disk.release()


async def test_a_reader_without_a_transaction_owns_nothing(service: Service) -> None:
    tx = await service.begin()
    reader = await service.write_permits.snapshot()

    assert not reader.is_visible(tx.transaction_id)
    assert not reader.is_own(tx.transaction_id)
    state = await service.write_permits.visibility_state()
    assert state is not None
    assert state.write_pointer == tx.transaction_id
    assert state.source is not None
    assert state.source.startswith("snapshot.")
