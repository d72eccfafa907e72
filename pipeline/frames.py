"""Data frames of messages: reading, comparing, ordering, writing to files; errors of Spark."""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kernel.archive_manifest import Archive, ArchiveError, Entry, Summary
from pyspark_tuff.checkpoint_offsets import partition_of
from tuff.protocol.ids import TopicId
from tuff.protocol.sentences import counted
from tuff_storage.disk.files import make_directory, sync_directory

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ATTRIBUTES = ("key", "tags", "headers")
COLUMNS = ("id", "value", "timestamp", "generation", *ATTRIBUTES)
# Of the columns in files; those of files that were written before there were attributes are null.
_SCHEMA = (
    "id binary, value binary, timestamp timestamp, generation int, key binary, "
    "tags array<string>, headers array<struct<name: string, value: binary>>"
)
FILE_MESSAGE_COUNT_MAX = 1_000_000  # a larger hour or day has several files, in order
# Of uncompressed columns; a reader of a few messages decodes one whole row group.
ROW_GROUP_BYTES = 8 << 20
SENTENCE_LENGTH_MAX = 1_000  # characters of each of the two lines of an error

IS_TEXT = "is_valid_utf8(string(value))"  # an expression of Spark SQL

# Spark's JSON parser ignores text after the first value. To detect such text, the payload is parsed
# as an element of an array, and as a member of an object. No text after a value is valid in both:
# after a comma an array needs a value, and an object needs a name and a colon.
_WHOLE_JSON = f"""
    if(
        {IS_TEXT}
        and try_parse_json('[' || string(value) || ']') is not null
        and try_parse_json('{{"v":' || string(value) || '}}') is not null,
        string(value),
        null
    )
"""

_FACTS = (
    "count(*) as count",
    "count(distinct id) as distinct_count",
    "lower(hex(min(id))) as first",
    "lower(hex(max(id))) as last",
    "min(generation) as generation",
    "max(generation) as last_generation",
    # A null leaves the hash as it is. So a message without attributes has the checksum that it had
    # before there were attributes.
    f"bit_xor(xxhash64({', '.join(COLUMNS)})) as checksum",
)

# Lines of an error's text that name neither the failure nor its cause.
_BOILERPLATE = ("An error occurred while calling", "Traceback (most recent", "Driver stacktrace:")


def whole_json() -> "Column":
    """The payload as text if it is exactly one JSON value, else null."""
    from pyspark.sql.functions import expr

    return expr(_WHOLE_JSON)


def summarize(frame: "DataFrame", *, generation: int, what: str) -> Summary:
    """The count, first and last id, and checksum of these messages.

    Raises: ArchiveError: there are none, an id occurs twice, or they are of another generation.
    """
    (found,) = frame.selectExpr(*_FACTS).collect()
    if found["count"] == 0:
        raise ArchiveError(f"{what} has no messages")
    if found["count"] != found["distinct_count"]:
        ids = counted(found["distinct_count"], "id")
        raise ArchiveError(f"{what} has {counted(found['count'], 'row')} of {ids}")
    if {found["generation"], found["last_generation"]} != {generation}:
        raise ArchiveError(
            f"{what} has generations {found['generation']} to {found['last_generation']}, and "
            f"not of {generation}: the topic was created again meanwhile"
        )
    return Summary(
        count=found["count"],
        first=found["first"],
        last=found["last"],
        checksum=found["checksum"],
    )


def check(frame: "DataFrame", row: Entry, *, what: str) -> None:
    """Raises: ArchiveError: these are not the messages that the row describes."""
    with _readable(what):
        found = summarize(frame, generation=row.generation, what=what)
    if found != row.summary:
        raise ArchiveError(f"{what} holds {found}, but the manifest says {row.summary}")


def require_archived(messages: "DataFrame", archived: "DataFrame", *, what: str) -> None:
    """Raises: ArchiveError: one of these messages is not among the archived ones."""
    compared = ("id", f"xxhash64({', '.join(COLUMNS)}) as checksum")
    there = archived.selectExpr(*compared)
    missing = messages.selectExpr(*compared).join(there, ["id", "checksum"], "left_anti")
    with _readable(what):
        (found,) = missing.selectExpr("count(*) as count", "lower(hex(min(id))) as first").collect()
    if found["count"]:
        raise ArchiveError(
            f"{what} lacks {counted(found['count'], 'message')} of the topic, the first with id "
            f"{found['first']}; it belongs to another archive, or to another topic of that name, "
            "or version 0.1.0 has written it without keys, tags and headers (docs/pipelines.md)"
        )


