"""A simulated clock, event loop and worker threads, all in one thread.

Callbacks run in the order in which they became ready, as on asyncio's own loop. A job waits in its
pool until the scheduler picks it, and its result waits again until the scheduler delivers it. So
the scheduler can choose every order that real threads could produce.
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

CALLBACK_COUNT_MAX = 20_000  # far more than any step needs: beyond it there is an endless loop


def below(count: int, chance: random.Random) -> int:
    """The same as `randrange(count)`, in half of the time."""
    bits = count.bit_length()
    number = chance.getrandbits(bits)
    while number >= count:
        number = chance.getrandbits(bits)
    return number


class Clock:
    """A wall clock, which can be set or frozen, and the time since boot, which can't."""

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
        """Stop the wall clock."""
        if self._frozen_ms is None:
            self._frozen_ms = self._boot_ms + self._offset_ms

    def thaw(self) -> None:
        """Let the wall clock run again, as if it had never stopped."""
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
    """As much of an event loop as the components use. `errors` are uncaught exceptions."""

    # Each future calls it; `bool()` is False, and costs less than a method.
    get_debug = bool

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # A callback with its arguments; for a timer that is due, None with the timer.
        self._ready: deque[tuple[Callable[..., object] | None, Any]] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.errors: list[BaseException | str] = []

    def time(self) -> float:
        return self._clock.boot_ms() / 1000

    def call_soon(  # type: ignore[override]  # without a handle: the components cancel only timers
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> None:
        # No context is entered: the components do not use one, and this is the hottest path.
        self._ready.append((callback, args))

    def call_soon_threadsafe(  # type: ignore[override]  # as above
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> None:
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

    def run(self, count_max: int = CALLBACK_COUNT_MAX) -> int:
        """Run what is ready, up to so many callbacks; returns how many."""
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
        assert count < CALLBACK_COUNT_MAX, "callbacks run in an endless loop"
        return count

    def time_passed(self) -> None:
        """Make the timers that are due ready, the earliest first."""
        while self._timers and self._timers[0][0] <= self.time():
            _, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled():
                self._ready.append((None, timer))

    def discard(self) -> None:
        """Drop everything: the server has ended."""
        self._ready.clear()
        self._timers.clear()
        events._set_running_loop(self)
        with warnings.catch_warnings():
            # Coroutines that never began.
            warnings.simplefilter("ignore", RuntimeWarning)
            for task in list(self._tasks):
                task._log_destroy_pending = False
                # A crash runs no cleanup either, so errors of it are ignored.
                with suppress(Exception):
                    task.get_coro().close()
        events._set_running_loop(None)
        self._ready.clear()


class _Pool:
    """A thread pool: jobs that wait for a thread, and jobs whose result was not delivered yet."""

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.count = count
        self.queued: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self.done: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()

    def run(self, chance: random.Random) -> None:
        """Run a job: one thread takes them in order, several threads finish in any order."""
        picked = below(min(self.count, len(self.queued)), chance)
        function, future = self.queued[picked]
        del self.queued[picked]
        try:
            self.done.append((future, function(), None))
        except Exception as error:  # noqa: BLE001 - it belongs to the caller of the job
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
    """Pools of worker threads, which run only in `run_one`."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._pools: list[_Pool] = []
        self._hanging: frozenset[str] = frozenset()

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
            if (pool.queued or pool.done) and pool.name not in self._hanging:
                return False
        return True

    def hang(self, number: int) -> None:
        """Stop one pool until `resume`, as a slow disk does."""
        self._hanging = frozenset((self._pools[number % len(self._pools)].name,))

    def hang_named(self, *names: str) -> None:
        """Stop these pools until `resume`."""
        self._hanging = frozenset(names)

    def resume(self) -> None:
        self._hanging = frozenset()

    def run_one(self, chance: random.Random) -> None:
        """Run one job, or deliver the result of one."""
        queued, done = [], []
        for pool in self._pools:
            if pool.name not in self._hanging:
                if pool.queued:
                    queued.append(pool)
                if pool.done:
                    done.append(pool)
        picked = below(len(queued) + len(done), chance)
        if picked < len(queued):
            queued[picked].run(chance)
        else:
            done[picked - len(queued)].hand_back()
