"""The reads of one client take turns, and threads encode large replies (decision 0064)."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import pytest

from kernel.event_loop import LightTask
from kernel.requests_and_replies import Request
from messaging.log.scan import ReadResult
from messaging.read.poll import ENCODED_COUNT_MAX, routes
from messaging.read.read_turns import READS_OF_CLIENT_MAX, ReadTurns
from messaging.service import MessagingService
from tests.messaging.world import AUDIT, World, publish, settle_down
from tuff.protocol.errors import BadRequestError, TuffError
from tuff.protocol.media_types import Encoding, MediaType
from tuff.protocol.operations import POLL

T = TypeVar("T")


class Reads:
    """Reads that end when the test says so."""

    def __init__(self) -> None:
        self.turns = ReadTurns()
        self.under_way: dict[str, asyncio.Future[str]] = {}

    async def read(self, name: str) -> str:
        self.under_way[name] = asyncio.get_running_loop().create_future()
        try:
            return await self.under_way[name]
        finally:
            del self.under_way[name]

    async def ask(self, client: object, *names: str) -> "list[asyncio.Future[str]]":
        return [await settle_down(self.turns.take(client, partial(self.read, n))) for n in names]

    async def end(self, name: str) -> None:
        self.under_way[name].set_result(name)
        await settle_down(asyncio.sleep(0))


@pytest.fixture
async def reads() -> Reads:
    return Reads()


async def test_the_reads_of_a_client_wait_for_each_other_and_for_no_other_client(
    reads: Reads,
) -> None:
    of_one = await reads.ask("one", "a", "b", "c", "d")
    of_two = await reads.ask("two", "e")
    assert READS_OF_CLIENT_MAX == 2
    assert [*reads.under_way] == ["a", "b", "e"]

    await reads.end("b")

    assert [*reads.under_way] == ["a", "e", "c"]
    for name in ("a", "c", "d", "e"):
        await reads.end(name)
    assert [each.result() for each in of_one + of_two] == ["a", "b", "c", "d", "e"]
    assert not reads.turns._of


async def test_a_read_without_a_client_waits_for_none(reads: Reads) -> None:
    await reads.ask(None, "a", "b", "c")

    assert [*reads.under_way] == ["a", "b", "c"]


async def test_a_read_that_fails_ends_its_turn(reads: Reads) -> None:
    failed, *_ = await reads.ask("one", "a", "b", "c")

    reads.under_way["a"].set_exception(BadRequestError("no"))
    with pytest.raises(BadRequestError):
        await failed

    assert [*reads.under_way] == ["b", "c"]


async def test_a_read_that_its_client_takes_back_is_not_begun(reads: Reads) -> None:
    *_, third, _ = await reads.ask("one", "a", "b", "c", "d")

    third.cancel()
    await reads.end("a")

    assert [*reads.under_way] == ["b", "d"]


async def test_a_read_in_a_thread_keeps_its_turn_when_its_client_takes_it_back(
    reads: Reads,
) -> None:
    """A client that asked and took back again and again would occupy all threads."""
    first, *_ = await reads.ask("one", "a", "b", "c")

    first.cancel()
    await settle_down(asyncio.sleep(0))
    assert [*reads.under_way] == ["a", "b"]
    await reads.end("a")

    assert [*reads.under_way] == ["b", "c"]


async def test_a_turn_that_comes_when_its_client_has_gone_is_passed_on(reads: Reads) -> None:
    await reads.ask("one", "a", "b")
    take_back = _begun(reads.turns.take("one", partial(reads.read, "c")))
    await reads.ask("one", "d")

    reads.under_way["a"].set_result("a")
    await asyncio.sleep(0)  # the read ends, and the turn of the third one has come
    take_back()
    await settle_down(asyncio.sleep(0))

    assert [*reads.under_way] == ["b", "d"]


async def test_a_read_whose_task_is_cancelled_as_its_turn_comes_gives_it_to_the_next(
    reads: Reads,
) -> None:
    of_one = await reads.ask("one", "a", "b", "c", "d")

    reads.under_way["a"].set_result("a")
    of_one[2].cancel()
    await settle_down(asyncio.sleep(0))

    assert await of_one[0] == "a"
    assert [*reads.under_way] == ["b", "d"]


def _begun(work: Coroutine[Any, Any, str]) -> Callable[[], None]:
    """Begin a read as a connection does; what takes it back."""

    def unexpected(_: object) -> None:
        raise AssertionError("it was taken back")

    task = LightTask(work, unexpected, unexpected, TuffError)
    task.go_on()
    return task.give_up


class Threads:
    """Runs reads of a store, and keeps what they return."""

    def __init__(self, world: World) -> None:
        world.in_thread_read = self._run
        self.returned: list[object] = []

    async def _run(self, function: Callable[[], T]) -> T:
        result = function()
        self.returned.append(result)
        return result


async def _reply(service: MessagingService) -> bytes:
    (poll,) = [each for each in routes(service.polls) if each.operation is POLL]
    names = {"ns": AUDIT.namespace, "t": AUDIT.name}
    return (await poll.handler(Request(names, (), None, MediaType.AVRO.value, b""))).body


async def test_a_large_reply_from_memory_is_encoded_in_a_thread() -> None:
    """The event loop took tens of milliseconds for each, and other clients waited."""
    world = World()
    threads = Threads(world)
    async with world.running(audit={}) as service:
        await publish(service, *[b"x"] * ENCODED_COUNT_MAX)
        threads.returned.clear()
        await _reply(service)
        assert not threads.returned

        await publish(service, b"y")
        reply = await _reply(service)
        again = await _reply(service)

        assert threads.returned == [reply]
        assert again is reply  # readers that ask for the same share the bytes


async def test_a_reply_from_the_store_is_encoded_in_the_thread_that_reads() -> None:
    world = World()
    async with world.running(audit={}) as service:
        await publish(service, b"x")
        from_memory = await _reply(service)
    threads = Threads(world)
    async with world.running() as service:
        threads.returned.clear()

        reply = await _reply(service)

        (result,) = threads.returned
        assert isinstance(result, ReadResult)
        assert result.messages.encoded(Encoding(MediaType.AVRO), generation=1) is reply
        assert reply == from_memory
