"""Where a micro-batch of so many messages ends.

The limit is shared: every topic gets the same part, and what one doesn't need goes to the others.
It is soft, since what was published as one is never cut in two.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_tuff.offsets import BEGINNING, Position, Positions
from pyspark_tuff.planning import View
from tuff.protocol.ids import MessageId, past_group
from tuff.protocol.names import TopicId

if TYPE_CHECKING:
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
    """Move a run on by so many messages; returns how many they are."""
    passed_count = 0
    while passed_count < count and not run.is_done:
        poll = client.poll(
            run.topic,
            run.place or None,
            inclusive=run.place == BEGINNING,
            limit=min(count - passed_count, POLL_COUNT_MAX),
            isolation=view.isolation.value,
            through=run.end,
        )
        passed_count += len(poll)
        if poll.caught_up:
            run.place = run.end
        else:
            run.place = poll.next_id.hex()
    if not run.is_done:
        whole = past_group(MessageId.from_hex(run.place).place).hex()
        run.place = min(whole, run.end)
    return passed_count
