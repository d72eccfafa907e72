"""The number of open connections of each worker, in memory that all of them share.

So a limit on the connections of the server is exact to a few, without a message for each
connection. A process writes its own number only.
"""

import mmap
import os

_BYTES = 8  # of a number


def new_descriptor(count: int) -> int:
    """Memory for so many numbers, which are 0."""
    descriptor = os.memfd_create("tuff-connections")
    os.truncate(descriptor, count * _BYTES)
    return descriptor


class ConnectionCounts:
    """The numbers behind a descriptor."""

    def __init__(self, descriptor: int, count: int) -> None:
        self._numbers = memoryview(mmap.mmap(descriptor, count * _BYTES)).cast("q")

    def total(self) -> int:
        """The connections of all workers."""
        return sum(self._numbers)

    def of(self, worker: int) -> int:
        return self._numbers[worker]

    def note(self, worker: int, count: int) -> None:
        """Replace the number of a worker."""
        self._numbers[worker] = count
