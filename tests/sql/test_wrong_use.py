"""Wrong use: one sentence that says what to do, and nothing is half done."""

import asyncio
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

import tuff
from tests.programs import needs
from tests.sql.databases import Pgbouncer, Postgresql
from tests.sql.deciding_server import DecidingServer
from tests.sql.libraries import sqlite_file
from tests.sql.test_psycopg import ORDERS, items
from tuff.errors import WrongStateError
from tuff.sql.asyncpg import AsyncpgDatabase
from tuff.sql.psycopg import AsyncPsycopgDatabase, PsycopgDatabase
from tuff.sql.sqlalchemy import AsyncSqlAlchemyDatabase, SqlAlchemyDatabase
from tuff.sql.sqlite import SqliteDatabase


def test_a_missing_table_is_named_with_its_statement(client: tuff.Client, bare_dsn: str) -> None:
    shop = PsycopgDatabase(bare_dsn, "shop")
    with (
        psycopg.connect(bare_dsn) as connection,
        pytest.raises(WrongStateError, match=r"CREATE TABLE tuff_commits \(pointer BIGINT PRIM"),
        client.sql_transaction(shop, connection),
    ):
        raise AssertionError("the block must not run")


def test_a_transaction_that_is_open_or_a_block_in_a_block_is_refused(
    client: tuff.Client, connection: "psycopg.Connection[Any]", dsn: str
) -> None:
    shop = PsycopgDatabase(dsn, "shop")
    with (
        client.sql_transaction(shop, connection),
        pytest.raises(WrongStateError, match="don't nest blocks"),
        client.sql_transaction(shop, connection),
    ):
        raise AssertionError("the block must not run")


def test_psycopg_refuses_a_commit_within_the_block(
    client: tuff.Client, connection: "psycopg.Connection[Any]", dsn: str
) -> None:
    shop = PsycopgDatabase(dsn, "shop")

    def commits_itself() -> None:
        with client.sql_transaction(shop, connection):
            connection.execute("INSERT INTO orders VALUES ('apple')")
            connection.commit()

    with pytest.raises(psycopg.ProgrammingError, match="forbidden"):
        commits_itself()

    assert items(dsn) == []


def test_another_name_of_the_same_database_is_refused(
    client: tuff.Client, connection: "psycopg.Connection[Any]", dsn: str
) -> None:
    with client.sql_transaction(PsycopgDatabase(dsn, "shop"), connection):
        pass
    store = PsycopgDatabase(dsn, "store")

    with (
        pytest.raises(WrongStateError, match="under another name than 'store'"),
        client.sql_transaction(store, connection),
    ):
        raise AssertionError("the block must not run")
    with pytest.raises(WrongStateError, match="under another name than 'store'"):
        client.sql_resolver(store).once()


def test_a_connection_to_another_file_is_refused(client: tuff.Client, tmp_path: Path) -> None:
    shop = SqliteDatabase(sqlite_file(tmp_path / "one.sqlite"), "shop")
    other = sqlite3.connect(sqlite_file(tmp_path / "other.sqlite"))

    with (
        pytest.raises(WrongStateError, match="leads to another database"),
        client.sql_transaction(shop, other),
    ):
        raise AssertionError("the block must not run")
    other.close()


def test_a_connection_to_a_file_without_the_table_is_not_told_to_create_it(
    client: tuff.Client, tmp_path: Path
) -> None:
    shop = SqliteDatabase(sqlite_file(tmp_path / "one.sqlite"), "shop")
    bare = sqlite3.connect(tmp_path / "bare.sqlite")

    with (
        pytest.raises(WrongStateError, match=r"leads to the database .*bare.sqlite") as caught,
        client.sql_transaction(shop, bare),
    ):
        raise AssertionError("the block must not run")
    bare.close()
    assert "create" not in str(caught.value)


def test_a_connection_to_another_database_of_postgresql_names_that_database(
    client: tuff.Client, cluster: Postgresql, dsn: str, connection: "psycopg.Connection[Any]"
) -> None:
    with psycopg.connect(cluster.dsn) as other:
        name = other.info.dbname
        with (
            pytest.raises(WrongStateError, match=f"the database '{name}', which has no table"),
            client.sql_transaction(PsycopgDatabase(dsn, "shop"), other),
        ):
            raise AssertionError("the block must not run")

    with (
        pytest.raises(WrongStateError, match=f"CREATE TABLE .* leads to the database '{name}'"),
        client.sql_transaction(PsycopgDatabase(cluster.dsn, "shop"), connection),
    ):
        raise AssertionError("the block must not run")


