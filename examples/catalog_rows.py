"""A participant: the catalogue's rows in SQLite, one version of a row per write pointer.

    versions := path, write_pointer -> size, mtime_ns, sha256      all null: the file is gone

No version is ever overwritten. A reader takes, for each path, the newest version that is visible in
its transaction. Any store can join a Tuff transaction in this way.
"""

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tuff import Transaction, TransactionAware

_TABLE = """
create table if not exists versions (
    path blob not null, write_pointer integer not null,
    size integer, mtime_ns integer, sha256 text,
    primary key (path, write_pointer)
)
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """The catalogue's entry of one file."""

    size_bytes: int
    mtime_ns: int
    sha256: str


class VersionedRows(TransactionAware):
    """Path to `Entry`, in a SQLite file; belongs to one thread."""

    name = "catalogue"

    def __init__(self, file: Path) -> None:
        # SQLite syncs each of its own commits before it returns, as a participant has to.
        self._database = sqlite3.connect(file)
        self._database.execute(_TABLE)
        self._transaction: Transaction | None = None
        self._written: dict[bytes, tuple[int, Entry | None]] = {}

    def close(self) -> None:
        self._database.close()

    def put(self, path: bytes, entry: Entry | None) -> None:
        """Store the entry of a file; None: the file was removed."""
        self._written[path] = (self._current().write_pointer, entry)

    def visible(self) -> dict[bytes, Entry]:
        """The catalogue as the current transaction sees it, its own writes included."""
        transaction = self._current()
        found: dict[bytes, Entry | None] = {}
        rows = self._database.execute(
            "select path, write_pointer, size, mtime_ns, sha256 from versions"
            " order by write_pointer"
        )
        for path, pointer, size_bytes, mtime_ns, sha256 in rows:
            if transaction.is_visible(pointer):
                is_gone = sha256 is None
                found[path] = None if is_gone else Entry(size_bytes, mtime_ns, sha256)
        found.update({path: entry for path, (_, entry) in self._written.items()})
        return {path: entry for path, entry in found.items() if entry is not None}

    def count_under(self, pointer: int) -> int:
        """The number of rows that were written under a pointer, visible or not."""
        query = "select count(*) from versions where write_pointer = ?"
        (count,) = self._database.execute(query, (pointer,)).fetchone()
        return int(count)

    def forget(self, pointers: Collection[int]) -> None:
        """Remove, durably, all rows that were written under these pointers."""
        with self._database:
            self._database.executemany(
                "delete from versions where write_pointer = ?", [(one,) for one in pointers]
            )

    def start_tx(self, transaction: Transaction) -> None:
        self._transaction, self._written = transaction, {}

    def update_tx(self, transaction: Transaction) -> None:
        # Rows that were stored before keep their pointer.
        self._transaction = transaction

    def tx_changes(self, transaction: Transaction) -> Collection[bytes]:
        return [b"file:" + path for path in self._written]

    def commit_tx(self, transaction: Transaction) -> None:
        rows = [
            (path, pointer, entry.size_bytes, entry.mtime_ns, entry.sha256)
            if entry is not None
            else (path, pointer, None, None, None)
            for path, (pointer, entry) in self._written.items()
        ]
        with self._database:
            self._database.executemany("insert or replace into versions values (?,?,?,?,?)", rows)

    def post_commit(self, transaction: Transaction) -> None:
        self._transaction, self._written = None, {}

    def rollback_tx(self, transaction: Transaction) -> None:
        self.forget({transaction.transaction_id, *transaction.checkpoint_write_pointers})
        self._transaction, self._written = None, {}

    def _current(self) -> Transaction:
        assert self._transaction is not None, "the catalogue is used inside a transaction only"
        return self._transaction
