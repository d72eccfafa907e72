"""`tuff hbase`: the tables of a message store in HBase, made and looked at.

The server's own code does it, in a process of its own (`server.py hbase …`).
"""

from pathlib import Path

import click

from tuff.cli.options import output_options
from tuff.cli.repair import run_server

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
    help="One setting, as often as needed.",
)


@click.group()
def hbase() -> None:
    """The tables of a message store in HBase."""


@hbase.command()
@_CONFIG
@_SET
@click.option("--yes", is_flag=True, help="Change tables that are there and differ, too.")
@output_options
def deploy(*, config: Path | None, assignments: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Make the tables that are missing; say what differs of those that are there.

    Nothing is removed, and repeating it is harmless.
    """
    flags = ["--yes"] if yes else []
    run_server(["hbase", "deploy", *_settings(config, assignments), *flags], as_json=as_json)


@hbase.command()
@_CONFIG
@_SET
@output_options
def status(*, config: Path | None, assignments: tuple[str, ...], as_json: bool) -> None:
    """Show the tables: missing, enabled or disabled, and what they should have and have not."""
    run_server(["hbase", "status", *_settings(config, assignments)], as_json=as_json)


def _settings(config: Path | None, assignments: tuple[str, ...]) -> list[str]:
    given = [] if config is None else ["--config", str(config)]
    return [*given, *(word for each in assignments for word in ("--set", each))]
