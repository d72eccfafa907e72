"""Neighbouring rows in one stored value: how rows are stored that are nothing but payloads.

    run := flags(1) crc(4) count(2) size(4)*count row_crc(4)*count payload*count

Its flags are 16 and nothing else; `crc` covers the key and all the rest, as in every row. The key
is that of its *last* row, so that a scan from any of its rows on comes to it. The rows lie in one
millisecond, with numbers that follow each other, and were written by one batch. `row_crc` is the
checksum that each would have as a row by itself (messaging/rows.py): where a run is damaged, each
row still proves whether it is.

One checksum, and one step of the engine, for some hundred rows is what makes reading them cheap. An
engine whose rows somebody else deletes one by one is not given any.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import NamedTuple

from messaging.keys import MESSAGES, PAYLOADS, SEQ_SIZE, place_number
from messaging.rows import (
    HEAD,
    IS_RUN,
    PLAIN_MARK,
    DamagedRowError,
    NewerRowError,
    frame,
    is_whole,
    newer_flags,
    unframe,
)
from tuff.checksum import crc32

RUN_COUNT_MAX = 256  # rows
RUN_BYTES_MAX = 32 << 10  # bytes of values; a reader who wants one message takes all of it

Row = tuple[bytes, bytes]  # a key and a value

_TABLES = (MESSAGES, PAYLOADS)
_MARK = bytes((IS_RUN,))
_SEQ_MAX = (1 << 8 * SEQ_SIZE) - 1
_COUNT = struct.Struct(">H")
_NUMBER_SIZE = 4  # bytes; a size, and a checksum
_SIZES_AT = HEAD.size + _COUNT.size
_RUN_SIZE_MAX = _SIZES_AT + 2 * _NUMBER_SIZE * RUN_COUNT_MAX + RUN_BYTES_MAX  # bytes of a value
_FLAGS = itemgetter(0)  # of a value


def is_run(value: bytes) -> bool:
    """Whether a stored value of a message or a payload, which need not be whole, is a run."""
    return value[:1] == _MARK


def row_count(value: bytes) -> int:
    """How many rows a stored value stands for; it need not be whole."""
    return _count(value) if is_run(value) else 1


def _count(value: bytes) -> int:
    return int.from_bytes(value[HEAD.size : _SIZES_AT], "big")


class OpenRun(NamedTuple):
    """A run that is whole: how many rows it has, the number of the first one's place, and where the
    payloads begin."""

    value: bytes
    length: int
    number: int
    payloads_at: int

    def sizes(self, start: int, stop: int) -> bytes:
        """The sizes of the payloads from one row to another, as they stand in the run."""
        return self.value[_SIZES_AT + _NUMBER_SIZE * start : _SIZES_AT + _NUMBER_SIZE * stop]

    def bounds(self) -> list[int]:
        """Where each payload begins, and last where the run ends."""
        return [*accumulate(_sizes(self.value, self.length), initial=self.payloads_at)]


def open_run(key: bytes, value: bytes) -> OpenRun | None:
    """None if it is not whole, or not of this form."""
    count = _count(value)
    payloads_at = _SIZES_AT + 2 * _NUMBER_SIZE * count
    if len(value) < payloads_at or not 0 < count <= int.from_bytes(key[-SEQ_SIZE:], "big") + 1:
        return None
    checksum = crc32(memoryview(value)[HEAD.size :], crc32(_MARK, crc32(key)))
    if HEAD.unpack_from(value) != (IS_RUN, checksum):
        return None
    if payloads_at + sum(_sizes(value, count)) != len(value):
        return None
    number = place_number(key) - count + 1
    return OpenRun(value, count, number, payloads_at)


def _sizes(value: bytes, count: int) -> tuple[int, ...]:
    return struct.unpack_from(f">{count}I", value, _SIZES_AT)


def join(keys: Sequence[bytes], values: Sequence[bytes]) -> Iterator[Row]:
    """What is stored for these rows, which are neighbours of one prefix."""
    if len(keys) == 1 or any(map(_FLAGS, values)):
        yield from zip(keys, values, strict=True)
        return
    sums = [*accumulate(map(len, values), initial=0)]
    start = 0
    while start < len(keys):
        stop = _run_stop(keys, sums, start)
        if stop - start == 1:
            yield keys[start], values[start]
        else:
            yield _run(keys[stop - 1], values[start:stop])
        start = stop


def _run_stop(keys: Sequence[bytes], sums: Sequence[int], start: int) -> int:
    """The index behind the last row of the run that begins with this one."""
    first_seq = int.from_bytes(keys[start][-SEQ_SIZE:], "big")
    stop = min(len(keys), start + RUN_COUNT_MAX, start + _SEQ_MAX + 1 - first_seq)
    fits = bisect_right(sums, sums[start] + RUN_BYTES_MAX, lo=start, hi=stop + 1) - 1
    return max(fits, start + 1)


def _run(key: bytes, values: Sequence[bytes]) -> Row:
    sizes = [len(value) - HEAD.size for value in values]
    parts = [_COUNT.pack(len(values)), struct.pack(f">{len(values)}I", *sizes)]
    parts += [value[1 : HEAD.size] for value in values]
    parts += [value[HEAD.size :] for value in values]
    return key, frame(key, IS_RUN, b"".join(parts))


def require_run(key: bytes, value: bytes) -> None:
    """Raises: DamagedRowError: it is not whole, or NewerRowError: whole, and not of this form."""
    unframe(key, value)
    if open_run(key, value) is None:
        raise newer_flags(IS_RUN)


def split(key: bytes, value: bytes) -> list[Row] | None:
    """The rows of a run that need not be whole; of what is damaged in it, only each row's checksum
    tells. None where the rows can't be told apart."""
    rows = _split(key, value, _count(value))
    # A damaged count is the one with which the sizes add up, and the rows prove that it is.
    for count in range(1, RUN_COUNT_MAX + 1) if rows is None else ():
        found = _split(key, value, count)
        if found is not None and any(is_whole(*row) for row in found):
            return found
    return rows


