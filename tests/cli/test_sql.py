"""`tuff sql`: the tables, and what is refused before a database is asked."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.command import tuff_command
from tuff.sql.dialects import SQLITE


def test_the_statements_of_both_tables_are_printed() -> None:
    done = tuff_command("sql", "table", "sqlite")

    assert done.stdout.startswith("CREATE TABLE tuff_commits (pointer BIGINT PRIMARY KEY);\n")
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(done.stdout)
        connection.execute("SELECT pointer FROM tuff_commits")
        connection.execute("SELECT name, position, owner FROM tuff_positions")


def test_a_password_on_the_command_line_is_refused() -> None:
    url = "postgresql://shop:secret@127.0.0.1/shop"
    done = tuff_command("sql", "resolve", url, "--database", "shop", "--once")

    assert done.returncode == 2
    assert "TUFF_SQL_URL" in done.stderr
    assert "secret" not in done.stdout + done.stderr


def test_a_password_in_the_environment_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing listens on port 1.
    monkeypatch.setenv("TUFF_SQL_URL", "postgresql://shop:secret@127.0.0.1:1/shop")
    done = tuff_command("sql", "resolve", "--database", "shop", "--once")

    assert done.returncode != 0
    assert "the database failed" in done.stderr
    assert "secret" not in done.stdout + done.stderr


def test_a_connection_string_that_is_not_valid_is_not_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TUFF_SQL_URL", "postgresql://shop:secret@[/shop")
    done = tuff_command("sql", "resolve", "--database", "shop", "--once")

    assert done.returncode == 2
    assert "secret" not in done.stdout + done.stderr


def test_a_database_that_no_program_used_is_not_asked(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as connection:
        connection.execute(SQLITE.create_table)
    url = f"sqlite:///{tmp_path / 'shop.sqlite'}"
    done = tuff_command("sql", "resolve", url, "--database", "shop", "--once")

    assert done.returncode == 1
    assert "no program has used database 'shop'" in done.stderr


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("shop.sqlite", "the URL of a database is sqlite:///FILE"),
        ("sqlite://", "give a file"),
        ("sqlite:///missing/shop.sqlite", "there is no file missing/shop.sqlite"),
        ("http://127.0.0.1/shop", "SQLAlchemy knows no such URL"),
        ("postgresql+asyncpg://127.0.0.1/shop", "this driver is for asyncio"),
    ],
)
def test_a_url_that_is_not_valid_is_refused_with_advice(url: str, advice: str) -> None:
    done = tuff_command("sql", "resolve", url, "--database", "shop", "--once")

    assert done.returncode == 2
    assert advice in done.stderr
