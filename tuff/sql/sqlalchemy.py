"""Sessions of SQLAlchemy 2: `pip install 'tuff-messaging[sqlalchemy]'`."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session, SessionTransaction

from tuff.client_errors import WrongStateError
from tuff.sql import dialects
from tuff.sql.database import checked_name, require_connection
from tuff.sql.dialects import Dialect

_MARK = "tuff"  # the key in `Session.info`


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

    def connect(self) -> "_Connection":
        return _Connection(self._engine.connect())

    def joined(self, session: Session) -> "_Block":
        require_connection(session, Session)
        return _Block(session, _Guard(session, self._engine))


class AsyncSqlAlchemyDatabase:
    """As `SqlAlchemyDatabase`, for the clients, engines and sessions of asyncio."""

    def __init__(self, engine: AsyncEngine, name: str) -> None:
        _require_engine(engine, AsyncEngine)
        self.name = checked_name(name)
        self.dialect = dialect_of(engine.sync_engine)
        self._engine = engine

    async def connect(self) -> "_AsyncConnection":
        return _AsyncConnection(await self._engine.connect())

    def joined(self, session: AsyncSession) -> "_AsyncBlock":
        require_connection(session, AsyncSession)
        return _AsyncBlock(session, _Guard(session.sync_session, self._engine.sync_engine))


def _require_engine(engine: object, kind: type) -> None:
    if not isinstance(engine, kind):
        raise TypeError(f"give an {kind.__name__} of SQLAlchemy, and not a {type(engine).__name__}")


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
    """Refuses, by the events of a session, that a program ends its transaction within the block, or
    uses a second database in it."""

    def __init__(self, session: Session, engine: Engine) -> None:
        self._session = session
        self._engine = engine
        self._may_commit = False
        self._transaction: SessionTransaction | None = None
        self._listeners: list[tuple[str, Callable[..., None]]] = [
            ("before_commit", self._before_commit),
            ("after_begin", self._after_begin),
        ]

    def begin(self) -> None:
        if _MARK in self._session.info:
            raise WrongStateError("the session is in such a block already; don't nest them")
        if self._session.in_nested_transaction():
            raise WrongStateError("the session is in a savepoint; begin the block outside of it")
        self._session.info[_MARK] = self
        self._may_commit = False
        for name, function in self._listeners:
            event.listen(self._session, name, function)

    def begun(self, connection: Connection | None) -> None:
        """Remember the transaction of the block, and check its connection."""
        assert connection is not None, "the session has just given it out"
        self._transaction = self._session.get_transaction()
        self._check(connection)

    def check_end(self) -> None:
        """Raises: WrongStateError: the transaction is not the whole block."""
        if self._session.get_transaction() is not self._transaction:
            raise WrongStateError(
                "the session was rolled back or closed within the block, so the block can't commit"
            )

    def allow_commit(self) -> None:
        self._may_commit = True

    def end(self) -> None:
        if self._session.info.get(_MARK) is self:
            del self._session.info[_MARK]
            for name, function in self._listeners:
                event.remove(self._session, name, function)

    def _before_commit(self, _session: Session) -> None:
        if not self._may_commit:
            raise WrongStateError(
                "the block commits the session at its end; don't commit within it"
            )

    def _after_begin(self, _session: Session, _of: Any, connection: Connection) -> None:
        self._check(connection)

    def _check(self, connection: Connection) -> None:
        if connection.engine.url != self._engine.url:
            raise WrongStateError(
                f"the session uses a second database in the block, and only one can decide: "
                f"{connection.engine.url.render_as_string(hide_password=True)}"
            )
        driver = connection.connection.dbapi_connection
        assert driver is not None, "the connection is open"
        if connection.dialect.detect_autocommit_setting(driver):
            raise WrongStateError(
                "the connection commits each statement by itself; use an engine without "
                'isolation_level="AUTOCOMMIT"'
            )


class _Connection:
    """A connection of the engine, for a question."""

    origin: object | None = None

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(self) -> None:
        """Nothing: the first statement begins it."""

    def execute(self, statement: str) -> None:
        self._connection.exec_driver_sql(statement)

    def record(self, dialect: Dialect, pointer: int) -> None:
        self.execute(dialect.insert_of_commit(pointer))

    def fetch(self, statement: str) -> list[Any]:
        return [row[0] for row in self._connection.exec_driver_sql(statement)]

    def before_prepare(self) -> None:
        """Nothing is held back."""

    def commit(self) -> None:
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()

    def close(self) -> None:
        self._connection.close()


class _Block:
    """The user's session."""

    origin: object | None = None

    def __init__(self, session: Session, guard: _Guard) -> None:
        self._session = session
        self._guard = guard

    def begin(self) -> None:
        self._guard.begin()
        try:
            self._guard.begun(self._session.connection())
        except BaseException:
            self._guard.end()
            raise

    def execute(self, statement: str) -> None:
        self._session.connection().exec_driver_sql(statement)

    def record(self, dialect: Dialect, pointer: int) -> None:
        self.execute(dialect.insert_of_commit(pointer))

    def fetch(self, statement: str) -> list[Any]:
        return [row[0] for row in self._session.connection().exec_driver_sql(statement)]

    def before_prepare(self) -> None:
        self._guard.check_end()
        self._session.flush()

    def commit(self) -> None:
        self._guard.allow_commit()
        self._session.commit()
        self._guard.end()

    def rollback(self) -> None:
        self._guard.end()
        self._session.rollback()

    def close(self) -> None:
        self._session.close()


class _AsyncConnection:
    """As `_Connection`."""

    origin: object | None = None

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def begin(self) -> None:
        """Nothing: the first statement begins it."""

    async def execute(self, statement: str) -> None:
        await self._connection.exec_driver_sql(statement)

    async def record(self, dialect: Dialect, pointer: int) -> None:
        await self.execute(dialect.insert_of_commit(pointer))

    async def fetch(self, statement: str) -> list[Any]:
        return [row[0] for row in await self._connection.exec_driver_sql(statement)]

    async def before_prepare(self) -> None:
        """Nothing is held back."""

    async def commit(self) -> None:
        await self._connection.commit()

    async def rollback(self) -> None:
        await self._connection.rollback()

    async def close(self) -> None:
        await self._connection.close()


class _AsyncBlock:
    """As `_Block`."""

    origin: object | None = None

    def __init__(self, session: AsyncSession, guard: _Guard) -> None:
        self._session = session
        self._guard = guard

    async def begin(self) -> None:
        self._guard.begin()
        try:
            connection = await self._session.connection()
            self._guard.begun(connection.sync_connection)
        except BaseException:
            self._guard.end()
            raise

    async def execute(self, statement: str) -> None:
        await (await self._session.connection()).exec_driver_sql(statement)

    async def record(self, dialect: Dialect, pointer: int) -> None:
        await self.execute(dialect.insert_of_commit(pointer))

    async def fetch(self, statement: str) -> list[Any]:
        rows = await (await self._session.connection()).exec_driver_sql(statement)
        return [row[0] for row in rows]

    async def before_prepare(self) -> None:
        self._guard.check_end()
        await self._session.flush()

    async def commit(self) -> None:
        self._guard.allow_commit()
        await self._session.commit()
        self._guard.end()

    async def rollback(self) -> None:
        self._guard.end()
        await self._session.rollback()

    async def close(self) -> None:
        await self._session.close()
