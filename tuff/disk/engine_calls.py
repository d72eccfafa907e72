"""Calls of a storage engine: how they fail, and closing only when none is in flight."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition


class StoreError(Exception):
    """The engine can't read or write. A write that raised may or may not be there afterwards."""


class CallsInFlight:
    """Counts the calls under way on what must not be closed below them: LevelDB ends the process.

    `_idle` guards `_count` and `_is_closing`. Any thread may call.
    """

    def __init__(self, *, closed: Callable[[], Exception]) -> None:
        """`closed` makes the error of those who come too late."""
        self._closed = closed
        self._idle = Condition()
        self._count = 0
        self._is_closing = False

    @property
    def is_closing(self) -> bool:
        """Whether somebody waits to close, or has: long calls end early for it."""
        return self._is_closing

    @contextmanager
    def using(self) -> Iterator[None]:
        """One call. Raises: the error that `closed` makes."""
        with self._idle:
            if self._is_closing:
                raise self._closed()
            self._count += 1
        try:
            yield
        finally:
            with self._idle:
                self._count -= 1
                self._idle.notify_all()

    def close(self) -> bool:
        """Let nobody in any more, and wait for those who are; whether it was the first to ask."""
        with self._idle:
            is_first, self._is_closing = not self._is_closing, True
            self._idle.wait_for(lambda: not self._count)
        return is_first
