"""The format of a running server's backup, of which admin/backup_and_restore.py makes a data
directory.

    archive      := transactions* rows*                       of parts: disk/backup_archive.py
    transactions := 1 bytes                                   a snapshot file, in pieces
    rows         := 2 (key_length(4) value_length(4) key value)*
                                                              big-endian, ascending, across parts

Both halves are of one moment (design §6). Without a piece of the snapshot file there never was a
transaction.
"""

import struct
from collections.abc import Iterable, Iterator

from messaging.model.row_format import ALL_TABLES, is_whole, prefix_stop
from tuff_storage.disk.backup_archive import ArchiveError, pack_part

Row = tuple[bytes, bytes]

TRANSACTIONS, ROWS = 1, 2
FIRST_KEY, KEYS_STOP = min(ALL_TABLES), prefix_stop(max(ALL_TABLES))
PIECE_BYTES = 1 << 20  # bytes of a snapshot file in one part; what one write to a socket takes well
ROWS_BYTES = 256 << 10  # bytes of rows in one part; a thread makes one in a few milliseconds

_LENGTHS = struct.Struct(">II")
assert _LENGTHS.size == 8


def transaction_parts(snapshot_file: bytes) -> Iterator[bytes]:
    """The parts that hold a snapshot file."""
    for start in range(0, len(snapshot_file), PIECE_BYTES):
        yield pack_part(TRANSACTIONS, snapshot_file[start : start + PIECE_BYTES])


def next_rows_part(rows: Iterable[Row]) -> bytes | None:
    """The next part of rows; None at the end.

    Raises:
        ArchiveError: one of them is damaged, or larger than a part can be.
    """
    pieces, size_bytes = [], 0
    for key, value in rows:
        if not is_whole(key, value):
            raise ArchiveError(f"the row {key.hex()} of the message store is damaged")
        row = b"".join((_LENGTHS.pack(len(key), len(value)), key, value))
        pieces.append(row)
        size_bytes += len(row)
        if size_bytes >= ROWS_BYTES:
            break
    return pack_part(ROWS, b"".join(pieces)) if pieces else None


def unpack_rows(content: bytes) -> Iterator[Row]:
    """The rows of a part. Raises: ArchiveError: the content is not rows."""
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
