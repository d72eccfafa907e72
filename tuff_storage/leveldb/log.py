"""The format of LevelDB's logs and manifests, parsed without LevelDB (design §5, Engine interface).

    file     := block*                     32 KiB each, the last one shorter
    block    := fragment* zero{0,6}
    fragment := crc(4) length(2) type(1) data(length)     little-endian; crc over type and data
    type     := 1 whole | 2 first | 3 middle | 4 last
    batch    := sequence(8) count(4) (1 key value | 0 key)*      strings behind a varint length

LevelDB skips parts of a damaged log silently, or refuses all of it. This parser reports the
location of each gap, and reads what lies behind it.
"""

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tuff_storage.leveldb.crc32c import crc32c

BLOCK_SIZE = 32_768  # bytes; LevelDB's own, in every file
SECTOR_SIZE = 512  # bytes; a disk writes a sector as a whole or not at all
VARINT_BITS_MAX = 63

Readable = bytes | mmap.mmap  # the bytes of a file; a large table need not be in memory

_HEAD = struct.Struct("<IHB")
_BATCH_HEAD = struct.Struct("<QI")
assert (_HEAD.size, _BATCH_HEAD.size) == (7, 12)
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MASK_DELTA = 0xA282EAD8


class MalformedError(ValueError):
    """Bytes that LevelDB does not write; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record; it is not whole if the checksum of one of its fragments is wrong."""

    offset: int
    data: bytes
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes that can't be read. At the end of a file they may be a write that a crash cut off."""

    offset: int
    stop: int
    reason: str
    is_tail: bool = False


@dataclass(frozen=True, slots=True)
class _Fragment:
    offset: int
    type: int
    data: bytes
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Change:
    """A value under a key, or None for a deletion."""

    key: bytes
    value: bytes | None
    sequence: int


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """Changes that were written atomically. `first` and `stop` bound its sequence numbers; `damage`
    says why not all of it can be read."""

    first: int
    stop: int
    changes: list[Change]
    damage: str | None


