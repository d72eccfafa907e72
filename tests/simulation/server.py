"""One life of the server: the real rooms, joined as the process joins them, until it ends.

Everything that `server.py` does around the rooms is done here too: it opens them, ticks and sweeps,
and closes them. Only HTTP is left out.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import process.components
from messaging.storage.engine import Store
from messaging.storage.packed_rows import PackedRowStore
from process.clock import SteadyClock
from process.components import Components, Runtime
from process.data_directories import DataDirectories
from process.settings import Settings
from tests.simulation.disk import Disk
from tests.simulation.files import SimPath, mounted
from tests.simulation.loop import Clock, Threads, VirtualLoop, below
from tests.simulation.store import SimTable
from tx.durable_state import ServiceState

Work = Coroutine[Any, Any, Any]

MESSAGES, SNAPSHOTS = "/data/messages", "/data/snapshots"
STORE_ID = "00112233445566778899aabbccddeeff"
SETTLE_STEPS_MAX = 20_000  # callbacks and jobs; what does not come to rest until then never does


class StuckError(AssertionError):
    """Something that should have come to an end did not."""


@contextmanager
def simulated() -> Iterator[None]:
    """The rooms find the simulated disk, and the store that runs on it."""
    with patch.object(process.components, "_engine", _engine), mounted():
        yield


def _engine(_settings: Settings, directory: SimPath, **_clocks: object) -> Callable[[], Store]:
    return lambda: PackedRowStore(SimTable(directory / "table"))


class Life:
    """A server on a disk and under a clock that outlive it.

    `before_job` is called before a thread does anything. Whoever looks then misses no failure of
    the transaction log: coming up again takes a thread.
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
        self.rooms = Components(
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
            ),
        )
        self.messaging = self.rooms.messaging
        self.transactions = self.rooms.transactions
        self._ticking: dict[Callable[[], Work], asyncio.Task[None]] = {}
        self._seen_since_ms: int | None = None

    def spawn(self, work: Work) -> "asyncio.Task[Any]":
        return self.loop.create_task(_noted(work, self.loop))

    def start(self, work: Work) -> "asyncio.Task[Any]":
        """A request, whose error is its own."""
        return self.loop.create_task(work)

    def now_ms(self) -> int:
        return self.steady.now_ms()

    def run(self, chance: random.Random, step_count: int) -> None:
        """Go on for so many steps, in an order that chance decides. Raises: PowerCut."""
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
        """Go on until nothing is left that waits for anything but time. Raises: StuckError."""
        self.run(chance, SETTLE_STEPS_MAX)
        if not (self.threads.is_idle and self.loop.is_idle):
            raise StuckError("it does not come to rest")

    def complete(self, work: Work, chance: random.Random) -> Any:
        """The result of something that waits for no time. Raises: what it raises; StuckError."""
        return self.complete_all([work], chance)[0]

    def complete_all(self, works: Sequence[Work], chance: random.Random) -> list[Any]:
        """The results of what goes on at once, and waits for no time. Raises: as `complete`."""
        tasks = [self.start(work) for work in works]
        self.settle(chance)
        for task in tasks:
            if not task.done():
                raise StuckError(f"{task.get_coro().__qualname__} waits for what never happens")
        return [task.result() for task in tasks]

    def tick(self) -> None:
        """The periodic ticks; a round that is not over yet is waited for."""
        for tick in (self.rooms.tick_messages, self.rooms.tick_transactions):
            before = self._ticking.get(tick)
            if before is None or before.done():
                self._ticking[tick] = self.spawn(tick())
                if tick == self.rooms.tick_transactions:
                    self.note_seen()

    def note_seen(self) -> None:
        """A tick begins, or has just been: with transactions up it sees who holds readers back."""
        if self._seen_since_ms is None and self.transactions.status.state is ServiceState.RUNNING:
            self._seen_since_ms = self.clock.boot_ms()

    def seen_since_ms(self) -> int:
        """In time since boot: since when the server knows who held readers back before it began.
        Transactions that a request starts again are up before a tick sees them."""
        return self.clock.boot_ms() if self._seen_since_ms is None else self._seen_since_ms

    def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        self.loop.time_passed()

    def vanish(self) -> None:
        """The process is gone, in the middle of whatever it did."""
        self.loop.discard()


async def _noted(work: Work, loop: VirtualLoop) -> None:
    # A background task whose error nobody looks at is a bug that the server would only log.
    try:
        await work
    except Exception as error:  # noqa: BLE001 - it is looked at by the checks
        loop.errors.append(error)