def _split(key: bytes, value: bytes, count: int) -> list[Row] | None:
    last_seq = int.from_bytes(key[-SEQ_SIZE:], "big")
    checksums_at = _SIZES_AT + _NUMBER_SIZE * count
    payloads_at = checksums_at + _NUMBER_SIZE * count
    if not 0 < count <= last_seq + 1 or len(value) < payloads_at:
        return None
    numbers = range(last_seq + 1 - count, last_seq + 1)
    keys = [key[:-SEQ_SIZE] + number.to_bytes(SEQ_SIZE, "big") for number in numbers]
    places = range(checksums_at, payloads_at, _NUMBER_SIZE)
    marks = [PLAIN_MARK + value[at : at + _NUMBER_SIZE] for at in places]
    starts = [*accumulate(_sizes(value, count), initial=payloads_at)]
    lacking = len(value) - starts[-1]
    for at in range(count) if lacking else ():
        # One damaged size is what the others leave, and its row proves which one it is.
        stop = starts[at + 1] + lacking
        if starts[at] <= stop and is_whole(keys[at], marks[at] + value[starts[at] : stop]):
            starts[at + 1 :] = [start + lacking for start in starts[at + 1 :]]
            break
    if starts[-1] != len(value):
        return None
    bounds = zip(marks, pairwise(starts), strict=True)
    values = [mark + value[start:stop] for mark, (start, stop) in bounds]
    return [*zip(keys, values, strict=True)]


def rows_in(key: bytes, value: bytes) -> list[Row]:
    """The rows that a stored value is for: itself unless it is a run that can be told apart."""
    if key[:1] not in _TABLES:
        return [(key, value)]
    rows = split(key, value) if is_run(value) else _unmarked(key, value)
    return rows or [(key, value)]


def _unmarked(key: bytes, value: bytes) -> list[Row] | None:
    """The rows of a run whose flags are damaged; None for any other value. Costs next to nothing
    for a value that has not the sizes of a run."""
    if not 1 < _count(value) <= RUN_COUNT_MAX or len(value) > _RUN_SIZE_MAX:
        return None
    rows = _split(key, value, _count(value))
    if rows is None or not any(is_whole(*row) for row in rows):
        return None
    try:
        unframe(key, value)
    except NewerRowError:
        return None
    except DamagedRowError:
        return rows
    return None  # a payload that somebody made up to look like a run


def rows_max(key: bytes, value: bytes) -> int:
    """How many rows a value that can't be read may be for at most; the last has this key."""
    if key[:1] not in _TABLES:
        return 1
    fitting = (len(value) - _SIZES_AT) // (2 * _NUMBER_SIZE)
    return max(1, min(fitting, int.from_bytes(key[-SEQ_SIZE:], "big") + 1))


def begins_before(key: bytes, value: bytes, stop: bytes, *, before: bytes) -> bool:
    """Whether a row of this value, whose key is not before `stop`, is, or may be: of damage that
    can't be told apart nobody knows how many rows it was, only that none of them lies up to
    `before`, the key that comes before this one."""
    rows = rows_in(key, value)
    if len(rows) > 1 or is_whole(*rows[0]):
        return rows[0][0] < stop
    last = int.from_bytes(key[-SEQ_SIZE:], "big")
    first = last + 1 - rows_max(key, value)
    if before[:-SEQ_SIZE] == key[:-SEQ_SIZE]:
        first = max(first, int.from_bytes(before[-SEQ_SIZE:], "big") + 1)
    return key[:-SEQ_SIZE] + first.to_bytes(SEQ_SIZE, "big") < stop


def whole_rows(key: bytes, value: bytes) -> list[Row]:
    """The value, if it is whole; else those rows of it that are, should it be a damaged run."""
    if is_whole(key, value):
        return [(key, value)]
    rows = split(key, value) if key[:1] in _TABLES else None
    return [row for row in rows or () if is_whole(*row)]


def first_whole(key: bytes, value: bytes) -> tuple[bytes, bool] | None:
    """The key of the first row in a stored value that is whole, and whether all of it is; None
    where nothing is."""
    is_all = is_whole(key, value)
    rows = rows_in(key, value)
    first = next((row_key for row_key, row_value in rows if is_whole(row_key, row_value)), None)
    return (key if first is None else first, is_all) if is_all or first is not None else None


def overlap_stop(stop: bytes) -> bytes:
    """The first key behind all runs that may have rows before `stop`, a row's key or a table's."""
    if len(stop) <= SEQ_SIZE or stop[:1] not in _TABLES:
        return stop
    return stop[:-SEQ_SIZE] + b"\xff" * SEQ_SIZE + b"\x00"
