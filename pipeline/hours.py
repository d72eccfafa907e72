"""Hours of a topic, in UTC: their names, which are closed, and which a job has completed.

An hour is closed once all messages up to a later one are decided. From then on no message is added
to it, and none in it changes (protocol §3.6). So two reads of it return the same messages.

A job writes hour after hour of an archive to a sink, with the number of the hour as the epoch
(protocol §5.3). So the server records the last completed hour in the transaction that writes it,
and no local file can disagree. One number is enough, because hours are archived in order.
"""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tuff.protocol.errors import SinkNotFoundError
from tuff.protocol.ids import SINK_NAME_LENGTH_MAX, MessageId, TopicId

if TYPE_CHECKING:
    from pipeline.manifest import Row
    from tuff.blocking.client import Client

HOUR_MS = 3_600_000
HOURS_PER_DAY = 24
HASH_LENGTH = 32  # hex digits; no two long names share a hash
ALL_DONE = "nothing to do: the sink {sink} has committed all archived hours"


@dataclass(frozen=True, slots=True, order=True)
class Hour:
    """One hour; `number` counts hours since 1970."""

    number: int

    @classmethod
    def at(cls, time_ms: int) -> "Hour":
        """The hour that contains a time."""
        return cls(time_ms // HOUR_MS)

    @property
    def start_ms(self) -> int:
        return self.number * HOUR_MS

    @property
    def stop_ms(self) -> int:
        return self.start_ms + HOUR_MS

    @property
    def day(self) -> str:
        """As `2026-11-22`."""
        return self._moment().strftime("%Y-%m-%d")

    @property
    def of_day(self) -> str:
        """As `05`."""
        return self._moment().strftime("%H")

    @property
    def is_last_of_day(self) -> bool:
        return self.number % HOURS_PER_DAY == HOURS_PER_DAY - 1

    def __str__(self) -> str:
        return f"{self.day}T{self.of_day}"

    def _moment(self) -> datetime:
        return datetime.fromtimestamp(self.start_ms / 1000, tz=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedHour:
    """A closed hour that has messages. `after_ms`: from this time to the start of the hour the
    topic has no committed messages; 0 if it has none before the hour."""

    hour: Hour
    generation: int
    after_ms: int


def closed_hours(
    client: "Client", topic: TopicId, *, known: Collection[Hour]
) -> Iterator[ClosedHour]:
    """The closed hours that have messages and are not `known`, oldest first. Hours without
    messages cost no request.

    Raises: TopicNotFoundError.
    """
    offsets = client.offsets(topic, isolation="committed")
    if offsets.end is None:
        return
    open_hour = Hour.at(offsets.end.publish_timestamp_ms)
    start_ms = 0
    while (found := _first(client, topic, start_ms)) is not None:
        hour = Hour.at(found.publish_timestamp_ms)
        if hour >= open_hour:
            return
        if hour not in known:
            yield ClosedHour(hour=hour, generation=offsets.generation, after_ms=start_ms)
        start_ms = hour.stop_ms


def _first(client: "Client", topic: TopicId, start_ms: int) -> MessageId | None:
    """The first committed message from a time on; None if no decided one is committed."""
    poll = client.poll(topic, start_ms, limit=1, isolation="committed")
    while not poll and not poll.caught_up and poll.blocked_by is None:
        # All messages that the poll scanned were aborted.
        poll = client.poll(topic, poll.next_id, inclusive=False, limit=1, isolation="committed")
    return poll[0].id if poll else None


def sink_of(job: str, *topics: TopicId) -> str:
    """The default name of a job's sink: `JOB/TOPIC` or `JOB/TOPIC/TARGET`.

    The names of two topics can exceed the limit of a sink's name. Such a name is cut, and ends in
    `::` and a hash of the whole name; no shorter name contains `::`.
    """
    name = "/".join((job, *map(str, topics)))
    if len(name) <= SINK_NAME_LENGTH_MAX:
        return name
    end = "::" + hashlib.sha256(name.encode("ascii")).hexdigest()[:HASH_LENGTH]
    return name[: SINK_NAME_LENGTH_MAX - len(end)] + end


def rows_left(client: "Client", sink: str, rows: "Sequence[Row]") -> "list[Row]":
    """The rows whose hours this sink has not committed, oldest first."""
    try:
        found = client.sinks.get(sink)
    except SinkNotFoundError:
        return list(rows)
    first = found.epoch + 1 if found.state == "committed" else found.epoch
    return [row for row in rows if row.hour.number >= first]


def epoch_options(sink: str, row: "Row") -> dict[str, str]:
    """Options that make a write of this row's hour idempotent."""
    return {"txnAppId": sink, "txnVersion": str(row.hour.number)}


def countdown(rows: "Sequence[Row]") -> "Iterator[tuple[int, Row]]":
    """Each row, with the number of rows after it."""
    return zip(reversed(range(len(rows))), rows, strict=True)
