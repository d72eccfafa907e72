"""From what a program says of HBase to a table that is open there."""

from collections.abc import Callable, Sequence

from tuff.hbase_cells import HBaseCells
from tuff.hbase_gateway import Addresses, Gateways
from tuff.hbase_versions import HBaseVersions
from tuff.hbase_wire import happybase
from tuff.protocol.errors import BadRequestError

TIMEOUT_S = 35.0  # seconds of one call; longer than the 25 that gateways should be given
IDLE_S = 45.0  # seconds; gateways end a connection that rested for 60


def opened(
    connection: "str | Sequence[str] | happybase.Connection",
    name: str,
    *,
    grace_s: float,
    new_id: Callable[[], bytes],
    elapsed_s: Callable[[], float],
) -> HBaseVersions:
    """See `HBaseTransactionalTable`. Raises: StorageUnavailableError, BadRequestError."""
    gateways = Gateways(
        Addresses(_addresses(connection)),
        timeout_s=TIMEOUT_S,
        idle_s=IDLE_S,
        elapsed_s=elapsed_s,
    )
    try:
        cells = HBaseCells(gateways, _full_name(connection, name))
        return HBaseVersions(cells, new_id=new_id, grace_s=grace_s, elapsed_s=elapsed_s)
    except BaseException:
        gateways.close()
        raise


def _addresses(connection: "str | Sequence[str] | happybase.Connection") -> list[tuple[str, int]]:
    if isinstance(connection, happybase.Connection):
        return [(connection.host, connection.port)]
    names = [connection] if isinstance(connection, str) else list(connection)
    found = [_address(name) for name in names]
    if not found:
        raise BadRequestError("name one Thrift gateway of HBase or more, as HOST:PORT")
    return found


def _address(name: str) -> tuple[str, int]:
    host, colon, port = name.rpartition(":")
    if not (host and colon and port.isascii() and port.isdigit() and int(port) <= 65_535):
        raise BadRequestError(f"a Thrift gateway of HBase is HOST:PORT, not {name!r}")
    return host.strip("[]"), int(port)


def _full_name(connection: "str | Sequence[str] | happybase.Connection", name: str) -> bytes:
    if isinstance(connection, happybase.Connection) and connection.table_prefix is not None:
        prefix: bytes = connection.table_prefix + connection.table_prefix_separator
        return prefix + name.encode()
    return name.encode()
