"""Turns of a session: one read of many calls does not keep the event loop from other work."""

import asyncio
from collections.abc import Callable

import pytest

from kernel.event_loop import Arrivals
from kernel.requests_and_replies import Reply, Request, Route, json_reply
from process import session_connection
from process.admission_and_dispatch import Admission, Dispatcher
from process.metrics import Metrics
from process.open_connections import Connections
from process.session_connection import Session, Sessions
from tests.process.served import turns
from tuff.protocol.operations import BY_NUMBER
from tuff.protocol.operations import POLL as POLL_OPERATION
from tuff.protocol.session_frames import FrameReader, Kind, frame

POLL = POLL_OPERATION.number
HEAD = Request({}, (), None, None, b"")


class Transport(asyncio.Transport):
    """Keeps what is written, and calls `after_write` then."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_paused = self.is_closed = False
        self.unread_bytes = 0
        self.after_write: Callable[[], None] = lambda: None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))
        self.after_write()

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def frames(self) -> list[list[object]]:
        read, error = FrameReader(frame_bytes_max=1 << 30).feed(b"".join(self.writes))
        assert error is None
        return [elements for _, elements in read]


class World:
    """A session whose polls are answered at once, with a body of `reply_bytes`."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.reply_bytes = 0
        self.reply: Reply | None = None  # in place of one with `reply_bytes`
        routes = [Route(each, self._answer) for each in BY_NUMBER.values()]
        admission = Admission(pending_max=9_999, waiting=lambda: 0, arrivals=Arrivals())
        admission.open()
        dispatcher = Dispatcher(admission, Metrics(), elapsed_s=lambda: 0.0)
        sessions = Sessions(
            routes,
            dispatcher,
            Connections(),
            max_request_bytes=1_000,
            refusal=lambda _head: None,
        )
        self.transport = Transport()
        self.session = Session(sessions, self.transport, HEAD)
        self.session.begin()

    async def _answer(self, request: Request) -> Reply:
        self.called.append(request.parameters["t"])
        return self.reply or json_reply({"payload": "x" * self.reply_bytes})

    def receive(self, count: int, *, then: bytes = b"") -> None:
        calls = [
            frame(Kind.CALL, n, POLL, ["ns", f"t{n}"], None, None, None, None) for n in range(count)
        ]
        self.session.data_received(b"".join(calls) + then)

    def replied(self) -> list[object]:
        """The ids of the calls that have a reply."""
        return [each[1] for each in self.transport.frames() if each[0] == Kind.REPLY]


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(session_connection, "TURN_FRAMES_MAX", 3)
    monkeypatch.setattr(session_connection, "TURN_REPLY_BYTES_MAX", 1_000)
    return World()


async def test_the_calls_of_one_read_take_turns_with_other_work_and_keep_their_order(
    world: World,
) -> None:
    seen: list[int] = []

    world.receive(7)
    assert world.transport.is_paused
    asyncio.get_running_loop().call_soon(lambda: seen.append(len(world.called)))
    await turns()

    assert seen[0] < 7
    assert world.called == [f"t{n}" for n in range(7)]
    assert world.replied() == [*range(7)]
    assert not world.transport.is_paused


async def test_a_turn_ends_when_its_time_is_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Polls of a topic whose newest rows are in memory have no reply before a thread has made it,
    so neither their number nor their bytes ended the turn."""
    monkeypatch.setattr(session_connection, "TURN_S_MAX", 0)

    world.receive(3)
    first_turn = len(world.called)
    await turns()

    assert first_turn == 1
    assert world.replied() == [*range(3)]


async def test_a_turn_ends_when_it_has_begun_calls_with_many_bytes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bodies of all publishes of a turn are decoded together."""
    monkeypatch.setattr(session_connection, "TURN_CALL_BYTES_MAX", 10)

    world.receive(3)
    first_turn = len(world.called)
    await turns()

    assert first_turn == 1
    assert world.replied() == [*range(3)]


async def test_a_large_reply_is_written_before_the_next_one_is_made(world: World) -> None:
    """Sixty replies of 5 MB were made and joined, and other clients waited for seconds."""
    body = b"x" * (session_connection.COPIED_BODY_BYTES_MAX + 1)
    world.reply = Reply(200, "avro/binary", body, (("Tuff-Next", "00"),))
    seen: list[int] = []
    world.transport.after_write = lambda: seen.append(len(world.called))

    world.receive(2)
    await turns()

    fields = {"Tuff-Next": "00", "Content-Type": "avro/binary"}
    assert world.transport.frames()[1:] == [[Kind.REPLY, n, 200, fields, body] for n in range(2)]
    assert seen[0] == 1
    assert any(written is body for written in world.transport.writes)


async def test_calls_wait_while_their_client_does_not_read(world: World) -> None:
    world.reply_bytes = 600
    world.transport.after_write = world.session.pause_writing

    world.receive(20)
    await turns()
    before = len(world.called)
    world.transport.after_write = lambda: None
    world.session.resume_writing()
    await turns()

    assert before == 2  # the second one has filled the turn
    assert world.replied() == [*range(20)]


class LateWorld(World):
    """A session whose polls are answered together, once `ready` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = asyncio.Event()
        self.reply_bytes = 300

    async def _answer(self, request: Request) -> Reply:
        await self.ready.wait()
        return await super()._answer(request)

    def write(self) -> None:
        """The client reads nothing."""
        self.transport.unread_bytes = len(b"".join(self.transport.writes))
        self.session.pause_writing()

    def read(self) -> None:
        self.transport.unread_bytes = 0
        self.session.resume_writing()


async def test_polls_that_are_answered_together_read_again_later_if_nobody_reads_their_replies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sixty polls of 8 MB each took 480 MB, for each session of a client that read nothing."""
    monkeypatch.setattr(session_connection, "UNREAD_BYTES_MAX", 2_000)
    late = LateWorld()
    late.transport.after_write = late.write
    late.receive(30)
    late.ready.set()

    await turns()
    unread_bytes, answered = late.transport.unread_bytes, len(late.replied())
    for _ in range(10):
        late.read()
        await turns()

    assert 0 < answered < 30
    assert unread_bytes < 3_000
    assert sorted(late.replied()) == [*range(30)]


async def test_what_arrives_before_a_bad_frame_is_answered(world: World) -> None:
    world.receive(7, then=b"\x00\x00\x00\x01\xc1")
    await turns()

    assert world.replied() == [*range(7)]
    assert world.transport.frames()[-1][0] == Kind.END
    assert world.transport.is_closed


async def test_what_arrives_before_the_end_is_answered(world: World) -> None:
    world.receive(7)
    assert world.session.eof_received()
    await turns()

    assert world.replied() == [*range(7)]
    assert world.transport.is_closed


async def test_calls_of_a_client_that_has_gone_are_not_begun(world: World) -> None:
    world.receive(7)
    world.session.connection_lost(None)
    await turns()

    assert len(world.called) == 3
