"""Cuts a range of a topic into parts of about equal size, to be read side by side (protocol §3.7).

The engine says how many bytes of rows its files hold between two keys, and the places in between
are bisected by that. What the files do not hold yet, the newest rows, is walked over, and so is a
range that is small. Parts end where a row ends, so that no payload group is cut. Blocks.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import accumulate, islice

from messaging.keys import PLACE_SIZE, message_key, place_after, place_in, place_number
from messaging.query import Query, first_number
from messaging.rows import IS_REFERENCE, DamagedRowError, MessageRow
from messaging.run_table import scan_told
from messaging.storage.seam import Store, StoreDamagedError
from tuff.protocol.ids import MessageId, Place, past_group

SPLITS_COUNT_MAX = 10_000  # parts; each is one task of a job
WALKED_BYTES_MAX = 1 << 20  # bytes in files; no more than a few thousand rows, walked in some ms
WALKED_ROWS_MAX = (
    200_000  # rows; what an engine keeps beside its files, read in a third of a second
)
PART_BYTES_MIN = 4_096  # bytes; an engine's files know sizes no finer
PAYLOAD_BYTES = 256  # bytes; what a stored payload counts for, since its size would have to be read
BROUGHT_COUNT_MAX = 1 << 20  # stored payloads; a damaged count must not outweigh all other rows
TOLERANCE = 16  # a cut is right to this part of a part; finer takes more questions to the engine

_INNER_BITS = 8 * PLACE_SIZE  # of an id, behind its place
_INNER_MASK = (1 << _INNER_BITS) - 1
_COUNT_SIZE = 4  # bytes; the last of a reference row
_NOTHING_INSIDE = Place(0, 0)  # where the payload of a row stands that brings no stored ones


@dataclass(frozen=True, slots=True)
class Split:
    """One part: behind `start`, None for the beginning of the topic, up to and with `end`."""

    start: MessageId | None
    end: MessageId


def split(
    store: Store, query: Query, *, start: MessageId | None, end: MessageId | None, count: int
) -> list[Split]:
    """At most `count` parts that follow each other, from `start`, exclusive, to `end`, or as far as
    anything is served; none where there is no row. The query has the same range in its own terms.

    Raises:
        StoreError: the engine can't read.
    """
    last = min(query.served, query.through.place)
    first = _first_place(store, query, last)
    if first is None:
        return []
    scale = _scale(store, query.prefix, first=first.to_int(), stop=last.to_int() + 1)
    bounds = [MessageId.from_int((cut << _INNER_BITS) - 1) for cut in _cuts(scale, count)]
    starts, ends = [start, *bounds], [*bounds, end or past_group(query.served)]
    return [Split(*each) for each in zip(starts, ends, strict=True)]


def _first_place(store: Store, query: Query, last: Place) -> Place | None:
    """Where the first row stands of which the range may have a message."""
    number = first_number(query)
    place, inside = Place.from_int(number >> _INNER_BITS), Place.from_int(number & _INNER_MASK)
    if place > last:
        return None
    keys = message_key(query.prefix, place), message_key(query.prefix, place_after(last))
    try:
        with closing(store.scan(*keys)) as rows:
            for key, value in rows:
                # What can't be read and may be of the range need not have its key in there.
                if place_in(key) != place or not _is_behind(key, value, inside):
                    return min(place_in(key), last)
        with closing(scan_told(store, *keys)) as records:
            deque(records, maxlen=0)  # nothing was found, unless damage hides it
    except StoreDamagedError:
        return place  # a reader is to come here, and be told
    return None


def _is_behind(key: bytes, value: bytes, inside: Place) -> bool:
    """Whether nothing of the row at the start is left, when the start lies inside of it."""
    try:
        brings = MessageRow.from_bytes(key, value).reference
    except DamagedRowError:
        return False
    return inside > (_NOTHING_INSIDE if brings is None else brings.last)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """How the bytes of a range lie. Places are numbers here. Up to `walked_from` the engine's files
    tell; the rows from there on stand in `rows`, with the bytes up to the end of each in `sums`."""

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
        keys = message_key(prefix, Place.from_int(start)), message_key(prefix, Place.from_int(stop))
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
    """The places of rows, and the bytes of the rows up to and with each; where there are too many,
    or damage, those up to there."""
    numbers: list[int] = []
    sizes: list[int] = []
    keys = message_key(prefix, Place.from_int(start)), message_key(prefix, Place.from_int(stop))
    with suppress(StoreDamagedError), closing(store.scan(*keys)) as rows:
        for key, value in islice(rows, WALKED_ROWS_MAX):
            if place_number(key) >= stop:
                break  # it can't be read, and only may have rows of the range
            numbers.append(place_number(key))
            sizes.append(len(key) + len(value) + _brought_bytes(value))
    return numbers, list(accumulate(sizes))


def _brought_bytes(value: bytes) -> int:
    if not value[0] & IS_REFERENCE:
        return 0
    # Not checked: of a damaged row nothing is used but this weight.
    return PAYLOAD_BYTES * min(int.from_bytes(value[-_COUNT_SIZE:], "big"), BROUGHT_COUNT_MAX)


def _cuts(scale: _Scale, count: int) -> Iterator[int]:
    """Ascending places at which parts begin, without the first part's."""
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
    """The place before which so many bytes lie, about."""
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
