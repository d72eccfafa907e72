"""What an operator sees of topics: size and age of each, and the rows of one with their states
(protocol §3.13).

`TopicInspection` is called on the event loop; the functions below it read the store and block.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from enum import Enum
from functools import partial
from itertools import islice
from typing import NamedTuple

from kernel.requests_and_replies import Reply, Request, Route, json_reply, read_query
from messaging.engines.row_store import Store
from messaging.log.state_in_memory import OpenStore, StoreState, require_log
from messaging.log.topics import Topic, TopicRecord, topic_of
from messaging.model.expiry import TopicRule
from messaging.model.parameters import choice, start_from, whole_digits
from messaging.model.row_format import (
    MESSAGES,
    PAYLOADS,
    MessageRow,
    maybe_row,
    message_key,
    offset_after,
    offset_in,
)
from messaging.model.visibility import Query, Verdict, first_id, visibility
from messaging.read.counts import MessageCount, MessageCounts, maybe_snapshot
from messaging.read.offsets_and_splits import first_live
from messaging.read.poll import query_of_all
from tuff.protocol import operations
from tuff.protocol.errors import BadRequestError
from tuff.protocol.ids import MessageId, Offset, TopicId, check_name
from tuff.protocol.json_bodies import pointer_to_json, shown
from tuff.protocol.transaction import Transaction

TOPICS_COUNT, TOPICS_COUNT_MAX = 50, 500  # of a page: without a limit, and at most
LOGS_COUNT_MAX = 1_000  # partitions of a page, each of which costs three reads of the store
SCRAPED_COUNT_MAX = 10_000  # records that the counts of one scrape read together
ROWS_COUNT, ROWS_COUNT_MAX = 100, 1_000  # of a page: without a limit, and at most

_BEHIND_ROWS = b"\xff" * 19  # the end of a key that is behind all rows of its prefix


class RowState(Enum):
    """The state of a row; the values are the protocol's."""

    COMMITTED = "committed"
    IN_PROGRESS = "in_progress"
    INVALID = "invalid"
    ROLLED_BACK = "rolled_back"
    EXPIRED = "expired"
    DAMAGED = "damaged"
    UNKNOWN = "unknown"  # transactions are down


class ListOrder(Enum):
    """From the oldest row to the newest, or the other way."""

    ASCENDING = "ascending"
    DESCENDING = "descending"


_STATES = {
    Verdict.ACCEPT: RowState.COMMITTED,
    Verdict.SKIP: RowState.INVALID,
    Verdict.BLOCK: RowState.IN_PROGRESS,
}


class _StoredRow(NamedTuple):
    """A row as it is stored; `row` is None if it is damaged."""

    offset: Offset
    row: MessageRow | None
    size_bytes: int


