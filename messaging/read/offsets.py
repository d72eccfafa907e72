"""Where a topic begins and ends for a reader, and how it is cut into parts (protocol §3.6, §3.7).

`TopicOffsets` is called on the event loop; the functions below it read the store and block.

A part is found by size: the engine says how many bytes of rows its files hold between two keys, and
the offsets in between are bisected by that. The newest rows, which the files do not hold yet, are
walked over, and so is a small range. Parts end where a row ends, so that no payload group is cut.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, islice

from messaging.read.poll import (
    Poll,
    choice,
    query_of,
    require_generation,
    transaction_named,
    whole_digits,
)
from messaging.read.scan import first
from messaging.read.visibility import (
    Query,
    Verdict,
    first_number,
    is_over,
    start_number,
    verdict,
    visibility,
)
from messaging.settings import MessagingSettings
from messaging.storage.engine import Store, StoreDamagedError
from messaging.storage.packed_rows import scan_reporting_corruption
from messaging.storage.pointer_index import IndexedRange
from messaging.storage.rows import (
    IS_REFERENCE,
    OFFSET_SIZE,
    DamagedRowError,
    MessageRow,
    PayloadRow,
    message_key,
    offset_after,
    offset_in,
    offset_number,
    payload_key,
)
from messaging.storage.store_state import OpenStore, StoreState, require_topic
from messaging.topics import TOPIC_PATH, Topic, TopicRecord, topic_of
from tuff.protocol import json_forms
from tuff.protocol.errors import BadRequestError, DamagedRecordError
from tuff.protocol.exchange import Reply, Request, Route, json_reply
from tuff.protocol.ids import MessageId, Offset, TopicId, past_group
from tuff.protocol.json_forms import shown
from tuff.protocol.requests import Isolation


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """Where a topic begins and ends for a reader."""

    generation: int
    earliest: MessageId | None
    end: MessageId | None
    blocked_by: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """The id of the first message this reader would be handed, or of the damaged record at which it
    would be refused; None where there is neither. `go_on_from`: the number of the id from which to
    look on, where so many rows had to be passed over that the rest is left for another step."""

    id: MessageId | None
    go_on_from: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """`end`: the last message such that it and all before it are decided; `held_by`: the pointer of
    the first that is not."""

    end: MessageId | None
    held_by: int | None


@dataclass(frozen=True, slots=True)
class Split:
    """One part: behind `start`, None for the beginning of the topic, up to and with `end`."""

    start: MessageId | None
    end: MessageId


class TopicOffsets:
    """Where a topic begins and ends for a reader, and its parts (protocol §3.6, §3.7). Lives on the
    event loop; threads read the rows."""

    def __init__(self, store: OpenStore, state: StoreState, settings: MessagingSettings) -> None:
        self._store = store
        self._state = state
        self._settings = settings

    async def offsets(
        self, topic: TopicId, *, isolation: Isolation = Isolation.ALL, tx: int | None = None
    ) -> Offsets:
        """The topic's extent for a reader. With `tx` every live row is looked at."""
        poll = Poll(isolation=isolation, tx=tx)
        found, record = require_topic(self._store, self._state, topic)
        query = self._query(found, record, poll, 0)
        undecided_from = self._undecided_from(found, record, query, poll)
        earliest = await self._earliest(found, record, query)
        ends = await self._store.read(partial(ending, query=query, undecided_from=undecided_from))
        return Offsets(
            generation=record.generation,
            earliest=earliest,
            end=ends.end,
            blocked_by=None
            if ends.held_by is None
            else self._state.transactions.holder(ends.held_by),
        )

    async def earliest(self, topic: TopicId) -> MessageId | None:
        """Where the live messages begin for a reader without a snapshot."""
        found, record = require_topic(self._store, self._state, topic)
        return await self._earliest(found, record, self._query(found, record, Poll(), 0))

    async def _earliest(self, topic: Topic, record: TopicRecord, query: Query) -> MessageId | None:
        """In steps, among which others have their turn on the threads that read."""
        while True:
            begins = await self._store.read(partial(beginning, query=query))
            if begins.go_on_from is None:
                return begins.id
            require_generation(topic, record.generation)
            query = replace(query, start=begins.go_on_from)

    async def splits(
        self, topic: TopicId, *, start: MessageId | None, end: MessageId | None, count: int
    ) -> tuple[int, list[Split]]:
        """The topic's generation, and parts of about equal size of what lies behind `start` up to
        `end`."""
        found, record = require_topic(self._store, self._state, topic)
        number = start_number(start, inclusive=False)
        query = self._query(found, record, Poll(through=end), number)
        cut = partial(split, query=query, start=start, end=end, count=count)
        return record.generation, await self._store.read(cut)

    def _query(self, topic: Topic, record: TopicRecord, poll: Poll, number: int) -> Query:
        return query_of(self._state, self._settings, topic, record, poll, number)

    def _undecided_from(
        self, topic: Topic, record: TopicRecord, query: Query, poll: Poll
    ) -> Offset:
        """The offset before which every row is decided for this reader."""
        nothing = Offset(query.high_water_mark.timestamp_ms + 1, 0)
        if query.snapshot is None:
            return nothing
        # A fresh snapshot decides whatever has left the index; an older one may not.
        if poll.isolation is not Isolation.COMMITTED:
            return Offset(0, 0)

        def is_held(entry: IndexedRange) -> bool:
            return visibility(entry.pointer, query.snapshot) is Verdict.HOLD

        undecided = self._state.index.undecided_in(topic.id, record.generation)
        return min((entry.first for entry in undecided if is_held(entry)), default=nothing)


