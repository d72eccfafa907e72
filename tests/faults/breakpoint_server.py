"""The server with breakpoints, at which a test can inject a fault (breakpoints_table.py).

It is `server.py` with wrapped functions, otherwise unchanged. `TUFF_BREAK` names a directory. Its
file `armed` has a breakpoint and a fault; it is removed when the fault happens. The file `reached`
lists the breakpoints that were passed and the faults that happened. While the file `log-disk` has
"hang" or "fail", the disk of the transaction log does that.
"""

import asyncio
import functools
import importlib
import inspect
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.faults.breakpoints_table import BY_NAME, POINTS, Fault, Point

PAUSE_S = 0.3  # seconds before each fault, in which readers read the intermediate state
LOOK_AGAIN_S = 0.05  # seconds between two looks at `log-disk` while it hangs
# Modules from which others import names come first, so that those import the wrapped functions.
LOG_DISK = ("tuff_storage.disk.files:write_file", "tx.wal:create_log", "tx.wal:DiskFile.append")


class InjectedError(OSError):
    """An injected error, as a disk could raise it."""


class Breaker:
    """Injects the armed fault. `_lock` guards the files, since threads pass breakpoints."""

    def __init__(self, directory: Path) -> None:
        self._armed = directory / "armed"
        self._reached = directory / "reached"
        self._log_disk = directory / "log-disk"
        self._noted: set[str] = set()
        self._lock = Lock()

    def at(self, point: Point, edit: object) -> None:
        """Called at a breakpoint in a function that is not a coroutine."""
        fault = self._takes(point, edit)
        if fault is not None:
            time.sleep(PAUSE_S)
            _end(fault, point)

    async def waits_at(self, point: Point) -> None:
        """Called at a breakpoint in a coroutine."""
        fault = self._takes(point, None)
        if fault is not None:
            await asyncio.sleep(PAUSE_S)
            _end(fault, point)

    def _takes(self, point: Point, edit: object) -> Fault | None:
        if point.edit and type(edit).__name__ != point.edit:
            return None
        with self._lock:
            if point.name not in self._noted:
                self._noted.add(point.name)
                self._note(f"passed {point.name}")
            return self._armed_fault(point)

    def _armed_fault(self, point: Point) -> Fault | None:
        if not self._armed.exists():
            return None
        name, _, fault = self._armed.read_text().partition("\n")
        if BY_NAME[name] is not point:
            return None
        self._armed.unlink()
        self._note(f"broke {point.name}")
        return Fault(fault)

    def _note(self, line: str) -> None:
        with self._reached.open("a") as file:
            file.write(f"{line}\n")

    def use_log_disk(self) -> None:
        """Hang or fail, as long as the test lets the disk of the transaction log do so."""
        is_noted = False
        while fault := self._log_disk_fault():
            if not is_noted:
                self._note("used log disk")
                is_noted = True
            if fault == "fail":
                raise InjectedError("injected: the disk of the transaction log")
            time.sleep(LOOK_AGAIN_S)

    def _log_disk_fault(self) -> str:
        try:
            return self._log_disk.read_text()
        except FileNotFoundError:
            return ""


def _end(fault: Fault, point: Point) -> None:
    if fault is Fault.KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    if fault is Fault.EXCEPTION:
        raise InjectedError(f"injected: {point.name}")


def wrapped(function: Callable[..., Any], points: list[Point], breaker: Breaker) -> Any:
    """The function with its breakpoints before and after it."""
    before = [point for point in points if not point.is_end]
    after = [point for point in points if point.is_end]

    def edit_of(arguments: tuple[object, ...]) -> object:
        return arguments[1] if len(arguments) > 1 else None

    @functools.wraps(function)
    def call(*arguments: object, **named: object) -> object:
        for point in before:
            breaker.at(point, edit_of(arguments))
        result = function(*arguments, **named)
        for point in after:
            breaker.at(point, edit_of(arguments))
        return result

    @functools.wraps(function)
    async def wait(*arguments: object, **named: object) -> object:
        for point in before:
            await breaker.waits_at(point)
        result = await function(*arguments, **named)
        for point in after:
            await breaker.waits_at(point)
        return result

    return wait if inspect.iscoroutinefunction(function) else call


def on_log_disk(function: Callable[..., Any], breaker: Breaker) -> Any:
    """The function on a log disk that may hang or fail."""

    @functools.wraps(function)
    def call(*arguments: object, **named: object) -> object:
        breaker.use_log_disk()
        return function(*arguments, **named)

    return call


def replace(name: str, make: Callable[[Callable[..., Any]], Any]) -> None:
    """Replace a function by what `make` returns. Raises: AttributeError: it does not exist."""
    module, _, path = name.partition(":")
    owner: Any = importlib.import_module(module)
    *outer, last = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    setattr(owner, last, make(getattr(owner, last)))


def main(arguments: list[str]) -> int:
    breaker = Breaker(Path(os.environ["TUFF_BREAK"]))
    for name in LOG_DISK:
        replace(name, functools.partial(on_log_disk, breaker=breaker))
    functions = sorted({point.function for point in POINTS}, key=lambda name: ".files:" not in name)
    for name in functions:
        points = [point for point in POINTS if point.function == name]
        replace(name, functools.partial(wrapped, points=points, breaker=breaker))
    import server

    return server.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
