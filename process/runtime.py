"""Clocks, tasks, threads, and ids, which the process provides to its components."""

from collections.abc import Callable
from dataclasses import dataclass

from kernel.event_loop import InBackground, Spawn
from process.access_and_tls import Threads
from process.clock import SteadyClock


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
    spawn: Spawn
    spawn_writer: Spawn
    threads: Threads
    background: Callable[[str], InBackground]
    die: Callable[[str], None]
