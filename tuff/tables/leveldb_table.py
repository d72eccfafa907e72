"""`TransactionalTable`: a participant whose versioned rows are in LevelDB (design §2, §7)."""

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import groupby
from pathlib import Path
from threading import Condition

from tuff.protocol.errors import BadRequestError, DamagedRecordError
from tuff.protocol.pointer_list import holds
from tuff.protocol.transaction import Transaction
from tuff.tables.compaction import Compacted, droppable
from tuff.tables.leveldb_database import DatabaseDamagedError, TableDatabase
from tuff.tables.open_transactions import BUFFER_BYTES_MAX, VersionedValue, VersionedValues, Work
from tuff.tables.row_format import (
    COMPACTED,
    FORMAT,
    ROWS_START,
    ROWS_STOP,
    TABLE_ID,
    UNDO_START,
    UNDO_STOP,
    MalformedKeyError,
    Version,
    check_format,
    damaged,
    damaged_row,
    metadata_keys,
    new_table_id,
    pack_format,
    pack_metadata,
    pack_undo,
    pack_value,
    read_metadata,
    read_undo,
    read_undo_key,
    read_value,
    read_version,
    row_prefix,
    row_stop,
    undo_key,
    undo_range,
)
from tuff.tables.versioned_table import VersionedTable
from tuff_storage.leveldb.scan import Rows


