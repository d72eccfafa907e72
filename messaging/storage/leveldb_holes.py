"""Where damage in LevelDB's tables may hide rows from a scan, or show what was deleted (promise 8).

A row's checksum covers its key and its value, and nothing that LevelDB keeps beside them: a flipped
bit in a sequence number hides a row from every reader, or lets it outlive its deletion; one in the
kind makes a deletion of it; and a deletion has no checksum of ours at all. So a block that fails
LevelDB's own checksum is trusted only where rows in it account for the failure: all others are
whole then, and in order.
"""

import mmap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from crc32c import crc32c

from messaging.storage.leveldb_table import Block, Entry, read_entries, read_ranges
from tuff.disk.leveldb_log import MalformedError, Readable
from tuff.disk.leveldb_manifest import TABLE_SUFFIXES, Manifest, read_manifest

# The key of the first row in a stored value that is whole, and whether all of it is; None where
# nothing is.
FirstWhole = Callable[[bytes, bytes], tuple[bytes, bool] | None]

_Range = tuple[bytes, bytes]  # of keys


@dataclass(frozen=True, slots=True)
class Hole:
    """Where keys above `low` and below `high` may have other rows than those that a scan shows.
    `has_rows_only`: all that is wrong there shows as damaged rows."""

    low: bytes
    high: bytes
    reason: str
    has_rows_only: bool = False


@dataclass(frozen=True, slots=True)
class Stretch:
    """What lies before a scan that met damage. Up to `stop`, reading unverified misses nothing;
    there `hole` begins, or else the range ends, or tables begin that were not looked at."""

    stop: bytes
    hole: Hole | None = None


class _ReplacedError(Exception):
    """A table that the manifest named was compacted into others meanwhile."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What was found in a table while its bytes had this checksum. LevelDB never changes one; a
    disk that goes bad does, more than once."""

    checksum: int
    holes: list[Hole]


class Holes:
    """The holes in the tables of a directory that is open. May be called by several threads."""

    def __init__(self, directory: Path, *, first_whole: FirstWhole) -> None:
        self._directory = directory
        self._first_whole = first_whole
        self._known: dict[int, _Look] = {}  # by table

    def stretch(self, at: bytes, stop: bytes, *, are_rows_told: bool) -> Stretch:
        """What lies before a scan up to `stop` that met damage at this key, or next behind it.

        Raises: MalformedError: the manifest is damaged; OSError.
        """
        while True:
            try:
                return self._stretch(self._manifest(), at, stop, are_rows_told=are_rows_told)
            except _ReplacedError:
                continue  # a table that is gone is no hole: its rows are in others

    def _manifest(self) -> Manifest:
        manifest, _ = read_manifest(self._directory)
        if manifest is None:
            raise MalformedError("LevelDB's manifest can't be read")
        return manifest

    def _stretch(
        self, manifest: Manifest, at: bytes, stop: bytes, *, are_rows_told: bool
    ) -> Stretch:
        ahead = sorted({low for low, _ in manifest.tables.values() if low > at})
        # Behind the last row of one table it may be the beginning of the next that is damaged.
        reached = ahead[0] if ahead else at
        unseen = min([stop, *ahead[1:2]])
        holes = [
            hole
            for number, (low, high) in manifest.tables.items()
            if low <= reached and high >= at
            for hole in self._holes_in(number, manifest)
            if hole.high > at and (are_rows_told or not hole.has_rows_only)
        ]
        hole = min(holes, key=lambda hole: hole.low, default=None)
        if hole is None or hole.low >= unseen:
            return Stretch(unseen)
        return Stretch(hole.low + b"\x00", hole)

    def _holes_in(self, number: int, manifest: Manifest) -> list[Hole]:
        low, high = manifest.tables[number]
        paths = [self._directory / f"{number:06}{suffix}" for suffix in TABLE_SUFFIXES]
        path = next((path for path in paths if path.is_file()), paths[0])
        # Below its first key, and above most others below it.
        around = low[:-1], high + b"\x00"
        try:
            with (
                path.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            ):
                return self._look(number, path.name, data, around, manifest)
        except FileNotFoundError as error:
            # LevelDB names the tables that a compaction made before it removes the others.
            if number not in self._manifest().tables:
                raise _ReplacedError from error
            return [Hole(*around, f"{path.name}: the file is missing")]
        except ValueError as error:  # an empty file, a damaged index
            return [Hole(*around, f"{path.name}: {error}")]

    def _look(
        self, number: int, name: str, data: mmap.mmap, around: _Range, manifest: Manifest
    ) -> list[Hole]:
        checksum = crc32c(data)
        known = self._known.get(number)
        if known is None or known.checksum != checksum:
            holes = self._holes(name, data, around, manifest.last_sequence)
            known = self._known[number] = _Look(checksum, [*holes])
            for gone in self._known.keys() - manifest.tables.keys():
                self._known.pop(gone, None)
        return known.holes

    def _holes(
        self, name: str, data: Readable, around: _Range, last_sequence: int
    ) -> Iterator[Hole]:
        low, end = around
        ranges = read_ranges(data)
        for index, (last, block) in enumerate(ranges, 1):
            high = end if index == len(ranges) else last + b"\x00"
            if block.damage is not None:
                reason = f"{name}, byte {block.offset}: {block.damage}"
                yield from self._holes_of(data, block, Hole(low, high, reason), last_sequence)
            low = last

    def _holes_of(
        self, data: Readable, block: Block, whole: Hole, last_sequence: int
    ) -> list[Hole]:
        try:
            entries = [*read_entries(data, block)]
        except MalformedError:
            return [whole]
        return holes_between(entries, whole, last_sequence, first_whole=self._first_whole)


