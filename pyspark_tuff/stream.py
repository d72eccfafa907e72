"""The streaming read: each micro-batch takes every topic up to what is decided there.

What lies behind a decided place never changes, so a batch that is run again reads the same messages
(protocol §6); what expires in between is a loss, and told.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_tuff.columns import check_projection
from pyspark_tuff.errors import brief, brief_batches
from pyspark_tuff.keeping import Keeping
from pyspark_tuff.limiting import limited
from pyspark_tuff.offsets import BEGINNING, Position, Positions, from_json, to_json
from pyspark_tuff.options import stream_read_options
from pyspark_tuff.planning import (
    View,
    Work,
    expired,
    may_have_lost,
    place_of,
    report_loss,
    share,
    slices_of,
    tasks_of,
    topic_not_found,
    topics_of,
)
from pyspark_tuff.reading import read_work
from tuff.protocol.errors import TopicNotFoundError
from tuff.protocol.names import TopicId

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from tuff.client import Client
    from tuff.replies import Offsets

log = logging.getLogger(__name__)

CLIENT_NAME = "pyspark-stream"


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query's source. On the driver's host one of them lives as long as the query; another is
    made and pickled for the tasks, so what is made here has no effect."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = stream_read_options(options)
        self._schema = schema
        check_projection(schema, include_transaction=self._options.include_transaction)
        self._keeping = Keeping(self._options)
        self._view = View(isolation=self._options.isolation)
        self._client: Client | None = None
        self._first: Positions | None = None
        self._target: Positions | None = None  # where an AvailableNow run ends
        self._seen: Positions | None = None
        # Behind which place nothing was when this query looked last, and when that was.
        self._quiet: dict[TopicId, tuple[Position, float]] = {}

    @brief
    def initialOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's name
        """Where a new query starts. Spark asks twice, and must hear the same."""
        if self._first is None:
            starting = self._options.starting
            self._first = {
                topic: Position(
                    generation=offsets.generation, id=place_of(starting.of(topic), offsets)
                )
                for topic, offsets in self._offsets({}).items()
            }
        return to_json(self._first)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        count = self._options.max_messages
        return ReadAllAvailable() if count is None else ReadMaxRows(count)

    @brief
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        # What is not there is reported by what comes next, which knows whether it was read before.
        self._target = {topic: self._end(topic, None, now) for topic, now in self._found().items()}

    @brief
    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802 - Spark's name
        """Where the next batch ends; no further than a limit allows, but for whole publishes."""
        begin = from_json(start)
        self._seen = ends = self._ends(begin)
        self._keeping.keep(self._connected(), {t: begin[t] for t in ends if t in begin})
        self._quiet |= {
            topic: (end, perf_counter()) for topic, end in ends.items() if end == begin.get(topic)
        }
        if self._target is not None:
            ends = _no_further(ends, self._target, begin)
        if isinstance(limit, ReadMaxRows):
            ends = limited(self._connected(), self._view, begin, ends, count=limit.max_rows)
        return to_json(ends)

    def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802 - Spark's name
        return None if self._seen is None else to_json(self._seen)

    @brief
    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[InputPartition]:
        """The tasks of a batch: none where `start` is behind `end`, as after some restarts."""
        begin, ends = from_json(start), from_json(end)
        client, count = self._connected(), share(self._options, len(ends))
        slices = []
        for topic, stop in ends.items():
            after = begin.get(topic)
            if after is None or after.generation != stop.generation:
                after = Position(generation=stop.generation, id=BEGINNING)
            if after.id < stop.id and self._can_read(client, topic, after):
                slices += slices_of(client, self._view, topic, after, stop.id, count=count)
        return [*tasks_of(slices, self._options)]

    @brief_batches
    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        if isinstance(partition, Work):
            yield from read_work(partition, self._view, self._options, self._schema)

    def commit(self, end: dict[str, object]) -> None:
        """Nothing: Spark says it a batch late, and not at all for the last one."""

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connected(self) -> "Client":
        if self._client is None:
            self._client = self._options.connection.connect(CLIENT_NAME)
        return self._client

    def _found(self) -> dict[TopicId, "Offsets"]:
        """The offsets of the topics that are there."""
        client, found = self._connected(), {}
        for topic in topics_of(client, self._options):
            with suppress(TopicNotFoundError):
                found[topic] = client.offsets(topic, isolation=self._view.offsets_isolation)
        return found

    def _offsets(self, begin: Positions) -> dict[TopicId, "Offsets"]:
        """The same for a query that has read up to `begin`.

        Raises:
            DataLossError: a topic that was read before is gone.
            TopicNotFoundError: there is no topic of a name that the option has.
        """
        found = self._found()
        named = begin if self._options.pattern is not None else self._options.topics
        for topic in sorted(set(named) - found.keys()):
            if topic in begin:
                self._report(f"topic {topic}, which was read before, was deleted")
            elif self._options.fail_on_data_loss:
                raise topic_not_found(self._connected(), topic, option="subscribe")
            else:
                log.warning("there is no topic %s; going on with what is there", topic)
        return found

    def _ends(self, begin: Positions) -> dict[TopicId, Position]:
        """How far each topic is decided now, and never before where it was read to."""
        offsets = self._offsets(begin)
        return {topic: self._end(topic, begin.get(topic), now) for topic, now in offsets.items()}

    def _end(self, topic: TopicId, after: Position | None, now: "Offsets") -> Position:
        last = BEGINNING if now.end is None else now.end.hex()
        if after is None:
            return Position(generation=now.generation, id=last)
        if after.generation != now.generation:
            self._report(
                f"topic {topic} was deleted and created again: it is at generation "
                f"{now.generation}, and {after.generation} was read up to {after.id}"
            )
            return Position(generation=now.generation, id=last)
        return Position(generation=now.generation, id=max(after.id, last))

    def _can_read(self, client: "Client", topic: TopicId, after: Position) -> bool:
        try:
            now = client.offsets(topic, isolation=self._view.offsets_isolation)
        except TopicNotFoundError:
            self._report(f"topic {topic} was deleted before this batch was read")
            return False
        if now.generation != after.generation:
            self._report(f"topic {topic} was created again before this batch was read")
            return False
        if may_have_lost(client, topic, after, now) and not self._was_quiet(client, topic, after):
            self._report(expired(topic, after.id))
        return True

    def _was_quiet(self, client: "Client", topic: TopicId, after: Position) -> bool:
        """Whether this query has looked behind that place, found nothing there, and came back
        before what was published since can have expired: an old start alone is no loss."""
        place, looked_s = self._quiet.get(topic, (None, 0.0))
        ttl_s = int(client.topics.get(topic).properties["ttl"])
        return place == after and perf_counter() - looked_s < ttl_s

    def _report(self, sentence: str) -> None:
        report_loss(sentence, fails=self._options.fail_on_data_loss)


def _no_further(ends: Positions, target: Positions, begin: Positions) -> dict[TopicId, Position]:
    """The ends, up to the target; a topic that came later is none of it."""
    return {
        topic: Position(generation=end.generation, id=min(end.id, target[topic].id))
        if topic in target and target[topic].generation == end.generation
        else begin[topic]
        for topic, end in ends.items()
        if topic in target or topic in begin
    }
