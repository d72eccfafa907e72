"""The HBase table of a metadata store, reached through Thrift gateways.

    table := PREFIX "cluster", with one family d
    row   := "e/" encoded key | "s/" session id | "numbers"
    cell  := entry (metadata/stored_entry.py), in the column d:e; such a row has one cell

The row "numbers" has a counter in the column d:s, the number of the newest session.

Thrift1 can compare and replace one cell only, so version and value are in the same cell. It is
compared as a whole, and the nonce makes each content unique: a content that was replaced never
comes back.

No row is ever deleted. A deleted row leaves a marker, and the marker hides whatever is put into the
row within the same millisecond. Deleted entries and ended sessions stay as tombstones.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from time import sleep
from typing import Any, TypeVar

from metadata.keys import decode_key, encode_key, range_below
from metadata.store_interface import DamagedEntryError, Key, MetadataUnavailableError
from metadata.stored_entry import Entry
from tuff_storage.disk.locks import StoreError
from tuff_storage.hbase_gateway import (
    Addresses,
    AlreadyExists,
    ClosedError,
    ColumnDescriptor,
    Connection,
    Gateways,
    Mutation,
    TScan,
)

T = TypeVar("T")
Row = tuple[bytes, bytes]  # the row's key, and its cell

TABLE = "cluster"  # behind the prefix
FAMILY, CELL = b"d", b"d:e"
ENTRIES, SESSIONS = b"e/", b"s/"
NUMBERS, SESSION_NUMBER = b"numbers", b"d:s"
FOREVER_S = (1 << 31) - 1  # seconds; HBase's time to live for rows that never expire
# A gateway returns as many rows as a call asks for, whatever their size; 32 MiB, if all entries
# have the greatest size.
PAGE_ROWS = 64
PIECE_BYTES = 2 << 20  # bytes that are read before entries are handed on; then comes a new scanner
PAUSE_S_MIN, PAUSE_S_MAX = 0.05, 0.8  # seconds between the attempts of a call

# The first two bytes of an entry are its format and its flags.
_NOT_A_TOMBSTONE = b"ValueFilter(!=, 'binaryprefix:\x01\x01')"


@dataclass(frozen=True, slots=True, kw_only=True)
class HBaseMetadataSettings:
    """Where the table is, and how long a call may take."""

    addresses: Sequence[tuple[str, int]]  # of Thrift1 gateways, used in turn for new connections
    prefix: str  # of the table's name; "ns:" for a namespace
    call_s: float = 5.0  # seconds for the answer of a gateway; then the next one is asked
    answer_s: float = 15.0  # seconds in which calls are repeated, until the store is unavailable
    idle_s: float = 45.0  # older idle connections are replaced; gateways close them after 60 s

    @property
    def table(self) -> str:
        return self.prefix + TABLE

    def gateways(
        self, *, call_s: float, addresses: Addresses, elapsed_s: Callable[[], float]
    ) -> Gateways:
        """Gateways without a connection yet."""
        return Gateways(
            addresses,
            timeout_s=min(call_s, self.call_s),
            idle_s=self.idle_s,
            elapsed_s=elapsed_s,
        )


@dataclass(frozen=True, slots=True)
class Refused:
    """A compare-and-put found another cell than expected, and wrote nothing."""

    found: bytes | None


class MetadataTable:
    """Reads and replaces cells. Any thread may call.

    Each method repeats its call until a gateway has answered, for `answer_s` at most, and raises
    MetadataUnavailableError when none did.
    """

    def __init__(
        self,
        name: str,
        gateways: Gateways,
        *,
        answer_s: float,
        elapsed_s: Callable[[], float],
    ) -> None:
        self._name = name
        self._table = name.encode()
        self._gateways = gateways
        self._answer_s = answer_s
        self._elapsed_s = elapsed_s

    def require_exists(self) -> None:
        """Raises: MetadataUnavailableError: the table is missing, or has no family d."""
        if not self._answer(self._exists):
            raise MetadataUnavailableError(
                f"HBase has no table {self._name}, in which the servers of a cluster find each "
                "other"
            )
        if not self._answer(lambda client: client.isTableEnabled(self._table)):
            raise MetadataUnavailableError(f"the HBase table {self._name} is disabled; enable it")
        if FAMILY + b":" not in self._answer(
            lambda client: client.getColumnDescriptors(self._table)
        ):
            raise MetadataUnavailableError(
                f"the HBase table {self._name} has no family d, so Tuff did not create it"
            )

    def create(self) -> None:
        """Create the table if there is none, and return once it can be used. Several servers may do
        so at once."""
        family = ColumnDescriptor(
            name=FAMILY + b":",
            maxVersions=1,
            inMemory=True,  # few and small rows, which are read again and again
            bloomFilterType="ROW",
            blockCacheEnabled=True,
            timeToLive=FOREVER_S,
        )

        def create(client: Any) -> None:
            if not self._exists(client):
                # Another server may be faster.
                with suppress(AlreadyExists):
                    client.createTable(self._table, [family])
            if not client.isTableEnabled(self._table):
                raise StoreError(f"the table {self._name} is being created, or is disabled")

        self._answer(create)

    def cell(self, row: bytes) -> bytes | None:
        return self._answer(lambda client: self._cell(client, row))

    def cells(self, rows: Sequence[bytes]) -> dict[bytes, bytes]:
        """The cells of those rows that exist."""
        if not rows:
            return {}
        found = self._answer(lambda client: client.getRows(self._table, list(rows), {}))
        return dict(_rows(found))

    def scan(self, start: bytes, stop: bytes, *, tombstones: bool) -> Iterator[list[Row]]:
        """The rows of `start <= row < stop` in order, in pieces of about PIECE_BYTES; without
        `tombstones`, HBase leaves those out."""
        rows_filter = None if tombstones else _NOT_A_TOMBSTONE
        is_end = False
        while not is_end:
            scan = TScan(
                startRow=start,
                stopRow=stop,
                columns=[CELL],
                caching=PAGE_ROWS,
                filterString=rows_filter,
            )
            rows, is_end = self._answer(partial(self._piece, scan))
            if rows:
                start = rows[-1][0] + b"\x00"
                yield rows

    def replace(self, row: bytes, found: bytes | None, entry: Entry) -> Refused | None:
        """Replace the cell `found` (None: the row does not exist) by this entry, which has the next
        version; None if that is done.

        A gateway whose answer is lost may have replaced it, or may do so later. Only the same cell
        can be replaced, so the attempt is repeated, and the entry's nonce in the table proves that
        one of the attempts succeeded.

        Raises:
            MetadataUnavailableError: the outcome is unknown. One more reason is that an answer was
                lost, and the table has a later version than this entry's meanwhile.
        """
        wanted = entry.to_bytes()
        mutation = Mutation(isDelete=False, column=CELL, value=wanted, writeToWAL=True)
        attempt_count = 0

        def attempt(client: Any) -> Refused | None:
            nonlocal attempt_count
            attempt_count += 1
            if client.checkAndPut(self._table, row, CELL, found, mutation, {}):
                return None
            now = self._cell(client, row)
            if now == wanted:
                return None
            # Another writer wrote this version, so no attempt has succeeded. Or it wrote a later
            # one, and then what it replaced may have been this entry.
            if attempt_count > 1 and _version(now) > entry.version:
                raise _OverwrittenError
            return Refused(now)

        try:
            return self._answer(attempt)
        except _OverwrittenError:
            raise MetadataUnavailableError(
                f"the outcome of a write to the HBase table {self._name} is unknown: a gateway did "
                "not answer, and meanwhile the entry was written again"
            ) from None

    def touch(self, row: bytes, found: bytes) -> bool:
        """Whether the row has this cell now, proved by a write of the same cell.

        A read does not prove it: a region server that was paused, and whose regions have moved
        meanwhile, may answer reads from memory for a moment. It can't write any more.
        """
        mutation = Mutation(isDelete=False, column=CELL, value=found, writeToWAL=True)
        return bool(
            self._answer(
                lambda client: client.checkAndPut(self._table, row, CELL, found, mutation, {})
            )
        )

    def next_session_number(self) -> int:
        """A higher number than any that was returned before. Some may be left out: a call whose
        answer is lost has counted, too."""
        return int(
            self._answer(
                lambda client: client.atomicIncrement(self._table, NUMBERS, SESSION_NUMBER, 1)
            )
        )

    def _exists(self, client: Any) -> bool:
        return self._table in client.getTableNames()

    def _cell(self, client: Any, row: bytes) -> bytes | None:
        found = list(_rows(client.getRow(self._table, row, {})))
        return found[0][1] if found else None

    def _piece(self, scan: Any, client: Any) -> tuple[list[Row], bool]:
        """Rows, and whether they are the last of the scan."""
        scanner = client.scannerOpenWithScan(self._table, scan, {})
        rows: list[Row] = []
        size_bytes = 0
        is_end = False
        while not is_end and size_bytes < PIECE_BYTES:
            page = list(_rows(client.scannerGetList(scanner, PAGE_ROWS)))
            is_end = len(page) < PAGE_ROWS
            size_bytes += sum(len(cell) for _, cell in page)
            rows += page
        client.scannerClose(scanner)
        return rows, is_end

    def _answer(self, work: Callable[[Any], T]) -> T:
        """The result of `work`, which gets a Thrift client, and is called again after failures."""

        def on_connection(connection: Connection) -> T:
            return work(connection.client)

        started_s, pause_s = self._elapsed_s(), PAUSE_S_MIN
        while True:
            try:
                return self._gateways.call_once(on_connection)
            except ClosedError:
                raise MetadataUnavailableError("the metadata store is closed") from None
            except StoreError as error:
                # Also an answered error may hide a write: the gateway itself waits for the region
                # server in vain. So no error of a gateway is final.
                if self._elapsed_s() + pause_s - started_s > self._answer_s:
                    raise MetadataUnavailableError(
                        f"the metadata store in HBase is unavailable: {error}"
                    ) from error
            sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)


class _OverwrittenError(Exception):
    """It is unknown whether the entry was in the table."""


def entry_row(key: Key) -> bytes:
    """Raises: ValueError: it is not a key."""
    return ENTRIES + encode_key(key).encode()


def session_row(session_id: str) -> bytes:
    return SESSIONS + session_id.encode()


def rows_below(prefix: Key) -> tuple[bytes, bytes]:
    """Start and stop of the rows of all keys below a prefix. Raises: ValueError."""
    start, stop = range_below(prefix)
    return ENTRIES + start.encode(), ENTRIES + stop.encode()


def key_of(row: bytes) -> Key:
    """Raises: DamagedEntryError: it is not the row of an entry."""
    try:
        return decode_key(row.removeprefix(ENTRIES).decode())
    except ValueError as error:
        raise DamagedEntryError(f"the metadata store has a row without a key: {error}") from None


def _rows(found: Iterable[Any]) -> Iterator[Row]:
    for each in found:
        if CELL in each.columns:
            yield each.row, each.columns[CELL].value


def _version(cell: bytes | None) -> int:
    return 0 if cell is None else Entry.from_bytes(cell, ("?",)).version
