"""The columns of reads and writes, and the conversion of messages into Arrow batches.

Spark requires that the names, order and types of a batch's columns are those of the schema that it
asked for. A schema that a user gives for a read is a projection (docs/spark.md).
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

from pyspark_tuff.errors import OptionError
from pyspark_tuff.options import WriteOptions
from tuff.protocol.ids import TopicId

if TYPE_CHECKING:
    from pyarrow import RecordBatch

TOPIC = "topic"
VALUE = "value"
WRITE_POINTER = "write_pointer"
COLUMNS: dict[str, DataType] = {
    TOPIC: StringType(),
    "id": BinaryType(),
    VALUE: BinaryType(),
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


def check_written(schema: StructType, options: WriteOptions) -> None:
    """Raises: OptionError: rows of this schema can't be written as messages."""
    kinds = {field.name: field.dataType for field in schema}
    if VALUE not in kinds:
        raise OptionError(
            f"a write needs a column value, binary or string; these rows have {', '.join(kinds)}"
        )
    _check_type(VALUE, kinds[VALUE], (BinaryType, StringType))
    if options.topic is None:
        if TOPIC not in kinds:
            raise OptionError("set the option topic, or add a string column topic to the rows")
        _check_type(TOPIC, kinds[TOPIC], (StringType,))
    extra = kinds.keys() - {VALUE, TOPIC}
    if extra and not options.ignores_extra_columns:
        raise OptionError(
            f"messages have no {', '.join(sorted(extra))}; drop these columns, or set "
            "ignoreExtraColumns=true"
        )


def _check_type(name: str, kind: DataType, allowed: tuple[type[DataType], ...]) -> None:
    if not isinstance(kind, allowed):
        known = " or ".join(each().simpleString() for each in allowed)
        raise OptionError(
            f"column {name} has the type {kind.simpleString()}, and a write takes {known}; cast "
            f"it, as in `cast({name} as string) as {name}`"
        )
