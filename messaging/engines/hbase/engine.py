"""The HBase engine, through Thrift gateways (design §5, Engine interface; decisions 0023 and 0029).

HBase is atomic for single rows only, so every batch is written twice. First the whole batch is
written to one cell of the journal, which commits it. Then a background thread puts its rows into
the tables, together with rows of other batches, while later batches are committed. Until then, rows
are read from memory. An opening puts the rows of all commits again that may be missing from the
tables. That is idempotent, since cells have the timestamp of their batch, and HBase returns the
newest cell. A scan is not a consistent snapshot; above this interface, readers stop at the
high-water mark.

The servers of a cluster share the tables. Each incarnation of a server has a journal of its own,
and any server can fence another one by taking its journal over (decision 0042).
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from threading import Condition, Event

from kernel.event_loop import InBackground
from kernel.owner_floor import Floor, Identity
from messaging.engines.engine_interface import (
    Chunks,
    Corruption,
    Rows,
    StoreError,
    TakenOverError,
    in_chunks,
)
from messaging.engines.hbase import journal
from messaging.engines.hbase.connections_and_writes import (
    Change,
    StoreConnections,
    Writes,
    regions_of,
)
from messaging.engines.hbase.journal import (
    Journal,
    OwnClaims,
    StoredLayout,
    journal_errors,
    journal_name,
)
from messaging.engines.hbase.layout import (
    BODY,
    JOURNAL,
    MESSAGE,
    SALTED,
    TABLES,
    Layout,
    RowRange,
    cells_of,
    encoded_name,
    value_of,
)
from messaging.engines.hbase.scan import COUNT_FEW, COUNT_MANY, read
from messaging.engines.hbase.settings import FOREVER_S, HBaseSettings
from messaging.model.row_format import (
    LAST_BATCH_KEY,
    METADATA_KEY,
    LastBatch,
    StoreMetadata,
    prefix_stop,
)
from tuff_storage.hbase_gateway import Addresses, Connection, Gateways, Mutation

FLUSH_AFTER_S = 0.05  # seconds that rows wait for others, to be put together
FLUSH_ROWS = 1_000  # rows that are put at once; as many as fit into one call
FLUSH_BYTES = 1 << 20  # bytes that are put at once
BEHIND_BYTES_MAX = 8 << 20  # bytes of rows that are not in the tables yet; then writers wait
BEHIND_COMMITS_MAX = 1_024  # commits that an opening has to read; then writers wait
FENCE_ATTEMPTS_MAX = 10  # each failure but the last is the success of another server

Row = tuple[bytes, bytes | None]


class HBaseOpener:
    """Opens the store for one server, and reopens it after failures.

    The first opening takes the tables over from the server that has them. After that, this server
    reopens them only if no other server took them over: a server that was replaced must not take
    them back.
    """

    def __init__(
        self,
        settings: HBaseSettings,
        *,
        rows_live_s: int,
        now_ms: Callable[[], int],
        elapsed_s: Callable[[], float],
        in_background: InBackground,
    ) -> None:
        """`rows_live_s`: the longest time that messages may have to be kept, in seconds."""
        self.member: Identity | None = None  # this server in its cluster; None for a single server
        self.was_replaced = False  # another server took the tables over, or fenced this one
        self._settings = settings
        self._rows_live_s = rows_live_s
        self._now_ms = now_ms
        self._elapsed_s = elapsed_s
        self._in_background = in_background
        self._addresses = Addresses(settings.addresses())
        self._admin_address = Addresses([settings.admin_address()])
        self._own_claims = OwnClaims()
        self._connections: StoreConnections | None = None
        self._is_interrupted = False

    def __call__(self) -> "HBaseStore":
        """Raises: StoreError: HBase can't be reached, or refuses the call; TakenOverError."""
        connections = self._connections = self._connected()
        if self._is_interrupted:  # `interrupt` may have run before these connections existed
            self.interrupt()
        try:
            self._require_time_to_live(connections.gateways)
            return HBaseStore(
                connections,
                self._settings,
                self._own_claims,
                now_ms=self._now_ms,
                in_background=self._in_background,
                member=self.member,
            )
        except BaseException as error:
            self.was_replaced |= isinstance(error, TakenOverError)
            connections.close()
            raise

    def fence(self, server_id: str, incarnation: int) -> Floor:
        """Take the journal of another server over, so that it can commit nothing any more, and put
        the rows that it committed. Any thread and any server may call, also at the same time;
        repeating it is harmless.

        Raises: StoreError: it may or may not be fenced.
        """
        name = journal_name(server_id, incarnation)
        with closing(self._connected()) as connections:
            for _ in range(FENCE_ATTEMPTS_MAX - 1):
                # A third server that fences it takes a later slot, before this one is done.
                with suppress(TakenOverError):
                    return self._fence(connections, name)
            return self._fence(connections, name)

    def _fence(self, connections: StoreConnections, name: bytes) -> Floor:
        gateways, writes, prefix = connections.gateways, connections.writes, self._settings.prefix
        tables = _Tables(gateways, writes, prefix, name=name)
        commits = Journal(gateways, writes, prefix, now_ms=self._now_ms, name=name)
        claims = OwnClaims()
        commits.claim(claims, tables.put)
        commits.forget_others(claims)
        value = tables.get(LAST_BATCH_KEY)
        last = LastBatch.from_bytes(LAST_BATCH_KEY, value) if value else LastBatch()
        value = tables.get(METADATA_KEY)
        metadata = StoreMetadata.from_bytes(METADATA_KEY, value) if value else StoreMetadata()
        return Floor(last.last, commits.timestamp_ms, metadata.longest_transaction_ms)

    def adopt(self, cluster_id: str) -> None:
        """Make sure that the tables belong to this cluster; tables without any commit are adopted.

        Raises: StoreError: they belong to another one or to a single server.
        """
        with closing(self._connected()) as connections:
            _adopt(connections.gateways, self._settings.prefix, cluster_id)

    def interrupt(self) -> None:
        """End the calls in flight to HBase, and refuse all later ones. Any thread may call."""
        self._is_interrupted = True
        if self._connections is not None:
            self._connections.interrupt()

    def _connected(self) -> StoreConnections:
        return StoreConnections(
            self._settings, self._addresses, self._admin_address, elapsed_s=self._elapsed_s
        )

    def _require_time_to_live(self, gateways: Gateways) -> None:
        """Raises: StoreError: the tables' time to live is too short."""
        for name in SALTED.values():
            table = self._settings.prefix + name
            live_s = gateways.call(partial(_time_to_live_s, table=table.encode()))
            if live_s < self._rows_live_s:
                raise StoreError(
                    f"rows of the table {table} live for {live_s} s, and messages may have to for "
                    f"{self._rows_live_s} s; use `tuff hbase deploy --yes`, or lower "
                    "messaging.max_ttl"
                )


