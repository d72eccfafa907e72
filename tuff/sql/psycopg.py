"""PostgreSQL by psycopg 3: `pip install 'tuff-messaging[psycopg]'`."""

from typing import Any, TypeAlias

from tuff.errors import WrongStateError
from tuff.optional_packages import Extra
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

with Extra("tuff.sql.psycopg", "psycopg"):
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.pq import PipelineStatus, TransactionStatus
    from psycopg.rows import tuple_row

_AnyConnection: TypeAlias = "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]"


def _checked(conninfo: str) -> str:
    try:
        conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError:
        # Its message quotes the text, which may have a password.
        raise ValueError(
            "the connection string is not valid; write it as postgresql://USER@HOST/DATABASE"
        ) from None
    return conninfo


def _require_open(connection: "_AnyConnection") -> None:
    if connection.closed:
        raise WrongStateError(CLOSED)


def _require_idle(connection: "_AnyConnection") -> None:
    """The status is that of PostgreSQL's last answer."""
    _require_open(connection)
    _require_no_pipeline(connection)
    if connection.info.transaction_status is not TransactionStatus.IDLE:
        raise WrongStateError(IN_TRANSACTION)


def _require_no_pipeline(connection: "_AnyConnection") -> None:
    """In a pipeline the commit would not have been answered when the block ends."""
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        raise WrongStateError(
            "the connection is in a pipeline; begin and end the block outside of it"
        )


def _require_committed(connection: "_AnyConnection") -> None:
    if connection.info.transaction_status is not TransactionStatus.IDLE:
        raise WrongStateError(NOT_COMMITTED)


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

    def connect(self) -> "_Connection":
        # Poolers keep no prepared statements.
        return _Connection(psycopg.connect(self._conninfo, prepare_threshold=None))

    def joined(self, connection: "psycopg.Connection[Any]") -> "_Block":
        require_connection(connection, psycopg.Connection)
        _require_open(connection)
        return _Block(connection)


class _Connection(DbApiConnection):
    def _cursor(self) -> "psycopg.Cursor[tuple[Any, ...]]":
        # The connection may make other cursors, and something else of a row.
        return psycopg.Cursor(self._connection, row_factory=tuple_row)


class _Block(_Connection, SqlBlock):
    """The user's connection in `connection.transaction()`, in which psycopg refuses that the
    program commits or rolls back."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        super().__init__(connection)
        self.origin = connection
        self._block: Any = None

    def begin(self) -> None:
        _require_idle(self._connection)
        block = self._connection.transaction()
        block.__enter__()
        self._block = block

    def before_prepare(self) -> None:
        """Raises: WrongStateError: a pipeline holds statements back."""
        _require_no_pipeline(self._connection)

    def record(self, dialect: Dialect, pointer: int) -> None:
        self._cursor().execute(dialect.insert_of_commit("%s"), [pointer])

    def commit(self) -> None:
        block, self._block = self._block, None
        block.__exit__(None, None, None)
        _require_committed(self._connection)

    def rollback(self) -> None:
        if self._block is None:
            self._connection.rollback()
            return
        block, self._block = self._block, None
        error = psycopg.Rollback(block)
        block.__exit__(type(error), error, None)

    def recorded(self, dialect: Dialect, pointer: int) -> list[Any]:
        return self.fetch_outside(dialect.select_committed("%s"), pointer)

    def fetch_outside(self, statement: str, *parameters: int) -> list[Any]:
        _require_idle(self._connection)
        # Else psycopg would begin a transaction, and that costs two statements more.
        before = self._connection.autocommit
        self._connection.autocommit = True
        try:
            rows = self._cursor().execute(statement, parameters or None).fetchall()
        finally:
            if not self._connection.closed:
                self._connection.autocommit = before
        return [row[0] for row in rows]


class AsyncPsycopgDatabase:
    """A `PsycopgDatabase` for the clients and connections of asyncio."""

    dialect = dialects.POSTGRESQL

    def __init__(self, conninfo: str, name: str) -> None:
        self.name = checked_name(name)
        self._conninfo = _checked(conninfo)

    async def connect(self) -> "_AsyncConnection":
        connection = await psycopg.AsyncConnection.connect(self._conninfo, prepare_threshold=None)
        return _AsyncConnection(connection)

    def joined(self, connection: "psycopg.AsyncConnection[Any]") -> "_AsyncBlock":
        require_connection(connection, psycopg.AsyncConnection)
        _require_open(connection)
        return _AsyncBlock(connection)


class _AsyncConnection:
    def __init__(self, connection: "psycopg.AsyncConnection[Any]") -> None:
        self._connection = connection

    async def begin(self) -> None:
        """Nothing: the first statement begins it."""

    async def execute(self, statement: str) -> None:
        await self._cursor().execute(statement)

    async def fetch(self, statement: str) -> list[Any]:
        cursor = await self._cursor().execute(statement)
        return [row[0] for row in await cursor.fetchall()]

    async def commit(self) -> None:
        await self._connection.commit()

    async def rollback(self) -> None:
        await self._connection.rollback()

    async def close(self) -> None:
        await self._connection.close()

    def _cursor(self) -> "psycopg.AsyncCursor[tuple[Any, ...]]":
        return psycopg.AsyncCursor(self._connection, row_factory=tuple_row)


class _AsyncBlock(_AsyncConnection, SqlBlock):
    """A `_Block` of asyncio."""

    def __init__(self, connection: "psycopg.AsyncConnection[Any]") -> None:
        super().__init__(connection)
        self.origin = connection
        self._block: Any = None

    async def begin(self) -> None:
        _require_idle(self._connection)
        block = self._connection.transaction()
        await block.__aenter__()
        self._block = block

    def before_prepare(self) -> None:
        """Raises: WrongStateError: a pipeline holds statements back."""
        _require_no_pipeline(self._connection)

    async def record(self, dialect: Dialect, pointer: int) -> None:
        await self._cursor().execute(dialect.insert_of_commit("%s"), [pointer])

    async def commit(self) -> None:
        block, self._block = self._block, None
        await block.__aexit__(None, None, None)
        _require_committed(self._connection)

    async def rollback(self) -> None:
        if self._block is None:
            await self._connection.rollback()
            return
        block, self._block = self._block, None
        error = psycopg.Rollback(block)
        await block.__aexit__(type(error), error, None)

    async def recorded(self, dialect: Dialect, pointer: int) -> list[Any]:
        return await self.fetch_outside(dialect.select_committed("%s"), pointer)

    async def fetch_outside(self, statement: str, *parameters: int) -> list[Any]:
        _require_idle(self._connection)
        before = self._connection.autocommit
        await self._connection.set_autocommit(True)
        try:
            cursor = await self._cursor().execute(statement, parameters or None)
            rows = await cursor.fetchall()
        finally:
            if not self._connection.closed:
                await self._connection.set_autocommit(before)
        return [row[0] for row in rows]
