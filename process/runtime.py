"""Clocks, tasks, threads, and ids, which the process provides to its components."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from process.clock import SteadyClock
from process.security import Threads

Background = Callable[[Callable[[], None]], object]
Work = Coroutine[object, object, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What the process provides.

    `elapsed_s` is a monotonic clock. `spawn` starts background work, and `spawn_writer` work whose
    failure ends the process. `background` makes a thread for work that no caller waits for. `die`
    ends the process at once, with a reason.
    """

    clock: SteadyClock
    elapsed_s: Callable[[], float]
    new_store_id: Callable[[], str]
    spawn: Callable[[Work], None]
    spawn_writer: Callable[[Work], None]
    threads: Threads
    background: Callable[[str], Background]
    die: Callable[[str], None]
