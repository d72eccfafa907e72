"""`HBaseTransactionalTable`: a participant whose versioned rows are in HBase (design §2, §7).

A version is a cell; the cell's timestamp is the write pointer.

Several processes may have the table open. So a compaction first announces what it will remove, and
a later one removes it, after a grace period. By then every process has read the announcement, and
every gateway has carried out earlier writes (decision 0028).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from threading import Lock
from typing import TYPE_CHECKING

from tuff.flows_and_repeated_calls import clock_s
from tuff.optional_packages import Extra
from tuff.protocol.durations import Duration, seconds_of
from tuff.protocol.errors import StorageOutcomeUnknownError, StorageUnavailableError
from tuff.protocol.pointer_list import POINTER_MAX, holds
from tuff.protocol.transaction import Transaction
from tuff.tables.compaction import Compacted
from tuff.tables.hbase_row_format import (
    KEY_BYTES_MAX,
    ROWS_START,
    ROWS_STOP,
    UNDO_START,
    UNDO_STOP,
    VALUE_BYTES_MAX,
    WRITER_BYTES,
    Cell,
    StoredVersion,
    metadata_row,
    read_cell,
    removal,
    undo_range,
    undo_rows,
    version_row,
)
from tuff.tables.open_transactions import BUFFER_BYTES_MAX, VersionedValue, VersionedValues, Work
from tuff.tables.row_format import (
    COMPACTED,
    FORMAT,
    TABLE_ID,
    Version,
    check_format,
    new_table_id,
    pack_format,
    pack_metadata,
    pack_undone,
    pack_value,
    read_metadata,
    read_undo,
)
from tuff.tables.versioned_table import VersionedTable

if TYPE_CHECKING:
    from tuff.tables.hbase_cells import HBaseCells, Page
    from tuff_storage.hbase_gateway import Connection

GRACE_S = 3_600.0  # seconds; no gateway carries out a write later than that


class HBaseTransactionalTable(VersionedTable):
    """A table of rows, keys and values of bytes, in HBase. Many processes may have it open.

    It is a participant: pass it to `client.transaction(table)`. See `VersionedTable` for its
    methods. Keys have at most 32,000 bytes, values 8 MiB.

        stock = tuff.HBaseTransactionalTable("127.0.0.1:9090", "stock")
        with client.transaction(stock):
            stock.put(b"apple", b"41")

    While a transaction has an open scan, all its writes stay in memory.
    """

    def __init__(
        self,
        connection: "str | Sequence[str] | Connection",
        name: str,
        *,
        buffer_bytes: int = BUFFER_BYTES_MAX,
        grace: Duration = GRACE_S,
    ) -> None:
        """Open the table of that name, or create one.

        `connection`: the HOST:PORT of a Thrift gateway, several of them, or a happybase connection,
        of which address and table prefix are used; each thread opens a connection of its own. When
        a transaction has more than `buffer_bytes` of writes in memory, they are stored before it
        commits. `compact` announces what it removes, and a later call removes it when `grace` has
        passed, seconds or a `timedelta`; no gateway may hold a write for longer.

        Raises:
            StorageUnavailableError: no gateway answers, or HBase can't use the table.
            BadRequestError: the table would lose versions, or a gateway's address is not valid.
            ValueError, TypeError: `grace` is not a duration.
            ModuleNotFoundError: happybase is not installed.
        """
        grace_s = seconds_of(grace, what="grace")
        with Extra("HBaseTransactionalTable", "hbase"):
            from tuff.tables.hbase_cells import HBaseCells
        cells = HBaseCells(connection, name, elapsed_s=clock_s)
        try:
            store = HBaseVersionStore(cells, grace_s=grace_s)
        except BaseException:
            cells.close()
            raise
        super().__init__(name, store, buffer_bytes=buffer_bytes)


READS_PER_GRACE = 60  # times that a process reads the announcement within the grace period
POINTERS_PER_S = 1_000_000_000  # a pointer is milliseconds times a million, plus a counter
COMPACTION_KEYS = 1_000  # rows compacted before the undo rows that listed them are removed
SWAPS_MAX = 10  # attempts to announce while other processes compact

_COMPACTED_ROW = metadata_row(COMPACTED)
_Undo = tuple[bytes, list[Version]]
# For each row its visible version; None: it has none; or an iterator whose next entry is it.
# `_resolved` follows these iterators in a loop, since recursion would limit the number of invisible
# versions of a row.
_Entries = Iterator["VersionedValue | _Entries | None"]


class HBaseVersionStore:
    """The versions of a table in HBase; see `versioned_table.VersionStore`. Any thread may call.

    `_lock` guards `_next_number`, `_announcement` and `_announcement_s`.
    """

    key_bytes_max = KEY_BYTES_MAX
    value_bytes_max = VALUE_BYTES_MAX
    has_views = False

    def __init__(
        self,
        cells: "HBaseCells",
        *,
        grace_s: float,
        new_id: Callable[[], bytes] = new_table_id,
        elapsed_s: Callable[[], float] = clock_s,
    ) -> None:
        """`new_id` returns the bytes of the table's id, and those of this process; `elapsed_s` is a
        monotonic clock that runs while the machine is suspended: after a suspension, an
        announcement that was read before may have been carried out.

        Raises: StorageUnavailableError, DamagedRecordError, BadRequestError.
        """
        self._cells = cells
        self._grace_s = grace_s
        self._elapsed_s = elapsed_s
        self._writer = new_id()[:WRITER_BYTES]
        self._lock = Lock()
        self._next_number = 0  # of the next undo row
        cells.open()
        check_format(self._created_metadata(FORMAT, pack_format()))
        self.table_id = self._created_metadata(TABLE_ID, new_id())
        self._announcement = self._stored_compacted()
        self._announcement_s = elapsed_s()  # when it was read

    def newest_visible(self, key: bytes, transaction: Transaction) -> VersionedValue | None:
        newest = self._cells.newest([version_row(key)], before=_above(transaction))
        return next(self._resolved(newest, transaction), None)

    def visible(
        self, transaction: Transaction, start: bytes | None, stop: bytes | None
    ) -> VersionedValues:
        first = ROWS_START if start is None else version_row(start)
        last = ROWS_STOP if stop is None else version_row(stop)
        if first >= last:
            return
        newest = self._cells.scan(first, last, before=_above(transaction))
        for found in self._resolved(newest, transaction):
            self._cells.require_open()
            yield found

    def keys_of(self, transaction_id: int) -> Iterator[bytes]:
        for row, data in self._cells.undo_rows(*undo_range(transaction_id)):
            for version in list(read_undo(row, data)):
                yield version.key

    def write(self, work: Work) -> None:
        """First the undo rows, then the writes, row by row.

        Raises: StorageOutcomeUnknownError: the writes may be stored now, or later. If an earlier
            write of the transaction failed like that, nothing is written.
        """
        if not work.has_writes:
            return
        if work.in_doubt:
            # A gateway could carry out the earlier write after this one, at the same timestamp, and
            # after the commit.
            raise StorageOutcomeUnknownError(
                f"transaction {work.transaction_id} can't go on: not every write of it was "
                "acknowledged in time; roll it back, and start another one"
            )
        self._announced().require_writable(work.transaction_id)
        values = dict(work.writes())
        versions = list(values)
        with self._lock:
            undo = list(undo_rows(work.transaction_id, self._writer, self._next_number, versions))
            self._next_number += len(undo)
        self._cells.put_undo_rows(undo)
        for pointer, group in _by_pointer(versions):
            rows = [
                (version_row(version.key), pack_value(version.stored_key, values[version]))
                for version in group
            ]
            for part in self._cells.parts(rows):
                # The process may be suspended at any point, and a call to a slow HBase takes long.
                self._announced().require_writable(work.transaction_id)
                work.in_doubt = versions
                self._cells.put(part, pointer=pointer)
        # If the transaction had ended before the last put, `undo` needs the versions in doubt.
        self._announced().require_writable(work.transaction_id)
        work.forget_writes()

    def undo(self, work: Work) -> None:
        """Overwrite each version with an undone cell.

        Raises: StorageOutcomeUnknownError: also if a version may still appear later.
        """
        left = set(work.in_doubt)
        for row, data in self._cells.undo_rows(*undo_range(work.transaction_id)):
            undone = list(read_undo(row, data))
            self._mark_undone(undone)
            left.difference_update(undone)
        # If the transaction had ended, a compaction may have removed its undo rows.
        self._mark_undone(left)
        if work.in_doubt:
            # A gateway may carry out an unacknowledged put later, over the cell that undoes it.
            raise StorageOutcomeUnknownError(
                f"transaction {work.transaction_id} can't be rolled back for certain: not every "
                "write of it was acknowledged in time; invalidate it"
            )

    def note_committed(self, work: Work) -> None:
        """Keep the undo rows: compaction finds by them which rows were written."""

    def compact(self, now: Transaction, *, bound: int) -> list[int]:
        """Remove what was announced a grace period ago or earlier, and announce the next
        compaction. Returns the invalid pointers of the announcement that was carried out."""
        due = self._announce(now, bound=bound)
        if due is None:
            return []
        invalids = [pointer for pointer in sorted(now.invalids) if due.has_ended(pointer)]
        batch: list[_Undo] = []
        for row, data in self._cells.undo_rows(UNDO_START, UNDO_STOP):
            undo = row, list(read_undo(row, data))
            if self._is_droppable(undo, due, invalids):
                batch.append(undo)
            if sum(len(versions) for _, versions in batch) >= COMPACTION_KEYS:
                self._drop(batch, due, invalids)
                batch = []
        self._drop(batch, due, invalids)
        return invalids

    def close(self) -> None:
        self._cells.close()

    # Reading

    def _resolved(
        self, newest: "Iterator[Page]", transaction: Transaction
    ) -> Iterator[VersionedValue]:
        """The visible version of each row, in order, given the newest versions page by page."""
        for each in self._entries(newest, transaction):
            entry = each
            while isinstance(entry, Iterator):
                entry = next(entry)
            if entry is not None:
                yield entry

    def _entries(self, newest: "Iterator[Page]", transaction: Transaction) -> _Entries:
        # Older versions are read lazily, one page for each level of invisible ones at a time, since
        # they may be of any size.
        for page in newest:
            # Checked after the page was read: what is removed from now on is still in there.
            self._announced().require_readable(transaction)
            entries: list[VersionedValue | int | None] = []
            hidden: dict[int, list[bytes]] = {}
            for row, cell in page:
                stored = None if cell is None else _read(row, cell)
                if stored is None or _is_visible(stored, transaction):
                    entries.append(None if stored is None else (stored.version, stored.value))
                else:
                    entries.append(stored.version.pointer)
                    hidden.setdefault(stored.version.pointer, []).append(row)
            # Usually, one invisible transaction wrote many of the rows, which are read together.
            below = {
                pointer: self._below(pointer, rows, transaction) for pointer, rows in hidden.items()
            }
            for entry in entries:
                yield below[entry] if isinstance(entry, int) else entry

    def _below(self, pointer: int, rows: list[bytes], transaction: Transaction) -> _Entries:
        if len(rows) > 1:
            return self._entries(self._cells.newest(rows, before=pointer), transaction)
        return self._below_one(pointer, rows[0], transaction)

    def _below_one(self, pointer: int, row: bytes, transaction: Transaction) -> _Entries:
        versions = self._versions(row, before=pointer)
        stored = next((one for one in versions if _is_visible(one, transaction)), None)
        self._announced().require_readable(transaction)
        yield None if stored is None else (stored.version, stored.value)

    def _versions(self, row: bytes, *, before: int = POINTER_MAX) -> Iterator[StoredVersion]:
        """All versions of a row below a pointer, newest first."""
        while cells := self._cells.versions(row, before=before):
            for cell in cells:
                yield _read(row, cell)
            before = cells[-1].pointer

    def _announced(self) -> Compacted:
        """The announcement of the last compaction, read again often enough to see it in time."""
        with self._lock:
            if self._elapsed_s() - self._announcement_s < self._grace_s / READS_PER_GRACE:
                return self._announcement
        # Its age counts from before the request.
        requested_s = self._elapsed_s()
        found = self._stored_compacted()
        with self._lock:
            if requested_s >= self._announcement_s:
                self._announcement, self._announcement_s = found, requested_s
        return found

    # Compacting

    def _announce(self, now: Transaction, *, bound: int) -> Compacted | None:
        """Announce this compaction, unless the last announcement is younger than the grace period.
        Returns the announcement to carry out now, if there is one."""
        for _ in range(SWAPS_MAX):
            before = self._stored_compacted()
            due = before if before.started else None
            # If another process compacts at this moment, the announcement may be younger than
            # `now`.
            age = abs(now.transaction_id - before.started)
            if due is not None and age < self._grace_s * POINTERS_PER_S:
                return None
            after = before.advanced(now, bound=bound)
            if self._swapped(before, after):
                return due if self._grace_s > 0 else after
        raise StorageUnavailableError(
            "other processes compact the table at this moment; try again later"
        )

    def _swapped(self, before: Compacted, after: Compacted) -> bool:
        old, new = (pack_metadata(_COMPACTED_ROW, one.to_bytes()) for one in (before, after))
        return self._cells.swap_metadata(_COMPACTED_ROW, old=old, new=new) == new

    @staticmethod
    def _is_droppable(undo: _Undo, due: Compacted, invalids: list[int]) -> bool:
        _, versions = undo
        pointers = {version.pointer for version in versions}
        return _is_below(versions, due.bound) or any(holds(invalids, one) for one in pointers)

    def _drop(self, batch: Iterable[_Undo], due: Compacted, invalids: list[int]) -> None:
        for key in sorted({version.key for _, versions in batch for version in versions}):
            row = version_row(key)
            dropped = removal(list(self._versions(row)), bound=due.bound, invalids=invalids)
            self._mark_undone([Version(key, pointer) for pointer in dropped.undone])
            if dropped.through is not None:
                self._cells.delete_through(row, dropped.through)
        # Undo rows with versions above the bound stay for a later compaction.
        done = [row for row, versions in batch if _is_below(versions, due.bound)]
        self._cells.delete_undo_rows(done)

    def _mark_undone(self, versions: Iterable[Version]) -> None:
        for pointer, group in _by_pointer(versions):
            rows = [
                (version_row(version.key), pack_undone(version.stored_key)) for version in group
            ]
            self._cells.put_again(rows, pointer=pointer)

    # Metadata

    def _stored_compacted(self) -> Compacted:
        return Compacted.from_bytes(self._created_metadata(COMPACTED, Compacted().to_bytes()))

    def _created_metadata(self, name: bytes, body: bytes) -> bytes:
        """The body of a metadata row, which is created if it does not exist."""
        row = metadata_row(name)
        data = self._cells.metadata(row)
        if data is None:
            data = self._cells.swap_metadata(row, old=None, new=pack_metadata(row, body))
        return read_metadata(row, data)


def _above(transaction: Transaction) -> int:
    """A timestamp above every version that the transaction can see."""
    return max(transaction.read_pointer, transaction.write_pointer) + 1


def _read(row: bytes, cell: Cell) -> StoredVersion:
    return read_cell(row[len(ROWS_START) :], cell)


def _is_visible(stored: StoredVersion, transaction: Transaction) -> bool:
    return not stored.is_undone and transaction.is_visible(stored.version.pointer)


def _is_below(versions: Iterable[Version], bound: int) -> bool:
    return all(version.pointer <= bound for version in versions)


def _by_pointer(versions: Iterable[Version]) -> Iterator[tuple[int, Iterator[Version]]]:
    pointer_of = attrgetter("pointer")
    return groupby(sorted(versions, key=pointer_of), key=pointer_of)
