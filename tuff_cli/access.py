"""`tuff access`: make tokens, and check and change the access file of a server.

The server's own code does it, in a process of its own (`server.py access …`).
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import click

from tuff.launch import Row, ServerCommandError, server_rows
from tuff_cli.fsck_and_backup import refusal
from tuff_cli.options import DEFAULT_NAMESPACE, PathType, output_options, topic_of
from tuff_cli.output import Table, notice, print_json, print_table

_FILE = click.argument("file", type=PathType(exists=True, dir_okay=False, path_type=Path))

_RIGHT = click.argument(
    "right", type=click.Choice(["create", "publish", "read", "transact", "administer"])
)


@click.group()
def access() -> None:
    """Make tokens, and check and change the access file of a server (server.access_file)."""


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
    """Check an access file, and print rights, quotas and tenant of each principal."""
    rows = _rows(["check", str(file)])
    if as_json:
        for row in rows:
            print_json(row)
        return
    columns = ["principal", "namespace", "topics", "allow", "quotas", "tenant"]
    lines = [{**row, "quotas": _quotas(row["quotas"])} for row in rows]
    print_table(Table(columns, [[line[name] for name in columns] for line in lines], str(file)))
    for sentence in sorted(set(_divided(rows))):
        notice(sentence)


@access.command()
@_FILE
@click.argument("principal")
@_RIGHT
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


@access.command()
@_FILE
@click.argument("principal")
@_RIGHT
@click.argument("topics")
@output_options
def grant(*, file: Path, principal: str, right: str, topics: str, as_json: bool) -> None:
    """Give PRINCIPAL the RIGHT on TOPICS in an access file.

    TOPICS is NAMESPACE:PATTERN, or PATTERN in namespace default; "*:*" is every topic. Comments of
    the file stay. A server takes the change over within a second.
    """
    _change("grant", file, principal, right, topics, as_json=as_json)


@access.command()
@_FILE
@click.argument("principal")
@_RIGHT
@click.argument("topics")
@output_options
def revoke(*, file: Path, principal: str, right: str, topics: str, as_json: bool) -> None:
    """Take the RIGHT on TOPICS from PRINCIPAL in an access file.

    TOPICS is one of the patterns in the file, written as for grant. If another pattern still gives
    the right on these topics, nothing is changed. The right transact has no topic.
    """
    _change("revoke", file, principal, right, topics, as_json=as_json)


def _change(
    command: str, file: Path, principal: str, right: str, topics: str, *, as_json: bool
) -> None:
    namespace, colon, pattern = topics.partition(":")
    place = [namespace, pattern] if colon else [DEFAULT_NAMESPACE, topics]
    (row,) = _rows([command, str(file), principal, right, *place])
    if as_json:
        print_json(row)
    else:
        click.echo("changed" if row["changed"] else "the principal has this right already")


def _divided(rows: Sequence[Row]) -> Iterator[str]:
    """Namespaces to which principals of several tenants publish, administrators aside."""
    publishing = [
        row for row in rows
        if "publish" in str(row["allow"]).split() and "administer" not in str(row["allow"]).split()
    ]  # fmt: skip
    for one, other in combinations(publishing, 2):
        namespaces = {one["namespace"], other["namespace"]}
        if one["tenant"] != other["tenant"] and (len(namespaces) == 1 or "*" in namespaces):
            shared = " and ".join(sorted(map(str, namespaces - {"*"} or namespaces)))
            yield (
                f"{one['principal']} and {other['principal']} may both publish in namespace "
                f"{shared}, and are of different tenants: neither finds conflicts with the other"
            )


def _quotas(quotas: object) -> str:
    assert isinstance(quotas, dict)
    return " ".join(f"{name}={value}" for name, value in quotas.items())


def _rows(arguments: list[str]) -> list[Row]:
    try:
        return list(server_rows(["access", *arguments]))
    except ServerCommandError as error:
        raise refusal(error, subject="the access file") from None
