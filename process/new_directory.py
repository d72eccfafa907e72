"""A directory that is made: it is there whole or not at all.

It is written beside its place, under a name of its own, and moved there at the end. What a killed
process left under that name bears a mark: whoever repeats the command goes on in its stead.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from process.places import require_utf8
from tuff.disk.files import make_directory, remove_file, sync_directory
from tuff.disk.lock import LOCK_FILE, DirectoryLock

PART_SUFFIX = ".part"  # of a directory that is still being written
MARK = "tuff.unfinished"  # a file in it: we made it, and may throw away what is there


class NotNewError(Exception):
    """What was named can't become a new directory; the sentence says why."""


@contextmanager
def new_directory(target: Path) -> Iterator[Path]:
    """Where to write what will be the new directory, once all of it is there.

    Raises:
        NotNewError: there is something in it already, or nothing can be moved there.
        DirectoryNameError: it has a name that can't be used.
        DirectoryLockedError: somebody is making it.
    """
    target = Path(os.path.realpath(target))
    require_utf8(target)
    _require_new(target)
    part = target.with_name(target.name + PART_SUFFIX)
    _require_ours(part)
    make_directory(part)
    lock = DirectoryLock(part)
    try:
        _clear(part)
        yield part
        _move(part, target)
    except BaseException:
        shutil.rmtree(part)
        raise
    finally:
        lock.close()
    sync_directory(target.parent)


def _require_new(target: Path) -> None:
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise NotNewError(f"{target} holds something already; name a directory that is new")
    if target.is_mount():
        raise NotNewError(
            f"{target} is a mount point, to which nothing can be moved; name a new directory in it"
        )
    if target == Path.cwd():
        raise NotNewError(f"{target} is where this command runs; name a directory that is new")


def _require_ours(part: Path) -> None:
    if not os.path.lexists(part):
        return
    is_directory = part.is_dir() and not part.is_symlink()
    names = {path.name for path in part.iterdir()} - {LOCK_FILE} if is_directory else {part.name}
    if names and MARK not in names:
        raise NotNewError(
            f"{part} holds something already, and is where the new directory would be written; "
            "remove it, or name another directory"
        )


def _clear(part: Path) -> None:
    for path in part.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name not in (LOCK_FILE, MARK):
            path.unlink()
    (part / MARK).touch()


def _move(part: Path, target: Path) -> None:
    # LevelDB leaves the names of its files to whoever moves the directory.
    for directory, _, _ in os.walk(part):
        sync_directory(Path(directory))
    remove_file(part / MARK)
    part.replace(target)
