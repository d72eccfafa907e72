"""Which calls are handled together, and in which order."""

import asyncio
from collections.abc import Sequence

import pytest

from kernel.batch_routes import batch_route
from kernel.event_loop import Arrivals
from kernel.requests_and_replies import Reply, Request, Route
from process.admission_and_dispatch import Admission, Call, Callee, Dispatcher, callee_of
from process.metrics import Metrics
from tuff.protocol.operations import COMMIT, GET_OUTCOME, PUBLISH


class Client:
    """A connection that notes its replies."""

    def __init__(self) -> None:
        self.replies: dict[int, int] = {}

    def answered(self, call: Call, reply: Reply, /) -> None:
        self.replies[call.id] = reply.status

    def fail(self, error: BaseException, /) -> None:
        raise error


class World:
    """Handlers that answer each call, and note which calls they got together."""

    def __init__(self) -> None:
        self.admission = Admission(pending_max=20, waiting=lambda: 0, arrivals=Arrivals())
        self.admission.open()
        self.dispatcher = Dispatcher(self.admission, Metrics(), elapsed_s=lambda: 0.0)
        self.handled: list[list[str]] = []
        self.publish = callee_of(batch_route(PUBLISH, self._together))
        self.commit = callee_of(batch_route(COMMIT, self._together))
        self.outcome = callee_of(Route(GET_OUTCOME, self._alone))

    async def _alone(self, request: Request) -> Reply:
        self.handled.append([request.body.decode()])
        return Reply(202)

    def _together(self, requests: Sequence[Request]) -> None:
        self.handled.append([request.body.decode() for request in requests])
        for request in requests:
            request.reply(Reply())

    def begin(self, callee: Callee, client: Client, call_id: int, name: str) -> None:
        call = Call(self.dispatcher, client, call_id, callee)
        request = Request({}, (), None, None, name.encode(), call=call)
        self.dispatcher.begin(call, request)


@pytest.fixture
async def world() -> World:
    return World()


async def test_calls_of_several_connections_are_one_batch(world: World) -> None:
    one, other = Client(), Client()

    world.begin(world.commit, one, 1, "a")
    world.begin(world.commit, other, 1, "b")
    world.begin(world.commit, one, 2, "c")
    await asyncio.sleep(0)

    assert world.handled == [["a", "b", "c"]]
    assert (one.replies, other.replies) == ({1: 200, 2: 200}, {1: 200})


async def test_the_calls_of_a_connection_keep_their_order(world: World) -> None:
    """The message of a commit must not come before that of a publish which was sent earlier."""
    one, other = Client(), Client()

    world.begin(world.publish, one, 1, "first")
    world.begin(world.commit, one, 2, "second")
    world.begin(world.publish, one, 3, "third")
    world.begin(world.publish, other, 1, "of another")
    await asyncio.sleep(0)

    assert world.handled == [["first"], ["second"], ["third", "of another"]]


async def test_a_call_that_is_handled_by_itself_comes_behind_those_before_it(world: World) -> None:
    one, other = Client(), Client()
    world.begin(world.commit, one, 1, "a")

    world.begin(world.outcome, other, 1, "b")
    assert world.handled == [["b"]]
    world.begin(world.outcome, one, 2, "c")

    assert world.handled == [["b"], ["a"], ["c"]]
    assert one.replies == {1: 200, 2: 202}
