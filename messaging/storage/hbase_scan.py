"""Rows of HBase, read piece by piece: ranges of one table, and several that are merged by key.

A scanner lives in a gateway, and belongs to the connection that opened it. Where a reader goes on
in another thread, or the gateway was lost, a new one begins behind the last row.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from heapq import merge
from typing import Any, NamedTuple

from messaging.storage.hbase_layout import BODY, RowRange, Segment, key_of, value_of
from messaging.storage.seam import Rows, StoreError
from tuff.hbase_gateway import Connection, Gateways
from tuff.hbase_wire import IllegalArgument, TScan

COUNT_FIRST = 104  # rows asked for first, as nobody knows how large they are: a page of a hundred
COUNT_LAST = 4  # rows asked for first from the end, of which mostly one is wanted
COUNT_MAX = 2_048  # rows in one answer
GROWTH = 10  # times as many rows in the next answer, as calls are dear beside rows
PIECE_BYTES = 4 << 20  # bytes of values in one answer, if the next rows are as large as the last
CACHING = 128  # rows that a gateway gets at once from a region server; more was never faster


class Found(NamedTuple):
    """A row whose value is one cell, which was not read."""

    row: bytes
    timestamp_ms: int
    size_bytes: int


class _Scanner:
    """The rows of one range, in order, or backwards. Used by one thread at a time."""

    def __init__(
        self,
        gateways: Gateways,
        prefix: str,
        rows: RowRange,
        *,
        reverse: bool,
        filtered: bytes | None = None,
    ) -> None:
        """`filtered`: in HBase's language of filters."""
        self._gateways = gateways
        self._filter = filtered
        self._table = (prefix + rows.table).encode()
        self._rows = rows
        self._reverse = reverse
        self._last: bytes | None = None
        self._connection: Connection = None
        self._id = 0

    def next(self, count: int) -> tuple[list[Any], bool]:
        """The next rows, about so many, and whether they are the last. Raises: StoreError."""
        found = self._gateways.call(lambda connection: self._fetch(connection, count))
        is_end = len(found) < count
        if not found:
            return found, is_end
        before, self._last = self._last, found[-1].row
        if self._reverse:
            begin = self._rows.stop if before is None else before
            is_end = is_end or self._last < self._rows.start
            found = [each for each in found if self._rows.start <= each.row != begin]
        return found, is_end

    def close(self) -> None:
        """Let the gateway forget it, if that can be said now; its time runs out if not."""
        if self._gateways.is_mine(self._connection):
            with suppress(StoreError):
                self._gateways.call_once(self._end)
        self._connection = None

    def _fetch(self, connection: Connection, count: int) -> list[Any]:
        # Only a call that succeeded tells how far a scanner came: after any other, a new one begins
        # behind the last row that was seen.
        known, self._connection = self._connection, None
        if connection is not known:
            self._open(connection, count)
        try:
            found = connection.client.scannerGetList(self._id, count)
        except IllegalArgument:
            # The gateway gave it up, or was started anew.
            self._open(connection, count)
            found = connection.client.scannerGetList(self._id, count)
        self._connection = connection
        return list(found)

    def _open(self, connection: Connection, count: int) -> None:
        start, stop = self._bounds()
        scan = TScan(
            startRow=start,
            stopRow=stop,
            caching=count if self._reverse else CACHING,
            reversed=self._reverse,
            filterString=self._filter,
        )
        self._id = connection.client.scannerOpenWithScan(self._table, scan, {})

    def _bounds(self) -> tuple[bytes | None, bytes | None]:
        """Where a scanner begins, included, and where it stops, excluded; None: at an end."""
        start, stop = self._rows.start, self._rows.stop
        if not self._reverse:
            return (start if self._last is None else self._last + b"\x00"), stop or None
        # Backwards, what is included and what is not is the other way round: `next` leaves out the
        # row at which it begins, and the few below the start.
        return (stop if self._last is None else self._last) or None, _below(start)

    def _end(self, connection: Connection) -> None:
        if connection is self._connection:
            connection.client.scannerClose(self._id)


def read(gateways: Gateways, prefix: str, segment: Segment, *, reverse: bool) -> Rows:
    """The rows of a segment, in the order of their keys, or backwards. Raises: StoreError."""
    sources = [_rows(gateways, prefix, rows, reverse=reverse) for rows in segment]
    if len(sources) == 1:
        yield from sources[0]
        return
    try:
        yield from merge(*sources, key=lambda row: row[0], reverse=reverse)
    finally:
        for source in sources:
            source.close()


def keys_with_sizes(gateways: Gateways, prefix: str, rows: RowRange) -> Iterator[Found]:
    """The rows of a range whose values are one cell each, without these. Raises: StoreError."""
    lengths = b"KeyOnlyFilter(true)"  # in place of each value
    scanner = _Scanner(gateways, prefix, rows, reverse=False, filtered=lengths)
    with closing(scanner):
        for piece in _pieces(scanner, COUNT_FIRST):
            for found in piece:
                cell = found.columns[BODY]
                yield Found(found.row, cell.timestamp, int.from_bytes(cell.value, "big"))


def _rows(gateways: Gateways, prefix: str, rows: RowRange, *, reverse: bool) -> Rows:
    scanner = _Scanner(gateways, prefix, rows, reverse=reverse)
    with closing(scanner):
        for piece in _pieces(scanner, COUNT_LAST if reverse else COUNT_FIRST):
            for found in piece:
                yield key_of(rows.table, found.row), value_of(_cells(found))


def _pieces(scanner: _Scanner, count: int) -> Iterator[Sequence[Any]]:
    while True:
        piece, is_end = scanner.next(count)
        yield piece
        if is_end:
            return
        size_bytes = sum(len(cell.value) for row in piece for cell in row.columns.values())
        fitting = PIECE_BYTES * len(piece) // max(1, size_bytes)
        count = max(2, min(count * GROWTH, COUNT_MAX, fitting))


def _below(row: bytes) -> bytes | None:
    """A row below this one, with next to nothing in between; None where there is none."""
    if not row:
        return None
    if row[-1] == 0:
        return row[:-1] or None
    return row[:-1] + bytes((row[-1] - 1,)) + b"\xff" * 16


def _cells(row: Any) -> dict[bytes, bytes]:
    return {name: cell.value for name, cell in row.columns.items()}
