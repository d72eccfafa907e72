"""`archive`: closed hours of a topic to Parquet, each one verified before its row is written.

An hour is read, written aside, read back and compared with what was read first, moved to its place,
and then put into the manifest. A job that dies before that has archived nothing; the next one does
the hour again. What the manifest tells without a gap may leave the topic.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.frames import COLUMNS, check, messages_of, move, summarize, write_files
from pipeline.hours import ClosedHour, closed_hours
from pipeline.manifest import Archive, ArchiveError, Row, watermark_ms
from pipeline.running import (
    Job,
    json_option,
    messages_in_hours,
    report_hours,
    root_option,
    topic_argument,
)
from tuff.cli.output import moment, print_json
from tuff.protocol.errors import HoldNotFoundError
from tuff.protocol.names import TopicId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tuff.client import Client

HOLD_NAME = "tuff-archive"
HOLD_MAX_AGE_S = 86_400.0  # seconds; so long a job that died keeps its messages for the next one


def archive_topic(
    spark: "SparkSession",
    client: "Client",
    archive: Archive,
    topic: TopicId,
    options: Mapping[str, str],
    *,
    tell: Callable[[Row, int | None], object],
) -> list[Row]:
    """Archive every closed hour that is not in the manifest; returns their rows.

    Meanwhile a hold keeps the topic's time to live from what is not archived. After an error it
    stays until it is over, so that the next run finds the same.

    Raises:
        ArchiveError: what was written is not what was read.
        TopicNotFoundError: there is none of that name.
    """
    client.topics.hold(topic, HOLD_NAME, 0, max_age=HOLD_MAX_AGE_S)
    # A topic that was created again holds nothing of an hour that was closed before.
    known = {row.hour for row in archive.rows(topic)}
    new = []
    for closed in closed_hours(client, topic, known=known):
        row = archive_hour(spark, archive, topic, closed, options)
        new.append(row)
        tell(row, None)  # how many are left is not known: each is looked for in its turn
        client.topics.hold(topic, HOLD_NAME, closed.hour.stop_ms, max_age=HOLD_MAX_AGE_S)
    with suppress(HoldNotFoundError):
        client.topics.release(topic, HOLD_NAME)
    return new


def archive_hour(
    spark: "SparkSession",
    archive: Archive,
    topic: TopicId,
    closed: ClosedHour,
    options: Mapping[str, str],
) -> Row:
    """Archive one hour, in the place of whatever is there. Raises: ArchiveError."""
    hour, what = closed.hour, f"hour {closed.hour} of {topic}"
    source = messages_of(spark, topic, options, start_ms=hour.start_ms, stop_ms=hour.stop_ms)
    row = Row(
        hour=hour,
        generation=closed.generation,
        after_ms=closed.after_ms,
        summary=summarize(source, generation=closed.generation, what=what),
        path=archive.hour_path(topic, hour),
    )
    staging = archive.staging(topic) / f"hour={hour.number}"
    write_files(source, staging)
    check(spark.read.parquet(str(staging)).select(*COLUMNS), row, what=f"{what}, as written,")
    move(staging, archive.root / row.path)
    archive.record(topic, [row])
    return row


def truncate_archived(client: "Client", archive: Archive, topic: TopicId) -> int | None:
    """Remove from the topic, for ever, what the archive has without a gap; returns before which
    time that is, in ms, or None where it has nothing.

    Raises:
        ArchiveError: files are gone that the manifest names.
        TopicHeldError: somebody has not read it yet.
    """
    generation = client.topics.get(topic).generation
    rows = archive.rows(topic)
    lost = sorted({row.path for row in rows if not (archive.root / row.path).is_dir()})
    if lost:
        raise ArchiveError(f"{archive.root} has no {lost[0]} any more, and nothing is truncated")
    reached_ms = watermark_ms(rows, generation=generation)
    if reached_ms == 0:
        return None
    client.topics.truncate(topic, reached_ms)
    return reached_ms


@click.command("archive")
@topic_argument
@root_option
@click.option(
    "--truncate", is_flag=True, help="Then remove from the topic what is archived without a gap."
)
@json_option
@click.pass_obj
def main(job: Job, *, topic: TopicId, root: Path, truncate: bool, as_json: bool) -> None:
    """Archive the closed hours of TOPIC to Parquet, verified."""
    archive = Archive(root)
    with archive.locked(), job.client() as client:
        client.topics.get(topic)  # before Spark, which takes its time to start
        with job.spark() as spark:
            rows = archive_topic(spark, client, archive, topic, job.options, tell=report_hours(job))
        reached_ms = truncate_archived(client, archive, topic) if truncate else None
    if not rows:
        job.tell("no further hour is closed: each is, once a decided message lies behind it")
    if as_json:
        count = sum(row.summary.count for row in rows)
        print_json({"hours": len(rows), "messages": count, "truncatedBefore": reached_ms})
        return
    click.echo(f"{messages_in_hours(topic, rows)} archived")
    if truncate:
        click.echo(f"the topic is truncated before {moment(reached_ms) or 'nothing'}")
