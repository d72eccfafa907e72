"""HBase behind the seam, through its Thrift gateways (design §5, Storage seam; decision 0023).

A batch is atomic for one row only in HBase. So it is written twice: whole into one cell of the
journal, which is the moment it is there, and then row by row into the tables. Whoever opens the
store puts the rows of the newest commit again, which does no harm: cells carry the time of their
batch, and the higher one counts. A scan is of no moment; readers are bounded by what was
acknowledged, above this seam.
"""

import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

from messaging.keys import FACTS, INDEX
from messaging.storage import hbase_journal as journal
from messaging.storage.hbase_layout import (
    BODY,
    JOURNAL,
    MESSAGE,
    METADATA,
    TABLES,
    Layout,
    cells_of,
    value_of,
)
from messaging.storage.hbase_mutations import delete_row, parts, put_row
from messaging.storage.hbase_scan import read
from messaging.storage.hbase_settings import HBaseSettings
from messaging.storage.seam import Rows, StoreDamagedError, StoreError
from tuff.hbase_gateway import Addresses, Connection, Gateways
from tuff.hbase_wire import BatchMutation, Mutation, TScan

log = logging.getLogger(__name__)

CARRIED_BYTES_MAX = 64 << 10  # bytes of rows that stay in the journal from commit to commit
TRIM_SLOTS = 64  # commits between two deletions of old ones
TRIM_BYTES = 32 << 20  # bytes of them

# Rows that only an opened store reads: they may stay in the journal, and are mostly written again,
# or deleted, before they would have to be put.
_CARRIED_TAGS = (INDEX, FACTS)


class TakenOverError(StoreError):
    """Another server opened these tables, and this one must not write to them any more."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """A slot of the journal as it was found."""

    number: int
    cell: bytes


class HBaseStores:
    """Opens the store, again and again, for one server.

    The first time it takes the tables over from whoever had them. Later only from itself: a server
    that was cut off must not fight the one that took its place.
    """

    def __init__(
        self,
        settings: HBaseSettings,
        *,
        now_ms: Callable[[], int],
        elapsed_s: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._now_ms = now_ms
        self._elapsed_s = elapsed_s
        self._addresses = Addresses(settings.addresses())
        self._tokens: set[bytes] = set()

    def __call__(self) -> "HBaseStore":
        """Raises: StoreError: HBase can't be reached, or refuses; TakenOverError."""
        settings = self._settings
        gateways = Gateways(
            self._addresses,
            timeout_s=settings.timeout_s,
            idle_s=settings.idle_s,
            elapsed_s=self._elapsed_s,
        )
        try:
            return HBaseStore(gateways, settings.prefix, self._tokens, now_ms=self._now_ms)
        except BaseException:
            gateways.close()
            raise


