"""Rows are marked, and readers are woken, once the end of their transaction is durable (protocol
§3.4, `wait`; §1, Durability)."""

import pytest

from tests.tx.service import NOW_MS, Rows, Service, turns
from tuff.protocol.errors import TransactionCommittedError, TransactionsUnavailableError
from tx.claims_and_waits import UnderWay
from tx.rows_of_ended_transactions import EndedRows
from tx.state import TransactionState, fresh_image


async def test_a_transaction_without_rows_has_nothing_marked(service: Service) -> None:
    tx = await service.begin()

    await service.runner.invalidate(tx.transaction_id)
    await turns()

    assert service.rows.marked == []


async def test_rows_are_rolled_back_once_however_many_ask_for_it() -> None:
    rows, done = Rows(), list[bool]()
    ended = EndedRows(UnderWay(lambda: None), rows)
    rows.carried[7] = "ns:t"

    ended.roll_back(7, [7], done.append)
    rows.carried.clear()  # a write under way may still give it rows
    ended.roll_back(7, [7], done.append)
    assert ended.begun == [(7, [7])]
    assert done == []

    ended.rolled_back(7, is_done=True)
    assert done == [True, True]


def test_a_rollback_waits_for_the_writes_under_way() -> None:
    rows, under_way = Rows(), UnderWay(lambda: None)
    ended = EndedRows(under_way, rows)
    rows.carried[7] = "ns:t"
    under_way.enter(7)

    ended.roll_back(7, [7], lambda _: None)
    assert ended.begun == []
    under_way.leave(7)
    for step, argument in under_way.ready:
        step(argument)

    assert ended.begun == [(7, [7])]


def test_readers_wait_for_the_edit_itself_and_not_for_one_that_a_failed_log_lost() -> None:
    rows = Rows()
    ended = EndedRows(UnderWay(lambda: None), rows)

    ended.wake_once_durable(5, 7)
    ended.synced(4, [])
    assert rows.woken == []
    ended.synced(5, [])
    assert rows.woken == [7]

    ended.wake_once_durable(9, 8)
    ended.came_up(TransactionState(fresh_image(now_ms=NOW_MS)))  # it holds fewer edits
    ended.wake_once_durable(1, 9)
    ended.synced(1, [])
    assert rows.woken == [7, 9]


async def test_a_read_only_commit_wakes_readers_in_it_once_it_is_durable(
    service: Service,
) -> None:
    tx, unread = await service.begin(), await service.begin()
    service.rows.read_in = {tx.transaction_id}

    await service.runner.commit(tx.transaction_id, read_only=True)
    await service.runner.commit(unread.transaction_id, read_only=True)
    assert service.rows.woken == []
    await turns()

    assert service.rows.woken == [tx.transaction_id]
    with pytest.raises(TransactionCommittedError):
        await service.write_permits.snapshot_of(tx.transaction_id)


async def test_a_recovered_log_wakes_readers_in_transactions_that_it_lost(service: Service) -> None:
    await turns()
    service.disk.fails = True
    lost = await service.begin()
    service.rows.read_in = {lost.transaction_id}
    with pytest.raises(TransactionsUnavailableError):
        await service.runner.abort(lost.transaction_id)

    service.disk.fails = False
    await service.later(1000)

    assert await service.state_of(lost.transaction_id) == ("invalid", "lost_in_crash")
    assert service.rows.woken == [lost.transaction_id]
