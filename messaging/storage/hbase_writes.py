"""Changes of rows, as gateways take them: in calls of a bounded size, with the promise that
`hbase.wal` names.

`sync` goes through Thrift1, which knows no stricter one. `fsync` needs Thrift2: what a put through
Thrift1 says of the log wins over whatever a table says.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from messaging.storage.hbase_layout import BODY, FAMILY
from messaging.storage.hbase_thrift2 import FSYNC_WAL, thrift2
from tuff.hbase_gateway import Connection, Gateways
from tuff.hbase_wire import BatchMutation, Mutation

PUT_ROWS_MAX = 1_000  # rows in one call; a gateway answers it within tens of milliseconds
PUT_BYTES_MAX = 2 << 20  # bytes in one call

Cells = Mapping[bytes, bytes]
Change = tuple[bytes, Cells | None]  # a row and its cells; None deletes the row


class Writes(Protocol):
    """Puts and deletes rows. Doing any of it again does no harm."""

    def put_if_absent(self, table: bytes, row: bytes, value: bytes) -> bool:
        """Whether the row is ours: it was not there, or has this very value. Raises: StoreError."""

    def change(
        self, table: bytes, changes: Iterable[Change], *, timestamp_ms: int | None = None
    ) -> None:
        """Put and delete; cells get this time, or the region server's. Raises: StoreError."""


class LoggedWrites:
    """Through Thrift1: `SYNC_WAL`."""

    def __init__(self, gateways: Gateways) -> None:
        self._gateways = gateways

    def put_if_absent(self, table: bytes, row: bytes, value: bytes) -> bool:
        mutation = Mutation(isDelete=False, column=BODY, value=value, writeToWAL=True)

        def put(connection: Connection) -> bool:
            if connection.client.checkAndPut(table, row, BODY, None, mutation, {}):
                return True
            found = connection.client.getRow(table, row, {})
            return bool(found) and found[0].columns[BODY].value == value

        return self._gateways.call(put)

    def change(
        self, table: bytes, changes: Iterable[Change], *, timestamp_ms: int | None = None
    ) -> None:
        for part in parts(changes):
            mutations = [BatchMutation(row, _mutations(cells)) for row, cells in part]
            self._gateways.call(partial(_mutate, table, mutations, timestamp_ms))


class ForcedWrites:
    """Through Thrift2: `FSYNC_WAL`."""

    def __init__(self, gateways: Gateways) -> None:
        """`gateways`: of Thrift2."""
        self._gateways = gateways

    def put_if_absent(self, table: bytes, row: bytes, value: bytes) -> bool:
        family, _, column = BODY.partition(b":")
        put = _put(row, {BODY: value}, None)
        get = thrift2.Get(row=row)

        def put_absent(connection: Connection) -> bool:
            if connection.client.checkAndPut(table, row, family, column, None, put):
                return True
            found = connection.client.get(table, get).columnValues
            return any(cell.qualifier == column and cell.value == value for cell in found)

        return self._gateways.call(put_absent)

    def change(
        self, table: bytes, changes: Iterable[Change], *, timestamp_ms: int | None = None
    ) -> None:
        for part in parts(changes):
            puts = [_put(row, cells, timestamp_ms) for row, cells in part if cells is not None]
            deletes = [_delete(row, timestamp_ms) for row, cells in part if cells is None]
            self._gateways.call(partial(_change, table, puts, deletes))


def parts(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """What goes out in one call each."""
    part: list[Change] = []
    size_bytes = 0
    for row, cells in changes:
        part.append((row, cells))
        size_bytes += len(row) + sum(map(len, cells.values()) if cells else ())
        if len(part) >= PUT_ROWS_MAX or size_bytes >= PUT_BYTES_MAX:
            yield part
            part, size_bytes = [], 0
    if part:
        yield part


def _mutations(cells: Cells | None) -> list[Any]:
    if cells is None:
        return [Mutation(isDelete=True, column=FAMILY, writeToWAL=True)]
    return [
        Mutation(isDelete=False, column=name, value=value, writeToWAL=True)
        for name, value in cells.items()
    ]


def _mutate(
    table: bytes, mutations: Sequence[Any], timestamp_ms: int | None, connection: Connection
) -> None:
    if timestamp_ms is None:
        connection.client.mutateRows(table, mutations, {})
    else:
        connection.client.mutateRowsTs(table, mutations, timestamp_ms, {})


def _change(
    table: bytes, puts: Sequence[Any], deletes: Sequence[Any], connection: Connection
) -> None:
    if puts:
        connection.client.putMultiple(table, puts)
    if deletes:
        connection.client.deleteMultiple(table, deletes)


def _put(row: bytes, cells: Cells, timestamp_ms: int | None) -> Any:
    values = []
    for name, value in cells.items():
        family, _, column = name.partition(b":")
        values.append(thrift2.ColumnValue(family=family, qualifier=column, value=value))
    return thrift2.Put(row=row, columnValues=values, timestamp=timestamp_ms, durability=FSYNC_WAL)


def _delete(row: bytes, timestamp_ms: int | None) -> Any:
    return thrift2.Delete(row=row, timestamp=timestamp_ms, durability=FSYNC_WAL)