class HBaseStore:
    """The tables of one prefix. Only this object writes to them, until another server takes over.

    One thread writes to the journal, any thread may read, and a background thread puts rows into
    the tables. `_changed` guards the fields that the writer and the background thread share, from
    `_waiting` to `_failure`.
    """

    has_views = False
    packs_rows = False  # the observers of region servers delete rows one by one

    def __init__(
        self,
        connections: StoreConnections,
        settings: HBaseSettings,
        own_claims: OwnClaims,
        *,
        now_ms: Callable[[], int],
        in_background: InBackground,
        member: Identity | None,
    ) -> None:
        """`own_claims`: the claims of this server; a new one is added."""
        self._connections = connections
        self._gateways = gateways = connections.gateways
        self._prefix = settings.prefix
        self._in_background = in_background
        self._require_enabled()
        name, cluster_id = b"", None
        if member is not None:
            name, cluster_id = journal_name(member.server_id, member.incarnation), member.cluster_id
        self._tables = _Tables(gateways, connections.writes, self._prefix, name=name)
        _require_cluster(self._tables.stored_layout, self._prefix, cluster_id)
        self._commits = Journal(
            gateways,
            connections.writes,
            self._prefix,
            now_ms=now_ms,
            name=name,
            is_first=member is not None,
        )
        self._commits.claim(own_claims, self._tables.put)
        # Again: a cluster may have adopted the tables between the first look and the claim.
        _require_cluster(_stored_layout(gateways, self._prefix), self._prefix, cluster_id)
        self._commits.forget_others(own_claims)
        self._changed = Condition()
        self._enough = Event()
        self._waiting: dict[bytes, bytes | None] = {}  # rows that still have to be put
        self._waiting_bytes = 0
        self._newest = (self._commits.number, self._commits.timestamp_ms)  # newest commit of these
        self._going: dict[bytes, bytes | None] = {}  # rows that are being put
        self._flushed = self._commits.number  # the rows up to this commit are in the tables
        self._is_flushing = False
        self._is_closing = False
        self._failure: Exception | None = None

    def get(self, key: bytes) -> bytes | None:
        self._gateways.require_open()
        with self._changed:
            for rows in (self._waiting, self._going):
                if key in rows:
                    return rows[key]
        return self._tables.get(key)

    def scan(
        self,
        start: bytes,
        stop: bytes,
        *,
        reverse: bool = False,
        corruption: Corruption = Corruption.PASS,
    ) -> Chunks:
        del corruption  # HBase checks its files by itself
        self._gateways.require_open()
        # Where a row is in memory and in the tables, the one in memory is at least as new.
        with self._changed:
            both = {**self._going, **self._waiting}
            newer = {key: both[key] for key in both if start <= key < stop}
        rows = sorted(newer.items(), reverse=reverse)
        # As many as the first answers of a gateway have: a page asks for no answer that it leaves.
        first_counts = (1, COUNT_FEW - 1, COUNT_MANY)
        return in_chunks(self._scan(start, stop, rows, reverse=reverse), first_counts=first_counts)

    def approximate_size(self, start: bytes, stop: bytes) -> int:
        """0: the gateways don't report sizes of ranges."""
        del start, stop
        self._gateways.require_open()
        return 0

    def message_regions(self) -> list[str]:
        """The encoded names of the regions of the message table. Raises: StoreError."""
        table = _table(self._prefix, MESSAGE)
        return [encoded_name(region.name) for region in regions_of(self._gateways, table)]

    def require_owned(self) -> None:
        """Raises: TakenOverError: another server has the tables; StoreError: HBase can't tell."""
        self._commits.require_owned(self._connections.checks)

    def write(self, batch: Sequence[tuple[bytes, bytes | None]]) -> None:
        rows = dict(batch)
        with self._changed:
            self._changed.wait_for(self._has_room)
            self._require_sound()
            first = self._flushed + 1
        try:
            self._commits.add(rows, first=first)
        except Exception as error:
            with self._changed:
                self._failure = error  # a reopening has to find out the outcome of this batch
            raise
        with self._changed:
            self._waiting.update(rows)
            self._waiting_bytes += _size(rows)
            self._newest = (self._commits.number, self._commits.timestamp_ms)
            if len(self._waiting) >= FLUSH_ROWS or self._waiting_bytes >= FLUSH_BYTES:
                self._enough.set()
            begins, self._is_flushing = not self._is_flushing, True
        if begins:
            self._begin_flush()

    @property
    def cell_ms(self) -> int:
        """The timestamp in ms of the newest cells of this server."""
        return self._commits.timestamp_ms

    def raise_time(self, floor_ms: int) -> None:
        """Give all cells that are written from now on a timestamp above this one."""
        self._commits.raise_time(floor_ms)

    def wait_until_shared(self) -> None:
        """Wait until everything that was written before this call is in the tables. Raises:
        StoreError."""
        self._enough.set()
        with self._changed:
            number = self._newest[0]
            self._changed.wait_for(lambda: self._flushed >= number or self._failure is not None)
            self._require_sound()

    def close(self) -> None:
        with self._changed:
            self._is_closing = True
            self._enough.set()
            if self._failure is None:
                self._changed.wait_for(lambda: not self._is_flushing)
        self._connections.interrupt()
        with self._changed:
            self._changed.wait_for(lambda: not self._is_flushing)
        self._connections.close()

    def _require_sound(self) -> None:
        if self._failure is not None:
            raise StoreError(f"the store failed before: {self._failure}") from self._failure

    def _begin_flush(self) -> None:
        try:
            self._in_background(self._flush)
        except BaseException:
            with self._changed:
                self._is_flushing = False
            raise

    def _has_room(self) -> bool:
        behind = self._newest[0] - self._flushed
        is_much = self._waiting_bytes > BEHIND_BYTES_MAX or behind > BEHIND_COMMITS_MAX
        return self._failure is not None or not (is_much and self._is_flushing)

    def _flush(self) -> None:
        """Put waiting rows into the tables until none is left. Runs in the background thread."""
        while True:
            if not self._is_closing:
                self._enough.wait(FLUSH_AFTER_S)
            with self._changed:
                self._enough.clear()
                rows, self._waiting, self._waiting_bytes = self._waiting, {}, 0
                self._going = rows
                number, timestamp_ms = self._newest
            failure = None
            try:
                self._tables.put(rows, timestamp_ms)
            except Exception as error:  # noqa: BLE001 - the next write raises it, and the store is reopened
                failure = error
            with self._changed:
                if failure is None:
                    self._going, self._flushed = {}, number
                self._failure = self._failure or failure
                self._is_flushing = bool(self._waiting) and self._failure is None
                self._changed.notify_all()
                if not self._is_flushing:
                    return

    def _scan(self, start: bytes, stop: bytes, newer: Sequence[Row], *, reverse: bool) -> Rows:
        segments = self._tables.layout.segments(start, stop)
        stored = (
            row
            for segment in (reversed(segments) if reverse else segments)
            for row in read(self._gateways, self._prefix, segment, reverse=reverse)
        )
        yield from _merged(stored, newer, reverse=reverse)

    def _require_enabled(self) -> None:
        # A gateway retries a put to a disabled table until its time-out, and never reports the
        # reason.
        for name in TABLES:
            table = _table(self._prefix, name)
            if not self._gateways.call(partial(_is_enabled, table=table)):
                raise StoreError(
                    f"HBase refuses: the table {table.decode()} is disabled; enable it"
                )


