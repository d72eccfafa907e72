"""The cells of an `HBaseTransactionalTable`: reads and writes by row and timestamp.

All calls go through Thrift1, as with happybase. Its scans and multi-row reads return one version
per row: the newest one below a given timestamp.

A gateway holds a whole answer in memory, several times, and Thrift1 bounds an answer by rows only.
So no call asks for more rows than are safe if all values have the maximum size: eight. A call for
more rows uses a filter that leaves out large values, which are then read a few at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

from tuff.errors import WrongStateError
from tuff.protocol.errors import (
    BadRequestError,
    StorageOutcomeUnknownError,
    StorageUnavailableError,
)
from tuff.protocol.pointer_list import POINTER_MAX
from tuff.tables.hbase_row_format import (
    FAMILY,
    UNDO_COLUMN,
    UNDO_FAMILY,
    UNDO_ROW_BYTES_MAX,
    VALUE_BYTES_MAX,
    VERSION_COLUMN,
    Cell,
)
from tuff.tables.row_format import STORED_BYTES_MIN
from tuff_storage.disk.locks import StoreError
from tuff_storage.hbase_gateway import (
    Addresses,
    BatchMutation,
    ClosedError,
    ColumnDescriptor,
    Gateways,
    Mutation,
    TScan,
    call_parts,
    happybase,
)

T = TypeVar("T")
Client = Any  # of a happybase connection

TIMEOUT_S = 35.0  # seconds of one call; longer than the 25 s of the gateways
IDLE_S = 45.0  # seconds; gateways close a connection that was idle for 60 s
VERSIONS_MAX = (1 << 31) - 1  # HBase keeps all versions
FOREVER_S = (1 << 31) - 1
ANSWER_BYTES_MAX = 64 << 20  # bytes of values in any answer of a gateway
VALUES_PER_ANSWER = ANSWER_BYTES_MAX // VALUE_BYTES_MAX  # of versions of any size
UNDO_ROWS_PER_ANSWER = ANSWER_BYTES_MAX // UNDO_ROW_BYTES_MAX
FILTERED_PER_ANSWER = 64  # rows; if all are large, HBase reads 512 MiB to leave them out
SMALL_BYTES = 1 << 10  # bytes of an average row below which the filter costs less than more calls
PAGE_ROWS = 64  # rows of a page in answers of a few
FILTERED_PAGE_ROWS = 1_024
PAGE_BYTES = 4 << 20  # bytes of values after which a page asks for nothing more

Page = Sequence[tuple[bytes, Cell | None]]  # never empty; None: the row has no such version

_Cells = list[tuple[bytes, Cell]]

# The filter decodes a value as UTF-8 and tests whether it has so many characters. Java rejects
# shorter values at once, and \G keeps it from trying again at each later position.
_BYTES_PER_CHARACTER = 4
_CHARACTERS = ANSWER_BYTES_MAX // FILTERED_PER_ANSWER // _BYTES_PER_CHARACTER
_LARGE = b"'regexstring:\\G.{%d}'" % _CHARACTERS
# Of a large value, the filter returns the length instead, which is shorter than any stored value.
_FILTER = b"ValueFilter(!=, %b) OR (ValueFilter(=, %b) AND KeyOnlyFilter(true))" % (_LARGE, _LARGE)


@dataclass(frozen=True, slots=True)
class _Range:
    """What a scan reads: one column of `start <= row < stop`, below a timestamp."""

    column: bytes
    start: bytes
    stop: bytes
    before: int
    per_answer: int  # rows, of any size


class HBaseCells:
    """One table. Any thread may call."""

    def __init__(
        self,
        connection: str | Sequence[str] | happybase.Connection,
        name: str,
        *,
        elapsed_s: Callable[[], float],
    ) -> None:
        """Without a connection yet. Raises: BadRequestError."""
        self._gateways = Gateways(
            Addresses(_addresses(connection)),
            timeout_s=TIMEOUT_S,
            idle_s=IDLE_S,
            elapsed_s=elapsed_s,
        )
        self.name = _full_name(connection, name)

    def open(self) -> None:
        """Create the table if there is none, and refuse one that would lose versions.

        Raises: StorageUnavailableError, BadRequestError.
        """
        if not self._exists():
            self._create()
        families = self._call(lambda client: client.getColumnDescriptors(self.name))
        if not self._call(lambda client: client.isTableEnabled(self.name)):
            raise StorageUnavailableError(
                f"the HBase table {_text(self.name)} is disabled; enable it"
            )
        for name, versions in ((FAMILY, VERSIONS_MAX), (UNDO_FAMILY, 1)):
            why = _why_unfit(families.get(name + b":"), versions)
            if why is not None:
                raise BadRequestError(
                    f"the HBase table {_text(self.name)} can't hold transactions' rows: the "
                    f"family {_text(name)} {why}"
                )

    def close(self) -> None:
        """Wait for the calls in flight and close all connections. Repeating it is harmless."""
        self._gateways.close()

    @staticmethod
    def parts(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
        """The rows, cut into one part for each `put`."""
        return call_parts(rows, lambda row: len(row[0]) + len(row[1]))

    def require_open(self) -> None:
        """Raises: WrongStateError: `close` was called."""
        with _as_table_errors(self.name):
            self._gateways.require_open()

    def newest(self, rows: Sequence[bytes], *, before: int) -> Iterator[Page]:
        """Page by page, for each of these rows in key order, the newest version below a timestamp;
        None: the row has none."""
        if len(rows) > PAGE_ROWS:
            yield from self._newest_between(rows, before)
            return
        for at in range(0, len(rows), VALUES_PER_ANSWER):
            part = rows[at : at + VALUES_PER_ANSWER]
            found = self._newest_of(VERSION_COLUMN, part, before)
            yield [(row, found.get(row)) for row in part]

    def versions(self, row: bytes, *, before: int) -> list[Cell]:
        """A few of the newest versions of a row below a timestamp, newest first."""
        found = self._call(
            lambda client: client.getVerTs(
                self.name, row, VERSION_COLUMN, before, VALUES_PER_ANSWER, {}
            )
        )
        return [Cell(cell.timestamp, cell.value) for cell in found]

    def scan(self, start: bytes, stop: bytes, *, before: int) -> Iterator[Page]:
        """Page by page, the newest version below a timestamp of `start <= row < stop`."""
        return self._pages(_Range(VERSION_COLUMN, start, stop, before, VALUES_PER_ANSWER))

    def undo_rows(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The undo rows with `start <= row < stop`, and their values."""
        for page in self._pages(
            _Range(UNDO_COLUMN, start, stop, POINTER_MAX, UNDO_ROWS_PER_ANSWER)
        ):
            for row, cell in page:
                yield row, cell.data

    def put(self, part: Sequence[tuple[bytes, bytes]], *, pointer: int) -> None:
        """Put one of the `parts` of rows under a timestamp, without retries. After a failure it is
        unknown which rows were put.

        Raises: StorageOutcomeUnknownError.
        """
        self._call_once(self._mutation(_puts(part), pointer))

    def put_again(self, versions: Sequence[tuple[bytes, bytes]], *, pointer: int) -> None:
        """Put rows that may safely be put twice, or late. Failed calls are retried."""
        for part in self.parts(versions):
            self._call(self._mutation(_puts(part), pointer))

    def delete_through(self, row: bytes, pointer: int) -> None:
        """Remove every version of a row up to a timestamp, included."""
        self._call(self._mutation([_delete(row, VERSION_COLUMN)], pointer))

    def put_undo_rows(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Put undo rows."""
        for part in self.parts(rows):
            self._call(self._mutation([_put(row, UNDO_COLUMN, data) for row, data in part]))

    def delete_undo_rows(self, rows: Sequence[bytes]) -> None:
        """Remove undo rows, none of which is ever put again."""
        for part in self.parts([(row, b"") for row in rows]):
            self._call(self._mutation([_delete(row, UNDO_COLUMN) for row, _ in part]))

    def metadata(self, row: bytes) -> bytes | None:
        """The value of a metadata row; None: it does not exist."""
        found = self._call(
            lambda client: client.getRowWithColumns(self.name, row, [UNDO_COLUMN], {})
        )
        return next((cell.data for _, cell in _cells(found, UNDO_COLUMN)), None)

    def swap_metadata(self, row: bytes, *, old: bytes | None, new: bytes) -> bytes:
        """Replace a metadata row if its value is `old`; None: if it does not exist. Returns its
        value after that, which may be from another process."""
        mutation = Mutation(isDelete=False, column=UNDO_COLUMN, value=new)
        self._call(
            lambda client: client.checkAndPut(self.name, row, UNDO_COLUMN, old, mutation, {})
        )
        found = self.metadata(row)
        assert found is not None, "a metadata row is never removed"
        return found

    def _exists(self) -> bool:
        return self.name in self._call(lambda client: client.getTableNames())

    def _create(self) -> None:
        families = [
            ColumnDescriptor(
                name=name + b":",
                maxVersions=versions,
                bloomFilterType="ROW",
                blockCacheEnabled=True,
                timeToLive=FOREVER_S,
            )
            for name, versions in ((FAMILY, VERSIONS_MAX), (UNDO_FAMILY, 1))
        ]
        try:
            self._call_once(lambda client: client.createTable(self.name, families))
        except StorageUnavailableError:
            # Another process may have created it at the same moment.
            if not self._exists():
                raise

    def _newest_of(self, column: bytes, rows: Sequence[bytes], before: int) -> dict[bytes, Cell]:
        found = self._call(
            lambda client: client.getRowsWithColumnsTs(self.name, list(rows), [column], before, {})
        )
        return dict(_cells(found, column))

    def _newest_between(self, rows: Sequence[bytes], before: int) -> Iterator[Page]:
        # This reads the rows in between, too. Usually these are few: one transaction wrote all
        # requested rows.
        at = 0
        for page in self.scan(rows[0], rows[-1] + b"\x00", before=before):
            found = dict(page)
            stop = bisect_right(rows, page[-1][0])
            if stop > at:
                yield [(row, found.get(row)) for row in rows[at:stop]]
            at = stop
            if at == len(rows):
                return
        yield [(row, None) for row in rows[at:]]

    def _pages(self, rows: _Range) -> Iterator[_Cells]:
        count, is_filtered = rows.per_answer, False
        while True:
            page, is_last = self._page(rows, count, is_filtered=is_filtered)
            for part in self._whole(page, rows):
                yield part
                last = part[-rows.per_answer :]
                is_filtered = _size_bytes(last) <= SMALL_BYTES * len(last)
            if is_last:
                return
            rows = replace(rows, start=page[-1][0] + b"\x00")
            count = FILTERED_PAGE_ROWS if is_filtered else PAGE_ROWS

    def _page(self, rows: _Range, count: int, *, is_filtered: bool) -> tuple[_Cells, bool]:
        """The next rows, and whether they are the last."""
        scan = TScan(
            startRow=rows.start,
            stopRow=rows.stop,
            timestamp=rows.before,
            columns=[rows.column],
            caching=min(count, FILTERED_PER_ANSWER),
            filterString=_FILTER if is_filtered else None,
        )
        per_answer = FILTERED_PER_ANSWER if is_filtered else rows.per_answer

        # The scanner is opened and closed within one call. It belongs to the connection, and so to
        # the thread, that opened it, but a scan may continue in another thread.
        def fetch(client: Client) -> tuple[_Cells, bool]:
            page: _Cells = []
            scanner = client.scannerOpenWithScan(self.name, scan, {})
            try:
                while len(page) < count and _size_bytes(page) < PAGE_BYTES:
                    answer = client.scannerGetList(scanner, per_answer)
                    page += _cells(answer, rows.column)
                    if len(answer) < per_answer:
                        return page, True
            finally:
                client.scannerClose(scanner)
            return page, False

        return self._call(fetch)

    def _whole(self, page: _Cells, rows: _Range) -> Iterator[_Cells]:
        """A page, part by part, with the large values added. Rows that were deleted meanwhile are
        left out."""
        left_out = [at for at, each in enumerate(page) if _is_left_out(each)]
        starts = [0, *left_out[rows.per_answer :: rows.per_answer]]
        for start, stop in pairwise([*starts, len(page)]):
            yield from self._completed(page[start:stop], rows)

    def _completed(self, part: _Cells, rows: _Range) -> Iterator[_Cells]:
        wanted = {each[0] for each in part if _is_left_out(each)}
        found = self._newest_of(rows.column, sorted(wanted), rows.before) if wanted else {}
        gone = wanted.difference(found)
        whole = [(row, found.get(row, cell)) for row, cell in part if row not in gone]
        if whole:
            yield whole

    def _mutation(self, batch: list[Any], pointer: int | None = None) -> Callable[[Client], None]:
        if pointer is None:
            return lambda client: client.mutateRows(self.name, batch, {})
        return lambda client: client.mutateRowsTs(self.name, batch, pointer, {})

    def _call(self, work: Callable[[Client], T]) -> T:
        with _as_table_errors(self.name):
            return self._gateways.call(lambda connection: work(connection.client))

    def _call_once(self, work: Callable[[Client], T]) -> T:
        with _as_table_errors(self.name):
            return self._gateways.call_once(lambda connection: work(connection.client))


def _addresses(connection: str | Sequence[str] | happybase.Connection) -> list[tuple[str, int]]:
    if isinstance(connection, happybase.Connection):
        return [(connection.host, connection.port)]
    names = [connection] if isinstance(connection, str) else list(connection)
    found = [_address(name) for name in names]
    if not found:
        raise BadRequestError("name at least one Thrift gateway of HBase, as HOST:PORT")
    return found


def _address(name: str) -> tuple[str, int]:
    host, colon, port = name.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and int(port) <= 65_535):
        raise BadRequestError(f"a Thrift gateway of HBase is HOST:PORT, not {name!r}")
    return host.strip("[]"), int(port)


def _full_name(connection: str | Sequence[str] | happybase.Connection, name: str) -> bytes:
    if isinstance(connection, happybase.Connection) and connection.table_prefix is not None:
        prefix: bytes = connection.table_prefix + connection.table_prefix_separator
        return prefix + name.encode()
    return name.encode()


def _why_unfit(family: Any, versions: int) -> str | None:
    """What is wrong with a column family, in words; None: nothing."""
    if family is None:
        return "is missing; let Tuff make the table"
    if family.maxVersions < versions:
        return (
            f"keeps {family.maxVersions} versions of a row, and a reader may need any; "
            f"set VERSIONS => {versions}"
        )
    if 0 <= family.timeToLive < FOREVER_S:
        return (
            f"lets rows expire after {family.timeToLive} s; set TTL => 'FOREVER', and remove "
            "rows in transactions"
        )
    return None


def _puts(versions: Sequence[tuple[bytes, bytes]]) -> list[Any]:
    return [_put(row, VERSION_COLUMN, data) for row, data in versions]


def _put(row: bytes, column: bytes, data: bytes) -> Any:
    return BatchMutation(row, [Mutation(isDelete=False, column=column, value=data)])


def _delete(row: bytes, column: bytes) -> Any:
    return BatchMutation(row, [Mutation(isDelete=True, column=column)])


def _cells(found: Any, column: bytes) -> Iterator[tuple[bytes, Cell]]:
    for each in found:
        cell = each.columns.get(column)
        if cell is not None:
            yield each.row, Cell(cell.timestamp, cell.value)


def _is_left_out(found: tuple[bytes, Cell]) -> bool:
    return len(found[1].data) < STORED_BYTES_MIN


def _size_bytes(cells: _Cells) -> int:
    return sum(len(cell.data) for _, cell in cells)


@contextmanager
def _as_table_errors(name: bytes) -> Iterator[None]:
    try:
        yield
    except ClosedError:
        raise WrongStateError(f"the HBase table {_text(name)} is closed") from None
    except StoreError as error:
        # Also of a put that a gateway may carry out later.
        raise StorageOutcomeUnknownError(f"the HBase table {_text(name)}: {error}") from error


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
