"""The table `tuff_commits`, and the statements and errors of each database (decision 0045 §3).

    table := one row for each transaction that committed with messages: its write pointer, above 0
           | 0, and one negative number: the identity of the database

The identity is random, and is written once. A resolver that is given a copy of the application's
name but another database finds another identity, and can't settle what it knows nothing of.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

TABLE = "tuff_commits"
POSITIONS = "tuff_positions"
POSITION_NAME_LENGTH_MAX = 700  # characters; an index of InnoDB takes 768
CREATE_POSITIONS = (
    f"CREATE TABLE {POSITIONS} (name VARCHAR({POSITION_NAME_LENGTH_MAX}) PRIMARY KEY, "
    "position CHAR(40) NOT NULL, owner CHAR(32) NOT NULL)"
)
LOCK_S = 1  # seconds that the question waits for a database transaction that is still open
IDLE_S = 30  # seconds after which PostgreSQL ends a prepared transaction whose program is silent
NAME_BITS = 32  # the lower bits of the identity: CRC-32 of the database's name


class Fact(Enum):
    """What an error of a database means here."""

    DUPLICATE = "the row exists"
    OPEN = "another transaction holds a lock"
    MISSING_TABLE = f"there is no {TABLE}"
    MISSING_POSITIONS = f"there is no {POSITIONS}"
    CHANGED = "a row was changed since the snapshot of the transaction"
    READ_ONLY = "the database takes no writes"
    STATEMENT_POOLING = "a pooler allows no transactions"
    NO_MARK = "this is not the transaction that was marked"
    OTHER = "something else"


@dataclass(frozen=True, slots=True)
class Dialect:
    """The statements of one kind of database. `codes`: the driver's error codes.

    `before`: at the begin of a transaction of the resolver's own, so that it waits for a bounded
    time, and reads without locks; `after` restores a connection that goes back to a pool.

    `mark`: the first statement of a transaction. The database forgets the mark when that
    transaction ends, and keeps none outside of a transaction. `require_mark` fails with NO_MARK
    without it. So the database says that a transaction was begun and is still the same one,
    whatever the driver believes.
    """

    name: str
    select_database: str  # the name or the file of the database that a connection is in
    create_table: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    mark: str
    require_mark: str
    insert_requires_mark: bool  # the inserts do what `require_mark` does
    insert_template: str
    question_template: str
    committed_template: str
    for_update: str  # behind a query: its rows are locked until the transaction ends
    codes: dict[str | int, Fact]

    def insert_of_commit(self, pointer: int | str) -> str:
        """The user's transaction inserts the pointer right before the prepare. `pointer`: the
        number, or the driver's placeholder of a parameter."""
        return self.insert_template.format(pointer=pointer)

    def insert_of_question(self, pointer: int) -> str:
        """The resolver inserts the pointer to ask for it; so is the identity written."""
        return self.question_template.format(pointer=pointer)

    def select_committed(self, pointer: int | str) -> str:
        """Finds the row of a transaction that committed. `pointer`: as for `insert_of_commit`."""
        return self.committed_template.format(pointer=pointer)

    def fact_of(self, error: BaseException) -> Fact:
        """What an error means, also if an object-relational mapper wrapped that of the driver."""
        for one in _causes(error):
            if "statement pooling mode" in str(one):
                return Fact.STATEMENT_POOLING
            found = next((self.codes[code] for code in _codes_of(one) if code in self.codes), None)
            # SQLite has no code for these two.
            if found is Fact.MISSING_TABLE or "no such table" in str(one):
                return _missing(str(one))
            if f"no such savepoint: {_SAVEPOINT}" in str(one):
                return Fact.NO_MARK
            if found is not None:
                return found
        return Fact.OTHER


def select_identity() -> str:
    """Finds the negative number, if there is one.

    The order makes PostgreSQL read the index. Without statistics it would read the whole table.
    """
    return f"SELECT pointer FROM {TABLE} WHERE pointer < 0 ORDER BY pointer LIMIT 2"


def select_commits(count: int) -> str:
    """The newest committed pointers, newest first."""
    return f"SELECT pointer FROM {TABLE} WHERE pointer > 0 ORDER BY pointer DESC LIMIT {count}"


def delete(pointers: list[int]) -> str:
    """Deletes rows of settled transactions."""
    return f"DELETE FROM {TABLE} WHERE pointer IN ({', '.join(map(str, pointers))})"


def identity_of(name: str, chance: int) -> int:
    """The identity of a database: 31 random bits, and a checksum of the name that programs use."""
    return -((chance << NAME_BITS) | zlib.crc32(name.encode()))


def has_name(identity: int, name: str) -> bool:
    """Whether the identity was made for this name."""
    return -identity & ((1 << NAME_BITS) - 1) == zlib.crc32(name.encode())


def server_name(identity: int, name: str) -> str:
    """What the server calls the database: the program's name, and the random part."""
    return f"{name}.{-identity >> NAME_BITS:08x}"


# The mark of PostgreSQL is a setting of the transaction; this is 1 in a marked one, else 0. With a
# savepoint, what the program writes would be that of a subtransaction, for a statement more.
_IS_MARKED = "(coalesce(current_setting('tuff.block', true), '') = 'open')::int"
_POSTGRESQL_QUESTION = f"INSERT INTO {TABLE} (pointer) SELECT {{pointer}} / {_IS_MARKED}"

