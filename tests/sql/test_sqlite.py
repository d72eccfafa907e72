"""SQLite: the settings of its driver that change what `commit` does, and its rows."""

import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import Session

import tuff
from tests.sql.deciding_server import DecidingServer
from tests.sql.libraries import INSERT, Library, sell
from tests.sql.test_psycopg import ORDERS
from tuff.errors import WrongStateError
from tuff.sql.sqlalchemy import SqlAlchemyDatabase
from tuff.sql.sqlite import SqliteDatabase

HAS_AUTOCOMMIT = sys.version_info >= (3, 12)


class Automatic(sqlite3.Connection):
    """What `autocommit=True` means since Python 3.12, for an older one."""

    autocommit = True

    def commit(self) -> None:
        """Nothing, as documented."""

    def rollback(self) -> None:
        """Nothing, as documented."""


class Open(sqlite3.Connection):
    """What `autocommit=False` means since Python 3.12, for an older one."""

    autocommit = False

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.execute("BEGIN")

    def commit(self) -> None:
        self.execute("COMMIT")
        self.execute("BEGIN")

    def rollback(self) -> None:
        self.execute("ROLLBACK")
        self.execute("BEGIN")


def connect(path: Path, *, autocommit: bool) -> sqlite3.Connection:
    options: dict[str, Any] = {"timeout": 0.2}
    if HAS_AUTOCOMMIT:
        return sqlite3.connect(path, **options, autocommit=autocommit)
    options["factory"] = Automatic if autocommit else Open
    return sqlite3.connect(path, isolation_level=None, **options)


def items(path: Path) -> list[str]:
    """The committed rows."""
    with closing(sqlite3.connect(path)) as connection:
        return [row[0] for row in connection.execute("SELECT item FROM orders ORDER BY item")]


@pytest.mark.parametrize("autocommit", [True, False])
def test_the_rows_and_the_messages_commit_together(
    client: tuff.Client, server: DecidingServer, path: Path, autocommit: bool
) -> None:
    with closing(connect(path, autocommit=autocommit)) as connection:
        sell(client, Library(SqliteDatabase(path, "shop"), connection, connection.execute))
        assert (items(path), server.visible) == (["apple"], ["sold one apple"])
        assert connection.in_transaction is not autocommit

    assert items(path) == ["apple"]


@pytest.mark.parametrize("autocommit", [True, False])
def test_an_error_rolls_both_back(
    client: tuff.Client, server: DecidingServer, path: Path, autocommit: bool
) -> None:
    def fails(connection: sqlite3.Connection) -> None:
        with client.sql_transaction(SqliteDatabase(path, "shop"), connection) as tx:
            connection.execute(INSERT)
            tx.publish(ORDERS, "sold one apple")
            raise RuntimeError("no apples")

    with closing(connect(path, autocommit=autocommit)) as connection:
        with pytest.raises(RuntimeError, match="no apples"):
            fails(connection)
        assert connection.in_transaction is not autocommit

    assert (items(path), server.visible) == ([], [])


def test_the_next_block_and_other_connections_work_after_a_block_without_autocommit(
    client: tuff.Client, server: DecidingServer, path: Path
) -> None:
    with (
        closing(connect(path, autocommit=False)) as one,
        closing(connect(path, autocommit=False)) as other,
    ):
        for number, connection in enumerate((one, other, one)):
            with client.sql_transaction(SqliteDatabase(path, "shop"), connection) as tx:
                connection.execute("INSERT INTO orders VALUES (?)", [str(number)])
                tx.publish(ORDERS, str(number))

    assert items(path) == server.visible == ["0", "1", "2"]


def test_without_autocommit_what_was_not_committed_before_belongs_to_the_block(
    client: tuff.Client, server: DecidingServer, path: Path
) -> None:
    def fails(connection: sqlite3.Connection) -> None:
        with client.sql_transaction(SqliteDatabase(path, "shop"), connection):
            raise RuntimeError("no apples")

    with closing(connect(path, autocommit=False)) as connection:
        with client.sql_transaction(SqliteDatabase(path, "shop"), connection):
            pass  # the first one writes the identity of the database
        connection.execute("INSERT INTO orders VALUES ('pear')")
        sell(client, Library(SqliteDatabase(path, "shop"), connection, connection.execute))
        assert items(path) == ["apple", "pear"]
        connection.execute("INSERT INTO orders VALUES ('plum')")
        with pytest.raises(RuntimeError):
            fails(connection)

    assert items(path) == ["apple", "pear"]


def test_a_commit_without_autocommit_within_the_block_is_found(
    client: tuff.Client, server: DecidingServer, path: Path
) -> None:
    def commits_itself(connection: sqlite3.Connection) -> None:
        with client.sql_transaction(SqliteDatabase(path, "shop"), connection) as tx:
            tx.publish(ORDERS, "sold one apple")
            connection.commit()

    with (
        closing(connect(path, autocommit=False)) as connection,
        pytest.raises(WrongStateError, match="within the block"),
    ):
        commits_itself(connection)

    assert server.visible == []


def test_rows_of_the_users_own_kind_are_no_matter(
    client: tuff.Client, server: DecidingServer, path: Path
) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = lambda cursor, row: {"first": row[0]}
        sell(client, Library(SqliteDatabase(path, "shop"), connection, connection.execute))

    assert (items(path), server.visible) == (["apple"], ["sold one apple"])


@contextmanager
def engine_of(path: Path, **options: Any) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{path}", **options)
    try:
        yield engine
    finally:
        engine.dispose()


def begins_by_listener(engine: Engine) -> None:
    """As SQLAlchemy's manual recommends for savepoints."""

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begun(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")


@pytest.mark.parametrize("prepare", [lambda _engine: None, begins_by_listener])
def test_sessions_work_with_and_without_the_listeners_for_savepoints(
    client: tuff.Client, server: DecidingServer, path: Path, prepare: Callable[[Engine], None]
) -> None:
    with engine_of(path) as engine:
        prepare(engine)
        server.lose_request["resolve"] = 1
        with (
            Session(engine) as session,
            client.sql_transaction(SqlAlchemyDatabase(engine, "shop"), session) as tx,
        ):
            with session.begin_nested():
                session.execute(text(INSERT))
            tx.publish(ORDERS, "sold one apple")
        assert client.sql_resolver(SqlAlchemyDatabase(engine, "shop")).once().committed_count == 1

    assert (items(path), server.visible) == (["apple"], ["sold one apple"])


def test_a_session_whose_driver_commits_each_statement_is_refused(
    client: tuff.Client, path: Path
) -> None:
    with (
        engine_of(path, creator=lambda: connect(path, autocommit=True)) as engine,
        Session(engine) as session,
        pytest.raises(WrongStateError, match="commits each statement by itself"),
        client.sql_transaction(SqlAlchemyDatabase(engine, "shop"), session),
    ):
        raise AssertionError("the block must not run")


def test_a_session_whose_driver_keeps_a_transaction_open_works(
    client: tuff.Client, server: DecidingServer, path: Path
) -> None:
    with engine_of(path, creator=lambda: connect(path, autocommit=False)) as engine:
        for number in range(2):
            with (
                Session(engine) as session,
                client.sql_transaction(SqlAlchemyDatabase(engine, "shop"), session) as tx,
            ):
                session.execute(text(f"INSERT INTO orders VALUES ('{number}')"))
                tx.publish(ORDERS, str(number))

    assert items(path) == server.visible == ["0", "1"]
