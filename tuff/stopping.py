"""Has something that waits end at once, from any thread or from a signal handler."""

import os
import select
import weakref

_WAIT_MS_MAX = 1 << 30  # milliseconds; what poll takes is an int of C


class StoppedError(Exception):
    """A wait was given up, as somebody asked for it."""


class Stop:
    """Set once, it ends every wait that watches it, until it is cleared.

    It is a pipe with a byte in it: what waits for a socket can wait for both at once, and writing
    a byte takes no lock. An Event's `set` takes one, and a signal handler that interrupted a wait
    on the same event would wait for itself.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        weakref.finalize(self, _close, self._read, self._write)

    @property
    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """End what waits, and what begins to wait. Repeating it is harmless."""
        if not self._is_set:
            self._is_set = True
            os.write(self._write, b"!")

    def clear(self) -> None:
        """Let waits be waits again."""
        if self._is_set:
            os.read(self._read, 1)
            self._is_set = False

    def fileno(self) -> int:
        """What can be read from as long as it is set."""
        return self._read

    def check(self) -> None:
        """Raises: StoppedError: it is set."""
        if self._is_set:
            raise StoppedError

    def wait(self, seconds: float) -> None:
        """Let so much time pass. Raises: StoppedError: it is set, or is set meanwhile."""
        wait_for(None, self, seconds)


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


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
