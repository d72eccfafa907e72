"""Writes rows through the gateways, in calls of a bounded size, as durable as `hbase.wal` says.

`sync` uses Thrift1, which offers nothing stricter. `fsync` needs Thrift2, since a Thrift1 put
overrides the durability that is set for a table.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from messaging.storage.hbase.connection import FSYNC_WAL, thrift2
from messaging.storage.hbase.layout import BODY, FAMILY
from tuff.hbase_gateway import BatchMutation, Connection, Gateways, Mutation, call_parts

Cells = Mapping[bytes, bytes]
Change = tuple[bytes, Cells | None]  # a row and its cells; None deletes the row


class Writes(Protocol):
    """Puts and deletes rows; every call may be repeated."""

    def put_if_absent(self, table: bytes, row: bytes, value: bytes) -> bool:
        """Put a row that does not exist. True if it was put, or already has this value.

        Raises: StoreError.
        """

    def change(
        self, table: bytes, changes: Iterable[Change], *, timestamp_ms: int | None = None
    ) -> None:
        """Put and delete rows, with this cell timestamp, or the region server's time.

        Raises: StoreError.
        """


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
        for part in call_parts(changes, _size_bytes):
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
        for part in call_parts(changes, _size_bytes):
            puts = [_put(row, cells, timestamp_ms) for row, cells in part if cells is not None]
            deletes = [_delete(row, timestamp_ms) for row, cells in part if cells is None]
            self._gateways.call(partial(_change, table, puts, deletes))


def _size_bytes(change: Change) -> int:
    row, cells = change
    return len(row) + sum(map(len, cells.values()) if cells else ())


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
