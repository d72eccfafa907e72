"""The readers of a batch and of a stream, which Spark calls on the driver's host and in tasks.

Topics are read by their partitions, as in `planning`. A batch reads all topics in one snapshot. A
micro-batch reads every partition up to its first undecided message. Decided messages never change,
so a batch that is run again reads the same messages (protocol §6, decision 0024). Messages that
expire in between are a data loss, which is reported.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_tuff.checkpoint_offsets import (
    BEGINNING,
    Position,
    Positions,
    continued,
    from_json,
    to_json,
)
from pyspark_tuff.columns import batch_of, check_projection, has_attributes, shown_name
from pyspark_tuff.errors import batches_without_traceback, without_traceback
from pyspark_tuff.options import ReadOptions, batch_read_options, stream_read_options
from pyspark_tuff.planning import (
    ReadTask,
    Slice,
    View,
    boundary_id,
    first_id,
    limit_ends,
    may_have_expired,
    partitions_of,
    plan_batch,
    report_expiry,
    report_loss,
    slices_of,
    slices_per_topic,
    take_view,
    tasks_of,
    topic_not_found,
    topics_of,
)
from tuff.protocol.errors import TopicNotFoundError
from tuff.protocol.ids import TopicId

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from tuff.blocking.client import Client
    from tuff.replies import Offsets

log = logging.getLogger(__name__)

PLANNER_NAME = "pyspark-plan"
TASK_NAME = "pyspark-read"
STREAM_NAME = "pyspark-stream"
RENEWALS_PER_AGE = 3  # so that a hold outlives a long batch, and a restart


class BatchReader(DataSourceReader):
    """One DataFrame. Spark makes it at the first action, plans it once, in one view, and uses the
    plan for all later actions.

    It has no `pushFilters`: with it Spark 4.3 returns wrong rows if a DataFrame is used twice.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = batch_read_options(options)
        self._schema = schema
        check_projection(schema, self._options)
        # Spark pickles this object for the tasks before it asks for the partitions.
        with self._options.connection.connect(PLANNER_NAME) as client:
            self._view = take_view(client, self._options)

    @without_traceback
    def partitions(self) -> list[InputPartition]:
        with self._options.connection.connect(PLANNER_NAME) as client:
            return [*plan_batch(client, self._options, self._view)]

    @batches_without_traceback
    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        return _read_partition(partition, self._view, self._options, self._schema)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of one query. Spark keeps one on the driver's host as long as the query runs, and
    pickles another one for the tasks. So the constructor has no side effects."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = stream_read_options(options)
        self._schema = schema
        check_projection(schema, self._options)
        self._progress = ProgressReporter(self._options)
        self._view = View(isolation=self._options.isolation, tags=self._options.tags)
        self._client: Client | None = None
        self._first: Positions | None = None
        self._target: Positions | None = None  # where an AvailableNow query ends
        self._seen: Positions | None = None
        # Positions after which there was no message when this query last looked, and when that was.
        self._idle: dict[TopicId, tuple[Position, float]] = {}

    @without_traceback
    def initialOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's name
        """Where a new query starts. Spark calls this twice, and needs equal results."""
        if self._first is None:
            starting = self._options.starting
            self._first = {
                topic: Position(
                    generation=offsets.generation, id=boundary_id(starting.of(topic), offsets)
                )
                for topic, offsets in self._offsets({}).items()
            }
        return to_json(self._first)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        count = self._options.max_messages
        return ReadAllAvailable() if count is None else ReadMaxRows(count)

    @without_traceback
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        # Missing topics are reported by `latestOffset`, which knows whether they were read before.
        self._target = {topic: self._end(topic, None, now) for topic, now in self._found().items()}

    @without_traceback
    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802 - Spark's name
        """Where the next batch ends; a limit may be exceeded to keep a publish whole."""
        begin = from_json(start)
        self._seen = ends = self._ends(begin)
        self._progress.report(self._connected(), {t: begin[t] for t in ends if t in begin})
        self._idle |= {
            topic: (end, perf_counter()) for topic, end in ends.items() if end == begin.get(topic)
        }
        if self._target is not None:
            ends = _limit_to_target(ends, self._target, begin)
        if isinstance(limit, ReadMaxRows):
            ends = limit_ends(self._connected(), self._view, begin, ends, count=limit.max_rows)
        return to_json(ends)

    def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802 - Spark's name
        return None if self._seen is None else to_json(self._seen)

    @without_traceback
    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        """The tasks of a batch; none if `start` is after `end`, as after some restarts."""
        begin, ends = from_json(start), from_json(end)
        client, count = self._connected(), slices_per_topic(self._options, len(ends))
        slices = []
        for topic, stop in ends.items():
            after = continued(begin.get(topic), generation=stop.generation)
            if after.id < stop.id and self._can_read(client, topic, after):
                slices += slices_of(client, self._view, topic, after, stop.id, count=count)
        return [*tasks_of(slices, self._options)]

    @batches_without_traceback
    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        return _read_partition(partition, self._view, self._options, self._schema)

    def commit(self, end: dict[str, object]) -> None:
        """Does nothing: Spark calls it one batch late, and never for the last batch."""

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connected(self) -> "Client":
        if self._client is None:
            self._client = self._options.connection.connect(STREAM_NAME)
        return self._client

    def _found(self) -> dict[TopicId, "Offsets"]:
        """The offsets of the partitions that exist."""
        client, found = self._connected(), {}
        for topic in topics_of(client, self._options):
            with suppress(TopicNotFoundError):
                for each in partitions_of(client, topic):
                    found[each] = client.offsets(each, isolation=self._view.offsets_isolation)
        return found

    def _offsets(self, begin: Positions) -> dict[TopicId, "Offsets"]:
        """The offsets of the partitions that exist, for a query that has read up to `begin`.

        Raises:
            DataLossError: a topic or a partition that was read before was deleted.
            TopicNotFoundError: a topic that the option names does not exist.
        """
        found = self._found()
        for topic in sorted({each for each in begin if self._names(each)} - found.keys()):
            self._report_deletion(topic, begin[topic], has_others=_has(found, topic.base))
        for topic in self._options.topics:
            if _has(found, topic) or _has(begin, topic):
                continue
            if self._options.fail_on_data_loss:
                raise topic_not_found(self._connected(), topic, option="subscribe")
            log.warning("there is no topic %s; continuing with the other topics", topic)
        return found

    def _names(self, partition: TopicId) -> bool:
        """Whether the options name this partition or its topic; a pattern names all of `begin`."""
        options = self._options
        return options.pattern is not None or not {partition, partition.base}.isdisjoint(
            options.topics
        )

    def _report_deletion(self, partition: TopicId, after: Position, *, has_others: bool) -> None:
        """Report that a partition was deleted. Raises: DataLossError.

        A retired partition is deleted when its messages are gone, while its topic `has_others`.
        Nothing is lost if this query had read all of it.
        """
        if not (has_others and self._was_idle(self._connected(), partition, after)):
            report_loss(self._options, f"topic {partition.log}, which was read before, was deleted")

    def _ends(self, begin: Positions) -> dict[TopicId, Position]:
        """The end of the decided messages of each topic, never before its position in `begin`."""
        offsets = self._offsets(begin)
        return {topic: self._end(topic, begin.get(topic), now) for topic, now in offsets.items()}

    def _end(self, topic: TopicId, after: Position | None, now: "Offsets") -> Position:
        last = BEGINNING if now.end is None else now.end.hex()
        if after is None:
            return Position(generation=now.generation, id=last)
        if after.generation != now.generation:
            report_loss(
                self._options,
                f"topic {topic.log} was deleted and created again: its generation is now "
                f"{now.generation}, and generation {after.generation} was read up to {after.id}",
            )
            return Position(generation=now.generation, id=last)
        return Position(generation=now.generation, id=max(after.id, last))

    def _can_read(self, client: "Client", topic: TopicId, after: Position) -> bool:
        try:
            now = client.offsets(topic, isolation=self._view.offsets_isolation)
        except TopicNotFoundError:
            report_loss(self._options, f"topic {topic.log} was deleted before this batch was read")
            return False
        if now.generation != after.generation:
            report_loss(
                self._options, f"topic {topic.log} was created again before this batch was read"
            )
            return False
        expires = may_have_expired(client, topic, after, now)
        if expires and not self._was_idle(client, topic, after):
            report_expiry(self._options, topic, after)
        return True

    def _was_idle(self, client: "Client", topic: TopicId, after: Position) -> bool:
        """Whether this query found no message after that position when it last looked, and so
        recently that messages published since can't have expired. Then an old position is no data
        loss."""
        position, looked_s = self._idle.get(topic, (None, 0.0))
        ttl_s = int(client.topics.get(topic.base).properties["ttl"])
        return position == after and perf_counter() - looked_s < ttl_s


