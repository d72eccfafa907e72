"""Stops: they end waits at once, from any thread or from a signal handler."""

import os
import select
import weakref
from contextlib import suppress

_READ_BYTES = 4096  # bytes; one for each call of `set`
_WAIT_MS_MAX = 1 << 30  # milliseconds; poll accepts a C int


class StoppedError(Exception):
    """A wait ended because its `Stop` is set."""


class Stop:
    """While it is set, every wait that watches it ends at once.

    It is a pipe that contains a byte while it is set, so a wait for a socket can watch both. `set`
    takes no lock: with a `threading.Event`, a signal handler that interrupts a wait on it would
    deadlock.

    A forked process has a pipe of its own, which is not set: it inherits the signal handlers, and
    its termination must not stop its parent.
    """

    def __init__(self) -> None:
        self._pipes: dict[int, _Pipe] = {}  # by process id; a process uses only its own
        self._own()

    @property
    def is_set(self) -> bool:
        poller = select.poll()
        poller.register(self, select.POLLIN)
        return bool(poller.poll(0))

    def set(self) -> None:
        """End all current and later waits. It can be repeated."""
        with suppress(BlockingIOError):  # full, so it is set
            os.write(self._own().write, b"!")

    def clear(self) -> None:
        """Let later waits wait again."""
        with suppress(BlockingIOError):  # empty, so it is not set
            while True:
                os.read(self._own().read, _READ_BYTES)

    def fileno(self) -> int:
        """A descriptor that is readable while it is set."""
        return self._own().read

    def check(self) -> None:
        """Raises: StoppedError: it is set."""
        if self.is_set:
            raise StoppedError

    def wait(self, seconds: float) -> None:
        """Sleep. Raises: StoppedError: it is set, or is set meanwhile."""
        wait_for(None, self, seconds)

    def _own(self) -> "_Pipe":
        process = os.getpid()
        found = self._pipes.get(process)
        # In one step: a signal handler may interrupt this and create it too.
        return self._pipes.setdefault(process, _Pipe()) if found is None else found


def wait_for(descriptor: int | None, stop: Stop, seconds: float) -> bool:
    """Wait until a descriptor is readable, at most `seconds`; returns whether it is.

    Raises:
        StoppedError: `stop` is set, or is set meanwhile.
    """
    poller = select.poll()
    poller.register(stop.fileno(), select.POLLIN)
    if descriptor is not None:
        poller.register(descriptor, select.POLLIN)
    ready = poller.poll(min(seconds * 1000, _WAIT_MS_MAX))
    stop.check()
    return bool(ready)


class _Pipe:
    """The two ends of a pipe, both non-blocking; closed when this object is garbage, and not at the
    exit of the interpreter, where a daemon thread may still read it."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()
        os.set_blocking(self.read, False)
        os.set_blocking(self.write, False)
        weakref.finalize(self, _close, self.read, self.write).atexit = False


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
