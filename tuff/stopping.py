"""Has something that waits end at once, from any thread or from a signal handler."""

import os
import select
import weakref
from contextlib import suppress

_READ_BYTES = 4096  # bytes; more stops than anybody asks for at once
_WAIT_MS_MAX = 1 << 30  # milliseconds; what poll takes is an int of C


class StoppedError(Exception):
    """A wait was given up, as somebody asked for it."""


class Stop:
    """Set once, it ends every wait that watches it, until it is cleared.

    It is a pipe that has something in it as long as it is set: what waits for a socket can wait for
    both at once, and writing a byte takes no lock. An Event's `set` takes one, and a signal handler
    that interrupted a wait on the same event would wait for itself.

    A forked process has a stop of its own, which is not set: it inherits the signal handlers too,
    and when it is terminated that is no news for its parent.
    """

    def __init__(self) -> None:
        self._pipes: dict[int, _Pipe] = {}  # by process id; here only the own is used
        self._own()

    @property
    def is_set(self) -> bool:
        poller = select.poll()
        poller.register(self, select.POLLIN)
        return bool(poller.poll(0))

    def set(self) -> None:
        """End what waits, and what begins to wait. Repeating it is harmless."""
        with suppress(BlockingIOError):  # full, so it is set
            os.write(self._own().write, b"!")

    def clear(self) -> None:
        """Let waits be waits again."""
        with suppress(BlockingIOError):  # empty, so it is not set
            while True:
                os.read(self._own().read, _READ_BYTES)

    def fileno(self) -> int:
        """What can be read from as long as it is set."""
        return self._own().read

    def check(self) -> None:
        """Raises: StoppedError: it is set."""
        if self.is_set:
            raise StoppedError

    def wait(self, seconds: float) -> None:
        """Let so much time pass. Raises: StoppedError: it is set, or is set meanwhile."""
        wait_for(None, self, seconds)

    def _own(self) -> "_Pipe":
        process = os.getpid()
        found = self._pipes.get(process)
        # In one step, as a signal handler may come in between and want it too.
        return self._pipes.setdefault(process, _Pipe()) if found is None else found


def wait_for(descriptor: int | None, stop: Stop, seconds: float) -> bool:
    """Whether there is something to read from a descriptor, after so many seconds at most.

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
    """The two ends of a pipe, neither of which waits; closed when nobody has them any more."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()
        os.set_blocking(self.read, False)
        os.set_blocking(self.write, False)
        weakref.finalize(self, _close, self.read, self.write)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
