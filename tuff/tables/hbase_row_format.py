"""The cells of an `HBaseTransactionalTable` as bytes (docs/formats.md, HBaseTransactionalTable).

    version row := "r" key            column d:v; a cell's timestamp is the write pointer
    undo row    := "u" transaction(8) writer(8) number(4)     column u:v; what one batch wrote
    metadata row := "f" name          column u:v; format, id, compacted
    value       := flags(1) crc(4) body
                   flags: 0 plain, 1 a delete marker, 2 undone; the last two have no body

The CRC-32 of a version covers the key under which LevelDB would store it (formats, §11), so it
covers key and pointer. The CRC-32 of an undo row or metadata row covers the row. Pure.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tuff.tables.compaction import droppable
from tuff.tables.row_format import (
    UNDO_ENTRY_BYTES,
    Version,
    is_undone,
    pack_undo,
    read_value,
)

FAMILY = b"d"  # of versions
UNDO_FAMILY = b"u"  # of undo rows and metadata rows, with one version each
VERSION_COLUMN, UNDO_COLUMN = b"d:v", b"u:v"
ROWS_START, ROWS_STOP = b"r", b"s"
UNDO_START, UNDO_STOP = b"u", b"v"
METADATA_START = b"f"
WRITER_BYTES = 8

KEY_BYTES_MAX = 32_000  # bytes; HBase's limit for a row is 32,767
VALUE_BYTES_MAX = 8 << 20  # bytes; HBase refuses a cell of more than 10 MB
UNDO_BODY_BYTES = 1 << 20  # bytes of an undo row's body, about
UNDO_ROW_BYTES_MAX = 2 << 20  # bytes of any value in this family

_UNDO_ROW = struct.Struct(f">cQ{WRITER_BYTES}sI")
assert _UNDO_ROW.size == 21


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a row, as stored in HBase."""

    pointer: int
    data: bytes


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """The version in a cell. `is_undone`: its transaction was rolled back; otherwise a `value` of
    None is a delete marker."""

    version: Version
    value: bytes | None
    is_undone: bool


@dataclass(frozen=True, slots=True)
class Removal:
    """How compaction removes versions of a row: all up to `through` with a tombstone of HBase, and
    each of `undone` by overwriting it with an undone cell."""

    through: int | None
    undone: tuple[int, ...]


def version_row(key: bytes) -> bytes:
    """The row that holds all versions of the user's key."""
    return ROWS_START + key


def metadata_row(name: bytes) -> bytes:
    return METADATA_START + name


def undo_row(transaction_id: int, writer: bytes, number: int) -> bytes:
    """The row that lists the versions of the `number`-th batch of a writer. Each process is a
    writer with its own id, so no process overwrites undo rows of another."""
    return _UNDO_ROW.pack(UNDO_START, transaction_id, writer, number)


def undo_range(transaction_id: int) -> tuple[bytes, bytes]:
    """Start and stop of the undo rows of one transaction."""
    empty = bytes(WRITER_BYTES)
    return undo_row(transaction_id, empty, 0), undo_row(transaction_id + 1, empty, 0)


def read_cell(key: bytes, cell: Cell) -> StoredVersion:
    """Raises: DamagedRecordError."""
    version = Version(key, cell.pointer)
    if is_undone(version.stored_key, cell.data):
        return StoredVersion(version, None, is_undone=True)
    return StoredVersion(version, read_value(version.stored_key, cell.data), is_undone=False)


def undo_rows(
    transaction_id: int, writer: bytes, number: int, versions: Iterable[Version]
) -> Iterator[tuple[bytes, bytes]]:
    """The undo rows of a batch, numbered from `number` on, each small enough for a cell."""
    for part in _parts(versions):
        row = undo_row(transaction_id, writer, number)
        yield row, pack_undo(row, part)
        number += 1


def removal(versions: Sequence[StoredVersion], *, bound: int, invalids: Sequence[int]) -> Removal:
    """How to remove the versions of a row, given newest first, that no reader needs.

    A tombstone hides every version up to its timestamp, also versions that are written later. So it
    is never above `bound`, up to which no transaction is in progress any more.
    """
    living = [(one.version.pointer, one.value is None) for one in versions if not one.is_undone]
    dropped = set(droppable(living, bound=bound, invalids=invalids))
    through = None
    for one in reversed(versions):
        pointer = one.version.pointer
        if pointer > bound or not (one.is_undone or pointer in dropped):
            break
        through = pointer
    above = (pointer for pointer in dropped if through is None or pointer > through)
    return Removal(through, tuple(sorted(above)))


def _parts(versions: Iterable[Version]) -> Iterator[list[Version]]:
    part: list[Version] = []
    size_bytes = 0
    for version in versions:
        part.append(version)
        size_bytes += len(version.key) + UNDO_ENTRY_BYTES
        if size_bytes >= UNDO_BODY_BYTES:
            yield part
            part, size_bytes = [], 0
    if part:
        yield part
