"""The polls that read in a transaction in progress (`tx`, protocol §3.4).

Nobody else may have to be told of its end: it need not have written to their topic, nor to any.
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager


class Insiders:
    """Those polls by the pointer that they name. Lives on the event loop."""

    def __init__(self) -> None:
        self._waiters: dict[int, dict[asyncio.Event, None]] = {}

    @property
    def pointers(self) -> Collection[int]:
        """Every pointer that one of them names."""
        return self._waiters.keys()

    @contextmanager
    def joined(self, pointer: int | None, waiter: asyncio.Event) -> Iterator[None]:
        """Meanwhile the poll with this waiter is one of them, if it names a pointer."""
        if pointer is None:
            yield
            return
        waiters = self._waiters.setdefault(pointer, {})
        waiters[waiter] = None
        try:
            yield
        finally:
            del waiters[waiter]
            if not waiters:
                del self._waiters[pointer]

    def wake(self, pointers: Iterable[int]) -> None:
        """These ended: let every poll that reads in one of them look again."""
        if not self._waiters:
            return  # as nearly always
        for pointer in pointers:
            for waiter in self._waiters.get(pointer, ()):
                waiter.set()
