"""A table of versioned rows as a participant, for every engine (design §2, §7).

A row has one version for each write pointer that it was written under. A reader gets the newest
version that is visible to it. Writes stay in memory until `commit_tx` (decision 0011).
"""

from collections.abc import Collection, Generator, Iterator
from contextlib import closing
from heapq import merge
from itertools import groupby
from threading import Lock
from typing import TYPE_CHECKING, Protocol, Self

from tuff.errors import WrongStateError
from tuff.protocol.errors import RequestTooLargeError
from tuff.protocol.transaction import Transaction, TransactionType
from tuff.tables.open_transactions import (
    OpenTransactions,
    VersionedValue,
    VersionedValues,
    Work,
    WorkState,
)

if TYPE_CHECKING:
    from tuff.blocking.client import Client

OWN_KEYS = b"\x00tuff:"  # the beginning of the keys of Tuff's own rows, as of `TablePositions`


class VersionStore(Protocol):
    """The stored versions of a table, in LevelDB or HBase. Any thread may call.

    `has_views`: whether a scan reads a consistent snapshot, even while its own transaction stores
    more writes. Reads and writes raise TransactionNotInProgressError for a transaction that had
    ended when the table was compacted; other errors are those of the table.
    """

    table_id: bytes
    key_bytes_max: int
    value_bytes_max: int
    has_views: bool

    def newest_visible(self, key: bytes, transaction: Transaction) -> VersionedValue | None:
        """The newest version of a row that is visible to the transaction; None: there is none."""

    def visible(
        self, transaction: Transaction, start: bytes | None, stop: bytes | None
    ) -> VersionedValues:
        """The newest visible version of every `start <= key < stop`, delete markers included, in
        key order."""

    def keys_of(self, transaction_id: int) -> Iterator[bytes]:
        """The keys of the stored versions of a transaction that a rollback would remove."""

    def write(self, work: Work) -> None:
        """Store a transaction's writes and the undo rows for them, durably.

        Raises: StorageUnavailableError: the writes may or may not be stored.
        """

    def undo(self, work: Work) -> None:
        """Remove every version that a transaction wrote, durably, also those of other processes.

        Raises: StorageUnavailableError, DamagedRecordError: some may be left.
        """

    def note_committed(self, work: Work) -> None:
        """The transaction committed, so its undo rows can be removed."""

    def compact(self, now: Transaction, *, bound: int) -> list[int]:
        """Remove versions that no reader needs. Returns the invalid pointers of which no version is
        left. `now` is a transaction that has just started; every transaction in progress sees all
        commits up to `bound`.

        Raises: BadRequestError: `now` is of another server; StorageUnavailableError,
            DamagedRecordError: some of these versions may be left; no other was removed.
        """

    def close(self) -> None:
        """Wait for the calls in flight and release everything. Repeating it is harmless."""


