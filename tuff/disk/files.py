"""Files that are there whole or not at all.

A rename or an unlink is only durable once its directory is synced, so every function here that
changes a directory syncs it before it returns.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"


def write_file(path: Path, data: bytes) -> None:
    """Put `data` at `path`, durably; after a crash there is the old content or the new one."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    with _naming(path), temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    # A write or a sync that fails knows no name, and a person wants to know which disk is full.
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def write_again(path: Path, data: bytes, *, start: int) -> None:
    """Put these bytes, durably, where they are already said to be in a file.

    A sync alone does not do that for what stood there when an earlier sync failed.
    """
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data)
        file.flush()
        os.fdatasync(file.fileno())


def make_directory(path: Path) -> None:
    """Make a directory, and those above it, durably; one that is there already is fine."""
    missing = [path, *path.parents]
    for directory in reversed(missing[: next(i for i, p in enumerate(missing) if p.is_dir())]):
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def remove_file(path: Path) -> None:
    """Unlink a file, durably; one that is gone already is fine."""
    path.unlink(missing_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with _naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