class HBaseStore:
    """The tables of one prefix, written to by this object alone until somebody takes them over.

    One thread writes; any may read. `_lock` guards `_carried`.
    """

    has_views = False

    def __init__(
        self,
        gateways: Gateways,
        prefix: str,
        tokens: set[bytes],
        *,
        now_ms: Callable[[], int],
    ) -> None:
        """`tokens`: those of this server so far; its new one joins them."""
        self._gateways = gateways
        self._prefix = prefix
        self._now_ms = now_ms
        self._token = secrets.token_bytes(journal.TOKEN_SIZE)
        self._owner = f"process {os.getpid()} on {socket.gethostname()}"
        self._require_enabled()
        self._layout = Layout(self._salt_count())
        self._lock = Lock()
        self._carried: dict[bytes, bytes | None] = {}
        self._number = 0
        self._timestamp_ms = 0
        self._old_slots: list[bytes] = []
        self._old_bytes = 0
        self._claim(tokens)
        self._trim(self._strays())

    def get(self, key: bytes) -> bytes | None:
        self._gateways.require_open()
        with self._lock:
            if key in self._carried:
                return self._carried[key]
        table, row = self._layout.place(key)
        cells = self._cells(table, row)
        return value_of(cells) if cells else None

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
        self._gateways.require_open()
        return self._scan(start, stop, reverse=reverse)

    def approximate_size(self, start: bytes, stop: bytes) -> int:
        """0: the gateways tell nobody how large a range is."""
        del start, stop
        self._gateways.require_open()
        return 0

    def message_regions(self) -> list[str]:
        """The encoded names of the regions that hold messages now. Raises: StoreError."""
        table = self._table(MESSAGE)
        found = self._gateways.call(lambda connection: connection.client.getTableRegions(table))
        # A region's name is TABLE,START,TIME.ENCODED. with a point behind it.
        return [region.name.rstrip(b".").rpartition(b".")[2].decode() for region in found]

    def write(self, batch: Sequence[tuple[bytes, bytes | None]]) -> None:
        rows = dict(batch)
        with self._lock:
            body = {**self._carried, **rows}
        self._commit(body)
        carried = {key: value for key, value in body.items() if key[:1] in _CARRIED_TAGS}
        if _size(carried) > CARRIED_BYTES_MAX:
            carried = {}
        self._put({key: value for key, value in body.items() if key not in carried})
        with self._lock:
            self._carried = carried
        if len(self._old_slots) > TRIM_SLOTS or self._old_bytes > TRIM_BYTES:
            self._trim(self._old_slots)

    def close(self) -> None:
        self._gateways.close()

    def _scan(self, start: bytes, stop: bytes, *, reverse: bool) -> Rows:
        segments = self._layout.segments(start, stop)
        for segment in reversed(segments) if reverse else segments:
            rows = read(self._gateways, self._prefix, segment, reverse=reverse)
            if segment[0].table == METADATA:
                rows = self._with_carried(rows, segment[0].start, segment[0].stop, reverse=reverse)
            yield from rows

    def _with_carried(self, rows: Rows, start: bytes, stop: bytes, *, reverse: bool) -> Rows:
        with self._lock:
            carried = {key: self._carried[key] for key in self._carried if start <= key < stop}
        if not carried:
            yield from rows
            return
        # The index and the facts are read as a whole, when a store is opened or looked at.
        merged = {**dict(rows), **carried}
        for key in sorted(merged, reverse=reverse):
            value = merged[key]
            if value is not None:
                yield key, value

    def _require_enabled(self) -> None:
        # A gateway tries to put into a disabled table until its time is over, and then says nothing
        # of the reason.
        for name in TABLES:
            table = self._table(name)
            if not self._gateways.call(partial(_is_enabled, table=table)):
                raise StoreError(
                    f"HBase refuses: the table {table.decode()} is disabled; enable it"
                )

    def _salt_count(self) -> int:
        cells = self._cells(JOURNAL, journal.LAYOUT_ROW)
        if not cells:
            raise StoreError(
                f"the tables {self._prefix}* are not prepared; use `tuff hbase deploy`"
            )
        with _journal_errors("the layout of the tables"):
            return journal.unpack_layout(cells[BODY])

    def _claim(self, tokens: set[bytes]) -> None:
        """Take the next slot, so that no commit of anybody before us can come any more."""
        known = frozenset(tokens)
        tokens.add(self._token)
        while True:
            newest = self._newest()
            if newest is not None:
                self._take_in(newest, known)
            if self._take_slot({}):
                log.info("took the tables %s* over at commit %d", self._prefix, self._number)
                return

    def _take_in(self, newest: _Slot, known: frozenset[bytes]) -> None:
        commit = self._commit_in(newest)
        if known and commit.token not in known:
            raise TakenOverError(
                f"another server, {commit.owner}, has taken the tables {self._prefix}* over; stop "
                "one of the two"
            )
        self._number, self._timestamp_ms = newest.number, commit.timestamp_ms
        self._put(commit.rows)

    def _commit(self, body: journal.Rows) -> None:
        if not self._take_slot(body):
            raise TakenOverError(f"another server has taken the tables {self._prefix}* over")

    def _take_slot(self, body: journal.Rows) -> bool:
        """Write the next slot; False if somebody else did. Raises: StoreError: nobody knows."""
        number = self._number + 1
        timestamp_ms = max(self._now_ms(), self._timestamp_ms + 1)
        commit = journal.Commit(
            token=self._token, timestamp_ms=timestamp_ms, owner=self._owner, rows=body
        )
        cell, chunks = journal.pack(commit)
        rows = [journal.chunk_row(self._token, number, index) for index in range(len(chunks))]
        for row, chunk in zip(rows, chunks, strict=True):
            self._mutate(JOURNAL, [put_row(row, {BODY: chunk})], timestamp_ms=None)
        row = journal.slot_row(number)
        if not self._put_if_absent(row, cell):
            return False
        self._number, self._timestamp_ms = number, timestamp_ms
        self._old_slots += [*rows, row]
        self._old_bytes += len(cell) + sum(map(len, chunks))
        return True

    def _put_if_absent(self, row: bytes, cell: bytes) -> bool:
        """Whether the slot is ours. Doing it again is safe: what we find there is ours, or not."""
        table = self._table(JOURNAL)
        mutation = Mutation(isDelete=False, column=BODY, value=cell, writeToWAL=True)

        def put(connection: Connection) -> bool:
            if connection.client.checkAndPut(table, row, BODY, None, mutation, {}):
                return True
            found = connection.client.getRow(table, row, {})
            return bool(found) and found[0].columns[BODY].value == cell

        return self._gateways.call(put)

    def _newest(self) -> _Slot | None:
        found = self._journal_rows(
            journal.slot_row(2**64 - 1), journal.SLOTS, reverse=True, count=1
        )
        if not found:
            return None
        row = found[0]
        return _Slot(journal.slot_number(row.row), row.columns[BODY].value)

    def _commit_in(self, slot: _Slot) -> journal.Commit:
        with _journal_errors(f"commit {slot.number}"):
            token, count = journal.token_of(slot.cell), journal.chunk_count(slot.cell)
            rows = [journal.chunk_row(token, slot.number, index) for index in range(count)]
            pieces = [self._cells(JOURNAL, row).get(BODY, b"") for row in rows]
            return journal.unpack(slot.cell, pieces)

    def _strays(self) -> list[bytes]:
        """What others left in the journal besides the newest slot, which is ours."""
        ours = set(self._old_slots)
        found = []
        for start in (journal.CHUNKS, journal.SLOTS):
            stop = bytes((start[0] + 1,))
            rows = self._journal_rows(start, stop, reverse=False, count=10 * TRIM_SLOTS)
            found += [row.row for row in rows if row.row not in ours]
        return found

    def _journal_rows(self, start: bytes, stop: bytes, *, reverse: bool, count: int) -> list[Any]:
        table = self._table(JOURNAL)
        scan = TScan(
            startRow=start,
            stopRow=stop,
            caching=count,
            reversed=reverse,
            filterString=None if reverse else b"KeyOnlyFilter()",
        )

        def scanned(connection: Connection) -> list[Any]:
            number = connection.client.scannerOpenWithScan(table, scan, {})
            found = list(connection.client.scannerGetList(number, count))
            connection.client.scannerClose(number)
            return found

        return self._gateways.call(scanned)

    def _trim(self, rows: Sequence[bytes]) -> None:
        """Delete old rows of the journal; never the newest slot, by which numbers go on."""
        newest = journal.slot_row(self._number)
        old = [row for row in rows if row != newest]
        for part in parts([(row, None) for row in old]):
            mutations = [delete_row(row) for row, _ in part]
            self._mutate(JOURNAL, mutations, timestamp_ms=None)
        self._old_slots = [newest]
        self._old_bytes = 0

    def _put(self, rows: journal.Rows) -> None:
        """Put rows into the tables, or delete them there; doing it again changes nothing."""
        by_table: dict[str, list[tuple[bytes, bytes | None]]] = {}
        for key, value in rows.items():
            table, row = self._layout.place(key)
            by_table.setdefault(table, []).append((row, value))
        for table, changes in by_table.items():
            for part in parts(changes):
                mutations = [
                    delete_row(row) if value is None else put_row(row, cells_of(table, value))
                    for row, value in part
                ]
                self._mutate(table, mutations, timestamp_ms=self._timestamp_ms)

    def _mutate(
        self, name: str, mutations: Sequence[BatchMutation], *, timestamp_ms: int | None
    ) -> None:
        table = self._table(name)

        def mutate(connection: Connection) -> None:
            if timestamp_ms is None:
                connection.client.mutateRows(table, mutations, {})
            else:
                connection.client.mutateRowsTs(table, mutations, timestamp_ms, {})

        self._gateways.call(mutate)

    def _cells(self, name: str, row: bytes) -> Mapping[bytes, bytes]:
        table = self._table(name)
        found = self._gateways.call(lambda connection: connection.client.getRow(table, row, {}))
        return {name: cell.value for name, cell in found[0].columns.items()} if found else {}

    def _table(self, name: str) -> bytes:
        return (self._prefix + name).encode()


def _is_enabled(connection: Connection, *, table: bytes) -> bool:
    return bool(connection.client.isTableEnabled(table))


def _size(rows: Mapping[bytes, bytes | None]) -> int:
    return sum(len(key) + len(value or b"") for key, value in rows.items())


@contextmanager
def _journal_errors(what: str) -> Iterator[None]:
    try:
        yield
    except journal.DamagedJournalError as error:
        raise StoreDamagedError(f"{what} in HBase's journal table can't be read: {error}") from None
