"""Each library: rows and messages commit together, or neither does."""

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
from tests.http.client import until
from tests.sql.deciding_server import FIRST_POINTER, AsyncDecidingServer, DecidingServer
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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with sqlite3.connect(tmp_path / "shop.sqlite") as connection:
        connection.execute(SQLITE.create_table)
        connection.execute("CREATE TABLE orders (item TEXT PRIMARY KEY)")
    connection.close()
    return tmp_path / "shop.sqlite"


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


class LosesAnswer:
    """A connection that commits, and then loses the answer."""

    def __init__(self, inner: Any, *, is_async: bool) -> None:
        self._inner = inner
        self.commit = self._commit_async if is_async else self._commit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _commit(self) -> None:
        self._inner.commit()
        raise ConnectionError("the answer was lost")

    async def _commit_async(self) -> None:
        await self._inner.commit()
        raise ConnectionError("the answer was lost")


def lose_answers(shop: Any, *, is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    joined = shop.joined
    monkeypatch.setattr(shop, "joined", lambda one: LosesAnswer(joined(one), is_async=is_async))


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


Blocking = Callable[[str, Path], AbstractContextManager[Library]]
OnLoop = Callable[[str], AbstractAsyncContextManager[Library]]


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


@BLOCKING
def test_both_commit(
    client: tuff.Client, server: DecidingServer, dsn: str, path: Path, library: Blocking
) -> None:
    with library(dsn, path) as one:
        sell(client, one)

    assert (items(dsn, path), server.visible) == (["apple"], ["sold one apple"])
    assert server.states == {FIRST_POINTER: "committed"}


@ASYNCIO
def test_both_commit_on_a_loop(
    server: DecidingServer, dsn: str, path: Path, library: OnLoop
) -> None:
    on_a_loop(server, dsn, library, sell_async)

    assert (items(dsn, path), server.visible) == (["apple"], ["sold one apple"])
    assert server.states == {FIRST_POINTER: "committed"}


@BLOCKING
def test_a_refused_prepare_rolls_back(
    client: tuff.Client, server: DecidingServer, dsn: str, path: Path, library: Blocking
) -> None:
    server.at["prepare"] = lambda: server.states.update({FIRST_POINTER: "aborted"})

    with library(dsn, path) as one, pytest.raises(tuff.TransactionTimedOutError):
        sell(client, one)

    assert (items(dsn, path), server.visible) == ([], [])


@ASYNCIO
def test_a_refused_prepare_rolls_back_on_a_loop(
    server: DecidingServer, dsn: str, path: Path, library: OnLoop
) -> None:
    server.at["prepare"] = lambda: server.states.update({FIRST_POINTER: "aborted"})

    with pytest.raises(tuff.TransactionTimedOutError):
        on_a_loop(server, dsn, library, sell_async)

    assert (items(dsn, path), server.visible) == ([], [])


@BLOCKING
def test_a_lost_answer_of_the_commit_is_asked_for(
    client: tuff.Client, server: DecidingServer, dsn: str, path: Path, library: Blocking,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    with library(dsn, path) as one:
        lose_answers(one.shop, is_async=False, monkeypatch=monkeypatch)
        sell(client, one)

    assert (items(dsn, path), server.visible) == (["apple"], ["sold one apple"])


@ASYNCIO
def test_a_lost_answer_of_the_commit_is_asked_for_on_a_loop(
    server: DecidingServer, dsn: str, path: Path, library: OnLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(client: tuff.AsyncClient, one: Library) -> None:
        lose_answers(one.shop, is_async=True, monkeypatch=monkeypatch)
        await sell_async(client, one)

    on_a_loop(server, dsn, library, work)

    assert (items(dsn, path), server.visible) == (["apple"], ["sold one apple"])


@BLOCKING
def test_a_connection_serves_many_blocks_also_after_an_error(
    client: tuff.Client, server: DecidingServer, dsn: str, path: Path, library: Blocking
) -> None:
    with library(dsn, path) as one:
        sell(client, one)
        with pytest.raises(Exception, match=r"(?i)unique"):
            sell(client, one)
        with client.sql_transaction(one.shop, one.connection) as tx:
            one.execute("DELETE FROM orders")
            tx.publish(ORDERS, "no apples")

    assert (items(dsn, path), server.visible) == ([], ["sold one apple", "no apples"])


@ASYNCIO
def test_a_resolver_settles_on_a_loop(
    server: DecidingServer, dsn: str, path: Path, library: OnLoop
) -> None:
    async def work(client: tuff.AsyncClient, one: Library) -> None:
        settled = asyncio.Event()
        server.lose_request["resolve"] = 1
        await sell_async(client, one)
        server.at["resolve"] = settled.set
        async with client.sql_resolver(one.shop, every=0.01):
            await settled.wait()

    on_a_loop(server, dsn, library, work)

    assert (items(dsn, path), server.visible) == (["apple"], ["sold one apple"])


def test_a_connection_of_a_pool_of_asyncpg_is_checked_once(
    server: DecidingServer, dsn: str
) -> None:
    seen: list[str] = []

    def note(logged: Any) -> None:
        seen.append(logged.query.split()[0])

    async def main() -> None:
        shop = AsyncpgDatabase(dsn, "shop")
        async with (
            tuff.AsyncClient(transport=AsyncDecidingServer(server), retries=0) as client,
            asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool,
        ):
            for _ in range(2):
                seen.clear()
                async with pool.acquire() as connection:
                    connection.add_query_logger(note)
                    async with client.sql_transaction(shop, connection) as tx:
                        await tx.publish(ORDERS, "sold one apple")

    asyncio.run(main())

    assert seen == ["BEGIN;", "INSERT", "COMMIT;", "SELECT"]  # the last one is the pool's reset
    assert len(server.visible) == 2


WAITING_COMMIT = """
CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON orders
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION waits();
"""


@ASYNCIO
def test_a_cancellation_during_the_commit_leaves_both_or_neither(
    server: DecidingServer, dsn: str, path: Path, library: OnLoop
) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(WAITING_COMMIT)
    holder = psycopg.connect(dsn, autocommit=True)
    holder.execute("SELECT pg_advisory_lock(1)")

    def commit_waits() -> bool:
        return bool(holder.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall())

    async def work(client: tuff.AsyncClient, one: Library) -> None:
        task = asyncio.get_running_loop().create_task(sell_async(client, one))
        await asyncio.to_thread(until, commit_waits)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        holder.close()
        await client.sql_resolver(one.shop).once()

    on_a_loop(server, dsn, library, work)

    assert len(items(dsn, path)) == len(server.visible)
    assert server.states[FIRST_POINTER] in ("committed", "aborted")
