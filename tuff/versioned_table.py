"""Versioned rows as a participant, whatever keeps the versions (design §2, §7).

A row has a version per transaction that wrote it, stored under that one's write pointer; a reader
takes the newest version that is visible to it. What is written waits in memory until `commit_tx`
(docs/decisions, "A table buffers its writes").
"""

from collections.abc import Collection, Generator, Iterator
from contextlib import closing
from heapq import merge
from itertools import groupby
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from tuff.protocol.errors import BadRequestError, RequestTooLargeError
from tuff.protocol.transaction import Transaction, TransactionType
from tuff.table_current import Current
from tuff.table_work import Found, Founds, Work, WorkState

if TYPE_CHECKING:
    from tuff.client import Client


class Versions(Protocol):
    """What keeps the versions of a table's rows; it knows nothing of who is in which transaction.

    Any thread may call. `has_views`: whether a scan shows what was there when it began, also where
    its own transaction writes more meanwhile. Errors are those of the table.
    """

    table_id: bytes
    key_bytes_max: int
    value_bytes_max: int
    has_views: bool

    def newest_visible(self, key: bytes, transaction: Transaction) -> Found | None:
        """The version of a row that a transaction reads, if there is one."""

    def visible(self, transaction: Transaction, start: bytes | None, stop: bytes | None) -> Founds:
        """The version that a transaction reads of every `start <= key < stop`, delete markers too,
        in key order."""

    def keys_of(self, transaction_id: int) -> Iterator[bytes]:
        """The rows of which a version is kept that could be undone."""

    def write(self, work: Work) -> None:
        """Make durable what a transaction has in memory, and what undoes it."""

    def undo(self, work: Work) -> None:
        """Remove every version that a transaction wrote, durably, whichever process wrote it."""

    def settle(self, work: Work) -> None:
        """The transaction committed: what undoes it is no longer needed."""

    def compact(self, now: Transaction, *, bound: int) -> list[int]:
        """Drop what nobody reads, given a transaction that has just started, and a bound up to
        which everyone in progress sees whatever committed. Answers invalid pointers that it holds
        nothing of."""

    def close(self) -> None:
        """Let go of everything, after the calls under way; repeating it is harmless."""


