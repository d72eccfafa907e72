"""Write gates and claims: one commit or abort at a time, in the order of the calls, and which calls
wait for it (design §4, Commit and abort)."""

import asyncio

import pytest

from tests.tx.service import TOPIC, Service, entry, turns
from tuff.protocol.errors import TopicNotFoundError, TransactionsUnavailableError
from tx.write_gates_and_key_locks import TransactionLocks


class Ending:
    """One ending that takes its turn, and holds it until `done` is set."""

    def __init__(self, gates: TransactionLocks, order: list[str], name: str) -> None:
        self.done = asyncio.Event()
        self.task = asyncio.ensure_future(self._run(gates, order, name))

    async def _run(self, gates: TransactionLocks, order: list[str], name: str) -> None:
        await gates.close(1)
        try:
            order.append(name)
            await self.done.wait()
        finally:
            gates.open(1)


async def test_endings_take_turns_in_their_order() -> None:
    gates, order = TransactionLocks(), list[str]()
    endings = [Ending(gates, order, name) for name in "abc"]
    await turns()
    assert order == ["a"]

    for ending in endings:
        ending.done.set()
        await ending.task

    assert order == ["a", "b", "c"]
    assert not gates.is_closed(1)


async def test_one_that_gives_up_while_it_waits_leaves_the_turn_to_the_next() -> None:
    gates, order = TransactionLocks(), list[str]()
    first, second, third, fourth = (Ending(gates, order, name) for name in "abcd")
    await turns()

    second.task.cancel()
    await turns()
    assert order == ["a"]
    first.done.set()
    await turns()
    assert order == ["a", "c"]

    for ending in (third, fourth):
        ending.done.set()
        await ending.task
    assert not gates.is_closed(1)


async def test_a_waiter_that_is_cancelled_as_it_gets_the_turn_passes_it_on() -> None:
    gates, order = TransactionLocks(), list[str]()
    first, second, third = (Ending(gates, order, name) for name in "abc")
    await turns()

    gates.enter(1)  # a write under way: the turn is taken, and the gate not empty yet
    first.done.set()
    await turns(1)
    second.task.cancel()
    await turns()
    gates.leave(1)
    await turns()
    assert order == ["a", "c"]

    third.done.set()
    await third.task
    assert not gates.is_closed(1)


async def test_an_ending_waits_for_every_write_that_passed() -> None:
    gates, order = TransactionLocks(), list[str]()
    gates.enter(1)
    gates.enter(1)
    ending = Ending(gates, order, "a")

    gates.leave(1)
    await turns()
    assert order == []
    gates.leave(1)
    await turns()

    assert order == ["a"]
    ending.done.set()
    await ending.task


async def test_only_an_unused_gate_closes_at_once() -> None:
    gates = TransactionLocks()
    gates.enter(1)

    assert not gates.close_now(1)
    assert gates.close_now(2)
    assert not gates.close_now(2)

    assert gates.is_closed(2)
    gates.open(2)
    gates.leave(1)
    assert gates.close_now(1)
    gates.open(1)
    assert not gates.is_closed(1)


async def test_one_that_gives_up_while_a_write_is_under_way_opens_the_gate_again() -> None:
    gates, order = TransactionLocks(), list[str]()
    gates.enter(1)
    ending = Ending(gates, order, "a")
    await turns()
    assert gates.is_closed(1)

    ending.task.cancel()
    await turns()

    assert not gates.is_closed(1)
    gates.leave(1)
    assert gates.close_now(1)


async def test_writes_under_way_are_listed_and_endings_are_not() -> None:
    gates = TransactionLocks()
    gates.enter(1)
    gates.close_now(2)

    assert gates.writing() == [1]


async def test_a_transaction_may_claim_and_release_more_than_once_in_its_turn() -> None:
    gates = TransactionLocks()
    await gates.close(1)
    for _ in range(2):
        gates.claim(1, frozenset({b"k"}))
        waiting = asyncio.ensure_future(gates.released(1))
        await turns()
        gates.enter(1)  # the rows of the commit
        gates.leave(1)
        await turns()
        assert not waiting.done()
        assert gates.claiming() == {1}

        gates.release(1)
        await waiting
        assert gates.claiming() == set()

    assert gates.claimed_by([b"k"]) is None
    gates.open(1)


