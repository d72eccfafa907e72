"""Decode every row of a message store in HBase, region by region (design §5).

It reads while a server runs, and changes nothing. A row appears some milliseconds after the commit
in the server's journal; if the server is killed in between, the next start writes the row.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing

from admin.inspect_tables import Line, decoded
from messaging.engines.engine_interface import StoreError
from messaging.engines.hbase.connections_and_writes import gateways_of, regions_of
from messaging.engines.hbase.layout import MESSAGE, METADATA, PAYLOAD, RowRange
from messaging.engines.hbase.scan import read
from messaging.engines.hbase.settings import HBaseSettings

TABLES = (MESSAGE, PAYLOAD, METADATA)


def location(value: Mapping[str, object]) -> tuple[HBaseSettings, RowRange]:
    """The deployment and the rows of `{"gateways": [HOST:PORT], "prefix": …}`, and for rows
    `"table"`, and `"start"` and `"stop"` in hex. Raises: ValueError: one sentence."""
    gateways, prefix = value.get("gateways"), value.get("prefix")
    if not (isinstance(gateways, list) and isinstance(prefix, str)):
        raise ValueError(  # noqa: TRY004 - it is input from the command line
            "a location in HBase has `gateways`, which is a list, and `prefix`"
        )
    table = str(value.get("table", MESSAGE))
    if table not in TABLES:
        raise ValueError(f"table is one of {', '.join(TABLES)}, not {table!r}")
    start, stop = (bytes.fromhex(str(value.get(name, ""))) for name in ("start", "stop"))
    settings = HBaseSettings(gateways=tuple(map(str, gateways)), prefix=prefix)
    return settings, RowRange(table, start, stop)


def regions(settings: HBaseSettings, *, elapsed_s: Callable[[], float]) -> Iterator[Line]:
    """The regions of all tables: `table`, `start` and `stop`. Raises: StoreError."""
    with closing(gateways_of(settings, elapsed_s=elapsed_s)) as gateways:
        for table in TABLES:
            name = (settings.prefix + table).encode()
            found = regions_of(gateways, name)
            if not found:
                raise StoreError(f"HBase has no table {name.decode()}; is the prefix right?")
            for region in found:
                start, stop = region.startKey.hex(), region.endKey.hex()
                yield {"kind": "region", "table": table, "start": start, "stop": stop}


def region_lines(
    settings: HBaseSettings, rows: RowRange, *, elapsed_s: Callable[[], float]
) -> Iterator[Line]:
    """Every row of a range of one table. Raises: StoreError."""
    with (
        closing(gateways_of(settings, elapsed_s=elapsed_s)) as gateways,
        closing(read(gateways, settings.prefix, [rows], reverse=False)) as found,
    ):
        for key, value in found:
            yield decoded(key, value)