class ProgressReporter:
    """Reports the progress of one query to the server: named positions and retention holds.

    A report has the position at which the next batch begins: all messages before it are written,
    and Spark has recorded that. A query resumes only from its checkpoint. Belongs to one thread.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._reported: dict[TopicId, Position] = {}
        self._held: dict[TopicId, tuple[Position, float]] = {}

    def report(self, client: "Client", begin: Positions) -> None:
        """Report where the next batch begins, for positions that have changed."""
        for topic, position in begin.items():
            self._set_position(client, topic, position)
            self._hold(client, topic, position)

    def _set_position(self, client: "Client", topic: TopicId, position: Position) -> None:
        name = self._options.position_name
        if name is None or position.id == BEGINNING or self._reported.get(topic) == position:
            return
        client.positions.set(topic, name, position.id)
        self._reported[topic] = position

    def _hold(self, client: "Client", topic: TopicId, position: Position) -> None:
        name, age_s = self._options.hold_name, self._options.hold_max_age_s
        held, renewed_s = self._held.get(topic, (None, 0.0))
        is_fresh = perf_counter() - renewed_s < age_s / RENEWALS_PER_AGE
        if name is None or (held == position and is_fresh):
            return
        client.holds.set(topic, name, position.id or 0, max_age=age_s)
        self._held[topic] = position, perf_counter()


def _has(partitions: Iterable[TopicId], topic: TopicId) -> bool:
    """Whether a topic, or a partition, is among these partitions."""
    return any(topic in (each, each.base) for each in partitions)


def _limit_to_target(
    ends: Positions, target: Positions, begin: Positions
) -> dict[TopicId, Position]:
    """The ends, limited by the target; excludes topics that were created after the target."""
    return {
        topic: Position(generation=end.generation, id=min(end.id, target[topic].id))
        if topic in target and target[topic].generation == end.generation
        else begin[topic]
        for topic, end in ends.items()
        if topic in target or topic in begin
    }


def _read_partition(
    partition: InputPartition, view: View, options: ReadOptions, schema: StructType
) -> Iterator["RecordBatch"]:
    """The messages of a task, in the order of its slices; one batch for each reply.

    Raises:
        DataLossError: messages have expired since the read was planned.
        TuffError: the server can't be reached, or refuses; Spark tries the task again.
    """
    if not isinstance(partition, ReadTask):
        return  # if there is no partition, Spark makes an empty one of its own class
    with options.connection.connect(TASK_NAME) as client:
        for piece in partition.slices:
            name = shown_name(piece.topic, options)
            for batch in _batches(client, piece, view, options, attributes=has_attributes(schema)):
                yield batch_of(batch, schema, topic=name)


def _batches(
    client: "Client", piece: Slice, view: View, options: ReadOptions, *, attributes: bool
) -> Iterator["RecordBatch"]:
    after, is_done = piece.start, False
    expected: str | None = piece.first  # of the first reply with messages
    while not is_done:
        question = view.question(after=after, through=piece.end, limit=options.fetch_size)
        reply = client.poll_batch(piece.topic, question, attributes=attributes)
        is_done = reply.caught_up
        # A read with tags may end before it has found the first message.
        if expected is not None and (len(reply) or is_done):
            if first_id(reply) != expected:
                report_loss(
                    options,
                    f"messages of {piece.topic.log} from {expected} on expired after the read was "
                    "planned",
                )
            expected = None
        if len(reply):
            _check_generation(reply.batch, piece, options)
            yield reply.batch
        assert is_done or reply.next_id.hex() > after, "a read of decided rows always advances"
        after = reply.next_id.hex()


def _check_generation(batch: "RecordBatch", piece: Slice, options: ReadOptions) -> None:
    found = batch.column("generation")[0].as_py()
    if found != piece.generation:
        report_loss(
            options,
            f"topic {piece.topic.log} was created again while it was read: generation {found} "
            f"after {piece.generation}",
        )
