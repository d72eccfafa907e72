"""The journal in HBase: every batch in one cell, before its rows are put (decision 0023).

    slot row   := name "j" number(8)                      d:p is one commit, or a server's claim
    chunk row  := name "c" token(16) number(8) index(4)   d:p is a piece of a body, of a large one
    name       := nothing, or in a cluster "i" server_id ":" incarnation(8)
    layout row := "layout"                                d:p is JSON: format, salts, [cluster]
    commit     := format(1) crc(4) token(16) timestamp(8) first(8) chunks(4) length(2)
                  holder(length) body
    body       := (key_length(4) value_length(4) key value)*      no value: a length of 2^32 - 1

Slot numbers rise by one. A compare-and-put writes a slot only if it is empty; the server that
writes it has committed, and a server that comes second is refused. Timestamps rise, too. A cell has
the timestamp of its commit or of a later one, so of cells that are written late or twice, HBase
returns the newest. The rows of all slots before `first` are in the tables; the commits from `first`
to this one have all rows that may be missing. The CRC covers everything behind it, and the body if
that is in chunks.

A server takes the tables over by writing a claim, a commit without rows, into the next slot. It
thereby fences off the server before it, whose next slot is taken. Slots whose rows are in the
tables are deleted, but recent claims stay: a replaced server that wakes up late still finds its
next slot taken by a claim.

In a cluster each incarnation of a server has a journal of its own, by its name. Its first claim is
the first slot ever: if another server was there before, that one has fenced it (decision 0042).
"""

import json
import logging
import os
import secrets
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from messaging.engines.engine_interface import StoreDamagedError, TakenOverError
from messaging.engines.hbase.connections_and_writes import Writes
from messaging.engines.hbase.layout import BODY, JOURNAL, RowRange
from messaging.engines.hbase.scan import keys_with_sizes, read
from messaging.model.row_format import prefix_stop
from tuff_storage.checksum import crc32
from tuff_storage.hbase_gateway import Gateways

log = logging.getLogger(__name__)

FORMAT = 1
CLUSTER_FORMAT = 2  # of the layout of a cluster's tables, which a single server must not open
CHUNK_BYTES = 4 << 20  # bytes; HBase's default limit for a cell is 10 MB
LAYOUT_ROW = b"layout"
SLOTS, CHUNKS = b"j", b"c"
TOKEN_SIZE = 16  # bytes
HOLDER_BYTES_MAX = 89  # bytes
TRIM_SLOTS = 64  # commits between two deletions of old ones
TRIM_BYTES = 32 << 20  # bytes of them
CLAIM_KEPT_MS = 30 * 86_400_000  # longer than any replaced server stays suspended

_HEAD = struct.Struct(">BI")
_FIELDS = struct.Struct(">16sQQIH")
_LENGTHS = struct.Struct(">II")
_NUMBER = struct.Struct(">Q")
_CHUNK = struct.Struct(">16sQI")
assert (_HEAD.size, _FIELDS.size, _LENGTHS.size, _CHUNK.size) == (5, 38, 8, 28)
_NO_VALUE = 0xFFFFFFFF
CLAIM_BYTES_MAX = _HEAD.size + _FIELDS.size + HOLDER_BYTES_MAX  # bytes of a cell without a body

Rows = Mapping[bytes, bytes | None]


class DamagedJournalError(Exception):
    """A commit is corrupt; the text says what is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The content of one slot; without rows it is a claim. `holder` names the server for people."""

    token: bytes
    timestamp_ms: int
    first: int
    holder: str
    rows: Rows


class OwnClaims:
    """The claims of one server, kept from one opening of the store to the next.

    A claim whose write was not acknowledged may be in the journal nevertheless.
    """

    def __init__(self) -> None:
        self.tokens: set[bytes] = set()  # of all claims, also unacknowledged ones
        # The first claim of ours that was the newest commit; None: none was. All slots behind it
        # are ours until another server takes the tables over; we never take them back from it.
        self.taken_since: int | None = None

    def take(self, number: int) -> None:
        """The claim in this slot is the newest commit."""
        if self.taken_since is None:
            self.taken_since = number


class _Slot(NamedTuple):
    """A slot that was read from the journal."""

    number: int
    cell: bytes


class _WrittenSlot(NamedTuple):
    """A slot that this server wrote, with the rows and bytes of its chunks."""

    number: int
    rows: list[bytes]
    size_bytes: int