class VersionedTable:
    """What tables of every engine do; which engine it is, says the class that a program opens.

    All threads and tasks share one object, and each works in its own current transaction; tasks and
    threads that run in a copy of the context, as asyncio's do, work in the one they were started
    in. A transaction begun inside of another one is independent of it, and the outer one is current
    again when it has ended. They may end in any order, as with a generator that holds a `with`
    block: a context's hooks act on its own transaction, wherever it was begun. Hooks called by hand
    act on the latest one here.

    Every call may raise DamagedRecordError (what is stored is not what was written; members `key`
    and `next`, from which a scan may go on) and StorageUnavailableError.
    """

    def __init__(self, name: str, versions: Versions, *, buffer_bytes: int) -> None:
        """A transaction's writes beyond `buffer_bytes` are stored, in one batch each time, before
        it commits."""
        self.name = name
        self._versions = versions
        self._table_id = versions.table_id
        self._buffer_bytes = buffer_bytes
        self._current = Current(name)
        self._compacting = Lock()  # one compaction at a time

    def close(self) -> None:
        """Let go of what it has open, after the calls under way. Repeating it is harmless."""
        self._versions.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def get(self, key: bytes) -> bytes | None:
        """The row's value for the current transaction, its own writes included; None: no such row.

        Raises: BadRequestError: there is no current transaction.
        """
        work = self._current.get()
        with work.lock:
            transaction = self._current.require_open(work).transaction
            own = work.find(self._checked(key))
            if own is not None and own[0].pointer == transaction.write_pointer:
                return own[1]
            stored = self._versions.newest_visible(key, transaction)
        found = [one for one in (own, stored) if one is not None]
        return max(found, key=lambda one: one[0].pointer)[1] if found else None

    def put(self, key: bytes, value: bytes) -> None:
        """Set a row, for everybody once the transaction commits.

        Raises:
            BadRequestError: there is no current transaction.
            RequestTooLargeError: the key or the value is larger than a table takes.
        """
        if not isinstance(value, bytes):
            raise BadRequestError(f"a value is bytes, not {type(value).__name__}; encode it")
        most = self._versions.value_bytes_max
        if len(value) > most:
            raise RequestTooLargeError(
                f"the value has {len(value)} bytes, and the table takes {most}; divide it"
            )
        self._write(key, value)

    def delete(self, key: bytes) -> None:
        """Remove a row; one that is not there is fine, and still is a change.

        Raises: as `put`.
        """
        self._write(key, None)

    def scan(
        self, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Every row with `start <= key < stop`, in key order, read as you go; None: no bound.

        It shows the transaction's own writes as of the moment of the call, and no later ones.

        Raises:
            BadRequestError: there is no current transaction, or it ended meanwhile.
            TransactionNotInProgressError: it had ended when the table was compacted.
        """
        work = self._current.get()
        first = b"" if start is None else self._checked(start)
        last = None if stop is None else self._checked(stop)
        # Together, since a batch that goes to disk in between would be in neither.
        with work.lock:
            transaction = self._current.require_open(work).transaction
            own = work.found_between(first, last)
            stored = self._versions.visible(transaction, first, last)
            rows = self._merged(work, own, stored)
            work.scans.add(rows)
        return rows

    def compact(self, client: "Client") -> list[int]:
        """Drop the versions that nobody can read any more, and those of invalid transactions.

        Answers the invalid pointers of which this table holds nothing now, and never will:
        `client.transactions.truncate(ids=…)` may take them off the list, once every table says so.
        Runs beside transactions of any kind, and blocks; from a coroutine, use a thread.

        Whoever is in progress at the server keeps reading what it read before, since the server's
        bound counts what the oldest of them does not see. Whoever had ended by then, as by its
        time-out, is refused here rather than shown a row without its older versions.

        Raises: BadRequestError: the table was compacted with the transactions of another server.
        """
        with self._compacting:
            now = client.transactions.start()
            try:
                bound = client.transactions.overview().visibility_upper_bound
            finally:
                client.transactions.commit(now, read_only=True)
            return self._versions.compact(now, bound=min(bound, now.visibility_upper_bound))

    # A participant (tuff.TransactionAware)

    def start_tx(self, transaction: Transaction) -> None:
        """Make it current here, until `post_commit` or `rollback_tx`; a transaction that is current
        elsewhere too is shared. Each start needs an end of its own.

        Raises: BadRequestError: too many are open here.
        """
        self._current.start(transaction)

    def update_tx(self, transaction: Transaction) -> None:
        """Go on under a new pointer; what was written stays under the old one.

        Raises: BadRequestError: another transaction is current.
        """
        work = self._current.meant()
        if work.has_ended or work.transaction_id != transaction.transaction_id:
            raise BadRequestError(
                f"transaction {transaction.transaction_id} is not current on {self.name}; "
                "start it there first"
            )
        with work.lock:
            work.transaction = transaction
            work.state = WorkState.OPEN

    def tx_changes(self) -> Collection[bytes]:
        """The table's id and the key, for each row that was written.

        Raises: BadRequestError: the transaction is over here.
        """
        work = self._current.meant()
        with work.lock:
            self._require_under_way(work)
            keys = work.keys()
            # A long transaction is not checked, and may have more keys than fit into memory. One
            # change still says that it wrote, or it would commit as read-only, without a sync.
            if work.transaction.type is TransactionType.LONG:
                some = bool(keys) or any(True for _ in self._versions.keys_of(work.transaction_id))
                work.tell(None if some else keys)
                return frozenset({self._table_id} if some else ())
            keys.update(self._versions.keys_of(work.transaction_id))
            work.tell(keys)
        return frozenset(self._table_id + key for key in keys)

    def commit_tx(self) -> None:
        """Make the writes durable under the transaction's pointers, in one synced batch.

        Raises:
            BadRequestError: the transaction is over here, or wrote a row after `tx_changes`, which
                nobody looked for conflicts in.
            TransactionNotInProgressError: it had ended when the table was compacted.
        """
        work = self._current.meant()
        with work.lock:
            self._require_under_way(work)
            if work.untold_key is not None:
                raise BadRequestError(
                    f"row {work.untold_key!r} of {self.name} was written while the transaction was "
                    "committing, too late to be checked for conflicts; write before its block ends"
                )
            self._store(work)
            work.state = WorkState.WRITTEN

    def post_commit(self) -> None:
        """The transaction has committed, and is current no more."""
        work = self._current.meant()
        with work.lock:
            if not work.has_ended:
                self._versions.settle(work)
                work.end(WorkState.COMMITTED)
        self._current.end(work)

    def rollback_tx(self) -> None:
        """Remove every version of this transaction, durably, whichever process wrote it; it is
        current no more, whatever is raised. Repeating it is harmless.

        Raises: BadRequestError: it committed; StorageUnavailableError, DamagedRecordError: some
            may be left, so the transaction has to be invalidated.
        """
        work = self._current.meant()
        if work.state is WorkState.COMMITTED:
            raise BadRequestError(
                f"transaction {work.transaction_id} has committed on {self.name}, and can't be "
                "rolled back"
            )
        with work.lock:
            try:
                if work.state is not WorkState.UNDONE:
                    work.state = WorkState.NOT_UNDONE
                    self._versions.undo(work)
                    work.end(WorkState.UNDONE)
                    self._current.settle(work)
            finally:
                # The caller invalidates what can't be undone. Left current, it took the writes of
                # the transaction around it, and of a program that forgot to begin one.
                self._current.end(work)

    def leave_tx(self) -> None:
        """Let the transaction be current here no more, and undo nothing: for one that ended without
        the table's being told, as where the start of another participant failed, or where the
        outcome of its commit is unknown. Harmless where there is none."""
        self._current.leave()

    # Inside

    def _require_under_way(self, work: Work) -> None:
        if work.has_ended:
            raise BadRequestError(
                f"transaction {work.transaction_id} is over on {self.name} ({work.state.value})"
            )

    def _write(self, key: bytes, value: bytes | None) -> None:
        work = self._current.get()
        with work.lock:
            self._current.require_open(work).put(self._checked(key), value)
            if work.size_bytes > self._buffer_bytes and self._may_store_early(work):
                self._store(work)

    def _store(self, work: Work) -> None:
        try:
            self._versions.write(work)
        except BaseException:
            if work.in_doubt:
                self._current.doubt(work)
            raise

    def _may_store_early(self, work: Work) -> bool:
        return self._versions.has_views or not work.is_scanning

    def _checked(self, key: bytes) -> bytes:
        if not isinstance(key, bytes):
            raise BadRequestError(f"a key is bytes, not {type(key).__name__}; encode it")
        most = self._versions.key_bytes_max
        if len(key) > most:
            raise RequestTooLargeError(
                f"the key has {len(key)} bytes, and the table takes {most}; use a shorter one"
            )
        return key

    def _merged(
        self, work: Work, own: list[Found], stored: Founds
    ) -> Generator[tuple[bytes, bytes], None, None]:
        with closing(stored):
            ordered = merge(own, stored, key=lambda one: (one[0].key, -one[0].pointer))
            for key, found in groupby(ordered, key=lambda one: one[0].key):
                self._current.require_open(work)
                # Of equal versions the own write comes first: it is the later one.
                _, value = next(found)
                if value is not None:
                    yield key, value
