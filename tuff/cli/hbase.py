"""`tuff hbase`: create, check, flush and compact the tables of a message store in HBase.

The server's own code does it, in a process of its own (`server.py hbase …`).
"""

from pathlib import Path

import click

from tuff.cli.fsck_and_backup import refusal, run_server
from tuff.cli.options import SECONDS, output_options
from tuff.cli.output import notice, print_json
from tuff.launch import ServerCommandError, server_rows

_CONFIG = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The server's settings file; conf/distributed.toml is an example.",
)
_SET = click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="section.key=value",
    help="One setting; may be repeated.",
)
_TABLES = click.argument(
    "tables",
    nargs=-1,
    type=click.Choice(["message", "payload", "metadata", "journal"]),
    metavar="[message|payload|metadata|journal]...",
)


@click.group()
def hbase() -> None:
    """Create, check, flush and compact the tables of a message store in HBase."""


@hbase.command()
@_CONFIG
@_SET
@click.option("--yes", is_flag=True, help="Also change existing tables that differ.")
@output_options
def deploy(*, config: Path | None, assignments: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Create missing tables, and show the differences of existing ones.

    No data is removed, and the command can be repeated.
    """
    flags = ["--yes"] if yes else []
    run_server(["hbase", "deploy", *_settings(config, assignments), *flags], as_json=as_json)


@hbase.command()
@_CONFIG
@_SET
@output_options
def status(*, config: Path | None, assignments: tuple[str, ...], as_json: bool) -> None:
    """Show whether each table exists and is enabled, and the attributes that it lacks."""
    run_server(["hbase", "status", *_settings(config, assignments)], as_json=as_json)


@hbase.command()
@_CONFIG
@_SET
@_TABLES
@output_options
def flush(
    *, config: Path | None, assignments: tuple[str, ...], tables: tuple[str, ...], as_json: bool
) -> None:
    """Flush the memory of the tables to files."""
    _follow(["hbase", "flush", *_settings(config, assignments), *tables], as_json=as_json)


@hbase.command()
@_CONFIG
@_SET
@_TABLES
@click.option(
    "--within",
    type=SECONDS,
    default=3_600.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait.",
)
@output_options
def compact(
    *,
    config: Path | None,
    assignments: tuple[str, ...],
    tables: tuple[str, ...],
    within: float,
    as_json: bool,
) -> None:
    """Flush and compact the tables, and wait until HBase has rewritten their files.

    All files are read and written. The number of remaining regions is shown.
    """
    flags = ["--within", str(within)]
    given = [*_settings(config, assignments), *flags, *tables]
    _follow(["hbase", "compact", *given], as_json=as_json)


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


def _settings(config: Path | None, assignments: tuple[str, ...]) -> list[str]:
    given = [] if config is None else ["--config", str(config)]
    return [*given, *(word for each in assignments for word in ("--set", each))]
