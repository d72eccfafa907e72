"""A database that decides transactions: its connections, its identity, and the question whether a
transaction committed (decision 0045 §3)."""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from tuff.errors import WrongStateError
from tuff.flows_and_repeated_calls import Flow, hook
from tuff.sql import dialects
from tuff.sql.dialects import Dialect, Fact

C_contra = TypeVar("C_contra", contravariant=True)
T = TypeVar("T")

CLOSED = "the connection is closed; open another one for the block"
IN_TRANSACTION = (
    "the connection is in a transaction; commit it before the block begins, and don't nest blocks"
)
ENDED_WITHIN = (
    "the transaction of the block was committed or rolled back within the block, which does that "
    "at its end; what was written before that may have been committed without messages"
)
NOT_COMMITTED = (
    "the database did not commit at the end of the block, although the driver reported no error: "
    "the transaction belongs to somebody else, or was ended by another user of the connection; "
    "use a connection of the block's own"
)
NAME_LENGTH_MAX = 100  # characters; the server takes 128, and the identity is added
_NAME = re.compile(rf"[A-Za-z0-9._:/-]{{1,{NAME_LENGTH_MAX}}}")


class SqlConnection(Protocol):
    """A connection in which a transaction runs. Each method may be a coroutine function, with a
    client of asyncio."""

    def begin(self) -> Awaitable[None] | None:
        """Begin a transaction; after an error there is none of this call.

        Raises: WrongStateError: the connection is in one, or can't take one.
        """
        ...

    def execute(self, statement: str) -> Awaitable[None] | None:
        """Run a statement in the transaction."""
        ...

    def fetch(self, statement: str) -> Awaitable[Sequence[Any]] | Sequence[Any]:
        """Run a query; returns the first column."""
        ...

    def commit(self) -> Awaitable[None] | None:
        """Commit. Raises: WrongStateError: the driver tells that the transaction is still open."""
        ...

    def rollback(self) -> Awaitable[None] | None:
        """Roll back. Raises: Exception: it is not known that it was rolled back."""
        ...

    def close(self) -> Awaitable[None] | None:
        """Give the connection up. Only for those that `SqlDatabase.connect` made."""
        ...


class SqlBlock(SqlConnection, Protocol):
    """The user's own connection, for one block after the other.

    `origin`: the driver's object, if it may lead to another database than `SqlDatabase.connect`.
    """

    origin: object | None = None

    def before_prepare(self) -> Awaitable[None] | None:
        """Send what an object-relational mapper holds back.

        Raises: WrongStateError: the block can't commit.
        """
        return None

    def record(self, dialect: Dialect, pointer: int) -> Awaitable[None] | None:
        """Insert the pointer of a transaction, by a prepared statement if the driver keeps them."""
        ...

    def recorded(self, dialect: Dialect, pointer: int) -> Awaitable[Sequence[Any]] | Sequence[Any]:
        """After the commit: the pointer if its row is found outside of the transaction.

        Raises: WrongStateError: the driver tells that the connection is in a transaction.
        """
        ...

    def fetch_outside(self, statement: str) -> Awaitable[Sequence[Any]] | Sequence[Any]:
        """Run a query before the transaction begins; it leaves no transaction behind. Only if there
        is an `origin`. Raises: WrongStateError: the connection is in a transaction."""
        raise AssertionError("it has no origin")


class SqlDatabase(Protocol[C_contra]):
    """A database of the user's. `name`: 1 to 100 of the characters A-Z a-z 0-9 . _ : / -, the same
    in all processes."""

    @property
    def name(self) -> str: ...
    @property
    def dialect(self) -> Dialect: ...

    def connect(self) -> Awaitable[SqlConnection] | SqlConnection:
        """A new connection, which is not in a transaction."""
        ...

    def joined(self, connection: C_contra) -> SqlBlock:
        """The user's own connection. Raises: TypeError, WrongStateError: it does not suit."""
        ...


class Answer(Enum):
    """The answer of a database to the question whether a transaction committed."""

    COMMITTED = "committed"
    NEVER = "it will never commit"
    OPEN = "the database transaction is still open"