async def test_a_wait_for_writes_covers_one_that_came_before_it_woke() -> None:
    gates = TransactionLocks()
    gates.close_now(1)
    gates.enter(1)
    waiting = asyncio.ensure_future(gates.writes_done(1))
    await turns()

    gates.leave(1)
    gates.enter(1)
    await turns()
    is_done_early = waiting.done()
    gates.leave(1)
    await waiting

    assert not is_done_early
    gates.open(1)


async def test_one_that_gives_up_as_the_last_turn_ends_leaves_no_gate_behind() -> None:
    gates = TransactionLocks()
    await gates.close(1)
    second = asyncio.ensure_future(gates.close(1))
    await turns()

    second.cancel()
    gates.open(1)
    await turns()

    assert second.cancelled()
    assert gates._gates == {}


async def test_only_a_commit_or_abort_closes_the_gate() -> None:
    gates = TransactionLocks()
    gates.enter(1)

    gates.require_open(1)
    gates.require_open(2)

    gates.close_now(3)
    with pytest.raises(TransactionsUnavailableError, match="transaction 3 is being committed"):
        gates.require_open(3)


async def test_a_wait_for_a_claim_that_there_is_not_ends_at_once() -> None:
    gates = TransactionLocks()
    gates.enter(1)
    gates.close_now(2)
    gates.claim(2, frozenset({b"b"}))

    await asyncio.wait_for(gates.released(1), 1)  # a gate without a claim
    await asyncio.wait_for(gates.released(3), 1)

    assert gates.claimed_by([b"a", b"b"]) == 2
    assert gates.claimed_by([b"a"]) is None


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
async def test_can_commits_that_wait_for_a_refused_commit_continue(
    service: Service, count: int
) -> None:
    """They handed their turn to each other, for ever, and the process did little else."""
    tx = await service.begin()
    permit = await service.write_permits.enter(tx.transaction_id, TOPIC)
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


async def test_all_that_wait_for_an_open_gate_continue_at_once_and_leave_nothing() -> None:
    gates = TransactionLocks()
    await gates.close(1)
    waiting = [asyncio.ensure_future(gates.opened(1)) for _ in range(3)]
    await turns()
    assert not any(each.done() for each in waiting)

    gates.open(1)

    async with asyncio.timeout(10):
        await asyncio.gather(*waiting)
    assert gates.close_now(1)


async def test_a_wait_for_an_open_gate_includes_all_endings_in_turn() -> None:
    gates = TransactionLocks()
    await gates.close(1)
    second = asyncio.ensure_future(gates.close(1))
    waiting = asyncio.ensure_future(gates.opened(1))
    await turns()

    gates.open(1)
    assert gates.is_closed(1)
    await second
    await turns()
    assert not waiting.done()

    gates.open(1)
    async with asyncio.timeout(10):
        await waiting


async def test_a_wait_for_an_open_gate_lasts_if_it_is_closed_again_at_once() -> None:
    gates = TransactionLocks()
    await gates.close(1)
    waiting = asyncio.ensure_future(gates.opened(1))
    await turns()

    gates.open(1)
    assert gates.close_now(1)
    await turns()
    assert not waiting.done()

    gates.open(1)
    await waiting


async def test_a_server_that_joined_is_recalled_once_when_somebody_waits_for_writes() -> None:
    locks, recalled = TransactionLocks(), []

    def recall() -> None:
        recalled.append(1)

    locks.enter(1, recall)
    before = list(recalled)
    closing = asyncio.ensure_future(locks.close(1))
    waiting = asyncio.ensure_future(locks.writes_done(1))
    await turns()
    was_closed = closing.done()
    locks.leave(1, recall)
    await closing
    await waiting

    assert before == []
    assert recalled == [1]
    assert not was_closed


async def test_a_server_that_joins_while_somebody_waits_is_recalled_at_once() -> None:
    locks, recalled = TransactionLocks(), []
    locks.enter(1)
    waiting = asyncio.ensure_future(locks.writes_done(1))
    await turns()

    locks.enter(1, lambda: recalled.append(1))

    assert recalled == [1]
    waiting.cancel()


async def test_a_server_that_left_is_not_recalled() -> None:
    locks, recalled = TransactionLocks(), []

    def recall() -> None:
        recalled.append(1)

    locks.enter(1)
    locks.enter(1, recall)
    locks.leave(1, recall)
    waiting = asyncio.ensure_future(locks.writes_done(1))
    await turns()

    assert recalled == []
    locks.leave(1)
    await waiting
