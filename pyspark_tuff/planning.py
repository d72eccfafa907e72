"""Plans a read on the driver's host: which messages it takes, and which task reads which of them.

Each topic is read by its partitions, of which most topics have one: all `TopicId`s here and in the
positions of a stream are partitions, with their numbers, unless they are those of an option.

A slice is a range of ids of a partition: it excludes its start and includes its end. It has the id
of its first message at the time of planning. A task that doesn't find this message knows that
messages have expired since. Ranges without visible messages are left out, since nothing is lost
there.

`limit_ends` decides where a micro-batch with a limit ends.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import takewhile
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from pyspark_tuff.checkpoint_offsets import (
    BEGINNING,
    Position,
    Positions,
    before,
    before_time,
    continued,
)
from pyspark_tuff.columns import WRITE_POINTER
from pyspark_tuff.errors import DataLossError
from pyspark_tuff.options import Boundary, Edge, ReadIsolation, ReadOptions
from tuff.protocol.errors import TopicNotFoundError
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.transaction import Transaction
from tuff.read_calls import PollQuestion

if TYPE_CHECKING:
    from pyarrow import Int64Array

    from tuff.blocking.client import Client
    from tuff.protocol.requests import IsolationLike
    from tuff.read_calls import PollBatch
    from tuff.replies import Offsets

log = logging.getLogger(__name__)

TASKS_PER_MIN_PARTITION = 4  # times `minPartitions`: the most tasks of a read of many topics
POLL_COUNT_MAX = 10_000  # messages that the driver counts in one reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Messages of one generation of a partition: after the id `start`, up to and including `end`,
    as hex digits. `first`: the first of them that was visible at planning."""

    topic: TopicId
    generation: int
    start: str
    end: str
    first: str