class Journal:
    """A journal, for one thread; any thread may call `require_owned` and `raise_time`.

    `name` is empty for the one journal of a single server. `is_first`: nobody but this server may
    have written to it.
    """

    def __init__(
        self,
        gateways: Gateways,
        writes: Writes,
        prefix: str,
        *,
        now_ms: Callable[[], int],
        name: bytes = b"",
        is_first: bool = False,
    ) -> None:
        self._name = name
        self._slots, self._chunks = name + SLOTS, name + CHUNKS
        self._is_first = is_first
        self._time_floor_ms = 0
        self._gateways = gateways
        self._writes = writes
        self._prefix = prefix
        self._table = (prefix + JOURNAL).encode()
        self._token = secrets.token_bytes(TOKEN_SIZE)
        self._now_ms = now_ms
        self._holder = f"process {os.getpid()} on {socket.gethostname()}"
        self._written: deque[_WrittenSlot] = deque()  # and not deleted, in order
        self.number = 0
        self.timestamp_ms = 0

    def claim(self, own: OwnClaims, put: Callable[[Rows, int], None]) -> None:
        """Take the tables over: after this, no earlier server can commit any more.

        `put` puts rows with a timestamp; `own`: this server's claims so far; the new one is added.

        Raises: StoreError, TakenOverError.
        """
        newest = self._take_over(own)
        if newest is not None:
            put(self._require_missing(newest), newest.timestamp_ms)
        # This second claim records that all rows are in the tables, so older slots can be deleted.
        self.add({}, first=self.number + 2)
        log.info("took the tables %s* over at commit %d", self._prefix, self.number)

    def _take_over(self, own: OwnClaims) -> Commit | None:
        """Take the slot behind the newest commit, and return that commit.

        Between finding the newest commit and taking the slot behind it, this only reads the commit.
        With more work in between, a server that still writes would always take that slot first.
        """
        own.tokens.add(self._token)
        while True:
            newest, commit = self._newest(), None
            if newest is not None:
                try:
                    commit = self._commit(newest)
                except StoreDamagedError:
                    if self._newest() == newest:
                        raise
                    continue  # its chunks were deleted, since later commits came
                self._require_not_replaced(newest.number, commit, own)
                self.number, self.timestamp_ms = newest.number, commit.timestamp_ms
            # The slot may be empty because it was deleted: another server took many slots
            # meanwhile.
            if self._take({}, first=commit.first if commit else 1) and self._is_newest():
                own.take(self.number)
                return commit

    def _require_not_replaced(self, number: int, newest: Commit, own: OwnClaims) -> None:
        if newest.token in own.tokens:
            own.take(number)
        elif own.taken_since is not None or self._is_first:
            raise TakenOverError(
                f"another server, {newest.holder}, has taken the tables {self._prefix}* over; stop "
                "one of the two"
            )

    def _is_newest(self) -> bool:
        newest = self._newest()
        return newest is not None and newest.number == self.number

    def _require_newest(self) -> None:
        newest = self._newest()
        if newest is not None and newest.number > self.number:
            raise self._taken_over()

    def _taken_over(self) -> TakenOverError:
        return TakenOverError(f"another server has taken the tables {self._prefix}* over")

    def raise_time(self, floor_ms: int) -> None:
        """Give all later commits a timestamp above this one, in ms."""
        self._time_floor_ms = max(self._time_floor_ms, floor_ms)

    def add(self, rows: Rows, *, first: int) -> None:
        """Commit a batch; the rows of all slots before `first` are in the tables.

        Raises:
            TakenOverError: the batch is not committed, and never will be.
            StoreError: the outcome is unknown.
        """
        if not self._take(rows, first=first):
            raise self._taken_over()
        old_sizes = [slot.size_bytes for slot in self._written if slot.number < first]
        if len(old_sizes) >= TRIM_SLOTS or sum(old_sizes) > TRIM_BYTES:
            self._trim(first)

    def require_owned(self, gateways: Gateways) -> None:
        """Check through these gateways whether another server has taken a slot behind ours.

        Raises: TakenOverError; StoreError: HBase can't tell now.
        """
        behind = RowRange(JOURNAL, self._slot_row(self.number + 1), prefix_stop(self._slots))
        for found in keys_with_sizes(gateways, self._prefix, behind):
            number = slot_number(found.row)
            # The writing thread may have taken slots meanwhile, and not updated `number` yet.
            if number > self.number and not self._is_ours(found.row, gateways):
                raise self._taken_over()

    def _is_ours(self, slot: bytes, gateways: Gateways) -> bool:
        found = gateways.call(lambda connection: connection.client.getRow(self._table, slot, {}))
        number = slot_number(slot)
        if not found:  # this server deleted it, since many slots followed
            return number <= self.number
        with journal_errors(f"commit {number}"):
            return token_of(found[0].columns[BODY].value) == self._token

    def forget_others(self, own: OwnClaims) -> None:
        """Delete all slots and chunks before our claim, except recent claims of other servers.

        Raises: StoreError.
        """
        assert own.taken_since is not None
        chunks = RowRange(JOURNAL, self._chunks, prefix_stop(self._chunks))
        slots = RowRange(JOURNAL, self._slots, self._slot_row(self.number))
        recent_ms = self._now_ms() - CLAIM_KEPT_MS
        # Only older chunks than our claim: a server that takes over right now writes chunks, too.
        old = [
            found.row
            for found in keys_with_sizes(self._gateways, self._prefix, chunks)
            if chunk_number(found.row) < self.number
        ]
        old += [
            found.row
            for found in keys_with_sizes(self._gateways, self._prefix, slots)
            if found.size_bytes > CLAIM_BYTES_MAX
            or found.timestamp_ms < recent_ms
            or slot_number(found.row) > own.taken_since
        ]
        self._delete(old)

    def _take(self, rows: Rows, *, first: int) -> bool:
        """Write the next slot; False if another server did.

        Raises: StoreError: the outcome is unknown.
        """
        number = self.number + 1
        timestamp_ms = max(self._now_ms(), self.timestamp_ms + 1, self._time_floor_ms + 1)
        commit = Commit(
            token=self._token,
            timestamp_ms=timestamp_ms,
            first=first,
            holder=self._holder,
            rows=rows,
        )
        cell, chunks = pack(commit)
        chunk_rows = [
            self._chunk_row(number, index, token=self._token) for index in range(len(chunks))
        ]
        self._writes.change(
            self._table,
            [(row, {BODY: chunk}) for row, chunk in zip(chunk_rows, chunks, strict=True)],
        )
        row = self._slot_row(number)
        if not self._writes.put_if_absent(self._table, row, cell):
            return False
        self.number, self.timestamp_ms = number, timestamp_ms
        if rows:
            size_bytes = len(cell) + sum(map(len, chunks))
            self._written.append(_WrittenSlot(number, [*chunk_rows, row], size_bytes))
        return True

    def _trim(self, first: int) -> None:
        gone = []
        while self._written and self._written[0].number < first:
            gone += self._written.popleft().rows
        self._delete(gone)

    def _delete(self, rows: list[bytes]) -> None:
        self._writes.change(self._table, [(row, None) for row in rows])

    def _newest(self) -> _Slot | None:
        everything = RowRange(JOURNAL, self._slots, prefix_stop(self._slots))
        for row, cell in read(self._gateways, self._prefix, [everything], reverse=True):
            return _Slot(slot_number(row), cell)
        return None

    def _require_missing(self, newest: Commit) -> Rows:
        try:
            return self._missing(newest)
        except StoreDamagedError:
            self._require_newest()  # a server that takes over from us deletes what we read
            raise

    def _missing(self, newest: Commit) -> Rows:
        """The rows that may be missing from the tables, of all commits before our claim."""
        number = self.number - 1
        rows: dict[bytes, bytes | None] = {}
        if newest.first < number:
            since = RowRange(JOURNAL, self._slot_row(newest.first), self._slot_row(number))
            found = [
                _Slot(slot_number(row), cell)
                for row, cell in read(self._gateways, self._prefix, [since], reverse=False)
            ]
            lacking = number - newest.first - len(found)
            if lacking:
                raise StoreDamagedError(
                    f"HBase's journal table lacks {lacking} of the commits {newest.first} to "
                    f"{number}"
                )
            for slot in found:
                rows.update(self._commit(slot).rows)
        rows.update(newest.rows)
        return rows

    def _commit(self, slot: _Slot) -> Commit:
        with journal_errors(f"commit {slot.number}"):
            token, count = token_of(slot.cell), chunk_count(slot.cell)
            pieces: Mapping[bytes, bytes] = {}
            if count:
                start = self._chunk_row(slot.number, 0, token=token)
                behind = self._chunk_row(slot.number, count, token=token)
                segment = [RowRange(JOURNAL, start, behind)]
                pieces = dict(read(self._gateways, self._prefix, segment, reverse=False))
            return unpack(slot.cell, [pieces[row] for row in sorted(pieces)])

    def _slot_row(self, number: int) -> bytes:
        return slot_row(self._name, number)

    def _chunk_row(self, number: int, index: int, *, token: bytes) -> bytes:
        return self._name + CHUNKS + _CHUNK.pack(token, number, index)


