"""Each library that a block takes connections of, for tests that run with all of them."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    closing,
    contextmanager,
)
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

import tuff
from tests.sql.deciding_server import AsyncDecidingServer, DecidingServer
from tests.sql.test_psycopg import ORDERS
from tuff.sql.asyncpg import AsyncpgDatabase
from tuff.sql.database import SqlDatabase
from tuff.sql.dialects import SQLITE
from tuff.sql.psycopg import AsyncPsycopgDatabase, PsycopgDatabase
from tuff.sql.sqlalchemy import AsyncSqlAlchemyDatabase, SqlAlchemyDatabase
from tuff.sql.sqlite import SqliteDatabase

INSERT = "INSERT INTO orders VALUES ('apple')"


@dataclass(frozen=True)
class Library:
    """A database, the user's connection, and how the user runs a statement."""

    shop: SqlDatabase[Any]
    connection: Any
    execute: Callable[[str], Any]


def sqlite_file(path: Path) -> Path:
    """A new file with the table of commits and one of orders."""
    with sqlite3.connect(path) as connection:
        connection.execute(SQLITE.create_table)
        connection.execute("CREATE TABLE orders (item TEXT PRIMARY KEY)")
    connection.close()
    return path


@contextmanager
def by_sqlite3(_dsn: str, path: Path) -> Iterator[Library]:
    with closing(sqlite3.connect(path)) as connection:
        yield Library(SqliteDatabase(path, "shop"), connection, connection.execute)


@contextmanager
def by_psycopg(dsn: str, _path: Path) -> Iterator[Library]:
    with psycopg.connect(dsn) as connection:
        yield Library(PsycopgDatabase(dsn, "shop"), connection, connection.execute)


@contextmanager
def by_session(url: str) -> Iterator[Library]:
    engine = create_engine(url, poolclass=NullPool)
    with Session(engine) as session:
        shop = SqlAlchemyDatabase(engine, "shop")
        yield Library(shop, session, lambda statement: session.execute(text(statement)))


def by_session_of_postgresql(dsn: str, _path: Path) -> AbstractContextManager[Library]:
    return by_session(dsn.replace("postgresql:", "postgresql+psycopg:"))


def by_session_of_sqlite(_dsn: str, path: Path) -> AbstractContextManager[Library]:
    return by_session(f"sqlite:///{path}")


def async_url(dsn: str, driver: str) -> str:
    return dsn.replace("postgresql:", f"postgresql+{driver}:")


@asynccontextmanager
async def by_async_session(url: str) -> AsyncIterator[Library]:
    engine = create_async_engine(url, poolclass=NullPool)
    async with AsyncSession(engine) as session:
        shop = AsyncSqlAlchemyDatabase(engine, "shop")
        yield Library(shop, session, lambda statement: session.execute(text(statement)))


def by_async_session_of_asyncpg(dsn: str) -> AbstractAsyncContextManager[Library]:
    return by_async_session(async_url(dsn, "asyncpg"))


def by_async_session_of_psycopg(dsn: str) -> AbstractAsyncContextManager[Library]:
    return by_async_session(async_url(dsn, "psycopg"))


@asynccontextmanager
async def by_asyncpg(dsn: str) -> AsyncIterator[Library]:
    connection = await asyncpg.connect(dsn)
    try:
        yield Library(AsyncpgDatabase(dsn, "shop"), connection, connection.execute)
    finally:
        await connection.close()


@asynccontextmanager
async def by_pool_of_asyncpg(dsn: str) -> AsyncIterator[Library]:
    async with (
        asyncpg.create_pool(dsn, min_size=1, max_size=2) as pool,
        pool.acquire() as connection,
    ):
        yield Library(AsyncpgDatabase(dsn, "shop"), connection, connection.execute)


@asynccontextmanager
async def by_async_psycopg(dsn: str) -> AsyncIterator[Library]:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        yield Library(AsyncPsycopgDatabase(dsn, "shop"), connection, connection.execute)


BLOCKING = pytest.mark.parametrize(
    "library", [by_sqlite3, by_psycopg, by_session_of_postgresql, by_session_of_sqlite]
)
ASYNCIO = pytest.mark.parametrize(
    "library",
    [
        by_asyncpg,
        by_pool_of_asyncpg,
        by_async_psycopg,
        by_async_session_of_asyncpg,
        by_async_session_of_psycopg,
    ],
)

Blocking = Callable[[str, Path], AbstractContextManager[Library]]
OnLoop = Callable[[str], AbstractAsyncContextManager[Library]]


def items(dsn: str, path: Path) -> list[str]:
    """The committed rows of both databases; a test writes into one."""
    select = "SELECT item FROM orders"
    with psycopg.connect(dsn) as connection:
        found = connection.execute(select).fetchall()
    with sqlite3.connect(path) as other:
        found += other.execute(select).fetchall()
    other.close()
    return [row[0] for row in found]


def sell(client: tuff.Client, one: Library) -> None:
    with client.sql_transaction(one.shop, one.connection) as tx:
        one.execute(INSERT)
        tx.publish(ORDERS, "sold one apple")


async def sell_async(client: tuff.AsyncClient, one: Library) -> None:
    async with client.sql_transaction(one.shop, one.connection) as tx:
        await one.execute(INSERT)
        await tx.publish(ORDERS, "sold one apple")


def on_a_loop(
    server: DecidingServer,
    dsn: str,
    library: OnLoop,
    work: Callable[[tuff.AsyncClient, Library], Awaitable[None]],
) -> None:
    async def main() -> None:
        async with (
            tuff.AsyncClient(transport=AsyncDecidingServer(server), retries=0) as client,
            library(dsn) as one,
        ):
            await work(client, one)

    asyncio.run(main())