@dataclass
class ReadTask(InputPartition):
    """The slices that one task reads, in this order."""

    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Which messages are visible: those of the snapshot, if there is one, else by isolation; of
    these the ones that `tags` select, or all if it is None."""

    isolation: ReadIsolation
    snapshot: Transaction | None = None
    tags: str | None = None

    @property
    def offsets_isolation(self) -> "IsolationLike":
        """The isolation for the end of a read. A snapshot read skips undecided rows."""
        return "committed" if self.isolation is ReadIsolation.COMMITTED else "all"

    def question(self, *, after: str, through: str, limit: int) -> PollQuestion:
        """The poll for messages after an id, up to and including another."""
        return PollQuestion(
            start=after or None,
            inclusive=after == BEGINNING,
            limit=limit,
            transaction=self.snapshot,
            isolation=None if self.snapshot else self.offsets_isolation,
            undecided="skip" if self.snapshot else "hold",
            through=through,
            tags=self.tags,
        )


def take_view(client: "Client", options: ReadOptions) -> View:
    """The view of a batch read.

    The transaction of the snapshot ends at once, and the read keeps only its value: visibility
    depends on the snapshot and the write pointer of a message, and on no later event.
    """
    view = View(isolation=options.isolation, tags=options.tags)
    if view.isolation is not ReadIsolation.SNAPSHOT:
        return view
    snapshot = client.transactions.start("short")
    client.transactions.commit(snapshot, read_only=True)
    return replace(view, snapshot=snapshot)


def topics_of(client: "Client", options: ReadOptions) -> Sequence[TopicId]:
    """The topics to read, as the options name them; a pattern selects among those that exist."""
    if options.pattern is None:
        return options.topics
    names = client.topics.list(options.namespace)
    return [TopicId(options.namespace, n) for n in names if re.fullmatch(options.pattern, n)]


def partitions_of(client: "Client", topic: TopicId) -> list[TopicId]:
    """The partitions of a topic that can be read now, retired ones too; a partition is its own.

    Raises: TopicNotFoundError.
    """
    if topic.number is not None:
        return [topic]
    info = client.topics.get(topic)
    return [topic.partition(number) for number in sorted((*info.partitions, *info.retired))]


def require_topics(client: "Client", topics: Iterable[TopicId], *, option: str) -> None:
    """Raises: TopicNotFoundError: a topic does not exist; the message names the option."""
    for topic in topics:
        try:
            client.topics.get(topic)
        except TopicNotFoundError:
            raise topic_not_found(client, topic, option=option) from None


def topic_not_found(client: "Client", topic: TopicId, *, option: str) -> TopicNotFoundError:
    """The error for a missing topic that an option names; suggests the most similar topic."""
    nearest = get_close_matches(topic.name, client.topics.list(topic.namespace), n=1)
    advice = f"did you mean {nearest[0]}? Otherwise create" if nearest else "create"
    return TopicNotFoundError(
        f"there is no topic {topic}, which the option {option} names; {advice} it: "
        f"tuff topics create {topic}"
    )


def boundary_id(boundary: Boundary, offsets: "Offsets") -> str:
    """The id after which a read starts, or with which it ends, as hex digits.

    A time becomes the largest id below it: a start at a time includes messages of that time, and an
    end at a time excludes them.
    """
    match boundary:
        case Edge.EARLIEST:
            return BEGINNING
        case Edge.LATEST:
            return BEGINNING if offsets.end is None else offsets.end.hex()
        case MessageId():
            return boundary.hex()
        case int():
            return before_time(boundary)


def plan_batch(client: "Client", options: ReadOptions, view: View) -> list[ReadTask]:
    """The tasks of a batch read in this view."""
    slices: list[Slice] = []
    found = _offsets_of_all(client, options, view)
    count = slices_per_topic(options, len(found))
    for topic, offsets in found.items():
        if offsets.end is None:
            continue
        start = boundary_id(options.starting.of(topic), offsets)
        end = min(boundary_id(options.ending.of(topic), offsets), offsets.end.hex())
        position = Position(generation=offsets.generation, id=start)
        if may_have_expired(client, topic, position, offsets):
            report_expiry(options, topic, position)
        slices += slices_of(client, view, topic, position, end, count=count)
    return tasks_of(slices, options)


def _offsets_of_all(client: "Client", options: ReadOptions, view: View) -> "dict[TopicId, Offsets]":
    """The offsets of all partitions of all topics. Raises: TopicNotFoundError."""
    found = {}
    for topic in topics_of(client, options):
        try:
            for each in partitions_of(client, topic):
                found[each] = client.offsets(each, isolation=view.offsets_isolation)
        except TopicNotFoundError:
            raise topic_not_found(client, topic, option="subscribe") from None
    return found


def slices_per_topic(options: ReadOptions, topic_count: int) -> int:
    """The number of slices of each partition, when so many share `minPartitions`."""
    return -(-options.min_partitions // max(topic_count, 1))


def slices_of(
    client: "Client", view: View, topic: TopicId, after: Position, end: str, *, count: int
) -> list[Slice]:
    """The messages after a position of a topic, up to an end, in at most `count` slices."""
    if after.id >= end:
        return []
    return [
        Slice(topic=topic, generation=after.generation, start=start, end=stop, first=first)
        for start, stop in _bounds(client, topic, after.id, end, count)
        if (first := _first(client, view, topic, start, stop)) is not None
    ]


def tasks_of(slices: Sequence[Slice], options: ReadOptions) -> list[ReadTask]:
    """One task for each slice; neighbouring slices share a task if there are very many."""
    most = TASKS_PER_MIN_PARTITION * options.min_partitions
    size = max(-(-len(slices) // most), 1)
    return [ReadTask(tuple(slices[at : at + size])) for at in range(0, len(slices), size)]


def may_have_expired(
    client: "Client", topic: TopicId, position: Position, offsets: "Offsets"
) -> bool:
    """Whether messages after a position may have expired before they were read."""
    if position.id == BEGINNING:
        return False
    if offsets.earliest is not None and offsets.earliest.hex() <= position.id:
        return False
    return client.poll(topic, position.id, inclusive=False, limit=1, isolation="all").expired


def first_id(reply: "PollBatch") -> str | None:
    """The id of the first message of a reply, as hex digits; None if it has none."""
    return reply.batch.column("id")[0].as_py().hex() if len(reply) else None


def report_expiry(options: ReadOptions, topic: TopicId, after: Position) -> None:
    """Report that messages after a position may have expired. Raises: DataLossError."""
    report_loss(
        options, f"messages of {topic.log} after {after.id} may have expired before they were read"
    )


def report_loss(options: ReadOptions, sentence: str) -> None:
    """Raise a data loss; with `failOnDataLoss=false` log it. Raises: DataLossError."""
    if options.fail_on_data_loss:
        raise DataLossError(
            f"{sentence}; set failOnDataLoss=false to continue with the remaining messages"
        )
    log.warning("%s; continuing with the remaining messages", sentence)


def _bounds(
    client: "Client", topic: TopicId, start: str, end: str, count: int
) -> Iterable[tuple[str, str]]:
    if count == 1:
        return [(start, end)]
    parts = client.topics.splits(topic, count, start=start or None, end=end)
    return [(BEGINNING if p.start is None else p.start.hex(), p.end.hex()) for p in parts]


def _first(client: "Client", view: View, topic: TopicId, start: str, end: str) -> str | None:
    while True:
        reply = client.poll_batch(topic, view.question(after=start, through=end, limit=1))
        if len(reply) or reply.caught_up or view.tags is None:
            return first_id(reply)
        start = reply.next_id.hex()  # the tags have selected nothing so far


def limit_ends(
    client: "Client", view: View, begin: Positions, ends: Positions, *, count: int
) -> dict[TopicId, Position]:
    """The ends of a micro-batch of about `count` messages, with at least one of each topic that has
    any.

    All topics get an equal share of the limit, and a topic's unused share goes to the others. The
    limit is soft: messages that one transaction published side by side stay in one batch.
    """
    reached = {
        topic: continued(begin.get(topic), generation=end.generation) for topic, end in ends.items()
    }
    left = count
    while left > 0 and (unfinished := [t for t, end in ends.items() if reached[t].id < end.id]):
        part = max(left // len(unfinished), 1)
        for topic in unfinished:
            passed_count, id = _advance(client, view, topic, reached[topic], ends[topic], part)
            reached[topic] = replace(reached[topic], id=id)
            left -= passed_count
    return reached


def _advance(
    client: "Client", view: View, topic: TopicId, start: Position, end: Position, count: int
) -> tuple[int, str]:
    """Go `count` messages forward, and then to the end of the neighbouring messages with the same
    write pointer; returns the number of messages passed, and the last id."""
    passed_count, id = 0, start.id
    pointer: int | None = None
    while id < end.id and (passed_count < count or pointer is not None):
        left = count - passed_count
        limit = min(left, POLL_COUNT_MAX) if left > 0 else POLL_COUNT_MAX
        reply = client.poll_batch(topic, view.question(after=id, through=end.id, limit=limit))
        pointers = reply.batch.column(WRITE_POINTER)
        taken = len(reply) if left > 0 else _count_of(pointer, pointers)
        passed_count += taken
        if taken < len(reply):
            first_left = reply.batch.column("id")[taken].as_py()
            return passed_count, before(MessageId.from_bytes(first_left))
        id = end.id if reply.caught_up else reply.next_id.hex()
        pointer = pointers[-1].as_py() if len(pointers) else pointer
    return passed_count, id


def _count_of(pointer: int | None, pointers: "Int64Array") -> int:
    return sum(1 for _ in takewhile(lambda each: each == pointer, pointers.to_pylist()))