def slot_row(name: bytes, number: int) -> bytes:
    return name + SLOTS + _NUMBER.pack(number)


def slot_number(row: bytes) -> int:
    """The number at the end of a slot's row."""
    return int(_NUMBER.unpack(row[-_NUMBER.size :])[0])


def chunk_number(row: bytes) -> int:
    """The number of the slot that a chunk was written for."""
    return int(_CHUNK.unpack(row[-_CHUNK.size :])[1])


def journal_name(server_id: str, incarnation: int) -> bytes:
    """What the rows of the journal of this incarnation begin with."""
    return b"i" + server_id.encode() + b":" + _NUMBER.pack(incarnation)


def pack(commit: Commit) -> tuple[bytes, list[bytes]]:
    """The cell of the slot, and the chunks that must be written before it."""
    body = b"".join(_pack_rows(commit.rows))
    chunks = []
    if len(body) > CHUNK_BYTES:
        chunks = [body[at : at + CHUNK_BYTES] for at in range(0, len(body), CHUNK_BYTES)]
    holder = commit.holder.encode()[:HOLDER_BYTES_MAX]
    fields = _FIELDS.pack(commit.token, commit.timestamp_ms, commit.first, len(chunks), len(holder))
    rest = b"".join((fields, holder, b"" if chunks else body))
    crc = crc32(body, crc32(rest)) if chunks else crc32(rest)
    return _HEAD.pack(FORMAT, crc) + rest, chunks