class _Tables:
    """The rows of the tables, by their keys. Any thread may call."""

    def __init__(self, gateways: Gateways, writes: Writes, prefix: str, *, name: bytes) -> None:
        """`name`: of the journal. Raises: StoreError."""
        self._gateways = gateways
        self._writes = writes
        self._prefix = prefix
        self.stored_layout = _stored_layout(gateways, prefix)
        self.layout = Layout(self.stored_layout.salt_count, name=name)

    def get(self, key: bytes) -> bytes | None:
        """The value under a key. Raises: StoreError."""
        table, row = self.layout.place(key)
        cells = _cells(self._gateways, self._prefix, table, row)
        return value_of(cells) if cells else None

    def put(self, rows: journal.Rows, timestamp_ms: int) -> None:
        """Put rows, or delete those without a value. Idempotent. Raises: StoreError."""
        by_table: dict[str, list[Change]] = {}
        for key, value in rows.items():
            table, row = self.layout.place(key)
            cells = None if value is None else cells_of(table, value)
            by_table.setdefault(table, []).append((row, cells))
        for name, changes in by_table.items():
            self._writes.change(_table(self._prefix, name), changes, timestamp_ms=timestamp_ms)


def _require_cluster(stored: StoredLayout, prefix: str, wanted: str | None) -> None:
    if stored.cluster_id == wanted:
        return
    cluster = _cluster_text(stored.cluster_id)
    if wanted is None:
        advice = "start it with the settings [cluster] of that cluster"
    else:
        advice = f"correct cluster.metadata, which leads to those of the cluster {wanted}"
    raise StoreError(
        f"the tables {prefix}* belong to {cluster}: {advice}, or name other tables in hbase.prefix"
    )


