"""A simulated disk: a power cut keeps what was synced, and a random part of the rest.

The components only append to files or truncate them to nothing. Of unsynced bytes each sector
survives a power cut or not, independently of the others, and so does each change of a directory
until the directory is synced. After a failed sync the kernel calls the pages clean and never writes
them again, so these bytes stay doubtful until they are overwritten and synced.
"""

import errno
import random
from dataclasses import dataclass, field

SECTOR_BYTES = 512  # what a disk writes whole or not at all

Name = tuple[str, str]  # directory, name
Range = tuple[int, int]  # of a file, in bytes: start <= at < stop


class PowerCut(BaseException):
    """The power was cut in the middle of a call."""


class Inode:
    """One file's bytes. Those from `dirty_from` on were never synced. `doubted` are ranges whose
    sync failed; `rewritten` are ranges that were overwritten since, until they are synced. `older`
    is the content before a truncation, until the next sync."""

    __slots__ = ("data", "dirty_from", "doubted", "older", "rewritten")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.dirty_from = len(data)
        self.doubted: list[Range] = []
        self.rewritten: list[Range] = []
        self.older: bytes | None = None

    def begin_anew(self) -> None:
        if self.older is None:
            self.older = bytes(self.data[: self.dirty_from])
        self.data.clear()
        self.dirty_from = 0
        self.doubted.clear()
        self.rewritten.clear()

    def write_over(self, start: int, data: bytes) -> None:
        """Write the same bytes again; no component changes bytes in place."""
        stop = start + len(data)
        assert self.data[start:stop] == data
        self.rewritten.append((start, stop))

    def synced(self) -> None:
        for start, stop in self.rewritten:
            self.doubted = [part for each in self.doubted for part in _without(each, start, stop)]
        self.rewritten.clear()
        self.dirty_from = len(self.data)
        self.older = None

    def sync_failed(self) -> None:
        if self.dirty_from < len(self.data):
            self.doubted.append((self.dirty_from, len(self.data)))
        self.rewritten.clear()
        self.dirty_from = len(self.data)

    def survivor(self, chance: random.Random) -> "Inode":
        """What a power cut leaves of the file."""
        if self.older is not None and chance.random() < 0.5:
            return Inode(self.older)
        data = bytearray(self.data)
        tail = self.dirty_from
        for start, stop in self.doubted:
            _lose_sectors(data, start, stop, chance)
            if stop == tail and chance.random() < 0.5:
                tail = start
        if tail < len(data):
            if self.dirty_from < len(data):
                _lose_sectors(data, self.dirty_from, len(data), chance)
            del data[_torn_end(tail, len(data), chance) :]
        return Inode(bytes(data))


def _without(whole: Range, start: int, stop: int) -> list[Range]:
    """A range without another one."""
    parts = [(whole[0], min(whole[1], start)), (max(whole[0], stop), whole[1])]
    return [(first, last) for first, last in parts if first < last]


def _lose_sectors(data: bytearray, start: int, stop: int, chance: random.Random) -> None:
    if chance.random() < 0.5:
        return
    for first in range(start - start % SECTOR_BYTES, stop, SECTOR_BYTES):
        if chance.random() < 0.5:
            low, high = max(first, start), min(first + SECTOR_BYTES, stop)
            data[low:high] = bytes(high - low)


def _torn_end(start: int, stop: int, chance: random.Random) -> int:
    """The new end of the file: all, nothing, or the beginning of the unsynced tail is left."""
    match chance.randrange(3):
        case 0:
            return stop
        case 1:
            return start
        case _:
            first = start - start % SECTOR_BYTES + SECTOR_BYTES
            return min(stop, chance.randrange(first, max(first, stop) + 1, SECTOR_BYTES))


@dataclass(slots=True)
class Faults:
    """The faults of one directory, until `heal`."""

    is_full: bool = False
    failing_syncs: int = 0
    failing_writes: int = 0
    failing_names: int = 0  # syncs of the directory itself


@dataclass(slots=True)
class _Change:
    """A change of a directory: `source` is the name that goes, `target` the one that comes."""

    source: str | None
    target: str | None
    inode: Inode


