"""Atomic and durable file operations.

A rename or an unlink is durable only once its directory is synced. So all functions here that
change a directory sync it before they return.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"


def write_file(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Write a file atomically and durably: after a crash it has the old content or the new one.
    `mode`: who may read it; without it, as the umask says."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    with _naming(path), temporary.open("wb") as file:
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    # Errors of a write or a sync have no file name, which an operator needs to find the full disk.
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def write_again(path: Path, data: bytes, *, start: int) -> None:
    """Write these bytes of a file again, durably.

    After a failed sync, another sync alone does not make the earlier writes durable.
    """
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data)
        file.flush()
        os.fdatasync(file.fileno())


def make_directory(path: Path) -> None:
    """Create a directory and its parents durably; existing ones are left as they are."""
    missing = [path, *path.parents]
    for directory in reversed(missing[: next(i for i, p in enumerate(missing) if p.is_dir())]):
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def remove_file(path: Path) -> None:
    """Unlink a file durably, if it exists."""
    path.unlink(missing_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the entries of a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with _naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
