"""The file calls of the components on the simulated disk: paths, and parts of `os` and `shutil`.

`mounted` replaces these names in the modules that touch files, and nothing else.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import process.disk_space
import tuff_storage.disk.files
import tx.wal
from tests.simulation.disk import Disk, Inode

FREE_BYTES = 1 << 40  # of a disk that is not full


class SimPath:
    """As much of `pathlib.Path` as the components use."""

    __slots__ = ("directory", "disk", "name")

    def __init__(self, disk: Disk, directory: str, name: str = "") -> None:
        self.disk = disk
        self.directory = directory
        self.name = name

    def __truediv__(self, name: str) -> "SimPath":
        assert not self.name
        return SimPath(self.disk, self.directory, name)

    def __str__(self) -> str:
        return f"{self.directory}/{self.name}" if self.name else self.directory

    def __lt__(self, other: "SimPath") -> bool:
        return (self.directory, self.name) < (other.directory, other.name)

    def with_name(self, name: str) -> "SimPath":
        return SimPath(self.disk, self.directory, name)

    @property
    def parent(self) -> "SimPath":
        return SimPath(self.disk, self.directory)

    @property
    def parents(self) -> tuple["SimPath", ...]:
        return (self.parent,)

    def iterdir(self) -> Iterator["SimPath"]:
        return (self / name for name in self.disk.listing(self.directory))

    def is_dir(self) -> bool:
        return not self.name and self.disk.is_directory(self.directory)

    def is_file(self) -> bool:
        return self.disk.find((self.directory, self.name)) is not None

    def exists(self) -> bool:
        return self.is_file() or self.is_dir()

    def stat(self) -> "SimStat":
        return SimStat(len(self._inode().data))

    def read_bytes(self) -> bytes:
        return bytes(self._inode().data)

    def open(self, mode: str) -> "SimFile":
        if mode in ("rb", "r+b"):
            return SimFile(self, self._inode())
        assert mode == "wb"
        return SimFile(self, self.disk.begin((self.directory, self.name)))

    def replace(self, target: "SimPath") -> None:
        self.disk.rename((self.directory, self.name), (target.directory, target.name))

    def unlink(self, *, missing_ok: bool = False) -> None:
        if self.is_file() or not missing_ok:
            self.disk.unlink((self.directory, self.name))

    def _inode(self) -> Inode:
        inode = self.disk.find((self.directory, self.name))
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, f"there is no {self}")
        return inode


class SimStat(NamedTuple):
    """As much of `os.stat_result` as the components use."""

    st_size: int


class SimFile:
    """An open file."""

    def __init__(self, path: SimPath, inode: Inode) -> None:
        self.path = path
        self.inode = inode
        self._at: int | None = None

    def __enter__(self) -> "SimFile":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self, count: int | None = None) -> bytes:
        return bytes(self.inode.data[:count])

    def seek(self, offset: int) -> int:
        self._at = offset
        return offset

    def write(self, data: bytes) -> int:
        if self._at is not None:
            return self.path.disk.write_over(self.path.directory, self.inode, self._at, data)
        return self.path.disk.append(self.path.directory, self.inode, data)

    def sync(self) -> None:
        if self.path.name:
            self.path.disk.sync(self.path.directory, self.inode)
        else:
            self.path.disk.sync_names(self.path.directory)

    def flush(self) -> None:
        pass

    def fileno(self) -> "SimFile":
        return self


class SimOs:
    """As much of `os` as the components use. A descriptor is the open file itself."""

    O_APPEND, O_CLOEXEC, O_DIRECTORY = os.O_APPEND, os.O_CLOEXEC, os.O_DIRECTORY
    O_RDONLY, O_WRONLY = os.O_RDONLY, os.O_WRONLY

    @staticmethod
    def open(path: SimPath, _flags: int) -> SimFile:
        return SimFile(path, path._inode() if path.name else Inode())

    @staticmethod
    def write(file: SimFile, data: memoryview) -> int:
        return file.write(bytes(data))

    @staticmethod
    def fsync(file: SimFile) -> None:
        file.sync()

    @staticmethod
    def fdatasync(file: SimFile) -> None:
        file.sync()

    @staticmethod
    def close(_file: SimFile) -> None:
        pass


class SimShutil:
    """As much of `shutil` as the process uses."""

    @staticmethod
    def disk_usage(path: SimPath) -> "Usage":
        is_full = path.disk.faults[path.directory].is_full
        return Usage(free=0 if is_full else FREE_BYTES, total=FREE_BYTES)


@dataclass(frozen=True, slots=True)
class Usage:
    """How much room there is, in bytes."""

    free: int
    total: int


_REPLACED: tuple[tuple[Any, str, object], ...] = (
    (tuff_storage.disk.files, "os", SimOs),
    (tx.wal, "os", SimOs),
    (process.disk_space, "shutil", SimShutil),
)


@contextmanager
def mounted() -> Iterator[None]:
    """The modules that touch files use the simulated disk."""
    before = [getattr(module, name) for module, name, _ in _REPLACED]
    for module, name, simulated in _REPLACED:
        setattr(module, name, simulated)
    try:
        yield
    finally:
        for (module, name, _), real in zip(_REPLACED, before, strict=True):
            setattr(module, name, real)
