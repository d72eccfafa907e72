"""`lag`: how far readers are behind the ends of their topics. It runs without Spark.

Readers are streaming queries, whose positions are in their checkpoints, and consumers that store a
named position on the server (protocol §3.9).

    DIR/offsets/N   "v1", a line about the batch, then for each source a line: JSON, or "-"
    DIR/commits/N   exists once batch N is written

All messages up to the offsets of the newest committed batch are written.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.job import Settings
from tuff.blocking.client import Client
from tuff.protocol.errors import TopicNotFoundError, TuffError
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.sentences import counted
from tuff.replies import Offsets
from tuff_cli.options import PathType, topic_of
from tuff_cli.output import Table, print_json, print_table, seconds

if TYPE_CHECKING:
    from pyspark_tuff.checkpoint_offsets import Position

COUNT_MAX = 10_000  # messages that are counted; the lag of a reader further behind is shown as this
OFFSETS_VERSION = "v1"


class CheckpointError(TuffError):
    """A directory is not a checkpoint of a query that reads topics, or a later Spark wrote it."""

    code = "bad_checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """How far a reader has read one generation of a partition; `position` None: nothing yet."""

    name: str
    topic: TopicId
    generation: int
    position: MessageId | None

    @property
    def topic_name(self) -> str:
        """The name of the partition's log, which for partition 0 is that of the topic."""
        return str(self.topic.log)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """The lag of a reader. `state`: `ok`; `maybe lost` if messages after its position may have
    expired; `created again` or `deleted` if its topic was, and then the numbers are 0.

    `count`: decided messages, COUNT_MAX at most. `behind_ms`: the difference between the publish
    times of the last message that was read and the last one of the topic.
    """

    reader: Reader
    state: str
    count: int
    behind_ms: int


def readers_of_checkpoint(checkpoint: Path) -> Iterator[Reader]:
    """What a query reads, under the name of its directory. Raises: CheckpointError."""
    for topic, position in written_up_to(checkpoint).items():
        yield Reader(
            name=checkpoint.absolute().name,
            topic=topic,
            generation=position.generation,
            position=MessageId.from_hex(position.id) if position.id else None,
        )


def written_up_to(checkpoint: Path) -> "dict[TopicId, Position]":
    """The position up to which the query has written each partition; empty before its first batch.

    Raises: CheckpointError.
    """
    from pyspark_tuff.checkpoint_offsets import from_json
    from pyspark_tuff.errors import OffsetError

    newest = max(_batches(checkpoint / "commits"), default=None)
    if newest is None:
        if not (checkpoint / "offsets").is_dir():
            raise CheckpointError(f"{checkpoint} is not a checkpoint of a query: it has no offsets")
        return {}
    found: dict[TopicId, Position] = {}
    for line in _sources(checkpoint / "offsets" / str(newest)):
        try:
            found |= from_json(json.loads(line))
        except (OffsetError, ValueError):
            continue  # the offset of another source: a query may have several
    if not found:
        raise CheckpointError(f"the query of {checkpoint} reads no topics")
    return found


def _batches(directory: Path) -> Iterator[int]:
    if directory.is_dir():
        yield from (int(file.name) for file in directory.iterdir() if file.name.isdecimal())


def _sources(file: Path) -> list[str]:
    try:
        version, _, *sources = file.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} can't be read: {error}") from None
    if version != OFFSETS_VERSION:
        raise CheckpointError(
            f"{file} has version {version[:20]!r}, but only {OFFSETS_VERSION} is known"
        )
    return [line for line in sources if line != "-"]


def readers_of_topic(client: Client, topic: TopicId) -> Iterator[Reader]:
    """The readers with a named position on a partition of a topic. Raises: TopicNotFoundError."""
    from pyspark_tuff.planning import partitions_of

    for partition in partitions_of(client, topic):
        for known in client.positions.list(partition):
            yield Reader(
                name=known.name,
                topic=partition,
                generation=known.generation,
                position=known.position,
            )


def lag_of(client: Client, reader: Reader) -> Lag:
    """The current lag of a reader."""
    try:
        offsets = client.offsets(reader.topic, isolation="committed")
    except TopicNotFoundError:
        return Lag(reader=reader, state="deleted", count=0, behind_ms=0)
    if offsets.generation != reader.generation:
        return Lag(reader=reader, state="created again", count=0, behind_ms=0)
    count, has_expired = _unread(client, reader)
    return Lag(
        reader=reader,
        state="maybe lost" if has_expired and not _last_read_exists(reader, offsets) else "ok",
        count=count,
        behind_ms=_behind_ms(reader, offsets.end),
    )


