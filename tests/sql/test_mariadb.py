"""MariaDB by SQLAlchemy and by Django, with each isolation level: rows and messages, the question
in each state, and the positions of a consumer group. Only `make prove` runs these, as they need
another database."""

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

import tuff
from tests.http.process import ServerProcess, serve
from tests.programs import require
from tests.sql.databases import Mariadb
from tests.sql.deciding_server import FIRST_POINTER, DecidingServer
from tests.sql.django_aliases import alias_of
from tests.sql.django_aliases import sell as django_sell
from tests.sql.test_psycopg import ORDERS
from tests.sql.test_question import AtCommit
from tuff.errors import PartitionNotAssignedError, WrongStateError
from tuff.sql.dialects import CREATE_POSITIONS, MYSQL
from tuff.sql.django import DjangoDatabase
from tuff.sql.sqlalchemy import SqlAlchemyDatabase

pytestmark = pytest.mark.slow
LEVELS = ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


@pytest.fixture(scope="module")
def mariadb() -> Iterator[Mariadb]:
    require("mariadbd")
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


def test_a_statement_that_commits_by_itself_within_the_block_is_found(
    client: tuff.Client, server: DecidingServer, engine: Engine
) -> None:
    def alters(session: Session) -> None:
        with client.sql_transaction(SqlAlchemyDatabase(engine, "shop"), session) as tx:
            tx.publish(ORDERS, "sold one apple")
            session.execute(text("ALTER TABLE orders ADD COLUMN price INTEGER"))
            session.execute(text("INSERT INTO orders VALUES ('apple', 1)"))

    with Session(engine) as session, pytest.raises(WrongStateError, match="within the block"):
        alters(session)

    assert (items(engine), server.visible) == ([], [])


def test_a_transaction_that_something_else_ended_behind_the_row_publishes_nothing(
    client: tuff.Client, server: DecidingServer, engine: Engine
) -> None:
    def ends_it(session: Session) -> None:
        session.connection().exec_driver_sql("ROLLBACK")

    def sells(session: Session) -> None:
        with client.sql_transaction(SqlAlchemyDatabase(engine, "shop"), session) as tx:
            session.execute(text("INSERT INTO orders VALUES ('apple')"))
            tx.publish(ORDERS, "sold one apple")

    with Session(engine) as session:
        event.listen(session, "before_commit", ends_it)
        with pytest.raises(WrongStateError, match="did not commit"):
            sells(session)

    assert (items(engine), server.visible) == ([], [])
    assert server.states == {FIRST_POINTER: "aborted"}


class TestGroup:
    """A consumer group whose positions are in MariaDB."""

    @pytest.fixture
    def process(self, tmp_path: Path) -> Iterator[ServerProcess]:
        with serve(tmp_path) as running:
            yield running

    @pytest.fixture
    def client(self, process: ServerProcess) -> Iterator[tuff.Client]:
        with tuff.Client(process.url, retries=0) as made:
            yield made

    def test_rows_messages_and_the_position_commit_together(
        self, client: tuff.Client, engine: Engine
    ) -> None:
        copies = publish_fruits(client)
        create_positions(engine)
        shop = SqlAlchemyDatabase(engine, "shop")

        for error in (ZeroDivisionError, ZeroDivisionError, None):
            with (
                Session(engine) as session,
                suppress(ZeroDivisionError),
                client.consumer(ORDERS, group="billing", database=shop, batch=1) as consumer,
            ):
                for number, (batch, tx) in enumerate(consumer.transactions(session), 1):
                    insert(session, batch)
                    tx.publish(copies, batch[0].payload)
                    if error is not None and number == 2:
                        raise error  # rolls the second one back
                    if error is None:
                        break

        copied = [message.payload.decode() for message in client.poll(copies)]
        assert sorted(copied) == sorted(items(engine)) == FRUITS

    def test_a_member_that_lost_its_partition_can_not_commit(
        self, client: tuff.Client, engine: Engine
    ) -> None:
        publish_fruits(client)
        create_positions(engine)
        shop = SqlAlchemyDatabase(engine, "shop")

        with (
            Session(engine) as session,
            client.consumer(ORDERS, group="billing", database=shop, batch=1) as consumer,
            ExitStack() as stack,
        ):
            batch = consumer.poll(wait=5)
            assert batch is not None
            stack.enter_context(consumer.transaction(batch, session))
            insert(session, batch)
            session.execute(text("SELECT item FROM orders"))  # from here on with a snapshot
            with engine.begin() as successor:
                successor.exec_driver_sql("UPDATE tuff_positions SET owner = 'another'")

            with pytest.raises(PartitionNotAssignedError, match="another member of the group has"):
                stack.close()
        assert items(engine) == []

    def test_a_missing_table_is_named(self, client: tuff.Client, engine: Engine) -> None:
        publish_fruits(client)
        shop = SqlAlchemyDatabase(engine, "shop")

        with (
            client.consumer(ORDERS, group="billing", database=shop) as consumer,
            pytest.raises(
                WrongStateError, match=f"no table tuff_positions.*{CREATE_POSITIONS[:20]}"
            ),
        ):
            consumer.poll(wait=5)


FRUITS = ["apple", "pear", "plum"]


def publish_fruits(client: tuff.Client) -> tuff.TopicId:
    """Messages in the topic of orders; returns the topic of their copies."""
    copies = tuff.TopicId(ORDERS.namespace, "copies")
    client.topics.create(ORDERS)
    client.topics.create(copies)
    client.publish(ORDERS, *FRUITS)
    return copies


def create_positions(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(CREATE_POSITIONS)


def insert(session: Session, batch: tuff.Batch) -> None:
    for message in batch:
        session.execute(text("INSERT INTO orders VALUES (:item)"), {"item": message.payload})


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