def masked_crc32c(data: bytes) -> int:
    """The checksum as LevelDB stores it beside the data: rotated, and a constant added."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def read_varint(data: Readable, at: int) -> tuple[int, int]:
    """A number, and the index behind it. Raises: MalformedError."""
    value = 0
    for shift in range(0, VARINT_BITS_MAX + 1, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise MalformedError("a number does not end")


def read_string(data: bytes, at: int) -> tuple[bytes, int]:
    """A string with a length before it, and the index behind it. Raises: MalformedError."""
    size, at = read_varint(data, at)
    if at + size > len(data):
        raise MalformedError(f"a string of {size} bytes goes beyond the end")
    return data[at : at + size], at + size


def read_records(data: bytes) -> Iterator[Record | Gap]:
    """All records of a log or manifest in order, and the gaps between them."""
    parts: list[_Fragment] = []
    for found in _fragments(data):
        if isinstance(found, Gap):
            yield from _unfinished(parts, found.offset)
            yield found
        elif found.type in (_WHOLE, _FIRST):
            yield from _unfinished(parts, found.offset)
            parts = [found]
        elif parts:
            parts.append(found)
        else:
            stop = found.offset + _HEAD.size + len(found.data)
            yield Gap(found.offset, stop, "the record's beginning is missing")
        if parts and parts[-1].type in (_WHOLE, _LAST):
            yield _joined(parts)
            parts = []
        elif isinstance(found, Gap):
            parts = []
    yield from _unfinished(parts, len(data), is_tail=True)


def torn_from(data: bytes) -> int | None:
    """Where the last write of a log begins, if a power cut may have torn it; None for a log that is
    whole, or damaged in another way.

    A sector that was never written at the end of a growing file reads as zeros. So the last write
    is torn exactly if it is not whole and one of its sectors is all zeros.
    """
    start: int | None = None
    for found in read_records(data):
        if isinstance(found, Record) and found.is_whole:
            start = None
        elif start is None:
            start = found.offset
    if start is None:
        return None
    borders = range(start - start % SECTOR_SIZE, len(data), SECTOR_SIZE)
    sectors = (data[max(at, start) : at + SECTOR_SIZE] for at in borders)
    return start if any(not any(sector) for sector in sectors) else None


def _joined(parts: list[_Fragment]) -> Record:
    data = b"".join(part.data for part in parts)
    return Record(parts[0].offset, data, all(part.is_whole for part in parts))


def _unfinished(parts: list[_Fragment], stop: int, *, is_tail: bool = False) -> Iterator[Gap]:
    if parts:
        yield Gap(parts[0].offset, stop, "the record's end is missing", is_tail)


def _fragments(data: bytes) -> Iterator[_Fragment | Gap]:
    at = 0
    while at < len(data):
        block_stop = min(at - at % BLOCK_SIZE + BLOCK_SIZE, len(data))
        if block_stop - at < _HEAD.size and block_stop % BLOCK_SIZE == 0:
            if any(data[at:block_stop]):
                yield Gap(at, block_stop, "the padding of a block is not zero")
            at = block_stop
            continue
        found = _fragment(data, at, block_stop)
        if found is None:
            stop = _next_whole(data, at + 1, block_stop)
            reason = "no fragment starts here, or its length is damaged"
            yield Gap(at, stop, reason, is_tail=stop == len(data))
            at = stop
        else:
            yield found
            at += _HEAD.size + len(found.data)


def _fragment(data: bytes, at: int, block_stop: int) -> _Fragment | None:
    if at + _HEAD.size > block_stop:
        return None
    crc, length, kind = _HEAD.unpack_from(data, at)
    stop = at + _HEAD.size + length
    if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST) or stop > block_stop:
        return None
    if masked_crc32c(data[at + _HEAD.size - 1 : stop]) == crc:
        return _Fragment(at, kind, data[at + _HEAD.size : stop], is_whole=True)
    # If another fragment follows where the length says, the length is right.
    is_bounded = block_stop - stop < _HEAD.size or _is_whole_at(data, stop, block_stop)
    if not is_bounded:
        return None
    return _Fragment(at, kind, data[at + _HEAD.size : stop], is_whole=False)


def _is_whole_at(data: bytes, at: int, block_stop: int) -> bool:
    crc, length, kind = _HEAD.unpack_from(data, at)
    stop = at + _HEAD.size + length
    return (
        kind in (_WHOLE, _FIRST, _MIDDLE, _LAST)
        and stop <= block_stop
        and masked_crc32c(data[at + _HEAD.size - 1 : stop]) == crc
    )


def _next_whole(data: bytes, at: int, block_stop: int) -> int:
    while at + _HEAD.size <= block_stop:
        if _is_whole_at(data, at, block_stop):
            return at
        at += 1
    return block_stop


def read_batch(record: Record) -> WriteBatch:
    """The changes of a log record, as many as can be parsed."""
    data = record.data
    changes: list[Change] = []
    if len(data) < _BATCH_HEAD.size:
        return WriteBatch(0, 0, changes, "the batch is too short for any")
    sequence, count = _BATCH_HEAD.unpack_from(data)
    at = _BATCH_HEAD.size
    damage = None if record.is_whole else "the checksum does not match"
    try:
        while at < len(data):
            change, at = _change(data, at, sequence + len(changes))
            changes.append(change)
    except MalformedError as error:
        damage = str(error)
    if damage is None and len(changes) != count:
        damage = f"the batch has {len(changes)} changes, and its head says {count}"
    return WriteBatch(sequence, sequence + count, changes, damage)


def _change(data: bytes, at: int, sequence: int) -> tuple[Change, int]:
    kind = data[at]
    if kind not in (0, 1):
        raise MalformedError(f"a change has the kind {kind}")
    key, at = read_string(data, at + 1)
    if kind == 0:
        return Change(key, None, sequence), at
    value, at = read_string(data, at)
    return Change(key, value, sequence), at
