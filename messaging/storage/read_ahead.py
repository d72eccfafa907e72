"""Reading records ahead in chunks: few at first, then more, bounded in number and bytes."""

from collections.abc import Sequence
from itertools import islice
from operator import itemgetter

from messaging.storage.engine import Rows, StoreError
from messaging.storage.packed_rows import Row, row_count

COUNT_FIRST = 4  # records; a reader may want no more than one
GROWTH = 4  # factor from one chunk to the next
COUNT_MAX = 256  # records; a larger chunk makes a record no cheaper
BYTES_MAX = (
    128 << 10
)  # bytes of values, unless one value has more; what the reader does not take was read in vain

_VALUE = itemgetter(1)


def next_count(chunk: Sequence[tuple[bytes, bytes]], count: int) -> int:
    """How many records to read after this chunk, for which `count` were asked."""
    size_bytes = sum(map(len, map(_VALUE, chunk)))
    fitting = BYTES_MAX * len(chunk) // size_bytes if size_bytes else COUNT_MAX
    return max(1, min(GROWTH * count, COUNT_MAX, fitting))


class ReadAhead:
    """Records of a scan in chunks, so that each step of the reader runs over many of them.

    An error of the engine is raised when all records before it were taken.
    """

    def __init__(self, records: Rows) -> None:
        self._records = records
        self._left: list[Row] = []  # read, and not taken yet
        self._count = COUNT_FIRST
        self._error: StoreError | None = None
        self.passed_count = 0  # rows of the records that were taken

    def next(self) -> Row | None:
        """The next record; None after the last. Raises: StoreError."""
        chunk = self.chunk(1)
        return chunk[0] if chunk else None

    def chunk(self, count_max: int = COUNT_MAX) -> list[Row]:
        """The next records, at least one and at most `count_max`; none after the last.

        Raises: StoreError.
        """
        if not self._left:
            self._read(min(count_max, self._count))
        chunk, self._left = self._left[:count_max], self._left[count_max:]
        self.passed_count += _row_count(chunk)
        return chunk

    def give_back(self, records: list[Row]) -> None:
        """Undo the taking of these, the last that were taken. The next chunk will be small, since
        records that need a decision of their own come together."""
        self._left = records + self._left
        self.passed_count -= _row_count(records)
        self._count = COUNT_FIRST

    def pass_over_rest(self) -> None:
        """Take all records that are left, and count their rows. Raises: StoreError."""
        while self.chunk():
            pass

    def _read(self, count: int) -> None:
        if self._error is not None:
            raise self._error
        try:
            # Records before an error are in the list when it is raised.
            self._left.extend(islice(self._records, count))
        except StoreError as error:
            self._error = error
            if not self._left:
                raise
        self._count = next_count(self._left, self._count)


def _row_count(records: list[Row]) -> int:
    return sum(map(row_count, map(_VALUE, records)))
