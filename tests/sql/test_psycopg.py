"""Rows of PostgreSQL and messages: both or neither, by psycopg."""

from typing import Any

import psycopg
import pytest

import tuff
from tests.sql.deciding_server import FIRST_POINTER, DecidingServer
from tuff.sql.psycopg import PsycopgDatabase

Connection = psycopg.Connection[Any]
ORDERS = tuff.TopicId("shop", "orders")


@pytest.fixture
def shop(dsn: str) -> PsycopgDatabase:
    return PsycopgDatabase(dsn, "shop")


def items(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        return [row[0] for row in connection.execute("SELECT item FROM orders ORDER BY item")]


def commits(dsn: str) -> list[int]:
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT pointer FROM tuff_commits WHERE pointer > 0")
        return [row[0] for row in found]


def sell(
    client: tuff.Client,
    shop: PsycopgDatabase,
    connection: Connection,
    statement: str = "INSERT INTO orders VALUES ('apple')",
) -> None:
    with client.sql_transaction(shop, connection) as tx:
        connection.execute(statement)
        tx.publish(ORDERS, "sold one apple")


def test_a_row_and_a_message_commit_together(
    client: tuff.Client, server: DecidingServer, shop: PsycopgDatabase,
    connection: Connection, dsn: str,
) -> None:  # fmt: skip
    sell(client, shop, connection)

    assert (items(dsn), server.visible) == (["apple"], ["sold one apple"])
    assert server.seen == ["transactions", "prepare", "resolve"]
    assert commits(dsn) == [FIRST_POINTER]


def test_an_error_rolls_both_back(
    client: tuff.Client, server: DecidingServer, shop: PsycopgDatabase,
    connection: Connection, dsn: str,
) -> None:  # fmt: skip
    def fails() -> None:
        with client.sql_transaction(shop, connection) as tx:
            connection.execute("INSERT INTO orders VALUES ('apple')")
            tx.publish(ORDERS, "sold one apple")
            raise RuntimeError("no apples")

    with pytest.raises(RuntimeError, match="no apples"):
        fails()

    assert (items(dsn), server.visible, commits(dsn)) == ([], [], [])
    assert server.states == {FIRST_POINTER: "aborted"}


def test_a_block_without_messages_asks_no_server(
    client: tuff.Client, server: DecidingServer, shop: PsycopgDatabase,
    connection: Connection, dsn: str,
) -> None:  # fmt: skip
    with client.sql_transaction(shop, connection):
        connection.execute("INSERT INTO orders VALUES ('apple')")

    assert (items(dsn), server.seen, commits(dsn)) == (["apple"], [], [])


@pytest.mark.parametrize("call", ["transactions", "prepare"])
@pytest.mark.parametrize("way", ["lose_request", "lose_reply"])
def test_a_call_that_is_lost_before_the_commit_rolls_both_back(
    client: tuff.Client, server: DecidingServer, shop: PsycopgDatabase,
    connection: Connection, dsn: str, call: str, way: str,
) -> None:  # fmt: skip
    getattr(server, way)[call] = 1

    with pytest.raises(tuff.ConnectionLostError):
        sell(client, shop, connection)

    assert (items(dsn), server.visible) == ([], [])
    assert "prepared" not in server.states.values()


@pytest.mark.parametrize("way", ["lose_request", "lose_reply"])
def test_a_lost_resolve_is_a_log_line_and_the_resolver_settles(
    client: tuff.Client, server: DecidingServer, shop: PsycopgDatabase,
    connection: Connection, dsn: str, way: str, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    getattr(server, way)["resolve"] = 1

    sell(client, shop, connection)
    client.sql_resolver(shop).once()

    assert "the server was not told" in caplog.text
    assert (items(dsn), server.visible) == (["apple"], ["sold one apple"])


def test_a_commit_that_the_database_refuses_aborts_the_messages(
    client: tuff.Client, server: DecidingServer, shop: PsycopgDatabase,
    connection: Connection, dsn: str,
) -> None:  # fmt: skip
    connection.execute("ALTER TABLE orders DROP CONSTRAINT orders_pkey")
    connection.execute("ALTER TABLE orders ADD UNIQUE (item) DEFERRABLE INITIALLY DEFERRED")
    connection.commit()

    with pytest.raises(psycopg.errors.UniqueViolation):
        sell(client, shop, connection, "INSERT INTO orders VALUES ('apple'), ('apple')")

    assert (items(dsn), server.visible) == ([], [])
    assert server.states == {FIRST_POINTER: "aborted"}