class Decider(Generic[C_contra]):
    """Asks one database. Safe to share between threads and tasks: it remembers the identity and the
    checked connections only."""

    def __init__(self, database: SqlDatabase[C_contra]) -> None:
        self.database = database
        self._dialect = database.dialect
        self._identity: int | None = None
        self._checked: WeakSet[Any] = WeakSet()

    def server_name(self, *, may_write: bool) -> Flow[str]:
        """The name of the database for the server. The first program of the database writes its
        identity; a resolver (`may_write` False) never does.

        Raises:
            WrongStateError: the table is missing; or the database has another name, or none yet.
        """
        if self._identity is None:
            self._identity = yield from self.on_another_connection(
                partial(self._find_identity, may_write=may_write)
            )
        return dialects.server_name(self._identity, self.database.name)

    def check(self, block: SqlBlock) -> Flow[None]:
        """Check, once for each, that a connection leads to this database. It is not in a
        transaction, before and after. Raises: WrongStateError: it leads to another one."""
        origin = block.origin
        if origin is None or _contains(self._checked, origin):
            return
        yield from self.explaining(self._check(block.fetch_outside))
        with suppress(TypeError):  # SQLite's connections and those of asyncpg's pools
            self._checked.add(origin)

    def _check(self, fetch: Callable[[str], object]) -> Flow[None]:
        try:
            yield from self._require_identity(fetch)
        except Exception as error:
            if self._dialect.fact_of(error) is not Fact.MISSING_TABLE:
                raise
            (found,) = yield from hook(partial(fetch, self._dialect.select_database))
            raise WrongStateError(
                f"this connection leads to the database {found!r}, which has no table "
                f"{dialects.TABLE}, and is not the one of {self.database.name!r}; use the same "
                "file, or the same server and schema"
            ) from None

    def ask(self, pointer: int) -> Flow[Answer]:
        """Whether the database committed the transaction of a pointer. It waits up to a second for
        a transaction that is open. Raises: Exception: the database can't be asked."""
        return (yield from self.on_another_connection(partial(self._ask, pointer)))

    def rows(self, count: int) -> Flow[list[int]]:
        """The newest pointers that committed, newest first."""

        def read(connection: SqlConnection) -> Flow[list[int]]:
            return list(
                (yield from hook(partial(connection.fetch, dialects.select_commits(count))))
            )

        return (yield from self.on_another_connection(read))

    def delete(self, pointers: list[int]) -> Flow[None]:
        """Delete the rows of settled transactions."""

        def write(connection: SqlConnection) -> Flow[None]:
            yield from hook(partial(connection.execute, dialects.delete(pointers)))
            yield from hook(connection.commit)

        yield from self.on_another_connection(write)

    def mark(self, block: SqlBlock) -> Flow[None]:
        """Mark the transaction that the block has just begun, for `record`."""
        yield from hook(partial(block.execute, self._dialect.mark))

    def record(self, block: SqlBlock, pointer: int | None) -> Flow[None]:
        """Insert the pointer; None: the block has no messages.

        Raises: WrongStateError: the transaction is not the one that the block began.
        """
        require = hook(partial(block.execute, self._dialect.require_mark))
        if pointer is None or not self._dialect.insert_requires_mark:
            yield from self._with_mark(require, ENDED_WITHIN)
        if pointer is not None:
            insert = hook(partial(block.record, self._dialect, pointer))
            yield from self._with_mark(insert, ENDED_WITHIN)

    def require_committed(self, block: SqlBlock, pointer: int) -> Flow[None]:
        """Look outside of the transaction whether it committed.

        Raises: WrongStateError: its row is not found, so something else has ended it.
        """
        if list((yield from hook(partial(block.recorded, self._dialect, pointer)))) != [pointer]:
            raise WrongStateError(NOT_COMMITTED)

    def explaining(self, flow: Flow[T]) -> Flow[T]:
        """Run a flow; an error of the database that means a wrong use says what to do."""
        try:
            return (yield from flow)
        except Exception as error:
            if (advice := self._advice(self._dialect.fact_of(error))) is None:
                raise
            raise WrongStateError(advice) from error

    def _advice(self, fact: Fact) -> str | None:
        name = self.database.name
        match fact:
            case Fact.MISSING_TABLE:
                return self._missing_table
            case Fact.MISSING_POSITIONS:
                return (
                    f"database {name!r} has no table {dialects.POSITIONS}; create it once: "
                    f"{dialects.CREATE_POSITIONS}"
                )
            case Fact.READ_ONLY:
                return (
                    f"database {name!r} takes no writes here, as a replica does; connect to the "
                    "primary"
                )
            case Fact.STATEMENT_POOLING:
                return (
                    f"the pooler of database {name!r} is in statement mode, where no transaction "
                    "can have two statements; use transaction or session mode"
                )
            case _:
                return None

    def _with_mark(self, flow: Flow[T], advice: str) -> Flow[T]:
        """Run a statement that needs the mark. Raises: WrongStateError: there is none."""
        try:
            return (yield from flow)
        except Exception as error:
            if self._dialect.fact_of(error) is not Fact.NO_MARK:
                raise
            raise WrongStateError(advice) from error

    def _insert(self, pointer: int, connection: SqlConnection) -> Flow[None]:
        """The insert of a question or an identity, in a transaction and not by itself."""
        insert = self._dialect.insert_of_question(pointer)
        yield from self._with_mark(hook(partial(connection.execute, insert)), self._automatic)

    @property
    def _automatic(self) -> str:
        return (
            f"connections to database {self.database.name!r} commit each statement by itself; "
            "give it without autocommit, for example an engine without "
            'isolation_level="AUTOCOMMIT"'
        )

    def _ask(self, pointer: int, connection: SqlConnection) -> Flow[Answer]:
        yield from self._require_identity(connection.fetch)
        return (yield from self._answer(pointer, connection))

    def _answer(self, pointer: int, connection: SqlConnection) -> Flow[Answer]:
        try:
            yield from self._insert(pointer, connection)
        except Exception as error:
            match self._dialect.fact_of(error):
                case Fact.DUPLICATE:
                    return Answer.COMMITTED
                case Fact.OPEN:
                    return Answer.OPEN
                case _:
                    raise
        return Answer.NEVER

    def _require_identity(self, fetch: Callable[[str], object]) -> Flow[None]:
        if (yield from _identities(fetch)) != [self._identity]:
            raise WrongStateError(
                f"this connection leads to another database than the first one to "
                f"{self.database.name!r}; use the same file, or the same server and schema"
            )

    def _find_identity(self, connection: SqlConnection, *, may_write: bool) -> Flow[int]:
        found = yield from self._found_identities(connection)
        if not found and may_write:
            found = yield from self._write_identity(connection)
        name = self.database.name
        if not found:
            raise WrongStateError(
                f"no program has used database {name!r} with Tuff yet, so there is nothing to "
                "settle; check that it is the same file or server that the programs use"
            )
        if not dialects.has_name(found[0], name):
            raise WrongStateError(
                f"other processes use this database under another name than {name!r}; give it the "
                "same name in all of them, without the part behind the last dot that `tuff tx "
                "prepared` shows"
            )
        return found[0]

    def _found_identities(self, connection: SqlConnection) -> Flow[list[int]]:
        try:
            return (yield from _identities(connection.fetch))
        except Exception as error:
            if self._dialect.fact_of(error) is not Fact.MISSING_TABLE:
                raise
            yield from hook(connection.rollback)
            yield from hook(connection.begin)
            asked = hook(partial(connection.fetch, self._dialect.select_database))
            (found,) = yield from asked
            raise WrongStateError(
                f"{self._missing_table}. The connection leads to the database {found!r}: check "
                "that this is the right one"
            ) from None

    @property
    def _missing_table(self) -> str:
        return (
            f"database {self.database.name!r} has no table {dialects.TABLE}; create it once: "
            f"{self._dialect.create_table}"
        )

    def _write_identity(self, connection: SqlConnection) -> Flow[list[int]]:
        made = dialects.identity_of(self.database.name, secrets.randbits(30) + 1)
        yield from hook(connection.rollback)
        yield from hook(connection.begin)
        yield from self._mark(connection)
        try:
            # Of two programs that begin at once, the second one waits here for the first one.
            yield from self._insert(0, connection)
            yield from self._insert(made, connection)
            yield from hook(connection.commit)
        except Exception as error:
            if self._dialect.fact_of(error) is not Fact.DUPLICATE:
                raise
            yield from hook(connection.rollback)
        return (yield from _identities(connection.fetch))

    def on_another_connection(self, work: Callable[[SqlConnection], Flow[T]]) -> Flow[T]:
        """Run `work` in a transaction of a new connection, which is rolled back if it is not
        committed. It waits up to a second for rows that are locked."""
        return (yield from self.explaining(self._on_new(work)))

    def _on_new(self, work: Callable[[SqlConnection], Flow[T]]) -> Flow[T]:
        connection: SqlConnection = yield from hook(self.database.connect)
        try:
            yield from hook(connection.begin)
            yield from _run(connection, self._dialect.before)
            yield from self._mark(connection)
            result = yield from work(connection)
            yield from hook(connection.rollback)
            yield from _run(connection, self._dialect.after)
        except GeneratorExit:
            raise
        except BaseException:
            yield from _closed(connection)
            raise
        yield from _closed(connection)
        return result

    def _mark(self, connection: SqlConnection) -> Flow[None]:
        """Mark a transaction, for `_insert`: what it inserts must not be committed by itself."""
        yield from hook(partial(connection.execute, self._dialect.mark))
        if not self._dialect.insert_requires_mark:
            require = hook(partial(connection.execute, self._dialect.require_mark))
            yield from self._with_mark(require, self._automatic)


