"""HBase behind the seam, through its Thrift gateways (design §5, Storage seam; decision 0023).

A batch is atomic for one row only in HBase. So it is written twice: whole into one cell of the
journal, which is the moment it is there, and then row by row into the tables, together with those
of other batches, while the next ones go to the journal already. Until then rows are read from
memory. Whoever opens the store puts the rows of all commits again that may be missing, which does
no harm: cells carry the time of their batch, and the higher one counts. A scan is of no moment;
readers are bounded by what was acknowledged, above this seam.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from threading import Condition, Event
from typing import Any

from messaging.storage import hbase_journal as journal
from messaging.storage import hbase_thrift2
from messaging.storage.hbase_commits import Commits, OwnClaims, journal_errors
from messaging.storage.hbase_gateways import gateways_of
from messaging.storage.hbase_layout import (
    BODY,
    JOURNAL,
    MESSAGE,
    SALTED,
    TABLES,
    Layout,
    cells_of,
    value_of,
)
from messaging.storage.hbase_regions import encoded_name
from messaging.storage.hbase_scan import read
from messaging.storage.hbase_settings import FOREVER_S, HBaseSettings
from messaging.storage.hbase_writes import Change, ForcedWrites, LoggedWrites, Writes
from messaging.storage.seam import Rows, StoreError
from tuff.hbase_gateway import Addresses, Connection, Gateways

SETTLE_AFTER_S = 0.05  # seconds that rows wait in the journal for others to be put with
SETTLE_ROWS = 1_000  # rows that need not wait: as many as go out in one call
SETTLE_BYTES = 1 << 20  # bytes that need not wait
# Seconds of a look at who has the tables: behind a gateway that hangs, another one can be asked
# before the proof of the look before is over.
LOOK_S_MAX = 2.0
BEHIND_BYTES_MAX = 8 << 20  # bytes of rows in the journal alone, and in memory; writers wait then
BEHIND_COMMITS_MAX = 1_024  # commits that an opened store may have to read; writers wait then

Row = tuple[bytes, bytes | None]
Background = Callable[[Callable[[], None]], object]  # runs it in a thread of its own


class HBaseStores:
    """Opens the store, again and again, for one server.

    Until it holds the tables it takes them over from whoever has them. Later only from itself: a
    server that was cut off must not fight the one that took its place.
    """

    def __init__(
        self,
        settings: HBaseSettings,
        *,
        rows_live_s: int,
        now_ms: Callable[[], int],
        elapsed_s: Callable[[], float],
        in_background: Background,
    ) -> None:
        """`rows_live_s`: how long messages may have to live."""
        self._settings = settings
        self._rows_live_s = rows_live_s
        self._now_ms = now_ms
        self._elapsed_s = elapsed_s
        self._in_background = in_background
        self._addresses = Addresses(settings.addresses())
        self._admin_address = Addresses([settings.admin_address()])
        self._own_claims = OwnClaims()
        self._connections: list[Gateways] = []
        self._is_over = False

    def __call__(self) -> "HBaseStore":
        """Raises: StoreError: HBase can't be reached, or refuses; TakenOverError."""
        connections = [self._gateways(self._addresses)]
        if self._settings.wal == "fsync":
            forced = self._gateways(
                self._admin_address,
                connect=hbase_thrift2.Thrift2Connection,
                answers=hbase_thrift2.ANSWERS,
            )
            connections.append(forced)
        looks = self._gateways(self._addresses, timeout_s=min(LOOK_S_MAX, self._settings.timeout_s))
        connections.append(looks)
        self._connections = connections
        if self._is_over:  # `interrupt` may not have seen them
            self.interrupt()
        try:
            self._require_life(connections[0])
            return HBaseStore(
                connections,
                self._settings,
                self._own_claims,
                now_ms=self._now_ms,
                in_background=self._in_background,
            )
        except BaseException:
            for each in connections:
                each.close()
            raise

    def interrupt(self) -> None:
        """End what is under way with HBase, and let nothing more begin. Any thread may call."""
        self._is_over = True
        for each in self._connections:
            each.interrupt()

    def _require_life(self, gateways: Gateways) -> None:
        """Raises: StoreError: HBase would let rows go before their time."""
        for name in SALTED.values():
            table = self._settings.prefix + name
            live_s = gateways.call(partial(_live_s, table=table.encode()))
            if live_s < self._rows_live_s:
                raise StoreError(
                    f"rows of the table {table} live for {live_s} s, and messages may have to for "
                    f"{self._rows_live_s} s; use `tuff hbase deploy --yes`, or lower "
                    "messaging.max_ttl"
                )

    def _gateways(self, addresses: Addresses, **others: Any) -> Gateways:
        return gateways_of(self._settings, elapsed_s=self._elapsed_s, addresses=addresses, **others)


