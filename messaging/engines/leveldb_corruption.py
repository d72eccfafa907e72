"""Finds the key ranges in which corrupt LevelDB tables may hide rows, or show deleted ones (promise
8, decision 0036).

A row's own checksum covers key and value, but not what LevelDB stores beside them. A flipped bit in
a sequence number hides a row from every reader, or keeps it alive after its deletion. A flipped bit
in the kind turns a row into a deletion. A deletion has no checksum of its own. So a block that
fails LevelDB's checksum is trusted only if damaged rows in it explain the failure: then all its
other entries are whole, and in order.
"""

import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from messaging.engines.sstable import Entry, read_entries, read_ranges
from messaging.model.packed_rows import first_whole
from tuff_storage.leveldb.crc32c import crc32c
from tuff_storage.leveldb.log import MalformedError, Readable
from tuff_storage.leveldb.manifest import (
    LOG_SUFFIX,
    TABLE_SUFFIXES,
    Manifest,
    numbered,
    read_manifest,
)

_KeyRange = tuple[bytes, bytes]  # of keys


@dataclass(frozen=True, slots=True)
class CorruptRange:
    """A corrupt key range: between `low` and `high`, both exclusive, a scan may miss rows or show
    deleted ones. `has_rows_only`: everything wrong there shows as damaged rows."""

    low: bytes
    high: bytes
    reason: str
    has_rows_only: bool = False


@dataclass(frozen=True, slots=True)
class ScanLimit:
    """How far a scan that met corruption can continue. Up to `stop`, an unverified scan misses
    nothing. At `stop`, the range `corrupt` begins; if it is None, the scan ends there, or tables
    begin that were not examined yet."""

    stop: bytes
    corrupt: CorruptRange | None = None


@dataclass(frozen=True, slots=True)
class TableFile:
    """A table file: its number, its first and its last key, and its size."""

    number: int
    low: bytes
    high: bytes
    size_bytes: int


class _CompactedError(Exception):
    """LevelDB compacted a table into others after the manifest was read."""


@dataclass(frozen=True, slots=True)
class _Examined:
    """The corrupt ranges of a table file whose bytes had this checksum. LevelDB never changes a
    table file; a failing disk may change it, and more than once."""

    checksum: int
    ranges: list[CorruptRange]


class CorruptRanges:
    """Finds the corrupt ranges of an open LevelDB directory. Several threads may call."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._examined: dict[int, _Examined] = {}  # by table

    def scan_limit(self, at: bytes, stop: bytes, *, report_damaged_rows: bool) -> ScanLimit:
        """How far a scan up to `stop` can continue that met corruption at the key `at`, or behind.

        Raises: MalformedError: the manifest is damaged; OSError.
        """
        while True:
            try:
                return self._scan_limit(
                    self._manifest(), at, stop, report_damaged_rows=report_damaged_rows
                )
            except _CompactedError:
                continue  # nothing is missing: the rows of that table are in other tables

    def tables(self, start: bytes, stop: bytes) -> list[TableFile]:
        """The tables that may have keys of a range. Raises: MalformedError, OSError."""
        found = []
        for number, (low, high) in self._manifest().tables.items():
            if low < stop and high >= start:
                path = self._path(number)  # there is none if it was compacted meanwhile
                size_bytes = path.stat().st_size if path.is_file() else 0
                found.append(TableFile(number, low, high, size_bytes))
        return found

    def tables_around(self, start: bytes, stop: bytes) -> list[TableFile]:
        """The given tables, and the tables that overlap with them. Raises: MalformedError,
        OSError."""
        inner = self.tables(start, stop)
        low = min([start, *(each.low for each in inner)])
        high = max([stop, *(each.high + b"\x00" for each in inner)])
        return self.tables(low, high)

    def damage_around(self, start: bytes, stop: bytes) -> str | None:
        """What is damaged in the tables that a compaction of this range reads; None: nothing.

        Raises: MalformedError, OSError.
        """
        for table in self.tables_around(start, stop):
            path = self._path(table.number)
            try:
                # Also a block whose damaged rows are known: LevelDB compacts none of these.
                with (
                    path.open("rb") as file,
                    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
                ):
                    for _, block in read_ranges(data):
                        if block.damage is not None:
                            return f"{path.name}, byte {block.offset}: {block.damage}"
            except FileNotFoundError:
                if table.number in self._manifest().tables:
                    return f"{path.name}: the file is missing"
            except ValueError as error:  # an empty file, a damaged index
                return f"{path.name}: {error}"
        return None

    def log_bytes(self) -> int:
        """The size of LevelDB's logs, which become a table before a compaction."""
        return sum(path.stat().st_size for _, path in numbered(self._directory, LOG_SUFFIX))

    def _path(self, number: int) -> Path:
        paths = [self._directory / f"{number:06}{suffix}" for suffix in TABLE_SUFFIXES]
        return next((path for path in paths if path.is_file()), paths[0])

    def _manifest(self) -> Manifest:
        manifest, _ = read_manifest(self._directory)
        if manifest is None:
            raise MalformedError("LevelDB's manifest can't be read")
        return manifest

    def _scan_limit(
        self, manifest: Manifest, at: bytes, stop: bytes, *, report_damaged_rows: bool
    ) -> ScanLimit:
        ahead = sorted({low for low, _ in manifest.tables.values() if low > at})
        # At the last row of one table, the corruption may be at the beginning of the next.
        reached = ahead[0] if ahead else at
        not_examined = min([stop, *ahead[1:2]])
        found = [
            corrupt
            for number, (low, high) in manifest.tables.items()
            if low <= reached and high >= at
            for corrupt in self._ranges_in(number, manifest)
            if corrupt.high > at and (report_damaged_rows or not corrupt.has_rows_only)
        ]
        first = min(found, key=lambda corrupt: corrupt.low, default=None)
        if first is None or first.low >= not_examined:
            return ScanLimit(not_examined)
        return ScanLimit(first.low + b"\x00", first)

    def _ranges_in(self, number: int, manifest: Manifest) -> list[CorruptRange]:
        low, high = manifest.tables[number]
        path = self._path(number)
        # Below its first key, and above most others below it.
        around = low[:-1], high + b"\x00"
        try:
            with (
                path.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            ):
                return self._examine(number, path.name, data, around, manifest)
        except FileNotFoundError as error:
            # LevelDB names the tables that a compaction made before it removes the others.
            if number not in self._manifest().tables:
                raise _CompactedError from error
            return [CorruptRange(*around, f"{path.name}: the file is missing")]
        except ValueError as error:  # an empty file, a damaged index
            return [CorruptRange(*around, f"{path.name}: {error}")]

    def _examine(
        self, number: int, name: str, data: mmap.mmap, around: _KeyRange, manifest: Manifest
    ) -> list[CorruptRange]:
        checksum = crc32c(data)
        known = self._examined.get(number)
        if known is None or known.checksum != checksum:
            found = self._ranges_in_file(name, data, around, manifest.last_sequence)
            known = self._examined[number] = _Examined(checksum, [*found])
            for gone in self._examined.keys() - manifest.tables.keys():
                self._examined.pop(gone, None)
        return known.ranges

    def _ranges_in_file(
        self, name: str, data: Readable, around: _KeyRange, last_sequence: int
    ) -> Iterator[CorruptRange]:
        low, end = around
        blocks = read_ranges(data)
        for index, (last, block) in enumerate(blocks, 1):
            high = end if index == len(blocks) else last + b"\x00"
            if block.damage is not None:
                reason = f"{name}, byte {block.offset}: {block.damage}"
                all_of_it = CorruptRange(low, high, reason)
                try:
                    entries = [*read_entries(data, block)]
                except MalformedError:
                    yield all_of_it
                else:
                    yield from corrupt_ranges_in(entries, all_of_it, last_sequence)
            low = last


