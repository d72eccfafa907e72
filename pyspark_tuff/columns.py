"""The columns of a read, and the conversion of messages into Arrow batches with these columns.

Spark requires that the names, order and types of a batch's columns are those of the schema that it
asked for. A schema that a user gives is a projection (docs/spark.md).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from pyspark_tuff.options import OptionError
from tuff.protocol.ids import TopicId

if TYPE_CHECKING:
    from pyarrow import RecordBatch

TOPIC = "topic"
WRITE_POINTER = "write_pointer"
COLUMNS: dict[str, DataType] = {
    TOPIC: StringType(),
    "id": BinaryType(),
    "value": BinaryType(),
    "timestamp": TimestampType(),
    "generation": IntegerType(),
}


def source_schema(*, include_transaction: bool) -> StructType:
    """All columns; `write_pointer` is null for messages without a transaction."""
    schema = StructType()
    for name, kind in COLUMNS.items():
        schema = schema.add(name, kind, nullable=False)
    return schema.add(WRITE_POINTER, LongType()) if include_transaction else schema


def check_projection(schema: StructType, *, include_transaction: bool) -> None:
    """Raises: OptionError: the user's schema has an unknown column, or one of another type."""
    hints = {} if include_transaction else {WRITE_POINTER: "; set includeTransaction=true for it"}
    check_columns(schema, source_schema(include_transaction=include_transaction), hints)


def check_columns(schema: StructType, ours: StructType, hints: Mapping[str, str]) -> None:
    """Check a user's schema against the columns of a source. `hints` explain columns that are
    absent. Raises: OptionError."""
    known = {field.name: field.dataType for field in ours}
    for field in schema:
        if field.name not in known:
            hint = hints.get(field.name, "")
            raise OptionError(
                f"there is no column {field.name}{hint}; a read has {', '.join(known)}"
            )
        if field.dataType != known[field.name]:
            kind, wanted = field.dataType.simpleString(), known[field.name].simpleString()
            raise OptionError(
                f"column {field.name} has the type {kind} in this schema, but a read returns it as "
                f"{wanted}; write `{field.name} {wanted}`, and cast it in a select afterwards"
            )


def shown_name(topic: TopicId, namespace: str) -> str:
    """The name of a topic in rows: without its namespace if that is the option `namespace`."""
    return topic.name if topic.namespace == namespace else str(topic)


def batch_of(messages: "RecordBatch", schema: StructType, *, topic: str) -> "RecordBatch":
    """The messages of one reply, as the columns of the schema."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    wanted = to_arrow_schema(schema, timezone="UTC")
    columns = [
        pa.repeat(topic, len(messages)) if name == TOPIC else messages.column(name)
        for name in wanted.names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)
