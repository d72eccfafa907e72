"""Which hours of an archive a job has left, by what the server knows of its sink (protocol §5.3).

A job writes hour after hour, and the number of the hour is the epoch: so the server knows the last
hour that was written, beside whether it was, and no file here has to agree with it. That hours are
archived in order is what makes one number enough.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pipeline.manifest import Row
from tuff.protocol.errors import SinkNotFoundError
from tuff.protocol.names import SINK_NAME_LENGTH_MAX, TopicId

if TYPE_CHECKING:
    from tuff.client import Client

HASH_LENGTH = 32  # digits of base 16; two long names are never cut to the same
ALL_DONE = "nothing is left: the server knows all archived hours as done by the sink {sink}"


def sink_of(job: str, *topics: TopicId) -> str:
    """By which name the server knows what a job has done, unless it is given another: `JOB/TOPIC`,
    `JOB/TOPIC/TARGET`. Two topics can have longer names than a sink: what is too long ends in
    `::` and a hash of all of it, which no name does that fits."""
    name = "/".join((job, *map(str, topics)))
    if len(name) <= SINK_NAME_LENGTH_MAX:
        return name
    end = "::" + hashlib.sha256(name.encode("ascii")).hexdigest()[:HASH_LENGTH]
    return name[: SINK_NAME_LENGTH_MAX - len(end)] + end


def rows_left(client: "Client", sink: str, rows: Sequence[Row]) -> list[Row]:
    """The rows that this sink has not committed, oldest first."""
    try:
        found = client.sinks.get(sink)
    except SinkNotFoundError:
        return list(rows)
    first = found.epoch + 1 if found.state == "committed" else found.epoch
    return [row for row in rows if row.hour.number >= first]


def epoch_options(sink: str, row: Row) -> dict[str, str]:
    """What makes a write of this row happen once."""
    return {"txnAppId": sink, "txnVersion": str(row.hour.number)}


def countdown(rows: Sequence[Row]) -> Iterator[tuple[int, Row]]:
    """Each row with how many come after it."""
    return zip(reversed(range(len(rows))), rows, strict=True)
