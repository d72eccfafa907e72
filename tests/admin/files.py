"""A data directory with a mixed history, and ways to corrupt a copy of it."""

import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from admin.data_directory import DataDirectory
from admin.findings import Finding
from admin.fsck import check
from tests.formats.history import Expected, History
from tests.http.process import serve

# Nothing of the history may end by itself while a busy machine is slow.
PATIENT = ("tx.default_timeout=600", "messaging.max_block=600")
NOT_READ = {"LOG", "LOG.old", "LOCK", "tuff.lock"}  # nothing of ours is in them


@dataclass(frozen=True, slots=True)
class Past:
    """The data of a server that was killed, started again and stopped; and its last answers."""

    data: Path
    expected: Expected

    def copy(self, target: Path) -> Path:
        shutil.copytree(self.data, target)
        return target


def make_past(home: Path) -> Past:
    """Two histories: the first one ends up in a table, the second one in the log."""
    first = serve(home, *PATIENT)
    with closing(first.client()) as client:
        history = History(client, "one").make()
    first.kill()
    second = serve(home, *PATIENT)
    with closing(second.client()) as client:
        History(client, "two").make()
        expected = history.with_client(client).expected()
    second.end()
    return Past(second.data, expected)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def found_in(directory: Path) -> list[Finding]:
    return check(DataDirectory.of(directory), now_ms=now_ms()).findings


def stored_files(directory: Path) -> list[Path]:
    return sorted(p for p in directory.rglob("*") if p.is_file() and p.name not in NOT_READ)


@contextmanager
def flipped(path: Path, at: int) -> Iterator[None]:
    """Flip one bit of one byte for the length of the block."""
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + bytes((whole[at] ^ 1 << at % 8,)) + whole[at + 1 :])
    try:
        yield
    finally:
        path.write_bytes(whole)


@contextmanager
def cut(path: Path, at: int) -> Iterator[None]:
    """Truncate the file for the length of the block."""
    whole = path.read_bytes()
    path.write_bytes(whole[:at])
    try:
        yield
    finally:
        path.write_bytes(whole)


def sample(length: int, *, count: int) -> list[int]:
    """That many offsets in a file: both ends, and others evenly between."""
    return sorted({*(at * (length - 1) // max(count - 1, 1) for at in range(count))})
