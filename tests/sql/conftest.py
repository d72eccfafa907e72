"""One PostgreSQL for all tests of a worker, and a fresh schema of it for each test."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import psycopg
import pytest

import tuff
from tests.programs import require
from tests.sql.databases import Postgresql
from tests.sql.deciding_server import DecidingServer
from tests.sql.django_aliases import alias_of
from tests.sql.libraries import sqlite_file
from tuff.sql.dialects import POSTGRESQL

END_OTHERS = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@pytest.fixture(scope="session")
def cluster() -> Iterator[Postgresql]:
    require("initdb")
    # Not pytest's directory: only its own user may read that one.
    home = Path(mkdtemp(prefix="tuff-postgresql-"))
    try:
        with Postgresql(home) as running:
            yield running
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def database(cluster: Postgresql) -> str:
    """The one database of all tests: a new one is 7 MB of files."""
    with psycopg.connect(cluster.dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE tests")
    return cluster.dsn.rpartition("/")[0] + "/tests"


@pytest.fixture
def bare_dsn(database: str) -> str:
    """A database without tables, and without connections of earlier tests."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(END_OTHERS)
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return database


@pytest.fixture
def dsn(bare_dsn: str) -> str:
    """A database with the table of commits and one of orders."""
    with psycopg.connect(bare_dsn) as connection:
        connection.execute(POSTGRESQL.create_table)
        connection.execute("CREATE TABLE orders (item TEXT PRIMARY KEY)")
    return bare_dsn


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of SQLite with the same tables."""
    return sqlite_file(tmp_path / "shop.sqlite")


@pytest.fixture
def server() -> DecidingServer:
    return DecidingServer()


@pytest.fixture
def client(server: DecidingServer) -> Iterator[tuff.Client]:
    with tuff.Client(transport=server, retries=0) as made:
        yield made


@pytest.fixture
def connection(dsn: str) -> "Iterator[psycopg.Connection[Any]]":
    with psycopg.connect(dsn) as made:
        yield made


@pytest.fixture
def alias(dsn: str) -> Iterator[str]:
    """An alias of Django for the same database."""
    info = psycopg.conninfo.conninfo_to_dict(dsn)
    options = {name.upper(): info[name] for name in ("user", "host", "port")}
    engine = "django.db.backends.postgresql"
    with alias_of(str(info["dbname"]), ENGINE=engine, **options) as made:
        yield made