class VersionedTable:
    """A table of versioned rows; its subclasses choose the engine.

    All threads and tasks share one object, and each has its own current transaction. A task or
    thread that runs in a copy of a context, as asyncio's tasks do, works in the transaction of that
    context. A transaction that starts inside of another one is independent of it; when it ends, the
    outer one is current again. They may end in any order, as with a generator that holds a `with`
    block, and in any task or thread: each hook gets its transaction.

    Every call may raise DamagedRecordError (stored data is corrupt; the members are `key` and
    `next`, from which a scan can continue) and StorageUnavailableError.
    """

    def __init__(self, name: str, store: VersionStore, *, buffer_bytes: int) -> None:
        """When a transaction has more than `buffer_bytes` of writes in memory, they are stored in
        one batch before it commits."""
        self.name = name
        self._store = store
        self._buffer_bytes = buffer_bytes
        self._transactions = OpenTransactions(name)
        self._compacting = Lock()  # one compaction at a time

    def close(self) -> None:
        """Wait for the calls in flight and release the table. Repeating it is harmless."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()

    def get(self, key: bytes) -> bytes | None:
        """The row's value for the current transaction, its own writes included; None: no such row.

        Raises: WrongStateError: there is no current transaction.
        """
        work = self._transactions.current()
        with work.lock:
            transaction = self._transactions.require_open(work).transaction
            own = work.find(self._checked(key))
            if own is not None and own[0].pointer == transaction.write_pointer:
                return own[1]
            stored = self._store.newest_visible(key, transaction)
        found = [one for one in (own, stored) if one is not None]
        return max(found, key=lambda one: one[0].pointer)[1] if found else None

    def put(self, key: bytes, value: bytes) -> None:
        """Set a row; other transactions see it once this one commits.

        Raises:
            WrongStateError: there is no current transaction.
            RequestTooLargeError: the key or the value is larger than a table takes.
        """
        if not isinstance(value, bytes):
            raise TypeError(f"a value is bytes, not {type(value).__name__}; encode it")
        most = self._store.value_bytes_max
        if len(value) > most:
            raise RequestTooLargeError(
                f"the value has {len(value)} bytes, and the table takes {most}; split it"
            )
        self._write(key, value)

    def delete(self, key: bytes) -> None:
        """Remove a row. Removing a row that does not exist is a change, too.

        Raises: as `put`.
        """
        self._write(key, None)

    def scan(
        self, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Every row with `start <= key < stop`, in key order, read lazily; None: no bound.

        It includes the transaction's own writes as of the moment of the call, and no later ones.
        Rows of Tuff, as those of `tuff.TablePositions`, have keys that begin with `\\x00tuff:`. It
        leaves them out, unless `start` begins so, too.

        Raises:
            WrongStateError: there is no current transaction, or it ended meanwhile.
            TransactionNotInProgressError: it had ended when the table was compacted.
        """
        work = self._transactions.current()
        first = b"" if start is None else self._checked(start)
        last = None if stop is None else self._checked(stop)
        # Both under the lock, since a write that is stored in between would be in neither.
        with work.lock:
            transaction = self._transactions.require_open(work).transaction
            own = work.found_between(first, last)
            stored = self._store.visible(transaction, first, last)
            rows = self._merged(work, own, stored, shows_own=first.startswith(OWN_KEYS))
            work.scans.add(rows)
        return rows

    def compact(self, client: "Client") -> list[int]:
        """Remove the versions that no reader needs any more, and those of invalid transactions.

        Returns the invalid pointers of which this table has no version now, and never will have.
        Once every table has returned a pointer, `client.transactions.truncate(ids=…)` may remove it
        from the invalid list. Transactions may run meanwhile. The call blocks; from a coroutine,
        use a thread.

        Transactions in progress keep their snapshot, since the server's bound covers the oldest of
        them. Transactions that had ended by then, as by a time-out, are refused from now on, since
        older versions that they would read may be gone.

        Raises: BadRequestError: the table was compacted with the transactions of another server.
        """
        with self._compacting:
            now = client.transactions.start()
            try:
                bound = client.transactions.overview().visibility_upper_bound
            finally:
                client.transactions.commit(now, read_only=True)
            return self._store.compact(now, bound=min(bound, now.visibility_upper_bound))

    # A participant (tuff.TransactionAware)

    def start_tx(self, transaction: Transaction) -> None:
        """Make the transaction current here, until `post_commit` or `rollback_tx`. Tasks and
        threads in which one transaction is current share its work.

        Raises: WrongStateError: too many transactions are open here.
        """
        self._transactions.start(transaction)

    def update_tx(self, transaction: Transaction) -> None:
        """Continue under a new write pointer; earlier writes stay under the old one.

        Raises: WrongStateError: the transaction was not started here, or is over.
        """
        work = self._transactions.of(transaction)
        with work.lock:
            self._require_not_ended(work)
            work.transaction = transaction
            work.state = WorkState.OPEN

    def name_of_change(self, key: bytes) -> str | None:
        """The row that a key of `tx_changes` stands for; None if it is of another participant."""
        if not key.startswith(self._store.table_id):
            return None
        return f"row {key[len(self._store.table_id) :]!r} of {self.name}"

    def tx_changes(self, transaction: Transaction) -> Collection[bytes]:
        """The table's id and the key, for each row that was written.

        Raises: WrongStateError: the transaction is over here.
        """
        work = self._transactions.of(transaction)
        with work.lock:
            self._require_not_ended(work)
            keys = work.keys()
            # A long transaction is not checked for conflicts, and its keys may not fit into memory.
            # One change shows that it wrote; otherwise it would commit as read-only, without a
            # sync.
            if work.transaction.type is TransactionType.LONG:
                has_written = bool(keys) or any(
                    True for _ in self._store.keys_of(work.transaction_id)
                )
                work.set_checked_keys(None if has_written else keys)
                return frozenset({self._store.table_id} if has_written else ())
            keys.update(self._store.keys_of(work.transaction_id))
            work.set_checked_keys(keys)
        table_id = self._store.table_id
        return frozenset(table_id + key for key in keys)

    def commit_tx(self, transaction: Transaction) -> None:
        """Make the writes durable under the transaction's pointers, in one synced batch.

        Raises:
            WrongStateError: the transaction is over here, or wrote a row after `tx_changes`, which
                was not checked for conflicts.
            TransactionNotInProgressError: it had ended when the table was compacted.
        """
        work = self._transactions.of(transaction)
        with work.lock:
            self._require_not_ended(work)
            if work.unchecked_key is not None:
                raise WrongStateError(
                    f"row {work.unchecked_key!r} of {self.name} was written while the transaction "
                    "was committing, too late to be checked for conflicts; write before its block "
                    "ends"
                )
            self._store_writes(work)
            work.state = WorkState.WRITTEN

    def post_commit(self, transaction: Transaction) -> None:
        """The transaction has committed, and is no longer current."""
        work = self._transactions.of(transaction)
        with work.lock:
            if not work.has_ended:
                self._store.note_committed(work)
                work.end(WorkState.COMMITTED)
        self._transactions.end(work)

    def rollback_tx(self, transaction: Transaction) -> None:
        """Remove every version of this transaction, durably, also those of other processes. It is
        no longer current, even if this raises. Repeating it is harmless.

        Raises: WrongStateError: it committed; StorageUnavailableError, DamagedRecordError: some
            versions may be left, so the transaction has to be invalidated.
        """
        work = self._transactions.of(transaction)
        if work.state is WorkState.COMMITTED:
            raise WrongStateError(
                f"transaction {work.transaction_id} has committed on {self.name}, and can't be "
                "rolled back"
            )
        with work.lock:
            try:
                if work.state is not WorkState.UNDONE:
                    work.state = WorkState.NOT_UNDONE
                    self._store.undo(work)
                    work.end(WorkState.UNDONE)
                    self._transactions.resolve_doubt(work)
            finally:
                # The caller invalidates a transaction that can't be undone. If it stayed current,
                # later writes, which belong to the outer transaction, would go to it.
                self._transactions.end(work)

    def leave_tx(self, transaction: Transaction) -> None:
        """Make the transaction no longer current here, and undo nothing. For a transaction that
        ended without `post_commit` or `rollback_tx`: the start of another participant failed, or
        the outcome of the commit is unknown. If it was not started here, nothing happens."""
        self._transactions.leave(transaction)

    # Internal

    def _require_not_ended(self, work: Work) -> None:
        if work.has_ended:
            raise WrongStateError(
                f"transaction {work.transaction_id} is over on {self.name} ({work.state.value})"
            )

    def _write(self, key: bytes, value: bytes | None) -> None:
        work = self._transactions.current()
        with work.lock:
            self._transactions.require_open(work).put(self._checked(key), value)
            # A scan without a snapshot would show writes that are stored while it is read.
            if work.size_bytes > self._buffer_bytes and (
                self._store.has_views or not work.is_scanning
            ):
                self._store_writes(work)

    def _store_writes(self, work: Work) -> None:
        try:
            self._store.write(work)
        except BaseException:
            if work.in_doubt:
                self._transactions.note_in_doubt(work)
            raise

    def _checked(self, key: bytes) -> bytes:
        if not isinstance(key, bytes):
            raise TypeError(f"a key is bytes, not {type(key).__name__}; encode it")
        most = self._store.key_bytes_max
        if len(key) > most:
            raise RequestTooLargeError(
                f"the key has {len(key)} bytes, and the table takes {most}; use a shorter one"
            )
        return key

    def _merged(
        self, work: Work, own: list[VersionedValue], stored: VersionedValues, *, shows_own: bool
    ) -> Generator[tuple[bytes, bytes], None, None]:
        with closing(stored):
            ordered = merge(own, stored, key=lambda one: (one[0].key, -one[0].pointer))
            for key, found in groupby(ordered, key=lambda one: one[0].key):
                self._transactions.require_open(work)
                # Of equal versions, the transaction's own write comes first, since it is newer.
                _, value = next(found)
                if value is not None and (shows_own or not key.startswith(OWN_KEYS)):
                    yield key, value
