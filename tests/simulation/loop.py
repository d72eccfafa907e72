"""An event loop whose time is handed in, and worker threads that run when they are told to.

There is one thread. What is ready runs in the order in which it became so, as on asyncio's own
loop; what blocks waits in its pool until the scheduler picks it, and its result waits once more
until the scheduler hands it back. So every order that threads could bring about is one of choice.
"""

import asyncio
import heapq
import itertools
import random
import warnings
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from typing import Any

WITHOUT_END = 20_000  # callbacks; far more than any step takes: past that something goes in circles


def below(count: int, chance: random.Random) -> int:
    """A number from 0 to below `count`: that of `randrange`, in half of its time."""
    bits = count.bit_length()
    number = chance.getrandbits(bits)
    while number >= count:
        number = chance.getrandbits(bits)
    return number


class Clock:
    """The wall clock, which can be set or stand still, and the time since boot, which can't."""

    def __init__(self, wall_ms: int) -> None:
        self._boot_ms = 1_000_000
        self._offset_ms = wall_ms - self._boot_ms
        self._frozen_ms: int | None = None

    def advance(self, ms: int) -> None:
        self._boot_ms += ms

    def set_wall(self, ms: int) -> None:
        """Set the wall clock by that much forward; no time passes."""
        self._offset_ms += ms
        if self._frozen_ms is not None:
            self._frozen_ms += ms

    def freeze(self) -> None:
        """Let the wall clock stand still."""
        if self._frozen_ms is None:
            self._frozen_ms = self._boot_ms + self._offset_ms

    def thaw(self) -> None:
        """Let it go on, right again."""
        self._frozen_ms = None

    def boot_ms(self) -> int:
        return self._boot_ms

    def boot_ns(self) -> int:
        return self._boot_ms * 1_000_000

    def wall_ns(self) -> int:
        frozen_ms = self._frozen_ms
        wall_ms = self._boot_ms + self._offset_ms if frozen_ms is None else frozen_ms
        return max(0, wall_ms) * 1_000_000


class VirtualLoop(asyncio.AbstractEventLoop):
    """As much of an event loop as the rooms use. `errors` are exceptions that nobody caught."""

    # Every future asks; a type without arguments answers False, without a frame of its own.
    get_debug = bool

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # What to call with what; for a timer that is due, nothing and the timer.
        self._ready: deque[tuple[Callable[..., object] | None, Any]] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.errors: list[BaseException | str] = []

    def time(self) -> float:
        return self._clock.boot_ms() / 1000

    def call_soon(  # type: ignore[override]  # without a handle: the rooms cancel only timers
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> None:
        # No context is entered: the rooms keep nothing in one, and this is where time goes.
        self._ready.append((callback, args))

    def call_at(
        self, when: float, callback: Callable[..., object], *args: object,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:  # fmt: skip
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: object,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:  # fmt: skip
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None,
        context: Context | None = None,
    ) -> "asyncio.Task[Any]":  # fmt: skip
        task = asyncio.Task(coro, loop=self, name=name or "", context=context)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context.get("exception") or str(context.get("message")))

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    @property
    def is_idle(self) -> bool:
        return not self._ready

    def run(self, count_max: int = WITHOUT_END) -> int:
        """Run what is ready, up to so many callbacks; how many there were."""
        count, ready = 0, self._ready
        events._set_running_loop(self)
        try:
            while ready and count < count_max:
                callback, args = ready.popleft()
                if callback is None:
                    callback, args = args._callback, args._args
                    if callback is None:  # a timer that was cancelled since it was due
                        continue
                count += 1
                try:
                    callback(*args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - it is looked at by the checks
                    self.errors.append(error)
        finally:
            events._set_running_loop(None)
        assert count < WITHOUT_END, "it goes in circles"
        return count

    def time_passed(self) -> None:
        """Let what was due until now become ready, the earliest first."""
        while self._timers and self._timers[0][0] <= self.time():
            _, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled():
                self._ready.append((None, timer))

    def discard(self) -> None:
        """Nothing runs here any more: this life is over."""
        self._ready.clear()
        self._timers.clear()
        events._set_running_loop(self)
        with warnings.catch_warnings():
            # Work that was handed over and never begun.
            warnings.simplefilter("ignore", RuntimeWarning)
            for task in list(self._tasks):
                task._log_destroy_pending = False
                # What it would have done on its way out is undone by the crash as well.
                with suppress(Exception):
                    task.get_coro().close()
        events._set_running_loop(None)
        self._ready.clear()


class _Pool:
    """The jobs of a pool: those that wait for a thread, and those whose result was not seen yet."""

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.count = count
        self.queued: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self.done: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()

    def run(self, chance: random.Random) -> None:
        """One thread takes the jobs in their order; of several any may be the fastest."""
        picked = below(min(self.count, len(self.queued)), chance)
        function, future = self.queued[picked]
        del self.queued[picked]
        try:
            self.done.append((future, function(), None))
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for the job
            self.done.append((future, None, error))

    def hand_back(self) -> None:
        future, result, error = self.done.popleft()
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


class Threads:
    """Pools of worker threads, of which none runs by itself."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._pools: list[_Pool] = []
        self._held: frozenset[str] = frozenset()

    def __call__(
        self, name: str, count: int, /, *, is_joined: bool = True
    ) -> Callable[..., "asyncio.Future[Any]"]:
        pool = _Pool(name, count)
        self._pools.append(pool)

        def in_thread(function: Callable[[], Any]) -> "asyncio.Future[Any]":
            future = self._loop.create_future()
            pool.queued.append((function, future))
            return future

        return in_thread

    @property
    def is_idle(self) -> bool:
        for pool in self._pools:
            if (pool.queued or pool.done) and pool.name not in self._held:
                return False
        return True

    def hold(self, number: int) -> None:
        """Let one pool stand still, as on a disk that takes long, until `release`."""
        self._held = frozenset((self._pools[number % len(self._pools)].name,))

    def hold_named(self, *names: str) -> None:
        """Let these pools stand still until `release`."""
        self._held = frozenset(names)

    def release(self) -> None:
        self._held = frozenset()

    def run_one(self, chance: random.Random) -> None:
        """Run one job, or hand the result of one back."""
        queued, done = [], []
        for pool in self._pools:
            if pool.name not in self._held:
                if pool.queued:
                    queued.append(pool)
                if pool.done:
                    done.append(pool)
        picked = below(len(queued) + len(done), chance)
        if picked < len(queued):
            queued[picked].run(chance)
        else:
            done[picked - len(queued)].hand_back()
