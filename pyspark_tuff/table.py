"""`format("tuff-table")`: the stored rows of a message store, decoded, for inspection.

The server's own code decodes the rows, in a separate process for each task (tuff/launch.py).
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_tuff.columns import check_columns
from pyspark_tuff.errors import OptionError, batches_without_traceback, without_traceback
from pyspark_tuff.options import Given
from tuff.optional_packages import Extra

with Extra("pyspark_tuff", "spark"):
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
    from pyspark.sql.types import (
        BinaryType,
        IntegerType,
        LongType,
        StringType,
        StructType,
        TimestampType,
    )

if TYPE_CHECKING:
    from pyarrow import RecordBatch

DEFAULT_PREFIX = "tuff_"  # that of the server's `hbase.prefix`
METADATA = "metadata"  # the table of the kinds of rows that are neither messages nor payloads
TABLES = ("message", "payload", METADATA)
TABLE_OPTIONS = ("path", "gateways", "prefix", "tables")
BATCH_ROWS = 1_000  # rows of one Arrow batch
TIME_MS_MAX = 253_402_300_799_999  # the end of the year 9999, the last that `datetime` supports
COLUMNS = {
    "kind": StringType(),
    "key": BinaryType(),
    "topic": StringType(),
    "generation": IntegerType(),
    "timestamp": TimestampType(),
    "seq_id": IntegerType(),
    "tx_pointer": LongType(),
    "ttl_s": LongType(),
    "payload": BinaryType(),
    "details": StringType(),
}
# Members of a row that have a column of their own; `details` holds all others.
_OWN = frozenset(
    {
        "kind", "key", "topic", "generation", "timestamp_ms", "seq_id", "ttl_s", "tx_pointer",
        "write_pointer", "payload",
    }
)  # fmt: skip


class DefaultSource(DataSource):
    """`format("tuff-table")`. Read only."""

    @classmethod
    def name(cls) -> str:
        return "tuff-table"

    def schema(self) -> StructType:
        return table_schema()

    @without_traceback
    def reader(self, schema: StructType) -> "TableReader":
        return TableReader(self.options, schema)


@dataclass
class InspectTask(InputPartition):
    """The `inspect` command of one task, for a directory or for a region of an HBase table."""

    what: str
    argument: str


class TableReader(DataSourceReader):
    """One `load()`; each action reads the tables again."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = table_options(options)
        self._schema = schema
        check_columns(schema, table_schema(), {})
        if self._options.path is not None:
            _require_copy(Path(self._options.path))

    @without_traceback
    def partitions(self) -> list[InputPartition]:
        if self._options.path is not None:
            return [InspectTask("tables", self._options.path)]
        return _regions(self._options)

    @batches_without_traceback
    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        from tuff.launch import inspect

        # If there is no partition, Spark makes an empty one of its own class.
        if isinstance(partition, InspectTask):
            with closing(inspect(partition.what, partition.argument)) as found:
                wanted = (row for row in found if _is_wanted(row, self._options))
                yield from batches(wanted, self._schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """Where the rows are, and which tables to read. `path` is a LevelDB directory; if None, the
    tables are in HBase, which `gateways` serve."""

    path: str | None
    gateways: tuple[str, ...]
    prefix: str
    tables: tuple[str, ...]


def table_options(given: Mapping[str, str]) -> TableOptions:
    """Raises: OptionError: an option is invalid or unknown."""
    options = Given(given, TABLE_OPTIONS)
    path, gateways = options.text("path"), _names(options, "gateways")
    if (path is None) != bool(gateways):
        raise OptionError(
            "give either path (a copy of a server's data/messages) or gateways (HOST:PORT, with "
            "commas, of HBase)"
        )
    if path is not None and options.text("prefix") is not None:
        raise OptionError("prefix applies to tables in HBase only, not to a path")
    tables = _names(options, "tables") or TABLES
    for name in tables:
        if name not in TABLES:
            raise OptionError(f"tables takes {', '.join(TABLES)}, with commas, not {name!r}")
    return TableOptions(
        path=path,
        gateways=gateways,
        prefix=options.text("prefix") or DEFAULT_PREFIX,
        tables=tables,
    )


def _names(options: Given, name: str) -> tuple[str, ...]:
    value = options.text(name) or ""
    return tuple(dict.fromkeys(each.strip() for each in value.split(",") if each.strip()))


def table_schema() -> StructType:
    """All columns; a column is null for kinds of rows without it."""
    schema = StructType()
    for name, kind in COLUMNS.items():
        schema = schema.add(name, kind, nullable=name != "kind")
    return schema


def batches(rows: Iterable[Mapping[str, Any]], schema: StructType) -> Iterator["RecordBatch"]:
    """Rows as `server.py inspect` prints them, as the columns of the schema."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    wanted = to_arrow_schema(schema, timezone="UTC")
    left = iter(rows)
    while part := [columns_of(row) for row in islice(left, BATCH_ROWS)]:
        columns = [pa.array([row[field.name] for row in part], type=field.type) for field in wanted]
        yield pa.RecordBatch.from_arrays(columns, schema=wanted)


def columns_of(row: Mapping[str, Any]) -> dict[str, object]:
    """The values of all columns of one JSON row."""
    from tuff.protocol.json_bodies import payload_from_json

    pointer = row.get("tx_pointer") or row.get("write_pointer")
    payload = row.get("payload")
    others = {name: value for name, value in row.items() if name not in _OWN}
    return {
        "kind": row["kind"],
        "key": None if row.get("key") is None else bytes.fromhex(row["key"]),
        "topic": row.get("topic"),
        "generation": row.get("generation"),
        "timestamp": _moment(row.get("timestamp_ms")),
        "seq_id": row.get("seq_id"),
        "tx_pointer": None if pointer is None else int(pointer),
        "ttl_s": row.get("ttl_s"),
        "payload": None if payload is None else payload_from_json(payload),
        "details": json.dumps(others) if others else None,
    }


def _moment(ms: int | None) -> datetime | None:
    if ms is None or ms > TIME_MS_MAX:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC)


def _is_wanted(row: Mapping[str, object], options: TableOptions) -> bool:
    kind = str(row["kind"])
    return kind == "damage" or (kind if kind in TABLES else METADATA) in options.tables


def _require_copy(path: Path) -> None:
    """Raises: OptionError: a server uses the directory, or it is not a LevelDB directory."""
    from tuff_storage.disk.locks import DirectoryLock, DirectoryLockedError

    if not (path / "CURRENT").is_file():
        raise OptionError(f"path {path} is not a LevelDB directory; give a copy of data/messages")
    try:
        DirectoryLock(path).close()
    except (DirectoryLockedError, OSError) as error:
        raise OptionError(
            f"path {path} can't be read while it is in use ({error}); give a copy of the directory"
        ) from error


def _regions(options: TableOptions) -> list[InputPartition]:
    from tuff.launch import inspect

    location: dict[str, object] = {"gateways": list(options.gateways), "prefix": options.prefix}
    found = list(inspect("hbase-regions", json.dumps(location)))
    return [
        InspectTask("hbase-rows", json.dumps({**location, **_range(region)}))
        for region in found
        if region["table"] in options.tables
    ]


def _range(region: Mapping[str, object]) -> dict[str, object]:
    return {name: region[name] for name in ("table", "start", "stop")}