def _run(connection: SqlConnection, statements: Sequence[str]) -> Flow[None]:
    for statement in statements:
        yield from hook(partial(connection.execute, statement))


def _identities(fetch: Callable[[str], object]) -> Flow[list[int]]:
    return list((yield from hook(partial(fetch, dialects.select_identity()))))


def _contains(checked: WeakSet[Any], origin: object) -> bool:
    try:
        return origin in checked
    except TypeError:
        return False


def _closed(connection: SqlConnection) -> Flow[None]:
    # An error here must not hide that of the work, and the database rolls back without it.
    with suppress(Exception):
        yield from hook(connection.rollback)
    with suppress(Exception):
        yield from hook(connection.close)


class DbApiConnection:
    """A connection of a driver with the interface of PEP 249, whose transactions begin by
    themselves."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def begin(self) -> None:
        """Nothing: the first statement begins it."""

    def execute(self, statement: str) -> None:
        cursor = self._cursor()
        try:
            cursor.execute(statement)
        finally:
            cursor.close()

    def fetch(self, statement: str) -> list[Any]:
        cursor = self._cursor()
        try:
            cursor.execute(statement)
            return [row[0] for row in cursor.fetchall()]
        finally:
            cursor.close()

    def commit(self) -> None:
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()

    def close(self) -> None:
        self._connection.close()

    def _cursor(self) -> Any:
        """A cursor whose rows are sequences."""
        return self._connection.cursor()


def require_database(database: object) -> None:
    """Raises: TypeError: it is none of the classes of `tuff.sql`."""
    if not callable(getattr(type(database), "joined", None)):
        raise TypeError(
            "the database is an object of tuff.sql, for example tuff.sql.psycopg.PsycopgDatabase("
            f"conninfo, name), not one of type {type(database).__name__}"
        )


def require_connection(connection: object, kind: type) -> None:
    """Raises: TypeError: it is of another class than `kind`."""
    if not isinstance(connection, kind):
        raise TypeError(
            f"a block of this database takes {_class_name(kind)}, not an object of type "
            f"{_class_name(type(connection))}"
        )


def _class_name(kind: type) -> str:
    package = kind.__module__.partition(".")[0]
    return kind.__name__ if package == "builtins" else f"{package}.{kind.__name__}"


def checked_name(name: str) -> str:
    """Raises: ValueError: it is no name of a database."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"a database is named by 1 to {NAME_LENGTH_MAX} of A-Z a-z 0-9 . _ : / -, not {name!r}"
        )
    return name
