"""The columns of reads and writes, and the conversion of messages into Arrow batches.

Spark requires that the names, order and types of a batch's columns are those of the schema that it
asked for. A schema that a user gives for a read is a projection (docs/spark.md).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from pyspark_tuff.errors import OptionError
from pyspark_tuff.options import ReadOptions, WriteOptions
from tuff.protocol.errors import BadRequestError
from tuff.protocol.ids import TopicId

if TYPE_CHECKING:
    from pyarrow import Array, ListArray, RecordBatch

    from tuff.publish_calls import Publishable

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
KEY, TAGS, HEADERS = "key", "tags", "headers"
ATTRIBUTES: dict[str, DataType] = {
    KEY: BinaryType(),
    TAGS: ArrayType(StringType()),
    HEADERS: ArrayType(StructType().add("name", StringType()).add(VALUE, BinaryType())),
}


def source_schema(options: ReadOptions) -> StructType:
    """All columns; `write_pointer` is null for messages without a transaction, and so is each
    attribute for messages without."""
    schema = StructType()
    for name, kind in COLUMNS.items():
        schema = schema.add(name, kind, nullable=False)
    if options.include_transaction:
        schema = schema.add(WRITE_POINTER, LongType())
    if options.include_attributes:
        for name, kind in ATTRIBUTES.items():
            schema = schema.add(name, kind)
    return schema


def check_projection(schema: StructType, options: ReadOptions) -> None:
    """Raises: OptionError: the user's schema has an unknown column, or one of another type."""
    hints = {WRITE_POINTER: "; set includeTransaction=true for it"}
    hints |= dict.fromkeys(ATTRIBUTES, "; set includeAttributes=true for it")
    check_columns(schema, source_schema(options), hints)


def has_attributes(schema: StructType) -> bool:
    """Whether a read has to ask for the attributes of messages."""
    return not ATTRIBUTES.keys().isdisjoint(schema.fieldNames())


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


def shown_name(partition: TopicId, options: ReadOptions) -> str:
    """The name of a partition in rows: its own if `subscribe` has it, else that of its topic;
    without its namespace if that is the option `namespace`."""
    topic = partition if partition in options.topics else partition.base
    return topic.name if topic.namespace == options.namespace else str(topic)


def batch_of(messages: "RecordBatch", schema: StructType, *, topic: str) -> "RecordBatch":
    """The messages of one reply, as the columns of the schema."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    wanted = to_arrow_schema(schema, timezone="UTC")
    columns = [
        pa.repeat(topic, len(messages))
        if field.name == TOPIC
        else messages.column(field.name).cast(field.type)
        for field in wanted
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def messages_of(batch: "RecordBatch", *, attributes: bool) -> "list[Publishable]":
    """The rows of a write as messages, with their attributes if a write takes them.

    Raises: BadRequestError: a payload, or a part of an attribute, is null.
    """
    import pyarrow as pa

    from tuff.publish_calls import NewMessage

    refuse_nulls(batch.column(VALUE), VALUE)
    payloads: list[bytes] = batch.column(VALUE).cast(pa.binary()).to_pylist()
    given = [name for name in batch.schema.names if attributes and name in ATTRIBUTES]
    if not any(batch.column(name).null_count < len(batch) for name in given):
        return [*payloads]
    for name in given:
        if name != KEY:
            _refuse_nulls_within(batch.column(name), name)
    rows = batch.select(given).to_pylist()
    return [
        NewMessage(
            payload,
            key=row.get(KEY),
            tags=row.get(TAGS) or (),
            headers=[(each["name"], each[VALUE]) for each in row.get(HEADERS) or ()],
        )
        for payload, row in zip(payloads, rows, strict=True)
    ]


def _refuse_nulls_within(column: "ListArray", name: str) -> None:
    elements = column.flatten()
    parts = [elements, *elements.flatten()] if name == HEADERS else [elements]
    for part in parts:
        refuse_nulls(part, name)


def refuse_nulls(column: "Array", name: str) -> None:
    """Raises: BadRequestError: the column, or a part of it, has a null."""
    if column.null_count:
        raise BadRequestError(f"column {name} has a null, and a message has none; filter it out")


def check_written(schema: StructType, options: WriteOptions) -> None:
    """Raises: OptionError: rows of this schema can't be written as messages."""
    kinds, known = {field.name: field.dataType for field in schema}, {VALUE, TOPIC}
    if VALUE not in kinds:
        raise OptionError(
            f"a write needs a column value, binary or string; these rows have {', '.join(kinds)}"
        )
    _check_type(VALUE, kinds[VALUE], (BinaryType, StringType))
    if options.topic is None:
        if TOPIC not in kinds:
            raise OptionError("set the option topic, or add a string column topic to the rows")
        _check_type(TOPIC, kinds[TOPIC], (StringType,))
    if options.include_attributes:
        _check_attributes(kinds)
        known |= ATTRIBUTES.keys()
    extra = kinds.keys() - known
    if extra and not options.ignores_extra_columns:
        raise OptionError(
            f"messages have no {', '.join(sorted(extra))}; drop these columns, or set "
            "ignoreExtraColumns=true"
        )


def _check_attributes(kinds: Mapping[str, DataType]) -> None:
    if KEY in kinds:
        _check_type(KEY, kinds[KEY], (BinaryType, StringType))
    for name in (TAGS, HEADERS):
        # As Arrow does: names and types count, and not which parts may be null.
        wanted = ATTRIBUTES[name].simpleString()
        if name in kinds and kinds[name].simpleString() != wanted:
            raise OptionError(
                f"column {name} has the type {kinds[name].simpleString()}, and a write takes "
                f"{wanted}; cast it, drop it, or set includeAttributes=false and "
                "ignoreExtraColumns=true"
            )


def _check_type(name: str, kind: DataType, allowed: tuple[type[DataType], ...]) -> None:
    if not isinstance(kind, allowed):
        known = " or ".join(each().simpleString() for each in allowed)
        raise OptionError(
            f"column {name} has the type {kind.simpleString()}, and a write takes {known}; cast "
            f"it, as in `cast({name} as string) as {name}`"
        )
