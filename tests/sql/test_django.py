"""Django: the block is one of `transaction.atomic`."""

import pytest
from django.db import connections, transaction

import tuff
from tests.sql.deciding_server import DecidingServer
from tests.sql.django_aliases import sell
from tests.sql.test_psycopg import ORDERS, items
from tuff.errors import WrongStateError
from tuff.sql.django import DjangoDatabase


def test_a_row_and_a_message_commit_together(
    client: tuff.Client, server: DecidingServer, dsn: str, alias: str
) -> None:
    sell(client, alias)

    assert (items(dsn), server.visible) == (["apple"], ["sold one apple"])


def test_an_error_rolls_both_back(
    client: tuff.Client, server: DecidingServer, dsn: str, alias: str
) -> None:
    sell(client, alias)
    with pytest.raises(Exception, match="duplicate key"):
        sell(client, alias)

    assert (items(dsn), server.visible) == (["apple"], ["sold one apple"])


def test_what_django_would_roll_back_publishes_nothing(
    client: tuff.Client, server: DecidingServer, dsn: str, alias: str
) -> None:
    block = client.sql_transaction(DjangoDatabase("shop", alias), None)
    tx = block.__enter__()
    tx.publish(ORDERS, "sold one apple")
    transaction.set_rollback(True, using=alias)

    with pytest.raises(WrongStateError, match="so the block can't commit"):
        block.__exit__(None, None, None)

    assert (items(dsn), server.visible) == ([], [])
    assert not connections[alias].in_atomic_block


def test_the_error_of_an_on_commit_function_is_logged_and_those_behind_it_run(
    client: tuff.Client, server: DecidingServer, dsn: str, alias: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    called = []

    def fails() -> None:
        raise RuntimeError("no mail today")

    with client.sql_transaction(DjangoDatabase("shop", alias), None) as tx:
        tx.publish(ORDERS, "sold one apple")
        transaction.on_commit(fails, using=alias)
        transaction.on_commit(lambda: called.append("second"), using=alias)

    assert (called, server.visible) == (["second"], ["sold one apple"])
    assert "no mail today" in caplog.text


def test_a_savepoint_within_the_block_works(
    client: tuff.Client, server: DecidingServer, dsn: str, alias: str
) -> None:
    with client.sql_transaction(DjangoDatabase("shop", alias), None) as tx:
        with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES ('apple')")
        tx.publish(ORDERS, "sold one apple")

    assert (items(dsn), server.visible) == (["apple"], ["sold one apple"])


def test_a_block_in_atomic_is_refused(client: tuff.Client, alias: str) -> None:
    with (
        transaction.atomic(using=alias),
        pytest.raises(WrongStateError, match="don't nest it in `atomic`"),
    ):
        sell(client, alias)


def test_a_resolver_settles_what_was_lost(
    client: tuff.Client, server: DecidingServer, dsn: str, alias: str
) -> None:
    server.lose_request["resolve"] = 1
    sell(client, alias)

    settled = client.sql_resolver(DjangoDatabase("shop", alias)).once()

    assert settled.committed_count == 1
    assert server.visible == ["sold one apple"]
