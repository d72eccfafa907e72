"""A task or program that is interrupted while it enters a transaction leaves none in progress."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import tuff
from tests.client.proxy import losing
from tests.client.recording import AsyncParticipant, Record
from tests.http.process import ServerProcess
from tuff import transaction_calls
from tuff.flows_and_repeated_calls import Call, Flow, Pause, Retries, Step, Unless, unless
from tuff.stop_signals import Stop, StoppedError

TURN_COUNT = 60  # of the event loop; the reply to a start comes after some twenty
Work = Callable[[tuff.AsyncClient], Coroutine[Any, Any, object]]


async def enter(client: tuff.AsyncClient) -> None:
    async with client.transaction():
        await asyncio.Event().wait()


async def enter_with_a_participant(client: tuff.AsyncClient) -> None:
    async with client.transaction(AsyncParticipant("a", Record())):
        await asyncio.Event().wait()


async def start(client: tuff.AsyncClient) -> None:
    """Its transaction is aborted if the reply came."""
    tx = await client.transactions.start()
    try:
        await asyncio.Event().wait()
    finally:
        await client.transactions.abort(tx)


async def chain(client: tuff.AsyncClient) -> None:
    context = client.transaction(chain=True)
    try:
        while True:
            async with context as tx:
                tx.add_changes(b"cancelled")
    finally:
        await context.end_chain()


@pytest.mark.parametrize("transport", ["http", "auto"])
@pytest.mark.parametrize("work", [enter, enter_with_a_participant, start, chain])
def test_a_task_that_is_cancelled_at_any_turn_leaves_no_transaction_in_progress(
    server: ServerProcess, client: tuff.Client, transport: Any, work: Work
) -> None:
    """Each left one until its time-out, and then on the invalid list."""

    async def main() -> None:
        async with tuff.AsyncClient(server.url, transport=transport) as tasks:
            await tasks.topics.namespaces()
            for turns in range(TURN_COUNT):
                task = asyncio.create_task(work(tasks))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

    before = client.transactions.overview().invalid_count
    asyncio.run(main())

    overview = client.transactions.overview()
    assert [each.client for each in overview.in_progress] == []
    assert overview.invalid_count == before


def test_a_start_whose_reply_was_lost_returns_its_transaction_at_the_next_attempt(
    server: ServerProcess, client: tuff.Client
) -> None:
    with losing(server.url) as (url, losses), tuff.Client(url, retries=1) as retrying:
        losses.lose_reply("transactions")
        tx = retrying.transactions.start("long")

    assert [each.transaction_id for each in client.transactions.overview().in_progress] == [
        tx.transaction_id
    ]
    client.transactions.abort(tx)


START = transaction_calls.start(type="short", timeout_s=None, client="c", request_id="r")


def steps_of(flow: Flow[object], *errors: BaseException) -> list[Step]:
    """The steps of a flow that gets these errors, and then None."""
    steps, left = [next(flow)], list(errors)
    while True:
        try:
            steps.append(flow.throw(left.pop(0)) if left else flow.send(None))
        except (StopIteration, KeyboardInterrupt):
            return steps


def path_of(step: Step) -> str:
    assert isinstance(step, Call)
    return step.request.path


def test_an_interrupt_while_a_start_waits_withdraws_it() -> None:
    steps = steps_of(Retries(5).ask(START), KeyboardInterrupt())

    assert [path_of(each) for each in steps] == ["/v1/transactions", "/v1/transactions/withdraw"]
    assert steps[1] == START.withdrawal


def test_a_stop_between_two_attempts_withdraws_the_start() -> None:
    lost = tuff.ConnectionLostError("lost", outcome_unknown=True)
    steps = steps_of(unless(Stop(), Retries(5).ask(START)), lost, StoppedError())

    kinds = [type(each) for each in steps]
    assert kinds == [Unless, Unless, Call]
    assert isinstance(steps[1], Unless)
    assert isinstance(steps[1].step, Pause)
    assert steps[2] == START.withdrawal


def test_an_interrupt_of_the_withdrawal_after_a_stop_is_raised() -> None:
    asked = Retries(0).ask(START)
    next(asked)
    asked.throw(StoppedError())

    with pytest.raises(KeyboardInterrupt):
        asked.throw(KeyboardInterrupt())