class TopicInspection:
    """Lives on the event loop; threads read the rows."""

    def __init__(self, store: OpenStore, state: StoreState, counts: MessageCounts) -> None:
        self._counts = counts
        self._store = store
        self._state = state

    async def topics(
        self, *, namespace: str | None, contains: str, after: str, limit: int
    ) -> dict[str, object]:
        """The number of all topics that match, a page of them in byte order, and the `after` of the
        next page, as JSON."""
        self._store.require_up()
        found = [
            each
            for each in self._state.topics.live()
            if not each.is_internal
            and namespace in (None, each.namespace)
            and (not contains or contains in str(each))
        ]
        behind, _, name = after.partition(":")
        rest = [each for each in found if (each.namespace, each.name) > (behind, name)]
        page = self._page(rest[:limit])
        # Before the read, during which a topic may be deleted or handed to another server.
        bodies, queries = [*map(self._topic_body, page)], [*map(self._queries, page)]
        extents = await self._store.read(lambda store: [extent_of(store, each) for each in queries])
        counts = await self._counts.of_topics(page)
        for body, extent, count in zip(bodies, extents, counts, strict=True):
            body |= extent
            body |= {"messageCount": count.count, "isLowerBound": count.is_lower_bound}
        next_after = str(page[-1]) if len(page) < len(rest) else None
        return {"count": len(found), "topics": bodies, "next": next_after}

    async def counts(self, *, count_max: int) -> list[tuple[TopicId, MessageCount]]:
        """How many messages the first topics by name have. Raises: StorageUnavailableError."""
        topics = sorted(each for each in self._state.topics.live() if not each.is_internal)
        page = topics[:count_max]
        counts = await self._counts.of_topics(page, records_count_max=SCRAPED_COUNT_MAX)
        return list(zip(page, counts, strict=True))

    def _page(self, topics: Sequence[TopicId]) -> list[TopicId]:
        """The first topics that together have few enough partitions; at least one."""
        page: list[TopicId] = []
        log_count = 0
        for topic in topics:
            log_count += len(self._record(topic).partitions.readable)
            if page and log_count > LOGS_COUNT_MAX:
                break
            page.append(topic)
        return page

    def _record(self, topic: TopicId) -> TopicRecord:
        record = self._state.topics.find(topic).durable
        assert record is not None
        return record

    def _queries(self, topic: TopicId) -> list[Query]:
        return [
            query_of_all(self._state, each, each.durable)
            for each in self._partitions(topic)
            if each.durable is not None and each.durable.generation > 0
        ]

    def _partitions(self, topic: TopicId) -> Iterator[Topic]:
        for number in self._record(topic).partitions.readable:
            found = self._state.topics.maybe_find(topic.partition(number).log)
            if found is not None:
                yield found

    def _topic_body(self, topic: TopicId) -> dict[str, object]:
        record, partitions = self._record(topic), [*self._partitions(topic)]
        return {
            "namespace": topic.namespace,
            "name": topic.name,
            "generation": record.generation,
            "ttl": record.ttl_s,
            "partitionCount": len(record.partitions.readable),
            "positionCount": sum(
                len(each.durable.positions) for each in partitions if each.durable is not None
            ),
            "publishedCount": sum(each.messages_published for each in partitions),
            "publishedBytes": sum(each.bytes_published for each in partitions),
        }

    async def rows(
        self, topic: TopicId, *, start: MessageId | int | None, limit: int, order: ListOrder
    ) -> dict[str, object]:
        """The generation, a page of rows with their states, and the `from` of the next page, as
        JSON. Raises: as `require_log`."""
        # The snapshot first and the rows second, as in a poll: what became durable in between is
        # then in progress.
        snapshot = await maybe_snapshot(self._state)
        found, record = require_log(self._store, self._state, topic)
        bounds = self._bounds(record, start, order)
        read = partial(
            stored_rows,
            prefix=found.prefix(record.generation),
            bounds=bounds,
            order=order,
            limit=limit + 1,
            bytes_max=self._state.settings.poll_bytes_max,
        )
        rows, is_whole = await self._store.read(read)
        next_row = rows.pop() if len(rows) > 1 and (len(rows) > limit or not is_whole) else None
        rule, now_ms = found.rule_of(record), self._state.expiry_ms()
        bodies = [self._row_body(each, rule, snapshot, now_ms=now_ms) for each in rows]
        next_from = None if next_row is None else MessageId(*next_row.offset).hex()
        return {"generation": record.generation, "rows": bodies, "next": next_from}

    def _bounds(
        self, record: TopicRecord, start: MessageId | int | None, order: ListOrder
    ) -> tuple[Offset, Offset]:
        """The first offset of the range, and the first behind it."""
        first, stop = record.log_start.offset, offset_after(self._state.high_water_mark)
        if start is None:
            return first, stop
        named = first_id(start).offset
        if order is ListOrder.ASCENDING:
            return max(first, named), stop
        return first, min(stop, offset_after(named))

    def _row_body(
        self, found: _StoredRow, rule: TopicRule, snapshot: Transaction | None, *, now_ms: int
    ) -> dict[str, object]:
        row = found.row
        ttl_s = None if row is None else row.ttl_s
        expires_ms = rule.expires_ms(found.offset, own_ttl_s=ttl_s)
        pointer = None if row is None else row.tx_pointer
        transaction_id = (
            None if pointer is None else self._state.transactions.open_transaction_id(abs(pointer))
        )
        return {
            "id": MessageId(*found.offset).hex(),
            "timestamp": found.offset.timestamp_ms,
            "state": row_state(row, snapshot, is_expired=expires_ms <= now_ms).value,
            "writePointer": None if pointer is None else pointer_to_json(abs(pointer)),
            "transactionId": None if transaction_id is None else pointer_to_json(transaction_id),
            "messageCount": 1 if row is None or row.reference is None else row.reference.count,
            "size": found.size_bytes,
            "expiresAt": expires_ms,
        }


