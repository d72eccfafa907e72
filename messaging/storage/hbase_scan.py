"""Rows of HBase, read piece by piece: ranges of one table, and several that are merged by key.

A scanner lives in a gateway, and belongs to the connection that opened it. Where a reader goes on
in another thread, or the gateway was lost, a new one begins behind the last row.

A gateway puts as many rows into one answer as it was asked for, whatever their size, and a payload
may have 8 MiB. So few rows are asked for at first, and as long as they are large. Where many are,
they come without a payload that is large, and those that lack it are read by their keys, few again:
no answer is larger than some 32 MiB, whatever rows come next.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from heapq import merge
from typing import Any, NamedTuple

from messaging.rows import is_reference
from messaging.storage.hbase_layout import (
    BODY,
    HEAD,
    SALTED,
    RowRange,
    Segment,
    key_of,
    value_of,
)
from messaging.storage.seam import Rows, StoreError
from tuff.hbase_gateway import Connection, Gateways
from tuff.hbase_wire import IllegalArgument, TScan

COUNT_FEW = 4  # rows in one answer, as nobody knows how large they are, or they are known to be
COUNT_MANY = 100  # rows in one answer, where none is large: with the few before it a page
COUNT_MAX = 512  # rows in one answer; more was never faster
CACHING = 128  # rows that a gateway gets at once from a region server; more was never faster
LARGE_BYTES = 16_384  # bytes of a payload; of UTF-8 characters, as a region server reads them

# A cell is compared as a whole, so that the pattern says nothing but how long it is. It begins with
# no ^: then a payload that is too short for it is not looked at at all.
_WITHOUT_LARGE = (
    f"ColumnValueFilter('d', 'p', !=, 'regexstring:.{{{LARGE_BYTES}}}') "
    "OR QualifierFilter(=, 'binary:t')"
).encode()


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
        filters: Callable[[int], bytes | None],
    ) -> None:
        """`filters`: what filters so many rows, in HBase's language of filters; None: nothing."""
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
        """The next rows, about so many, and whether they are the last. Raises: StoreError."""
        if self._filters(count) != self._filter:
            self.close()  # a scanner keeps to its filter
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
            caching=count if self._reverse else CACHING if count > COUNT_FEW else COUNT_FEW,
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
    scanner = _Scanner(gateways, prefix, rows, reverse=False, filters=lambda _: lengths)
    with closing(scanner):
        for found in _each(scanner, COUNT_MANY, whole=iter):
            cell = found.columns[BODY]
            yield Found(found.row, cell.timestamp, int.from_bytes(cell.value, "big"))


def _rows(gateways: Gateways, prefix: str, rows: RowRange, *, reverse: bool) -> Rows:
    filters, count = _unfiltered, COUNT_MANY
    whole: Callable[[Sequence[Any]], Iterator[Any]] = iter
    if rows.table in SALTED.values():  # all others have small rows, and few of up to 4 MiB
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
    """The rows, of which so many are asked for first; `whole` completes those of an answer."""
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
    """The rows of an answer, those that lack their payloads read anew when it is their turn."""
    lacking = [found.row for found in piece if _lacks_payload(found)]
    groups = {lacking[at]: lacking[at : at + COUNT_FEW] for at in range(0, len(lacking), COUNT_FEW)}
    read: dict[bytes, Any] = {}
    for found in piece:
        if found.row in groups:
            large = gateways.call(partial(_get, table, groups[found.row]))
            read = {each.row: each for each in large}
        if not _lacks_payload(found):
            yield found
        elif found.row in read:  # else it was deleted since
            yield read[found.row]


def _lacks_payload(found: Any) -> bool:
    # What is a reference and what is not stands in the head, which is there always.
    return BODY not in found.columns and not is_reference(found.columns[HEAD].value)


def _get(table: bytes, rows: Sequence[bytes], connection: Connection) -> list[Any]:
    return list(connection.client.getRows(table, rows, {}))


def _below(row: bytes) -> bytes | None:
    """A row below this one, with next to nothing in between; None where there is none."""
    if not row:
        return None
    if row[-1] == 0:
        return row[:-1] or None
    return row[:-1] + bytes((row[-1] - 1,)) + b"\xff" * 16


def _cells(row: Any) -> dict[bytes, bytes]:
    return {name: cell.value for name, cell in row.columns.items()}