def holes_between(
    entries: Iterable[Entry], whole: Hole, last_sequence: int, *, first_whole: FirstWhole
) -> list[Hole]:
    """The holes in a damaged block with these entries. It is `whole`, all of the block, unless its
    entries show by themselves what is damaged."""
    walk = _Walk(whole, whole.low)
    shown = whole.low, 0
    is_accounted_for = False
    for entry in entries:
        if not shown < (entry.key, -entry.sequence) or entry.key >= whole.high:
            return [whole]
        is_older, shown = entry.key == shown[0], (entry.key, -entry.sequence)
        is_deletion = entry.is_value is False and not entry.value
        is_hidden = entry.sequence > last_sequence or not (entry.is_value or is_deletion)
        found = first_whole(entry.key, entry.value)
        if is_deletion and not is_hidden:
            walk.pass_deletion()
            continue
        is_accounted_for |= is_hidden or found is None or not found[1]
        if found is None:
            walk.pass_damaged(is_row=not is_hidden)
        elif walk.are_rows_only is None or not is_older:  # else its deletion may be what is damaged
            walk.pass_whole(entry.key, found[0], is_hidden=is_hidden)
    return walk.ended() if is_accounted_for else [whole]


@dataclass(slots=True)
class _Walk:
    """Over the entries of a damaged block. `low` is the last whole row; `are_rows_only` says what
    was wrong since then, None while nothing was."""

    whole: Hole
    low: bytes
    are_rows_only: bool | None = None
    holes: list[Hole] = field(default_factory=list)

    def pass_deletion(self) -> None:
        # It has the beginning of its key from the entry before.
        self.are_rows_only = None if self.are_rows_only is None else False

    def pass_damaged(self, *, is_row: bool) -> None:
        self.are_rows_only = self.are_rows_only is not False and is_row

    def pass_whole(self, key: bytes, first: bytes, *, is_hidden: bool) -> None:
        self._close(first)
        if is_hidden:
            low = max(self.low, first[:-1])  # below it, and above most others below it
            self.holes.append(replace(self.whole, low=low, high=key + b"\x00"))
        self.low = key

    def ended(self) -> list[Hole]:
        self._close(self.whole.high)
        return self.holes

    def _close(self, high: bytes) -> None:
        if self.are_rows_only is not None:
            hole = replace(self.whole, low=self.low, high=high, has_rows_only=self.are_rows_only)
            self.holes.append(hole)
        self.are_rows_only = None