def corrupt_ranges_in(
    entries: Iterable[Entry], all_of_it: CorruptRange, last_sequence: int
) -> list[CorruptRange]:
    """The corrupt ranges of a damaged block with these entries: `all_of_it`, unless damaged rows
    explain the failed checksum."""
    ranges = _RangesOfBlock(all_of_it, all_of_it.low)
    shown = all_of_it.low, 0
    is_explained = False
    for entry in entries:
        if not shown < (entry.key, -entry.sequence) or entry.key >= all_of_it.high:
            return [all_of_it]
        is_older, shown = entry.key == shown[0], (entry.key, -entry.sequence)
        is_deletion = entry.is_value is False and not entry.value
        is_hidden = entry.sequence > last_sequence or not (entry.is_value or is_deletion)
        found = first_whole(entry.key, entry.value)
        if is_deletion and not is_hidden:
            ranges.add_deletion()
            continue
        is_explained |= is_hidden or found is None or not found[1]
        if found is None:
            ranges.add_damaged(is_row=not is_hidden)
        elif ranges.are_rows_only is None or not is_older:  # else its deletion may be corrupt
            ranges.add_whole(entry.key, found[0], is_hidden=is_hidden)
    return ranges.ended() if is_explained else [all_of_it]


@dataclass(slots=True)
class _RangesOfBlock:
    """Collects the corrupt ranges of a damaged block, entry by entry. `low` is the last whole row.
    Since then `are_rows_only` is None while nothing was wrong, True if only rows were damaged, else
    False."""

    all_of_it: CorruptRange
    low: bytes
    are_rows_only: bool | None = None
    found: list[CorruptRange] = field(default_factory=list)

    def add_deletion(self) -> None:
        # Its key shares a prefix with the entry before, so it is as doubtful as that one.
        self.are_rows_only = None if self.are_rows_only is None else False

    def add_damaged(self, *, is_row: bool) -> None:
        self.are_rows_only = self.are_rows_only is not False and is_row

    def add_whole(self, key: bytes, first: bytes, *, is_hidden: bool) -> None:
        self._close(first)
        if is_hidden:
            low = max(self.low, first[:-1])  # sorts closely before the row
            self.found.append(replace(self.all_of_it, low=low, high=key + b"\x00"))
        self.low = key

    def ended(self) -> list[CorruptRange]:
        self._close(self.all_of_it.high)
        return self.found

    def _close(self, high: bytes) -> None:
        if self.are_rows_only is not None:
            self.found.append(
                replace(self.all_of_it, low=self.low, high=high, has_rows_only=self.are_rows_only)
            )
        self.are_rows_only = None
