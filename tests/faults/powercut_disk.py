"""What a power cut may leave of files, from a trace of the calls that were made of the disk.

The rules are those of POSIX, and not those of one file system. Of a file, what was written since
its last good sync is there or not, each sector by itself, a hole reading as zeros; its new length
may be there without its data, which is zeros then. Of a directory, each name that was made, changed
or removed since its last sync is so or not. A sync that failed makes nothing durable, and no later
one makes up for it; what is written over it, and synced well, is durable.

LevelDB relies on more in its own directory, which it does not sync after each change: that names
change in order, and that the sync of a file is also one of the names that were changed before.
Linux's journalling file systems keep that; such directories are given as `engines`.
"""

import random
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

SECTOR = 512  # bytes; what a disk writes whole or not at all
PAGE = 4096  # bytes; what the kernel writes back whole as a rule
GROWN_ODDS = 0.2  # that a file has its new length, whatever it has of its data

_HEAD = struct.Struct("=IBBHQQ")
NOT_READ = frozenset({"LOG", "LOG.old", "LOCK"})  # LevelDB's diary and an empty file: never read


class Call(IntEnum):
    """What was asked of the disk; the numbers are the shim's."""

    CREATE = 1
    WRITE = 2
    TRUNCATE = 3
    SYNC = 4
    SYNC_DIRECTORY = 5
    RENAME = 6
    UNLINK = 7
    MKDIR = 8
    RMDIR = 9


@dataclass(frozen=True, slots=True)
class TracedCall:
    """One call that was made; `stop` is where the trace ended then."""

    call: Call
    error: int
    inode: int
    offset: int
    path: Path
    rest: bytes
    stop: int


def read_trace(path: Path) -> Iterator[TracedCall]:
    data, at = path.read_bytes(), 0
    while at < len(data):
        size, call, error, path_size, inode, offset = _HEAD.unpack_from(data, at)
        start = at + _HEAD.size
        name = data[start : start + path_size].decode()
        rest = data[start + path_size : at + size]
        at += size
        yield TracedCall(Call(call), error, inode, offset, Path(name), rest, at)


@dataclass(slots=True, eq=False)
class Change:
    """Bytes at an offset, or with None a new length. A doubtful one was passed over by a sync that
    failed: it is never durable for certain."""

    offset: int
    data: bytes | None
    is_doubtful: bool = False


