"""The question whether the database committed, at each moment between the prepare and the end."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

import tuff
from tests.sql.deciding_server import FIRST_POINTER, DecidingServer
from tests.sql.test_psycopg import ORDERS, commits, items
from tuff.sql.database import SqlConnection
from tuff.sql.psycopg import PsycopgDatabase

Connection = psycopg.Connection[tuple[Any, ...]]


def nothing() -> None:
    pass


class AtCommit:
    """A connection that calls a function before the commit of the database, and one after it."""

    def __init__(
        self, inner: SqlConnection, before: Callable[[], object], after: Callable[[], object]
    ) -> None:
        self._inner = inner
        self._before, self._after = before, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self) -> None:
        self._before()
        self._inner.commit()
        self._after()


class Shop(PsycopgDatabase):
    """A database whose commits call `before` and `after`, and `on_connect` for each question."""

    before: Callable[[], object] = staticmethod(nothing)
    after: Callable[[], object] = staticmethod(nothing)
    on_connect: Callable[[], object] = staticmethod(nothing)

    def connect(self) -> Any:
        self.on_connect()
        return super().connect()

    def joined(self, connection: Connection) -> Any:
        return AtCommit(super().joined(connection), self.before, self.after)


@pytest.fixture
def shop(dsn: str) -> Shop:
    return Shop(dsn, "shop")


def sell(client: tuff.Client, shop: Shop, connection: Connection, item: str = "apple") -> None:
    with client.sql_transaction(shop, connection) as tx:
        connection.execute("INSERT INTO orders VALUES (%s)", [item])
        tx.publish(ORDERS, f"sold one {item}")


def terminates(dsn: str, connection: Connection) -> Callable[[], None]:
    """Ends the server's side of a connection, as a kill of its process does."""

    def run() -> None:
        with psycopg.connect(dsn) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", [connection.info.backend_pid])

    return run


def test_while_the_database_transaction_is_open_a_resolver_leaves_it_alone(
    client: tuff.Client, server: DecidingServer, shop: Shop, connection: Connection, dsn: str,
) -> None:  # fmt: skip
    rounds = []
    shop.before = lambda: rounds.append(client.sql_resolver(shop).once())

    sell(client, shop, connection)

    assert [each.open_count for each in rounds] == [1]
    assert (items(dsn), server.visible) == (["apple"], ["sold one apple"])


def test_a_database_transaction_that_ended_before_the_commit_never_commits(
    client: tuff.Client, server: DecidingServer, shop: Shop, connection: Connection, dsn: str,
) -> None:  # fmt: skip
    shop.before = terminates(dsn, connection)

    with pytest.raises(psycopg.OperationalError):
        sell(client, shop, connection)

    assert (items(dsn), server.visible) == ([], [])
    assert server.states == {FIRST_POINTER: "aborted"}


def test_a_lost_answer_of_the_commit_is_asked_for_and_no_error(
    client: tuff.Client, server: DecidingServer, shop: Shop, connection: Connection, dsn: str,
) -> None:  # fmt: skip
    def lose() -> None:
        connection.close()
        raise psycopg.OperationalError("the connection was lost")

    shop.after = lose

    sell(client, shop, connection)

    assert (items(dsn), server.visible) == (["apple"], ["sold one apple"])


def test_an_interrupt_after_the_commit_is_raised_and_the_messages_are_there(
    client: tuff.Client, server: DecidingServer, shop: Shop, connection: Connection,
) -> None:  # fmt: skip
    def interrupt() -> None:
        raise KeyboardInterrupt

    shop.after = interrupt

    with pytest.raises(KeyboardInterrupt):
        sell(client, shop, connection)

    assert server.visible == ["sold one apple"]


