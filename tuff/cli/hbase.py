"""`tuff hbase`: create, check, flush and compact the tables of a message store in HBase.

The server's own code does it, in a process of its own (`server.py hbase …`).
"""

import json
import subprocess
import sys
from pathlib import Path

import click

from tuff.cli.options import SECONDS, output_options
from tuff.cli.output import notice, print_json
from tuff.cli.repair import run_server
from tuff.launch import server_command

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
    """The tables of a message store in HBase."""


@hbase.command()
@_CONFIG
@_SET
@click.option("--yes", is_flag=True, help="Also change existing tables that differ.")
@output_options
def deploy(*, config: Path | None, assignments: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Create missing tables; show what differs in existing ones.

    Nothing is removed, and repeating it is harmless.
    """
    flags = ["--yes"] if yes else []
    run_server(["hbase", "deploy", *_settings(config, assignments), *flags], as_json=as_json)


@hbase.command()
@_CONFIG
@_SET
@output_options
def status(*, config: Path | None, assignments: tuple[str, ...], as_json: bool) -> None:
    """Show the tables: missing, enabled or disabled, and the attributes that they lack."""
    run_server(["hbase", "status", *_settings(config, assignments)], as_json=as_json)


@hbase.command()
@_CONFIG
@_SET
@_TABLES
@output_options
def flush(
    *, config: Path | None, assignments: tuple[str, ...], tables: tuple[str, ...], as_json: bool
) -> None:
    """Have HBase write the memory of the tables to files."""
    _follow(["hbase", "flush", *_settings(config, assignments), *tables], as_json=as_json)


@hbase.command()
@_CONFIG
@_SET
@_TABLES
@click.option(
    "--within", type=SECONDS, default=3_600.0, show_default=True, help="Seconds to wait at most."
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
    """Flush the tables and have HBase rewrite their files without deleted rows; wait until it ends.

    It reads and writes all files, and shows how many regions are left.
    """
    flags = ["--within", str(within)]
    given = [*_settings(config, assignments), *flags, *tables]
    _follow(["hbase", "compact", *given], as_json=as_json)


def _follow(arguments: list[str], *, as_json: bool) -> None:
    """Print each row of the server's code as soon as it comes."""
    with subprocess.Popen(
        server_command(arguments), stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            row = json.loads(line)
            if as_json:
                print_json(row)
            else:
                notice(", ".join(f"{name} {value}" for name, value in row.items()))
    if process.returncode:
        sys.exit(process.returncode)


def _settings(config: Path | None, assignments: tuple[str, ...]) -> list[str]:
    given = [] if config is None else ["--config", str(config)]
    return [*given, *(word for each in assignments for word in ("--set", each))]