def chunk_count(cell: bytes) -> int:
    """How many chunks a slot's cell refers to. Raises: DamagedJournalError."""
    return _fields(cell)[3]


def token_of(cell: bytes) -> bytes:
    """The token of the server that wrote a slot. Raises: DamagedJournalError."""
    return _fields(cell)[0]


def unpack(cell: bytes, chunks: Iterable[bytes] = ()) -> Commit:
    """Raises: DamagedJournalError."""
    token, timestamp_ms, first, count, length = _fields(cell)
    pieces = b"".join(chunks)
    _, expected = _HEAD.unpack_from(cell)
    if crc32(pieces, crc32(cell[_HEAD.size :])) != expected:
        raise DamagedJournalError("its checksum does not match")
    start = _HEAD.size + _FIELDS.size
    holder, body = cell[start : start + length].decode(errors="replace"), cell[start + length :]
    rows = dict(_unpack_rows(pieces if count else body))
    return Commit(token=token, timestamp_ms=timestamp_ms, first=first, holder=holder, rows=rows)


@dataclass(frozen=True, slots=True)
class StoredLayout:
    """The layout of the tables: the number of salts, and the id of the cluster that they belong to;
    None for the tables of a single server."""

    salt_count: int
    cluster_id: str | None = None

    def to_bytes(self) -> bytes:
        """The value of the layout row."""
        if self.cluster_id is None:
            return json.dumps({"format": FORMAT, "salts": self.salt_count}).encode()
        body = {"format": CLUSTER_FORMAT, "salts": self.salt_count, "cluster": self.cluster_id}
        return json.dumps(body).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> "StoredLayout":
        """Raises: DamagedJournalError."""
        try:
            found = json.loads(value)
            written, salts = found["format"], found["salts"]
            cluster_id = found["cluster"] if written == CLUSTER_FORMAT else None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DamagedJournalError(f"{value[:40]!r} is not a layout") from None
        if written not in (FORMAT, CLUSTER_FORMAT):
            raise DamagedJournalError(
                f"the tables are of format {written!r}, and this server reads the formats {FORMAT} "
                f"and {CLUSTER_FORMAT}"
            )
        if type(salts) is not int or salts < 1:
            raise DamagedJournalError(f"{salts!r} is not a number of salts")
        if cluster_id is not None and not isinstance(cluster_id, str):
            raise DamagedJournalError(f"{cluster_id!r} is not the id of a cluster")
        return cls(salts, cluster_id)


def _fields(cell: bytes) -> tuple[bytes, int, int, int, int]:
    if len(cell) < _HEAD.size + _FIELDS.size:
        raise DamagedJournalError(f"it has {len(cell)} bytes, fewer than any commit")
    if cell[0] != FORMAT:
        raise DamagedJournalError(f"format {cell[0]}, and this server reads format {FORMAT}")
    token, timestamp_ms, first, count, length = _FIELDS.unpack_from(cell, _HEAD.size)
    return token, timestamp_ms, first, count, length


def _pack_rows(rows: Rows) -> Iterator[bytes]:
    for key, value in rows.items():
        yield _LENGTHS.pack(len(key), _NO_VALUE if value is None else len(value))
        yield key
        yield value or b""


def _unpack_rows(body: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    at = 0
    while at < len(body):
        if len(body) - at < _LENGTHS.size:
            raise DamagedJournalError("its rows are cut off")
        key_length, value_length = _LENGTHS.unpack_from(body, at)
        at += _LENGTHS.size
        if len(body) - at < key_length + (0 if value_length == _NO_VALUE else value_length):
            raise DamagedJournalError("its rows are cut off")
        key, at = body[at : at + key_length], at + key_length
        if value_length == _NO_VALUE:
            yield key, None
        else:
            yield key, body[at : at + value_length]
            at += value_length


@contextmanager
def journal_errors(what: str) -> Iterator[None]:
    """Raises StoreDamagedError for what can't be read in the journal."""
    try:
        yield
    except DamagedJournalError as error:
        raise StoreDamagedError(f"{what} in HBase's journal table can't be read: {error}") from None
