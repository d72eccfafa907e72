"""Rows of messages as Spark handles them: what is compared of them, and the files they lie in."""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.failures import failure_of_spark
from pipeline.letters import TEXT
from pipeline.manifest import Archive, ArchiveError, Row, Summary
from tuff.disk.files import make_directory, sync_directory
from tuff.protocol.names import TopicId

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

COLUMNS = ("id", "value", "timestamp", "generation")
FILE_COUNT_MAX = 1_000_000  # messages of one file; a longer hour or day is several, in order

# What reads JSON stops behind the first value, so that half of another may follow. In an array its
# end or a comma may follow, in an object that one's end or a comma; and behind a comma an array has
# what an object can't have. So only a value that nothing follows is read in both.
_WHOLE_JSON = f"""
    if(
        {TEXT}
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
    f"bit_xor(xxhash64({', '.join(COLUMNS)})) as checksum",
)


def whole_json() -> "Column":
    """The payload as text where all of it is one value of JSON, else null."""
    from pyspark.sql.functions import expr

    return expr(_WHOLE_JSON)


def summarize(frame: "DataFrame", *, generation: int, what: str) -> Summary:
    """What is compared of these messages.

    Raises: ArchiveError: there are none, one is there twice, or they are of another generation.
    """
    (found,) = frame.selectExpr(*_FACTS).collect()
    if found["count"] == 0:
        raise ArchiveError(f"{what} has no messages")
    if found["count"] != found["distinct_count"]:
        raise ArchiveError(f"{what} has {found['count']} rows of {found['distinct_count']} ids")
    if {found["generation"], found["last_generation"]} != {generation}:
        raise ArchiveError(
            f"{what} is of generations {found['generation']} to {found['last_generation']}, and "
            f"not of {generation}: the topic was created again meanwhile"
        )
    return Summary(
        count=found["count"],
        first=found["first"],
        last=found["last"],
        checksum=found["checksum"],
    )


def check(frame: "DataFrame", row: Row, *, what: str) -> None:
    """Raises: ArchiveError: these are not the messages that the row tells of."""
    with _readable(what):
        found = summarize(frame, generation=row.generation, what=what)
    if found != row.summary:
        raise ArchiveError(f"{what} holds {found}, and not {row.summary}")


def require_archived(messages: "DataFrame", archived: "DataFrame", *, what: str) -> None:
    """Raises: ArchiveError: one of these messages is not among the archived ones."""
    compared = ("id", f"xxhash64({', '.join(COLUMNS)}) as checksum")
    there = archived.selectExpr(*compared)
    missing = messages.selectExpr(*compared).join(there, ["id", "checksum"], "left_anti")
    with _readable(what):
        (found,) = missing.selectExpr("count(*) as count", "lower(hex(min(id))) as first").collect()
    if found["count"]:
        raise ArchiveError(
            f"{what} lacks {found['count']} messages of the topic, the first with id "
            f"{found['first']}; it is of another archive, or of another topic of that name"
        )


def messages_of(
    spark: "SparkSession",
    topic: TopicId,
    options: Mapping[str, str],
    *,
    start_ms: int,
    stop_ms: int,
) -> "DataFrame":
    """What a topic has from one time on, up to before another, all of which must be decided."""
    reader = spark.read.format("tuff").options(**options, subscribe=str(topic))
    bounds = {"startingTimestamp": str(start_ms), "endingTimestamp": str(stop_ms)}
    # What had expired before is no loss of ours, and the summary tells of the rest.
    reader = reader.options(isolation="committed", failOnDataLoss="false", **bounds)
    return reader.load().select(*COLUMNS)


def archived(spark: "SparkSession", archive: Archive, row: Row) -> "DataFrame":
    """The messages of one row, in any order. Raises: ArchiveError: its files can't be read."""
    with _readable(row.path):
        frame = spark.read.parquet(str(archive.root / row.path)).select(*COLUMNS)
    # Of a file of a day, only those of the hour; Parquet skips what lies outside.
    return frame.where(f"id between X'{row.summary.first}' and X'{row.summary.last}'")


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
    """The rows in the order of their ids, in one partition, which is what keeps an order."""
    return frame.repartition(1).sortWithinPartitions("id")


def write_files(frame: "DataFrame", directory: Path) -> None:
    """Write the rows, in order, in the place of whatever is there; durable when this returns."""
    writer = in_order(frame).write.mode("overwrite").option("compression", "zstd")
    writer.option("maxRecordsPerFile", FILE_COUNT_MAX).parquet(str(directory))
    sync_files(directory)


def sync_files(directory: Path) -> None:
    """Make the files below a directory durable, as Spark does not."""
    for parent, _, names in os.walk(directory):
        for name in names:
            with (Path(parent) / name).open("rb") as file:
                os.fsync(file.fileno())
        sync_directory(Path(parent))


def move(source: Path, target: Path) -> None:
    """Put a directory in the place of another, durably."""
    make_directory(target.parent)
    remove((target,))
    source.rename(target)
    sync_directory(target.parent)


def remove(paths: Iterable[Path]) -> None:
    """Remove directories with all that is in them; those that are gone already are fine."""
    for path in paths:
        if path.exists():
            shutil.rmtree(path)