def row_state(
    row: MessageRow | None, snapshot: Transaction | None, *, is_expired: bool
) -> RowState:
    """The state of a row in a new snapshot, or without one; None is a damaged row. A row that has
    expired or was rolled back stays so, whatever its transaction does."""
    if row is None:
        return RowState.DAMAGED
    if is_expired:
        return RowState.EXPIRED
    if row.tx_pointer is None:
        return RowState.COMMITTED
    if row.tx_pointer < 0:
        return RowState.ROLLED_BACK
    return RowState.UNKNOWN if snapshot is None else _STATES[visibility(row.tx_pointer, snapshot)]


def extent_of(store: Store, partitions: Sequence[Query]) -> dict[str, int | None]:
    """What is stored of a topic with these partitions, as JSON: the engine's estimate of the size
    of its files, in which rows in memory need not count, and the times of the first and the last
    live row, None if there is none. Raises: StoreError."""
    size_bytes, firsts, lasts = 0, [], []
    for query in partitions:
        for table in (MESSAGES, PAYLOADS):
            start = table + query.prefix
            size_bytes += store.approximate_size(start, start + _BEHIND_ROWS)
        firsts += _edge(store, query, is_last=False)
        lasts += _edge(store, query, is_last=True)
    return {
        "storedBytes": size_bytes,
        "oldest": min(firsts).timestamp_ms if firsts else None,
        "newest": max(lasts).timestamp_ms if lasts else None,
    }


def _edge(store: Store, query: Query, *, is_last: bool) -> list[Offset]:
    """The offset of the first or the last live row, if there is one."""
    start, stop = first_live(query), offset_after(query.high_water_mark)
    if start >= stop:
        return []
    keys = message_key(query.prefix, start), message_key(query.prefix, stop)
    with closing(store.scan(*keys, reverse=is_last)) as rows:
        return [offset_in(key) for key, _ in islice(rows, 1)]


def stored_rows(
    store: Store,
    *,
    prefix: bytes,
    bounds: tuple[Offset, Offset],
    order: ListOrder,
    limit: int,
    bytes_max: int,
) -> tuple[list[_StoredRow], bool]:
    """Rows in this order, up to a number of rows and of stored bytes, with at least one; False if
    the bytes ended them. Raises: StoreError."""
    first, stop = bounds
    found: list[_StoredRow] = []
    if first >= stop:
        return found, True
    keys = message_key(prefix, first), message_key(prefix, stop)
    size_bytes = 0
    with closing(store.scan(*keys, reverse=order is ListOrder.DESCENDING)) as rows:
        for key, value in islice(rows, limit):
            found.append(_StoredRow(offset_in(key), maybe_row(key, value), len(value)))
            size_bytes += len(value)
            if size_bytes > bytes_max and len(found) > 1:
                return found, False
    return found, True


def routes(inspection: TopicInspection) -> list[Route]:
    """The HTTP routes of the overview of topics, and of rows with their states."""

    async def topics(request: Request) -> Reply:
        query = read_query(request.query, parameters={"namespace", "contains", "after", "limit"})
        namespace = query.get("namespace")
        if namespace is not None:
            check_name(namespace, what="namespace")
        body = await inspection.topics(
            namespace=namespace,
            contains=query.get("contains", ""),
            after=query.get("after", ""),
            limit=_limit(query.get("limit"), default=TOPICS_COUNT, most=TOPICS_COUNT_MAX),
        )
        return json_reply(body)

    async def rows(request: Request) -> Reply:
        topic = topic_of(request, parameters={"from", "limit", "order"})
        query = dict(request.query)
        start = query.get("from", "earliest")
        if start == "latest":
            raise BadRequestError("from=latest has no rows; read them with order=descending")
        body = await inspection.rows(
            topic,
            start=start_from(start),
            limit=_limit(query.get("limit"), default=ROWS_COUNT, most=ROWS_COUNT_MAX),
            order=choice(query, "order", ListOrder) or ListOrder.ASCENDING,
        )
        return json_reply(body)

    return [
        Route(operations.LIST_TOPIC_SUMMARIES, topics),
        Route(operations.LIST_ROWS, rows),
    ]


def _limit(text: str | None, *, default: int, most: int) -> int:
    if text is None:
        return default
    limit = whole_digits(text, what="limit")
    if not 1 <= limit <= most:
        raise BadRequestError(f"limit is 1 to {most}, not {shown(text)}")
    return limit
