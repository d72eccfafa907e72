"""Which messages a read takes, decided once on the driver's host, and cut into tasks.

A slice is what lies behind one place of a topic, up to and including another. Slices name the first
message that was there when they were planned: a task that doesn't find it knows that messages have
expired in between, and a time to live that ran out while nothing was there is no false alarm.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from pyspark_tuff.offsets import BEGINNING, Position, before_time
from pyspark_tuff.options import Edge, Isolation, ReadOptions, Spot
from tuff.calls import PollQuestion
from tuff.protocol.errors import TopicNotFoundError, TuffError
from tuff.protocol.ids import MessageId
from tuff.protocol.names import TopicId
from tuff.protocol.transaction import Transaction

if TYPE_CHECKING:
    from tuff.client import Client
    from tuff.columns import PollBatch
    from tuff.replies import Offsets

log = logging.getLogger(__name__)

TASKS_PER_MIN_PARTITION = (
    4  # a read of many topics gets so many times `minPartitions` tasks at most
)


class DataLossError(TuffError):
    """Messages that this read was to take are gone, or may be; `failOnDataLoss` says whether that
    ends it."""

    code = "data_loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Messages of one generation of a topic: behind `start`, up to and including `end`, as hex
    digits. `first`: the first of them when this was planned; None where none was visible."""

    topic: TopicId
    generation: int
    start: str
    end: str
    first: str | None


