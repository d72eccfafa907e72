"""`replay`: writes an archive back into a topic, in order, each hour once.

One task writes each hour in one transaction, hour after hour, so the target has the order of the
source. Message ids and publish times are new; the payloads and the attributes are identical.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernel.archive_manifest import Archive, Entry
from pipeline.frames import ATTRIBUTES, in_order
from pipeline.job import (
    Settings,
    epoch_options,
    hours_left,
    json_option,
    print_hours,
    root_option,
    sink_of,
    sink_of_partition,
    topic_argument,
)
from tuff.blocking.client import Client
from tuff.protocol.ids import TopicId
from tuff_cli.options import topic_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def replay_topic(
    spark: "SparkSession",
    client: Client,
    archive: Archive,
    topic: TopicId,
    target: TopicId,
    options: Mapping[str, str],
    *,
    sink: str,
) -> list[Entry]:
    """Write the hours that `sink` has not committed into `target`; returns their rows.

    Raises: ArchiveError: the files of an hour differ from its row; it and later hours are not
    written.
    """
    done = []
    for row, frame in hours_left(spark, client, archive, topic, sink=sink):
        replay_hour(frame, target, {**options, **epoch_options(sink, row)})
        done.append(row)
    return done


def replay_hour(frame: "DataFrame", target: TopicId, options: Mapping[str, str]) -> None:
    """Write these messages, in order, in one transaction."""
    writer = in_order(frame).select("value", *ATTRIBUTES).write.format("tuff").mode("append")
    writer.options(**options, topic=str(target)).save()


@click.command("replay")
@topic_argument
@root_option
@click.option(
    "--to",
    "target",
    required=True,
    type=topic_of,
    metavar="TOPIC",
    help="The topic to write to.",
)
@click.option(
    "--sink",
    help="Name of the sink that records which hours are done (default: replay/TOPIC/TARGET).",
)
@json_option
@click.pass_obj
def main(
    settings: Settings,
    *,
    topic: TopicId,
    root: Path,
    target: TopicId,
    sink: str | None,
    as_json: bool,
) -> None:
    """Write the archive of TOPIC into another topic, in order, each message once."""
    if target.base == topic.base:
        raise click.UsageError(
            f"the target is {topic} itself: the replayed messages would be archived again"
        )
    archive = Archive(root)
    logs = archive.logs(topic)
    name = sink or sink_of("replay", topic, target)
    with archive.locked(), settings.client() as client:
        client.topics.get(target)  # before Spark, which starts slowly
        with settings.spark() as spark:
            rows = []
            for log in logs:
                of_log = sink_of_partition(name, topic, log)
                rows += replay_topic(
                    spark, client, archive, log, target, settings.options, sink=of_log
                )
    print_hours(topic, rows, done=f"replayed to {target}", sink=name, as_json=as_json)
