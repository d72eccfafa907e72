"""Sessions of SQLAlchemy: savepoints, listeners, registries and small pools."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import tuff
from tests.sql.deciding_server import AsyncDecidingServer, DecidingServer
from tests.sql.test_psycopg import ORDERS, items
from tuff.errors import WrongStateError
from tuff.sql.sqlalchemy import AsyncSqlAlchemyDatabase, SqlAlchemyDatabase

INSERT = text("INSERT INTO orders VALUES ('apple')")
ONE = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.2}


@pytest.fixture
def url(dsn: str) -> str:
    return dsn.replace("postgresql:", "postgresql+psycopg:")


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    made = create_engine(url, **ONE)
    yield made
    made.dispose()


def test_savepoints_within_the_block_work(
    client: tuff.Client, server: DecidingServer, engine: Engine, dsn: str
) -> None:
    with (
        Session(engine) as session,
        client.sql_transaction(SqlAlchemyDatabase(engine, "shop"), session) as tx,
    ):
        with session.begin_nested():
            session.execute(INSERT)
        with session.begin_nested() as savepoint:
            session.execute(text("INSERT INTO orders VALUES ('pear')"))
            savepoint.rollback()
        tx.publish(ORDERS, "sold one apple")

    assert (items(dsn), server.visible) == (["apple"], ["sold one apple"])


def test_a_commit_of_the_session_within_a_savepoint_is_refused(
    client: tuff.Client, server: DecidingServer, engine: Engine, dsn: str
) -> None:
    def commits(session: Session) -> None:
        with client.sql_transaction(SqlAlchemyDatabase(engine, "shop"), session) as tx:
            tx.publish(ORDERS, "sold one apple")
            session.begin_nested()
            session.execute(INSERT)
            session.commit()

    with Session(engine) as session, pytest.raises(WrongStateError, match="don't commit within it"):
        commits(session)

    assert (items(dsn), server.visible) == ([], [])


def test_the_error_of_an_after_commit_listener_is_logged(
    client: tuff.Client, server: DecidingServer, engine: Engine, dsn: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def fails(_session: Session) -> None:
        raise RuntimeError("no mail today")

    with Session(engine) as session:
        event.listen(session, "after_commit", fails)
        with client.sql_transaction(SqlAlchemyDatabase(engine, "shop"), session) as tx:
            session.execute(INSERT)
            tx.publish(ORDERS, "sold one apple")

    assert (items(dsn), server.visible) == (["apple"], ["sold one apple"])
    assert "such as an after_commit listener" in caplog.text
    assert "no mail today" in caplog.text


def test_a_pool_of_one_serves_a_session_that_has_read_before_its_first_block(
    client: tuff.Client, server: DecidingServer, engine: Engine, dsn: str
) -> None:
    with Session(engine) as session:
        session.execute(text("SELECT item FROM orders"))
        with client.sql_transaction(SqlAlchemyDatabase(engine, "shop"), session) as tx:
            session.execute(INSERT)
            tx.publish(ORDERS, "sold one apple")

    assert (items(dsn), server.visible) == (["apple"], ["sold one apple"])


def test_a_pool_of_one_serves_a_session_that_has_read_before_on_a_loop(
    server: DecidingServer, dsn: str
) -> None:
    async def main(url: str) -> None:
        engine = create_async_engine(url, **ONE)
        async with (
            tuff.AsyncClient(transport=AsyncDecidingServer(server), retries=0) as client,
            AsyncSession(engine) as session,
        ):
            await session.execute(text("SELECT item FROM orders"))
            shop = AsyncSqlAlchemyDatabase(engine, "shop")
            async with client.sql_transaction(shop, session) as tx:
                await session.execute(INSERT)
                await tx.publish(ORDERS, "sold one apple")
        await engine.dispose()

    asyncio.run(main(dsn.replace("postgresql:", "postgresql+asyncpg:")))

    assert (items(dsn), server.visible) == (["apple"], ["sold one apple"])


def test_a_registry_of_sessions_has_to_be_called(
    client: tuff.Client, server: DecidingServer, engine: Engine, url: str
) -> None:
    registry: Any = scoped_session(sessionmaker(engine))
    loop_engine = create_async_engine(url)
    loop_registry: Any = async_scoped_session(async_sessionmaker(loop_engine), scopefunc=int)

    with pytest.raises(TypeError, match=r"call it: .*session\(\)"):
        client.sql_transaction(SqlAlchemyDatabase(engine, "shop"), registry)
    with pytest.raises(TypeError, match=r"call it: .*session\(\)"):
        client.sql_transaction(AsyncSqlAlchemyDatabase(loop_engine, "shop"), loop_registry)

    with client.sql_transaction(SqlAlchemyDatabase(engine, "shop"), registry()) as tx:
        tx.publish(ORDERS, "sold one apple")
    registry.remove()
    assert server.visible == ["sold one apple"]
