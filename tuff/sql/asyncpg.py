"""PostgreSQL by asyncpg: `pip install 'tuff-messaging[asyncpg]'`."""

from typing import Any

import asyncpg

from tuff.client_errors import WrongStateError
from tuff.sql import dialects
from tuff.sql.database import CLOSED, checked_name, require_connection
from tuff.sql.dialects import Dialect


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

    async def connect(self) -> "_Block":
        return _Block(await asyncpg.connect(self._dsn, **self._options), origin=None)

    def joined(self, connection: Any) -> "_Block":
        """`connection`: one of `asyncpg.connect` or of a pool."""
        require_connection(connection, asyncpg.Connection)
        try:
            is_closed = connection.is_closed()
        except asyncpg.InterfaceError as error:  # it went back to its pool
            raise WrongStateError(CLOSED) from error
        if is_closed:
            raise WrongStateError(CLOSED)
        if connection.is_in_transaction():
            raise WrongStateError(
                "the connection is in a transaction; commit it before the block begins, and don't "
                "nest blocks"
            )
        return _Block(connection, origin=self._origin_of(connection))

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


class _Block:
    """A connection, in which the statements between `begin` and the end are one transaction."""

    def __init__(self, connection: Any, *, origin: object | None) -> None:
        self._connection = connection
        self._block: Any = None
        self.origin = origin

    async def begin(self) -> None:
        self._block = self._connection.transaction()
        await self._block.start()

    async def execute(self, statement: str) -> None:
        await self._connection.execute(statement)

    async def record(self, dialect: Dialect, pointer: int) -> None:
        await self._connection.execute(dialect.insert_of_commit("$1::bigint"), pointer)

    async def fetch(self, statement: str) -> list[Any]:
        return [row[0] for row in await self._connection.fetch(statement)]

    def before_prepare(self) -> None:
        """Raises: WrongStateError: the program ended the transaction by a statement."""
        if not self._connection.is_in_transaction():
            raise WrongStateError(
                "the program committed or rolled back within the block, which does that at its end"
            )

    async def commit(self) -> None:
        block, self._block = self._block, None
        await block.commit()

    async def rollback(self) -> None:
        if self._block is not None:
            block, self._block = self._block, None
            await block.rollback()

    async def close(self) -> None:
        await self._connection.close()
