"""The world of a script: the real components behind the real HTTP edge, on a disk and under a
clock that only the script moves.

Nothing is imitated: LevelDB and the log files lie in a directory, and a crash takes what lies there
at that moment into the next life. What blocks runs on the loop itself, so that there is one order
of events; a disk that is held keeps its callers waiting, as a slow one does.
"""

import asyncio
import itertools
import json
import shutil
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from aiohttp import ClientSession

from process.clock import SteadyClock
from process.components import Components
from process.directory_locks import DataDirectories
from process.listener import Listener
from process.runtime import Runtime
from process.settings import load
from tests.scripts.names import START_MS

T = TypeVar("T")

STORE_ID = "00112233445566778899aabbccddeeff"
TURNS = 100  # of the loop; some four times what a request without a disk takes
NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply of the server; `body` is the decoded JSON, None for an empty body."""

    status: int
    headers: Mapping[str, str]
    body: Any


class Clock:
    """The wall clock, which can be set, and the time since boot, which can't."""

    def __init__(self) -> None:
        self._wall_ms = START_MS
        self._boot_ms = 1_000_000

    def move(self, ms: int) -> None:
        self._wall_ms += ms
        self._boot_ms += ms

    def set_wall(self, ms: int) -> None:
        """Set the wall clock by that much forward; no time passes."""
        self._wall_ms += ms

    def wall_ns(self) -> int:
        return self._wall_ms * NS_PER_MS

    def boot_ns(self) -> int:
        return self._boot_ms * NS_PER_MS


class Disk:
    """Runs what blocks, one after the other, on the loop; `hold` keeps it waiting."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._turn = asyncio.Lock()

    async def __call__(self, function: Callable[[], T], /) -> T:
        async with self._turn:
            await self._open.wait()
            return function()

    def hold(self) -> None:
        self._open.clear()

    def release(self) -> None:
        self._open.set()


class Life:
    """One life of the server, from its start to its stop or its crash."""

    def __init__(self, directory: Path, clock: Clock, assignments: list[str]) -> None:
        self._directory = directory
        self._clock = clock
        self._assignments = assignments
        self._tasks: set[asyncio.Task[None]] = set()
        self._held = ExitStack()
        self._client: ClientSession | None = None
        self.listener: Listener | None = None
        self.port = 0
        self.disks: dict[str, Disk] = {}

    async def open(self) -> None:
        """Recover, and listen."""
        await self.recover()
        self.listener = self._components.listener()
        self.port = await self.listener.listen("127.0.0.1", 0)
        self._client = ClientSession(f"http://127.0.0.1:{self.port}")

    async def recover(self) -> None:
        """Open the components, without listening."""
        places = DataDirectories.below(self._directory)
        places.lock(self._held)
        self._components = Components(
            load(None, self._assignments),
            places,
            Runtime(
                clock=SteadyClock(wall_ns=self._clock.wall_ns, boot_ns=self._clock.boot_ns),
                elapsed_s=lambda: self._clock.boot_ns() / 1e9,
                new_store_id=lambda: STORE_ID,
                spawn=self._spawn,
                spawn_writer=self._spawn,
                threads=self._threads,
                background=lambda _name: lambda _work: None,  # memory needs none
                die=pytest.fail,
            ),
        )
        await self._components.open()

    async def request(
        self, method: str, path: str, body: object, query: Mapping[str, str]
    ) -> Reply:
        # Without a body aiohttp would name a content type all the same, and not JSON's.
        no_header = ["Content-Type"] if body is None else []
        assert self._client is not None, "it does not listen"
        response = await self._client.request(
            method, path, json=body, params=query, skip_auto_headers=no_header
        )
        text = await response.text()
        return Reply(response.status, response.headers, json.loads(text) if text else None)

    async def tick(self) -> None:
        await self._components.tick()

    async def sweep(self) -> None:
        await self._components.sweep()

    async def close(self) -> None:
        """A clean stop."""
        for disk in self.disks.values():
            disk.release()
        await self._components.drain()
        if self._client is not None:
            await self._client.close()
        if self.listener is not None:
            await self.listener.close(within_s=0)
        await self._components.close()
        await asyncio.gather(*self._tasks)
        self._held.close()

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)

    def _threads(self, name: str, count: int, /, *, is_joined: bool = True) -> Disk:
        return self.disks.setdefault(name, Disk())


class World:
    """A server that lives, stops and crashes, and whose time a script moves."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count(1)
        self._assignments: dict[str, str] = {}
        self._life: Life | None = None
        self.clock = Clock()

    @property
    def life(self) -> Life:
        assert self._life is not None, "the server is not running"
        return self._life

    @property
    def data(self) -> Path:
        """The directory of this life's files."""
        return self._data

    async def start(self) -> None:
        self._data = self._directory / f"life-{next(self._numbers)}"
        await self._open()

    async def restart(self, assignments: dict[str, str]) -> None:
        """Stop cleanly, and open the same files again, with these settings from now on."""
        await self.stop()
        self._assignments |= assignments
        await self._open()

    async def crash(self, assignments: dict[str, str]) -> None:
        """Let the server vanish, and open what lies on the disk at this moment."""
        survived = self._directory / f"life-{next(self._numbers)}"
        shutil.copytree(self._data, survived)
        # The old life ends in its old directory, which is not read any more.
        await self.stop()
        self._data = survived
        self._assignments |= assignments
        await self._open()

    async def stop(self) -> None:
        if self._life is not None:
            life, self._life = self._life, None
            await life.close()

    async def settle(self) -> None:
        """Let everything go on that waits for nothing but its turn."""
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def _open(self) -> None:
        life = Life(
            self._data, self.clock, [f"{name}={value}" for name, value in self._assignments.items()]
        )
        await life.open()
        self._life = life
        await self.settle()
