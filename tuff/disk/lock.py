"""One owner per directory, within a process and between processes.

LevelDB's own lock is a POSIX record lock: a second open inside the same process succeeds and its
close drops the lock of the first. So a directory that Tuff opens is registered here, and held by an
flock on a file of its own (protocol §8: a second server names the directory and the owner).
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

LOCK_FILE = "tuff.lock"

_registry_lock = Lock()
_held: "dict[Path, DirectoryLock]" = {}


class DirectoryLockedError(Exception):
    """Somebody else has the directory open; the sentence names it and the owner's process id, or
    says that there is no owner, and somebody looks."""


class DirectoryLock:
    """Holds a directory until `close`, which may be repeated; a forked process holds nothing."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        with _registry_lock:
            if self.directory in _held:
                raise DirectoryLockedError(
                    f"{directory} is already open in this process ({os.getpid()})"
                )
            self._descriptor = _flock(self.directory)
            _held[self.directory] = self
        self._path = directory / LOCK_FILE

    @property
    def is_in_place(self) -> bool:
        """Whether this very directory still has its name: it was not moved, removed or covered."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except OSError:
            return False

    def close(self) -> None:
        with _registry_lock:
            if _held.get(self.directory) is self:
                del _held[self.directory]
                os.close(self._descriptor)

    def leave_inherited(self) -> None:
        """In a process that was forked: do not keep what its parent lets go of."""
        os.close(self._descriptor)


def _leave_inherited() -> None:
    # The parent's thread that held the lock over the registry is not here to let it go.
    global _registry_lock
    _registry_lock = Lock()
    for lock in _held.values():
        lock.leave_inherited()
    _held.clear()


os.register_at_fork(after_in_child=_leave_inherited)


@contextmanager
def kept_from_owners(directory: Path) -> Iterator[None]:
    """Keep everybody from becoming the owner of a directory, and write nothing to it: for those who
    only look. A directory that never had an owner is left as it is.

    Raises:
        DirectoryLockedError: it has an owner.
    """
    path = directory / LOCK_FILE
    if not path.is_file():
        yield
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _take(descriptor, directory, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def _flock(directory: Path) -> int:
    path = directory / LOCK_FILE
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _take(descriptor, directory, fcntl.LOCK_EX)
        _name_owner(descriptor)
    except (DirectoryLockedError, OSError):
        # Kept open by nobody, it would refuse every later open of this very process.
        os.close(descriptor)
        raise
    return descriptor


def _name_owner(descriptor: int) -> None:
    owner = f"{os.getpid()}\n".encode("ascii")
    # A store that failed on a full disk is opened again: that must not need space.
    if os.pread(descriptor, len(owner) + 1, 0) != owner:
        os.pwrite(descriptor, owner, 0)
        os.ftruncate(descriptor, len(owner))


def _take(descriptor: int, directory: Path, operation: int) -> None:
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
    except OSError:
        if operation == fcntl.LOCK_EX and _is_looked_at(descriptor):
            raise DirectoryLockedError(
                f"{directory} is being read, as `tuff fsck`, `backup`, `salvage` and `restore` do; "
                "try again when they are done, or give another directory"
            ) from None
        owner = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
        raise DirectoryLockedError(
            f"{directory} is in use by process {owner}; stop that server, or give another directory"
        ) from None


def _is_looked_at(descriptor: int) -> bool:
    # Those who look share it, and the id in the file is that of an owner who is gone.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return True
