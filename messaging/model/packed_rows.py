"""Packed rows: neighbouring rows in one stored value, and a store that shows them one by one.

    packed := flags(1) crc(4) count(2) size(4)*count row_crc(4)*count payload*count

The flags are 16 and nothing else; `crc` covers the key and all the rest, as in every row. The key
is that of the *last* row, so that a scan that starts at any of the rows finds the value. All
rows lie in one millisecond, have consecutive sequence numbers, and were written by one batch.
`row_crc` is the checksum that each would have as a row by itself (messaging/model/row_format.py):
in a damaged value each row still proves whether it is whole.

One checksum and one step of the engine for some hundred rows is what makes reading them cheap. An
engine whose rows are deleted one by one elsewhere (by region servers of HBase) gets no packed rows.

Readers of many messages take packed rows as they are stored; all others see single rows
(messaging/engines/row_store.py). Packed rows are written together and deleted together: retention
and the deletion of a topic drop older rows first. Deleting the last row, under whose key the value
is stored, deletes all of them; deleting another row has no effect yet.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import NamedTuple

from messaging.model.row_format import (
    HEAD,
    IS_PACKED,
    MESSAGES,
    OFFSET_SIZE,
    PACKED_BYTE,
    PAYLOADS,
    PLAIN_BYTE,
    SEQ_SIZE,
    DamagedRowError,
    NewerRowError,
    Row,
    frame,
    is_whole,
    newer_flags,
    offset_number,
    unframe,
)
from tuff_storage.checksum import crc32

PACKED_COUNT_MAX = 256  # rows
PACKED_BYTES_MAX = 32 << 10  # bytes of values; a reader of one message reads all of it

Columns = tuple[Sequence[bytes], Sequence[bytes]]  # the keys and the values of rows

PACKED_TABLES = (MESSAGES, PAYLOADS)
_SEQ_MAX = (1 << 8 * SEQ_SIZE) - 1
_COUNT = struct.Struct(">H")
_NUMBER_SIZE = 4  # bytes; a size, and a checksum
_SIZES_AT = HEAD.size + _COUNT.size
_PACKED_SIZE_MAX = (
    _SIZES_AT + 2 * _NUMBER_SIZE * PACKED_COUNT_MAX + PACKED_BYTES_MAX
)  # bytes of a value
_FLAGS = itemgetter(0)  # of a value


def is_packed(value: bytes) -> bool:
    """Whether a stored value of a message or a payload, which need not be whole, holds packed
    rows."""
    return value[:1] == PACKED_BYTE


def row_count(value: bytes) -> int:
    """How many rows a stored value contains; it need not be whole."""
    return _count(value) if is_packed(value) else 1


def _count(value: bytes) -> int:
    return int.from_bytes(value[HEAD.size : _SIZES_AT], "big")


class PackedRows:
    """A whole value of packed rows: how many rows it has, the number of the first one's offset, and
    where the payloads begin."""

    __slots__ = ("_bounds", "length", "number", "payloads_at", "value")

    def __init__(self, value: bytes, length: int, number: int, payloads_at: int) -> None:
        self.value = value
        self.length = length
        self.number = number
        self.payloads_at = payloads_at
        self._bounds: list[int] | None = None

    def bounds(self) -> list[int]:
        """Where each payload begins, and last where the value ends."""
        if self._bounds is None:
            sizes = _sizes(self.value, self.length)
            self._bounds = [*accumulate(sizes, initial=self.payloads_at)]
        return self._bounds


@dataclass(frozen=True, slots=True)
class PackedSlice:
    """The messages of neighbours among packed rows: `start <= index < stop`. An id is `front`, the
    row's offset, and `back`."""

    rows: PackedRows
    start: int
    stop: int
    front: bytes
    back: bytes

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def size_bytes(self) -> int:
        """The bytes of all payloads."""
        start, stop = self._place()
        return stop - start

    @property
    def last_id(self) -> bytes:
        offset = (self.rows.number + self.stop - 1).to_bytes(OFFSET_SIZE, "big")
        return self.front + offset + self.back

    def first(self, count: int) -> "PackedSlice":
        """The slice of the first `count` rows."""
        return PackedSlice(self.rows, self.start, self.start + count, self.front, self.back)

    def bounds(self) -> list[int]:
        """Where each payload begins, and last where the payloads end."""
        return self.rows.bounds()[self.start : self.stop + 1]

    def ids(self) -> list[bytes]:
        before, seqs, back = self._ids()
        return [before + seq + back for seq in seqs]

    def payloads(self) -> list[bytes]:
        value = self.rows.value
        return [value[start:stop] for start, stop in pairwise(self.bounds())]

    def joined_ids(self) -> bytes:
        before, seqs, back = self._ids()
        return before + (back + before).join(seqs) + back

    def joined_payloads(self) -> memoryview:
        return memoryview(self.rows.value)[slice(*self._place())]

    def sizes(self) -> bytes:
        """The sizes of the payloads, of four bytes each, as stored."""
        start, stop = (_SIZES_AT + _NUMBER_SIZE * index for index in (self.start, self.stop))
        return self.rows.value[start:stop]

    def _place(self) -> tuple[int, int]:
        """Where the payloads are in the value; for all rows at once no size is decoded."""
        rows = self.rows
        if len(self) == rows.length:
            return rows.payloads_at, len(rows.value)
        bounds = rows.bounds()
        return bounds[self.start], bounds[self.stop]

    def _ids(self) -> tuple[bytes, Sequence[bytes], bytes]:
        """The parts of each id: the bytes before the sequence number, the sequence numbers, and the
        bytes after it. All rows are of one millisecond."""
        offset = (self.rows.number + self.start).to_bytes(OFFSET_SIZE, "big")
        first = int.from_bytes(offset[-SEQ_SIZE:], "big")
        seqs = _all_seqs()[first : first + len(self)]
        return self.front + offset[:-SEQ_SIZE], seqs, self.back


