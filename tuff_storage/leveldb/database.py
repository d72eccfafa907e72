"""A LevelDB database that this process has open, for the message store and for tables."""

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from weakref import WeakSet

from tuff_storage.disk.files import make_directory
from tuff_storage.disk.locks import CallsInFlight, DirectoryLock
from tuff_storage.leveldb.engine import plyvel
from tuff_storage.leveldb.opening import open_or_create

Closed = Callable[[str], Exception]  # makes the error of a refused call; the text says why


class Database:
    """The database of one directory, which is locked for this process until `close`.

    LevelDB ends the process if it is closed during a call. So every call to `db` is made within
    `calls.using()`, and `close` waits for these calls. Any thread may call.
    """

    def __init__(self, directory: Path, *, closed: Closed, **options: object) -> None:
        """Open the database, or create one. `options` are plyvel's.

        Raises: DirectoryLockedError, OSError, plyvel.Error.
        """
        self._closed = closed
        self.calls = CallsInFlight(closed=partial(closed, "is closed"))
        make_directory(directory)
        self.lock = DirectoryLock(directory)
        open_database = partial(
            plyvel.DB, str(directory), create_if_missing=False, paranoid_checks=True, **options
        )
        try:
            self.db = open_or_create(directory, open_database, damaged=plyvel.CorruptionError)
        except BaseException:
            self.lock.close()
            raise
        _open.add(self)

    def write(self, batch: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Put every value under its key; None deletes. The batch is atomic, and synced at return.

        Raises: plyvel.Error, OSError.
        """
        writes = self.db.write_batch(sync=True)
        for key, value in batch:
            if value is None:
                writes.delete(key)
            else:
                writes.put(key, value)
        writes.write()

    def close(self) -> None:
        """Wait for the calls in flight and release the directory. Repeating it is harmless."""
        if self.calls.close():
            self.db.close()
            self.lock.close()

    def leave_inherited(self) -> None:
        """In a forked child: refuse all calls. With LevelDB open in two processes, the writes of
        one were lost, and the database could not be read afterwards."""
        why = (
            "was opened before this process was forked, and belongs to the one that opened it; "
            "open it in one process only"
        )
        self.calls = CallsInFlight(closed=partial(self._closed, why))
        self.calls.close()


_open: WeakSet[Database] = WeakSet()


def _leave_inherited() -> None:
    for database in list(_open):
        database.leave_inherited()


os.register_at_fork(after_in_child=_leave_inherited)


def error_text(error: Exception) -> str:
    """The text of an error of plyvel or of the operating system."""
    if isinstance(error, OSError) and error.strerror:  # plyvel's IOError is an OSError, too
        return error.strerror if not error.filename else f"{error.filename}: {error.strerror}"
    first = error.args[0] if error.args else error
    return first.decode("utf-8", "replace") if isinstance(first, bytes) else str(first)
