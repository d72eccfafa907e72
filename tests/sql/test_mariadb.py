"""MariaDB by SQLAlchemy and by Django, with each isolation level: rows and messages, and the
question in each state. Only `make prove` runs these, as they need another database."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

import tuff
from tests.sql.databases import Mariadb
from tests.sql.deciding_server import FIRST_POINTER, DecidingServer
from tests.sql.django_aliases import alias_of
from tests.sql.django_aliases import sell as django_sell
from tests.sql.test_psycopg import ORDERS
from tests.sql.test_question import AtCommit
from tuff.client_errors import WrongStateError
from tuff.sql.dialects import MYSQL
from tuff.sql.django import DjangoDatabase
from tuff.sql.sqlalchemy import SqlAlchemyDatabase

pytestmark = pytest.mark.slow
LEVELS = ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


@pytest.fixture(scope="module")
def mariadb() -> Iterator[Mariadb]:
    if shutil.which("mariadb-install-db") is None:
        pytest.skip("MariaDB is not installed")
    with Mariadb() as running:
        yield running


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def engine(mariadb: Mariadb, level: str) -> Engine:
    without = create_engine(mariadb.url.removesuffix("shop"), poolclass=NullPool)
    with without.begin() as connection:
        connection.exec_driver_sql("DROP DATABASE IF EXISTS shop")
        connection.exec_driver_sql("CREATE DATABASE shop")
    made = create_engine(mariadb.url, poolclass=NullPool, isolation_level=level)
    with made.begin() as connection:
        connection.exec_driver_sql(MYSQL.create_table)
        connection.exec_driver_sql("CREATE TABLE orders (item VARCHAR(20) PRIMARY KEY)")
    return made


def items(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return [row[0] for row in connection.exec_driver_sql("SELECT item FROM orders")]


def sell(client: tuff.Client, shop: SqlAlchemyDatabase, engine: Engine) -> None:
    with Session(engine) as session, client.sql_transaction(shop, session) as tx:
        session.execute(text("INSERT INTO orders VALUES ('apple')"))
        tx.publish(ORDERS, "sold one apple")


def test_a_row_and_a_message_commit_together(
    client: tuff.Client, server: DecidingServer, engine: Engine
) -> None:
    sell(client, SqlAlchemyDatabase(engine, "shop"), engine)

    assert (items(engine), server.visible) == (["apple"], ["sold one apple"])


def test_a_missing_table_is_named(client: tuff.Client, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE tuff_commits")

    with pytest.raises(WrongStateError, match="ENGINE=InnoDB"):
        sell(client, SqlAlchemyDatabase(engine, "shop"), engine)


def test_the_resolver_leaves_an_open_transaction_and_settles_it_after_its_end(
    client: tuff.Client, server: DecidingServer, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = SqlAlchemyDatabase(engine, "shop")
    rounds: list[Any] = []
    joined = shop.joined
    monkeypatch.setattr(
        shop,
        "joined",
        lambda session: AtCommit(
            joined(session), lambda: rounds.append(client.sql_resolver(shop).once()), lambda: None
        ),
    )
    server.lose_request["resolve"] = 1

    sell(client, shop, engine)

    assert [each.open_count for each in rounds] == [1]
    assert client.sql_resolver(shop).once().committed_count == 1
    assert server.visible == ["sold one apple"]


def test_a_transaction_whose_connection_was_killed_never_commits(
    client: tuff.Client, server: DecidingServer, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = SqlAlchemyDatabase(engine, "shop")
    joined = shop.joined

    def kill(session: Session) -> None:
        number = session.execute(text("SELECT CONNECTION_ID()")).scalar_one()
        with engine.connect() as other:
            other.exec_driver_sql(f"KILL {number}")

    monkeypatch.setattr(
        shop,
        "joined",
        lambda session: AtCommit(joined(session), lambda: kill(session), lambda: None),
    )

    with pytest.raises(Exception, match=r"(?i)lost connection|gone away|killed"):
        sell(client, shop, engine)

    assert (items(engine), server.visible) == ([], [])
    assert server.states == {FIRST_POINTER: "aborted"}


class TestDjango:
    """Its backend for MySQL, with PyMySQL in the place of mysqlclient."""

    @pytest.fixture
    def alias(self, mariadb: Mariadb, engine: Engine, level: str) -> Iterator[str]:
        import pymysql  # of the extra `prove` alone

        pymysql.install_as_MySQLdb()
        with alias_of(
            "shop",
            ENGINE="django.db.backends.mysql",
            USER="root",
            HOST="127.0.0.1",
            PORT=mariadb.port,
            OPTIONS={"isolation_level": level.lower()},
        ) as made:
            yield made

    def test_a_row_and_a_message_commit_together_or_not_at_all(
        self, client: tuff.Client, server: DecidingServer, engine: Engine, alias: str
    ) -> None:
        django_sell(client, alias)
        with pytest.raises(Exception, match="Duplicate entry"):
            django_sell(client, alias)

        assert (items(engine), server.visible) == (["apple"], ["sold one apple"])
        assert server.states == {FIRST_POINTER: "committed"}  # the first statement was refused

    def test_the_resolver_settles_what_was_lost(
        self, client: tuff.Client, server: DecidingServer, engine: Engine, alias: str
    ) -> None:
        server.lose_request["resolve"] = 1
        django_sell(client, alias)

        settled = client.sql_resolver(DjangoDatabase("shop", alias)).once()

        assert settled.committed_count == 1
        assert server.visible == ["sold one apple"]

    def test_a_missing_table_is_named(
        self, client: tuff.Client, engine: Engine, alias: str
    ) -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE tuff_commits")

        with pytest.raises(WrongStateError, match="ENGINE=InnoDB"):
            django_sell(client, alias)

    def test_a_transaction_whose_connection_was_killed_never_commits(
        self, client: tuff.Client, server: DecidingServer, engine: Engine, alias: str
    ) -> None:
        def kill() -> None:
            with connections[alias].cursor() as cursor:
                cursor.execute("SELECT CONNECTION_ID()")
                number = cursor.fetchone()[0]
            with engine.connect() as other:
                other.exec_driver_sql(f"KILL {number}")

        server.at["prepare"] = kill

        with pytest.raises(Exception, match=r"(?i)lost connection|gone away|killed"):
            django_sell(client, alias)

        assert (items(engine), server.visible) == ([], [])
        assert server.states == {FIRST_POINTER: "aborted"}
