"""Which hours of an archive a job has completed: the server records it as an epoch (protocol §5.3).

A job writes hour after hour to a sink, with the number of the hour as the epoch. So the server
stores the last hour in the transaction that writes it, and no local file can disagree. One number
is enough, because hours are archived in order.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pipeline.manifest import Row
from tuff.protocol.errors import SinkNotFoundError
from tuff.protocol.ids import SINK_NAME_LENGTH_MAX, TopicId

if TYPE_CHECKING:
    from tuff.blocking.client import Client

HASH_LENGTH = 32  # hex digits; no two long names share a hash
ALL_DONE = "nothing to do: the sink {sink} has committed all archived hours"


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


def rows_left(client: "Client", sink: str, rows: Sequence[Row]) -> list[Row]:
    """The rows whose hours this sink has not committed, oldest first."""
    try:
        found = client.sinks.get(sink)
    except SinkNotFoundError:
        return list(rows)
    first = found.epoch + 1 if found.state == "committed" else found.epoch
    return [row for row in rows if row.hour.number >= first]


def epoch_options(sink: str, row: Row) -> dict[str, str]:
    """Options that make a write of this row's hour idempotent."""
    return {"txnAppId": sink, "txnVersion": str(row.hour.number)}


def countdown(rows: Sequence[Row]) -> Iterator[tuple[int, Row]]:
    """Each row, with the number of rows after it."""
    return zip(reversed(range(len(rows))), rows, strict=True)
