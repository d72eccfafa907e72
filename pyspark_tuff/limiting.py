"""Where a micro-batch of so many messages ends.

The limit is shared: every topic gets the same part, and what one doesn't need goes to the others.
It is soft, since what one transaction published side by side is never cut in two.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from pyspark_tuff.columns import WRITE_POINTER
from pyspark_tuff.offsets import BEGINNING, Position, Positions, before
from pyspark_tuff.planning import View
from tuff.protocol.ids import MessageId
from tuff.protocol.names import TopicId

if TYPE_CHECKING:
    from pyarrow import Int64Array

    from tuff.client import Client

POLL_COUNT_MAX = 10_000  # messages the driver looks at in one reply


@dataclass(slots=True)
class _Run:
    """A topic that is counted through: how far it got, and where it ends."""

    topic: TopicId
    place: str
    end: str

    @property
    def is_done(self) -> bool:
        return self.place >= self.end


def limited(
    client: "Client", view: View, begin: Positions, ends: Positions, *, count: int
) -> dict[TopicId, Position]:
    """The ends of a batch of about `count` messages: at least one of each topic that has any."""
    runs = [_Run(topic, _start(begin.get(topic), end), end.id) for topic, end in ends.items()]
    left = count
    while (open_runs := [run for run in runs if not run.is_done]) and left > 0:
        left -= _advance_all(client, view, open_runs, left)
    return {
        run.topic: Position(generation=ends[run.topic].generation, id=run.place) for run in runs
    }


def _start(after: Position | None, end: Position) -> str:
    if after is None or after.generation != end.generation:
        return BEGINNING
    return after.id


def _advance_all(client: "Client", view: View, runs: Sequence[_Run], count: int) -> int:
    part = max(count // len(runs), 1)
    return sum(_advance(client, view, run, part) for run in runs)


def _advance(client: "Client", view: View, run: _Run, count: int) -> int:
    """Move a run on by so many messages, and on to the end of what one pointer published there;
    returns how many they are."""
    passed_count = 0
    pointer: int | None = None
    while not run.is_done and (passed_count < count or pointer is not None):
        left = count - passed_count
        limit = min(left, POLL_COUNT_MAX) if left > 0 else POLL_COUNT_MAX
        question = view.question(after=run.place, through=run.end, limit=limit)
        reply = client.poll_batch(run.topic, question)
        pointers = reply.batch.column(WRITE_POINTER)
        taken = len(reply) if left > 0 else _count_of(pointer, pointers)
        passed_count += taken
        if taken < len(reply):
            first_left = reply.batch.column("id")[taken].as_py()
            run.place = before(MessageId.from_bytes(first_left))
            break
        run.place = run.end if reply.caught_up else reply.next_id.hex()
        pointer = pointers[-1].as_py() if len(pointers) else pointer
    return passed_count


def _count_of(pointer: int | None, pointers: "Int64Array") -> int:
    return sum(1 for _ in takewhile(lambda each: each == pointer, pointers.to_pylist()))
