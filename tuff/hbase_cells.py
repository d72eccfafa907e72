"""The table in HBase below an `HBaseTransactionalTable`: cells by row and timestamp.

Everything goes through Thrift1, as happybase does. Its scans and reads of many rows show one
version of each; which one, says a timestamp that is not reached.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from tuff.disk.failures import StoreError
from tuff.hbase_gateway import Connection, Gateways
from tuff.hbase_rows import FAMILY, OTHER_COLUMN, OTHERS, VERSION_COLUMN, Cell
from tuff.hbase_wire import BatchMutation, ColumnDescriptor, Mutation, TScan
from tuff.protocol.errors import BadRequestError, StorageUnavailableError

T = TypeVar("T")

VERSIONS_MAX = (1 << 31) - 1  # HBase's word for: keep them all
FOREVER_S = (1 << 31) - 1
PAGE_ROWS_FIRST = 64  # rows of a scan's first answer, as nobody knows how large they are
PAGE_ROWS_MAX = 1_024  # rows of any answer
PAGE_BYTES = 4 << 20  # bytes of values in an answer, if the next rows are as large as the last
VERSIONS_PER_CALL = 32  # versions of one row in an answer
PUT_ROWS_MAX = 1_000  # rows in one call; a gateway answers it within tens of milliseconds
PUT_BYTES_MAX = 2 << 20  # bytes in one call

Rows = Generator[tuple[bytes, Cell], None, None]


class HBaseCells:
    """One table. Any thread may call."""

    def __init__(self, gateways: Gateways, name: bytes) -> None:
        self._gateways = gateways
        self.name = name

    def open(self) -> None:
        """Make the table if there is none, and refuse one that would lose what it is given.

        Raises: StorageUnavailableError, BadRequestError.
        """
        with _refused(self.name):
            if self.name not in self._gateways.call(lambda on: on.client.getTableNames()):
                self._make()
            families = self._gateways.call(lambda on: on.client.getColumnDescriptors(self.name))
            if not self._gateways.call(lambda on: on.client.isTableEnabled(self.name)):
                raise StoreError("it is disabled; enable it")
        for name, versions in ((FAMILY, VERSIONS_MAX), (OTHERS, 1)):
            why = _unfit(families.get(name + b":"), versions)
            if why is not None:
                raise BadRequestError(
                    f"the HBase table {_text(self.name)} can't hold transactions' rows: the "
                    f"family {_text(name)} {why}"
                )

    def close(self) -> None:
        """End all connections, after the calls under way; repeating it is harmless."""
        self._gateways.close()

    def require_open(self) -> None:
        """Raises: StorageUnavailableError: `close` was called."""
        with _refused(self.name):
            self._gateways.require_open()

    def newest(self, rows: Sequence[bytes], *, before: int) -> dict[bytes, Cell]:
        """For each row that has one, the newest version below a timestamp."""
        found = self._call(
            lambda on: on.client.getRowsWithColumnsTs(
                self.name, list(rows), [VERSION_COLUMN], before, {}
            )
        )
        return {each.row: cell for each in found for cell in _cells(each, VERSION_COLUMN)}

    def versions(self, row: bytes, *, before: int) -> list[Cell]:
        """The newest versions of a row below a timestamp, newest first, and not many of them."""
        found = self._call(
            lambda on: on.client.getVerTs(
                self.name, row, VERSION_COLUMN, before, VERSIONS_PER_CALL, {}
            )
        )
        return [Cell(cell.timestamp, cell.value) for cell in found]

    def scan(
        self, start: bytes, stop: bytes, *, before: int
    ) -> Generator[dict[bytes, Cell], None, None]:
        """Page by page, the newest version below a timestamp of `start <= row < stop`."""
        yield from self._pages(VERSION_COLUMN, start, stop, before)

    def others(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Undo rows or facts, `start <= row < stop`, with what they hold."""
        for page in self._pages(OTHER_COLUMN, start, stop, None):
            for row, cell in page.items():
                yield row, cell.data

    def put(self, versions: Sequence[tuple[bytes, bytes]], *, pointer: int) -> None:
        """Put rows under a timestamp, each at most once: a failure leaves it open what is there.

        Raises: StorageUnavailableError.
        """
        for part in _parts(versions):
            batch = [_put(row, VERSION_COLUMN, data) for row, data in part]
            with _refused(self.name):
                self._gateways.call_once(self._mutation(batch, pointer))

    def put_again(self, versions: Sequence[tuple[bytes, bytes]], *, pointer: int) -> None:
        """The same for what does no harm when it is put twice, or late."""
        for part in _parts(versions):
            batch = [_put(row, VERSION_COLUMN, data) for row, data in part]
            self._call(self._mutation(batch, pointer))

    def delete_through(self, row: bytes, pointer: int) -> None:
        """Remove every version of a row up to a timestamp, included."""
        self._call(self._mutation([_delete(row, VERSION_COLUMN)], pointer))

    def put_others(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Put undo rows."""
        for part in _parts(rows):
            self._call(self._mutation([_put(row, OTHER_COLUMN, data) for row, data in part]))

    def delete_others(self, rows: Sequence[bytes]) -> None:
        """Remove undo rows, for good: none is ever put again."""
        for part in _parts([(row, b"") for row in rows]):
            self._call(self._mutation([_delete(row, OTHER_COLUMN) for row, _ in part]))

    def fact(self, row: bytes) -> bytes | None:
        """What a fact holds, if it was ever put."""
        found = self._call(
            lambda on: on.client.getRowWithColumns(self.name, row, [OTHER_COLUMN], {})
        )
        return next((cell.data for each in found for cell in _cells(each, OTHER_COLUMN)), None)

    def swap_fact(self, row: bytes, *, old: bytes | None, new: bytes) -> bytes:
        """Put a fact if it is still `old`; what it is then, whoever put that."""
        mutation = Mutation(isDelete=False, column=OTHER_COLUMN, value=new)
        self._call(
            lambda on: on.client.checkAndPut(self.name, row, OTHER_COLUMN, old, mutation, {})
        )
        found = self.fact(row)
        assert found is not None, "a fact is never removed"
        return found

    def _make(self) -> None:
        families = [
            ColumnDescriptor(
                name=name + b":",
                maxVersions=versions,
                bloomFilterType="ROW",
                blockCacheEnabled=True,
                timeToLive=FOREVER_S,
            )
            for name, versions in ((FAMILY, VERSIONS_MAX), (OTHERS, 1))
        ]
        try:
            self._gateways.call_once(lambda on: on.client.createTable(self.name, families))
        except StoreError:
            # Another process may have made it at the same moment.
            if self.name not in self._gateways.call(lambda on: on.client.getTableNames()):
                raise

    def _pages(
        self, column: bytes, start: bytes, stop: bytes, before: int | None
    ) -> Generator[dict[bytes, Cell], None, None]:
        count = PAGE_ROWS_FIRST
        while True:
            page = self._page(column, start, stop, before, count)
            yield page
            if len(page) < count:
                return
            start = max(page) + b"\x00"
            size_bytes = sum(len(cell.data) for cell in page.values())
            fitting = PAGE_BYTES * len(page) // max(1, size_bytes)
            count = max(2, min(count * 4, PAGE_ROWS_MAX, fitting))

    def _page(
        self, column: bytes, start: bytes, stop: bytes, before: int | None, count: int
    ) -> dict[bytes, Cell]:
        scan = TScan(
            startRow=start, stopRow=stop, timestamp=before, columns=[column], caching=count
        )

        # All in one call here: a scanner belongs to the connection, and so to the thread, that
        # opened it, and a scan may be read on in another thread.
        def fetch(on: Connection) -> list[Any]:
            scanner = on.client.scannerOpenWithScan(self.name, scan, {})
            try:
                return list(on.client.scannerGetList(scanner, count))
            finally:
                on.client.scannerClose(scanner)

        return {each.row: cell for each in self._call(fetch) for cell in _cells(each, column)}

    def _mutation(
        self, batch: list[Any], pointer: int | None = None
    ) -> Callable[[Connection], None]:
        if pointer is None:
            return lambda on: on.client.mutateRows(self.name, batch, {})
        return lambda on: on.client.mutateRowsTs(self.name, batch, pointer, {})

    def _call(self, work: Callable[[Connection], T]) -> T:
        with _refused(self.name):
            return self._gateways.call(work)


def _unfit(family: Any, versions: int) -> str | None:
    """What is wrong with a family, in words; None if nothing."""
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


def _put(row: bytes, column: bytes, data: bytes) -> Any:
    return BatchMutation(row, [Mutation(isDelete=False, column=column, value=data)])


def _delete(row: bytes, column: bytes) -> Any:
    return BatchMutation(row, [Mutation(isDelete=True, column=column)])


def _cells(found: Any, column: bytes) -> list[Cell]:
    columns: Mapping[bytes, Any] = found.columns
    cell = columns.get(column)
    return [] if cell is None else [Cell(cell.timestamp, cell.value)]


def _parts(rows: Sequence[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    """What goes out in one call each."""
    part: list[tuple[bytes, bytes]] = []
    size_bytes = 0
    for row, data in rows:
        part.append((row, data))
        size_bytes += len(row) + len(data)
        if len(part) >= PUT_ROWS_MAX or size_bytes >= PUT_BYTES_MAX:
            yield part
            part, size_bytes = [], 0
    if part:
        yield part


@contextmanager
def _refused(name: bytes) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise StorageUnavailableError(f"the HBase table {_text(name)}: {error}") from error


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
