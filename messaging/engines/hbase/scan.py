"""Scans of HBase's tables: one range, or several ranges merged by key, page by page.

A scanner lives in a gateway and belongs to the connection that opened it. If the reader continues
in another thread, or the gateway is lost, a new scanner starts behind the last row.

A gateway returns as many rows as a call asks for, whatever their size, and a payload may have 8
MiB. So a scan asks for a few rows at first, and while rows are large. When it asks for many rows, a
filter leaves out large payloads, and the rows without payload are then read by key, a few at a
time. So no answer is larger than about 32 MiB.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from heapq import merge
from typing import Any, NamedTuple

from messaging.engines.engine_interface import Rows, StoreError
from messaging.engines.hbase.layout import (
    BODY,
    HEAD,
    SALTED,
    RowRange,
    Segment,
    key_of,
    value_of,
)
from messaging.model.row_format import is_reference
from tuff_storage.hbase_gateway import Connection, Gateways, IllegalArgument, TScan

COUNT_FEW = 4  # rows in one answer while their size is unknown, or known to be large
COUNT_MANY = 100  # rows in one answer while none is large
COUNT_MAX = 512  # rows in one answer; more was never faster
CACHING = 128  # rows that a gateway fetches at once from a region server; more was never faster
LARGE_BYTES = 16_384  # bytes of a payload; the filter counts characters, as it decodes UTF-8

# The pattern only tests the length of a cell. Without a ^ at its beginning, Java skips shorter
# payloads without looking at them.
_WITHOUT_LARGE = (
    f"ColumnValueFilter('d', 'p', !=, 'regexstring:.{{{LARGE_BYTES}}}') "
    "OR QualifierFilter(=, 'binary:t')"
).encode()


class Found(NamedTuple):
    """A row with one cell, of which only the size was read."""

    row: bytes
    timestamp_ms: int
    size_bytes: int


class _Scanner:
    """Reads one range, forward or backward. Used by one thread at a time."""

    def __init__(
        self,
        gateways: Gateways,
        prefix: str,
        rows: RowRange,
        *,
        reverse: bool,
        filters: Callable[[int], bytes | None],
    ) -> None:
        """`filters`: the filter string for a request of that many rows; None: no filter."""
        self._gateways = gateways
        self._filters = filters
        self._filter: bytes | None = None
        self._table = (prefix + rows.table).encode()
        self._rows = rows
        self._reverse = reverse
        self._last: bytes | None = None
        self._connection: Connection = None
        self._id = 0

    def next(self, count: int) -> tuple[list[Any], bool]:
        """About `count` further rows, and whether they are the last. Raises: StoreError."""
        if self._filters(count) != self._filter:
            self.close()  # a scanner can't change its filter
            self._filter = self._filters(count)
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
        """Close the scanner in the gateway if its connection is usable; otherwise it times out."""
        if self._gateways.is_mine(self._connection):
            with suppress(StoreError):
                self._gateways.call_once(self._end)
        self._connection = None

    def _fetch(self, connection: Connection, count: int) -> list[Any]:
        # A scanner's position is known only after a successful call. After a failed call, a new
        # scanner starts behind the last row that was returned.
        known, self._connection = self._connection, None
        if connection is not known:
            self._open(connection, count)
        try:
            found = connection.client.scannerGetList(self._id, count)
        except IllegalArgument:
            # The scanner timed out, or the gateway restarted.
            self._open(connection, count)
            found = connection.client.scannerGetList(self._id, count)
        self._connection = connection
        return list(found)

    def _open(self, connection: Connection, count: int) -> None:
        start, stop = self._bounds()
        scan = TScan(
            startRow=start,
            stopRow=stop,
            caching=count if self._reverse else CACHING if count > COUNT_FEW else COUNT_FEW,
            reversed=self._reverse,
            filterString=self._filter,
        )
        self._id = connection.client.scannerOpenWithScan(self._table, scan, {})

    def _bounds(self) -> tuple[bytes | None, bytes | None]:
        """The scanner's inclusive start and exclusive stop; None: the end of the table."""
        start, stop = self._rows.start, self._rows.stop
        if not self._reverse:
            return (start if self._last is None else self._last + b"\x00"), stop or None
        # A backward scanner includes its first row and excludes its last one. `next` removes the
        # first row, and the few rows below the start.
        return (stop if self._last is None else self._last) or None, _below(start)

    def _end(self, connection: Connection) -> None:
        if connection is self._connection:
            connection.client.scannerClose(self._id)


