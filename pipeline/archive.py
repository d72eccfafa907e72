"""`archive`: writes closed hours of a topic to Parquet, each verified before it is recorded.

Each partition of a topic is archived as a log of its own. In these functions `topic` is one.

An hour is closed once all messages up to a later one are decided. From then on no message is added
to it, and none in it changes (protocol §3.6). So two reads of it return the same messages.

The job reads an hour, writes it to a staging directory, reads it back, compares both, moves the
directory to its final path, and then adds a row to the manifest. If it dies before the last step,
nothing is archived, and the next run repeats the hour.

With `--truncate` it then removes from the topic the hours that the manifest has without a gap.
Before that it looks up every message to be removed in the files again, because a truncation can't
be undone.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernel.archive_manifest import Archive, ArchiveError, Entry, Hour, files_in, watermark_ms
from pipeline.frames import (
    archived,
    check,
    in_files,
    messages_of,
    move,
    require_archived,
    summarize,
    write_files,
)
from pipeline.job import (
    Settings,
    json_option,
    message_count,
    messages_in_hours,
    print_result,
    report,
    report_hour,
    root_option,
    topic_argument,
)
from tuff.blocking.client import Client
from tuff.protocol.errors import HoldNotFoundError
from tuff.protocol.ids import MessageId, TopicId
from tuff_cli.output import moment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOLD_NAME = "tuff-archive"
HOLD_MAX_AGE_S = (
    86_400.0  # seconds; how long the hold of a dead job keeps messages for the next run
)
# A truncation stores a named position on the topic; its name identifies the archive.
POSITION_PREFIX = "tuff-archive-"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedHour:
    """A closed hour that has messages. `after_ms`: from this time to the start of the hour the
    topic has no committed messages; 0 if it has none before the hour."""

    hour: Hour
    generation: int
    after_ms: int


def archive_topic(
    spark: "SparkSession",
    client: Client,
    archive: Archive,
    topic: TopicId,
    options: Mapping[str, str],
) -> list[Entry]:
    """Archive every closed hour that is not in the manifest; returns the new rows.

    Meanwhile a retention hold keeps messages that are not archived from expiring. After an error
    the hold stays until its age limit, so that the next run finds the same messages.

    Raises:
        ArchiveError: the files differ from the messages that were read.
        TopicNotFoundError: the topic does not exist.
    """
    hold = client.holds.set(topic, HOLD_NAME, 0, max_age=HOLD_MAX_AGE_S)
    record_missing_checksums(spark, archive, topic)
    # A topic that was created again has no messages in hours that were closed before.
    known = {row.hour for row in archive.entries(topic)}
    new = []
    for closed in closed_hours(client, topic, known=known):
        kept_from_ms = hold.first.publish_timestamp_ms
        row = archive_hour(spark, archive, topic, closed, options, kept_from_ms=kept_from_ms)
        new.append(row)
        report_hour(row)
        client.holds.set(topic, HOLD_NAME, closed.hour.stop_ms, max_age=HOLD_MAX_AGE_S)
    with suppress(HoldNotFoundError):
        client.holds.delete(topic, HOLD_NAME)
    return new


def closed_hours(
    client: Client, topic: TopicId, *, known: Collection[Hour]
) -> Iterator[ClosedHour]:
    """The closed hours that have messages and are not `known`, oldest first. Hours without
    messages cost no request.

    Raises: TopicNotFoundError.
    """
    offsets = client.offsets(topic, isolation="committed")
    if offsets.end is None:
        return
    open_hour = Hour.at(offsets.end.publish_timestamp_ms)
    start_ms = None
    while (found := _first(client, topic, start_ms)) is not None:
        hour = Hour.at(found.publish_timestamp_ms)
        if hour >= open_hour:
            return
        if hour not in known:
            yield ClosedHour(hour=hour, generation=offsets.generation, after_ms=start_ms or 0)
        start_ms = hour.stop_ms


def _first(client: Client, topic: TopicId, start_ms: int | None) -> MessageId | None:
    """The first committed message from a time on; None if no decided one is committed. Without a
    time it is the first of the log: before the log, the server may read this very archive."""
    poll = client.poll(topic, start_ms, limit=1, isolation="committed")
    while not poll and not poll.caught_up and poll.blocked_by is None:
        # All messages that the poll scanned were aborted.
        poll = client.poll(topic, poll.next_id, inclusive=False, limit=1, isolation="committed")
    return poll[0].id if poll else None


def archive_hour(
    spark: "SparkSession",
    archive: Archive,
    topic: TopicId,
    closed: ClosedHour,
    options: Mapping[str, str],
    *,
    kept_from_ms: int,
) -> Entry:
    """Archive one hour; replaces files at its path. `kept_from_ms`: as in `Entry`.

    Raises: ArchiveError.
    """
    hour, what = closed.hour, f"hour {closed.hour} of {topic}"
    source = messages_of(spark, topic, options, start_ms=hour.start_ms, stop_ms=hour.stop_ms)
    row = Entry(
        hour=hour,
        generation=closed.generation,
        after_ms=closed.after_ms,
        summary=summarize(source, generation=closed.generation, what=what),
        path=archive.hour_path(topic, hour),
        kept_from_ms=kept_from_ms,
    )
    staging = archive.staging(topic) / f"hour={hour.number}"
    write_files(source, staging)
    row = replace(row, files=files_in(staging))
    check(in_files(spark, staging), row, what=f"{what}, as written,")
    move(staging, archive.root / row.path)
    archive.record(topic, [row])
    return row


def record_missing_checksums(spark: "SparkSession", archive: Archive, topic: TopicId) -> None:
    """Add the checksums of files to rows of version 0.1.0, without which the server reads no file.

    Raises: ArchiveError: a file differs from its row.
    """
    for row in archive.entries(topic):
        if not row.files:
            found = files_in(archive.root / row.path)
            check(archived(spark, archive, row), row, what=f"hour {row.hour} of {topic}")
            archive.record(topic, [replace(row, files=found)])


def truncate_archived(
    spark: "SparkSession",
    client: Client,
    archive: Archive,
    topic: TopicId,
    options: Mapping[str, str],
) -> int | None:
    """Remove from the topic, permanently, the messages that the archive has without a gap.

    Returns the time in ms before which the topic is truncated; None if the archive has no rows.

    Raises:
        ArchiveError: files that the manifest names are missing or damaged, they lack a message that
            would be removed, or another archive has earlier hours; nothing is removed.
        TopicHeldError: a consumer's hold protects these messages.
    """
    generation = client.topics.get(topic).generation
    rows = archive.entries(topic)
    lost = sorted({row.path for row in rows if not _has_files(archive.root / row.path)})
    if lost:
        raise ArchiveError(f"{archive.root} has lost {lost[0]}, so nothing is truncated")
    reached_ms = watermark_ms(rows, generation=generation)
    if reached_ms == 0:
        return None
    oldest = client.offsets(topic, isolation="all").earliest
    if oldest is None or oldest.publish_timestamp_ms >= reached_ms:
        return reached_ms
    require_same_archive(client, archive, topic)
    of_topic = [row for row in rows if row.generation == generation]
    to_remove = [
        row for row in of_topic if oldest.publish_timestamp_ms < row.hour.stop_ms <= reached_ms
    ]
    verify(spark, archive, topic, to_remove, options, start_ms=oldest.publish_timestamp_ms)
    # Before the truncation: from then on no other archive may be mistaken for this one.
    last = MessageId.from_int(MessageId(reached_ms, 0).to_int() - 1)
    client.positions.set(topic, _position_name(archive), last)
    client.topics.truncate(topic, reached_ms)
    return reached_ms


def require_same_archive(client: Client, archive: Archive, topic: TopicId) -> None:
    """Raises: ArchiveError: a job with another archive has truncated the topic. This happens if a
    volume is not mounted, so that its directory is empty."""
    ours = _position_name(archive)
    for position in client.positions.list(topic):
        if position.name.startswith(POSITION_PREFIX) and position.name != ours:
            raise ArchiveError(
                f"earlier hours of {topic} are in archive "
                f"{position.name.removeprefix(POSITION_PREFIX)}, and {archive.root} is archive "
                f"{archive.id()}, so nothing is truncated; mount the earlier one, or give its "
                f"--root. To use this archive from now on: "
                f"tuff positions rm {topic} {position.name}"
            )


def verify(
    spark: "SparkSession",
    archive: Archive,
    topic: TopicId,
    rows: Sequence[Entry],
    options: Mapping[str, str],
    *,
    start_ms: int,
) -> None:
    """Compare the files of these rows with the manifest, and all messages of the topic from
    `start_ms`, the first of its log, up to the last of these rows with the files.

    Raises: ArchiveError: they differ.
    """
    for row in rows:
        what = f"{archive.root / row.path}, for hour {row.hour} of {topic},"
        stored = archived(spark, archive, row)
        check(stored, row, what=what)
        stop_ms = row.hour.stop_ms
        left = messages_of(spark, topic, options, start_ms=start_ms, stop_ms=stop_ms)
        require_archived(left, stored, what=what)
        start_ms = stop_ms


def _position_name(archive: Archive) -> str:
    return f"{POSITION_PREFIX}{archive.id()}"


def _has_files(directory: Path) -> bool:
    return any(directory.glob("*.parquet"))


@click.command("archive")
@topic_argument
@root_option
@click.option(
    "--truncate",
    is_flag=True,
    help="Then remove from the topic the messages that are archived without a gap.",
)
@json_option
@click.pass_obj
def main(settings: Settings, *, topic: TopicId, root: Path, truncate: bool, as_json: bool) -> None:
    """Archive the closed hours of TOPIC to Parquet, verified."""
    from pyspark_tuff.planning import partitions_of

    archive = Archive(root)
    with archive.locked(), settings.client() as client:
        logs = partitions_of(client, topic)  # before Spark, which starts slowly
        if truncate:
            for log in logs:
                require_same_archive(client, archive, log)
        with settings.spark() as spark:
            results = [
                _archive_log(spark, client, archive, log, settings.options, truncate=truncate)
                for log in logs
            ]
    if len(logs) == 1:
        logs = [topic]
    if not any(result.rows for result in results):
        report("no further hour is closed: an hour is closed once a later message is decided")
    sentences = [result.sentence(log) for log, result in zip(logs, results, strict=True)]
    rows = [row for result in results for row in result.rows]
    reached_ms = min((result.reached_ms or 0 for result in results), default=0) or None
    form = {"hours": len(rows), "messages": message_count(rows), "truncatedBefore": reached_ms}
    print_result(form, "\n".join(sentences), as_json=as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """What the job has done with one partition. `reached_ms`: as `truncate_archived` returns."""

    rows: Sequence[Entry]
    is_truncated: bool
    reached_ms: int | None

    def sentence(self, topic: TopicId) -> str:
        said = f"{messages_in_hours(topic, self.rows)} archived"
        if self.is_truncated:
            said += f"\nthe topic is truncated before {moment(self.reached_ms) or 'nothing'}"
        return said


def _archive_log(
    spark: "SparkSession",
    client: Client,
    archive: Archive,
    log: TopicId,
    options: Mapping[str, str],
    *,
    truncate: bool,
) -> _Result:
    rows = archive_topic(spark, client, archive, log, options)
    reached_ms = None
    if truncate:
        reached_ms = truncate_archived(spark, client, archive, log, options)
    return _Result(rows=rows, is_truncated=truncate, reached_ms=reached_ms)