@cache
def _all_seqs() -> list[bytes]:
    # About three megabytes; halves the cost of making an id.
    return [number.to_bytes(SEQ_SIZE, "big") for number in range(1 << 8 * SEQ_SIZE)]


def open_packed(key: bytes, value: bytes) -> PackedRows | None:
    """The packed rows of a value; None if the value is damaged or no packed rows."""
    count = _count(value)
    payloads_at = _SIZES_AT + 2 * _NUMBER_SIZE * count
    if len(value) < payloads_at or not 0 < count <= int.from_bytes(key[-SEQ_SIZE:], "big") + 1:
        return None
    checksum = crc32(memoryview(value)[HEAD.size :], crc32(PACKED_BYTE, crc32(key)))
    if HEAD.unpack_from(value) != (IS_PACKED, checksum):
        return None
    if payloads_at + sum(_sizes(value, count)) != len(value):
        return None
    number = offset_number(key) - count + 1
    return PackedRows(value, count, number, payloads_at)


def _sizes(value: bytes, count: int) -> tuple[int, ...]:
    return struct.unpack_from(f">{count}I", value, _SIZES_AT)


def pack_rows(keys: Sequence[bytes], values: Sequence[bytes]) -> Iterator[Row]:
    """The stored keys and values of these rows, which are neighbours of one prefix."""
    if len(keys) == 1 or any(map(_FLAGS, values)):
        yield from zip(keys, values, strict=True)
        return
    sums = [*accumulate(map(len, values), initial=0)]
    start = 0
    while start < len(keys):
        stop = _packed_stop(keys, sums, start)
        if stop - start == 1:
            yield keys[start], values[start]
        else:
            yield _packed_value(keys[stop - 1], values[start:stop])
        start = stop


def _packed_stop(keys: Sequence[bytes], sums: Sequence[int], start: int) -> int:
    """The index behind the last row of the packed rows that begins with this one."""
    first_seq = int.from_bytes(keys[start][-SEQ_SIZE:], "big")
    stop = min(len(keys), start + PACKED_COUNT_MAX, start + _SEQ_MAX + 1 - first_seq)
    fits = bisect_right(sums, sums[start] + PACKED_BYTES_MAX, lo=start, hi=stop + 1) - 1
    return max(fits, start + 1)


def _packed_value(key: bytes, values: Sequence[bytes]) -> Row:
    sizes = [len(value) - HEAD.size for value in values]
    parts = [_COUNT.pack(len(values)), struct.pack(f">{len(values)}I", *sizes)]
    parts += [value[1 : HEAD.size] for value in values]
    parts += [value[HEAD.size :] for value in values]
    return key, frame(key, IS_PACKED, b"".join(parts))


def require_packed(key: bytes, value: bytes) -> None:
    """Raises: DamagedRowError: it is not whole, or NewerRowError: whole, and not of this form."""
    unframe(key, value)
    if open_packed(key, value) is None:
        raise newer_flags(IS_PACKED)


def unpack_rows(key: bytes, value: bytes) -> list[Row] | None:
    """The single rows of a value that need not be whole; the checksum of each shows whether it is
    damaged. None if the bounds of the rows can't be found."""
    rows = _unpack(key, value, _count(value))
    # If the count is damaged, the right one is that with which the sizes add up and a row is whole.
    for count in range(1, PACKED_COUNT_MAX + 1) if rows is None else ():
        found = _unpack(key, value, count)
        if found is not None and any(is_whole(*row) for row in found):
            return found
    return rows


