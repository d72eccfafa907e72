"""`tuff hbase`: create, check, flush and compact the tables of a message store in HBase.

The server's own code does it, in a process of its own (`server.py hbase …`).
"""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from tuff.launch import ServerCommandError, server_rows
from tuff_cli.fsck_and_backup import refusal, run_server
from tuff_cli.options import SECONDS, PathType, output_options
from tuff_cli.output import notice, print_json

_TABLES = click.argument(
    "tables",
    nargs=-1,
    type=click.Choice(["message", "payload", "metadata", "journal"]),
    metavar="[message|payload|metadata|journal]...",
)


@click.group()
def hbase() -> None:
    """Create, check, flush and compact the tables of a message store in HBase."""


def _settings_options(function: Callable[..., None]) -> Callable[..., None]:
    """`--config` and `--set`, which the function gets as `settings`, the words of the server's
    command line; and `--json`."""

    @click.option(
        "--config",
        type=PathType(exists=True, dir_okay=False, path_type=Path),
        help="The server's settings file; conf/distributed.toml is an example.",
    )
    @click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="section.key=value",
        help="One setting; may be repeated.",
    )
    @output_options
    @wraps(function)
    def run(*, config: Path | None, assignments: tuple[str, ...], **parameters: Any) -> None:
        settings = [] if config is None else ["--config", str(config)]
        settings += [word for each in assignments for word in ("--set", each)]
        function(settings=settings, **parameters)

    return run


@hbase.command()
@click.option("--yes", is_flag=True, help="Also change existing tables that differ.")
@_settings_options
def deploy(*, settings: list[str], yes: bool, as_json: bool) -> None:
    """Create missing tables, and show the differences of existing ones.

    No data is removed, and the command can be repeated.
    """
    run_server(["hbase", "deploy", *settings, *(["--yes"] if yes else [])], as_json=as_json)


@hbase.command()
@_settings_options
def status(*, settings: list[str], as_json: bool) -> None:
    """Show whether each table exists and is enabled, and the attributes that it lacks."""
    run_server(["hbase", "status", *settings], as_json=as_json)


@hbase.command()
@_TABLES
@_settings_options
def flush(*, settings: list[str], tables: tuple[str, ...], as_json: bool) -> None:
    """Flush the memory of the tables to files."""
    _follow(["hbase", "flush", *settings, *tables], as_json=as_json)


@hbase.command()
@_TABLES
@click.option(
    "--within",
    type=SECONDS,
    default=3_600.0,
    show_default=True,
    metavar="DURATION",
    help="How long to wait.",
)
@_settings_options
def compact(*, settings: list[str], tables: tuple[str, ...], within: float, as_json: bool) -> None:
    """Flush and compact the tables, and wait until HBase has rewritten their files.

    All files are read and written. The number of remaining regions is shown.
    """
    _follow(["hbase", "compact", *settings, "--within", str(within), *tables], as_json=as_json)


def _follow(arguments: list[str], *, as_json: bool) -> None:
    """Print each row as soon as it arrives."""
    try:
        for row in server_rows(arguments):
            if as_json:
                print_json(row)
            else:
                notice(", ".join(f"{name} {value}" for name, value in row.items()))
    except ServerCommandError as error:
        raise refusal(error, subject="HBase") from None