def beginning(store: Store, query: Query) -> Beginning:
    """Where the messages from the start on begin, as far as one step tells. Raises: StoreError."""
    try:
        result = first(store, query)
    except DamagedRecordError as error:
        # A message may have stood there, and a reader from there gets this error.
        return Beginning(id=MessageId.from_hex(str(error.members["id"])))
    if result.messages:
        return Beginning(id=MessageId.from_bytes(result.messages.last_id))
    if result.finished:
        return Beginning(id=None)
    return Beginning(id=None, go_on_from=int.from_bytes(result.next_id, "big") + 1)


def ending(store: Store, query: Query, *, undecided_from: Offset) -> Ending:
    """Where a topic ends for a reader. Rows before `undecided_from` are known to be decided.

    Raises:
        StoreError: the engine can't read.
    """
    offset, row = _first_undecided(store, query, max(undecided_from, first_live(query)))
    return Ending(
        end=_last_before(store, query, offset),
        held_by=None if row is None else row.tx_pointer,
    )


def newest_id(store: Store, query: Query) -> MessageId | None:
    """The `end` of a topic for a reader without a snapshot, for whom every row is decided: one step
    back from the end. None where nothing is live. Raises: StoreError."""
    return _last_before(store, query, offset_after(query.high_water_mark))


def first_live(query: Query) -> Offset:
    """The first offset that neither truncation nor the time to live has passed."""
    return max(query.log_start.offset, query.live_from)


def _first_undecided(store: Store, query: Query, start: Offset) -> tuple[Offset, MessageRow | None]:
    """The first offset that is not decided: that of a held row, of a damaged one, or the end."""
    end = offset_after(query.high_water_mark)
    if start < end:
        keys = message_key(query.prefix, start), message_key(query.prefix, end)
        with closing(store.scan(*keys)) as rows:
            for key, value in rows:
                offset, row = offset_in(key), _decoded(key, value)
                if row is None or _verdict(query, offset, row) is Verdict.HOLD:
                    return min(offset, end), row
    return end, None


def _verdict(query: Query, offset: Offset, row: MessageRow) -> Verdict:
    return verdict(query, offset, pointer=row.tx_pointer, ttl_s=row.ttl_s)


def _last_before(store: Store, query: Query, stop: Offset) -> MessageId | None:
    start = first_live(query)
    if start >= stop:
        return None
    keys = message_key(query.prefix, start), message_key(query.prefix, stop)
    with closing(store.scan(*keys, reverse=True)) as rows:
        for key, value in rows:
            offset, row = offset_in(key), _decoded(key, value)
            if offset < stop:  # else it can't be read, and only may begin before
                return past_group(offset) if row is None else _id_of(store, query, offset, row)
    return None


def _id_of(store: Store, query: Query, offset: Offset, row: MessageRow) -> MessageId:
    """The id of the last message of a decided row; an offset past the row if that was skipped."""
    if _verdict(query, offset, row) is not Verdict.ACCEPT:
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
    try:
        return value is not None and not is_over(
            query, offset, PayloadRow.from_bytes(key, value).ttl_s
        )
    except DamagedRowError:
        return False


def _decoded(key: bytes, value: bytes) -> MessageRow | None:
    try:
        return MessageRow.from_bytes(key, value)
    except DamagedRowError:
        return None