def messages_of(
    spark: "SparkSession",
    topic: TopicId,
    options: Mapping[str, str],
    *,
    start_ms: int,
    stop_ms: int,
) -> "DataFrame":
    """The messages of a partition from `start_ms` to before `stop_ms`; all of them must be decided.
    A topic is its partition 0."""
    # By its number: the topic itself would be all of its partitions, if it gets further ones.
    reader = spark.read.format("tuff").options(**options, subscribe=str(partition_of(topic)))
    bounds = {"startingTimestamp": str(start_ms), "endingTimestamp": str(stop_ms)}
    # Messages that expired before are no data loss here; the summary covers the others.
    reader = reader.options(isolation="committed", failOnDataLoss="false", **bounds)
    return reader.option("includeAttributes", "true").load().select(*COLUMNS)


def archived(spark: "SparkSession", archive: Archive, row: Entry) -> "DataFrame":
    """The archived messages of one row, unordered. Raises: ArchiveError: unreadable files."""
    with _readable(row.path):
        frame = in_files(spark, archive.root / row.path)
    # A file of a day has other hours too; Parquet skips row groups outside of this range.
    return frame.where(f"id between X'{row.summary.first}' and X'{row.summary.last}'")


def in_files(spark: "SparkSession", directory: Path) -> "DataFrame":
    """All messages in the files of a directory."""
    return spark.read.schema(_SCHEMA).parquet(str(directory))


@contextmanager
def _readable(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        failure = failure_of_spark(error)
        if failure is None:
            raise
        raise ArchiveError(f"{what} can't be read: {failure}") from error


def in_order(frame: "DataFrame") -> "DataFrame":
    """The rows in the order of their ids, in one partition, within which Spark keeps it."""
    return frame.repartition(1).sortWithinPartitions("id")


def write_files(frame: "DataFrame", directory: Path) -> None:
    """Write the rows, in order; replaces existing files. Durable when this returns."""
    writer = in_order(frame).write.mode("overwrite").option("compression", "zstd")
    writer.option("parquet.block.size", ROW_GROUP_BYTES)
    writer.option("maxRecordsPerFile", FILE_MESSAGE_COUNT_MAX).parquet(str(directory))
    sync_files(directory)


def sync_files(directory: Path) -> None:
    """Sync all files below a directory, which Spark does not do."""
    for parent, _, names in os.walk(directory):
        for name in names:
            with (Path(parent) / name).open("rb") as file:
                os.fsync(file.fileno())
        sync_directory(Path(parent))


def move(source: Path, target: Path) -> None:
    """Replace the directory `target` by `source`, durably."""
    make_directory(target.parent)
    remove((target,))
    source.rename(target)
    sync_directory(target.parent)


def remove(paths: Iterable[Path]) -> None:
    """Remove directories and their contents; ignores directories that do not exist."""
    for path in paths:
        if path.exists():
            shutil.rmtree(path)


def failure_of_spark(error: Exception) -> str | None:
    """The message of an error that Spark, its JVM or a task has raised; None for other errors.

    It has the first line, which says what failed, and the last line outside of a stack trace, which
    says why.
    """
    if not _is_of_spark(error):
        return None
    said = str(error).partition("JVM stacktrace:")[0]
    # Frames of both languages are indented.
    lines = [line for line in said.splitlines() if line.strip() and not line[0].isspace()]
    told = [line.strip(": ") for line in lines if not line.startswith(_BOILERPLATE)]
    if not told:
        return type(error).__name__
    return "; ".join(line[:SENTENCE_LENGTH_MAX] for line in dict.fromkeys((told[0], told[-1])))


def _is_of_spark(error: Exception) -> bool:
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
    except ModuleNotFoundError:
        return False
    return isinstance(error, PySparkException | Py4JError)