class HBaseStore:
    """The tables of one prefix, written to by this object alone until somebody takes them over.

    One thread writes; any may read; one in the background puts what stands in the journal alone.
    `_changed` guards what these two share, `_waiting` to `_failure`.
    """

    has_views = False

    def __init__(
        self,
        connections: Sequence[Gateways],
        settings: HBaseSettings,
        own_claims: OwnClaims,
        *,
        now_ms: Callable[[], int],
        in_background: Background,
    ) -> None:
        """`connections`: to Thrift1; to Thrift2, where writes are forced; to Thrift1 for looks at
        who has the tables. `own_claims`: those of this server so far, and a new one joins them."""
        self._connections = connections
        self._gateways = connections[0]
        self._prefix = settings.prefix
        self._in_background = in_background
        self._writes = _writes(connections, settings.wal)
        self._require_enabled()
        self._layout = Layout(self._salt_count())
        self._commits = Commits(self._gateways, self._writes, self._prefix, now_ms=now_ms)
        self._commits.claim(own_claims, self._put)
        self._commits.forget_others(own_claims)
        self._changed = Condition()
        self._enough = Event()
        self._waiting: dict[bytes, bytes | None] = {}  # rows that nobody puts yet
        self._waiting_bytes = 0
        self._newest = (self._commits.number, self._commits.timestamp_ms)  # that they are of
        self._going: dict[bytes, bytes | None] = {}  # rows that are put now
        self._settled = self._commits.number  # commits whose rows are all in the tables
        self._is_settling = False
        self._is_closing = False
        self._failure: Exception | None = None

    def get(self, key: bytes) -> bytes | None:
        self._gateways.require_open()
        with self._changed:
            for rows in (self._waiting, self._going):
                if key in rows:
                    return rows[key]
        table, row = self._layout.place(key)
        cells = self._cells(table, row)
        return value_of(cells) if cells else None

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
        self._gateways.require_open()
        # What is put from now on may stand in both; what is in memory is at least as new.
        with self._changed:
            both = {**self._going, **self._waiting}
            newer = {key: both[key] for key in both if start <= key < stop}
        return self._scan(start, stop, sorted(newer.items(), reverse=reverse), reverse=reverse)

    def approximate_size(self, start: bytes, stop: bytes) -> int:
        """0: the gateways tell nobody how large a range is."""
        del start, stop
        self._gateways.require_open()
        return 0

    def message_regions(self) -> list[str]:
        """The encoded names of the regions that hold messages now. Raises: StoreError."""
        table = self._table(MESSAGE)
        found = self._gateways.call(lambda connection: connection.client.getTableRegions(table))
        return [encoded_name(region.name) for region in found]

    def require_owned(self) -> None:
        """Raises: TakenOverError: another server has the tables; StoreError: nobody can tell."""
        self._commits.require_owned(self._connections[-1])

    def write(self, batch: Sequence[tuple[bytes, bytes | None]]) -> None:
        rows = dict(batch)
        with self._changed:
            self._changed.wait_for(self._has_room)
            self._require_sound()
            first = self._settled + 1
        try:
            self._commits.add(rows, first=first)
        except Exception as error:
            with self._changed:
                self._failure = error  # nothing can go on before this batch is resolved
            raise
        with self._changed:
            self._waiting.update(rows)
            self._waiting_bytes += _size(rows)
            self._newest = (self._commits.number, self._commits.timestamp_ms)
            if len(self._waiting) >= SETTLE_ROWS or self._waiting_bytes >= SETTLE_BYTES:
                self._enough.set()
            begins, self._is_settling = not self._is_settling, True
        if begins:
            self._begin_settling()

    def settle(self) -> None:
        """Wait until all rows are in the tables. Raises: StoreError."""
        self._enough.set()
        with self._changed:
            self._changed.wait_for(lambda: not self._is_settling)
            self._require_sound()

    def close(self) -> None:
        with self._changed:
            self._is_closing = True
            self._enough.set()
            if self._failure is None:
                self._changed.wait_for(lambda: not self._is_settling)
        for each in self._connections:
            each.interrupt()
        with self._changed:
            self._changed.wait_for(lambda: not self._is_settling)
        for each in self._connections:
            each.close()

    def _require_sound(self) -> None:
        if self._failure is not None:
            raise StoreError(f"the store failed before: {self._failure}") from self._failure

    def _begin_settling(self) -> None:
        try:
            self._in_background(self._settle)
        except BaseException:
            with self._changed:
                self._is_settling = False
            raise

    def _has_room(self) -> bool:
        behind = self._newest[0] - self._settled
        is_much = self._waiting_bytes > BEHIND_BYTES_MAX or behind > BEHIND_COMMITS_MAX
        return self._failure is not None or not (is_much and self._is_settling)

    def _settle(self) -> None:
        """Put what waits until nothing does. Runs in the background."""
        while True:
            if not self._is_closing:
                self._enough.wait(SETTLE_AFTER_S)
            with self._changed:
                self._enough.clear()
                rows, self._waiting, self._waiting_bytes = self._waiting, {}, 0
                self._going = rows
                number, timestamp_ms = self._newest
            failure = None
            try:
                self._put(rows, timestamp_ms)
            except Exception as error:  # noqa: BLE001 - the next writer is told, and opens it again
                failure = error
            with self._changed:
                if failure is None:
                    self._going, self._settled = {}, number
                self._failure = self._failure or failure
                self._is_settling = bool(self._waiting) and self._failure is None
                self._changed.notify_all()
                if not self._is_settling:
                    return

    def _scan(self, start: bytes, stop: bytes, newer: Sequence[Row], *, reverse: bool) -> Rows:
        segments = self._layout.segments(start, stop)
        stored = (
            row
            for segment in (reversed(segments) if reverse else segments)
            for row in read(self._gateways, self._prefix, segment, reverse=reverse)
        )
        yield from _merged(stored, newer, reverse=reverse)

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
        with journal_errors("the layout of the tables"):
            return journal.unpack_layout(cells[BODY])

    def _put(self, rows: journal.Rows, timestamp_ms: int) -> None:
        """Put rows into the tables, or delete them there; doing it again changes nothing."""
        by_table: dict[str, list[Change]] = {}
        for key, value in rows.items():
            table, row = self._layout.place(key)
            cells = None if value is None else cells_of(table, value)
            by_table.setdefault(table, []).append((row, cells))
        for table, changes in by_table.items():
            self._writes.change(self._table(table), changes, timestamp_ms=timestamp_ms)

    def _cells(self, name: str, row: bytes) -> Mapping[bytes, bytes]:
        table = self._table(name)
        found = self._gateways.call(lambda connection: connection.client.getRow(table, row, {}))
        return {name: cell.value for name, cell in found[0].columns.items()} if found else {}

    def _table(self, name: str) -> bytes:
        return (self._prefix + name).encode()


