"""How many messages a topic has, or a reader has not read yet, and how old the oldest of them is
(protocol §3.6).

A count reads the rows of its range, without their payloads: ids are times, so they can't be
subtracted. Packed rows are counted by their number. A count ends after so many records, and is a
lower bound then.

Counted are messages that a reader can receive: rows that were rolled back or have expired are not,
nor are those of transactions in progress. `MessageCounts` is called on the event loop; the
functions below it read the store and block.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice

from kernel.requests_and_replies import Reply, Request, Route, json_reply
from messaging.engines.engine_interface import StoreDamagedError
from messaging.engines.row_store import Store
from messaging.log.state_in_memory import OpenStore, StoreState, require_log, require_topic
from messaging.log.topics import topic_of
from messaging.model.attributes import StoredTagFilter
from messaging.model.packed_rows import is_packed, row_count
from messaging.model.row_format import (
    OFFSET_SIZE,
    MessageRow,
    maybe_row,
    message_key,
    offset_after,
    offset_in,
    offset_number,
    payload_key,
)
from messaging.model.visibility import (
    PAST_GROUP,
    Query,
    Verdict,
    first_offset_after,
    is_past_own_ttl,
    read_after,
    start_after,
    verdict,
)
from messaging.read.poll import Poll, query_of
from tuff.protocol import operations
from tuff.protocol.errors import TopicNotFoundError, TransactionsUnavailableError
from tuff.protocol.ids import MessageId, Offset, TopicId
from tuff.protocol.transaction import Transaction

RECORDS_COUNT_MAX = 10_000  # of one count; read in some 20 ms
RECORDS_COUNT_MIN = 100  # of one count of many that share a limit; finds the oldest message
SHARED_COUNT_MAX = 100_000  # records of many counts together; a fifth of a second


@dataclass(frozen=True, slots=True)
class MessageCount:
    """`oldest_ms`: the publish time of the oldest of these messages, None without any."""

    count: int = 0
    is_lower_bound: bool = False
    oldest_ms: int | None = None

    def age_ms(self, *, now_ms: int) -> int:
        """The age of the oldest message, 0 without any."""
        return 0 if self.oldest_ms is None else max(0, now_ms - self.oldest_ms)

    def plus(self, other: "MessageCount") -> "MessageCount":
        """Both together."""
        times = [each.oldest_ms for each in (self, other) if each.oldest_ms is not None]
        return MessageCount(
            self.count + other.count,
            self.is_lower_bound or other.is_lower_bound,
            min(times, default=None),
        )


class MessageCounts:
    """Counts messages of partitions. Lives on the event loop; threads read the rows."""

    def __init__(self, store: OpenStore, state: StoreState) -> None:
        self._store = store
        self._state = state
        self.now_ms = state.now_ms

    async def count(self, partition: TopicId, *, after: MessageId | None = None) -> MessageCount:
        """The messages behind an id, or all. Raises: TopicNotFoundError, PartitionRequiredError."""
        require_log(self._store, self._state, partition)
        return (await self.counts_of([(partition, after)]))[0]

    async def of_topic(self, topic: TopicId) -> MessageCount:
        """The messages of all partitions of a topic."""
        self._state.topics.find(topic).require_durable()
        (found,) = await self.of_topics([topic])
        return found

    async def of_topics(
        self, topics: Sequence[TopicId], *, records_count_max: int = SHARED_COUNT_MAX
    ) -> list[MessageCount]:
        """The messages of all partitions of each topic; none of one that was deleted or has just
        left this server."""
        logs = [[(log, None) for log in self._logs(topic)] for topic in topics]
        found = await self.counts_of([*chain(*logs)], records_count_max=records_count_max)
        counts = iter(found)
        return [_total(islice(counts, len(each))) for each in logs]

    async def counts_of(
        self,
        afters: Sequence[tuple[TopicId, MessageId | None]],
        *,
        records_count_max: int = SHARED_COUNT_MAX,
    ) -> list[MessageCount]:
        """The messages behind each id of a partition; none of a partition that does not exist. All
        together read so many records, or a few of each. Raises: StorageUnavailableError."""
        self._store.require_up()
        # The snapshot first and the rows second: what becomes durable in between is in progress.
        snapshot = await maybe_snapshot(self._state)
        found: list[MessageCount] = []
        left_count = records_count_max
        for partition, after in afters:
            try:
                query = self._query(partition, after, snapshot)
            except TopicNotFoundError:
                found.append(MessageCount())
                continue
            most = max(RECORDS_COUNT_MIN, min(RECORDS_COUNT_MAX, left_count))
            counting = partial(count_messages, query=query, records_count_max=most)
            # One read for each: other reads get the thread in between.
            count, passed_count = await self._store.read(counting)
            found.append(count)
            left_count -= passed_count
        return found

    def _logs(self, topic: TopicId) -> list[TopicId]:
        if topic.number is not None:
            return [topic]
        found = self._state.topics.maybe_find(topic)
        record = None if found is None else found.durable
        if record is None or record.generation < 0:
            return []
        return [topic.partition(number) for number in record.partitions.readable]

    def _query(
        self, partition: TopicId, after: MessageId | None, snapshot: Transaction | None
    ) -> Query:
        # A topic that got partitions has its old positions in its own log, the first partition.
        topic, record = require_topic(self._store, self._state, partition)
        behind = start_after(after, inclusive=False)
        return query_of(self._state, topic, record, Poll(), behind, snapshot)


def _total(counts: Iterable[MessageCount]) -> MessageCount:
    found = MessageCount()
    for each in counts:
        found = found.plus(each)
    return found


async def maybe_snapshot(state: StoreState) -> Transaction | None:
    """None while transactions are down: what is not rolled back counts then."""
    try:
        return await state.transactions.snapshot()
    except TransactionsUnavailableError:
        return None


def count_messages(
    store: Store, query: Query, *, records_count_max: int
) -> tuple[MessageCount, int]:
    """The messages of the query, and the number of records that were read. Raises: StoreError."""
    counting = _Counting(store, query, records_count_max)
    after = read_after(query)
    if after < query.last + PAST_GROUP:
        try:
            counting.count(after, offset_in(query.last))
        except _TooManyRecords:
            counting.is_lower_bound = True
        except StoreDamagedError:
            counting.is_lower_bound = True  # a reader gets the error
    found = MessageCount(counting.found_count, counting.is_lower_bound, counting.oldest_ms)
    return found, counting.passed_count


class _TooManyRecords(Exception):  # noqa: N818 - ends the count; it is no error
    """The count may read no more records."""


class _Counting:
    """One count. Offsets are numbers here."""

    def __init__(self, store: Store, query: Query, records_count_max: int) -> None:
        self._store = store
        self._query = query
        self._records_count_max = records_count_max
        self._tags = None if query.tags is None else StoredTagFilter(query.tags)
        self.passed_count = 0
        self.found_count = 0
        self.oldest_ms: int | None = None
        self.is_lower_bound = False

    def count(self, after: bytes, last: Offset) -> None:
        """From behind an id through the offset `last`."""
        begin = offset_in(first_offset_after(after))
        # Behind a row by itself, or inside a group; 0: before the row.
        inside = offset_number(after) + 1 if offset_in(after[:OFFSET_SIZE]) == begin else 0
        prefix = self._query.prefix
        for key, value in self._records(message_key(prefix, begin), last_key(prefix, last)):
            number = offset_number(key)
            if is_packed(value[:1]):
                # A row by itself has no message behind its offset.
                start = max(number - row_count(value) + 1, begin.to_int() + bool(inside))
                self._add_packed(Offset.from_int(start), min(number, last.to_int()) - start + 1)
                continue
            offset = Offset.from_int(number)
            self._count_row(offset, key, value, inside if offset == begin else 0)

    def _count_row(self, offset: Offset, key: bytes, value: bytes, inside: int) -> None:
        row = maybe_row(key, value)
        if row is None:
            self._add(offset, 1)  # a reader gets the error
            return
        is_rolled_back = row.tx_pointer is not None and row.tx_pointer < 0
        if is_rolled_back or verdict(self._query, offset, row) is not Verdict.ACCEPT:
            return
        if row.reference is None:
            self._add(offset, not inside and self._is_selected(row.attributes))
        elif row.reference.count:
            self._count_group(offset, row, inside)

    def _count_group(self, offset: Offset, row: MessageRow, inside: int) -> None:
        """The payloads that a reference row publishes, from the one at the offset `inside` on."""
        assert row.reference is not None
        assert row.tx_pointer is not None
        first = max(row.reference.first, Offset.from_int(inside))
        if first > row.reference.last:
            return
        prefix, pointer = self._query.prefix, abs(row.tx_pointer)
        start = payload_key(prefix, pointer, first)
        stop = payload_key(prefix, pointer, offset_after(row.reference.last))
        for key, value in self._records(start, stop):
            if is_packed(value[:1]):
                begin = max(offset_number(key) - row_count(value) + 1, first.to_int())
                self._add_packed(offset, offset_number(key) - begin + 1)
            elif self._is_delivered(offset, key, value):
                self._add(offset, 1)

    def _is_delivered(self, offset: Offset, key: bytes, value: bytes) -> bool:
        row = maybe_row(key, value)
        if row is None:
            return True
        is_expired = is_past_own_ttl(self._query, offset, row.ttl_s)
        return not is_expired and self._is_selected(row.attributes)

    def _is_selected(self, attributes: bytes | None) -> bool:
        if self._tags is None:
            return True
        return attributes is not None and self._tags.selects(attributes)

    def _records(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        with closing(self._store.records(start, stop)) as records:
            for record in records:
                if self.passed_count >= self._records_count_max:
                    raise _TooManyRecords
                self.passed_count += 1
                yield record

    def _add_packed(self, offset: Offset, count: int) -> None:
        """Packed messages have no tags."""
        if self._tags is None:
            self._add(offset, count)

    def _add(self, offset: Offset, count: int) -> None:
        if count > 0:
            self.found_count += count
            if self.oldest_ms is None:
                self.oldest_ms = offset.timestamp_ms


def last_key(prefix: bytes, last: Offset) -> bytes:
    """The key behind all message rows through an offset."""
    return message_key(prefix, offset_after(last))


def routes(counts: MessageCounts) -> list[Route]:
    """The HTTP routes of counts."""

    async def count(request: Request) -> Reply:
        topic = topic_of(request, parameters={"after"})
        after = dict(request.query).get("after")
        if after is None:
            found = await counts.of_topic(topic)
        else:
            found = await counts.count(topic, after=MessageId.from_hex(after))
        age_ms = found.age_ms(now_ms=counts.now_ms())
        return json_reply(
            {
                "count": found.count,
                "isLowerBound": found.is_lower_bound,
                "oldest": found.oldest_ms,
                "oldestAgeMs": None if found.oldest_ms is None else age_ms,
            }
        )

    return [Route(operations.COUNT_MESSAGES, count)]