@dataclass(slots=True, eq=False)
class File:
    """What is on the disk for certain, and what may be."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)

    def sync(self) -> None:
        """All of it is durable now; of what is in doubt, what was not written over since."""
        doubtful: list[Change] = []
        for change in self.pending:
            if change.is_doubtful:
                doubtful.append(change)
            else:
                _apply(self.durable, change)
                doubtful = [left for each in doubtful for left in _left_of(each, change)]
        self.pending = doubtful

    def fail(self) -> None:
        for change in self.pending:
            change.is_doubtful = True


@dataclass(slots=True, eq=False)
class Names:
    """A change of names in one directory: these are set, or with None removed."""

    sets: dict[str, "File | Directory | None"]


@dataclass(slots=True, eq=False)
class Directory:
    """`now` is what programs see; `durable` and some of `pending` is what a power cut leaves."""

    is_engine: bool
    now: "dict[str, File | Directory]" = field(default_factory=dict)
    durable: "dict[str, File | Directory]" = field(default_factory=dict)
    pending: list[Names] = field(default_factory=list)

    def change(self, sets: "dict[str, File | Directory | None]") -> None:
        self.pending.append(Names(sets))
        _set(self.now, sets)

    def sync(self, count: int | None = None) -> None:
        for names in self.pending[:count]:
            _set(self.durable, names.sets)
        del self.pending[:count]


def _set(names: "dict[str, File | Directory]", sets: "dict[str, File | Directory | None]") -> None:
    for name, node in sets.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _apply(data: bytearray, change: Change) -> None:
    if change.data is None:
        del data[change.offset :]
        data.extend(bytes(change.offset - len(data)))
        return
    data.extend(bytes(max(0, change.offset - len(data))))
    data[change.offset : change.offset + len(change.data)] = change.data


def _left_of(doubtful: Change, later: Change) -> Iterator[Change]:
    """What stays in doubt of a change when a later one is durable."""
    start, length = later.offset, 0 if later.data is None else len(later.data)
    stop = start + length
    if doubtful.data is not None:
        before = doubtful.data[: max(0, start - doubtful.offset)]
        behind = doubtful.data[max(0, stop - doubtful.offset) :] if later.data is not None else b""
        pieces = ((doubtful.offset, before), (max(stop, doubtful.offset), behind))
        yield from (Change(at, data, is_doubtful=True) for at, data in pieces if data)
        return
    # The file may have been cut short before it grew again: then there are zeros in between.
    if doubtful.offset < start:
        yield Change(doubtful.offset, bytes(start - doubtful.offset), is_doubtful=True)
    if later.data is not None:
        yield Change(max(doubtful.offset, stop), None, is_doubtful=True)


Tree = dict[str, "bytes | Tree"]


class Disk:
    """Follows a trace; at any point, the trees that a power cut may leave."""

    def __init__(self, root: Path, *, engines: Collection[Path]) -> None:
        self._root = root
        self._engines = frozenset(engines)
        self._top = Directory(is_engine=False)
        self._inodes: dict[int, File] = {}

    def follow(self, done: TracedCall) -> bool:
        """Take one call; whether a power cut right after it may differ from one before."""
        if done.path.name in NOT_READ:
            return False
        match done.call:
            case Call.WRITE | Call.TRUNCATE:
                data = done.rest if done.call is Call.WRITE else None
                self._inodes[done.inode].pending.append(Change(done.offset, data))
            case Call.SYNC:
                self._sync(done)
            case Call.SYNC_DIRECTORY:
                if not done.error:
                    self._directory(done.path).sync()
            case _:
                self._name(done)
        return True

    def _name(self, done: TracedCall) -> None:
        directory, name = self._directory(done.path.parent), done.path.name
        match done.call:
            case Call.CREATE:
                self._inodes[done.inode] = made = File()
                directory.change({name: made})
            case Call.MKDIR:
                directory.change({name: Directory(is_engine=done.path in self._engines)})
            case Call.RENAME:
                to = Path(done.rest.decode())
                assert to.parent == done.path.parent, "nothing is moved between directories"
                directory.change({name: None, to.name: directory.now[name]})
            case _:
                directory.change({name: None})

    def _sync(self, done: TracedCall) -> None:
        file = self._inodes[done.inode]
        if done.error:
            file.fail()
            return
        file.sync()
        directory = self._directory(done.path.parent)
        if directory.is_engine:
            touching = [
                number
                for number, names in enumerate(directory.pending, 1)
                if file in names.sets.values()
            ]
            directory.sync(max(touching, default=0))

    def _directory(self, path: Path) -> Directory:
        found = self._top
        for part in path.relative_to(self._root).parts:
            below = found.now[part]
            assert isinstance(below, Directory)
            found = below
        return found

    def now(self) -> Tree:
        """What programs see."""
        return _tree(self._top, _Everything())

    def least(self) -> Tree:
        """Nothing that was not synced."""
        return _tree(self._top, _SyncedOnly())

    def some(self, chance: random.Random) -> Tree:
        """Any part of what was not synced."""
        return _tree(self._top, _RandomPart(chance))


class _Everything:
    """Everything that was not synced is there all the same."""

    def names(self, directory: Directory) -> list[Names]:
        return directory.pending

    def content(self, file: File) -> bytes:
        data = bytearray(file.durable)
        for change in file.pending:
            _apply(data, change)
        return bytes(data)


class _SyncedOnly:
    def names(self, _directory: Directory) -> list[Names]:
        return []

    def content(self, file: File) -> bytes:
        return bytes(file.durable)


class _RandomPart:
    """A part by chance: as a rule each thing by itself, and sometimes all or nothing of it."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def names(self, directory: Directory) -> list[Names]:
        pending = directory.pending
        if directory.is_engine:
            return pending[: self._chance.randint(0, len(pending))]
        kept: list[Names] = []
        lost: set[str] = set()
        for names in pending:
            # A name that is made of another one, which was lost, is lost with it.
            if lost.isdisjoint(names.sets) and self._chance.random() < 0.5:
                kept.append(names)
            else:
                lost.update(names.sets)
        return kept

    def content(self, file: File) -> bytes:
        data = bytearray(file.durable)
        if not file.pending:
            return bytes(data)
        how = self._chance.choice(("all", "none", "torn", "torn", "sectors"))
        if how == "torn":
            self._torn(data, file.pending)
        elif how != "none":
            for change in file.pending:
                self._take(data, change, 1.0 if how == "all" else 0.5)
        if self._chance.random() < GROWN_ODDS:
            data.extend(bytes(max(0, len(_Everything().content(file)) - len(data))))
        return bytes(data)

    def _torn(self, data: bytearray, pending: list[Change]) -> None:
        """A beginning of it, up to a border of sectors."""
        whole = self._chance.randrange(len(pending))
        for change in pending[:whole]:
            _apply(data, change)
        last = pending[whole]
        if last.data is not None:
            borders = list(_borders(last, SECTOR))
            stop = self._chance.choice((0, *borders))
            _apply(data, Change(last.offset, last.data[:stop]))

    def _take(self, data: bytearray, change: Change, odds: float) -> None:
        if change.data is None or odds >= 1.0:
            if self._chance.random() < odds:
                _apply(data, change)
            return
        start = 0
        for stop in _borders(change, self._chance.choice((SECTOR, PAGE))):
            if self._chance.random() < odds:
                _apply(data, Change(change.offset + start, change.data[start:stop]))
            start = stop


def _borders(change: Change, size: int) -> Iterator[int]:
    """Where in the data sectors of the file end, its own end included."""
    assert change.data is not None
    first = size - change.offset % size
    yield from range(first, len(change.data), size)
    yield len(change.data)


def _tree(directory: Directory, part: "_Everything | _SyncedOnly | _RandomPart") -> Tree:
    nodes = dict(directory.durable)
    for names in part.names(directory):
        _set(nodes, names.sets)
    return {
        name: _tree(node, part) if isinstance(node, Directory) else part.content(node)
        for name, node in nodes.items()
        if name not in NOT_READ
    }


def put(tree: Tree, target: Path) -> None:
    """Make these files and directories."""
    target.mkdir()
    for name, node in tree.items():
        if isinstance(node, bytes):
            (target / name).write_bytes(node)
        else:
            put(node, target / name)


def taken(directory: Path) -> Tree:
    """The files and directories that are there, less those that nobody reads."""
    return {
        path.name: taken(path) if path.is_dir() else path.read_bytes()
        for path in directory.iterdir()
        if path.name not in NOT_READ
    }
