"""The states that a power cut may leave of files, computed from a trace of file calls.

The rules are those of POSIX, not of one file system. Of a file, each sector that was written since
the last successful sync is there or not, independently; a hole reads as zeros. The new length may
be there without the data, which then reads as zeros. Of a directory, each change of a name since
its last sync is there or not. A failed sync makes nothing durable, and neither does a later sync of
the same bytes; bytes that are written again and synced are durable.

LevelDB relies on more in its own directory, which it does not sync after each change: names change
in order, and the sync of a file also syncs the name changes before it. Linux's journalling file
systems guarantee that. Such directories are given as `engines`.
"""

import random
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

SECTOR = 512  # bytes that a disk writes as a whole or not at all
PAGE = 4096  # bytes that the kernel usually writes back as a whole
GROWN_ODDS = 0.2  # that a file has its new length, whatever part of its data is there

_MARKER = b"\xd7trace\xd7\n"  # each record begins with it
_HEAD = struct.Struct(f"={len(_MARKER)}sIBBHQQ")
NOT_READ = frozenset({"LOG", "LOG.old", "LOCK"})  # LevelDB's text log and an empty file: never read


class Call(IntEnum):
    """The calls in the trace, with the shim's numbers."""

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
    """One call; `stop` is the position in the trace after it."""

    call: Call
    error: int
    inode: int
    offset: int
    path: Path
    rest: bytes
    stop: int


class TornRecordError(Exception):
    """A record of the trace is incomplete, and is not the last one."""


def read_trace(path: Path) -> Iterator[TracedCall]:
    """The calls of a trace. An incomplete last record is left out: its call has not returned.

    Raises:
        TornRecordError: any other record is incomplete. Its call may have happened, so what the
            calls behind it find on the disk is unknown.
    """
    data, at = path.read_bytes(), 0
    while at < len(data):
        stop, next_marker = _stop_of_record(data, at), data.find(_MARKER, at + 1)
        if stop is None or 0 <= next_marker < stop:
            # The size of a torn record reaches into the records behind it.
            if next_marker < 0 and _MARKER.startswith(data[at : at + len(_MARKER)]):
                return
            raise TornRecordError(f"the record at byte {at} of {path} is incomplete")
        _, _, call, error, path_size, inode, offset = _HEAD.unpack_from(data, at)
        start = at + _HEAD.size
        name = data[start : start + path_size].decode()
        yield TracedCall(
            Call(call), error, inode, offset, Path(name), data[start + path_size : stop], stop
        )
        at = stop


def _stop_of_record(data: bytes, at: int) -> int | None:
    """Where the record at this position ends; None if it is incomplete, or no record."""
    if not data.startswith(_MARKER, at) or len(data) < at + _HEAD.size:
        return None
    _, size, *_ = _HEAD.unpack_from(data, at)
    stop: int = at + size
    return stop if stop <= len(data) else None


@dataclass(slots=True, eq=False)
class Change:
    """Bytes at an offset, or with None a new length. A doubtful change is one whose sync failed: it
    is never durable for certain."""

    offset: int
    data: bytes | None
    is_doubtful: bool = False


@dataclass(slots=True, eq=False)
class File:
    """The durable content, and the changes that may be on the disk."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)

    def sync(self) -> None:
        """Make all changes durable. Doubtful ones stay, except where they were overwritten."""
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
    """One change of a directory: names that are set, or with None removed."""

    sets: dict[str, "File | Directory | None"]


@dataclass(slots=True, eq=False)
class Directory:
    """Programs see `now`; a power cut leaves `durable` and a part of `pending`."""

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
    """The part of a doubtful change that a later durable one does not replace."""
    start, length = later.offset, 0 if later.data is None else len(later.data)
    stop = start + length
    if doubtful.data is not None:
        before = doubtful.data[: max(0, start - doubtful.offset)]
        behind = doubtful.data[max(0, stop - doubtful.offset) :] if later.data is not None else b""
        pieces = ((doubtful.offset, before), (max(stop, doubtful.offset), behind))
        yield from (Change(at, data, is_doubtful=True) for at, data in pieces if data)
        return
    # If the truncation took place before the file grew again, there are zeros in between.
    if doubtful.offset < start:
        yield Change(doubtful.offset, bytes(start - doubtful.offset), is_doubtful=True)
    if later.data is not None:
        yield Change(max(doubtful.offset, stop), None, is_doubtful=True)


Tree = dict[str, "bytes | Tree"]


class Disk:
    """Follows a trace, and gives the trees that a power cut may leave at its position."""

    def __init__(self, root: Path, *, engines: Collection[Path]) -> None:
        self._root = root
        self._engines = frozenset(engines)
        self._top = Directory(is_engine=False)
        self._inodes: dict[int, File] = {}

    def follow(self, done: TracedCall) -> bool:
        """Apply one call; whether a power cut after it may differ from one before it."""
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
        """The tree that programs see."""
        return _tree(self._top, _Everything())

    def least(self) -> Tree:
        """Only what was synced."""
        return _tree(self._top, _SyncedOnly())

    def some(self, chance: random.Random) -> Tree:
        """What was synced, and a random part of the rest."""
        return _tree(self._top, _RandomPart(chance))


class _Everything:
    """Everything, synced or not."""

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
    """A random part of each file and directory, sometimes all or nothing of one."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def names(self, directory: Directory) -> list[Names]:
        pending = directory.pending
        if directory.is_engine:
            return pending[: self._chance.randint(0, len(pending))]
        kept: list[Names] = []
        lost: set[str] = set()
        for names in pending:
            # If a name is lost, so are later changes that involve it.
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
        """The beginning of the changes, up to the end of a sector."""
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
    """The offsets in the data at which sectors of the file end, and its own end."""
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


def write_tree(tree: Tree, target: Path) -> None:
    """Write these files and directories."""
    target.mkdir()
    for name, node in tree.items():
        if isinstance(node, bytes):
            (target / name).write_bytes(node)
        else:
            write_tree(node, target / name)


def read_tree(directory: Path) -> Tree:
    """The files and directories below this one, without those that LevelDB never reads."""
    return {
        path.name: read_tree(path) if path.is_dir() else path.read_bytes()
        for path in directory.iterdir()
        if path.name not in NOT_READ
    }
