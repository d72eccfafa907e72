"""Calls between servers over real connections (cluster/calls.py)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cluster.calls import Calls, SharedCall
from cluster.peers import Owner, Peers, PeerUnansweredError
from kernel.event_loop import Arrivals
from metadata.json_values import Fields
from process.admission_and_dispatch import Admission, Dispatcher
from process.allowed_hosts import AllowedHosts
from process.http_connection import HttpService
from process.listener import Listener
from process.metrics import Metrics
from tests.cluster.nodes import REQUEST_BYTES_MAX, Spawned
from tests.cluster.transaction_servers import turns
from tuff.protocol.errors import (
    BadRequestError,
    TransactionCommittedError,
    TransactionsUnavailableError,
)
from tuff.protocol.ids import TopicId

POINTER_MAX = (1 << 63) - 1


async def echo(form: Fields) -> dict[str, object]:
    return {"pointer": form.integer("pointer"), "topic": str(form.topic("topic"))}


async def refuse(_form: Fields) -> dict[str, object]:
    raise TransactionCommittedError("it has committed")


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Calls, Owner]]:
    """A caller, and another server that answers it."""
    spawned = Spawned()
    peers = Peers(spawn=spawned)
    calls = Calls(peers)
    calls.serve({"echo": echo, "refuse": refuse})
    admission = Admission(pending_max=10, waiting=lambda: 0, arrivals=Arrivals())
    admission.open()
    service = HttpService(
        calls.routes(),
        (),
        Dispatcher(admission, Metrics(), elapsed_s=lambda: 0.0),
        AllowedHosts(),
        max_request_bytes=REQUEST_BYTES_MAX,
        now_ms=lambda: 0,
    )
    listener = Listener(service, connections_max=10)
    port = await listener.listen("127.0.0.1", 0)
    try:
        yield calls, Owner("s2", f"http://127.0.0.1:{port}")
    finally:
        await peers.close()
        await listener.close(within_s=0)
        await asyncio.gather(*spawned.tasks, return_exceptions=True)


async def test_a_call_is_the_same_in_process_and_over_a_connection() -> None:
    form = {"pointer": POINTER_MAX, "topic": "ns:a.b-c"}

    async with served() as (calls, other):
        for to in (other, None):
            reply = await calls.call(to, "echo", form)

            assert reply.integer("pointer") == POINTER_MAX
            assert reply.topic("topic") == TopicId("ns", "a.b-c")
            with pytest.raises(TransactionCommittedError, match="it has committed"):
                await calls.call(to, "refuse", {})
            with pytest.raises(BadRequestError, match="pointer is not an integer"):
                await calls.call(to, "echo", {"pointer": "17", "topic": "ns:t"})


async def test_a_server_that_is_not_there_was_sent_nothing() -> None:
    async with served() as (calls, _):
        with pytest.raises(PeerUnansweredError) as raised:
            await calls.call(Owner("s3", "http://127.0.0.1:1"), "echo", {})

    assert not raised.value.was_sent


async def test_a_shared_call_begins_after_those_who_share_it_asked() -> None:
    began: list[int] = []
    going_on = asyncio.Event()

    async def call() -> int:
        began.append(len(began))
        await going_on.wait()
        return began[-1]

    spawned = Spawned()
    shared = SharedCall(call, spawn=spawned)
    first = asyncio.ensure_future(shared.result())
    await turns()
    others = [asyncio.ensure_future(shared.result()) for _ in range(3)]
    await turns()
    going_on.set()

    assert await first == 0
    assert [await each for each in others] == [1, 1, 1]


async def test_a_refused_shared_call_is_repeated_for_the_next_one_who_asks() -> None:
    refusals = [TransactionsUnavailableError("down")]

    async def call() -> int:
        if refusals:
            raise refusals.pop()
        return 7

    shared = SharedCall(call, spawn=Spawned())

    with pytest.raises(TransactionsUnavailableError):
        await shared.result()
    assert await shared.result() == 7


async def test_a_bug_in_a_shared_call_reaches_those_who_share_it_and_no_later_one() -> None:
    bugs = [ZeroDivisionError()]

    async def call() -> int:
        await turns()
        if bugs:
            raise bugs.pop()
        return 7

    shared = SharedCall(call, spawn=Spawned())
    first = asyncio.ensure_future(shared.result())
    await turns(10)
    second = asyncio.ensure_future(shared.result())

    with pytest.raises(ZeroDivisionError):
        await first
    assert await asyncio.wait_for(second, 60) == 7
