"""The files of the server that a request passes through are those in docs/architecture.md."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from pathlib import Path
from types import FrameType

import pytest

from process.listener import Listener
from tests.scripts.world import World
from tuff.protocol.session_frames import PATH, PROTOCOL, FrameReader, Kind, frame

ROOT = Path(__file__).resolve().parents[2]
SERVER = tuple(
    f"{ROOT / folder}/"
    for folder in ("process", "tx", "messaging", "kernel", "tuff", "tuff_storage")
)
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text("utf-8")
PUBLISH_FUNCTIONS_MAX = 112  # of the server, with comprehensions and some that a timer runs
COMMIT_FUNCTIONS_MAX = 239  # of the server, over a session, with some that a timer runs
POLL_FUNCTIONS_MAX = 82  # of the server, with some that a timer runs
START, COMMIT = 16, 18  # numbers of operations (docs/session.md)
TOPIC = "/v1/namespaces/default/topics/audit"


class SessionConnection:
    """Sends calls over a session, one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = FrameReader(frame_bytes_max=1 << 20)

    async def begin(self) -> None:
        self._writer.write(
            f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
            f"Upgrade: {PROTOCOL}\r\n\r\n".encode()
        )
        assert (await self._reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        await self._next()

    async def call(self, operation: int, *parameters: str, body: object) -> Mapping[str, object]:
        """The body of the reply, which is a success."""
        self._writer.write(frame(Kind.CALL, 1, operation, parameters, None, body))
        _, _, status, _, value = await self._next()
        assert status in {200, 201}, value
        assert isinstance(value, dict)
        return value

    async def _next(self) -> list[object]:
        while True:
            frames, error = self._frames.feed(await self._reader.read(1 << 16))
            assert error is None
            if frames:
                return frames[0][1]


class Connection:
    """Sends requests, one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, method: str, path: str, body: str) -> str:
        """The body of the reply, which is a success."""
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        said = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        assert re.match(r"HTTP/1\.1 20\d ", said), said
        (length,) = re.findall(r"Content-Length: (\d+)", said)
        return (await self._reader.readexactly(int(length))).decode()

    async def start_transaction(self) -> str:
        """The id of a new transaction."""
        (found,) = re.findall(
            r'"transactionId":"(\d+)"', await self.send("POST", "/v1/transactions", "{}")
        )
        return str(found)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    await world.start()
    yield world
    await world.stop()


@pytest.fixture
async def connection(world: World) -> AsyncIterator[Connection]:
    listener: Listener | None = world.life.listener
    assert listener is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", world.life.port)
    yield Connection(reader, writer)
    writer.close()


@pytest.fixture
async def session(world: World) -> AsyncIterator[SessionConnection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", world.life.port)
    session = SessionConnection(reader, writer)
    await session.begin()
    yield session
    writer.close()


async def fewest_functions(works: Iterable[Awaitable[object]]) -> set[tuple[str, str]]:
    """Those of the repetition that met no work in the background, such as ticks and the log."""
    return min([await functions_of(work) for work in works], key=len)


async def functions_of(work: Awaitable[object]) -> set[tuple[str, str]]:
    """The functions of the server that run until the work is done, each with its file; the test's
    disk runs on the same thread."""
    found: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(SERVER):
            found.add((str(Path(code.co_filename).relative_to(ROOT)), code.co_qualname))

    sys.setprofile(note)
    try:
        await work
    finally:
        sys.setprofile(None)
    return found


def listed(name: str) -> list[str]:
    (line,) = re.findall(
        rf"^\*\*Files that {name} passes through:\*\* (.*)$", ARCHITECTURE, re.MULTILINE
    )
    return sorted(set(re.findall(r"`([a-z_/]+\.py)`", line)))


async def test_a_publish_stays_within_its_budget(connection: Connection) -> None:
    await connection.send("PUT", TOPIC, "{}")
    publish = ("POST", f"{TOPIC}/publish", '{"messages": ["a"]}')
    await connection.send(*publish)

    found = await fewest_functions(connection.send(*publish) for _ in range(5))

    assert sorted({file for file, _ in found}) == listed("a publish")
    assert len(found) <= PUBLISH_FUNCTIONS_MAX


async def test_a_commit_passes_through_the_files_that_are_listed(connection: Connection) -> None:
    await connection.send("PUT", TOPIC, "{}")
    body = (
        '{"changes": ["k"], "publish": '
        '[{"namespace": "default", "topic": "audit", "messages": ["a"]}]}'
    )
    ids = [await connection.start_transaction() for _ in range(5)]
    await connection.send("POST", f"/v1/transactions/{ids[0]}/commit", body.replace("k", "j"))

    found = await fewest_functions(
        connection.send("POST", f"/v1/transactions/{each}/commit", body.replace("k", f"k{each}"))
        for each in ids[1:]
    )

    assert sorted({file for file, _ in found}) == listed("a commit with a publish")


async def test_a_commit_over_a_session_stays_within_its_budget(
    connection: Connection, session: SessionConnection
) -> None:
    await connection.send("PUT", TOPIC, "{}")
    ids = [await session.call(START, body={}) for _ in range(6)]
    commits = [
        session.call(
            COMMIT,
            str(started["transactionId"]),
            body={
                "changes": [b"%d-%d" % (index, key) for key in range(10)],
                "publish": [{"namespace": "default", "topic": "audit", "messages": [b"a"]}],
            },
        )
        for index, started in enumerate(ids)
    ]
    await commits[0]

    found = await fewest_functions(commits[1:])

    assert sorted({file for file, _ in found}) == listed("a commit over a session")
    assert len(found) <= COMMIT_FUNCTIONS_MAX


async def test_a_poll_of_the_tail_in_a_transaction_stays_within_its_budget(
    connection: Connection,
) -> None:
    await connection.send("PUT", TOPIC, "{}")
    await connection.send("POST", f"{TOPIC}/publish", '{"messages": ["a"]}')
    poll = ("POST", f"{TOPIC}/poll?tx={await connection.start_transaction()}", "{}")

    found = await fewest_functions(connection.send(*poll) for _ in range(5))

    assert sorted({file for file, _ in found}) == listed("a poll")
    assert len(found) <= POLL_FUNCTIONS_MAX
