"""A data directory with a mixed history, and ways to damage a copy of it."""

import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from process.checks import Data, check
from tests.formats.history import History, Told
from tests.http.process import serve
from tuff.disk.findings import Finding

# Nothing of the history may end by itself while a busy machine is slow.
PATIENT = ("tx.default_timeout=600", "messaging.max_block=600")
NOT_READ = {"LOG", "LOG.old", "LOCK", "tuff.lock"}  # nothing of ours is in them


@dataclass(frozen=True, slots=True)
class Past:
    """What a server left that ran twice, was killed, and stopped; and what it told at the end."""

    data: Path
    told: Told

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
        told = history.with_client(client).told()
    second.end()
    return Past(second.data, told)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def found_in(directory: Path) -> list[Finding]:
    return check(Data.below(directory, None), now_ms=now_ms())[1]


def stored_files(directory: Path) -> list[Path]:
    return sorted(p for p in directory.rglob("*") if p.is_file() and p.name not in NOT_READ)


@contextmanager
def flipped(path: Path, at: int) -> Iterator[None]:
    """One bit of one byte is another while this lasts."""
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + bytes((whole[at] ^ 1 << at % 8,)) + whole[at + 1 :])
    try:
        yield
    finally:
        path.write_bytes(whole)


@contextmanager
def cut(path: Path, at: int) -> Iterator[None]:
    """The file ends there while this lasts."""
    whole = path.read_bytes()
    path.write_bytes(whole[:at])
    try:
        yield
    finally:
        path.write_bytes(whole)


def sample(length: int, *, count: int) -> list[int]:
    """So many bytes of a file: its ends, and others evenly between."""
    return sorted({*(at * (length - 1) // max(count - 1, 1) for at in range(count))})
