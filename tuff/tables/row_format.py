"""The rows of a `TransactionalTable` as bytes (docs/formats.md, TransactionalTable).

    key   := "r" row 00 00 version(8)        one version of a row
           | "u" transaction(8) number(4)    undo row: the versions that one batch wrote
           | "a" name | "z" name             a metadata row: format, id, compacted
    row   := the user's key, each 00 in it as 00 01
    value := flags(1) crc(4) body            flags: 1 is a delete marker, which has no body

`version` is 2^63 - 1 minus the write pointer, so the newest version comes first. The CRC-32 covers
the whole key, the flags and the body, so a value under a wrong key is damaged, too. A metadata row
is stored twice, at both ends of the table, so one damaged block leaves one copy.
"""

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from tuff.protocol.errors import (
    BadRequestError,
    DamagedRecordError,
)
from tuff.protocol.json_bodies import payload_to_json
from tuff.protocol.pointer_list import POINTER_MAX
from tuff_storage.checksum import crc32

FORMAT_VERSION = 1
TABLE_ID_BYTES = 16
STORED_BYTES_MIN = 5  # bytes of any stored value: flags and checksum

new_table_id = partial(os.urandom, TABLE_ID_BYTES)

ROWS_START, ROWS_STOP = b"r", b"s"
UNDO_START, UNDO_STOP = b"u", b"v"
UNDO_ENTRY_BYTES = 12  # bytes of an undo row for each version that it lists, beside its key
FORMAT, TABLE_ID, COMPACTED = b"format", b"id", b"compacted"  # names of metadata rows

_PLAIN, _DELETED, _UNDONE = 0, 1, 2  # only HBase has undone versions
_END_OF_ROW = b"\x00\x00"
_HEAD = struct.Struct(">BI")
_POINTER = struct.Struct(">Q")
_UNDO_KEY = struct.Struct(">cQI")
_UNDO_ENTRY = struct.Struct(">QI")
assert (_HEAD.size, _UNDO_KEY.size) == (STORED_BYTES_MIN, 13)
assert _UNDO_ENTRY.size == UNDO_ENTRY_BYTES


class MalformedKeyError(Exception):
    """A stored key that is not that of a version; the text names it."""


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """One version of a row: the user's key, and the write pointer it was written under."""

    key: bytes
    pointer: int

    @property
    def stored_key(self) -> bytes:
        """The LevelDB key. It sorts in the order of the user's keys, newest version first."""
        return row_prefix(self.key) + _POINTER.pack(POINTER_MAX - self.pointer)


def row_prefix(key: bytes) -> bytes:
    """The prefix of the stored keys of all versions of this row only."""
    return ROWS_START + key.replace(b"\x00", b"\x00\x01") + _END_OF_ROW


def row_stop(key: bytes) -> bytes:
    """The end of the versions of a row, not included."""
    return row_prefix(key) + b"\xff"  # no version begins with ff, since a pointer is below 2^63


def read_version(stored_key: bytes) -> Version:
    """Raises: MalformedKeyError."""
    row, end, pointer = stored_key[1:-10], stored_key[-10:-8], stored_key[-8:]
    if len(pointer) == _POINTER.size and end == _END_OF_ROW:
        (inverted,) = _POINTER.unpack(pointer)
        found = Version(row.replace(b"\x00\x01", b"\x00"), POINTER_MAX - inverted)
        if inverted <= POINTER_MAX and found.stored_key == stored_key:
            return found
    raise MalformedKeyError(f"no row is stored under {stored_key!r}")


def pack_value(stored_key: bytes, value: bytes | None) -> bytes:
    """A value, or None for a delete marker, with its checksum."""
    flags = _DELETED if value is None else _PLAIN
    return _frame(stored_key, flags, value or b"")


def read_value(stored_key: bytes, data: bytes) -> bytes | None:
    """The value of one version; None is a delete marker. Raises: DamagedRecordError."""
    flags, body = _unframe(stored_key, data)
    if flags == _DELETED and not body:
        return None
    if flags != _PLAIN:
        raise damaged(stored_key, f"flags {flags:#04x} are of a format this version can't read")
    return body


def pack_undone(stored_key: bytes) -> bytes:
    """The value that replaces an undone version in HBase."""
    return _frame(stored_key, _UNDONE, b"")


def is_undone(stored_key: bytes, data: bytes) -> bool:
    """Whether a stored value is an undone version. Raises: DamagedRecordError."""
    flags, body = _unframe(stored_key, data)
    return flags == _UNDONE and not body


