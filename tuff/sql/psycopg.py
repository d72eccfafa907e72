"""PostgreSQL by psycopg 3: `pip install 'tuff-messaging[psycopg]'`."""

from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from tuff.client_errors import WrongStateError
from tuff.sql import dialects
from tuff.sql.database import CLOSED, DbApiConnection, checked_name, require_connection
from tuff.sql.dialects import Dialect


def _checked(conninfo: str) -> str:
    try:
        conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError:
        # Its message quotes the text, which may have a password.
        raise ValueError(
            "the connection string is not valid; write it as postgresql://USER@HOST/DATABASE"
        ) from None
    return conninfo


def _require_idle(connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> None:
    if connection.closed:
        raise WrongStateError(CLOSED)
    if connection.info.transaction_status is not TransactionStatus.IDLE:
        raise WrongStateError(
            "the connection is in a transaction; commit it before the block begins, and don't nest "
            "blocks"
        )


class PsycopgDatabase:
    """A database of PostgreSQL, which decides transactions of blocking clients.

        shop = PsycopgDatabase("postgresql:///shop", "shop")
        with client.sql_transaction(shop, connection) as tx:
            connection.execute("INSERT INTO orders VALUES (1, 'apple')")
            tx.publish(orders, "sold one apple")

    `conninfo`: as for `psycopg.connect`. `name`: the same in all processes.
    """

    dialect = dialects.POSTGRESQL

    def __init__(self, conninfo: str, name: str) -> None:
        self.name = checked_name(name)
        self._conninfo = _checked(conninfo)

    def connect(self) -> DbApiConnection:
        # Poolers keep no prepared statements.
        return DbApiConnection(psycopg.connect(self._conninfo, prepare_threshold=None))

    def joined(self, connection: "psycopg.Connection[Any]") -> "_Block":
        require_connection(connection, psycopg.Connection)
        _require_idle(connection)
        return _Block(connection)


class _Block(DbApiConnection):
    """The user's connection in `connection.transaction()`, in which psycopg refuses that the
    program commits or rolls back."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        super().__init__(connection, origin=connection)
        self._block: Any = None

    def begin(self) -> None:
        self._block = self._connection.transaction()
        self._block.__enter__()

    def record(self, dialect: Dialect, pointer: int) -> None:
        self._connection.cursor().execute(dialect.insert_of_commit("%s"), [pointer])

    def commit(self) -> None:
        block, self._block = self._block, None
        block.__exit__(None, None, None)

    def rollback(self) -> None:
        if self._block is None:
            self._connection.rollback()
            return
        block, self._block = self._block, None
        error = psycopg.Rollback(block)
        block.__exit__(type(error), error, None)


class AsyncPsycopgDatabase:
    """As `PsycopgDatabase`, for the clients and connections of asyncio."""

    dialect = dialects.POSTGRESQL

    def __init__(self, conninfo: str, name: str) -> None:
        self.name = checked_name(name)
        self._conninfo = _checked(conninfo)

    async def connect(self) -> "_AsyncConnection":
        connection = await psycopg.AsyncConnection.connect(self._conninfo, prepare_threshold=None)
        return _AsyncConnection(connection, origin=None)

    def joined(self, connection: "psycopg.AsyncConnection[Any]") -> "_AsyncBlock":
        require_connection(connection, psycopg.AsyncConnection)
        _require_idle(connection)
        return _AsyncBlock(connection, origin=connection)


class _AsyncConnection:
    def __init__(
        self, connection: "psycopg.AsyncConnection[Any]", *, origin: object | None
    ) -> None:
        self._connection = connection
        self.origin = origin

    async def begin(self) -> None:
        """Nothing: the first statement begins it."""

    async def execute(self, statement: str) -> None:
        await self._connection.cursor().execute(statement)

    async def record(self, dialect: Dialect, pointer: int) -> None:
        await self._connection.cursor().execute(dialect.insert_of_commit("%s"), [pointer])

    async def fetch(self, statement: str) -> list[Any]:
        cursor = await self._connection.cursor().execute(statement)
        return [row[0] for row in await cursor.fetchall()]

    async def before_prepare(self) -> None:
        """Nothing is held back."""

    async def commit(self) -> None:
        await self._connection.commit()

    async def rollback(self) -> None:
        await self._connection.rollback()

    async def close(self) -> None:
        await self._connection.close()


class _AsyncBlock(_AsyncConnection):
    """As `_Block`."""

    _block: Any = None

    async def begin(self) -> None:
        self._block = self._connection.transaction()
        await self._block.__aenter__()

    async def commit(self) -> None:
        block, self._block = self._block, None
        await block.__aexit__(None, None, None)

    async def rollback(self) -> None:
        if self._block is None:
            await self._connection.rollback()
            return
        block, self._block = self._block, None
        error = psycopg.Rollback(block)
        await block.__aexit__(type(error), error, None)