# A setting of the transaction, and the row, in one statement. The server of the database ends the
# transaction if the program dies; and it does not acknowledge a commit that a crash could undo.
_POSTGRESQL_INSERT = (
    f"{_POSTGRESQL_QUESTION} WHERE "
    f"set_config('idle_in_transaction_session_timeout', '{IDLE_S * 1000}', true) IS NOT NULL AND "
    "set_config('synchronous_commit', CASE current_setting('synchronous_commit') "
    "WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true) IS NOT NULL"
)

# The mark of the others: it ends with its transaction, also if a statement such as CREATE TABLE
# commits by itself.
_SAVEPOINT = "tuff_block"
_INSERT = f"INSERT INTO {TABLE} (pointer) VALUES ({{pointer}})"
_COMMITTED = f"SELECT pointer FROM {TABLE} WHERE pointer = {{pointer}}"

POSTGRESQL = Dialect(
    name="postgresql",
    select_database="SELECT current_database()",
    create_table=f"CREATE TABLE {TABLE} (pointer BIGINT PRIMARY KEY)",
    before=(
        "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
        f"SET LOCAL lock_timeout = '{LOCK_S}s'",
    ),
    after=(),
    mark="SELECT set_config('tuff.block', 'open', true)",
    require_mark=f"SELECT 1 / {_IS_MARKED}",
    insert_requires_mark=True,
    insert_template=_POSTGRESQL_INSERT,
    question_template=_POSTGRESQL_QUESTION,
    # In the transaction of the block itself it finds nothing.
    committed_template=f"{_COMMITTED} AND {_IS_MARKED} = 0",
    for_update=" FOR UPDATE",
    codes={
        "23505": Fact.DUPLICATE,
        "55P03": Fact.OPEN,  # lock_not_available
        "40P01": Fact.OPEN,  # deadlock
        "40001": Fact.CHANGED,  # serialization_failure
        "57014": Fact.OPEN,  # a statement time-out of the user's
        "42P01": Fact.MISSING_TABLE,
        "25006": Fact.READ_ONLY,
        "22012": Fact.NO_MARK,  # division by zero
    },
)

MYSQL = Dialect(
    name="mysql",
    select_database="SELECT DATABASE()",
    create_table=f"CREATE TABLE {TABLE} (pointer BIGINT PRIMARY KEY) ENGINE=InnoDB",
    before=(
        "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
        f"SET SESSION innodb_lock_wait_timeout = {LOCK_S}",
    ),
    after=("SET SESSION innodb_lock_wait_timeout = DEFAULT",),
    mark=f"SAVEPOINT {_SAVEPOINT}",
    require_mark=f"RELEASE SAVEPOINT {_SAVEPOINT}",
    insert_requires_mark=False,
    insert_template=_INSERT,
    question_template=_INSERT,
    committed_template=_COMMITTED,
    for_update=" FOR UPDATE",
    codes={
        1062: Fact.DUPLICATE,
        1205: Fact.OPEN,
        1213: Fact.OPEN,  # deadlock
        1020: Fact.CHANGED,  # with innodb_snapshot_isolation of MariaDB
        1146: Fact.MISSING_TABLE,
        1305: Fact.NO_MARK,  # no such savepoint
        1290: Fact.READ_ONLY,
        1792: Fact.READ_ONLY,
    },
)

SQLITE = Dialect(
    name="sqlite",
    select_database="SELECT file FROM pragma_database_list WHERE name = 'main'",
    create_table=f"CREATE TABLE {TABLE} (pointer BIGINT PRIMARY KEY)",
    before=(),  # the driver has a time-out
    after=(),
    mark=f"SAVEPOINT {_SAVEPOINT}",
    require_mark=f"RELEASE SAVEPOINT {_SAVEPOINT}",
    insert_requires_mark=False,
    insert_template=_INSERT,
    question_template=_INSERT,
    committed_template=_COMMITTED,
    for_update="",  # a block takes the write lock of the file at its begin
    codes={
        "SQLITE_CONSTRAINT_PRIMARYKEY": Fact.DUPLICATE,
        "SQLITE_CONSTRAINT_UNIQUE": Fact.DUPLICATE,
        "SQLITE_BUSY": Fact.OPEN,
        "SQLITE_BUSY_SNAPSHOT": Fact.OPEN,
        "SQLITE_BUSY_RECOVERY": Fact.OPEN,
        "SQLITE_READONLY": Fact.READ_ONLY,
    },
)

BY_NAME = {
    "postgresql": POSTGRESQL,
    "mysql": MYSQL,
    "mariadb": MYSQL,
    "sqlite": SQLITE,
}


def _missing(text: str) -> Fact:
    """Which table an error is about; one of the program's is not ours to explain."""
    if POSITIONS in text:
        return Fact.MISSING_POSITIONS
    return Fact.MISSING_TABLE if TABLE in text else Fact.OTHER


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and those that it wraps: `orig` of SQLAlchemy, the cause of Django's."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = getattr(found, "orig", None) or found.__cause__


# What each driver calls its code: psycopg, asyncpg and their adapters; sqlite3.
_CODE_NAMES = ("sqlstate", "pgcode", "sqlite_errorname")


def _codes_of(error: BaseException) -> list[str | int]:
    found = [getattr(error, name, None) for name in _CODE_NAMES]
    found.extend(error.args[:1])  # MySQL's drivers
    return [code for code in found if isinstance(code, str | int)]
