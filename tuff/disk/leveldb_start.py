"""How a LevelDB directory is opened, so that no power cut and no lost file spoils it.

LevelDB (up to 1.22) names its first manifest in CURRENT without having synced it: a power cut then
leaves a CURRENT that is there and a manifest that is empty, which it never opens again. Where
CURRENT is missing it begins anew, and removes the tables that are there; a log that is missing is
an empty one to it. It does not sync the name of a new log. And it takes the end of a log for torn
only where the file ends too early; but a disk may have written later sectors of the last batch and
not the earlier ones, which then read as zeros.
"""

import errno
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from tuff.disk.files import sync_directory, write_file
from tuff.disk.leveldb_log import torn_from
from tuff.disk.leveldb_manifest import (
    CURRENT,
    LOG_SUFFIX,
    MANIFEST_PREFIX,
    TABLE_SUFFIXES,
    read_manifest,
)

T = TypeVar("T")

log = logging.getLogger(__name__)

_FIRST_MANIFEST = f"{MANIFEST_PREFIX}000001"
# One record of LevelDB's log format, as it writes it itself: the comparator
# "leveldb.BytewiseComparator", no log yet, next file 2, last sequence 0.
_FIRST_RECORD = bytes.fromhex(
    "957cb9c5220001011a6c6576656c64622e4279746577697365436f6d70617261746f72020003020400"
)
_DATA_SUFFIXES = (*TABLE_SUFFIXES, LOG_SUFFIX)


def start(directory: Path, open_database: Callable[[], T], *, damaged: type[Exception]) -> T:
    """Open the database of a directory, which is made if need be, and cut what a power cut left of
    a write that nobody was told of. `damaged` is what opening raises for what can't be read.

    Raises:
        OSError: the directory can't be written, or has tables or logs and no CURRENT, or lacks the
            log that its manifest names.
    """
    _begin(directory)
    _require_log(directory)
    try:
        database = open_database()
    except damaged:
        if not _cut_torn_tails(directory):
            raise
        database = open_database()
    # Without the name of the new log all that is going to be in there would be lost.
    sync_directory(directory)
    return database


def holds_database(directory: Path) -> bool:
    """Whether there is a database, or what is left of one. Raises: OSError."""
    return directory.is_dir() and ((directory / CURRENT).exists() or bool(_data_files(directory)))


def _data_files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.suffix in _DATA_SUFFIXES)


def _begin(directory: Path) -> None:
    if (directory / CURRENT).exists():
        return
    if found := _data_files(directory):
        reason = f"CURRENT is missing, and {found[0]} is there; use `tuff salvage`, or a backup"
        raise FileNotFoundError(errno.ENOENT, reason)
    write_file(directory / _FIRST_MANIFEST, _FIRST_RECORD)
    write_file(directory / CURRENT, f"{_FIRST_MANIFEST}\n".encode())


def _require_log(directory: Path) -> None:
    """LevelDB opens such a directory without a word, and removes what is left."""
    manifest, _ = read_manifest(directory)  # one that can't be read is refused by LevelDB
    lost = None if manifest is None else manifest.lost_log(directory)
    if lost is not None:
        reason = f"{lost} is missing, which the manifest names; use `tuff salvage`, or a backup"
        raise FileNotFoundError(errno.ENOENT, reason)


def _cut_torn_tails(directory: Path) -> bool:
    """Whether there were any."""
    is_cut = False
    for path in _growing(directory):
        data = path.read_bytes()
        length = torn_from(data)
        if length is not None:
            log.warning(
                "%s: cut %d bytes of a torn tail at byte %d; nothing of them was acknowledged",
                path.name,
                len(data) - length,
                length,
            )
            write_file(path, data[:length])
            is_cut = True
    return is_cut


def _growing(directory: Path) -> Iterator[Path]:
    """The files that were being written at their end: the newest log, and the manifest."""
    # A new log that is empty was made by an opening that did not get to its end.
    found = (path for path in directory.glob("*.log") if path.stem.isdigit())
    logs = [path for path in found if path.stat().st_size]
    yield from sorted(logs, key=lambda path: int(path.stem))[-1:]
    named = (directory / CURRENT).read_text("ascii", errors="replace").strip()
    if named.startswith("MANIFEST-") and (directory / named).is_file():
        yield directory / named