class TransactionalTable(VersionedTable):
    """A table of rows, keys and values of bytes, in a directory that is locked until `close`.

    It is a participant: pass it to `client.transaction(table)`. See `VersionedTable` for its
    methods.

        stock = tuff.TransactionalTable("data/stock")
        with client.transaction(stock):
            stock.put(b"apple", b"41")
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        buffer_bytes: int = BUFFER_BYTES_MAX,
    ) -> None:
        """Open the table of a directory, or create one.

        When a transaction has more than `buffer_bytes` of writes in memory, they go to disk in one
        batch before it commits.

        Raises:
            StorageUnavailableError: another process has it open, or LevelDB can't open it.
            BadRequestError: the directory holds a database that is not a table.
        """
        store = LevelDbVersionStore(Path(path))
        super().__init__(os.fspath(path), store, buffer_bytes=buffer_bytes)


KEY_BYTES_MAX = 64 << 10  # bytes; change sets carry keys, and 16 MiB of them at most
VALUE_BYTES_MAX = 64 << 20  # bytes; memory holds a value as a whole, several times
BATCH_ROWS = 1000  # rows removed in one synced batch; other writers wait for it

_StoredVersions = Generator[tuple[Version, bytes], None, None]  # with the stored value


class LevelDbVersionStore:
    """The versions of a table in LevelDB; see `versioned_table.VersionStore`. Any thread may call.

    `_gate` guards `_compacted`, `_writers` and `_unneeded_undo_keys`.
    """

    key_bytes_max = KEY_BYTES_MAX
    value_bytes_max = VALUE_BYTES_MAX
    has_views = True

    def __init__(self, directory: Path, *, new_id: Callable[[], bytes] = new_table_id) -> None:
        """`new_id` returns the bytes that tell the rows of a new table from those of other tables
        in conflicts.

        Raises: StorageUnavailableError, DamagedRecordError, BadRequestError: it is not a table.
        """
        self._gate = Condition()
        self._writers: list[int] = []
        self._unneeded_undo_keys: list[bytes] = []
        self._database = TableDatabase(directory)
        try:
            self.table_id = self._open(new_id)
            self._compacted = Compacted.from_bytes(self._required_metadata(COMPACTED))
        except BaseException:
            self._database.close()
            raise

    def newest_visible(self, key: bytes, transaction: Transaction) -> VersionedValue | None:
        highest = max(transaction.read_pointer, transaction.write_pointer)
        start, stop = Version(key, highest).stored_key, row_stop(key)
        with closing(self._visible(start, stop, transaction, first_key=key)) as found:
            return next(found, None)

    def visible(
        self, transaction: Transaction, start: bytes | None, stop: bytes | None
    ) -> VersionedValues:
        first = ROWS_START if start is None else row_prefix(start)
        last = ROWS_STOP if stop is None else row_prefix(stop)
        return self._visible(first, last, transaction, first_key=start or b"")

    def keys_of(self, transaction_id: int) -> Iterator[bytes]:
        for key, data in self._undo_rows(*undo_range(transaction_id)):
            for version in read_undo(key, data):
                yield version.key

    def write(self, work: Work) -> None:
        """In one synced batch."""
        if not work.has_writes:
            return
        if work.next_number is None:
            work.next_number = self._next_number(work.transaction_id)
        undo = undo_key(work.transaction_id, work.next_number)
        versions: list[Version] = []
        batch: list[tuple[bytes, bytes | None]] = []
        for version, value in work.writes():
            stored_key = version.stored_key
            versions.append(version)
            batch.append((stored_key, pack_value(stored_key, value)))
        batch.append((undo, pack_undo(undo, versions)))
        with self._writing(work.transaction_id) as unneeded:
            work.in_doubt = versions
            self._database.write([*batch, *((key, None) for key in unneeded)])
        work.next_number += 1
        work.forget_writes()

    def undo(self, work: Work) -> None:
        if work.in_doubt:
            # A batch that failed can't be read now. But LevelDB may read it from its log when it
            # is opened again, and then rows of an aborted transaction appear. Deleting the rows
            # prevents that, and raises if the table accepts no more writes.
            self._database.write([(version.stored_key, None) for version in work.in_doubt])
        for key, data in self._undo_rows(*undo_range(work.transaction_id)):
            gone = [version.stored_key for version in read_undo(key, data)]
            self._database.write([*((stored_key, None) for stored_key in gone), (key, None)])

    def note_committed(self, work: Work) -> None:
        # The next batch removes the undo rows, since a write of its own would cost another sync.
        # After a crash they are left, which is harmless, and compaction removes them.
        with self._gate:
            count = work.next_number or 0
            self._unneeded_undo_keys += [
                undo_key(work.transaction_id, number) for number in range(count)
            ]

    def compact(self, now: Transaction, *, bound: int) -> list[int]:
        compacted = self._advance(now, bound=bound)
        self._drop(self._droppable_versions(compacted.bound, now))
        self._drop(self._droppable_undo_rows(compacted.bound, now))
        return sorted(now.invalids)

    def close(self) -> None:
        self._database.close()

    # Reading

    def _visible(
        self, start: bytes, stop: bytes, transaction: Transaction, *, first_key: bytes
    ) -> VersionedValues:
        rows = self._database.scan(start, stop)
        # Checked after LevelDB took its snapshot: what is removed from now on is still in there.
        self._compacted.require_readable(transaction)
        return self._resolved(rows, transaction, first_key)

    def _resolved(self, rows: Rows, transaction: Transaction, first_key: bytes) -> VersionedValues:
        done: bytes | None = None
        with closing(self._versions_in(rows, first_key)) as versions:
            for version, data in versions:
                if version.key == done:
                    continue
                value = read_value(version.stored_key, data)
                if transaction.is_visible(version.pointer):
                    done = version.key
                    yield version, value

    def _versions_in(self, rows: Rows, first_key: bytes) -> _StoredVersions:
        last = first_key
        with closing(rows):
            try:
                for stored_key, data in rows:
                    version = read_version(stored_key)
                    last = version.key
                    yield version, data
            except (DatabaseDamagedError, MalformedKeyError) as error:
                raise self._damaged_behind(last, error) from error

    def _damaged_behind(self, key: bytes, error: Exception) -> DamagedRecordError:
        found = self._database.readable_from(row_prefix(key), ROWS_STOP, row_start=_row_start)
        next_key = None if found is None else found[1:-2].replace(b"\x00\x01", b"\x00")
        return damaged_row(key, str(error), next_key=next_key)

    def _undo_rows(self, start: bytes, stop: bytes) -> Rows:
        with closing(self._database.scan(start, stop)) as rows:
            try:
                yield from rows
            except DatabaseDamagedError as error:
                raise damaged(start, str(error)) from error

    def _next_number(self, transaction_id: int) -> int:
        # A process that continues a transaction after a crash must not overwrite its undo rows, or
        # the versions that they list could never be undone.
        numbers = [read_undo_key(key)[1] for key, _ in self._undo_rows(*undo_range(transaction_id))]
        return max(numbers, default=-1) + 1

    # Writing

    @contextmanager
    def _writing(self, transaction_id: int) -> Iterator[list[bytes]]:
        """Register a writing transaction, unless it has ended. Yields the keys of undo rows to
        remove."""
        with self._gate:
            self._compacted.require_writable(transaction_id)
            self._writers.append(transaction_id)
            unneeded, self._unneeded_undo_keys = self._unneeded_undo_keys, []
        try:
            yield unneeded
        finally:
            with self._gate:
                self._writers.remove(transaction_id)
                self._gate.notify_all()

    # Compacting

    def _advance(self, now: Transaction, *, bound: int) -> Compacted:
        with self._gate:
            compacted = self._compacted = self._compacted.advanced(now, bound=bound)
            # From here on, ended transactions can't begin a write. Wait for those in flight.
            self._gate.wait_for(lambda: not any(map(compacted.has_ended, self._writers)))
        self._write_metadata({COMPACTED: compacted.to_bytes()})
        return compacted

    def _droppable_versions(self, bound: int, now: Transaction) -> Iterator[bytes]:
        rows = self._database.scan(ROWS_START, ROWS_STOP)
        found = (
            (version, read_value(version.stored_key, data) is None)
            for version, data in self._versions_in(rows, b"")
        )
        for key, group in groupby(found, key=lambda one: one[0].key):
            versions = ((version.pointer, is_marker) for version, is_marker in group)
            for pointer in droppable(versions, bound=bound, invalids=now.invalids):
                yield Version(key, pointer).stored_key

    def _droppable_undo_rows(self, bound: int, now: Transaction) -> Iterator[bytes]:
        for key, _ in self._undo_rows(UNDO_START, UNDO_STOP):
            transaction_id, _ = read_undo_key(key)
            if transaction_id <= bound or holds(now.invalids, transaction_id):
                yield key

    def _drop(self, stored_keys: Iterator[bytes]) -> None:
        batch: list[tuple[bytes, bytes | None]] = []
        for stored_key in stored_keys:
            batch.append((stored_key, None))
            if len(batch) >= BATCH_ROWS:
                self._database.write(batch)
                batch = []
        if batch:
            self._database.write(batch)

    # Opening

    def _open(self, new_id: Callable[[], bytes]) -> bytes:
        """The table's id; a new table is created."""
        version = self._metadata(FORMAT)
        if version is None:
            return self._create(new_id())
        check_format(version)
        return self._required_metadata(TABLE_ID)

    def _create(self, table_id: bytes) -> bytes:
        with closing(self._database.scan(b"", b"\xff")) as rows:
            if next(rows, None) is not None:
                raise BadRequestError(
                    f"{self._database.directory} holds a LevelDB database that is not a table of "
                    "Tuff; choose another directory"
                )
        self._write_metadata(
            {FORMAT: pack_format(), TABLE_ID: table_id, COMPACTED: Compacted().to_bytes()}
        )
        return table_id

    def _required_metadata(self, name: bytes) -> bytes:
        body = self._metadata(name)
        if body is None:
            raise damaged(metadata_keys(name)[0], "it is missing")
        return body

    def _metadata(self, name: bytes) -> bytes | None:
        """The body of a metadata row; None: it does not exist. Raises: DamagedRecordError."""
        first: DamagedRecordError | None = None
        for key in metadata_keys(name):
            try:
                data = self._database.get(key)
                if data is not None:
                    return read_metadata(key, data)
            except DatabaseDamagedError as error:
                first = first or damaged(key, str(error))
            except DamagedRecordError as error:
                first = first or error
        if first is not None:
            raise first
        return None

    def _write_metadata(self, bodies: Mapping[bytes, bytes]) -> None:
        self._database.write(
            [
                (key, pack_metadata(key, body))
                for name, body in bodies.items()
                for key in metadata_keys(name)
            ]
        )


def _row_start(stored_key: bytes) -> bytes | None:
    try:
        return row_prefix(read_version(stored_key).key)
    except MalformedKeyError:
        return None
