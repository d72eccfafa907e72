"""A model in memory of the tables in HBase that the servers of a cluster share (decision 0042).

It has what the store promises, and what makes it dangerous: cells have timestamps, and the newest
one wins, whenever it was put. A batch is committed in the journal of its server, and its rows come
into the tables later. A takeover puts the rows of the last commits again, with the timestamp of the
newest of them.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

from kernel.owner_floor import Floor
from messaging.engines.engine_interface import Chunks, Rows, StoreError, TakenOverError, in_chunks
from messaging.model.row_format import LAST_BATCH_KEY, METADATA_KEY, LastBatch, StoreMetadata

Batch = Mapping[bytes, bytes | None]

_OWN_ROWS = {LAST_BATCH_KEY, METADATA_KEY}
_NOTHING = (-1, None)  # a cell that any other one is newer than
_Place = tuple[bytes, bytes]  # the server, for the rows that each one has for itself, and the key


@dataclass(frozen=True, slots=True)
class _Commit:
    """A slot of a journal; a claim has no rows. Rows of commits before `first` are in the
    tables."""

    token: object
    timestamp_ms: int
    first: int
    rows: Batch


class SharedTables:
    """The tables. `_lock` guards everything; any thread may call.

    `cluster_id` is None until a cluster adopts the tables. `journals` has the commits of each
    incarnation of a server by its name.
    """

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.journals: dict[bytes, list[_Commit]] = {}
        self.fence_counts: Counter[tuple[str, int]] = Counter()
        self._cells: dict[_Place, tuple[int, bytes | None]] = {}
        self._lock = RLock()

    def opener(
        self, server_id: str, incarnation: int, *, now_ms: Callable[[], int]
    ) -> "SharedOpener":
        """Opens the store for one incarnation of a server of the cluster."""
        return SharedOpener(self, journal_name(server_id, incarnation), now_ms)

    def single(self, *, now_ms: Callable[[], int]) -> "SharedOpener":
        """Opens the store for a single server."""
        return SharedOpener(self, b"", now_ms)

    def adopt(self, cluster_id: str) -> None:
        """Make sure that the tables belong to this cluster. Raises: StoreError."""
        with self._lock:
            if self.cluster_id is None and not self.journals:
                self.cluster_id = cluster_id
            if self.cluster_id != cluster_id:
                raise _other_owner(self.cluster_id)

    def fence(self, server_id: str, incarnation: int, *, now_ms: Callable[[], int]) -> Floor:
        """Take the journal of a server over, and put the rows that it committed."""
        with self._lock:
            self.fence_counts[server_id, incarnation] += 1
            name = journal_name(server_id, incarnation)
            timestamp_ms = self.take_over(name, object(), now_ms)
            value = self.get(LAST_BATCH_KEY, name=name)
            last = LastBatch() if value is None else LastBatch.from_bytes(LAST_BATCH_KEY, value)
            value = self.get(METADATA_KEY, name=name)
            metadata = StoreMetadata()
            if value is not None:
                metadata = StoreMetadata.from_bytes(METADATA_KEY, value)
            return Floor(last.last, timestamp_ms, metadata.longest_transaction_ms)

    def rows(self) -> dict[bytes, bytes]:
        """The rows that all servers share, in no order."""
        with self._lock:
            return {
                key: value
                for (name, key), (_, value) in self._cells.items()
                if not name and value is not None
            }

    # For the stores.

    def get(self, key: bytes, *, name: bytes) -> bytes | None:
        with self._lock:
            return self._cells.get(_place(key, name), _NOTHING)[1]

    def put(self, rows: Batch, timestamp_ms: int, *, name: bytes) -> None:
        """Put cells. Where there is a newer one, it stays."""
        with self._lock:
            for key, value in rows.items():
                place = _place(key, name)
                before_ms, before = self._cells.get(place, _NOTHING)
                # Of a deletion and a value with one timestamp, the deletion wins.
                is_deleted = before_ms == timestamp_ms and before is None
                if before_ms <= timestamp_ms and not is_deleted:
                    self._cells[place] = timestamp_ms, value

    def commits(self, name: bytes) -> list[_Commit]:
        with self._lock:
            return self.journals.setdefault(name, [])

    def take_over(self, name: bytes, token: object, now_ms: Callable[[], int]) -> int:
        """Write a claim into the journal, and put all rows that may be missing; the timestamp of
        the newest commit."""
        with self._lock:
            commits = self.commits(name)
            newest = commits[-1] if commits else None
            first, before_ms = (1, 0) if newest is None else (newest.first, newest.timestamp_ms)
            missing: dict[bytes, bytes | None] = {}
            for commit in commits[first - 1 :]:
                missing.update(commit.rows)
            claimed_ms = max(now_ms(), before_ms + 1)
            commits.append(_Commit(token, claimed_ms, first, {}))
            self.put(missing, before_ms, name=name)
            commits.append(_Commit(token, claimed_ms + 1, len(commits) + 2, {}))
            return claimed_ms + 1


class SharedOpener:
    """Opens the store of one incarnation of a server, and opens it again after failures.

    `store` is the newest one. A test may set `barred_for`: why it can't be opened.
    """

    def __init__(self, tables: SharedTables, name: bytes, now_ms: Callable[[], int]) -> None:
        self.tables = tables
        self.name = name
        self.now_ms = now_ms
        self.barred_for: str | None = None
        self.stores: list[SharedTablesStore] = []

    @property
    def store(self) -> "SharedTablesStore":
        return self.stores[-1]

    def __call__(self) -> "SharedTablesStore":
        if self.barred_for is not None:
            raise StoreError(self.barred_for)
        if (self.tables.cluster_id is None) != (self.name == b""):
            raise _other_owner(self.tables.cluster_id)
        commits = self.tables.commits(self.name)
        is_replaced = commits and commits[-1].token not in {each.token for each in self.stores}
        # The first opening of a single server takes the tables over from another one.
        if is_replaced and (self.stores or self.name):
            raise _taken_over()
        store = SharedTablesStore(self)
        self.stores.append(store)
        return store


@dataclass(slots=True)
class Failures:
    """How the next calls of a store fail; each failure happens once."""

    write: str | None = None
    takes_effect: bool = False  # the write that fails is committed nevertheless
    read: str | None = None
    wait_until_shared: str | None = None
    between: Callable[[], None] = field(default=lambda: None)  # before a commit takes its slot

    def raise_if(self, kind: str) -> None:
        text = getattr(self, kind)
        setattr(self, kind, None)
        if text is not None:
            raise StoreError(text)


class SharedTablesStore:
    """The tables as one opening of one server has them. Its rows are in the tables once the test
    calls `flush`, or the server waits for that."""

    has_views = False
    packs_rows = False

    def __init__(self, opener: SharedOpener) -> None:
        self.token = object()
        self.failures = Failures()
        self._opener = opener
        self._tables, self._name = opener.tables, opener.name
        self._floor_ms = 0
        self.scanned: list[bytes] = []  # the keys of all rows that scans read
        self._is_closed = False
        self._failure: StoreError | None = None
        self._waiting: dict[bytes, bytes | None] = {}
        self.cell_ms = self._tables.take_over(self._name, self.token, opener.now_ms)
        self._number = self._flushed = len(self._commits)

    @property
    def _commits(self) -> list[_Commit]:
        return self._tables.commits(self._name)

    def get(self, key: bytes) -> bytes | None:
        self._require_open()
        self.failures.raise_if("read")
        if key in self._waiting:
            return self._waiting[key]
        return self._tables.get(key, name=self._name)

    def scan(self, start: bytes, stop: bytes, **how: Any) -> Chunks:
        self._require_open()
        self.failures.raise_if("read")
        merged: Batch = {**self._tables.rows(), **self._waiting}
        keys = sorted(key for key, value in merged.items() if value is not None)
        keys = keys[bisect_left(keys, start) : bisect_left(keys, stop)]
        self.scanned += keys
        keys = keys[::-1] if how.get("reverse") else keys
        return in_chunks(_rows([(key, merged[key]) for key in keys]))

    def approximate_size(self, start: bytes, stop: bytes) -> int:
        del start, stop
        self._require_open()
        return 0

    def write(self, batch: Sequence[tuple[bytes, bytes | None]]) -> None:
        self._require_open()
        self._require_sound()
        rows, first = dict(batch), self._flushed + 1
        timestamp_ms = max(self._opener.now_ms(), self.cell_ms + 1, self._floor_ms + 1)
        self.failures.between()
        try:
            if self.failures.write is None or self.failures.takes_effect:
                self._commit(_Commit(self.token, timestamp_ms, first, rows))
            self.failures.raise_if("write")
        except StoreError as error:
            self._failure = error
            raise

    def close(self) -> None:
        """The rows that wait are put, unless the store failed."""
        if not self._is_closed and self._failure is None:
            self.flush()
        self._is_closed = True

    def require_owned(self) -> None:
        """Raises: TakenOverError."""
        if len(self._commits) > self._number:
            raise _taken_over()

    def raise_time(self, floor_ms: int) -> None:
        self._floor_ms = max(self._floor_ms, floor_ms)

    def wait_until_shared(self) -> None:
        self.failures.raise_if("wait_until_shared")
        self._require_sound()
        self.flush()

    def flush(self) -> None:
        """Put the rows that wait, as the background thread does; also of a store that was fenced
        meanwhile, and does not know it."""
        self._tables.put(self._waiting, self.cell_ms, name=self._name)
        self._waiting, self._flushed = {}, self._number

    def _commit(self, commit: _Commit) -> None:
        if len(self._commits) != self._number:
            raise _taken_over()
        self._commits.append(commit)
        self._number += 1
        self.cell_ms = commit.timestamp_ms
        self._waiting.update(commit.rows)

    def _require_open(self) -> None:
        if self._is_closed:
            raise StoreError("the store is closed")

    def _require_sound(self) -> None:
        if self._failure is not None:
            raise StoreError(f"the store failed before: {self._failure}")


def journal_name(server_id: str, incarnation: int) -> bytes:
    """The name of the journal of one incarnation of a server."""
    return f"{server_id}:{incarnation}".encode()


def _place(key: bytes, name: bytes) -> _Place:
    return (name if key in _OWN_ROWS else b""), key


def _rows(found: Sequence[tuple[bytes, bytes]]) -> Rows:
    with suppress(GeneratorExit):
        yield from found


def _taken_over() -> TakenOverError:
    return TakenOverError("another server has taken the tables over")


def _other_owner(cluster_id: str | None) -> StoreError:
    owner = "a single server" if cluster_id is None else f"the cluster {cluster_id}"
    return StoreError(f"the tables belong to {owner}: name other tables in hbase.prefix")
