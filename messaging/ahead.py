"""Rows of a scan in chunks, so that what is done to each of them is done in a few loops."""

from itertools import islice
from operator import itemgetter

from messaging.runs import Row, row_count
from messaging.storage.chunks import COUNT_MAX, next_count
from messaging.storage.seam import Rows, StoreError

COUNT_FIRST = 4  # records; a reader may want no more than one, and odd rows come together

_VALUE = itemgetter(1)


class Ahead:
    """Rows that were read ahead of who takes them. What the engine can't read is told when all that
    came before it was taken."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._left: list[Row] = []
        self._count = COUNT_FIRST
        self._error: StoreError | None = None
        self.passed_count = 0  # rows that were taken, or passed over; a run counts for all of it

    def next(self) -> Row | None:
        """The next row; None after the last. Raises: StoreError."""
        chunk = self.chunk(1)
        return chunk[0] if chunk else None

    def chunk(self, count_max: int = COUNT_MAX) -> list[Row]:
        """The next rows, at least one and at most so many; none after the last.

        Raises: StoreError.
        """
        if not self._left:
            self._read(min(count_max, self._count))
        chunk, self._left = self._left[:count_max], self._left[count_max:]
        self.passed_count += _row_count(chunk)
        return chunk

    def give_back(self, rows: list[Row]) -> None:
        """These, the last that were taken, are still to come. The next chunk will be small."""
        self._left = rows + self._left
        self.passed_count -= _row_count(rows)
        self._count = COUNT_FIRST

    def pass_over_rest(self) -> None:
        """Take all that is left, and do nothing with it. Raises: StoreError."""
        while self.chunk():
            pass

    def _read(self, count: int) -> None:
        if self._error is not None:
            raise self._error
        try:
            # What came before an error is in the list then.
            self._left.extend(islice(self._rows, count))
        except StoreError as error:
            self._error = error
            if not self._left:
                raise
        self._count = next_count(self._left, self._count)


def _row_count(records: list[Row]) -> int:
    return sum(map(row_count, map(_VALUE, records)))
