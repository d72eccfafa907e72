"""What a backup of a running server consists of, and how it becomes a data directory again.

    archive      := transactions* rows*                       parts, as in tuff.disk.archive
    transactions := 1 bytes                                   a snapshot file, in pieces
    rows         := 2 (key_length(4) value_length(4) key value)*
                                                              big-endian, ascending, across parts

Both halves are of one moment (design §6). Without a piece of the snapshot file there never was a
transaction.
"""

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from messaging.keys import ALL_TABLES, prefix_stop
from messaging.rows import is_whole
from messaging.runs import first_whole
from messaging.storage.leveldb import LevelDbTable
from messaging.storage.seam import Store
from tuff.disk.archive import ArchiveError, NewerArchiveError, pack_part, read_parts
from tx.files import DamagedFilesError, NewerFilesError, without_advice
from tx.snapshots import read_snapshot

Row = tuple[bytes, bytes]

TRANSACTIONS, ROWS = 1, 2
FIRST_KEY, KEYS_STOP = min(ALL_TABLES), prefix_stop(max(ALL_TABLES))
PIECE_BYTES = 1 << 20  # bytes of a snapshot file in one part; what one write to a socket takes well
ROWS_BYTES = 256 << 10  # bytes of rows in one part; a thread makes one in a few milliseconds
BATCH_BYTES = 4 << 20  # bytes of rows in one synced write of a restore; few syncs, little memory

_LENGTHS = struct.Struct(">II")
assert _LENGTHS.size == 8


def transaction_parts(snapshot_file: bytes) -> Iterator[bytes]:
    """The parts that hold a snapshot file."""
    for start in range(0, len(snapshot_file), PIECE_BYTES):
        yield pack_part(TRANSACTIONS, snapshot_file[start : start + PIECE_BYTES])


def next_rows_part(rows: Iterable[Row]) -> bytes | None:
    """The part that holds the rows that come next; None at their end.

    Raises:
        ArchiveError: one of them is damaged, or larger than a part can be.
    """
    pieces, size_bytes = [], 0
    for key, value in rows:
        if not is_whole(key, value):
            raise ArchiveError(f"the row {key.hex()} is damaged; look at it with `tuff fsck`")
        row = b"".join((_LENGTHS.pack(len(key), len(value)), key, value))
        pieces.append(row)
        size_bytes += len(row)
        if size_bytes >= ROWS_BYTES:
            break
    return pack_part(ROWS, b"".join(pieces)) if pieces else None


def unpack_rows(content: bytes) -> Iterator[Row]:
    """Raises: ArchiveError: these are no rows."""
    at = 0
    while at < len(content):
        start = at + _LENGTHS.size
        if start > len(content):
            raise ArchiveError("a row is cut off in its lengths")
        key_length, value_length = _LENGTHS.unpack_from(content, at)
        value_start = start + key_length
        at = value_start + value_length
        if at > len(content):
            raise ArchiveError("a row is longer than the part that it is in")
        yield content[start:value_start], content[value_start:at]


def write_data(archive: BinaryIO, messages: Path, snapshots: Path, *, now_ms: int) -> int:
    """Make both stores, in directories that hold nothing yet; how many rows. Blocks.

    Raises:
        ArchiveError: it is no whole backup; what was written so far is to be thrown away.
        NewerArchiveError: a newer version made it.
        OSError, StoreError: something can't be read or written.
    """
    snapshot_file = bytearray()
    store = LevelDbTable(messages, first_whole=first_whole)
    try:
        count = _put(store, _rows(read_parts(archive), snapshot_file))
    finally:
        store.close()
    if snapshot_file:
        try:
            header, image = read_snapshot("the backup's snapshot", bytes(snapshot_file))
        except NewerFilesError as error:
            raise NewerArchiveError(without_advice(error)) from None
        except DamagedFilesError as error:
            raise ArchiveError(without_advice(error)) from None
        # Here, since a server's start loads this module, and needs none of what that one loads.
        from tx.salvage import write_files

        write_files(snapshots, image, store_id=header.store_id, now_ms=now_ms)
    return count


def _rows(parts: Iterable[tuple[int, bytes]], snapshot_file: bytearray) -> Iterator[Row]:
    last = b""
    for kind, content in parts:
        if kind == TRANSACTIONS and not last:
            snapshot_file += content
        elif kind == ROWS:
            for key, value in unpack_rows(content):
                if not (last < key and FIRST_KEY <= key < KEYS_STOP):
                    raise ArchiveError(f"the row {key.hex()} has no place behind {last.hex()}")
                last = key
                yield key, value
        else:
            raise ArchiveError(f"a part of kind {kind} has no place here")


def _put(store: Store, rows: Iterable[Row]) -> int:
    count, size_bytes = 0, 0
    batch: list[Row] = []
    for key, value in rows:
        batch.append((key, value))
        count, size_bytes = count + 1, size_bytes + len(key) + len(value)
        if size_bytes >= BATCH_BYTES:
            store.write(batch)
            batch, size_bytes = [], 0
    store.write(batch)
    return count
