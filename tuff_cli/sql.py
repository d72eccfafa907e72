"""`tuff sql`: the tables in a user's database, and the resolver of what programs left prepared."""

from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import click

from tuff.blocking.client import Client
from tuff.optional_packages import Extra
from tuff.protocol.errors import TuffError
from tuff.protocol.sentences import counted
from tuff.sql import dialects
from tuff.sql.database import SqlDatabase
from tuff.sql.resolver import EVERY_S, SqlSettled
from tuff_cli.options import SECONDS, client_command
from tuff_cli.output import Result

URL_VARIABLE = "TUFF_SQL_URL"
_URLS = "sqlite:///FILE, postgresql://USER@HOST/DATABASE, or one of SQLAlchemy"


@click.group()
def sql() -> None:
    """Transactions that your own SQL database decides."""


@sql.command("table")
@click.argument("kind", type=click.Choice(sorted(dialects.BY_NAME)))
def show_table(*, kind: str) -> None:
    """Print the statements that create the tables in a database of KIND."""
    click.echo(f"{dialects.BY_NAME[kind].create_table};")
    click.echo("-- for client.consumer(..., database=...):")
    click.echo(f"{dialects.CREATE_POSITIONS};")


@sql.command()
@click.argument("database_url", metavar="URL", envvar=URL_VARIABLE)
@click.option("--database", "name", required=True, help="The name that your programs give it.")
@click.option("--once", is_flag=True, help="Settle what is prepared now, and end.")
@click.option(
    "--every",
    type=SECONDS,
    default=EVERY_S,
    metavar="DURATION",
    help="The time between two rounds. [default: 5]",
)
@client_command
def resolve(client: Client, *, database_url: str, name: str, once: bool, every: float) -> Result:
    """Settle what programs that died left prepared, as the database at URL decided.

    URL is sqlite:///FILE, postgresql://…, or one of SQLAlchemy. A URL with a password is taken only
    from the environment variable TUFF_SQL_URL, since a command line is no secret.
    """
    if not once:
        client.sql_resolver(database_of(database_url, name), every=every).run()
    try:
        settled = client.sql_resolver(database_of(database_url, name)).once()
    except (TuffError, click.ClickException):
        raise
    except Exception as error:  # noqa: BLE001 - drivers share no class of errors
        raise click.ClickException(f"the database failed: {error}".strip()) from None
    return Result(json=settled, lines=[_line(settled)])


def database_of(url: str, name: str) -> SqlDatabase[Any]:
    """Raises: BadParameter: the URL is not valid, has a password on the command line, or needs a
    package that is not installed."""
    try:
        parts = urlsplit(url)
        _refuse_typed_password(parts)
        scheme = parts.scheme
        if not url.startswith(f"{scheme}://") or not scheme:
            raise click.BadParameter(f"the URL of a database is {_URLS}")
        if scheme == "sqlite":
            return _sqlite(url.removeprefix("sqlite://").removeprefix("/"), name)
        if scheme in ("postgresql", "postgres"):
            from tuff.sql.psycopg import PsycopgDatabase

            return PsycopgDatabase(url, name)
        return _of_sqlalchemy(url, name)
    except ImportError as error:
        raise click.BadParameter(f"install the driver of this URL: {error}") from None
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _sqlite(path: str, name: str) -> SqlDatabase[Any]:
    from tuff.sql.sqlite import SqliteDatabase

    database = SqliteDatabase(path, name)
    if not Path(path).is_file():
        raise click.BadParameter(
            f"there is no file {path}; an absolute path has four slashes, sqlite:////DIRECTORY/FILE"
        )
    return database


def _of_sqlalchemy(url: str, name: str) -> SqlDatabase[Any]:
    with Extra("a URL of SQLAlchemy", "sqlalchemy"):
        from sqlalchemy import create_engine
        from sqlalchemy.exc import ArgumentError

        from tuff.sql.sqlalchemy import SqlAlchemyDatabase

    try:
        engine = create_engine(url)
    except ArgumentError:
        raise click.BadParameter(f"SQLAlchemy knows no such URL; use {_URLS}") from None
    if engine.dialect.is_async:
        raise click.BadParameter("this driver is for asyncio; name another one, or none")
    return SqlAlchemyDatabase(engine, name)


def _refuse_typed_password(parts: SplitResult) -> None:
    context = click.get_current_context()
    source = context.get_parameter_source("database_url")
    is_typed = source is not None and source.name == "COMMANDLINE"
    if is_typed and parts.password is not None:
        raise click.BadParameter(
            f"everybody on this machine can read a password on a command line; put the URL into "
            f"the environment variable {URL_VARIABLE}"
        )


def _line(settled: SqlSettled) -> str:
    return (
        f"{counted(settled.committed_count, 'transaction')} committed, {settled.aborted_count} "
        f"aborted, {settled.open_count} still open in the database; "
        f"{counted(settled.deleted_count, 'row')} deleted"
    )