def _is_enabled(connection: Connection, *, table: bytes) -> bool:
    return bool(connection.client.isTableEnabled(table))


def _live_s(connection: Connection, *, table: bytes) -> int:
    families = connection.client.getColumnDescriptors(table)
    return min((family.timeToLive for family in families.values()), default=FOREVER_S)


def _writes(connections: Sequence[Gateways], wal: str) -> Writes:
    if wal == "fsync":
        return ForcedWrites(connections[1])
    return LoggedWrites(connections[0])


def _merged(
    stored: Generator[tuple[bytes, bytes], None, None], newer: Sequence[Row], *, reverse: bool
) -> Rows:
    """Stored rows and newer ones, which take the place of those with the same keys."""
    at = 0
    for key, value in stored:
        while at < len(newer) and (newer[at][0] > key if reverse else newer[at][0] < key):
            yield from _present(newer[at])
            at += 1
        if at < len(newer) and newer[at][0] == key:
            yield from _present(newer[at])
            at += 1
        else:
            yield key, value
    for row in newer[at:]:
        yield from _present(row)


def _present(row: Row) -> Rows:
    key, value = row
    if value is not None:
        yield key, value


def _size(rows: Mapping[bytes, bytes | None]) -> int:
    return sum(len(key) + len(value or b"") for key, value in rows.items())
