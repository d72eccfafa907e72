"""Connections to the Thrift gateways of the settings, and writes through them.

Rows are written in calls of a bounded size, with the durability of `hbase.wal`. `sync` uses
Thrift1, which offers nothing stricter. `fsync` needs Thrift2, since a Thrift1 put overrides the
durability that is set for a table.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import thriftpy2
from thriftpy2.protocol import TCyBinaryProtocol
from thriftpy2.thrift import TClient
from thriftpy2.transport import TCyBufferedTransport, TSocket

from messaging.engines.hbase.layout import BODY, FAMILY
from messaging.engines.hbase.settings import HBaseSettings
from tuff_storage.hbase_gateway import (
    Addresses,
    BatchMutation,
    Connection,
    Gateways,
    Mutation,
    call_parts,
)

thrift2: Any = thriftpy2.load(str(Path(__file__).with_name("data.thrift")), "hbase_data_thrift")
FSYNC_WAL = 4  # HBase's number

# Errors by which HBase refuses a call; the connection stays usable.
THRIFT2_REFUSALS = (thrift2.RefusedError, thrift2.ArgumentError)

Cells = Mapping[bytes, bytes]
Change = tuple[bytes, Cells | None]  # a row and its cells; None deletes the row


class Thrift2Connection:
    """A connection to a Thrift2 gateway, with the interface of a happybase connection."""

    def __init__(self, host: str, port: int, *, timeout: int) -> None:
        """Not open yet. `timeout`: milliseconds of one call."""
        socket = TSocket(host, port, socket_timeout=timeout)
        self.transport = TCyBufferedTransport(socket)
        protocol = TCyBinaryProtocol(self.transport)
        self.client = TClient(thrift2.Data, protocol)

    def open(self) -> None:
        """Raises: TException, OSError."""
        self.transport.open()

    def close(self) -> None:
        self.transport.close()


def gateways_of(
    settings: HBaseSettings,
    *,
    elapsed_s: Callable[[], float],
    addresses: Addresses | None = None,
    timeout_s: float | None = None,
    **others: Any,
) -> Gateways:
    """Gateways without a connection yet.

    `elapsed_s`: a monotonic clock; `addresses`: default the Thrift1 gateways of the settings;
    `timeout_s`: of one call, default that of the settings; `others`: arguments of `Gateways`.
    """
    return Gateways(
        addresses or Addresses(settings.addresses()),
        timeout_s=settings.timeout_s if timeout_s is None else timeout_s,
        idle_s=settings.idle_s,
        elapsed_s=elapsed_s,
        **others,
    )


# Seconds of one holder check. If a gateway hangs, there is time to ask another one before the
# lease of the previous check ends.
CHECK_S_MAX = 2.0


class StoreConnections:
    """The connections of one open store: `gateways` for reads, `checks` for holder checks, and
    those of `writes`, which go to Thrift2 with `fsync`."""

    def __init__(
        self,
        settings: HBaseSettings,
        addresses: Addresses,
        admin_address: Addresses,
        *,
        elapsed_s: Callable[[], float],
    ) -> None:
        made = partial(gateways_of, settings, elapsed_s=elapsed_s, addresses=addresses)
        self.gateways = made()
        self.checks = made(timeout_s=min(CHECK_S_MAX, settings.timeout_s))
        self._all = [self.gateways, self.checks]
        self.writes: Writes = SyncWrites(self.gateways)
        if settings.wal == "fsync":
            thrift2_gateways = made(
                addresses=admin_address, connect=Thrift2Connection, refusals=THRIFT2_REFUSALS
            )
            self._all.append(thrift2_gateways)
            self.writes = FsyncWrites(thrift2_gateways)

    def interrupt(self) -> None:
        """End the calls in flight, and refuse all later ones. Any thread may call."""
        for each in self._all:
            each.interrupt()

    def close(self) -> None:
        """Interrupt all calls, and wait until all calls have ended."""
        self.interrupt()
        for each in self._all:
            each.close()


def regions_of(gateways: Gateways, table: bytes) -> list[Any]:
    """The regions of a table, as Thrift1 describes them. Raises: StoreError."""
    return list(gateways.call(lambda connection: connection.client.getTableRegions(table)))


class Writes(Protocol):
    """Puts and deletes of rows. Every call may be repeated."""

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


class SyncWrites:
    """Writes with `SYNC_WAL`, through Thrift1."""

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


class FsyncWrites:
    """Writes with `FSYNC_WAL`, through Thrift2."""

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
