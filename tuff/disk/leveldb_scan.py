"""A forward scan of LevelDB that tells damage wherever it is.

plyvel's own iterator looks at LevelDB's status only where there is a row: a damaged last block of
the database was the end of the rows, without a word. Its raw iterator looks at each step.
"""

from collections.abc import Generator
from contextlib import closing
from typing import Protocol

Rows = Generator[tuple[bytes, bytes], None, None]


class RawIterator(Protocol):
    """plyvel's; each step raises plyvel's errors."""

    def seek(self, target: bytes, /) -> None:
        """Go to the first row whose key is not before this one."""

    def valid(self) -> bool:
        """Whether there is a row."""

    def key(self) -> bytes:
        """Its key."""

    def value(self) -> bytes:
        """Its value."""

    def next(self) -> None:
        """Go to the next row."""

    def close(self) -> None:
        """Let go of it."""


class Source(Protocol):
    """A database of plyvel's, or a snapshot of one."""

    def raw_iterator(self, *, verify_checksums: bool, fill_cache: bool) -> RawIterator:
        """A new one, nowhere yet."""


def scan(
    source: Source,
    start: bytes,
    stop: bytes | None,
    *,
    is_verified: bool = True,
) -> Rows:
    """Every `start <= key < stop` with its value, in order, as of this call; None is no bound.

    Unverified, it shows what LevelDB makes of blocks whose checksum does not match.

    Raises, in the place where it is: plyvel.CorruptionError, plyvel.Error.
    """
    # Kept in LevelDB's cache, a damaged block would be served to those who verify: they verify what
    # comes from a file.
    rows = source.raw_iterator(verify_checksums=is_verified, fill_cache=is_verified)
    return _rows(rows, start, stop)


def _rows(rows: RawIterator, start: bytes, stop: bytes | None) -> Rows:
    with closing(rows):
        rows.seek(start)
        while rows.valid():
            key = rows.key()
            if stop is not None and key >= stop:
                return
            yield key, rows.value()
            rows.next()