@dataclass(slots=True)
class _Directory:
    names: dict[str, Inode] = field(default_factory=dict)
    durable: dict[str, Inode] = field(default_factory=dict)
    unsynced: list[_Change] = field(default_factory=list)

    def change(self, change: _Change) -> None:
        _apply(self.names, change)
        self.unsynced.append(change)

    def synced(self) -> None:
        self.durable = dict(self.names)
        self.unsynced.clear()

    def survivor(self, chance: random.Random) -> "_Directory":
        names = dict(self.durable)
        for change in self.unsynced:
            if chance.random() < 0.5:
                _apply(names, change)
        kept = {name: inode.survivor(chance) for name, inode in sorted(names.items())}
        return _Directory(kept, dict(kept))


def _apply(names: dict[str, Inode], change: _Change) -> None:
    if change.source is not None and names.get(change.source) is change.inode:
        del names[change.source]
    if change.target is not None:
        names[change.target] = change.inode


class Disk:
    """Directories of files. `cut_in` counts the calls until the power is cut; None: never."""

    def __init__(self, directories: tuple[str, ...]) -> None:
        self._directories = {name: _Directory() for name in directories}
        self.faults = {name: Faults() for name in directories}
        self.cut_in: int | None = None
        self.is_cut = False

    def cut(self, chance: random.Random) -> None:
        """Cut the power: a random part of what was not synced is left."""
        for name, directory in self._directories.items():
            self._directories[name] = directory.survivor(chance)
        self.cut_in = None
        self.is_cut = False

    def heal(self) -> None:
        """Remove all faults."""
        for name in self.faults:
            self.faults[name] = Faults()

    def is_directory(self, path: str) -> bool:
        return path in self._directories

    def listing(self, directory: str) -> list[str]:
        return sorted(self._directories[directory].names)

    def find(self, name: Name) -> Inode | None:
        return self._directories[name[0]].names.get(name[1])

    def begin(self, name: Name) -> Inode:
        """An empty file: a new one, or an existing one that is truncated."""
        self._count()
        inode = self.find(name)
        if inode is None:
            self._require_space(name[0])
            inode = Inode()
            self._directories[name[0]].change(_Change(None, name[1], inode))
        else:
            inode.begin_anew()
        return inode

    def append(self, directory: str, inode: Inode, data: bytes) -> int:
        """How many bytes were written, all of them."""
        faults = self.faults[directory]
        if faults.failing_writes or faults.is_full:
            self._count()
            inode.data += data[: len(data) // 2]
            if faults.failing_writes:
                faults.failing_writes -= 1
                raise OSError(errno.EIO, "the disk fails to write")
            self._require_space(directory)
        self._count()
        inode.data += data
        return len(data)

    def write_over(self, directory: str, inode: Inode, start: int, data: bytes) -> int:
        """How many bytes were written, all of them; it needs no space."""
        self._count()
        faults = self.faults[directory]
        if faults.failing_writes:
            faults.failing_writes -= 1
            raise OSError(errno.EIO, "the disk fails to write")
        inode.write_over(start, data)
        return len(data)

    def sync(self, directory: str, inode: Inode) -> None:
        self._count()
        if self._fails_to_sync(directory):
            inode.sync_failed()
            raise OSError(errno.EIO, "the disk fails to sync")
        inode.synced()

    def sync_names(self, directory: str) -> None:
        self._count()
        faults = self.faults[directory]
        if faults.failing_names:
            faults.failing_names -= 1
            raise OSError(errno.EIO, "the disk fails to sync a directory")
        if self._fails_to_sync(directory):
            raise OSError(errno.EIO, "the disk fails to sync a directory")
        self._directories[directory].synced()

    def rename(self, source: Name, target: Name) -> None:
        self._count()
        inode = self.find(source)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, f"there is no {source}")
        self._directories[source[0]].change(_Change(source[1], target[1], inode))

    def unlink(self, name: Name) -> None:
        self._count()
        inode = self.find(name)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, f"there is no {name}")
        self._directories[name[0]].change(_Change(name[1], None, inode))

    def _fails_to_sync(self, directory: str) -> bool:
        faults = self.faults[directory]
        fails = faults.failing_syncs > 0
        faults.failing_syncs -= fails
        return fails

    def _require_space(self, directory: str) -> None:
        if self.faults[directory].is_full:
            raise OSError(errno.ENOSPC, "the disk is full")

    def _count(self) -> None:
        if self.is_cut:
            raise PowerCut
        if self.cut_in is not None:
            self.cut_in -= 1
            if self.cut_in <= 0:
                self.is_cut = True
                raise PowerCut
