"""Opens a LevelDB directory safely after power cuts and lost files (decision 0020).

LevelDB (up to 1.22) has these gaps:

- It names its first manifest in CURRENT without syncing the manifest. After a power cut the
  manifest may be empty, and LevelDB never opens the database again.
- Where CURRENT is missing, it creates a new database and removes the existing tables.
- It treats a missing log as an empty one.
- It does not sync the directory entry of a new log.
- It recognises a torn log only if the file is too short. But a disk may have written later sectors
  of the last batch and not the earlier ones, which then read as zeros.
"""

import errno
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from tuff_storage.disk.files import sync_directory, write_file
from tuff_storage.leveldb.log import torn_from
from tuff_storage.leveldb.manifest import (
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


def open_or_create(
    directory: Path, open_database: Callable[[], T], *, damaged: type[Exception]
) -> T:
    """Open the database of a directory, or create one. If it can't be opened because a power cut
    tore the last write, which was never acknowledged, cut that write off. `damaged` is the error by
    which opening reports corruption.

    Raises:
        OSError: the directory can't be written, or has files of a database and no CURRENT, or lacks
            the log that its manifest names.
    """
    _begin(directory)
    _require_log(directory)
    try:
        database = open_database()
    except damaged:
        if not _cut_torn_tails(directory):
            raise
        database = open_database()
    # Without the directory entry of the new log, a power cut would lose everything written to it.
    sync_directory(directory)
    return database


def holds_database(directory: Path) -> bool:
    """Whether the directory has a database, or files that are left of one. Raises: OSError."""
    return directory.is_dir() and ((directory / CURRENT).exists() or bool(_remaining(directory)))


def _remaining(directory: Path) -> list[str]:
    """The files that only a database in use leaves. The first manifest alone is none: a power cut
    came before CURRENT named it, and nothing was written yet."""
    return sorted(
        path.name
        for path in directory.iterdir()
        if (path.suffix in _DATA_SUFFIXES and path.stem.isdigit())
        or (_is_manifest(path.name) and path.name != _FIRST_MANIFEST)
    )


def _is_manifest(name: str) -> bool:
    # Not its temporary file: a power cut may leave that of the first manifest.
    return name.startswith(MANIFEST_PREFIX) and name.removeprefix(MANIFEST_PREFIX).isdigit()


def _begin(directory: Path) -> None:
    if (directory / CURRENT).exists():
        return
    if found := _remaining(directory):
        reason = f"CURRENT is missing, and {found[0]} is there; use `tuff salvage`, or a backup"
        raise FileNotFoundError(errno.ENOENT, reason)
    write_file(directory / _FIRST_MANIFEST, _FIRST_RECORD)
    write_file(directory / CURRENT, f"{_FIRST_MANIFEST}\n".encode())


def _require_log(directory: Path) -> None:
    """Refuse a directory without its log. LevelDB opens it without an error, and loses the rows."""
    manifest, _ = read_manifest(directory)  # LevelDB refuses a manifest that can't be read
    lost = None if manifest is None else manifest.lost_log(directory)
    if lost is not None:
        reason = f"{lost} is missing, which the manifest names; use `tuff salvage`, or a backup"
        raise FileNotFoundError(errno.ENOENT, reason)


def _cut_torn_tails(directory: Path) -> bool:
    """Cut torn last writes off; whether there were any."""
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
    """The files to whose end LevelDB was writing: the newest log, and the manifest."""
    # An empty newer log was created by an opening that did not finish.
    found = (path for path in directory.glob("*.log") if path.stem.isdigit())
    logs = [path for path in found if path.stat().st_size]
    yield from sorted(logs, key=lambda path: int(path.stem))[-1:]
    named = (directory / CURRENT).read_text("ascii", errors="replace").strip()
    if named.startswith("MANIFEST-") and (directory / named).is_file():
        yield directory / named