def _unpack(key: bytes, value: bytes, count: int) -> list[Row] | None:
    last_seq = int.from_bytes(key[-SEQ_SIZE:], "big")
    checksums_at = _SIZES_AT + _NUMBER_SIZE * count
    payloads_at = checksums_at + _NUMBER_SIZE * count
    if not 0 < count <= last_seq + 1 or len(value) < payloads_at:
        return None
    numbers = range(last_seq + 1 - count, last_seq + 1)
    keys = [key[:-SEQ_SIZE] + number.to_bytes(SEQ_SIZE, "big") for number in numbers]
    offsets = range(checksums_at, payloads_at, _NUMBER_SIZE)
    heads = [PLAIN_BYTE + value[at : at + _NUMBER_SIZE] for at in offsets]
    starts = [*accumulate(_sizes(value, count), initial=payloads_at)]
    lacking = len(value) - starts[-1]
    for at in range(count) if lacking else ():
        # If one size is damaged, the others determine it, and its row proves which one it is.
        stop = starts[at + 1] + lacking
        if starts[at] <= stop and is_whole(keys[at], heads[at] + value[starts[at] : stop]):
            starts[at + 1 :] = [start + lacking for start in starts[at + 1 :]]
            break
    if starts[-1] != len(value):
        return None
    bounds = zip(heads, pairwise(starts), strict=True)
    values = [head + value[start:stop] for head, (start, stop) in bounds]
    return [*zip(keys, values, strict=True)]


def rows_in(key: bytes, value: bytes) -> list[Row]:
    """The rows in a stored value: the value itself, unless it is packed rows whose bounds can be
    found."""
    if key[:1] not in PACKED_TABLES:
        return [(key, value)]
    rows = unpack_rows(key, value) if is_packed(value) else _unpack_despite_flags(key, value)
    return rows or [(key, value)]


def _unpack_despite_flags(key: bytes, value: bytes) -> list[Row] | None:
    """The rows of packed rows whose flags are damaged; None for any other value. Costs little for a
    value that does not have the sizes of packed rows."""
    if not 1 < _count(value) <= PACKED_COUNT_MAX or len(value) > _PACKED_SIZE_MAX:
        return None
    rows = _unpack(key, value, _count(value))
    if rows is None or not any(is_whole(*row) for row in rows):
        return None
    try:
        unframe(key, value)
    except NewerRowError:
        return None
    except DamagedRowError:
        return rows
    return None  # a payload that happens to look like packed rows


def packed_count_max(key: bytes, value: bytes) -> int:
    """How many rows a value that can't be read may contain at most; the last has this key."""
    if key[:1] not in PACKED_TABLES:
        return 1
    fitting = (len(value) - _SIZES_AT) // (2 * _NUMBER_SIZE)
    return max(1, min(fitting, int.from_bytes(key[-SEQ_SIZE:], "big") + 1))


def begins_before(key: bytes, value: bytes, stop: bytes, *, before: bytes) -> bool:
    """Whether a value under this key, which is not before `stop`, may have rows before `stop`. If
    the bounds of the rows can't be found, their number is unknown. All rows of the value are behind
    `before`, which is the key of the value in front."""
    rows = rows_in(key, value)
    if len(rows) > 1 or is_whole(*rows[0]):
        return rows[0][0] < stop
    last = int.from_bytes(key[-SEQ_SIZE:], "big")
    first = last + 1 - packed_count_max(key, value)
    if before[:-SEQ_SIZE] == key[:-SEQ_SIZE]:
        first = max(first, int.from_bytes(before[-SEQ_SIZE:], "big") + 1)
    return key[:-SEQ_SIZE] + first.to_bytes(SEQ_SIZE, "big") < stop


def whole_rows(key: bytes, value: bytes) -> list[Row]:
    """The value, if it is whole; else the whole rows of damaged packed rows."""
    if is_whole(key, value):
        return [(key, value)]
    rows = unpack_rows(key, value) if key[:1] in PACKED_TABLES else None
    return [row for row in rows or () if is_whole(*row)]


def first_whole(key: bytes, value: bytes) -> tuple[bytes, bool] | None:
    """The key of the first whole row in a stored value, and whether all of the value is whole; None
    if no row is."""
    is_all = is_whole(key, value)
    rows = rows_in(key, value)
    first = next((row_key for row_key, row_value in rows if is_whole(row_key, row_value)), None)
    return (key if first is None else first, is_all) if is_all or first is not None else None


def overlap_stop(stop: bytes) -> bytes:
    """The first key behind all packed rows that may have rows before `stop`, the key of a row or of
    a table."""
    if len(stop) <= SEQ_SIZE or stop[:1] not in PACKED_TABLES:
        return stop
    return stop[:-SEQ_SIZE] + b"\xff" * SEQ_SIZE + b"\x00"


class NewRows(NamedTuple):
    """Rows of one publish with their payloads, in the order of their keys. `is_plain`: they contain
    only payloads; else at least one has a pointer, or a time to live of its own."""

    prefix: bytes
    keys: Sequence[bytes]
    values: Sequence[bytes]
    is_plain: bool


def joined_neighbours(new_rows: Iterable[NewRows]) -> Iterator[Columns]:
    """The rows of these publishes; those of adjacent plain publishes to one topic together."""
    together: dict[bytes, tuple[list[bytes], list[bytes]]] = {}
    for rows in new_rows:
        if not rows.is_plain:
            yield rows.keys, rows.values
            continue
        keys, values = together.get(rows.prefix, ([], []))
        if keys and offset_number(keys[-1]) + 1 != offset_number(rows.keys[0]):
            yield keys, values
            keys, values = [], []
        keys += rows.keys
        values += rows.values
        together[rows.prefix] = keys, values
    yield from together.values()