def _cluster_text(cluster_id: str | None) -> str:
    return "a single server" if cluster_id is None else f"the cluster {cluster_id}"


def _adopt(gateways: Gateways, prefix: str, cluster_id: str) -> None:
    stored = _stored_layout(gateways, prefix)
    if stored.cluster_id is None:
        _require_no_commits(gateways, prefix)
        wanted = StoredLayout(stored.salt_count, cluster_id)
        mutation = Mutation(isDelete=False, column=BODY, value=wanted.to_bytes(), writeToWAL=True)
        gateways.call(
            lambda connection: connection.client.checkAndPut(
                _table(prefix, JOURNAL), journal.LAYOUT_ROW, BODY, stored.to_bytes(), mutation, {}
            )
        )
        stored = _stored_layout(gateways, prefix)
        # Again: a single server that looked at the layout before it changed may have begun.
        _require_no_commits(gateways, prefix)
    _require_cluster(stored, prefix, cluster_id)


def _require_no_commits(gateways: Gateways, prefix: str) -> None:
    slots = RowRange(JOURNAL, journal.SLOTS, prefix_stop(journal.SLOTS))
    for _ in read(gateways, prefix, [slots], reverse=True):
        raise StoreError(
            f"the tables {prefix}* belong to a single server, and a cluster can't take them over: "
            "name tables in hbase.prefix that were made for the cluster"
        )


def _stored_layout(gateways: Gateways, prefix: str) -> StoredLayout:
    cells = _cells(gateways, prefix, JOURNAL, journal.LAYOUT_ROW)
    if not cells:
        raise StoreError(f"the tables {prefix}* are not prepared; use `tuff hbase deploy`")
    with journal_errors("the layout of the tables"):
        return StoredLayout.from_bytes(cells[BODY])


def _cells(gateways: Gateways, prefix: str, name: str, row: bytes) -> Mapping[bytes, bytes]:
    table = _table(prefix, name)
    found = gateways.call(lambda connection: connection.client.getRow(table, row, {}))
    return {name: cell.value for name, cell in found[0].columns.items()} if found else {}


def _table(prefix: str, name: str) -> bytes:
    return (prefix + name).encode()


def _is_enabled(connection: Connection, *, table: bytes) -> bool:
    return bool(connection.client.isTableEnabled(table))


def _time_to_live_s(connection: Connection, *, table: bytes) -> int:
    families = connection.client.getColumnDescriptors(table)
    return min((family.timeToLive for family in families.values()), default=FOREVER_S)


def _merged(
    stored: Generator[tuple[bytes, bytes], None, None], newer: Sequence[Row], *, reverse: bool
) -> Rows:
    """Stored rows merged with newer rows, which replace stored rows of the same keys."""
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
