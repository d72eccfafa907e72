"""Worker threads of several services that a test stops before each operation on a file."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

import tx.durable_state
import tx.recovery
import tx.snapshot_file
import tx.wal
from tx.leadership import NotLeaderError
from tx.wal import DiskFile

T = TypeVar("T")

WAIT_S = 30.0  # longer than any test; a thread that waits so long was forgotten
QUIET_TURNS = 40  # of the event loop without work in a thread, after which nothing goes on

_here = threading.local()  # whose work this thread does


@dataclass(eq=False)
class Step:
    """A thread of `who` that stands before an operation."""

    who: str
    name: str
    go: threading.Event = field(default_factory=threading.Event)


class Steps:
    """Which threads stand before which operation. The test's event loop lets them go on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy_count = 0  # pieces of work that are neither done nor at a step
        self._is_less_busy = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None  # that of the test, once there is work
        self.waiting: list[Step] = []
        self.is_free = False  # nothing stops any more
        self.pools: list[ThreadPoolExecutor] = []

    def reach(self, name: str) -> None:
        """Wait at this step, in a thread of a service; anywhere else it is nothing."""
        who = getattr(_here, "who", None)
        if who is None:
            return
        step = Step(who, name)
        with self._lock:
            if self.is_free:
                return
            self.waiting.append(step)
            self._busy_count -= 1
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._is_less_busy.set)
        assert step.go.wait(WAIT_S), f"{who} was forgotten at {name!r}"

    def release(self, step: Step) -> None:
        with self._lock:
            self.waiting.remove(step)
            self._busy_count += 1
        step.go.set()

    def release_all(self) -> None:
        """Let everything go on, and nothing stop any more."""
        with self._lock:
            self.is_free = True
        for step in list(self.waiting):
            self.release(step)

    async def settle(self) -> None:
        """Wait until every thread is done or at a step, and the event loop has nothing to do."""
        quiet_count = 0
        while quiet_count < QUIET_TURNS:
            self._is_less_busy.clear()
            if self._busy_count:
                await self._is_less_busy.wait()
                quiet_count = 0
            await asyncio.sleep(0)
            quiet_count += 1

    async def run_to(self, who: str, name: str) -> Step:
        """Let one service go on, until it stands before this operation."""
        for _ in range(200):
            await self.settle()
            own = [step for step in self.waiting if step.who == who]
            assert own, f"{who} never came to {name!r}"
            for step in own:
                if step.name == name:
                    return step
            self.release(own[0])
        raise AssertionError(f"{who} never came to {name!r}")

    async def run(self, who: str) -> None:
        """Let one service go on, until nothing of it is left to do."""
        for _ in range(500):
            await self.settle()
            own = [step for step in self.waiting if step.who == who]
            if not own:
                return
            self.release(own[0])
        raise AssertionError(f"{who} never ends")

    async def work(self, who: str, pool: ThreadPoolExecutor, function: Callable[[], T]) -> T:
        def named() -> T:
            _here.who = who
            return function()

        self._loop = asyncio.get_running_loop()
        with self._lock:
            self._busy_count += 1
        try:
            return await self._loop.run_in_executor(pool, named)
        finally:
            with self._lock:
                self._busy_count -= 1
            self._is_less_busy.set()


class SteppedDisk:
    """One thread of a service, and its log files."""

    elapsed_s = 0.0

    def __init__(self, steps: Steps, who: str) -> None:
        self._steps = steps
        self._who = who
        self._pool = ThreadPoolExecutor(1)
        steps.pools.append(self._pool)

    async def __call__(self, function: Callable[[], T], /) -> T:
        return await self._steps.work(self._who, self._pool, function)

    def open_file(self, path: Path) -> "SteppedFile":
        return SteppedFile(path, self._steps)


class SteppedFile:
    def __init__(self, path: Path, steps: Steps) -> None:
        self._file = DiskFile(path)
        self._steps = steps

    def append(self, data: bytes, *, sync: bool) -> None:
        self._steps.reach("write")
        self._file.append(data, sync=False)
        if sync:
            self._steps.reach("sync")
            self._file.append(b"", sync=True)

    def close(self) -> None:
        self._file.close()


class Election:
    """The metadata store, as far as transactions know it: which epoch leads."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.epoch = 0
        self.is_reachable = True

    def elect(self) -> "Seat":
        self.epoch += 1
        return Seat(self, self.epoch)


class Seat:
    """The leadership of one server."""

    def __init__(self, election: Election, epoch: int) -> None:
        self._election = election
        self.epoch = epoch
        self.check_count = 0

    def require(self) -> None:
        self._election.steps.reach("check")
        self.check_count += 1
        if not self._election.is_reachable:
            raise OSError(110, "Connection timed out")
        if self._election.epoch != self.epoch:
            raise NotLeaderError(
                f"another server leads transactions: server-{self._election.epoch}"
            )
        self._election.steps.reach("checked")


def stop_at_file_operations(steps: Steps, patch: pytest.MonkeyPatch) -> None:
    """Make every operation on a file that `tx` does a step."""

    def stepped(module: Any, function: str, before: str | None, after: str | None) -> None:
        original = getattr(module, function)

        def call(*arguments: Any, **more: Any) -> Any:
            if before is not None:
                steps.reach(before)
            result = original(*arguments, **more)
            if after is not None:
                steps.reach(after)
            return result

        patch.setattr(module, function, call)

    # Written by a timer, edits would come at another step in each run.
    patch.setattr(tx.wal, "UNWANTED_S_MAX", 3_600)
    stepped(tx.wal, "write_file", "make log", "made log")
    stepped(tx.snapshot_file, "write_file", "make snapshot", "made snapshot")
    stepped(tx.durable_state, "remove_file", "remove", "removed")
    stepped(tx.durable_state, "free_path", None, "chose log name")
    stepped(tx.snapshot_file, "free_path", None, "chose snapshot name")
    stepped(tx.recovery, "list_files", "list", "listed")
    stepped(tx.recovery, "known_file", "read header", None)
    stepped(tx.recovery, "read_snapshot", None, "have read snapshot")
    stepped(tx.recovery, "read_log", None, "have read log")
    stepped(tx.recovery, "write_again", "write again", None)
