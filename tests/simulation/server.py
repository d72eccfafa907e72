"""A simulated server: the real components, connected as in a process, from its start to its end.

It opens, ticks, sweeps and closes the components as `server.py` does. Only HTTP is left out.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

import process.components
from messaging.engines.engine_interface import Engine
from process.clock import SteadyClock
from process.components import Components
from process.directory_locks import DataDirectories
from process.runtime import Runtime
from process.settings import Settings
from tests.simulation.disk import Disk
from tests.simulation.files import SimPath, mounted
from tests.simulation.loop import Clock, Threads, VirtualLoop, below
from tests.simulation.store import SimStore
from tx.durable_state import ServiceState

Work = Coroutine[Any, Any, Any]

MESSAGES, SNAPSHOTS = "/data/messages", "/data/snapshots"
STORE_ID = "00112233445566778899aabbccddeeff"
SETTLE_STEPS_MAX = 20_000  # callbacks and jobs; far more than any operation needs


class StuckError(AssertionError):
    """A request or a job that should have ended did not."""


@contextmanager
def simulated() -> Iterator[None]:
    """The components use the simulated disk, and the store that runs on it."""
    with patch.object(process.components, "store_opener", _opener), mounted():
        yield


def _opener(
    _settings: Settings, directories: DataDirectories, **_runtime: object
) -> Callable[[], Engine]:
    table = directories.messages / "table"
    return lambda: SimStore(table)  # type: ignore[arg-type]  # a simulated path


class SimulatedServer:
    """A server on a disk and under a clock that outlive it.

    `before_job` is called before each job of a thread. A check at that point misses no failure of
    the transaction log, since recovery needs a thread.
    """

    def __init__(
        self, disk: Disk, clock: Clock, settings: Settings, *, before_job: Callable[[], None]
    ) -> None:
        self._before_job = before_job
        self.clock = clock
        self.disk = disk
        self.loop = VirtualLoop(clock)
        self.threads = Threads(self.loop)
        self.steady = SteadyClock(wall_ns=clock.wall_ns, boot_ns=clock.boot_ns)
        messages, snapshots = SimPath(disk, MESSAGES), SimPath(disk, SNAPSHOTS)
        self.components = Components(
            settings,
            DataDirectories(messages, snapshots, ()),  # type: ignore[arg-type]  # as much of a path as is used
            Runtime(
                clock=self.steady,
                elapsed_s=self.loop.time,
                new_store_id=lambda: STORE_ID,
                spawn=self.spawn,
                spawn_writer=self.spawn,
                threads=self.threads,
                background=lambda _name: lambda _work: None,  # its disk needs none
                die=pytest.fail,
            ),
        )
        self.messaging = self.components.messaging
        self.transactions = self.components.transactions
        self._ticking: dict[Callable[[], Work], asyncio.Task[None]] = {}
        self._seen_since_ms: int | None = None

    def spawn(self, work: Work) -> "asyncio.Task[Any]":
        return self.loop.create_task(_noted(work, self.loop))

    def start(self, work: Work) -> "asyncio.Task[Any]":
        """A request; whoever looks at its result gets its error."""
        return self.loop.create_task(work)

    def now_ms(self) -> int:
        return self.steady.now_ms()

    def run(self, chance: random.Random, step_count: int) -> None:
        """Run so many steps, in a random order. Raises: PowerCut."""
        left = step_count
        while left > 0:
            # Callbacks take no time beside a disk; but a thread may be faster than a few of them.
            left -= self.loop.run(min(left, 1 + below(40, chance)))
            if self.threads.is_idle:
                if self.loop.is_idle:
                    return
            else:
                self._before_job()
                self.threads.run_one(chance)
                left -= 1

    def settle(self, chance: random.Random) -> None:
        """Run until everything that is left waits for time. Raises: StuckError."""
        self.run(chance, SETTLE_STEPS_MAX)
        if not (self.threads.is_idle and self.loop.is_idle):
            raise StuckError("the server does not become idle")

    def complete(self, work: Work, chance: random.Random) -> Any:
        """The result of a call that does not wait for time. Raises: its error; StuckError."""
        return self.complete_all([work], chance)[0]

    def complete_all(self, works: Sequence[Work], chance: random.Random) -> list[Any]:
        """The results of concurrent calls that do not wait for time. Raises: as `complete`."""
        tasks = [self.start(work) for work in works]
        self.settle(chance)
        for task in tasks:
            if not task.done():
                raise StuckError(f"{task.get_coro().__qualname__} never ends")
        return [task.result() for task in tasks]

    def tick(self) -> None:
        """Start the periodic ticks, each unless its last one is still running."""
        for tick in (self.components.tick_messages, self.components.tick_transactions):
            before = self._ticking.get(tick)
            if before is None or before.done():
                self._ticking[tick] = self.spawn(tick())
                if tick == self.components.tick_transactions:
                    self.note_seen()

    def note_seen(self) -> None:
        """A tick begins or has just run; if transactions are up, it checks `max_block`."""
        if self._seen_since_ms is None and self.transactions.status.state is ServiceState.RUNNING:
            self._seen_since_ms = self.clock.boot_ms()

    def seen_since_ms(self) -> int:
        """The time since boot of the first tick with transactions up, which applies `max_block` to
        transactions of before the start. A request may start the service before that tick."""
        return self.clock.boot_ms() if self._seen_since_ms is None else self._seen_since_ms

    def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        self.loop.time_passed()

    def vanish(self) -> None:
        """The process ends as by SIGKILL."""
        self.loop.discard()


async def _noted(work: Work, loop: VirtualLoop) -> None:
    # The server would only log an uncaught error of a background task; here it is a finding.
    try:
        await work
    except Exception as error:  # noqa: BLE001 - it is looked at by the checks
        loop.errors.append(error)
