"""The LevelDB engine: synced writes, and reads that verify every block.

A block that fails LevelDB's checksum is read again without verification. Every row has a checksum
of its own, over key and value, so each row of the block shows whether it is damaged.
A scan reports what LevelDB may leave out of such a block, unless it passes over it (decision 0036).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from messaging.engines.engine_interface import (
    Chunks,
    Corruption,
    Piece,
    Rows,
    StoreDamagedError,
    StoreError,
    in_chunks,
)
from messaging.engines.leveldb_corruption import CorruptRanges, ScanLimit
from messaging.model.packed_rows import first_whole
from tuff_storage.leveldb.database import Database, error_text
from tuff_storage.leveldb.engine import plyvel
from tuff_storage.leveldb.log import MalformedError
from tuff_storage.leveldb.opening import holds_database
from tuff_storage.leveldb.scan import scan, scan_backward

WRITE_BUFFER_BYTES = 16 << 20  # bytes, two of them; a second of heavy publishing between two files
BLOCK_CACHE_BYTES = 16 << 20  # bytes; frequent reads are answered by messaging/log/tail_cache.py
PIECE_BYTES = 16 << 20  # bytes of tables; eight of LevelDB's, some tenths of a second
OPEN_FILES_MAX = 512  # files; leaves half of a usual limit of 1,024 to connections


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
        new_store_refusal: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._directory = directory
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
        store = LevelDbStore(self._directory)
        self._was_open = True
        return store

    def _is_there(self) -> bool:
        with _as_store_errors():
            return holds_database(self._directory)


class LevelDbStore:
    """One LevelDB directory, locked for this process until `close`, which ends long scans early."""

    has_views = True
    packs_rows = True

    def __init__(self, directory: Path) -> None:
        """Raises: DirectoryLockedError: another process has it open; StoreError: LevelDB can't open
        it, since it is corrupt or the disk fails."""
        self._corrupt_ranges = CorruptRanges(directory)
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
            raise StoreError(f"LevelDB can't open {directory}: {_with_advice(error)}") from error

    def get(self, key: bytes) -> bytes | None:
        # LevelDB's Get answers "not found" for a key whose table file is gone, too; a scan raises.
        with closing(self.scan(key, key + b"\x00", corruption=Corruption.RAISE)) as chunks:
            return next((chunk[0][1] for chunk in chunks), None)

    def scan(
        self,
        start: bytes,
        stop: bytes,
        *,
        reverse: bool = False,
        corruption: Corruption = Corruption.PASS,
    ) -> Chunks:
        with self._database.calls.using(), _as_store_errors():
            snapshot = self._database.db.snapshot()
        if reverse:
            return self._chunks(snapshot, in_chunks(_backward(snapshot, start, stop)))
        return self._chunks(snapshot, self._scan_forward(snapshot, start, stop, corruption))

    def approximate_size(self, start: bytes, stop: bytes) -> int:
        with self._database.calls.using(), _as_store_errors():
            size: int = self._database.db.approximate_size(start, stop)
            return size

    def next_piece(self, start: bytes, stop: bytes) -> Piece:
        """The deleted rows of so many tables that LevelDB compacts them in a moment. Their rows
        outside of the range are written again."""
        with _as_table_errors():
            tables = self._corrupt_ranges.tables(start, stop)
            size_bytes, piece_stop = 0, stop
            for table in sorted(tables, key=lambda each: each.high):
                size_bytes += table.size_bytes
                if size_bytes >= PIECE_BYTES:
                    piece_stop = min(stop, table.high + b"\x00")
                    break
            # LevelDB adds the tables that overlap with those of the piece, and the rows in memory.
            # It writes their rows again, less those of the range, which were deleted.
            around = self._corrupt_ranges.tables_around(start, piece_stop)
            sizes = {each.number: each.size_bytes for each in (*tables, *around)}
            written_bytes = max(0, sum(sizes.values()) - self.approximate_size(start, stop))
            written_bytes += self._corrupt_ranges.log_bytes()
        return Piece(start, piece_stop, written_bytes)

    def compact(self, piece: Piece) -> None:
        # A compaction that meets damage would stop all writes.
        with _as_table_errors():
            damage = self._corrupt_ranges.damage_around(piece.start, piece.stop)
        if damage is not None:
            raise StoreDamagedError(f"{damage}; it is not compacted, and can still be read")
        with self._database.calls.using(), _as_store_errors():
            self._database.db.compact_range(start=piece.start, stop=piece.stop)

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

    def _chunks(self, snapshot: "plyvel.Snapshot", chunks: Chunks) -> Chunks:
        with self._database.calls.using(), closing(snapshot), closing(chunks):
            for chunk in chunks:
                yield chunk
                if self._database.calls.is_closing:
                    raise StoreError("the store is being closed")

    def _scan_forward(
        self, snapshot: "plyvel.Snapshot", start: bytes, stop: bytes, corruption: Corruption
    ) -> Chunks:
        """A scan that continues behind corruption, or raises at the first that is reported."""
        at = start
        while at < stop:
            try:
                with closing(_forward(snapshot, at, stop)) as chunks:
                    for chunk in chunks:
                        at = chunk[-1][0] + b"\x00"
                        yield chunk
            except StoreDamagedError:
                limit = self._scan_limit(at, stop, corruption)
            else:
                return
            if limit is None:
                yield from in_chunks(self._unverified(snapshot, at, stop))
                return
            yield from self._up_to(limit, snapshot, at)
            at = limit.stop

    def _up_to(self, limit: ScanLimit, snapshot: "plyvel.Snapshot", at: bytes) -> Chunks:
        corrupt = limit.corrupt
        try:
            yield from _forward(snapshot, at, limit.stop, is_verified=False)
        except StoreDamagedError:
            if corrupt is None:  # else LevelDB read ahead into the corrupt range
                raise
        if corrupt is not None:
            raise StoreDamagedError(
                f"{corrupt.reason}; rows may be missing behind {corrupt.low!r}; `tuff salvage` "
                "keeps the rows that are whole",
                readable_from=corrupt.high,
            )

    def _scan_limit(self, at: bytes, stop: bytes, corruption: Corruption) -> ScanLimit | None:
        """None: no corruption is reported."""
        if corruption is Corruption.PASS:
            return None
        are_rows_reported = corruption is Corruption.RAISE_AT_ROWS
        try:
            return self._corrupt_ranges.scan_limit(at, stop, report_damaged_rows=are_rows_reported)
        except (MalformedError, OSError) as error:
            raise StoreDamagedError(
                f"a damaged block follows the key {at!r}, and its end can't be found: "
                f"{error_text(error)}"
            ) from error

    def _unverified(self, snapshot: "plyvel.Snapshot", start: bytes, stop: bytes) -> Rows:
        with _as_store_errors(), closing(scan(snapshot, start, None, is_verified=False)) as rows:
            for key, value in rows:
                if start <= key < stop:
                    yield key, value
                    continue
                found = first_whole(key, value)
                if found is not None and found[1]:
                    return
                # A flipped bit can move a key, and keys that share its prefix, out of the range.
                # Taken for the end of the range, it silently hid the rest of a topic.
                raise StoreDamagedError(
                    f"a damaged block follows the key {start!r}; `tuff salvage` keeps the rows of "
                    "it that are whole"
                )


def _forward(
    snapshot: "plyvel.Snapshot", start: bytes, stop: bytes, *, is_verified: bool = True
) -> Chunks:
    with _as_store_errors():
        yield from in_chunks(scan(snapshot, start, stop, is_verified=is_verified))


def _backward(snapshot: "plyvel.Snapshot", start: bytes, stop: bytes) -> Rows:
    with _as_store_errors():
        yield from scan_backward(snapshot, start, stop)


def _with_advice(error: Exception) -> str:
    """The text of an error, with what to do if a file is damaged: waiting does not help then."""
    text = error_text(error)
    # LevelDB calls a table that was cut an invalid argument.
    is_damage = isinstance(error, plyvel.CorruptionError) or ".ldb: Invalid argument" in text
    if not is_damage:
        return text
    return (
        f"{text}. A file is damaged: stop the server; `tuff fsck` names the file; then restore a "
        "backup, or keep what is whole with `tuff salvage`"
    )


@contextmanager
def _as_table_errors() -> Iterator[None]:
    try:
        yield
    except (MalformedError, OSError) as error:
        raise StoreDamagedError(f"the tables can't be listed: {error_text(error)}") from error


@contextmanager
def _as_store_errors() -> Iterator[None]:
    try:
        yield
    except plyvel.CorruptionError as error:
        raise StoreDamagedError(error_text(error)) from error
    except (plyvel.Error, OSError) as error:
        raise StoreError(_with_advice(error)) from error
