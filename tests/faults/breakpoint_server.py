"""The server, with named places at which it breaks when a test says so (breakpoints_table.py).

It is `server.py` with these functions wrapped and nothing else changed. `TUFF_BREAK` names a
directory. The file `armed` in it holds a place and a fault; it goes when the fault happens, which
the file `reached` then tells. Without a fault each place is noted there. While the file `log-disk`
holds "hang" or "fail", the disk of the transaction log does that, once it is used.
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

PAUSE_S = 0.3  # seconds before each fault: long enough for readers to look at what is half done
LOOK_AGAIN_S = 0.05  # seconds; whoever measures beside a disk that hangs should not measure this
# Modules that others import by name come first, so that those see what is wrapped.
LOG_DISK = ("tuff.disk.files:write_file", "tx.wal:create_log", "tx.wal:DiskFile.append")


class InjectedError(OSError):
    """What is raised at a place; a disk could have raised it."""


class Breaker:
    """Knows what is armed, and does it. `_lock` guards the two files, as threads pass places."""

    def __init__(self, directory: Path) -> None:
        self._armed = directory / "armed"
        self._reached = directory / "reached"
        self._log_disk = directory / "log-disk"
        self._noted: set[str] = set()
        self._lock = Lock()

    def at(self, point: Point, edit: object) -> None:
        """What happens here, on a thread or in a function that does not wait."""
        fault = self._takes(point, edit)
        if fault is not None:
            time.sleep(PAUSE_S)
            _end(fault, point)

    async def waits_at(self, point: Point) -> None:
        """What happens here, in a function that may wait."""
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
        """Hang, or fail, as long as a test wants the transaction log's disk to."""
        if self._log_disk_fault():
            self._note("used log disk")
        while fault := self._log_disk_fault():
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
    """The function with what breaks before it and after it."""
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
    """The function on a disk that may hang or fail."""

    @functools.wraps(function)
    def call(*arguments: object, **named: object) -> object:
        breaker.use_log_disk()
        return function(*arguments, **named)

    return call


def replace(name: str, make: Callable[[Callable[..., Any]], Any]) -> None:
    """Put what is made of a function into its place. Raises: AttributeError: there is no such."""
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
