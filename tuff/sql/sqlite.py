"""SQLite, by the module sqlite3."""

import sqlite3
from pathlib import Path
from typing import Any

from tuff.errors import WrongStateError
from tuff.sql import dialects
from tuff.sql.database import (
    CLOSED,
    IN_TRANSACTION,
    NOT_COMMITTED,
    DbApiConnection,
    SqlBlock,
    checked_name,
    require_connection,
)
from tuff.sql.dialects import Dialect

_TAKE_WRITE_LOCK = f"DELETE FROM {dialects.TABLE} WHERE 0"  # as BEGIN IMMEDIATE does


class SqliteDatabase:
    """The database in one file, which decides transactions.

        shop = SqliteDatabase("shop.sqlite", "shop")
        with client.sql_transaction(shop, connection) as tx:
            connection.execute("INSERT INTO orders VALUES (1, 'apple')")
            tx.publish(orders, "sold one apple")

    `name`: the same in all processes. Raises: ValueError: it has no legal name, or is in memory.
    """

    dialect = dialects.SQLITE

    def __init__(self, path: str | Path, name: str) -> None:
        if not str(path) or str(path) == ":memory:":
            raise ValueError(
                "a database in memory can't be asked by another connection; give a file"
            )
        self.name = checked_name(name)
        self._path = path

    def connect(self) -> "_Connection":
        # Only one that exists: a new file would answer that nothing was committed.
        uri = f"{Path(self._path).absolute().as_uri()}?mode=rw"
        return _Connection(sqlite3.connect(uri, uri=True, timeout=dialects.LOCK_S))

    def joined(self, connection: sqlite3.Connection) -> "_Block":
        require_connection(connection, sqlite3.Connection)
        _is_in_transaction(connection)
        return _Block(connection)


def _is_in_transaction(connection: sqlite3.Connection) -> bool:
    try:
        return connection.in_transaction
    except sqlite3.ProgrammingError as error:
        raise WrongStateError(CLOSED) from error


def keeps_transaction_open(connection: Any) -> bool:
    """Whether the driver begins the next transaction at each end of one, as Python 3.12 does with
    `autocommit=False`. Then `in_transaction` is always true."""
    return getattr(connection, "autocommit", None) is False


class _Connection(DbApiConnection):
    """A connection whose transactions begin and end by statements. `commit` and `rollback` of the
    driver do what its version and its settings `autocommit` and `isolation_level` say."""

    def begin(self) -> None:
        self.execute("BEGIN")

    def commit(self) -> None:
        self.execute("COMMIT")
        self._begin_next()

    def rollback(self) -> None:
        if self._connection.in_transaction:
            self.execute("ROLLBACK")
        self._begin_next()

    def _begin_next(self) -> None:
        if keeps_transaction_open(self._connection):
            self.execute("BEGIN")

    def _cursor(self) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self._connection.cursor()
        cursor.row_factory = None  # the user's may make something else of a row
        return cursor


class _Block(_Connection, SqlBlock):
    """The user's connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self.origin = connection

    def begin(self) -> None:
        is_in_transaction = _is_in_transaction(self._connection)
        if keeps_transaction_open(self._connection) and is_in_transaction:
            # The transaction of the block began when the one before it ended. What the program has
            # written in it belongs to the block.
            self.execute(_TAKE_WRITE_LOCK)
            return
        if is_in_transaction:
            raise WrongStateError(IN_TRANSACTION)
        self.execute("BEGIN IMMEDIATE")

    def record(self, dialect: Dialect, pointer: int) -> None:
        self.execute(dialect.insert_of_commit(pointer))

    def recorded(self, dialect: Dialect, pointer: int) -> list[Any]:
        if keeps_transaction_open(self._connection):
            found = self.fetch(dialect.select_committed(pointer))
            self.rollback()  # else the read lock would stay
            return found
        if self._connection.in_transaction:
            raise WrongStateError(NOT_COMMITTED)
        return self.fetch(dialect.select_committed(pointer))

    def fetch_outside(self, statement: str) -> list[Any]:
        return self.fetch(statement)
