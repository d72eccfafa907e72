"""Clocks, tasks, threads, and ids, which the process provides to its components."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kernel.event_loop import InBackground, InThread, Spawn
from process.clock import SteadyClock


class Threads(Protocol):
    """Makes a thread pool, and returns a function that runs a call in one of its threads."""

    def __call__(self, name: str, count: int, /, *, is_joined: bool = True) -> InThread:
        """`is_joined`: the process waits for them when it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What the process provides.

    `elapsed_s` is a monotonic clock. `new_store_id` makes the id of a store, or of a cluster.
    `spawn` starts background work, and `spawn_writer` work whose failure ends the process.
    `background` makes a thread for work that no caller waits for. `die` ends the process at once,
    with a reason.
    """

    clock: SteadyClock
    elapsed_s: Callable[[], float]
    new_store_id: Callable[[], str]
    spawn: Spawn
    spawn_writer: Spawn
    threads: Threads
    background: Callable[[str], InBackground]
    die: Callable[[str], None]
