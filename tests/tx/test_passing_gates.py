"""Calls that pass a write gate wait for a commit or abort of the transaction, and then continue."""

import asyncio

import pytest

from tests.tx.harness import Service, entry, turns
from tuff.protocol.errors import TopicNotFoundError
from tx.locks import TransactionLocks


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
async def test_who_waits_for_a_commit_that_is_refused_goes_on(service: Service, count: int) -> None:
    """They handed their turn to each other, for ever, and the process did little else."""
    tx = await service.begin()
    permit = service.write_permits.enter(tx.transaction_id)
    service.rows.refusal = TopicNotFoundError("no topic")
    commit = service.completion.commit(tx.transaction_id, publish=[entry(b"a")])
    publishing = asyncio.create_task(commit)
    await turns()
    checks = [service.completion.can_commit(tx.transaction_id, [b"k"]) for _ in range(count)]
    waiting = [asyncio.create_task(check) for check in checks]
    await turns()
    assert not any(each.done() for each in waiting)

    permit.leave()

    async with asyncio.timeout(10):
        with pytest.raises(TopicNotFoundError):
            await publishing
        await asyncio.gather(*waiting)
    assert await service.state_of(tx.transaction_id) == ("committing", None)


async def test_all_who_wait_until_a_gate_is_open_go_on_at_once_and_leave_nothing() -> None:
    gates = TransactionLocks()
    await gates.close(1)
    waiting = [asyncio.ensure_future(gates.reopened(1)) for _ in range(3)]
    await turns()
    assert not any(each.done() for each in waiting)

    gates.reopen(1)

    async with asyncio.timeout(10):
        await asyncio.gather(*waiting)
    assert gates.close_now(1)


async def test_who_waits_until_a_gate_is_open_waits_for_all_endings_in_turn() -> None:
    gates = TransactionLocks()
    await gates.close(1)
    second = asyncio.ensure_future(gates.close(1))
    waiting = asyncio.ensure_future(gates.reopened(1))
    await turns()

    gates.reopen(1)
    await second
    await turns()
    assert not waiting.done()

    gates.reopen(1)
    async with asyncio.timeout(10):
        await waiting


async def test_who_waits_until_a_gate_is_open_finds_the_one_that_somebody_closed_just_then() -> (
    None
):
    gates = TransactionLocks()
    await gates.close(1)
    waiting = asyncio.ensure_future(gates.reopened(1))
    await turns()

    gates.reopen(1)
    assert gates.close_now(1)
    await turns()
    assert not waiting.done()

    gates.reopen(1)
    await waiting


async def test_who_waits_at_a_gate_that_was_open_in_between_waits_for_its_next_opening() -> None:
    gates = TransactionLocks()
    await gates.close(1)
    gates.enter(1)  # keeps it, as the rows of a commit do
    first = asyncio.ensure_future(gates.reopened(1))
    await turns()
    gates.reopen(1)
    await first

    closing = asyncio.ensure_future(gates.close(1))
    await turns()
    second = asyncio.ensure_future(gates.reopened(1))
    await turns()
    assert not second.done()

    gates.leave(1)
    await closing
    gates.reopen(1)
    await second
