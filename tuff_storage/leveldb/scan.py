"""Scans of LevelDB that raise every error LevelDB reports, wherever it occurs.

plyvel's own iterators look at LevelDB's status only where there is a row. At a damaged last block
of the database, or a table file that is gone, they just end. The raw iterator looks at each step.

LevelDB's Get does not help either: it answers "not found" for a key that was never written, and for
one whose table file is gone.
"""

from collections.abc import Generator
from contextlib import closing
from typing import Any

Rows = Generator[tuple[bytes, bytes], None, None]
Source = Any  # a plyvel database, or a snapshot of one; plyvel has no types
RawIterator = Any  # plyvel's raw iterator, each of whose steps raises plyvel's errors


def scan(
    source: Source,
    start: bytes,
    stop: bytes | None,
    *,
    is_verified: bool = True,
) -> Rows:
    """Every `start <= key < stop` with its value, in order, as of this call; None is no bound.

    Unverified, it returns what LevelDB reads from blocks whose checksum does not match.

    Raises, where the scan meets them: plyvel.CorruptionError, plyvel.Error.
    """
    # LevelDB verifies a block when it reads it from the file. An unverified scan that filled the
    # cache would serve its damaged blocks to verifying scans.
    rows = source.raw_iterator(verify_checksums=is_verified, fill_cache=is_verified)
    return _forward(rows, start, stop)


def scan_backward(source: Source, start: bytes, stop: bytes) -> Rows:
    """The rows of `scan`, verified, in descending order of their keys. Raises: as `scan`."""
    return _backward(source.raw_iterator(verify_checksums=True, fill_cache=True), start, stop)


def _forward(rows: RawIterator, start: bytes, stop: bytes | None) -> Rows:
    with closing(rows):
        rows.seek(start)
        while rows.valid():
            key = rows.key()
            if stop is not None and key >= stop:
                return
            yield key, rows.value()
            rows.next()


def _backward(rows: RawIterator, start: bytes, stop: bytes) -> Rows:
    with closing(rows):
        rows.seek(stop)
        if rows.valid():
            rows.prev()
        else:
            rows.seek_to_last()
        while rows.valid():
            key = rows.key()
            if key < start:
                return
            yield key, rows.value()
            rows.prev()