def read(gateways: Gateways, prefix: str, segment: Segment, *, reverse: bool) -> Rows:
    """The rows of a segment in key order, or backward. Raises: StoreError."""
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
    """The rows of a range with one cell each, with the sizes of their values. Raises:
    StoreError."""
    lengths = b"KeyOnlyFilter(true)"  # returns the length in place of the value
    scanner = _Scanner(gateways, prefix, rows, reverse=False, filters=lambda _: lengths)
    with closing(scanner):
        for found in _each(scanner, COUNT_MANY, whole=iter):
            cell = found.columns[BODY]
            yield Found(found.row, cell.timestamp, int.from_bytes(cell.value, "big"))


def _rows(gateways: Gateways, prefix: str, rows: RowRange, *, reverse: bool) -> Rows:
    filters, count = _unfiltered, COUNT_MANY
    whole: Callable[[Sequence[Any]], Iterator[Any]] = iter
    if rows.table in SALTED.values():  # the other tables have small rows, and few of up to 4 MiB
        filters, count = _without_large, COUNT_FEW
        whole = partial(_whole, gateways, (prefix + rows.table).encode())
    scanner = _Scanner(gateways, prefix, rows, reverse=reverse, filters=filters)
    with closing(scanner):
        for found in _each(scanner, COUNT_FEW if reverse else count, whole=whole):
            yield key_of(rows.table, found.row), value_of(_cells(found))


def _unfiltered(count: int) -> bytes | None:
    del count
    return None


def _without_large(count: int) -> bytes | None:
    return _WITHOUT_LARGE if count > COUNT_FEW else None


def _each(
    scanner: _Scanner, count: int, *, whole: Callable[[Sequence[Any]], Iterator[Any]]
) -> Iterator[Any]:
    """All rows, `count` in the first answer; `whole` adds the payloads that an answer lacks."""
    is_end = False
    while not is_end:
        piece, is_end = scanner.next(count)
        size_bytes = 0
        for found in whole(piece):
            size_bytes += sum(len(cell.value) for cell in found.columns.values())
            yield found
        if size_bytes > LARGE_BYTES * len(piece):
            count = COUNT_FEW
        else:
            count = COUNT_MAX if count >= COUNT_MANY else COUNT_MANY


def _whole(gateways: Gateways, table: bytes, piece: Sequence[Any]) -> Iterator[Any]:
    """The rows of an answer. Rows without their payload are read again, a few at a time."""
    lacking = [found.row for found in piece if _lacks_payload(found)]
    groups = {lacking[at]: lacking[at : at + COUNT_FEW] for at in range(0, len(lacking), COUNT_FEW)}
    read: dict[bytes, Any] = {}
    for found in piece:
        if found.row in groups:
            large = gateways.call(partial(_get, table, groups[found.row]))
            read = {each.row: each for each in large}
        if not _lacks_payload(found):
            yield found
        elif found.row in read:  # otherwise the row was deleted in between
            yield read[found.row]


def _lacks_payload(found: Any) -> bool:
    # A reference has no payload; its head says that it is one.
    return BODY not in found.columns and not is_reference(found.columns[HEAD].value)


def _get(table: bytes, rows: Sequence[bytes], connection: Connection) -> list[Any]:
    return list(connection.client.getRows(table, rows, {}))


def _below(row: bytes) -> bytes | None:
    """A row that sorts closely before this one; None: there is none."""
    if not row:
        return None
    if row[-1] == 0:
        return row[:-1] or None
    return row[:-1] + bytes((row[-1] - 1,)) + b"\xff" * 16


def _cells(row: Any) -> dict[bytes, bytes]:
    return {name: cell.value for name, cell in row.columns.items()}
