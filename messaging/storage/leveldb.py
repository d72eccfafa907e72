"""The LevelDB engine: synced writes, and reads that verify every block.

A block that fails LevelDB's checksum is read again without verification. Every row has a checksum
of its own, over key and value, so each row of the block shows whether it is damaged.
`scan_reporting_corruption` reports what LevelDB may leave out of such a block (decision 0036).
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path

import plyvel

from messaging.storage.engine import Rows, StoreDamagedError, StoreError, next_chunk_count
from messaging.storage.leveldb_corruption import CorruptRanges, FirstWhole, ScanLimit
from tuff.leveldb.database import Database, error_text
from tuff.leveldb.log import MalformedError
from tuff.leveldb.opening import holds_database
from tuff.leveldb.scan import scan as scan_database
from tuff.leveldb.scan import scan_backward

WRITE_BUFFER_BYTES = 16 << 20  # bytes, two of them; a second of heavy publishing between two files
BLOCK_CACHE_BYTES = 16 << 20  # bytes; frequent reads are answered by messaging/read/tail_cache.py
OPEN_FILES_MAX = 512  # files; leaves half of a usual limit of 1,024 to connections

_Chunks = Generator[list[tuple[bytes, bytes]], None, None]


class LevelDbOpener:
    """Opens one directory for one server, and reopens it after failures.

    It creates a store only the first time. If a store that was open is gone, it was moved, or its
    volume is not mounted; an empty store in its place would look like one that never had messages.
    The same holds for a store of an earlier server; `new_store_refusal` returns the reason then.
    """

    def __init__(
        self,
        directory: Path,
        *,
        first_whole: FirstWhole,
        new_store_refusal: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._directory = directory
        self._first_whole = first_whole
        self._new_store_refusal = new_store_refusal
        self._was_open = False

    def __call__(self) -> "LevelDbStore":
        """Raises: as LevelDbStore; StoreError: the store existed before and is gone."""
        if not self._is_there():
            if self._was_open:
                raise StoreError(
                    f"{self._directory} holds no messages any more; put them back (is its volume "
                    "mounted?), and the server continues"
                )
            if (reason := self._new_store_refusal()) is not None:
                raise StoreError(reason)
        store = LevelDbStore(self._directory, first_whole=self._first_whole)
        self._was_open = True
        return store

    def _is_there(self) -> bool:
        with _as_store_errors():
            return holds_database(self._directory)


class LevelDbStore:
    """One LevelDB directory, locked for this process until `close`, which ends long scans early."""

    has_views = True

    def __init__(self, directory: Path, *, first_whole: FirstWhole) -> None:
        """Raises: DirectoryLockedError: another process has it open; StoreError: LevelDB can't open
        it, since it is corrupt or the disk fails."""
        self._first_whole = first_whole
        self._corrupt_ranges = CorruptRanges(directory, first_whole=first_whole)
        try:
            self._database = Database(
                directory,
                closed=lambda why: StoreError(f"the store {why}"),
                write_buffer_size=WRITE_BUFFER_BYTES,
                lru_cache_size=BLOCK_CACHE_BYTES,
                max_open_files=OPEN_FILES_MAX,
                # One flipped bit destroys a whole compressed block, but one row of an uncompressed
                # block.
                compression=None,
            )
        except (plyvel.Error, OSError) as error:
            raise StoreError(f"LevelDB can't open {directory}: {error_text(error)}") from error

    def get(self, key: bytes) -> bytes | None:
        found: bytes | None = None
        with suppress(StoreDamagedError), self._database.calls.using(), _as_store_errors():
            found = self._database.db.get(key, verify_checksums=True)
        if found is not None:
            return found
        # LevelDB answers "not found" for a key whose table file is gone, too; a scan raises.
        with closing(
            self.scan_reporting_corruption(key, key + b"\x00", report_damaged_rows=False)
        ) as rows:
            return next((value for _, value in rows), None)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
        return self._scan(self._snapshot(), start, stop, reverse=reverse)

    def scan_reporting_corruption(
        self, start: bytes, stop: bytes, *, report_damaged_rows: bool
    ) -> Rows:
        return self._scan_reporting(
            self._snapshot(), start, stop, report_damaged_rows=report_damaged_rows
        )

    def approximate_size(self, start: bytes, stop: bytes) -> int:
        with self._database.calls.using(), _as_store_errors():
            size: int = self._database.db.approximate_size(start, stop)
            return size

    def write(self, batch: Sequence[tuple[bytes, bytes | None]]) -> None:
        with self._database.calls.using(), _as_store_errors():
            # LevelDB would continue to write to its open files in the moved directory, and create
            # new files in the one that has its name now.
            lock = self._database.lock
            if not lock.is_in_place:
                raise StoreError(f"{lock.directory} was moved, or is another one now")
            self._database.write(batch)

    def close(self) -> None:
        self._database.close()

    def _snapshot(self) -> "plyvel.Snapshot":
        with self._database.calls.using(), _as_store_errors():
            return self._database.db.snapshot()

    def _scan(
        self, snapshot: "plyvel.Snapshot", start: bytes, stop: bytes, *, reverse: bool
    ) -> Rows:
        last = start
        with self._database.calls.using(), closing(snapshot):
            try:
                rows = (
                    _backward(snapshot, start, stop) if reverse else _forward(snapshot, start, stop)
                )
                with closing(rows):
                    for chunk in rows:
                        yield from chunk
                        self._require_open()
                        last = chunk[-1][0] + b"\x00"
            except StoreDamagedError:
                if reverse:
                    raise
            else:
                return
            yield from self._scan_unverified(snapshot, last, stop)

    def _scan_reporting(
        self, snapshot: "plyvel.Snapshot", start: bytes, stop: bytes, *, report_damaged_rows: bool
    ) -> Rows:
        at = start
        with self._database.calls.using(), closing(snapshot):
            while at < stop:
                try:
                    with closing(_forward(snapshot, at, stop)) as chunks:
                        for chunk in chunks:
                            yield from chunk
                            self._require_open()
                            at = chunk[-1][0] + b"\x00"
                except StoreDamagedError:
                    limit = self._scan_limit(at, stop, report_damaged_rows=report_damaged_rows)
                else:
                    return
                yield from self._scan_up_to(limit, snapshot, at)
                at = limit.stop

    def _scan_up_to(self, limit: ScanLimit, snapshot: "plyvel.Snapshot", at: bytes) -> Rows:
        corrupt = limit.corrupt
        try:
            with closing(_forward(snapshot, at, limit.stop, is_verified=False)) as chunks:
                for chunk in chunks:
                    yield from chunk
                    self._require_open()
        except StoreDamagedError:
            if corrupt is None:  # else LevelDB read ahead into the corrupt range
                raise
        if corrupt is not None:
            raise StoreDamagedError(
                f"{corrupt.reason}; rows may be missing behind {corrupt.low!r}; `tuff salvage` "
                "keeps the rows that are whole",
                readable_from=corrupt.high,
            )

    def _scan_limit(self, at: bytes, stop: bytes, *, report_damaged_rows: bool) -> ScanLimit:
        try:
            return self._corrupt_ranges.scan_limit(
                at, stop, report_damaged_rows=report_damaged_rows
            )
        except (MalformedError, OSError) as error:
            raise StoreDamagedError(
                f"a damaged block follows the key {at!r}, and its end can't be found: "
                f"{error_text(error)}"
            ) from error

    def _scan_unverified(self, snapshot: "plyvel.Snapshot", start: bytes, stop: bytes) -> Rows:
        with closing(_forward(snapshot, start, None, is_verified=False)) as chunks:
            for chunk in chunks:
                for key, value in chunk:
                    if start <= key < stop:
                        yield key, value
                    # A flipped bit can move a key, and keys that share its prefix, out of the
                    # range. Taken for the end of the range, it silently hid the rest of a topic.
                    elif self._is_whole(key, value):
                        return
                    else:
                        raise StoreDamagedError(
                            f"a damaged block follows the key {start!r}; `tuff salvage` keeps the "
                            "rows of it that are whole"
                        )
                self._require_open()

    def _is_whole(self, key: bytes, value: bytes) -> bool:
        found = self._first_whole(key, value)
        return found is not None and found[1]

    def _require_open(self) -> None:
        if self._database.calls.is_closing:
            raise StoreError("the store is being closed")


def _forward(
    snapshot: "plyvel.Snapshot", start: bytes, stop: bytes | None, *, is_verified: bool = True
) -> _Chunks:
    with (
        _as_store_errors(),
        closing(scan_database(snapshot, start, stop, is_verified=is_verified)) as rows,
    ):
        chunk: list[tuple[bytes, bytes]] = []
        count = 1  # the reader may need one row only
        try:
            while True:
                chunk.extend(islice(rows, count))
                if not chunk:
                    return
                yield chunk
                count, chunk = next_chunk_count(chunk, count), []
        except plyvel.CorruptionError:
            if chunk:  # the rows before the damaged block
                yield chunk
            raise


def _backward(snapshot: "plyvel.Snapshot", start: bytes, stop: bytes) -> _Chunks:
    with _as_store_errors(), closing(scan_backward(snapshot, start, stop)) as rows:
        yield from ([row] for row in rows)


@contextmanager
def _as_store_errors() -> Iterator[None]:
    try:
        yield
    except plyvel.CorruptionError as error:
        raise StoreDamagedError(error_text(error)) from error
    except (plyvel.Error, OSError) as error:
        raise StoreError(error_text(error)) from error
