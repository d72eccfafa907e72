"""Framed, checksummed records in a file.

    frame := length(4) crc(4) body          big-endian; crc is CRC-32 of length and body

The checksum covers the length, so a range of zeros is no valid frame. A reader stops at the first
invalid frame and reports its offset. The caller decides whether it is a torn tail or damage: it
knows how much of the file was durable.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tuff_storage.checksum import crc32

FRAME_BYTES_MAX = 1 << 30  # bytes; a longer length is damage, not a reason to reserve memory

_HEAD = struct.Struct(">II")
assert _HEAD.size == 8


@dataclass(frozen=True, slots=True)
class Frame:
    """One intact record: its start and end in the file, and its content."""

    start: int
    stop: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Damage:
    """The offset from which a file can't be read, and the reason."""

    offset: int
    reason: str


def pack_frame(body: bytes) -> bytes:
    """The bytes of one record."""
    return pack_frames((body,))


def pack_frames(bodies: Sequence[bytes]) -> bytes:
    """The bytes of these records, one after the other."""
    pieces: list[bytes] = []
    for body in bodies:
        size = len(body)
        pieces.append(_HEAD.pack(size, crc32(body, crc32(size.to_bytes(4, "big")))))
        pieces.append(body)
    assert max(map(len, bodies), default=0) <= FRAME_BYTES_MAX
    return b"".join(pieces)


def read_frame(data: bytes, offset: int) -> Frame | Damage:
    """The record at an offset, or why there is none."""
    if offset + _HEAD.size > len(data):
        return Damage(offset, "the record's head is cut off")
    length, expected = _HEAD.unpack_from(data, offset)
    start = offset + _HEAD.size
    if length > FRAME_BYTES_MAX or start + length > len(data):
        return Damage(offset, "the record is cut off, or its length is damaged")
    body = data[start : start + length]
    if crc32(body, crc32(data[offset : offset + 4])) != expected:
        return Damage(offset, "the record's checksum does not match")
    return Frame(offset, start + length, body)


def read_frames(data: bytes, offset: int = 0) -> Iterator[Frame | Damage]:
    """Every record from an offset on, and last, if not all could be read, the damage."""
    while offset < len(data):
        found = read_frame(data, offset)
        yield found
        if isinstance(found, Damage):
            return
        offset = found.stop
