"""Sessions of SQLAlchemy 2: `pip install 'tuff-messaging[sqlalchemy]'`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tuff.errors import WrongStateError
from tuff.optional_packages import Extra
from tuff.sql import dialects
from tuff.sql.database import NOT_COMMITTED, SqlBlock, checked_name, require_connection
from tuff.sql.dialects import Dialect
from tuff.sql.sqlite import keeps_transaction_open

with Extra("tuff.sql.sqlalchemy", "sqlalchemy"):
    from sqlalchemy import Connection, Engine, event
    from sqlalchemy.ext.asyncio import (
        AsyncEngine,
        AsyncSession,
        async_scoped_session,
    )
    from sqlalchemy.orm import Session, scoped_session

T = TypeVar("T")

_KEY = "tuff"  # in `Session.info`


class SqlAlchemyDatabase:
    """The database of an engine, which decides transactions of blocking clients.

        shop = SqlAlchemyDatabase(engine, "shop")
        with Session(engine) as session, client.sql_transaction(shop, session) as tx:
            session.add(Order(item="apple"))
            tx.publish(orders, "sold one apple")

    The block commits the session at its end. `name`: the same in all processes.
    """

    def __init__(self, engine: Engine, name: str) -> None:
        _require_engine(engine, Engine)
        self.name = checked_name(name)
        self.dialect = dialect_of(engine)
        self._engine = engine
        self._questions = _engine_of_questions(engine)

    def connect(self) -> _Connection:
        return _Connection(self._questions.connect())

    def joined(self, session: Session) -> _Block:
        _require_session(session, Session)
        return _Block(session, self._engine)


class AsyncSqlAlchemyDatabase:
    """A `SqlAlchemyDatabase` for the clients, engines and sessions of asyncio."""

    def __init__(self, engine: AsyncEngine, name: str) -> None:
        _require_engine(engine, AsyncEngine)
        self.name = checked_name(name)
        self.dialect = dialect_of(engine.sync_engine)
        self._engine = engine
        self._questions = AsyncEngine(_engine_of_questions(engine.sync_engine))

    async def connect(self) -> _AsyncConnection:
        connection = await self._questions.connect()
        assert connection.sync_connection is not None, "the engine has just given it out"
        return _AsyncConnection(_Connection(connection.sync_connection), connection.run_sync)

    def joined(self, session: AsyncSession) -> _AsyncBlock:
        _require_session(session, AsyncSession)
        return _AsyncBlock(session, self._engine)


def _require_engine(engine: object, kind: type) -> None:
    if not isinstance(engine, kind):
        raise TypeError(f"give an {kind.__name__} of SQLAlchemy, and not a {type(engine).__name__}")


def _require_session(session: object, kind: type) -> None:
    if isinstance(session, scoped_session | async_scoped_session):
        raise TypeError(
            "this is the registry of a scoped session; call it: client.sql_transaction(database, "
            "session())"
        )
    require_connection(session, kind)


def _engine_of_questions(engine: Engine) -> Engine:
    """An engine with connections beside those of the program's pool, which may all be in use by
    sessions that wait for the answer. Each is closed after its question."""
    return Engine(engine.pool.recreate(), engine.dialect, engine.url)


def dialect_of(engine: Engine) -> Dialect:
    """Raises: ValueError: a database of this kind can't decide."""
    if engine.dialect.name not in dialects.BY_NAME:
        raise ValueError(
            f"{engine.dialect.name} is not one of the databases that can decide: "
            f"{', '.join(sorted(dialects.BY_NAME))}"
        )
    if engine.dialect.name == "sqlite" and engine.url.database in (None, "", ":memory:"):
        raise ValueError("a database in memory can't be asked by another connection; give a file")
    return dialects.BY_NAME[engine.dialect.name]


class _Guard:
    """Refuses, by the events of a session, that a program commits it within the block, or uses
    another connection in it."""

    def __init__(self, session: Session, engine: Engine) -> None:
        self._session = session
        self._engine = engine
        self._may_commit = False
        self._connection: Connection | None = None
        self._listeners: list[tuple[str, Callable[..., None]]] = [
            ("before_commit", self._before_commit),
            ("after_begin", self._after_begin),
        ]

    def begin(self) -> None:
        if _KEY in self._session.info:
            raise WrongStateError("the session is in such a block already; don't nest them")
        if self._session.in_nested_transaction():
            raise WrongStateError("the session is in a savepoint; begin the block outside of it")
        if not isinstance(self._session.get_bind(), Engine):
            raise WrongStateError(
                "the session is bound to a connection, whose transaction the session does not "
                "commit; bind it to the engine: Session(engine)"
            )
        self._session.info[_KEY] = self
        self._may_commit = False
        self._connection = None
        for name, function in self._listeners:
            event.listen(self._session, name, function)

    def begun(self, connection: Connection) -> None:
        """Check the connection of the block."""
        self._check(connection)
        self._connection = connection

    def allow_commit(self) -> None:
        self._may_commit = True

    def end(self) -> None:
        if self._session.info.get(_KEY) is self:
            del self._session.info[_KEY]
            for name, function in self._listeners:
                event.remove(self._session, name, function)

    def _before_commit(self, session: Session) -> None:
        # The end of a savepoint is none of the transaction.
        if not self._may_commit and not session.in_nested_transaction():
            raise WrongStateError(
                "the block commits the session at its end; don't commit within it"
            )

    def _after_begin(self, _session: Session, _of: Any, connection: Connection) -> None:
        self._check(connection)
        first = self._connection
        if first is not None and first is not connection and first.in_transaction():
            raise WrongStateError(
                "the session uses a second connection in the block, and a commit of both would be "
                "two commits; bind the session to one engine"
            )

    def _check(self, connection: Connection) -> None:
        if connection.engine.url != self._engine.url:
            raise WrongStateError(
                f"the session uses a second database in the block, and only one can decide: "
                f"{connection.engine.url.render_as_string(hide_password=True)}"
            )
        _require_transactions(connection)