@pytest.mark.parametrize("committed", [True, False])
def test_an_outcome_that_cannot_be_asked_for_is_unknown_until_the_resolver_settles(
    client: tuff.Client, server: DecidingServer, shop: Shop, connection: Connection, dsn: str,
    committed: bool,
) -> None:  # fmt: skip
    def lose() -> None:
        connection.close()
        shop.on_connect = away
        raise psycopg.OperationalError("the connection was lost")

    def away() -> None:
        raise psycopg.OperationalError("the database is away")

    setattr(shop, "after" if committed else "before", lose)

    with pytest.raises(tuff.OutcomeUnknownError, match="a resolver makes its messages follow"):
        sell(client, shop, connection)

    assert server.states == {FIRST_POINTER: "prepared"}
    shop.on_connect = nothing
    settled = client.sql_resolver(shop).once()
    assert (settled.committed_count, settled.aborted_count) == (int(committed), int(not committed))
    assert len(items(dsn)) == len(server.visible) == int(committed)


def test_two_resolvers_at_once_get_the_same_answer(
    client: tuff.Client, server: DecidingServer, shop: Shop, connection: Connection, dsn: str,
) -> None:  # fmt: skip
    server.lose_request["resolve"] = 1
    sell(client, shop, connection)

    def another_settles_and_deletes() -> None:
        server.at.clear()
        client.sql_resolver(shop).once()
        with psycopg.connect(dsn) as other:
            other.execute("DELETE FROM tuff_commits WHERE pointer > 0")

    # After this one has listed it, and before it asks the database.
    shop.on_connect = nothing
    server.at["prepared"] = lambda: setattr(
        shop, "on_connect", lambda: (setattr(shop, "on_connect", nothing), another())
    )
    another = another_settles_and_deletes
    settled = client.sql_resolver(shop).once()

    assert settled.committed_count == 1
    assert server.states == {FIRST_POINTER: "committed"}
    assert server.visible == ["sold one apple"]


def test_rows_of_settled_transactions_are_deleted_except_for_the_newest(
    client: tuff.Client, server: DecidingServer, shop: Shop, connection: Connection, dsn: str,
) -> None:  # fmt: skip
    for item in ("apple", "pear", "plum"):
        sell(client, shop, connection, item)

    assert client.sql_resolver(shop).once().deleted_count == 2
    assert commits(dsn) == [FIRST_POINTER + 2]


def test_a_server_that_does_not_know_the_newest_row_gets_none_deleted(
    client: tuff.Client, server: DecidingServer, shop: Shop, connection: Connection, dsn: str,
) -> None:  # fmt: skip
    for item in ("apple", "pear", "plum"):
        sell(client, shop, connection, item)
    server.states[FIRST_POINTER + 2] = "aborted"

    assert client.sql_resolver(shop).once().deleted_count == 0
    assert len(commits(dsn)) == 3


@pytest.mark.parametrize("moment", ["the rows are read", "the prepared ones are listed"])
def test_a_row_whose_transaction_was_prepared_during_a_round_is_not_deleted(
    client: tuff.Client, server: DecidingServer, shop: Shop, connection: Connection, dsn: str,
    moment: str,
) -> None:  # fmt: skip
    sell(client, shop, connection, "apple")

    def sell_two_and_lose_the_resolve_of_the_first() -> None:
        shop.on_connect = nothing
        server.at.clear()
        server.lose_request["resolve"] = 1
        sell(client, shop, connection, "pear")
        sell(client, shop, connection, "plum")

    if moment == "the rows are read":
        shop.on_connect = sell_two_and_lose_the_resolve_of_the_first
    else:
        server.at["prepared"] = sell_two_and_lose_the_resolve_of_the_first
    client.sql_resolver(shop).once()
    client.sql_resolver(shop).once()

    assert items(dsn) == ["apple", "pear", "plum"]
    assert sorted(server.visible) == ["sold one apple", "sold one pear", "sold one plum"]


def test_a_resolver_that_works_settles_nothing_by_hand(
    client: tuff.Client, shop: Shop, connection: Connection
) -> None:
    """The round behind it took all that was listed by hand for old enough."""
    sell(client, shop, connection)
    resolver = client.sql_resolver(shop)
    run = resolver._flows.run()
    next(run)

    with pytest.raises(tuff.WrongStateError, match="call `once` of another one"):
        resolver.once()

    run.close()
    assert resolver.once().open_count == 0


