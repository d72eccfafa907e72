"""`compact`: the hours of a day in one file. The rows of the manifest stay; they name the new file.

The file is written aside and each hour of it compared with its row; then it is moved to its place,
the rows are replaced at once, and the files of the hours are removed. Who reads by the manifest
sees one or the other, whenever the job dies.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.frames import archived, check, move, remove, write_files
from pipeline.manifest import Archive, Row, moved
from pipeline.running import Job, counted, json_option, root_option, topic_argument
from tuff.cli.output import print_json
from tuff.protocol.names import TopicId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def compact_topic(
    spark: "SparkSession", archive: Archive, topic: TopicId, *, tell: Callable[[str], object]
) -> list[str]:
    """Bring the hours of every day that is over together; returns those days.

    Raises: ArchiveError: an hour is not as its row says; nothing of that day is changed.
    """
    rows = archive.rows(topic)
    days = []
    for day, of_day in _days_over(rows):
        path = archive.day_path(topic, day, hour_count=len(of_day))
        if all(row.path == path for row in of_day):
            sweep_day(archive, topic, of_day)
            continue
        compact_day(spark, archive, topic, of_day, path)
        tell(f"{day}: {counted(len(of_day), 'hour')} in one")
        days.append(day)
    return days


def compact_day(
    spark: "SparkSession", archive: Archive, topic: TopicId, rows: Sequence[Row], path: str
) -> None:
    """Bring these rows of one day together at `path`. Raises: ArchiveError."""
    staging = archive.staging(topic) / f"day={rows[0].hour.day}"
    write_files(_together(spark, archive, rows), staging)
    aside = str(staging.relative_to(archive.root))
    for row in rows:
        there = archived(spark, archive, moved(row, aside))
        check(there, row, what=f"hour {row.hour} of {topic}, compacted,")
    move(staging, archive.root / path)
    compacted = [moved(row, path) for row in rows]
    archive.record(topic, compacted)
    sweep_day(archive, topic, compacted)


def sweep_day(archive: Archive, topic: TopicId, rows: Sequence[Row]) -> None:
    """Remove the files of a day that none of its rows names, as a job leaves them that dies."""
    hour, named = rows[0].hour, {archive.root / row.path for row in rows}
    places = (archive.hour_path(topic, hour), archive.day_path(topic, hour.day, hour_count=1))
    for place in places:
        there = (archive.root / place).parent.glob("hour*=*")
        remove([path for path in there if path not in named])


def _together(spark: "SparkSession", archive: Archive, rows: Sequence[Row]) -> "DataFrame":
    frames = [archived(spark, archive, row) for row in rows]
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame)
    return whole


def _days_over(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """The days, and their rows, into which no further hour comes: hours are archived in order."""
    for day, found in groupby(rows, key=lambda row: row.hour.day):
        of_day = list(found)
        if of_day[-1].hour.is_last_of_day or rows[-1].hour.day > day:
            yield day, of_day


@click.command("compact")
@topic_argument
@root_option
@json_option
@click.pass_obj
def main(job: Job, *, topic: TopicId, root: Path, as_json: bool) -> None:
    """Bring the archived hours of each day of TOPIC together in one file."""
    archive = Archive(root)
    archive.require(topic)
    with archive.locked(), job.spark() as spark:
        days = compact_topic(spark, archive, topic, tell=job.tell)
    if as_json:
        print_json({"days": days})
        return
    click.echo(f"{counted(len(days), 'day')} of {topic} compacted")
