"""What is under way in transactions: which call waits for which (design §4, Commit and abort)."""

import asyncio
from collections.abc import Callable

import pytest

from tests.tx.service import TOPIC, Service, entry, turns
from tuff.protocol.errors import TopicNotFoundError, TransactionsUnavailableError
from tx.claims_and_waits import UnderWay


def under_way() -> tuple[UnderWay, list[str]]:
    woken: list[str] = []
    return UnderWay(lambda: woken.append("woken")), woken


def go_on(activities: UnderWay) -> None:
    ready, activities.ready = activities.ready, []
    for step, argument in ready:
        step(argument)


def noting(order: list[str]) -> Callable[[str], None]:
    return order.append


def test_what_is_parked_goes_on_in_its_order_when_the_end_is_over() -> None:
    activities, woken = under_way()
    order: list[str] = []
    activities.begin_end(1, "call")
    for name in "abc":
        activities.park(1, noting(order), name)

    activities.finish_end(1)
    assert (order, woken) == ([], ["woken"])
    go_on(activities)

    assert order == ["a", "b", "c"]
    assert activities.is_unused(1)


def test_two_calls_never_end_one_transaction() -> None:
    activities, _ = under_way()
    activities.begin_end(1, "call")
    activities.begin_end(1, "call")

    with pytest.raises(AssertionError, match="two calls end 1"):
        activities.begin_end(1, "another")


def test_an_end_waits_for_every_write_that_passed() -> None:
    activities, _ = under_way()
    order: list[str] = []
    activities.enter(1)
    activities.enter(1)
    activities.begin_end(1, "call")
    activities.await_writes(1, noting(order), "end")

    activities.leave(1)
    go_on(activities)
    assert order == []
    activities.leave(1)
    go_on(activities)

    assert order == ["end"]
    assert activities.ends(1) == "call"


def test_no_write_passes_while_an_end_is_under_way() -> None:
    activities, _ = under_way()
    activities.enter(1)
    activities.require_open(1)
    activities.require_open(2)

    activities.begin_end(3, "call")
    with pytest.raises(TransactionsUnavailableError, match="transaction 3 is being committed"):
        activities.require_open(3)


def test_writes_under_way_are_listed_and_ends_are_not() -> None:
    activities, _ = under_way()
    activities.enter(1)
    activities.begin_end(2, "call")

    assert activities.writing() == [1]
    assert (activities.has_writes(1), activities.has_writes(2)) == (True, False)


def test_a_claim_is_given_back_when_the_end_is_over() -> None:
    activities, _ = under_way()
    order: list[str] = []
    activities.begin_commit(1, "call", frozenset({b"a", b"b"}))
    activities.park(1, noting(order), "other")
    assert activities.claimed_by([b"c", b"b"]) == 1
    assert activities.claimed_by([b"c"]) is None
    assert (activities.claiming(), activities.has_claim(1)) == ({1}, True)

    activities.leave(1)
    assert activities.has_claim(1)
    activities.finish_end(1)
    go_on(activities)

    assert activities.claimed_by([b"a", b"b"]) is None
    assert activities.claiming() == set()
    assert order == ["other"]
    assert activities.is_unused(1)


def test_a_step_that_parks_again_goes_on_the_next_time() -> None:
    activities, woken = under_way()
    order: list[str] = []

    def look(name: str) -> None:
        order.append(name)
        if activities.ends(1) is not None:
            activities.park(1, look, name)

    activities.begin_end(1, "call")
    activities.park(1, look, "a")
    activities.enter(1)
    activities.leave(1)
    go_on(activities)
    assert order == ["a"]
    activities.finish_end(1)
    go_on(activities)

    assert order == ["a", "a"]
    assert woken == ["woken", "woken"]


def test_a_server_that_joined_is_recalled_once_when_an_end_waits_for_writes() -> None:
    activities, _ = under_way()
    recalled: list[int] = []

    def recall() -> None:
        recalled.append(1)

    activities.enter(1, recall)
    assert recalled == []
    for name in "ab":
        activities.await_writes(1, noting([]), name)
    assert recalled == [1]

    activities.leave(1, recall)
    go_on(activities)
    assert activities.is_unused(1)


def test_a_server_that_joins_while_an_end_waits_is_recalled_at_once() -> None:
    activities, _ = under_way()
    recalled: list[int] = []
    activities.enter(1)
    activities.await_writes(1, noting([]), "end")

    activities.enter(1, lambda: recalled.append(1))

    assert recalled == [1]


def test_a_server_that_left_is_not_recalled() -> None:
    activities, _ = under_way()
    recalled: list[int] = []

    def recall() -> None:
        recalled.append(1)

    activities.enter(1)
    activities.enter(1, recall)
    activities.leave(1, recall)
    activities.await_writes(1, noting([]), "end")

    assert recalled == []


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
async def test_can_commits_that_wait_for_a_refused_commit_continue(
    service: Service, count: int
) -> None:
    """They handed their turn to each other, for ever, and the process did little else."""
    tx = await service.begin()
    permit = await service.write_permits.enter(tx.transaction_id, TOPIC)
    service.rows.refusal = TopicNotFoundError("no topic")
    commit = service.runner.commit(tx.transaction_id, publish=[entry(b"a")])
    publishing = asyncio.create_task(commit)
    await turns()
    checks = [service.runner.can_commit(tx.transaction_id, [b"k"]) for _ in range(count)]
    waiting = [asyncio.create_task(check) for check in checks]
    await turns()
    assert not any(each.done() for each in waiting)

    permit.leave()

    async with asyncio.timeout(10):
        with pytest.raises(TopicNotFoundError):
            await publishing
        await asyncio.gather(*waiting)
    assert await service.state_of(tx.transaction_id) == ("committing", None)
