"""PostgreSQL by asyncpg: `pip install 'tuff-messaging[asyncpg]'`."""

import asyncio
from contextlib import suppress
from typing import Any

from tuff.errors import WrongStateError
from tuff.optional_packages import Extra
from tuff.sql import dialects
from tuff.sql.database import (
    CLOSED,
    IN_TRANSACTION,
    NOT_COMMITTED,
    SqlBlock,
    checked_name,
    require_connection,
)
from tuff.sql.dialects import Dialect

with Extra("tuff.sql.asyncpg", "asyncpg"):
    import asyncpg


class AsyncpgDatabase:
    """A database of PostgreSQL, which decides transactions of asyncio clients.

        shop = AsyncpgDatabase("postgresql:///shop", "shop")
        async with client.sql_transaction(shop, connection) as tx:
            await connection.execute("INSERT INTO orders VALUES (1, 'apple')")
            await tx.publish(orders, "sold one apple")

    `dsn` and `options`: as for `asyncpg.connect`. `name`: the same in all processes.
    """

    dialect = dialects.POSTGRESQL

    def __init__(self, dsn: str, name: str, **options: Any) -> None:
        self.name = checked_name(name)
        self._dsn = dsn
        # Poolers keep no prepared statements.
        self._options = {"statement_cache_size": 0, **options}
        self._origins: dict[object, _Origin] = {}

    async def connect(self) -> "_Connection":
        return _Connection(await asyncpg.connect(self._dsn, **self._options))

    def joined(self, connection: Any) -> "_Block":
        """`connection`: one of `asyncpg.connect` or of a pool."""
        require_connection(connection, asyncpg.Connection)
        _require_open(connection)
        return _Block(connection, self._origin_of(connection))

    def _origin_of(self, connection: Any) -> "_Origin":
        # A pool wraps the connection in a new object each time; its settings stay the same object.
        settings = connection.get_settings()
        origin = self._origins.get(settings)
        if origin is None:
            origin = self._origins[settings] = _Origin()
            connection.add_termination_listener(lambda _: self._origins.pop(settings, None))
        return origin


class _Origin:
    """Stands for a connection to the database, in or out of a pool, until it is closed."""


def _require_open(connection: Any) -> None:
    try:
        is_closed = connection.is_closed()
    except asyncpg.InterfaceError as error:  # it went back to its pool
        raise WrongStateError(CLOSED) from error
    if is_closed:
        raise WrongStateError(CLOSED)


class _Connection:
    """A connection, in which the statements between `begin` and the end are one transaction."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._block: Any = None

    async def begin(self) -> None:
        """A cancellation has to wait until PostgreSQL has answered. asyncpg would else take the
        connection for one in this transaction, and the next `transaction()` for a savepoint."""
        _require_open(self._connection)
        if self._connection.is_in_transaction():
            raise WrongStateError(IN_TRANSACTION)
        starting = asyncio.ensure_future(self._start())
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await self._give_up(starting)
            raise

    async def _start(self) -> None:
        block = self._connection.transaction()
        await block.start()
        self._block = block

    async def _give_up(self, starting: "asyncio.Future[None]") -> None:
        try:
            with suppress(Exception):  # the cancellation is raised
                await asyncio.shield(starting)
                await self.rollback()
        except asyncio.CancelledError:  # a second one
            starting.cancel()
            self._connection.terminate()
            raise

    async def execute(self, statement: str) -> None:
        await self._connection.execute(statement)

    async def fetch(self, statement: str) -> list[Any]:
        return [row[0] for row in await self._connection.fetch(statement)]

    async def commit(self) -> None:
        block, self._block = self._block, None
        await block.commit()
        if self._connection.is_in_transaction():
            # Only its end ends the transaction that it is in: nothing tells whose that is.
            self._connection.terminate()
            raise WrongStateError(NOT_COMMITTED)

    async def rollback(self) -> None:
        if self._block is not None:
            block, self._block = self._block, None
            await block.rollback()

    async def close(self) -> None:
        await self._connection.close()


class _Block(_Connection, SqlBlock):
    """The user's connection."""

    def __init__(self, connection: Any, origin: object) -> None:
        super().__init__(connection)
        self.origin = origin

    async def record(self, dialect: Dialect, pointer: int) -> None:
        await self._connection.execute(dialect.insert_of_commit("$1::bigint"), pointer)

    async def recorded(self, dialect: Dialect, pointer: int) -> list[Any]:
        rows = await self._connection.fetch(dialect.select_committed("$1::bigint"), pointer)
        return [row[0] for row in rows]

    async def fetch_outside(self, statement: str) -> list[Any]:
        return await self.fetch(statement)