SPLITS_COUNT_MAX = 10_000  # parts; each is one task of a job
WALKED_BYTES_MAX = 1 << 20  # bytes in files; no more than a few thousand rows, walked in some ms
WALKED_ROWS_MAX = (
    200_000  # rows; what an engine keeps beside its files, read in a third of a second
)
PART_BYTES_MIN = 4_096  # bytes; an engine's files know sizes no finer
PAYLOAD_BYTES = 256  # bytes; what a stored payload counts for, since its size would have to be read
BROUGHT_COUNT_MAX = 1 << 20  # stored payloads; a damaged count must not outweigh all other rows
TOLERANCE = 16  # a cut is right to this part of a part; finer takes more questions to the engine

_INNER_BITS = 8 * OFFSET_SIZE  # of an id, behind its offset
_INNER_MASK = (1 << _INNER_BITS) - 1
_COUNT_SIZE = 4  # bytes; the last of a reference row
_NOTHING_INSIDE = Offset(0, 0)  # where the payload of a row stands that brings no stored ones


def split(
    store: Store, query: Query, *, start: MessageId | None, end: MessageId | None, count: int
) -> list[Split]:
    """At most `count` parts that follow each other, from `start`, exclusive, to `end`, or as far as
    anything is served; none where there is no row. The query has the same range in its own terms.

    Raises:
        StoreError: the engine can't read.
    """
    last = min(query.high_water_mark, query.through.offset)
    first = _first_offset(store, query, last)
    if first is None:
        return []
    scale = _scale(store, query.prefix, first=first.to_int(), stop=last.to_int() + 1)
    bounds = [MessageId.from_int((cut << _INNER_BITS) - 1) for cut in _cuts(scale, count)]
    starts, ends = [start, *bounds], [*bounds, end or past_group(query.high_water_mark)]
    return [Split(*each) for each in zip(starts, ends, strict=True)]


def _first_offset(store: Store, query: Query, last: Offset) -> Offset | None:
    """Where the first row stands of which the range may have a message."""
    number = first_number(query)
    offset, inside = Offset.from_int(number >> _INNER_BITS), Offset.from_int(number & _INNER_MASK)
    if offset > last:
        return None
    keys = message_key(query.prefix, offset), message_key(query.prefix, offset_after(last))
    try:
        with closing(store.scan(*keys)) as rows:
            for key, value in rows:
                # What can't be read and may be of the range need not have its key in there.
                if offset_in(key) != offset or not _is_behind(key, value, inside):
                    return min(offset_in(key), last)
        with closing(scan_reporting_corruption(store, *keys)) as records:
            deque(records, maxlen=0)  # nothing was found, unless damage hides it
    except StoreDamagedError:
        return offset  # a reader is to come here, and be told
    return None


def _is_behind(key: bytes, value: bytes, inside: Offset) -> bool:
    """Whether nothing of the row at the start is left, when the start lies inside of it."""
    try:
        brings = MessageRow.from_bytes(key, value).reference
    except DamagedRowError:
        return False
    return inside > (_NOTHING_INSIDE if brings is None else brings.last)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """How the bytes of a range lie. Offsets are numbers here. Up to `walked_from` the engine's
    files tell; the rows from there on stand in `rows`, with the bytes up to the end of each in
    `sums`."""

    in_files: Callable[[int], int]
    first: int
    walked_from: int
    filed_bytes: int
    rows: list[int]
    sums: list[int]

    @property
    def size_bytes(self) -> int:
        return self.filed_bytes + (self.sums[-1] if self.sums else 0)


def _scale(store: Store, prefix: bytes, *, first: int, stop: int) -> _Scale:
    def size(start: int, stop: int) -> int:
        keys = (
            message_key(prefix, Offset.from_int(start)),
            message_key(prefix, Offset.from_int(stop)),
        )
        return store.approximate_size(*keys)

    walked_from = first
    if size(first, stop) > WALKED_BYTES_MAX:
        walked_from = _bisect(lambda number: size(number, stop) == 0, first, stop)
    rows, sums = _walk(store, prefix, walked_from, stop)
    return _Scale(
        in_files=lambda number: size(first, number),
        first=first,
        walked_from=walked_from,
        filed_bytes=size(first, walked_from) if walked_from > first else 0,
        rows=rows,
        sums=sums,
    )