def test_a_resolver_of_a_file_that_no_program_used_settles_nothing(
    client: tuff.Client, server: DecidingServer, tmp_path: Path
) -> None:
    mine = sqlite3.connect(sqlite_file(tmp_path / "one.sqlite"))
    server.lose_request["resolve"] = 1
    shop = SqliteDatabase(tmp_path / "one.sqlite", "shop")
    with client.sql_transaction(shop, mine) as tx:
        tx.publish(ORDERS, "sold one apple")
    mine.close()

    with pytest.raises(WrongStateError, match="no program has used database 'shop'"):
        client.sql_resolver(SqliteDatabase(sqlite_file(tmp_path / "other"), "shop")).once()
    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        client.sql_resolver(SqliteDatabase(tmp_path / "missing", "shop")).once()
    assert list(server.states.values()) == ["prepared"]


def test_a_file_that_was_replaced_is_not_asked(client: tuff.Client, tmp_path: Path) -> None:
    path = sqlite_file(tmp_path / "one.sqlite")
    shop = SqliteDatabase(path, "shop")
    mine = sqlite3.connect(path)
    with client.sql_transaction(shop, mine):
        pass
    mine.close()
    path.unlink()
    shutil.copy(sqlite_file(tmp_path / "new"), path)
    decider = client._decider_of(shop)

    with pytest.raises(WrongStateError, match="leads to another database"):
        client._driver.run(decider.ask(1))


def test_sqlite_in_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="give a file"):
        SqliteDatabase(":memory:", "shop")
    with pytest.raises(ValueError, match="give a file"):
        SqlAlchemyDatabase(create_engine("sqlite://"), "shop")


def test_a_commit_of_sqlite_within_the_block_is_found(
    client: tuff.Client, server: DecidingServer, tmp_path: Path
) -> None:
    connection = sqlite3.connect(sqlite_file(tmp_path / "one.sqlite"))
    shop = SqliteDatabase(tmp_path / "one.sqlite", "shop")

    def commits_itself() -> None:
        with client.sql_transaction(shop, connection) as tx:
            tx.publish(ORDERS, "sold one apple")
            connection.commit()

    with pytest.raises(WrongStateError, match="committed or rolled back within the block"):
        commits_itself()

    assert server.visible == []
    connection.close()


def test_a_replica_is_refused(client: tuff.Client, dsn: str) -> None:
    with (
        psycopg.connect(dsn) as connection,
        client.sql_transaction(PsycopgDatabase(dsn, "shop"), connection),
    ):
        pass
    read_only = dsn + "?options=-cdefault_transaction_read_only%3Don"
    shop = PsycopgDatabase(read_only, "shop")
    with (
        psycopg.connect(read_only) as connection,
        pytest.raises(WrongStateError, match="connect to the primary"),
        client.sql_transaction(shop, connection) as tx,
    ):
        tx.publish(ORDERS, "sold one apple")


