"""`replay`: an archive back into a topic, in order, each hour once.

Hours are written one after the other, each in one transaction and by one task, so the order of the
target is that of the source. Ids and publish times are new; payloads are the same bytes.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.epochs import ALL_DONE, countdown, epoch_options, rows_left, sink_of
from pipeline.frames import archived, check, in_order
from pipeline.manifest import Archive, Row
from pipeline.running import (
    Job,
    as_topic,
    json_option,
    messages_in_hours,
    report_hours,
    root_option,
    topic_argument,
)
from tuff.cli.output import print_json
from tuff.protocol.names import TopicId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tuff.client import Client


def replay_topic(
    spark: "SparkSession",
    client: "Client",
    archive: Archive,
    topic: TopicId,
    target: TopicId,
    options: Mapping[str, str],
    *,
    sink: str,
    tell: Callable[[Row, int | None], object],
) -> list[Row]:
    """Write what `sink` has not written of the archive into `target`; returns those rows.

    Raises:
        ArchiveError: an hour is not as its row says; it is not written, nor is any later one.
        TopicNotFoundError: create the target first.
    """
    client.topics.get(target)
    left = rows_left(client, sink, archive.rows(topic))
    for behind, row in countdown(left):
        frame = archived(spark, archive, row)
        check(frame, row, what=f"hour {row.hour} of {topic}")
        replay_hour(frame, target, {**options, **epoch_options(sink, row)})
        tell(row, behind)
    return left


def replay_hour(frame: "DataFrame", target: TopicId, options: Mapping[str, str]) -> None:
    """Write these messages, in order, in one transaction."""
    writer = in_order(frame).select("value").write.format("tuff").mode("append")
    writer.options(**options, topic=str(target)).save()


@click.command("replay")
@topic_argument
@root_option
@click.option("--to", "target", required=True, callback=as_topic, help="The topic to write to.")
@click.option(
    "--sink", help="Under which name the server knows what is done (default: replay/TOPIC/TARGET)."
)
@json_option
@click.pass_obj
def main(
    job: Job, *, topic: TopicId, root: Path, target: TopicId, sink: str | None, as_json: bool
) -> None:
    """Write the archive of TOPIC into another topic, in order, each message once."""
    if target == topic:
        raise click.UsageError(f"{topic} would be archived again with what is replayed into it")
    archive = Archive(root)
    archive.require(topic)
    name = sink or sink_of("replay", topic, target)
    with archive.locked(), job.client() as client:
        client.topics.get(target)  # before Spark, which takes its time to start
        with job.spark() as spark:
            tell = report_hours(job)
            rows = replay_topic(
                spark, client, archive, topic, target, job.options, sink=name, tell=tell
            )
    if not rows:
        job.tell(ALL_DONE.format(sink=name))
    if as_json:
        print_json({"hours": len(rows), "messages": sum(row.summary.count for row in rows)})
        return
    click.echo(f"{messages_in_hours(topic, rows)} replayed to {target}")
