"""`compact`: merges the hours of a day into one file. The rows of the manifest then name this file.

The job writes the file to a staging directory and compares each hour in it with its row. Then it
moves the file to its final path, replaces the rows atomically, and removes the files of the hours.
Whenever the job dies, the manifest names either the old files or the new one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernel.archive_manifest import Archive, Entry, files_in
from pipeline.frames import archived, check, move, remove, write_files
from pipeline.job import Settings, json_option, print_result, report, root_option, topic_argument
from tuff.protocol.ids import TopicId
from tuff.protocol.sentences import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def compact_topic(spark: "SparkSession", archive: Archive, topic: TopicId) -> list[str]:
    """Merge the hours of each day that has ended; returns these days.

    Raises: ArchiveError: the files of an hour differ from its row; that day is unchanged.
    """
    rows = archive.entries(topic)
    days = []
    for day, of_day in _days_over(rows):
        path = archive.day_path(topic, day, hour_count=len(of_day))
        if all(row.path == path for row in of_day):
            remove_unnamed_files(archive, topic, of_day)
            continue
        compact_day(spark, archive, topic, of_day, path)
        report(f"{day}: {counted(len(of_day), 'hour')} in one")
        days.append(day)
    return days


def compact_day(
    spark: "SparkSession", archive: Archive, topic: TopicId, rows: Sequence[Entry], path: str
) -> None:
    """Merge the hours of these rows, which are of one day, at `path`. Raises: ArchiveError."""
    staging = archive.staging(topic) / f"day={rows[0].hour.day}"
    hours = [archived(spark, archive, row) for row in rows]
    write_files(reduce(lambda day, hour: day.unionByName(hour), hours), staging)
    aside = str(staging.relative_to(archive.root))
    for row in rows:
        there = archived(spark, archive, replace(row, path=aside))
        check(there, row, what=f"hour {row.hour} of {topic}, compacted,")
    files = files_in(staging)
    move(staging, archive.root / path)
    compacted = [replace(row, path=path, files=files) for row in rows]
    archive.record(topic, compacted)
    remove_unnamed_files(archive, topic, compacted)


def remove_unnamed_files(archive: Archive, topic: TopicId, rows: Sequence[Entry]) -> None:
    """Remove files of a day that none of its rows names: a job that died has left them."""
    hour, named = rows[0].hour, {archive.root / row.path for row in rows}
    paths = (archive.hour_path(topic, hour), archive.day_path(topic, hour.day, hour_count=1))
    for path in paths:
        there = (archive.root / path).parent.glob("hour*=*")
        remove([each for each in there if each not in named])


def _days_over(rows: Sequence[Entry]) -> Iterator[tuple[str, list[Entry]]]:
    """The days that get no further hour, with their rows: hours are archived in order."""
    for day, found in groupby(rows, key=lambda row: row.hour.day):
        of_day = list(found)
        if of_day[-1].hour.is_last_of_day or rows[-1].hour.day > day:
            yield day, of_day


@click.command("compact")
@topic_argument
@root_option
@json_option
@click.pass_obj
def main(settings: Settings, *, topic: TopicId, root: Path, as_json: bool) -> None:
    """Merge the archived hours of each day of TOPIC into one file."""
    archive = Archive(root)
    logs = archive.logs(topic)
    with archive.locked(), settings.spark() as spark:
        days = [day for log in logs for day in compact_topic(spark, archive, log)]
    sentence = f"{counted(len(days), 'day')} of {topic} compacted"
    print_result({"days": days}, sentence, as_json=as_json)
