"""`format("tuff-table")`: the rows of a message store as they lie there, decoded, to look into.

The server's own code decodes them, in a process of its own beside each task (tuff/inspection.py).
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from pyspark_tuff.columns import check_columns
from pyspark_tuff.errors import brief, brief_batches
from pyspark_tuff.options import OptionError
from pyspark_tuff.table_options import TableOptions, table_options

if TYPE_CHECKING:
    from pyarrow import RecordBatch

BATCH_ROWS = 1_000  # rows of one Arrow batch
TIME_MS_MAX = 253_402_300_799_999  # the end of the year 9999; Python knows no later day
METADATA = "metadata"  # the table of all kinds that have none of their own
OF_TABLE = {"message": "message", "payload": "payload"}
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
# Members of a row that have a column of their own; all others are in `details`.
_OWN = frozenset({"kind", "key", "topic", "generation", "timestamp_ms", "seq_id", "ttl_s"}) | {
    "tx_pointer",
    "write_pointer",
    "payload",
}


class TableSource(DataSource):
    """`format("tuff-table")`. Read only."""

    @classmethod
    def name(cls) -> str:
        return "tuff-table"

    def schema(self) -> StructType:
        return table_schema()

    @brief
    def reader(self, schema: StructType) -> "TableReader":
        return TableReader(self.options, schema)


@dataclass
class Region(InputPartition):
    """What one task reads: a region of a table in HBase, or the whole directory."""

    what: str
    argument: str


class TableReader(DataSourceReader):
    """One `load()`; each action reads anew."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = table_options(options)
        self._schema = schema
        check_columns(schema, table_schema(), {})
        if self._options.path is not None:
            _require_copy(Path(self._options.path))

    @brief
    def partitions(self) -> list[InputPartition]:
        if self._options.path is not None:
            return [Region("tables", self._options.path)]
        return _regions(self._options)

    @brief_batches
    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        from tuff.inspection import inspect

        # Spark makes an empty partition of its own where there is none.
        if isinstance(partition, Region):
            with closing(inspect(partition.what, partition.argument)) as found:
                wanted = (row for row in found if _is_wanted(row, self._options))
                yield from batches(wanted, self._schema)


def table_schema() -> StructType:
    """All columns; those that a kind of row does not have are null."""
    schema = StructType()
    for name, kind in COLUMNS.items():
        schema = schema.add(name, kind, nullable=name != "kind")
    return schema


def batches(rows: Iterable[Mapping[str, Any]], schema: StructType) -> Iterator["RecordBatch"]:
    """Rows as `server.py inspect` prints them, in the columns that the schema asks for."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    wanted = to_arrow_schema(schema, timezone="UTC")
    left = iter(rows)
    while part := [columns_of(row) for row in islice(left, BATCH_ROWS)]:
        columns = [pa.array([row[field.name] for row in part], type=field.type) for field in wanted]
        yield pa.RecordBatch.from_arrays(columns, schema=wanted)


def columns_of(row: Mapping[str, Any]) -> dict[str, object]:
    """One row of JSON as a value for each column."""
    from tuff.protocol.forms import payload_from_json

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
    return kind == "damage" or OF_TABLE.get(kind, METADATA) in options.tables


def _require_copy(path: Path) -> None:
    """Raises: OptionError: a server has the directory open, or it is none of a message store."""
    from tuff.disk.lock import DirectoryLock, DirectoryLockedError

    if not (path / "CURRENT").is_file():
        raise OptionError(f"path {path} is no LevelDB directory; give a copy of data/messages")
    try:
        DirectoryLock(path).close()
    except (DirectoryLockedError, OSError) as error:
        raise OptionError(
            f"path {path} can't be read while it is in use ({error}); give a copy of the directory"
        ) from error


def _regions(options: TableOptions) -> list[InputPartition]:
    from tuff.inspection import inspect

    place: dict[str, object] = {"gateways": list(options.gateways), "prefix": options.prefix}
    found = list(inspect("hbase-regions", json.dumps(place)))
    return [
        Region("hbase-rows", json.dumps({**place, **_range(region)}))
        for region in found
        if region["table"] in options.tables
    ]


def _range(region: Mapping[str, object]) -> dict[str, object]:
    return {name: region[name] for name in ("table", "start", "stop")}
