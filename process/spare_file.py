"""A file that keeps a part of a disk for what makes room on it (decision 0053).

LevelDB's compactions write before they delete, and nothing tells them to stop. They, and other
programs, can fill a disk to its last byte; then LevelDB can't be opened again, not even to read.
None of them can take the space of this file. It is removed when the store has to be opened, or
messages deleted, on a disk that is full, and made again once there is room.
"""

import os
from contextlib import suppress
from pathlib import Path

SPARE_FILE = "spare-space"
# Bytes. To open a store, LevelDB writes its log of up to two buffers of 16 MiB as tables.
SPARE_BYTES_MAX = 32 << 20
# Bytes of free space above which no file is needed: a disk with so much is not full in a second.
ROOM_BYTES = 1 << 30


def spare_bytes(size_bytes: int) -> int:
    """The size of the file on a file system of this size: a quarter of a small one."""
    return min(SPARE_BYTES_MAX, size_bytes // 4)


def keep_spare_file(
    directory: Path, *, free_bytes: int, size_bytes: int, reserve_bytes: int
) -> bool:
    """Make the file where the disk is filling up, and remove it where there is room. Whether the
    disk has changed by that. Blocks.

    Raises: OSError.
    """
    path, needed_bytes = directory / SPARE_FILE, spare_bytes(size_bytes)
    if path.exists():
        if free_bytes < ROOM_BYTES:
            return False
        path.unlink()
        return True
    # Above the reserve after it, too: it must not be what ends the publishes.
    if not reserve_bytes + needed_bytes <= free_bytes < ROOM_BYTES or not needed_bytes:
        return False
    return _allocate(path, needed_bytes)


def release_spare_file(directory: Path) -> bool:
    """Remove the file; whether there was one. Blocks. Raises: OSError."""
    try:
        (directory / SPARE_FILE).unlink()
    except FileNotFoundError:
        return False
    return True


def spare_file_bytes(directory: Path) -> int:
    """The size of the file, 0 without one. Blocks. Raises: OSError."""
    try:
        return (directory / SPARE_FILE).stat().st_size
    except FileNotFoundError:
        return 0


def _allocate(path: Path, size_bytes: int) -> bool:
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:  # the store has not created its directory yet
        return False
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError:
        with suppress(OSError):
            path.unlink()
        return False
    finally:
        os.close(descriptor)
    return True
