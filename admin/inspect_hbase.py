"""Decode every row of a message store in HBase, region by region (design §5).

It reads while a server runs, and changes nothing. A row appears some milliseconds after the commit
in the server's journal; if the server is killed in between, the next start writes the row.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

from admin.inspect_tables import Line, decoded
from messaging.engines.engine_interface import StoreError
from messaging.engines.hbase.connections_and_writes import gateways_of, regions_of
from messaging.engines.hbase.layout import MESSAGE, METADATA, PAYLOAD, RowRange
from messaging.engines.hbase.scan import read
from messaging.engines.hbase.settings import HBaseSettings

TABLES = (MESSAGE, PAYLOAD, METADATA)


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """A range of rows in the tables of one deployment."""

    settings: HBaseSettings
    rows: RowRange
    elapsed_s: Callable[[], float]

    @classmethod
    def from_json(cls, value: Mapping[str, object], *, elapsed_s: Callable[[], float]) -> "Where":
        """Of `{"gateways": [HOST:PORT], "prefix": …}`, and for rows `"table"`, and `"start"` and
        `"stop"` in hex. Raises: ValueError: one sentence."""
        gateways, prefix = value.get("gateways"), value.get("prefix")
        if not (isinstance(gateways, list) and isinstance(prefix, str)):
            raise ValueError(  # noqa: TRY004 - it is input from the command line
                "a location in HBase has `gateways`, which is a list, and `prefix`"
            )
        table = str(value.get("table", MESSAGE))
        if table not in TABLES:
            raise ValueError(f"table is one of {', '.join(TABLES)}, not {table!r}")
        start, stop = (bytes.fromhex(str(value.get(name, ""))) for name in ("start", "stop"))
        return cls(
            settings=HBaseSettings(gateways=tuple(map(str, gateways)), prefix=prefix),
            rows=RowRange(table, start, stop),
            elapsed_s=elapsed_s,
        )


def regions(where: Where) -> Iterator[Line]:
    """The regions of all tables: `table`, `start` and `stop`. Raises: StoreError."""
    with closing(gateways_of(where.settings, elapsed_s=where.elapsed_s)) as gateways:
        for table in TABLES:
            name = (where.settings.prefix + table).encode()
            found = regions_of(gateways, name)
            if not found:
                raise StoreError(f"HBase has no table {name.decode()}; is the prefix right?")
            for region in found:
                start, stop = region.startKey.hex(), region.endKey.hex()
                yield {"kind": "region", "table": table, "start": start, "stop": stop}


def region_lines(where: Where) -> Iterator[Line]:
    """Every row of a range of one table. Raises: StoreError."""
    with (
        closing(gateways_of(where.settings, elapsed_s=where.elapsed_s)) as gateways,
        closing(read(gateways, where.settings.prefix, [where.rows], reverse=False)) as rows,
    ):
        for key, value in rows:
            yield decoded(key, value)
