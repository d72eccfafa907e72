"""`audit`: counts the events of each archived hour, and finds which program accessed which dataset.

Messages are JSON objects. The caller names the members that hold the kind of an event, its entity,
and the ends of a lineage edge. A message without a kind is not an event: the job writes it to
`<topic>.dlq`, once, however often it repeats an hour.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from kernel.archive_manifest import Archive, Entry, hour_partition
from pipeline.frames import ATTRIBUTES, IS_TEXT, in_order, move, sync_files, whole_json
from pipeline.job import (
    Settings,
    create,
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
from tuff.dead_letters import dead_letter_topic_of
from tuff.protocol.ids import TopicId
from tuff_cli.options import PathType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NOT_AN_EVENT = "it is not a JSON object with a kind of event"
Function = TypeVar("Function", bound=Callable[..., object])

_MEMBER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The members of an event that the audit reads; `a.b` is member `b` of the object `a`."""

    kind: str = "type"
    entity: str = "entity"
    program: str = "program"
    dataset: str = "dataset"
    access: str = "access"


def parsed(frame: "DataFrame", members: Members) -> "DataFrame":
    """The messages with a column for each member, which is null if the message lacks it."""
    from pyspark.sql.functions import get_json_object

    text = whole_json()
    columns = {
        field.name: get_json_object(text, f"$.{getattr(members, field.name)}")
        for field in fields(members)
    }
    return frame.withColumns(columns)


def counts(events: "DataFrame") -> "DataFrame":
    """The number of events by entity and kind."""
    return events.where("kind is not null").groupBy("entity", "kind").count()


def lineage(events: "DataFrame") -> "DataFrame":
    """The accesses by program, dataset and kind of access: count, first and last time."""
    from pyspark.sql.functions import count, lit
    from pyspark.sql.functions import max as newest
    from pyspark.sql.functions import min as oldest

    edges = events.where("kind is not null and dataset is not null and access is not null")
    return edges.groupBy("program", "dataset", "access").agg(
        oldest("timestamp").alias("first_seen"),
        newest("timestamp").alias("last_seen"),
        count(lit(1)).alias("count"),
    )


def not_events(events: "DataFrame", topic: TopicId) -> "DataFrame":
    """A dead letter for each message that is not an event, in a column `value`, with its id and
    its attributes."""
    value = dead_letter(topic, reason=NOT_AN_EVENT).alias("value")
    return events.where("kind is null").select("id", value, *ATTRIBUTES)


def dead_letter(topic: TopicId, *, reason: str) -> "Column":
    """The dead letter of a message of `topic`, as binary."""
    from pyspark.sql.functions import expr, lit, struct, to_json, when

    def form(payload: str) -> "Column":
        return to_json(
            struct(
                lit(str(topic)).alias("topic"),
                expr("lower(hex(id))").alias("id"),
                expr("unix_millis(timestamp)").alias("timestamp"),
                expr(payload).alias("payload"),
                lit(reason).alias("reason"),
                lit(1).alias("attempts"),
            )
        )

    encoded = form("named_struct('base64', base64(value))")
    return when(expr(IS_TEXT), form("string(value)")).otherwise(encoded).cast("binary")


def audit_topic(
    spark: "SparkSession",
    client: Client,
    archive: Archive,
    topic: TopicId,
    out: Path,
    members: Members,
    options: Mapping[str, str],
    *,
    sink: str,
) -> list[Entry]:
    """Audit the hours of the archive that `sink` has not committed; returns their rows.

    Raises: ArchiveError: the files of an hour differ from its row; later hours are not audited.
    """
    dead = dead_letter_topic_of(topic)
    create(client, dead)
    done = []
    for row, frame in hours_left(spark, client, archive, topic, sink=sink):
        events = parsed(frame, members)
        path = hour_partition(topic, row.hour)
        _replace(counts(events), out, "counts", path)
        _replace(lineage(events), out, "edges", path)
        # Last: the commit of this write records that the hour is done.
        bad = in_order(not_events(events, topic)).select("value", *ATTRIBUTES)
        writer = bad.write.format("tuff").mode("append")
        writer.options(**options, **epoch_options(sink, row), topic=str(dead)).save()
        done.append(row)
    return done


def _replace(frame: "DataFrame", out: Path, kind: str, path: str) -> None:
    aside = out.absolute() / "_staging" / kind / path
    frame.coalesce(1).write.mode("overwrite").option("compression", "zstd").parquet(str(aside))
    sync_files(aside)
    move(aside, out.absolute() / kind / path)


def _checked(_: click.Context, option: click.Parameter, value: str) -> str:
    if not _MEMBER.fullmatch(value):
        raise click.BadParameter(f"{value!r} is not a member such as `a` or `a.b`", param=option)
    return value


def _member_option(name: str, what: str) -> Callable[[Function], Function]:
    """An option that names a member of an event."""
    return click.option(
        f"--{name}",
        default=getattr(Members(), name),
        show_default=True,
        callback=_checked,
        help=f"The member that holds {what}.",
    )


@click.command("audit")
@topic_argument
@root_option
@click.option(
    "--out",
    required=True,
    type=PathType(file_okay=False, path_type=Path),
    help="Directory for counts/ and edges/, as Parquet files of each hour.",
)
@_member_option("kind", "the kind of event")
@_member_option("entity", "the entity of the event")
@_member_option("program", "the program that accessed data")
@_member_option("dataset", "the dataset that was accessed")
@_member_option("access", "the kind of access")
@click.option(
    "--sink",
    help="Name of the sink that records on the server which hours are done (default: audit/TOPIC).",
)
@json_option
@click.pass_obj
def main(
    settings: Settings,
    /,
    *,
    topic: TopicId,
    root: Path,
    out: Path,
    sink: str | None,
    as_json: bool,
    **members: str,
) -> None:
    """Count the events of TOPIC by hour, from its archive, and find the edges of its lineage."""
    named, archive, name = Members(**members), Archive(root), sink or sink_of("audit", topic)
    logs = archive.logs(topic)
    with archive.locked(), settings.client() as client:
        create(client, dead_letter_topic_of(topic))  # before Spark, which starts slowly
        with settings.spark() as spark:
            rows = []
            for log in logs:
                of_log = sink_of_partition(name, topic, log)
                rows += audit_topic(
                    spark, client, archive, log, out, named, settings.options, sink=of_log
                )
    print_hours(topic, rows, done="audited", sink=name, as_json=as_json)
