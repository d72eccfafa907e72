"""`audit`: what happened in each archived hour, and which program touched which data.

Messages are JSON objects. What kind of event one is, of which entity, and the ends of an edge stand
in members that the caller names. A message without its kind is no event: it goes to `<topic>.dlq`,
once, however often an hour is run again.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from pipeline.epochs import ALL_DONE, countdown, epoch_options, rows_left, sink_of
from pipeline.frames import archived, check, in_order, move, sync_files, whole_json
from pipeline.letters import dead_letters_of, letters
from pipeline.manifest import Archive, Row
from pipeline.running import (
    Job,
    create,
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

NO_EVENT = "it is no JSON object with a kind of event"
Function = TypeVar("Function", bound=Callable[..., object])

_MEMBER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """In which members events hold what; `a.b` is member `b` of the object `a`."""

    kind: str = "type"
    entity: str = "entity"
    program: str = "program"
    dataset: str = "dataset"
    access: str = "access"


def parsed(frame: "DataFrame", members: Members) -> "DataFrame":
    """The messages, with a column for each of the members: null where there is none."""
    from pyspark.sql.functions import get_json_object

    text = whole_json()
    columns = {
        field.name: get_json_object(text, f"$.{getattr(members, field.name)}")
        for field in fields(members)
    }
    return frame.withColumns(columns)


def counts(events: "DataFrame") -> "DataFrame":
    """How many events of each kind there were of each entity."""
    return events.where("kind is not null").groupBy("entity", "kind").count()


def lineage(events: "DataFrame") -> "DataFrame":
    """Which program accessed which dataset in which way: how often, first and last."""
    from pyspark.sql.functions import count, lit
    from pyspark.sql.functions import max as newest
    from pyspark.sql.functions import min as oldest

    edges = events.where("kind is not null and dataset is not null and access is not null")
    return edges.groupBy("program", "dataset", "access").agg(
        oldest("timestamp").alias("first_seen"),
        newest("timestamp").alias("last_seen"),
        count(lit(1)).alias("count"),
    )


def no_events(events: "DataFrame", topic: TopicId) -> "DataFrame":
    """A letter for each message that is no event."""
    return letters(events.where("kind is null"), topic, reason=NO_EVENT)


def audit_topic(
    spark: "SparkSession",
    client: "Client",
    archive: Archive,
    topic: TopicId,
    out: Path,
    members: Members,
    options: Mapping[str, str],
    *,
    sink: str,
    tell: Callable[[Row, int | None], object],
) -> list[Row]:
    """Audit the hours of the archive that `sink` has not; returns their rows.

    Raises: ArchiveError: an hour is not as its row says; no later one is audited.
    """
    dead = dead_letters_of(topic)
    create(client, dead)
    left = rows_left(client, sink, archive.rows(topic))
    for behind, row in countdown(left):
        frame = archived(spark, archive, row)
        check(frame, row, what=f"hour {row.hour} of {topic}")
        events = parsed(frame, members)
        place = archive.hour_path(topic, row.hour).removeprefix("hours/")
        _replace(counts(events), out, "counts", place)
        _replace(lineage(events), out, "edges", place)
        # Last, as it is what says that the hour is done.
        bad = in_order(no_events(events, topic)).select("value")
        writer = bad.write.format("tuff").mode("append")
        writer.options(**options, **epoch_options(sink, row), topic=str(dead)).save()
        tell(row, behind)
    return left


def _replace(frame: "DataFrame", out: Path, kind: str, place: str) -> None:
    aside = out.absolute() / "_staging" / kind / place
    frame.coalesce(1).write.mode("overwrite").option("compression", "zstd").parquet(str(aside))
    sync_files(aside)
    move(aside, out.absolute() / kind / place)


def _checked(_: click.Context, option: click.Parameter, value: str) -> str:
    if not _MEMBER.fullmatch(value):
        raise click.BadParameter(f"{value!r} is no member, as `a` or `a.b`", param=option)
    return value


def _member_option(name: str, what: str) -> Callable[[Function], Function]:
    """An option that says which member of an event holds something."""
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
    type=click.Path(file_okay=False, path_type=Path),
    help="Where counts/ and edges/ go, as Parquet of each hour.",
)
@_member_option("kind", "the kind of event")
@_member_option("entity", "what it happened to")
@_member_option("program", "who accessed data")
@_member_option("dataset", "which data that was")
@_member_option("access", "in which way")
@click.option(
    "--sink", help="Under which name the server knows what is done (default: audit/TOPIC)."
)
@json_option
@click.pass_obj
def main(
    job: Job,
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
    archive.require(topic)
    with archive.locked(), job.client() as client:
        create(client, dead_letters_of(topic))  # before Spark, which takes its time to start
        with job.spark() as spark:
            tell = report_hours(job)
            rows = audit_topic(
                spark, client, archive, topic, out, named, job.options, sink=name, tell=tell
            )
    if not rows:
        job.tell(ALL_DONE.format(sink=name))
    if as_json:
        print_json({"hours": len(rows), "messages": sum(row.summary.count for row in rows)})
        return
    click.echo(f"{messages_in_hours(topic, rows)} audited")