class CutOff(AtCommit):
    """A connection that the network cuts at the commit: the database hears nothing more."""

    def rollback(self) -> None:
        raise psycopg.OperationalError("the network is down")


@pytest.mark.parametrize("commits", [True, False])
def test_a_failed_commit_whose_transaction_is_still_open_counts_as_neither(
    client: tuff.Client, server: DecidingServer, shop: Shop, connection: Connection, dsn: str,
    commits: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def cut() -> None:
        raise psycopg.OperationalError("the network is down")

    # psycopg rolls a transaction back that is garbage.
    inner = PsycopgDatabase(dsn, "shop").joined(connection)
    monkeypatch.setattr(shop, "joined", lambda _: CutOff(inner, before=cut, after=nothing))

    with pytest.raises(tuff.OutcomeUnknownError, match="a resolver makes its messages follow"):
        sell(client, shop, connection)

    assert (server.states, server.visible) == ({FIRST_POINTER: "prepared"}, [])
    connection.execute("COMMIT" if commits else "ROLLBACK")
    client.sql_resolver(shop).once()
    assert len(items(dsn)) == len(server.visible) == int(commits)


def test_a_row_that_a_resolver_settled_and_deleted_counts_as_committed(
    client: tuff.Client, server: DecidingServer, shop: Shop, connection: Connection, dsn: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def settle_and_delete() -> None:
        client.sql_resolver(shop).once()
        with psycopg.connect(dsn) as other:
            other.execute("DELETE FROM tuff_commits WHERE pointer > 0")

    shop.after = settle_and_delete

    sell(client, shop, connection)

    assert (items(dsn), server.visible) == (["apple"], ["sold one apple"])
    assert "but an error came after it" in caplog.text


def test_a_resolver_in_the_background_outlasts_an_outage_and_settles(
    client: tuff.Client, server: DecidingServer, shop: Shop, connection: Connection,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    server.lose_request["resolve"] = 1
    sell(client, shop, connection)
    settled = threading.Event()
    server.lose_request["prepared"] = 1
    server.at["resolve"] = settled.set

    with caplog.at_level(logging.WARNING), client.sql_resolver(shop, every=0.01):
        assert settled.wait(60)

    assert server.visible == ["sold one apple"]
    assert "the resolver of database shop waits for the database or the server" in caplog.text


@pytest.mark.parametrize("level", list(psycopg.IsolationLevel))
def test_each_isolation_level_of_the_program_is_answered_alike(
    client: tuff.Client, server: DecidingServer, shop: Shop, connection: Connection, dsn: str,
    level: psycopg.IsolationLevel,
) -> None:  # fmt: skip
    connection.isolation_level = level
    rounds = []
    shop.before = lambda: rounds.append(client.sql_resolver(shop).once())

    sell(client, shop, connection)
    shop.before = terminates(dsn, connection)
    with pytest.raises(psycopg.OperationalError):
        sell(client, shop, connection, "pear")

    assert [each.open_count for each in rounds] == [1]
    assert (items(dsn), server.visible) == (["apple"], ["sold one apple"])


def test_serializable_blocks_at_once_do_not_fail_because_of_the_table(
    client: tuff.Client, server: DecidingServer, shop: Shop, dsn: str
) -> None:
    both_inserted = threading.Barrier(2)
    shop.before = both_inserted.wait
    failed: list[Exception] = []

    def run(item: str) -> None:
        try:
            with psycopg.connect(dsn) as connection:
                connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
                sell(client, shop, connection, item)
        except Exception as error:  # noqa: BLE001 - shown by the assertion
            failed.append(error)

    threads = [threading.Thread(target=run, args=(item,)) for item in ("apple", "pear")]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert failed == []
    assert items(dsn) == ["apple", "pear"]
