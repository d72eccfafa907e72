"""LevelDB behind the seam: synced writes, and reads that verify every block.

A block that fails LevelDB's checksum is read again without it: every value of ours has a checksum
of its own that covers its key, so what is whole in there can still be told from what is not. What
LevelDB may leave out of it is told by `scan_told`.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice, takewhile
from pathlib import Path

import plyvel

from messaging.storage.chunks import next_count
from messaging.storage.leveldb_holes import FirstWhole, Holes, Stretch
from messaging.storage.seam import Rows, StoreDamagedError, StoreError
from tuff.disk import leveldb_scan
from tuff.disk.files import make_directory
from tuff.disk.leveldb_log import MalformedError
from tuff.disk.leveldb_start import holds_database, start
from tuff.disk.lock import DirectoryLock
from tuff.disk.users import Users

WRITE_BUFFER_BYTES = 16 << 20  # bytes, two of them; a second of heavy publishing between two files
BLOCK_CACHE_BYTES = 16 << 20  # bytes; what is read again and again stands in messaging/tail.py
OPEN_FILES_MAX = 512  # files; leaves most of a usual limit of 1,024 to connections

_Chunks = Generator[list[tuple[bytes, bytes]], None, None]


class LevelDbStores:
    """Opens one directory, again and again, for one server.

    A store is begun the first time only. One that was open and is not there any more was moved, or
    its volume is gone; an empty one in its place would say that nothing was ever written. So would
    one that an earlier server had, of which `why_not_begin` tells.
    """

    def __init__(
        self,
        directory: Path,
        *,
        first_whole: FirstWhole,
        why_not_begin: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._directory = directory
        self._first_whole = first_whole
        self._why_not_begin = why_not_begin
        self._was_open = False

    def __call__(self) -> "LevelDbTable":
        """Raises: as LevelDbTable; StoreError: the store that was open, or once was there, is
        gone."""
        if not self._is_there():
            if self._was_open:
                raise StoreError(
                    f"{self._directory} holds no messages any more; put them back (is its volume "
                    "mounted?), and the server goes on"
                )
            if (reason := self._why_not_begin()) is not None:
                raise StoreError(reason)
        table = LevelDbTable(self._directory, first_whole=self._first_whole)
        self._was_open = True
        return table

    def _is_there(self) -> bool:
        with _as_store_errors():
            return holds_database(self._directory)


class LevelDbTable:
    """One LevelDB directory, held by this process alone until `close`, for which long scans end
    early."""

    has_views = True

    def __init__(self, directory: Path, *, first_whole: FirstWhole) -> None:
        """Raises: DirectoryLockedError: somebody else has it open; StoreError: LevelDB can't open
        it, since it is damaged or the disk fails."""
        self._first_whole = first_whole
        self._holes = Holes(directory, first_whole=first_whole)
        self._users = Users(closed=lambda: StoreError("the store is closed"))
        try:
            make_directory(directory)
            self._lock = DirectoryLock(directory)
        except OSError as error:
            raise StoreError(f"{directory} can't hold messages: {error.strerror}") from error
        try:
            self._db = start(directory, partial(_open, directory), damaged=plyvel.CorruptionError)
        except (plyvel.Error, OSError) as error:
            self._lock.close()
            raise StoreError(f"LevelDB can't open {directory}: {_text(error)}") from error

    def get(self, key: bytes) -> bytes | None:
        try:
            with self._users.using(), _as_store_errors():
                found: bytes | None = self._db.get(key, verify_checksums=True)
                return found
        except StoreDamagedError:
            with closing(self.scan_told(key, key + b"\x00", are_rows_told=False)) as rows:
                return next((value for _, value in rows), None)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
        return self._scan(self._snapshot(), start, stop, reverse=reverse)

    def scan_told(self, start: bytes, stop: bytes, *, are_rows_told: bool) -> Rows:
        return self._scan_told(self._snapshot(), start, stop, are_rows_told=are_rows_told)

    def approximate_size(self, start: bytes, stop: bytes) -> int:
        with self._users.using(), _as_store_errors():
            size: int = self._db.approximate_size(start, stop)
            return size

    def write(self, batch: Sequence[tuple[bytes, bytes | None]]) -> None:
        with self._users.using(), _as_store_errors():
            # LevelDB writes on to files that it has open, and makes the next ones by their names.
            if not self._lock.is_in_place:
                raise StoreError(f"{self._lock.directory} was moved, or is another one now")
            writes = self._db.write_batch(sync=True)
            for key, value in batch:
                if value is None:
                    writes.delete(key)
                else:
                    writes.put(key, value)
            writes.write()

    def close(self) -> None:
        if self._users.close():
            self._db.close()
            self._lock.close()

    def _snapshot(self) -> "plyvel.Snapshot":
        with self._users.using(), _as_store_errors():
            return self._db.snapshot()

    def _scan(
        self, snapshot: "plyvel.Snapshot", start: bytes, stop: bytes, *, reverse: bool
    ) -> Rows:
        last = start
        with self._users.using(), closing(snapshot):
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

    def _scan_told(
        self, snapshot: "plyvel.Snapshot", start: bytes, stop: bytes, *, are_rows_told: bool
    ) -> Rows:
        at = start
        with self._users.using(), closing(snapshot):
            while at < stop:
                try:
                    with closing(_forward(snapshot, at, stop)) as chunks:
                        for chunk in chunks:
                            yield from chunk
                            self._require_open()
                            at = chunk[-1][0] + b"\x00"
                except StoreDamagedError:
                    stretch = self._stretch(at, stop, are_rows_told=are_rows_told)
                else:
                    return
                yield from self._up_to_hole(snapshot, at, stretch)
                at = stretch.stop

    def _up_to_hole(self, snapshot: "plyvel.Snapshot", at: bytes, stretch: Stretch) -> Rows:
        hole = stretch.hole
        try:
            with closing(_forward(snapshot, at, stretch.stop, is_verified=False)) as chunks:
                for chunk in chunks:
                    yield from chunk
                    self._require_open()
        except StoreDamagedError:
            if hole is None:  # LevelDB looks ahead, into what it can't tell apart
                raise
        if hole is not None:
            raise StoreDamagedError(
                f"{hole.reason}; rows may be missing behind {hole.low!r}; `tuff salvage` reads "
                "what is whole",
                readable_from=hole.high,
            )

    def _stretch(self, at: bytes, stop: bytes, *, are_rows_told: bool) -> Stretch:
        try:
            return self._holes.stretch(at, stop, are_rows_told=are_rows_told)
        except (MalformedError, OSError) as error:
            raise StoreDamagedError(
                f"a damaged block follows the key {at!r}, and where it ends can't be told: "
                f"{_text(error)}"
            ) from error

    def _scan_unverified(self, snapshot: "plyvel.Snapshot", start: bytes, stop: bytes) -> Rows:
        with closing(_forward(snapshot, start, None, is_verified=False)) as chunks:
            for chunk in chunks:
                for key, value in chunk:
                    if start <= key < stop:
                        yield key, value
                    # A flipped bit in a key can throw it, and those that share its beginning, out
                    # of the range. Taken for its end, the rest of a topic was lost silently.
                    elif self._is_whole(key, value):
                        return
                    else:
                        raise StoreDamagedError(
                            f"a damaged block follows the key {start!r}; `tuff salvage` reads what "
                            "is whole in it"
                        )
                self._require_open()

    def _is_whole(self, key: bytes, value: bytes) -> bool:
        found = self._first_whole(key, value)
        return found is not None and found[1]

    def _require_open(self) -> None:
        if self._users.is_closing:
            raise StoreError("the store is being closed")


def _forward(
    snapshot: "plyvel.Snapshot", start: bytes, stop: bytes | None, *, is_verified: bool = True
) -> _Chunks:
    with (
        _as_store_errors(),
        closing(leveldb_scan.scan(snapshot, start, stop, is_verified=is_verified)) as rows,
    ):
        chunk: list[tuple[bytes, bytes]] = []
        count = 1  # who reads may want no more
        try:
            while True:
                chunk.extend(islice(rows, count))
                if not chunk:
                    return
                yield chunk
                count, chunk = next_count(chunk, count), []
        except plyvel.CorruptionError:
            if chunk:  # what came before it
                yield chunk
            raise


def _backward(snapshot: "plyvel.Snapshot", start: bytes, stop: bytes) -> _Chunks:
    # plyvel's reverse iterator gives nothing at all when its first row is the start itself, so it
    # is given none, and ended here.
    with (
        _as_store_errors(),
        closing(snapshot.iterator(stop=stop, reverse=True, verify_checksums=True)) as rows,
    ):
        yield from ([row] for row in takewhile(lambda row: row[0] >= start, rows))


def _open(directory: Path) -> plyvel.DB:
    return plyvel.DB(
        str(directory),
        create_if_missing=False,
        paranoid_checks=True,
        write_buffer_size=WRITE_BUFFER_BYTES,
        lru_cache_size=BLOCK_CACHE_BYTES,
        max_open_files=OPEN_FILES_MAX,
        # One flipped bit in a compressed block takes all of it; uncompressed it takes one row.
        compression=None,
    )


@contextmanager
def _as_store_errors() -> Iterator[None]:
    try:
        yield
    except plyvel.CorruptionError as error:
        raise StoreDamagedError(_text(error)) from error
    except (plyvel.Error, OSError) as error:
        raise StoreError(_text(error)) from error


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:  # of the system, or in its form
        return error.strerror
    first = error.args[0] if error.args else error
    return first.decode("utf-8", "replace") if isinstance(first, bytes) else str(first)