@needs("pgbouncer")
@pytest.mark.parametrize("mode", ["statement", "transaction", "session"])
def test_a_pooler_works_unless_it_allows_no_transactions(
    client: tuff.Client, server: DecidingServer, cluster: Postgresql, dsn: str, mode: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    name = dsn.rpartition("/")[2]
    with Pgbouncer(cluster.port, mode) as pooler:
        pooled = f"postgresql://postgres@127.0.0.1:{pooler.port}/{name}"
        shop = PsycopgDatabase(pooled, "shop")
        with psycopg.connect(pooled, prepare_threshold=None) as connection:
            if mode == "statement":
                with (
                    pytest.raises(WrongStateError, match="use transaction or session mode"),
                    client.sql_transaction(shop, connection),
                ):
                    raise AssertionError("the block must not run")
            else:
                with client.sql_transaction(shop, connection) as tx:
                    connection.execute("INSERT INTO orders VALUES ('apple')")
                    tx.publish(ORDERS, "sold one apple")
    expected = [] if mode == "statement" else ["apple"]
    assert (items(dsn), len(server.visible)) == (expected, len(expected))


class TestSqlAlchemy:
    """Sessions."""

    @pytest.fixture
    def url(self, dsn: str) -> str:
        return dsn.replace("postgresql:", "postgresql+psycopg:")

    def test_autocommit_is_refused(self, client: tuff.Client, url: str) -> None:
        shop = SqlAlchemyDatabase(create_engine(url, poolclass=NullPool), "shop")
        automatic = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with (
            Session(automatic) as session,
            pytest.raises(WrongStateError, match="commits each statement by itself"),
            client.sql_transaction(shop, session),
        ):
            raise AssertionError("the block must not run")

    def test_a_second_database_in_the_block_is_refused(
        self, client: tuff.Client, url: str, dsn: str, tmp_path: Path
    ) -> None:
        engine = create_engine(url, poolclass=NullPool)
        other = create_engine(f"sqlite:///{tmp_path / 'other'}", poolclass=NullPool)

        def uses_both(session: Session) -> None:
            with client.sql_transaction(SqlAlchemyDatabase(engine, "shop"), session) as tx:
                session.execute(text("INSERT INTO orders VALUES ('apple')"))
                tx.publish(ORDERS, "sold one apple")
                session.execute(text("SELECT 1"), bind_arguments={"bind": other})

        with (
            Session(engine) as session,
            pytest.raises(WrongStateError, match="a second database in the block"),
        ):
            uses_both(session)
        assert items(dsn) == []

    @pytest.mark.parametrize("way", ["commit", "rollback", "close"])
    def test_the_end_of_the_session_within_the_block_is_refused(
        self, client: tuff.Client, server: DecidingServer, url: str, dsn: str, way: str
    ) -> None:
        engine = create_engine(url, poolclass=NullPool)

        def ends_it(session: Session) -> None:
            with client.sql_transaction(SqlAlchemyDatabase(engine, "shop"), session) as tx:
                session.execute(text("INSERT INTO orders VALUES ('apple')"))
                tx.publish(ORDERS, "sold one apple")
                getattr(session, way)()

        with Session(engine) as session, pytest.raises(WrongStateError, match="within"):
            ends_it(session)
        assert (items(dsn), server.visible) == ([], [])

    def test_a_block_in_a_block_is_refused(self, client: tuff.Client, url: str) -> None:
        engine = create_engine(url, poolclass=NullPool)
        shop = SqlAlchemyDatabase(engine, "shop")
        with (
            Session(engine) as session,
            client.sql_transaction(shop, session),
            pytest.raises(WrongStateError, match="don't nest"),
            client.sql_transaction(shop, session),
        ):
            raise AssertionError("the block must not run")


class TestWrongArguments:
    """One sentence for each, and no AttributeError."""

    @pytest.mark.parametrize("database", ["postgresql:///shop", None, create_engine("sqlite://")])
    def test_what_is_no_database_is_refused(self, client: tuff.Client, database: Any) -> None:
        with pytest.raises(TypeError, match="the database is an object of tuff"):
            client.sql_transaction(database, None)
        with pytest.raises(TypeError, match="the database is an object of tuff"):
            client.sql_resolver(database)

    @pytest.mark.parametrize("connection", ["shop.sqlite", None, create_engine("sqlite://")])
    def test_what_is_no_connection_is_refused(self, client: tuff.Client, connection: Any) -> None:
        engine = create_engine("sqlite:///shop.sqlite")
        loop_engine = create_async_engine("postgresql+asyncpg:///shop")
        databases: dict[str, Any] = {
            "sqlite3.Connection": SqliteDatabase("shop.sqlite", "shop"),
            "psycopg.Connection": PsycopgDatabase("postgresql:///shop", "shop"),
            "psycopg.AsyncConnection": AsyncPsycopgDatabase("postgresql:///shop", "shop"),
            "asyncpg.Connection": AsyncpgDatabase("postgresql:///shop", "shop"),
            "sqlalchemy.Session": SqlAlchemyDatabase(engine, "shop"),
            "sqlalchemy.AsyncSession": AsyncSqlAlchemyDatabase(loop_engine, "shop"),
        }

        for name, database in databases.items():
            with pytest.raises(TypeError, match=f"takes {name}, not an object of type"):
                client.sql_transaction(database, connection)

    def test_a_closed_connection_is_refused(
        self, client: tuff.Client, connection: "psycopg.Connection[Any]", dsn: str, tmp_path: Path
    ) -> None:
        file = sqlite3.connect(sqlite_file(tmp_path / "one.sqlite"))
        file.close()
        connection.close()

        with pytest.raises(WrongStateError, match="the connection is closed"):
            client.sql_transaction(SqliteDatabase(tmp_path / "one.sqlite", "shop"), file)
        with pytest.raises(WrongStateError, match="the connection is closed"):
            client.sql_transaction(PsycopgDatabase(dsn, "shop"), connection)

    def test_a_closed_connection_of_asyncpg_is_refused(self, client: tuff.Client, dsn: str) -> None:
        async def closed_and_released() -> list[Any]:
            async with asyncpg.create_pool(dsn, min_size=1) as pool, pool.acquire() as released:
                closed = await asyncpg.connect(dsn)
                await closed.close()
            return [closed, released]

        for connection in asyncio.run(closed_and_released()):
            with pytest.raises(WrongStateError, match="the connection is closed"):
                client.sql_transaction(AsyncpgDatabase(dsn, "shop"), connection)

    def test_what_is_no_engine_is_refused(self) -> None:
        url: Any = "sqlite:///shop.sqlite"
        engine: Any = create_engine(url)
        with pytest.raises(TypeError, match="give an Engine of SQLAlchemy, and not a str"):
            SqlAlchemyDatabase(url, "shop")
        with pytest.raises(TypeError, match="give an AsyncEngine of SQLAlchemy, and not a Engine"):
            AsyncSqlAlchemyDatabase(engine, "shop")
