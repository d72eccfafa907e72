"""`tuff access`: make tokens, and check the access file of a server.

The server's own code does it, in a process of its own (`server.py access …`).
"""

from pathlib import Path

import click

from tuff.cli.fsck_and_backup import refusal
from tuff.cli.options import output_options, topic_of
from tuff.cli.output import notice, print_json, print_table
from tuff.launch import Row, ServerCommandError, server_rows

_FILE = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))


@click.group()
def access() -> None:
    """Make tokens, and check the access file of a server (server.access_file)."""


@access.command()
@click.argument("name")
@output_options
def token(*, name: str, as_json: bool) -> None:
    """Make a token for the principal NAME, and print it with its lines for the access file.

    Only the hash of the token stands in the file, so the token can't be shown again.
    """
    (row,) = _rows(["token", name])
    if as_json:
        print_json(row)
        return
    click.echo(row["token"])
    notice(f"lines for the access file:\n{row['lines']}")


@access.command()
@_FILE
@output_options
def check(*, file: Path, as_json: bool) -> None:
    """Check an access file, and print the rights of each principal."""
    rows = _rows(["check", str(file)])
    if as_json:
        for row in rows:
            print_json(row)
        return
    columns = ["principal", "namespace", "topics", "allow"]
    print_table(columns, ([row[name] for name in columns] for row in rows), title=str(file))


@access.command()
@_FILE
@click.argument("principal")
@click.argument("right", type=click.Choice(["create", "publish", "read", "transact", "administer"]))
@click.argument("topic")
@output_options
def may(*, file: Path, principal: str, right: str, topic: str, as_json: bool) -> None:
    """Print whether an access file gives PRINCIPAL the RIGHT on TOPIC."""
    found = topic_of(topic)
    (row,) = _rows(["may", str(file), principal, right, found.namespace, found.name])
    if as_json:
        print_json(row)
    else:
        click.echo("yes" if row["may"] else "no")


def _rows(arguments: list[str]) -> list[Row]:
    try:
        return list(server_rows(["access", *arguments]))
    except ServerCommandError as error:
        raise refusal(error, subject="the access file") from None