def _walk(store: Store, prefix: bytes, start: int, stop: int) -> tuple[list[int], list[int]]:
    """The offsets of rows, and the bytes of the rows up to and with each; where there are too many,
    or damage, those up to there."""
    numbers: list[int] = []
    sizes: list[int] = []
    keys = message_key(prefix, Offset.from_int(start)), message_key(prefix, Offset.from_int(stop))
    with suppress(StoreDamagedError), closing(store.scan(*keys)) as rows:
        for key, value in islice(rows, WALKED_ROWS_MAX):
            if offset_number(key) >= stop:
                break  # it can't be read, and only may have rows of the range
            numbers.append(offset_number(key))
            sizes.append(len(key) + len(value) + _brought_bytes(value))
    return numbers, list(accumulate(sizes))


def _brought_bytes(value: bytes) -> int:
    if not value[0] & IS_REFERENCE:
        return 0
    # Not checked: of a damaged row nothing is used but this weight.
    return PAYLOAD_BYTES * min(int.from_bytes(value[-_COUNT_SIZE:], "big"), BROUGHT_COUNT_MAX)


def _cuts(scale: _Scale, count: int) -> Iterator[int]:
    """Ascending offsets at which parts begin, without the first part's."""
    total = scale.size_bytes
    if scale.filed_bytes:
        count = min(count, total // PART_BYTES_MIN)
    passed = scale.first
    for index in range(1, count):
        cut = _cut(scale, total * index // count, passed, tolerance=total // count // TOLERANCE)
        if cut is not None and cut > passed:
            yield cut
            passed = cut


def _cut(scale: _Scale, size_bytes: int, passed: int, *, tolerance: int) -> int | None:
    """The offset before which so many bytes lie, about."""
    if size_bytes > scale.filed_bytes:
        # The row that the sum falls into goes to the part in which more than half of it lies.
        row = bisect_left(scale.sums, size_bytes - scale.filed_bytes)
        before = scale.sums[row - 1] if row else 0
        is_mostly_before = 2 * (size_bytes - scale.filed_bytes - before) > scale.sums[row] - before
        row += is_mostly_before
        return scale.rows[row] if row < len(scale.rows) else None
    low, high = passed, scale.walked_from
    while high - low > 1:
        middle = (low + high) // 2
        size = scale.in_files(middle)
        if abs(size - size_bytes) <= tolerance:
            return middle
        low, high = (middle, high) if size < size_bytes else (low, middle)
    return high


def _bisect(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The first number from which on it holds; it does at `high`."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return high


def routes(offsets: TopicOffsets) -> list[Route]:
    """The HTTP routes of offsets and splits."""
    handlers = _Routes(offsets)
    return [
        Route("GET", f"{TOPIC_PATH}/offsets", handlers.offsets),
        Route("GET", f"{TOPIC_PATH}/splits", handlers.splits),
    ]


class _Routes:
    def __init__(self, offsets: TopicOffsets) -> None:
        self._offsets = offsets

    async def offsets(self, request: Request) -> Reply:
        topic = topic_of(request, parameters={"isolation", "tx"})
        query = dict(request.query)
        isolation, tx = choice(query, "isolation", Isolation), transaction_named(query)
        if isolation is not None and tx is not None:
            raise BadRequestError("give isolation or tx, not both")
        found = await self._offsets.offsets(topic, isolation=isolation or Isolation.ALL, tx=tx)
        form = {
            "generation": found.generation,
            "earliest": found.earliest and found.earliest.hex(),
            "end": found.end and found.end.hex(),
            "blockedBy": None
            if found.blocked_by is None
            else json_forms.pointer_to_json(found.blocked_by),
        }
        return json_reply(form)

    async def splits(self, request: Request) -> Reply:
        topic = topic_of(request, parameters={"start", "end", "n"})
        query = dict(request.query)
        if "n" not in query:
            raise BadRequestError("say with n into how many parts at most, as in ?n=8")
        count = whole_digits(query["n"], what="n")
        if not 1 <= count <= SPLITS_COUNT_MAX:
            raise BadRequestError(f"n is 1 to {SPLITS_COUNT_MAX} parts, not {shown(query['n'])}")
        start, end = (_maybe_id(query.get(name)) for name in ("start", "end"))
        generation, found = await self._offsets.splits(topic, start=start, end=end, count=count)
        form = [{"start": part.start and part.start.hex(), "end": part.end.hex()} for part in found]
        return json_reply({"generation": generation, "splits": form})


def _maybe_id(digits: str | None) -> MessageId | None:
    return None if digits is None else MessageId.from_hex(digits)
