"""A backup as one stream: parts, and an end record without which the stream is invalid.

    archive := magic(8) version(2) part* (end | failure)      each a frame: disk/records.py
    part    := kind(1) content
    end     := 0 count(8)                                     big-endian; the parts before it
    failure := 255 UTF-8                                      why the rest is missing

The writer defines the meaning of the parts. A stream that was cut off has no end record. If a part
is missing or repeated, the count in the end record is wrong.
"""

import struct
from collections.abc import Iterator
from typing import BinaryIO

from tuff_storage.disk.records import Damage, pack_frame, read_frame

MAGIC = b"TUFFBKUP"
VERSION = 1
PART_BYTES_MAX = 64 << 20  # bytes; enough for the largest row, and bounds the reader's memory

_HEAD = struct.Struct(">8sH")
_FRAME_HEAD = struct.Struct(">II")
_COUNT = struct.Struct(">Q")
assert (_HEAD.size, _FRAME_HEAD.size, _COUNT.size) == (10, 8, 8)

_END, _FAILURE = 0, 255


class ArchiveError(Exception):
    """The archive is incomplete or damaged; the sentence says where and why."""


class NewerArchiveError(ArchiveError):
    """The archive has a newer version than this one can read."""


def pack_head() -> bytes:
    """The head of an archive."""
    return _HEAD.pack(MAGIC, VERSION)


def pack_part(kind: int, content: bytes) -> bytes:
    """The part of a kind from 1 to 254. Raises: ArchiveError: it is larger than any may be."""
    assert _END < kind < _FAILURE
    if len(content) >= PART_BYTES_MAX:
        raise ArchiveError(f"{len(content)} bytes are more than a part of a backup can hold")
    return pack_frame(bytes((kind,)) + content)


def pack_end(count: int) -> bytes:
    """The end record of an archive of `count` parts."""
    return pack_frame(bytes((_END,)) + _COUNT.pack(count))


def pack_failure(sentence: str) -> bytes:
    """The failure record, which takes the place of the rest."""
    return pack_frame(bytes((_FAILURE,)) + sentence.encode())


def read_parts(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The kind and content of each part. The archive is complete if this ends without an error.

    Raises:
        ArchiveError: it is damaged, was cut off or given up, or is not an archive.
        OSError: the file can't be read.
    """
    _read_head(file)
    offset, count = _HEAD.size, 0
    while True:
        body, stop = _read_frame(file, offset)
        kind, content = body[:1], body[1:]
        if kind == bytes((_FAILURE,)):
            sentence = content.decode("utf-8", "replace")
            raise ArchiveError(f"its writer gave up: {sentence}")
        if kind == bytes((_END,)):
            break
        yield body[0], content
        offset, count = stop, count + 1
    if content != _COUNT.pack(count):
        raise ArchiveError(
            f"{count} parts were read before the end at byte {offset}, which names another number"
        )
    if file.read(1):
        raise ArchiveError(f"something follows the end at byte {stop}")


def read_whole_parts(file: BinaryIO, damages: list[str]) -> Iterator[tuple[int, bytes]]:
    """The kind and content of each part that can be read. What is damaged or missing is appended to
    `damages`; behind a damaged length nothing can be found.

    Raises:
        ArchiveError: it is not an archive, or is of another version.
        OSError: the file can't be read.
    """
    _read_head(file)
    offset = _HEAD.size
    while True:
        try:
            body, offset = _read_frame(file, offset)
        except ArchiveError as error:
            damages.append(str(error))
            if file.tell() <= offset + _FRAME_HEAD.size:
                return
            offset = file.tell()
            continue
        if body[0] == _FAILURE:
            damages.append(f"its writer gave up: {body[1:].decode('utf-8', 'replace')}")
        if body[0] in (_END, _FAILURE):
            return
        yield body[0], body[1:]


def _read_head(file: BinaryIO) -> None:
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size or not head.startswith(MAGIC):
        raise ArchiveError("it does not begin as a backup does")
    _, version = _HEAD.unpack(head)
    if version != VERSION:
        kind = NewerArchiveError if version > VERSION else ArchiveError
        raise kind(f"it is of version {version}, and version {VERSION} can be read here")


def _read_frame(file: BinaryIO, offset: int) -> tuple[bytes, int]:
    head = file.read(_FRAME_HEAD.size)
    if not head:
        raise ArchiveError(f"its end is missing: it was cut off at byte {offset}")
    if len(head) == _FRAME_HEAD.size:
        length, _ = _FRAME_HEAD.unpack(head)
        if not 0 < length <= PART_BYTES_MAX:
            raise ArchiveError(f"it is damaged at byte {offset}: no part has {length} bytes")
        head += file.read(length)
    found = read_frame(head, 0)
    if isinstance(found, Damage):
        raise ArchiveError(f"it is damaged at byte {offset}: {found.reason}")
    return found.body, offset + found.stop
