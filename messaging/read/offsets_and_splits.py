"""Where a topic begins and ends for a reader, and how it is cut into parts (protocol §3.6, §3.7).

`TopicOffsets` is called on the event loop; the functions below it read the store and block.

The bounds of the parts are bisected by size: the engine says how many bytes its files contain
between two keys. The newest rows, which are not in files yet, are scanned, and so is a small range.
A part ends where a row ends, so that no payload group is cut.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, islice
from typing import TYPE_CHECKING

from kernel.requests_and_replies import Reply, Request, Route, json_reply
from messaging.engines.engine_interface import StoreDamagedError
from messaging.engines.row_store import Store
from messaging.log.rows_by_transaction import IndexedRange
from messaging.log.scan import first_message
from messaging.log.state_in_memory import OpenStore, StoreState, require_log, require_topic
from messaging.log.topics import Topic, TopicRecord, topic_of
from messaging.model.parameters import boolean, choice, transaction_named, whole_digits
from messaging.model.row_format import (
    IS_REFERENCE,
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
    BEGINNING,
    Query,
    Verdict,
    before_row,
    is_past_own_ttl,
    live_after,
    start_after,
    verdict,
    visibility,
)
from messaging.read.poll import (
    Poll,
    blocker,
    may_read_again,
    query_of,
    query_of_all,
    require_generation,
    require_in_progress,
    snapshot_for,
)
from tuff.protocol import json_bodies, operations
from tuff.protocol.errors import BadRequestError, DamagedRecordError, TopicNotFoundError
from tuff.protocol.ids import MessageId, Offset, TopicId, past_group
from tuff.protocol.json_bodies import shown
from tuff.protocol.json_objects import to_json
from tuff.protocol.requests import Isolation

if TYPE_CHECKING:
    from messaging.read.archive import ArchiveReader

SPLITS_COUNT_MAX = 10_000  # parts; each is one task of a job
SCANNED_BYTES_MAX = 1 << 20  # bytes in files; a few thousand rows, scanned in some ms
SCANNED_ROWS_MAX = 200_000  # rows; what an engine keeps in memory, read in a third of a second
PART_BYTES_MIN = 4_096  # bytes; the sizes of an engine's files are no finer
PAYLOAD_BYTES = 256  # bytes; the estimate for a stored payload, whose size would have to be read
GROUP_COUNT_MAX = 1 << 20  # stored payloads; a damaged count must not outweigh all other rows
TOLERANCE = 16  # a bound may be off by a part's size divided by this; finer asks the engine more

_COUNT_SIZE = 4  # bytes; the last of a reference row


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """Where a topic begins and ends for a reader."""

    generation: int
    earliest: MessageId | None
    end: MessageId | None
    blocked_by: int | None
    prepared: tuple[str, int] | None = None  # the database that decides it, and since when in ms


@dataclass(frozen=True, slots=True)
class Split:
    """One part: after `start`, or from the beginning of the topic if it is None, through `end`."""

    start: MessageId | None
    end: MessageId


class TopicOffsets:
    """Where a topic begins and ends for a reader, and its parts (protocol §3.6, §3.7). Lives on the
    event loop; threads read the rows."""

    def __init__(
        self,
        store: OpenStore,
        state: StoreState,
        archive: ArchiveReader | None,
    ) -> None:
        self._store = store
        self._state = state
        self._archive = archive

    async def offsets(
        self, topic: TopicId, *, isolation: Isolation = Isolation.ALL, tx: int | None = None
    ) -> Offsets:
        """Where the topic begins and ends for this reader. With `tx` every live row is read."""
        poll = Poll(isolation=isolation, tx=tx)
        log, before = require_log(self._store, self._state, topic)
        # Both before the snapshot, which may come from another server: what leaves the index later
        # may have ended after the snapshot, and what is written later may be undecided in it.
        high_water_mark = self._state.high_water_mark
        indexed: list[IndexedRange] = []
        if isolation is Isolation.COMMITTED:
            indexed += self._state.index.undecided_in(log.id, before.generation)
        snapshot = await snapshot_for(self._state, poll)
        found, record = require_log(self._store, self._state, topic)
        query = query_of(self._state, found, record, poll, BEGINNING, snapshot)
        query = replace(query, high_water_mark=high_water_mark)
        undecided_from = first_indexed(record.generation, query, poll, indexed)
        earliest = await self._earliest(found, record, query)
        end, blocking_pointer = await self._store.read(
            partial(decided_end, query=query, undecided_from=undecided_from)
        )
        await require_in_progress(self._state.transactions, poll)
        if blocking_pointer is not None and await may_read_again(self._state, snapshot):
            return await self.offsets(topic, isolation=isolation)
        blocked_by = prepared = None
        if blocking_pointer is not None:
            blocked_by, prepared = blocker(self._state.transactions, blocking_pointer)
        return Offsets(
            generation=record.generation,
            earliest=earliest,
            end=end,
            blocked_by=blocked_by,
            prepared=prepared,
        )

    async def earliest(self, topic: TopicId) -> MessageId | None:
        """Where the live messages begin for a reader without a snapshot."""
        found, record = require_log(self._store, self._state, topic)
        return await self._earliest(found, record, query_of_all(self._state, found, record))

    async def bounds(
        self, topics: Iterable[TopicId]
    ) -> dict[TopicId, tuple[int, MessageId | None]]:
        """For each of these topics that exists: the time in ms from which messages live, and the id
        of the newest message, for a reader without a snapshot. One read of the store for all."""
        queries = {}
        for topic in topics:
            with suppress(TopicNotFoundError):
                # A topic that got partitions has its old positions in its own log, the first one.
                found, record = require_topic(self._store, self._state, topic)
                queries[topic] = query_of_all(self._state, found, record)
        ends = await self._store.read(
            lambda store: {topic: newest_id(store, query) for topic, query in queries.items()}
        )
        return {
            topic: (first_live(query).timestamp_ms, ends[topic]) for topic, query in queries.items()
        }

    async def archived_from(self, topic: TopicId) -> MessageId | None:
        """The first message that a reader can receive from the archive; None if there is none, or
        none before the log. Raises: ArchiveUnavailableError."""
        found, record = require_log(self._store, self._state, topic)
        if self._archive is None:
            return None
        query = query_of_all(self._state, found, record)
        bounds = await self._archive.bounds(found.id, record.generation, query)
        return MessageId.from_bytes(bounds[0][0]) if bounds else None

    async def _earliest(self, topic: Topic, record: TopicRecord, query: Query) -> MessageId | None:
        """In steps of limited size, so that other reads get the thread in between."""
        while True:
            try:
                result = await self._store.read(partial(first_message, query=query))
            except DamagedRecordError as error:
                # It may have been a message, and a reader from there gets this error.
                return MessageId.from_hex(str(error.members["id"]))
            if result.messages:
                return MessageId.from_bytes(result.messages.last_id)
            if result.finished:
                return None
            require_generation(topic, record.generation)
            query = replace(query, after=result.next_id)

    async def splits(
        self, topic: TopicId, *, start: MessageId | None, end: MessageId | None, count: int
    ) -> tuple[int, list[Split]]:
        """The topic's generation, and parts of about equal size from `start`, exclusive, through
        `end`."""
        found, record = require_log(self._store, self._state, topic)
        after = start_after(start, inclusive=False)
        query = query_of(self._state, found, record, Poll(through=end), after, None)
        before_log: list[MessageId] = []
        if self._archive is not None and start is not None and after < live_after(query):
            bounds = await self._archive.bounds(found.id, record.generation, query)
            before_log = [MessageId.from_bytes(last) for _, last in bounds]
        cut = partial(splits_of, query=query, start=start, end=end, count=count, hours=before_log)
        return record.generation, await self._store.read(cut)


def first_indexed(
    generation: int, query: Query, poll: Poll, indexed: Iterable[IndexedRange]
) -> Offset:
    """The offset before which every row is decided for this reader. `indexed`: the ranges of
    message rows of the topic that were in the index before the snapshot."""
    nothing = Offset(query.high_water_mark.timestamp_ms + 1, 0)
    if query.snapshot is None:
        return nothing
    # In a new snapshot, all rows are decided that have left the index; not so in an older one.
    if poll.isolation is not Isolation.COMMITTED:
        return Offset(0, 0)

    def blocks(entry: IndexedRange) -> bool:
        is_here = entry.generation == generation
        return is_here and visibility(entry.pointer, query.snapshot) is Verdict.BLOCK

    return min((entry.first for entry in indexed if blocks(entry)), default=nothing)


def decided_end(
    store: Store, query: Query, *, undecided_from: Offset
) -> tuple[MessageId | None, int | None]:
    """The last message such that it and all before it are decided, and the pointer of the first row
    that is not. Rows before `undecided_from` are known to be decided. Raises: StoreError."""
    offset, row = first_undecided(store, query, max(undecided_from, first_live(query)))
    return _last_before(store, query, offset), None if row is None else row.tx_pointer


def newest_id(store: Store, query: Query) -> MessageId | None:
    """The `end` of a topic for a reader without a snapshot, for which every row is decided. None if
    nothing is live. Raises: StoreError."""
    return _last_before(store, query, offset_after(query.high_water_mark))


def first_live(query: Query) -> Offset:
    """The first offset that neither truncation nor the time to live has passed."""
    return max(query.log_start.offset, query.live_from)


def first_undecided(store: Store, query: Query, start: Offset) -> tuple[Offset, MessageRow | None]:
    """The first offset that is not decided: that of a held or damaged row, or the end."""
    end = offset_after(query.high_water_mark)
    if start < end:
        keys = message_key(query.prefix, start), message_key(query.prefix, end)
        with closing(store.scan(*keys)) as rows:
            for key, value in rows:
                offset, row = offset_in(key), maybe_row(key, value)
                if row is None or verdict(query, offset, row) is Verdict.BLOCK:
                    return min(offset, end), row
    return end, None


def _last_before(store: Store, query: Query, stop: Offset) -> MessageId | None:
    start = first_live(query)
    if start >= stop:
        return None
    keys = message_key(query.prefix, start), message_key(query.prefix, stop)
    with closing(store.scan(*keys, reverse=True)) as rows:
        for key, value in rows:
            offset, row = offset_in(key), maybe_row(key, value)
            if offset < stop:  # else it is a damaged record, which may begin before
                return past_group(offset) if row is None else _id_of(store, query, offset, row)
    return None


def _id_of(store: Store, query: Query, offset: Offset, row: MessageRow) -> MessageId:
    """The id of the last message of a decided row; an id past the row if the row is skipped."""
    if verdict(query, offset, row) is not Verdict.ACCEPT:
        return past_group(offset)
    if row.reference is None:
        return MessageId(*offset)
    if not (row.reference.count and _is_last_live(store, query, offset, row)):
        return past_group(offset)
    return MessageId(*offset, *row.reference.last)


def _is_last_live(store: Store, query: Query, offset: Offset, row: MessageRow) -> bool:
    assert row.reference is not None
    assert row.tx_pointer is not None
    key = payload_key(query.prefix, abs(row.tx_pointer), row.reference.last)
    value = store.get(key)
    last = None if value is None else maybe_row(key, value)
    return last is not None and not is_past_own_ttl(query, offset, last.ttl_s)


def splits_of(
    store: Store,
    query: Query,
    *,
    start: MessageId | None,
    end: MessageId | None,
    count: int,
    hours: Sequence[MessageId] = (),
) -> list[Split]:
    """At most `count` adjacent parts, from `start`, exclusive, through `end` or the high-water
    mark; none if there is no row. The query has the same range. With `hours`, the last ids of
    archived hours, about half of the parts are before the log and end with some of these ids.

    Raises: StoreError.
    """
    ends = _ends_in_log(store, query, end, max(1, count // 2) if hours else count)
    count -= len(ends)
    if hours and count:
        archived = {hours[(index + 1) * len(hours) // count - 1] for index in range(count)}
        ends = [*sorted(archived), *ends] if ends else [*sorted(archived)[:-1], _last(query, end)]
    return [Split(*each) for each in zip([start, *ends], ends, strict=False)]


def _ends_in_log(store: Store, query: Query, end: MessageId | None, count: int) -> list[MessageId]:
    last = offset_in(query.last)
    first = _first_offset(store, query, last)
    if first is None:
        return []
    scale = _scale(store, query.prefix, first=first.to_int(), stop=last.to_int() + 1)
    bounds = [MessageId.from_bytes(before_row(Offset.from_int(cut))) for cut in _cuts(scale, count)]
    return [*bounds, _last(query, end)]


def _last(query: Query, end: MessageId | None) -> MessageId:
    return end or past_group(query.high_water_mark)


def _first_offset(store: Store, query: Query, last: Offset) -> Offset | None:
    """The offset of the first row with a message in the range, or of one that may be damaged."""
    try:
        found = first_message(store, query)
    except DamagedRecordError as error:
        return min(MessageId.from_hex(str(error.members["id"])).offset, last)
    if found.messages:
        return offset_in(found.messages.last_id[:OFFSET_SIZE])
    return None if found.caught_up else offset_in(found.next_id[:OFFSET_SIZE])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """The distribution of bytes over a range. Offsets are numbers here. Up to `scanned_from` sizes
    come from the engine's files. `rows` are the offsets of later rows; `sums` has the bytes before
    the first of them, and those up to the end of each."""

    in_files: Callable[[int], int]
    first: int
    scanned_from: int
    rows: list[int]
    sums: list[int]


def _scale(store: Store, prefix: bytes, *, first: int, stop: int) -> _Scale:
    def size(start: int, stop: int) -> int:
        keys = (
            message_key(prefix, Offset.from_int(start)),
            message_key(prefix, Offset.from_int(stop)),
        )
        return store.approximate_size(*keys)

    scanned_from = first
    if size(first, stop) > SCANNED_BYTES_MAX:
        scanned_from = _bisect(lambda number: size(number, stop) == 0, first, stop)
    rows, sizes = _scanned(store, prefix, scanned_from, stop)
    filed_bytes = size(first, scanned_from) if scanned_from > first else 0
    return _Scale(
        in_files=lambda number: size(first, number),
        first=first,
        scanned_from=scanned_from,
        rows=rows,
        sums=[*accumulate(sizes, initial=filed_bytes)],
    )


def _scanned(store: Store, prefix: bytes, start: int, stop: int) -> tuple[list[int], list[int]]:
    """The offsets of rows, and the bytes of each; up to corruption, or `SCANNED_ROWS_MAX`."""
    numbers: list[int] = []
    sizes: list[int] = []
    keys = message_key(prefix, Offset.from_int(start)), message_key(prefix, Offset.from_int(stop))
    with suppress(StoreDamagedError), closing(store.scan(*keys)) as rows:
        for key, value in islice(rows, SCANNED_ROWS_MAX):
            if offset_number(key) >= stop:
                break  # a damaged record, which may begin in the range
            numbers.append(offset_number(key))
            sizes.append(len(key) + len(value) + _group_bytes(value))
    return numbers, sizes


def _group_bytes(value: bytes) -> int:
    if not value[0] & IS_REFERENCE:
        return 0
    # Without a check of the row: the count of a damaged one is used as a weight only.
    return PAYLOAD_BYTES * min(int.from_bytes(value[-_COUNT_SIZE:], "big"), GROUP_COUNT_MAX)


def _cuts(scale: _Scale, count: int) -> Iterator[int]:
    """The offsets at which parts begin, ascending, without that of the first."""
    total = scale.sums[-1]
    if scale.sums[0]:
        count = min(count, total // PART_BYTES_MIN)
    passed = scale.first
    for index in range(1, count):
        cut = _cut(scale, total * index // count, passed, tolerance=total // count // TOLERANCE)
        if cut is not None and cut > passed:
            yield cut
            passed = cut


def _cut(scale: _Scale, size_bytes: int, passed: int, *, tolerance: int) -> int | None:
    """The offset before which there are about so many bytes; None: no row is left."""
    if size_bytes > scale.sums[0]:
        # A row across the bound belongs to the part that has more than half of it.
        row = bisect_left(scale.sums, size_bytes) - 1
        before, through = scale.sums[row : row + 2]
        row += 2 * (size_bytes - before) > through - before
        return scale.rows[row] if row < len(scale.rows) else None
    low, high = passed, scale.scanned_from
    while high - low > 1:
        middle = (low + high) // 2
        size = scale.in_files(middle)
        if abs(size - size_bytes) <= tolerance:
            return middle
        low, high = (middle, high) if size < size_bytes else (low, middle)
    return high


def _bisect(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The first number for which it holds; it holds for `high`, and above the first."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return high


def routes(parts: TopicOffsets) -> list[Route]:
    """The HTTP routes of offsets and splits."""

    async def offsets(request: Request) -> Reply:
        topic = topic_of(request, parameters={"isolation", "tx", "archive"})
        query = dict(request.query)
        isolation, tx = choice(query, "isolation", Isolation), transaction_named(query)
        with_archive = boolean(query.get("archive", "false"), what="archive")
        if isolation is not None and tx is not None:
            raise BadRequestError("give isolation or tx, not both")
        found = await parts.offsets(topic, isolation=isolation or Isolation.ALL, tx=tx)
        body = offsets_body(found)
        if with_archive:
            first = await parts.archived_from(topic)
            body["archivedFrom"] = first and first.hex()
        return json_reply(body)

    async def splits(request: Request) -> Reply:
        topic = topic_of(request, parameters={"start", "end", "n"})
        query = dict(request.query)
        if "n" not in query:
            raise BadRequestError("n is missing: into how many parts at most, as in ?n=8")
        count = whole_digits(query["n"], what="n")
        if not 1 <= count <= SPLITS_COUNT_MAX:
            raise BadRequestError(f"n is 1 to {SPLITS_COUNT_MAX} parts, not {shown(query['n'])}")
        start, end = (_maybe_id(query.get(name)) for name in ("start", "end"))
        generation, found = await parts.splits(topic, start=start, end=end, count=count)
        return json_reply({"generation": generation, "splits": [to_json(part) for part in found]})

    return [Route(operations.GET_OFFSETS, offsets), Route(operations.GET_SPLITS, splits)]


def offsets_body(found: Offsets) -> dict[str, object]:
    """The JSON of the offsets of a topic."""
    body: dict[str, object] = {
        "generation": found.generation,
        "earliest": found.earliest and found.earliest.hex(),
        "end": found.end and found.end.hex(),
        "blockedBy": None
        if found.blocked_by is None
        else json_bodies.pointer_to_json(found.blocked_by),
    }
    if found.prepared is not None:
        body["database"], body["preparedAt"] = found.prepared
    return body


def _maybe_id(digits: str | None) -> MessageId | None:
    return None if digits is None else MessageId.from_hex(digits)