def _require_transactions(connection: Connection) -> None:
    """What the driver says, at the begin. What the database says counts, at the end."""
    fairy = connection.connection
    assert fairy.dbapi_connection is not None, "the connection is open"
    if connection.dialect.name == "sqlite":
        # Without an isolation level, transactions are those that statements begin, as ours do.
        is_automatic = getattr(fairy.driver_connection, "autocommit", None) is True
    else:
        is_automatic = connection.dialect.detect_autocommit_setting(fairy.dbapi_connection)
    if is_automatic:
        raise WrongStateError(
            "the connection commits each statement by itself; use an engine without "
            'isolation_level="AUTOCOMMIT" or autocommit=True'
        )


def _waits_for_begin(connection: Connection) -> bool:
    """Whether the transaction has still to begin: the driver of SQLite begins it with the first
    write, and a savepoint before that would be a transaction of its own."""
    driver: Any = connection.connection.driver_connection
    return connection.dialect.name == "sqlite" and not driver.in_transaction


def _options_outside(dialect: Dialect) -> dict[str, Any]:
    """PostgreSQL then runs the one query without a begin and an end, which are two statements."""
    return {"isolation_level": "AUTOCOMMIT"} if dialect is dialects.POSTGRESQL else {}


def _require_outside(connection: Connection) -> None:
    """The pool may have given out the connection of the block again."""
    driver: Any = connection.connection.driver_connection
    is_sqlite = connection.dialect.name == "sqlite"
    if is_sqlite and driver.in_transaction and not keeps_transaction_open(driver):
        raise WrongStateError(NOT_COMMITTED)


class _Connection:
    """A connection of the engine, for a question."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(self) -> None:
        _require_transactions(self._connection)
        if _waits_for_begin(self._connection):
            self.execute("BEGIN")

    def execute(self, statement: str) -> None:
        self._connection.exec_driver_sql(statement)

    def fetch(self, statement: str) -> list[Any]:
        return [row[0] for row in self._connection.exec_driver_sql(statement)]

    def commit(self) -> None:
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()

    def close(self) -> None:
        self._connection.invalidate()  # it does not stay in the pool
        self._connection.close()


class _Block(SqlBlock):
    """The user's session."""

    def __init__(self, session: Session, engine: Engine) -> None:
        self._session = session
        self._engine = engine
        self._guard = _Guard(session, engine)

    def begin(self) -> None:
        self._guard.begin()
        try:
            connection = self._session.connection()
            self._guard.begun(connection)
            if _waits_for_begin(connection):
                connection.exec_driver_sql("BEGIN IMMEDIATE")
        except BaseException:
            self._guard.end()
            raise

    def execute(self, statement: str) -> None:
        self._session.connection().exec_driver_sql(statement)

    def fetch(self, statement: str) -> list[Any]:
        return [row[0] for row in self._session.connection().exec_driver_sql(statement)]

    def before_prepare(self) -> None:
        self._session.flush()

    def record(self, dialect: Dialect, pointer: int) -> None:
        self.execute(dialect.insert_of_commit(pointer))

    def commit(self) -> None:
        self._guard.allow_commit()
        self._session.commit()
        self._guard.end()

    def rollback(self) -> None:
        self._guard.end()
        self._session.rollback()

    def recorded(self, dialect: Dialect, pointer: int) -> list[Any]:
        with self._engine.connect() as connection:
            connection.execution_options(**_options_outside(dialect))
            _require_outside(connection)
            rows = connection.exec_driver_sql(dialect.select_committed(pointer))
            return [row[0] for row in rows]

    def close(self) -> None:
        self._session.close()


class _AsyncConnection:
    """A `_Connection` of asyncio. SQLAlchemy runs its methods where it can await the driver."""

    def __init__(self, of: _Connection | _Block, run_sync: Callable[..., Awaitable[Any]]) -> None:
        self._of = of
        self._run_sync = run_sync

    async def begin(self) -> None:
        await self._run(self._of.begin)

    async def execute(self, statement: str) -> None:
        await self._run(self._of.execute, statement)

    async def fetch(self, statement: str) -> list[Any]:
        return await self._run(self._of.fetch, statement)

    async def commit(self) -> None:
        await self._run(self._of.commit)

    async def rollback(self) -> None:
        await self._run(self._of.rollback)

    async def close(self) -> None:
        await self._run(self._of.close)

    async def _run(self, method: Callable[..., T], *arguments: object) -> T:
        result: T = await self._run_sync(lambda _: method(*arguments))
        return result


class _AsyncBlock(_AsyncConnection, SqlBlock):
    """A `_Block` of asyncio."""

    def __init__(self, session: AsyncSession, engine: AsyncEngine) -> None:
        self._block = _Block(session.sync_session, engine.sync_engine)
        super().__init__(self._block, session.run_sync)

    async def before_prepare(self) -> None:
        await self._run(self._block.before_prepare)

    async def record(self, dialect: Dialect, pointer: int) -> None:
        await self._run(self._block.record, dialect, pointer)

    async def recorded(self, dialect: Dialect, pointer: int) -> list[Any]:
        return await self._run(self._block.recorded, dialect, pointer)
