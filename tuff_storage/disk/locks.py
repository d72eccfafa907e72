"""Locks of a store: one owner per directory, and no close while calls are in flight.

LevelDB's own lock is a POSIX record lock: a second open inside the same process succeeds and its
close drops the lock of the first. So a directory that Tuff opens is registered here, and locked by
an flock on a file of its own (protocol §8: a second server names the directory and the owner).

LevelDB ends the process if it is closed during a call. So the calls are counted.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, Lock

LOCK_FILE = "tuff.lock"

_registry_lock = Lock()
_held: "dict[Path, DirectoryLock]" = {}


class DirectoryLockedError(Exception):
    """The directory is in use. The sentence names it and the owner's process id, or says that an
    offline tool reads it."""


class DirectoryLock:
    """Locks a directory until `close`, which may be repeated. A forked process has no locks."""

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
        """Whether the locked directory still has its path: it was not moved or removed, and no
        volume was mounted over it."""
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
        """In a forked process: close the inherited descriptor, so that the parent alone decides
        when the lock ends."""
        os.close(self._descriptor)


def _leave_inherited() -> None:
    # A thread of the parent may hold the registry's lock, and does not exist here to release it.
    global _registry_lock
    _registry_lock = Lock()
    for lock in _held.values():
        lock.leave_inherited()
    _held.clear()


os.register_at_fork(after_in_child=_leave_inherited)


@contextmanager
def kept_from_owners(directory: Path) -> Iterator[None]:
    """Prevent that a process becomes the owner of a directory, for tools that only read it. A
    directory that never had an owner is left as it is.

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
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _take(descriptor, directory, fcntl.LOCK_EX)
        _name_owner(descriptor)
    except (DirectoryLockedError, OSError):
        # Left open, the descriptor would refuse every later open in this process.
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
    # Readers share the lock, and the id in the file is that of an earlier owner.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return True


class StoreError(Exception):
    """The engine can't read or write. A write that raised may or may not be stored."""


class CallsInFlight:
    """Counts the calls in flight of an engine, and lets `close` wait for them.

    `_idle` guards `_count` and `_is_closing`. Any thread may call.
    """

    def __init__(self, *, closed: Callable[[], Exception]) -> None:
        """`closed` makes the error of calls that come too late."""
        self._closed = closed
        self._idle = Condition()
        self._count = 0
        self._is_closing = False

    @property
    def is_closing(self) -> bool:
        """Whether `close` was called: long calls then end early."""
        return self._is_closing

    @contextmanager
    def using(self) -> Iterator[None]:
        """One call. Raises: the error that `closed` makes."""
        with self._idle:
            if self._is_closing:
                raise self._closed()
            self._count += 1
        try:
            yield
        finally:
            with self._idle:
                self._count -= 1
                self._idle.notify_all()

    def close(self) -> bool:
        """Refuse new calls, and wait for those in flight; returns whether it is the first close."""
        with self._idle:
            is_first, self._is_closing = not self._is_closing, True
            self._idle.wait_for(lambda: not self._count)
        return is_first