def metadata_keys(name: bytes) -> tuple[bytes, bytes]:
    """The two keys of a metadata row."""
    return b"a" + name, b"z" + name


def pack_metadata(key: bytes, body: bytes) -> bytes:
    """The body of a metadata row or an undo row, with its checksum."""
    return _frame(key, _PLAIN, body)


def read_metadata(key: bytes, data: bytes) -> bytes:
    """Raises: DamagedRecordError."""
    flags, body = _unframe(key, data)
    if flags != _PLAIN:
        raise damaged(key, f"flags {flags:#04x} are of a format this version can't read")
    return body


def pack_format() -> bytes:
    """The body of the metadata row `format`."""
    return struct.pack(">H", FORMAT_VERSION)


def undo_key(transaction_id: int, number: int) -> bytes:
    """The key of the undo row of a transaction's `number`-th batch."""
    return _UNDO_KEY.pack(UNDO_START, transaction_id, number)


def undo_range(transaction_id: int) -> tuple[bytes, bytes]:
    """Start and stop of the undo rows of one transaction."""
    return undo_key(transaction_id, 0), UNDO_START + _POINTER.pack(transaction_id + 1)


def read_undo_key(key: bytes) -> tuple[int, int]:
    """The transaction and the number of its batch. Raises: DamagedRecordError."""
    if len(key) != _UNDO_KEY.size:
        raise damaged(key, "its key is not that of an undo row")
    _, transaction_id, number = _UNDO_KEY.unpack(key)
    return transaction_id, number


def pack_undo(key: bytes, versions: Iterable[Version]) -> bytes:
    """The value of an undo row: the versions that the same batch wrote."""
    entries = (_UNDO_ENTRY.pack(one.pointer, len(one.key)) + one.key for one in versions)
    return pack_metadata(key, b"".join(entries))


def read_undo(key: bytes, data: bytes) -> Iterator[Version]:
    """Raises: DamagedRecordError."""
    body, at = read_metadata(key, data), 0
    while at < len(body):
        try:
            pointer, size = _UNDO_ENTRY.unpack_from(body, at)
        except struct.error:
            raise damaged(key, "it is cut off") from None
        at += _UNDO_ENTRY.size + size
        if at > len(body):
            raise damaged(key, "it is cut off")
        yield Version(body[at - size : at], pointer)


def damaged(stored_key: bytes, why: str) -> DamagedRecordError:
    """The error that names a damaged record: a row by the user's key, anything else as stored.

    Members: `key`, and for a row `next`, the key from which a scan may go on, both as payloads.
    """
    row, end = stored_key[1:-10], stored_key[-10:-8]
    if stored_key[:1] != ROWS_START or end != _END_OF_ROW:
        return DamagedRecordError(
            f"the record {stored_key!r} of the table is damaged: {why}; "
            "restore the table from a copy",
            members={"key": payload_to_json(stored_key)},
        )
    key = row.replace(b"\x00\x01", b"\x00")
    return damaged_row(key, why, next_key=key + b"\x00")


def damaged_row(key: bytes, why: str, *, next_key: bytes | None) -> DamagedRecordError:
    """The error for a row that can't be read, and the rows between it and `next_key`; None: no row
    behind it can be read."""
    hint = "no row behind it can be read" if next_key is None else f"scan from {next_key!r} on"
    return DamagedRecordError(
        f"the table can't be read at the row {key!r}: {why}; {hint}, or restore it from a copy",
        members={
            "key": payload_to_json(key),
            "next": None if next_key is None else payload_to_json(next_key),
        },
    )


def check_format(body: bytes) -> None:
    """Raises: BadRequestError: the table is of another version of the format."""
    if body != pack_format():
        raise BadRequestError(
            f"the table has format {body.hex()}, and this version reads {pack_format().hex()}; "
            "open it with the version of Tuff that wrote it"
        )


def _frame(key: bytes, flags: int, body: bytes) -> bytes:
    mark = bytes((flags,))
    return _HEAD.pack(flags, crc32(body, crc32(mark, crc32(key)))) + body


def _unframe(key: bytes, data: bytes) -> tuple[int, bytes]:
    if len(data) < _HEAD.size:
        raise damaged(key, f"its value has {len(data)} bytes, which is too short")
    flags, expected = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if crc32(body, crc32(data[:1], crc32(key))) != expected:
        raise damaged(key, "its checksum does not match")
    return flags, body
