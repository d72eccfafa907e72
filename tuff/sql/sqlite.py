"""SQLite, by the module sqlite3."""

import sqlite3
from pathlib import Path

from tuff.client_errors import WrongStateError
from tuff.sql import dialects
from tuff.sql.database import CLOSED, DbApiConnection, checked_name, require_connection

_SAVEPOINT = "tuff_block"


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

    def connect(self) -> DbApiConnection:
        # Only one that exists: a new file would answer that nothing was committed.
        uri = f"{Path(self._path).absolute().as_uri()}?mode=rw"
        return DbApiConnection(sqlite3.connect(uri, uri=True, timeout=dialects.LOCK_S))

    def joined(self, connection: sqlite3.Connection) -> "_Block":
        require_connection(connection, sqlite3.Connection)
        try:
            is_in_transaction = connection.in_transaction
        except sqlite3.ProgrammingError as error:
            raise WrongStateError(CLOSED) from error
        if is_in_transaction:
            raise WrongStateError(
                "the connection is in a transaction; commit it before the block begins, and don't "
                "nest blocks"
            )
        return _Block(connection)


class _Block(DbApiConnection):
    """The user's connection. A savepoint that is gone at the end shows that the program ended the
    transaction within the block."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection, origin=connection)

    def begin(self) -> None:
        self.execute("BEGIN IMMEDIATE")
        self.execute(f"SAVEPOINT {_SAVEPOINT}")

    def before_prepare(self) -> None:
        try:
            self.execute(f"RELEASE {_SAVEPOINT}")
        except sqlite3.OperationalError as error:
            raise WrongStateError(
                "the program committed or rolled back within the block, which does that at its end"
            ) from error
