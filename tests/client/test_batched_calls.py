"""Calls that many tasks make at once share requests (protocol §5.5)."""

import asyncio
import json

import pytest

from tuff.aio.batched_calls import BatchedCalls
from tuff.calls import Call, Response
from tuff.protocol.errors import TuffError
from tuff.transaction_calls import resolve


class Server:
    """Answers each call with its path. Holds its first answer back until `open` is set."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.open, self.asked = asyncio.Event(), asyncio.Event()
        self.error: Exception | None = None

    async def send(self, call: Call[object]) -> Response:
        request = call.request
        self.paths.append(request.path)
        self.asked.set()
        await self.open.wait()
        if self.error is not None:
            raise self.error
        if not request.path.endswith("/batch"):
            return Response(200, {}, json.dumps({"state": request.path}).encode())
        calls = json.loads(request.content or b"")["calls"]
        replies = [{"status": 200, "body": {"state": each["path"]}} for each in calls]
        return Response(200, {}, json.dumps({"replies": replies}).encode())


def path(number: int) -> str:
    return f"/v1/transactions/{number}/resolve"


async def asked(calls: BatchedCalls, number: int) -> object:
    return (await calls.send(resolve(number, "commit"))).problem["state"]


async def begin(server: Server, calls: BatchedCalls) -> "list[asyncio.Task[object]]":
    """One call under way, and three that wait."""
    tasks = [asyncio.create_task(asked(calls, number)) for number in range(4)]
    await server.asked.wait()
    return tasks


async def test_calls_that_wait_share_a_request_and_one_by_itself_is_sent_as_it_is() -> None:
    server = Server()
    tasks = await begin(server, BatchedCalls(server.send))
    server.open.set()

    assert await asyncio.gather(*tasks) == [path(number) for number in range(4)]
    first, *rest = server.paths
    assert rest in (["/v1/transactions/batch"], [])
    assert first == (path(0) if rest else "/v1/transactions/batch")


async def test_a_failure_reaches_every_caller_and_the_next_call_is_sent() -> None:
    server = Server()
    calls = BatchedCalls(server.send)
    tasks = await begin(server, calls)
    server.error = TuffError("no answer")
    server.open.set()
    for task in tasks:
        with pytest.raises(TuffError, match="no answer"):
            await task
    server.error = None

    assert await asked(calls, 7) == path(7)


async def test_a_caller_that_is_cancelled_leaves_the_others_alone() -> None:
    server = Server()
    tasks = await begin(server, BatchedCalls(server.send))
    tasks[2].cancel()
    server.open.set()
    with pytest.raises(asyncio.CancelledError):
        await tasks[2]

    assert [await tasks[number] for number in (0, 1, 3)] == [path(0), path(1), path(3)]
