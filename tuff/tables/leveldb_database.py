"""The LevelDB database of a `TransactionalTable`: synced batches, and verified reads."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from tuff.errors import WrongStateError
from tuff.protocol.errors import StorageOutcomeUnknownError, StorageUnavailableError
from tuff_storage.disk.locks import DirectoryLockedError
from tuff_storage.leveldb.database import Database, error_text
from tuff_storage.leveldb.engine import plyvel
from tuff_storage.leveldb.scan import Rows
from tuff_storage.leveldb.scan import scan as scan_database

WRITE_BUFFER_BYTES = 8 << 20  # bytes; a program may have several tables open
BLOCK_CACHE_BYTES = 16 << 20  # bytes; the rows that are read again and again
OPEN_FILES_MAX = 128  # files; several tables stay below a usual limit of 1,024
PAGE_ROWS_MAX = 64  # rows read at a time, so that a scan costs little per row
PAGE_BYTES_MAX = 1 << 20  # bytes of a page; large values are read one by one
LOOK_BEHIND_ROWS_MAX = 10_000  # rows; a damaged block of 4 KiB holds a few hundred

WriteBatch = Sequence[tuple[bytes, bytes | None]]
RowStart = Callable[[bytes], bytes | None]  # None: the key is not that of a version


class DatabaseDamagedError(Exception):
    """LevelDB met a corrupt block; a scan ends there."""


class TableDatabase:
    """One LevelDB directory, locked for this process until `close`. Any thread may call.

    `close` waits for the calls in flight; a scan that is paused between pages is not one. After a
    failed write `_failure` is set, and all later writes are refused.
    """

    def __init__(self, directory: Path) -> None:
        """Raises: StorageUnavailableError: another process has it open, or LevelDB can't open
        it."""
        self.directory = directory
        self._failure: str | None = None
        try:
            self._database = Database(
                directory,
                closed=lambda why: WrongStateError(f"the table {directory} {why}"),
                write_buffer_size=WRITE_BUFFER_BYTES,
                lru_cache_size=BLOCK_CACHE_BYTES,
                max_open_files=OPEN_FILES_MAX,
            )
        except DirectoryLockedError as error:
            raise StorageUnavailableError(f"the table can't be opened: {error}") from error
        except (plyvel.Error, OSError) as error:
            raise StorageUnavailableError(
                f"LevelDB can't open the table {directory}: {error_text(error)}; check the disk "
                "and the permissions of the directory, or restore the table from a copy"
            ) from error

    def get(self, key: bytes) -> bytes | None:
        """Raises: DatabaseDamagedError, StorageUnavailableError."""
        with self._using() as db:
            found: bytes | None = db.get(key, verify_checksums=True)
        if found is not None:
            return found
        # LevelDB answers "not found" for a key whose table file is gone, too; a scan raises.
        with closing(self.scan(key, key + b"\x00")) as rows:
            return next((value for _, value in rows), None)

    def scan(self, start: bytes, stop: bytes) -> Rows:
        """Every `start <= key < stop`, as of the moment of the call.

        Raises, where the scan meets it: DatabaseDamagedError, StorageUnavailableError.
        """
        with self._using() as db:
            rows = scan_database(db, start, stop)
        return self._paged(rows)

    def write(self, batch: WriteBatch) -> None:
        """Put every value under its key; None deletes. The batch is atomic and durable.

        Raises: StorageOutcomeUnknownError: the batch may or may not be stored; later ones are
        refused: StorageUnavailableError.
        """
        with self._using():
            if self._failure is not None:
                raise StorageUnavailableError(self._failure)
            try:
                self._database.write(batch)
            except (plyvel.Error, OSError) as error:
                # Behind a half-written record of the log, LevelDB drops everything when it reads
                # the log again, acknowledged writes included. So nothing more is written.
                self._failure = (
                    f"writing to the table {self.directory} failed: {error_text(error)}; nothing "
                    "more is written until it is opened again"
                )
                raise StorageOutcomeUnknownError(self._failure) from error

    def readable_from(self, start: bytes, stop: bytes, *, row_start: RowStart) -> bytes | None:
        """The start of the first row that can be read behind the damaged block after `start`; None:
        there is none. `row_start` returns where the versions of a stored key's row begin."""
        with (
            self._using() as db,
            closing(scan_database(db, start, stop, is_verified=False)) as rows,
            suppress(plyvel.CorruptionError),
        ):
            for _, (key, _value) in zip(range(LOOK_BEHIND_ROWS_MAX), rows, strict=False):
                found = row_start(key)
                if found is not None and found > start and self._is_readable(found, stop):
                    return found
        return None

    def close(self) -> None:
        """Wait for the calls in flight and release the directory. Repeating it is harmless."""
        self._database.close()

    def _is_readable(self, start: bytes, stop: bytes) -> bool:
        with closing(scan_database(self._database.db, start, stop)) as rows:
            try:
                return next(rows, None) is not None
            except plyvel.CorruptionError:
                return False

    def _paged(self, rows: Rows) -> Rows:
        # The reader may need one row only, so pages start small and grow.
        with closing(rows):
            count_max = 1
            while True:
                page, error = self._page(rows, count_max)
                yield from page
                if error is not None:
                    raise error
                if not page:
                    return
                count_max = min(2 * count_max, PAGE_ROWS_MAX)

    def _page(
        self, rows: Rows, count_max: int
    ) -> tuple[list[tuple[bytes, bytes]], Exception | None]:
        """The next rows, and the error that ended the page."""
        page: list[tuple[bytes, bytes]] = []
        size_bytes = 0
        try:
            with self._using():
                while len(page) < count_max and size_bytes < PAGE_BYTES_MAX:
                    row = next(rows, None)
                    if row is None:
                        break
                    page.append(row)
                    size_bytes += len(row[1])
        except (DatabaseDamagedError, StorageUnavailableError, WrongStateError) as error:
            return page, error
        return page, None

    @contextmanager
    def _using(self) -> Iterator[plyvel.DB]:
        try:
            with self._database.calls.using():
                yield self._database.db
        except plyvel.CorruptionError as error:
            raise DatabaseDamagedError(error_text(error)) from error
        except (plyvel.Error, OSError) as error:
            raise StorageUnavailableError(
                f"the table {self.directory} can't be read: {error_text(error)}"
            ) from error