@dataclass
class Work(InputPartition):
    """What one task reads, in this order."""

    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What is visible: in the snapshot, if there is one, or by the isolation."""

    isolation: Isolation
    snapshot: Transaction | None = None

    @property
    def offsets_isolation(self) -> str:
        """How far it is worth reading: rows that are not decided are skipped in a snapshot."""
        return "committed" if self.isolation is Isolation.COMMITTED else "all"

    def question(self, *, after: str, through: str, limit: int) -> PollQuestion:
        """The poll for what lies behind a place, up to and including another."""
        return PollQuestion(
            start=after or None,
            inclusive=after == BEGINNING,
            limit=limit,
            transaction=self.snapshot,
            isolation=None if self.snapshot else self.isolation.value,
            undecided="skip" if self.snapshot else "hold",
            through=through,
        )


def take_view(client: "Client", isolation: Isolation) -> View:
    """The view of a batch read. A snapshot is the value only, and its transaction ends at once:
    what is visible depends on the snapshot and a message's pointer, and on nothing that is later.
    """
    if isolation is not Isolation.SNAPSHOT:
        return View(isolation=isolation)
    snapshot = client.transactions.start("short")
    client.transactions.commit(snapshot, read_only=True)
    return View(isolation=isolation, snapshot=snapshot)


def topics_of(client: "Client", options: ReadOptions) -> Sequence[TopicId]:
    """The topics to read, in order; those of a pattern are those that exist now."""
    if options.pattern is None:
        return options.topics
    names = client.topics.list(options.namespace)
    return [TopicId(options.namespace, n) for n in names if re.fullmatch(options.pattern, n)]


def require_topics(client: "Client", topics: Iterable[TopicId], *, option: str) -> None:
    """Raises: TopicNotFoundError: one of them is not there; the sentence names the option."""
    for topic in topics:
        try:
            client.topics.get(topic)
        except TopicNotFoundError:
            raise topic_not_found(client, topic, option=option) from None


def topic_not_found(client: "Client", topic: TopicId, *, option: str) -> TopicNotFoundError:
    """The error for a topic that an option names, with the nearest name that there is."""
    nearest = get_close_matches(topic.name, client.topics.list(topic.namespace), n=1)
    advice = f"did you mean {nearest[0]}? Otherwise create" if nearest else "create"
    return TopicNotFoundError(
        f"there is no topic {topic}, which the option {option} names; {advice} it: "
        f"tuff topics create {topic}"
    )


def place_of(spot: Spot, offsets: "Offsets") -> str:
    """The place behind which a read starts, or with which it ends, as hex digits.

    An id is that place itself; a time is the last place before it, so that a start at it includes
    it and an end at it does not.
    """
    match spot:
        case Edge.EARLIEST:
            return BEGINNING
        case Edge.LATEST:
            return BEGINNING if offsets.end is None else offsets.end.hex()
        case MessageId():
            return spot.hex()
        case int():
            return before_time(spot)


def plan_batch(client: "Client", options: ReadOptions, view: View) -> list[Work]:
    """The tasks of a batch read in this view, which was taken before."""
    slices: list[Slice] = []
    topics = topics_of(client, options)
    for topic in topics:
        try:
            offsets = client.offsets(topic, isolation=view.offsets_isolation)
        except TopicNotFoundError:
            raise topic_not_found(client, topic, option="subscribe") from None
        if offsets.end is None:
            continue
        start = place_of(options.starting.of(topic), offsets)
        end = min(place_of(options.ending.of(topic), offsets), offsets.end.hex())
        position = Position(generation=offsets.generation, id=start)
        if may_have_lost(client, topic, position, offsets):
            report_loss(expired(topic, start), fails=options.fail_on_data_loss)
        slices += slices_of(client, view, topic, position, end, count=share(options, len(topics)))
    return tasks_of(slices, options)


def share(options: ReadOptions, topic_count: int) -> int:
    """Into how many slices each of so many topics is to be cut."""
    return -(-options.min_partitions // max(topic_count, 1))


def slices_of(
    client: "Client", view: View, topic: TopicId, after: Position, end: str, *, count: int
) -> list[Slice]:
    """What lies behind a position of a topic, up to an end, in at most `count` slices."""
    if after.id >= end:
        return []
    return [
        Slice(topic=topic, generation=after.generation, start=start, end=stop, first=first)
        for start, stop in _bounds(client, topic, after.id, end, count)
        if (first := _first(client, view, topic, start, stop)) is not None
    ]


def tasks_of(slices: Sequence[Slice], options: ReadOptions) -> list[Work]:
    """One task for each slice; neighbours share one where there would be very many."""
    most = TASKS_PER_MIN_PARTITION * options.min_partitions
    size = max(-(-len(slices) // most), 1)
    return [Work(tuple(slices[at : at + size])) for at in range(0, len(slices), size)]


def may_have_lost(client: "Client", topic: TopicId, position: Position, offsets: "Offsets") -> bool:
    """Whether messages behind a position may have expired before anybody read them."""
    if position.id == BEGINNING:
        return False
    if offsets.earliest is not None and offsets.earliest.hex() <= position.id:
        return False
    return client.poll(topic, position.id, inclusive=False, limit=1).expired


def first_id(reply: "PollBatch") -> str | None:
    """The id of the first message of a reply, as hex digits; None where there is none."""
    return reply.batch.column("id")[0].as_py().hex() if len(reply) else None


def report_loss(sentence: str, *, fails: bool) -> None:
    """Raises: DataLossError: unless the user said that it doesn't matter."""
    if fails:
        raise DataLossError(f"{sentence}; set failOnDataLoss=false to go on with what is there")
    log.warning("%s; going on with what is there", sentence)


def expired(topic: TopicId, start: str) -> str:
    """The sentence of that loss."""
    return f"messages of {topic} behind {start} may have expired before they were read"


def _bounds(
    client: "Client", topic: TopicId, start: str, end: str, count: int
) -> Iterable[tuple[str, str]]:
    if count == 1:
        return [(start, end)]
    parts = client.topics.splits(topic, count, start=start or None, end=end)
    return [(BEGINNING if p.start is None else p.start.hex(), p.end.hex()) for p in parts]


def _first(client: "Client", view: View, topic: TopicId, start: str, end: str) -> str | None:
    return first_id(client.poll_batch(topic, view.question(after=start, through=end, limit=1)))
