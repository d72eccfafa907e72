"""The number of open connections of each worker, in memory that all of them share.

So a limit on the connections of the server is exact to a few, without a message for each
connection. A process writes its own number only.
"""

import mmap
import os

_BYTES = 8  # of a number
_NUMBERS = 2  # of a worker: its connections, and its handshakes that are under way


def new_descriptor(workers: int) -> int:
    """Memory for the numbers of so many workers, which are 0."""
    descriptor = os.memfd_create("tuff-connections")
    os.truncate(descriptor, workers * _NUMBERS * _BYTES)
    return descriptor


class ConnectionCounts:
    """The numbers behind a descriptor."""

    def __init__(self, descriptor: int, workers: int) -> None:
        memory = mmap.mmap(descriptor, workers * _NUMBERS * _BYTES)
        self._numbers = memoryview(memory).cast("q")

    def total(self) -> int:
        """The connections and the handshakes of all workers."""
        return sum(self._numbers)

    def of(self, worker: int) -> int:
        """The connections of a worker."""
        return self._numbers[worker * _NUMBERS]

    def clear(self, worker: int) -> None:
        """The worker has ended, and its connections with it."""
        self.own(worker).note(0)
        self.own(worker).note_handshakes(0)

    def own(self, worker: int) -> "OwnCounts":
        """The numbers that a worker writes."""
        return OwnCounts(self, self._numbers, worker * _NUMBERS)


class OwnCounts:
    """What one worker writes. It is its listener's `SharedCounts` (process/listener.py)."""

    def __init__(self, counts: ConnectionCounts, numbers: "memoryview[int]", first: int) -> None:
        self._numbers = numbers
        self._first = first
        self.total = counts.total

    def note(self, count: int) -> None:
        """The worker has so many connections."""
        self._numbers[self._first] = count

    def note_handshakes(self, count: int) -> None:
        """The worker has so many handshakes under way."""
        self._numbers[self._first + 1] = count