def _unread(client: Client, reader: Reader) -> tuple[int, bool]:
    """The number of messages after a reader's position, and whether some have expired."""
    count, after, has_expired = 0, reader.position, False
    while count < COUNT_MAX:
        poll = client.poll(
            reader.topic,
            after,
            inclusive=after is None,
            limit=COUNT_MAX - count,
            isolation="committed",
        )
        has_expired |= poll.expired and after == reader.position
        count += len(poll)
        if poll.caught_up or poll.blocked_by is not None:
            break
        after = poll.next_id
    return count, has_expired


def _last_read_exists(reader: Reader, offsets: Offsets) -> bool:
    """Whether the last message that was read still exists, so that no later one has expired."""
    if offsets.earliest is None or reader.position is None:
        return False
    return offsets.earliest <= reader.position


def _behind_ms(reader: Reader, end: MessageId | None) -> int:
    if end is None or reader.position is None:
        return 0
    return max(end.publish_timestamp_ms - reader.position.publish_timestamp_ms, 0)


def prometheus(lags: Sequence[Lag]) -> str:
    """The lags as metrics, in the text form of Prometheus."""
    from prometheus_client import CollectorRegistry, Gauge, generate_latest

    registry, labels = CollectorRegistry(), ("reader", "topic")
    messages = Gauge(
        "tuff_lag_messages",
        f"Messages that a reader has not read, {COUNT_MAX} at most.",
        labels,
        registry=registry,
    )
    behind = Gauge(
        "tuff_lag_seconds",
        "Difference of publish times between the last message read and the last one of the topic.",
        labels,
        registry=registry,
    )
    broken = Gauge(
        "tuff_lag_broken",
        "1 where messages were lost, or the topic was deleted or created again.",
        labels,
        registry=registry,
    )
    for lag in lags:
        named = (lag.reader.name, lag.reader.topic_name)
        messages.labels(*named).set(lag.count)
        behind.labels(*named).set(lag.behind_ms / 1000)
        broken.labels(*named).set(lag.state != "ok")
    return generate_latest(registry).decode("utf-8")


@click.command("lag")
@click.option(
    "--checkpoint",
    "checkpoints",
    multiple=True,
    type=PathType(exists=True, file_okay=False, path_type=Path),
    help="Checkpoint directory of a query; may be repeated.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    type=topic_of,
    metavar="TOPIC",
    help="Topic whose named positions are shown; may be repeated.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(("table", "json", "prometheus")),
    default="table",
    show_default=True,
)
@click.pass_obj
def main(
    settings: Settings, *, checkpoints: Sequence[Path], topics: Sequence[TopicId], form: str
) -> None:
    """Show how far queries and named positions are behind the ends of their topics."""
    if not checkpoints and not topics:
        raise click.UsageError("give at least one --checkpoint or --topic")
    readers = [reader for each in checkpoints for reader in readers_of_checkpoint(each)]
    with settings.client() as client:
        readers += [reader for topic in topics for reader in readers_of_topic(client, topic)]
        lags = [lag_of(client, reader) for reader in readers]
    match form:
        case "json":
            print_json([_form(lag) for lag in lags])
        case "prometheus":
            click.echo(prometheus(lags), nl=False)
        case _:
            _print_lags(lags)


def _print_lags(lags: Sequence[Lag]) -> None:
    rows = [
        (
            lag.reader.name,
            lag.reader.topic_name,
            lag.state,
            _shown_count(lag),
            seconds(lag.behind_ms),
        )
        for lag in lags
    ]
    columns = ("reader", "topic", "state", "messages", "behind")
    print_table(Table(columns, rows, counted(len(rows), "reader")))


def _shown_count(lag: Lag) -> str:
    return f"{lag.count} or more" if lag.count >= COUNT_MAX else str(lag.count)


def _form(lag: Lag) -> dict[str, object]:
    position = lag.reader.position
    return {
        "reader": lag.reader.name,
        "topic": lag.reader.topic_name,
        "generation": lag.reader.generation,
        "position": None if position is None else position.hex(),
        "state": lag.state,
        "messages": lag.count,
        "behindMs": lag.behind_ms,
    }
