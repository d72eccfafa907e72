"""Readers in the snapshot of a transaction are woken when it ends (protocol §3.4, `wait`), whatever
it wrote, and not before its end is durable (§1, Durability)."""

import pytest

from tests.tx.service import Service, turns
from tuff.protocol.errors import TransactionCommittedError, TransactionsUnavailableError


async def test_a_read_only_commit_wakes_readers_in_it_once_it_is_durable(
    service: Service,
) -> None:
    tx, unread = await service.begin(), await service.begin()
    service.rows.read_in = {tx.transaction_id}

    await service.completion.commit(tx.transaction_id, read_only=True)
    await service.completion.commit(unread.transaction_id, read_only=True)
    assert service.rows.woken == []
    await turns()

    assert service.rows.woken == [tx.transaction_id]
    with pytest.raises(TransactionCommittedError):
        service.write_permits.snapshot_of(tx.transaction_id)


async def test_a_recovered_log_wakes_readers_in_transactions_that_it_lost(service: Service) -> None:
    await turns()
    service.disk.fails = True
    lost = await service.begin()
    service.rows.read_in = {lost.transaction_id}
    with pytest.raises(TransactionsUnavailableError):
        await service.completion.abort(lost.transaction_id)

    service.disk.fails = False
    await service.later(1000)

    assert await service.state_of(lost.transaction_id) == ("invalid", "lost_in_crash")
    assert service.rows.woken == [lost.transaction_id]
