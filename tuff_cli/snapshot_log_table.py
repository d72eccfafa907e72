"""`tuff snapshot`, `tuff log`, `tuff table`: print the content of the server's files.

Only `tuff snapshot take` needs a running server. The server's own code reads the files, in a
process of its own (tuff/launch.py).
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from tuff.blocking.client import Client
from tuff.launch import DAMAGE, Row, inspect
from tuff.protocol.errors import DamagedRecordError
from tuff_cli.options import PathType, client_command, output_options
from tuff_cli.output import (
    Result,
    Table,
    field_table,
    moment,
    notice,
    print_json,
    print_table,
    shown,
)

MOMENTS = ("at_ms", "created_ms", "timestamp_ms", "clock_ms")  # suffixes of members that are times
UNSEEN = {"key"}  # not shown: a row's key repeats its members in hex
EDIT_LENGTH_MAX = 2_000  # characters of a cell with members of an edit; each member is cut alone
FEW = 4  # columns; a single object with more of them is shown as a vertical table

_FILE = PathType(exists=True, dir_okay=False, path_type=Path)
_DIRECTORY = PathType(exists=True, file_okay=False, path_type=Path)


@click.group()
def snapshot() -> None:
    """Take, list, show and compare snapshots of the transaction state."""


@click.group()
def log() -> None:
    """Show a write-ahead log of the transaction service."""


@click.group()
def table() -> None:
    """Show the rows of a message store that no server has open."""


@snapshot.command()
@client_command
def take(client: Client) -> Result:
    """Make the server write a snapshot now, and print its name."""
    written = client.transactions.take_snapshot()
    return Result(
        json=written,
        lines=[f"wrote {written.file}, {written.size_bytes} bytes"],
    )


@snapshot.command("ls")
@click.argument("directory", type=_DIRECTORY, default=Path("snapshots"))
@output_options
def list_snapshots(*, directory: Path, as_json: bool) -> None:
    """List the snapshots and logs in DIRECTORY (default: snapshots)."""
    _print(inspect("snapshots", str(directory)), as_json=as_json, title=str(directory))


@snapshot.command("show")
@click.argument("file", type=_FILE)
@output_options
def show_snapshot(*, file: Path, as_json: bool) -> None:
    """Show the transaction state in FILE."""
    _print(inspect("snapshot", str(file)), as_json=as_json, title=file.name)


@snapshot.command()
@click.argument("before", type=_FILE)
@click.argument("after", type=_FILE)
@output_options
def diff(*, before: Path, after: Path, as_json: bool) -> None:
    """Show what only the snapshot AFTER contains (+), and what only BEFORE contains (-)."""
    old, new = (list(inspect("snapshot", str(file))) for file in (before, after))
    for file, rows in ((before, old), (after, new)):
        # Two corrupt snapshots would compare as equal: both have no rows.
        _require_intact([row.get("reason") for row in rows if _kind(row) == DAMAGE], file.name)
    changes = list(difference(old, new))
    if changes or as_json:
        _print(changes, as_json=as_json, title=f"{before.name} → {after.name}")
    else:
        click.echo(f"{before.name} and {after.name} are equal")


@log.command("show")
@click.argument("file", type=_FILE)
@output_options
def show_log(*, file: Path, as_json: bool) -> None:
    """Show the edits in FILE, in their order."""
    _print(inspect("log", str(file)), as_json=as_json, title=file.name, in_order=True)


@table.command("show")
@click.argument("directory", type=_DIRECTORY)
@output_options
def show_tables(*, directory: Path, as_json: bool) -> None:
    """Show every row in DIRECTORY, the messages/ of a stopped server's --data."""
    _print(inspect("tables", str(directory)), as_json=as_json, title=str(directory))


def difference(before: list[Row], after: list[Row]) -> Iterator[Row]:
    """The rows that only one of two lists contains, marked `-` or `+`, kind by kind."""
    old, new = {_key(row) for row in before}, {_key(row) for row in after}
    gone = [{"change": "-", **row} for row in before if _key(row) not in new]
    come = [{"change": "+", **row} for row in after if _key(row) not in old]
    yield from sorted([*gone, *come], key=_kind)


def _key(row: Row) -> str:
    return json.dumps(row, sort_keys=True)


def _kind(row: Row) -> str:
    return str(row.get("kind", ""))


def _print(rows: Iterable[Row], *, as_json: bool, title: str, in_order: bool = False) -> None:
    damages: list[object] = []

    def noted() -> Iterator[Row]:
        for row in rows:
            if _kind(row) == DAMAGE:
                damages.append(row.get("reason"))
            yield row

    if as_json:
        for row in noted():
            print_json(row)
    else:
        _print_tables(list(noted()), title=title, in_order=in_order)
    _require_intact(damages, title)


def _require_intact(damages: list[object], title: str) -> None:
    if damages:
        reason = str(damages[0])
        sentence = reason if title in reason else f"{title} is damaged: {reason}"
        raise DamagedRecordError(sentence, code="damaged_file")


def _print_tables(rows: list[Row], *, title: str, in_order: bool) -> None:
    if in_order:
        columns = _columns(rows)
        shared = [name for name in columns if 2 * sum(name in row for row in rows) > len(rows)]
        lines = ([*_cells(row, shared), _rest(row, shared)] for row in rows)
        print_table(Table([*shared, ""], lines, title, EDIT_LENGTH_MAX))
        return
    if not rows:
        notice(f"there is nothing to show in {title}")
    by_kind: dict[str, list[Row]] = {}
    for row in rows:
        by_kind.setdefault(_kind(row), []).append(row)
    for kind, held in by_kind.items():
        _print_kind(kind or title, held)


def _print_kind(kind: str, rows: list[Row]) -> None:
    columns = [name for name in _columns(rows) if name != "kind"]
    if len(rows) == 1 and len(columns) > FEW:
        fields = dict(zip(columns, _cells(rows[0], columns), strict=True))
        print_table(field_table(fields, title=kind))
    else:
        print_table(Table(columns, [_cells(row, columns) for row in rows], kind))


def _columns(rows: list[Row]) -> list[str]:
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if name not in UNSEEN]


def _rest(row: Row, shared: list[str]) -> str:
    others = (name for name in _columns([row]) if name not in shared)
    return "  ".join(f"{name}={shown(_cell(name, row[name]))}" for name in others)


def _cells(row: Row, columns: list[str]) -> list[object]:
    return [_cell(name, row[name]) if name in row else "" for name in columns]


def _cell(name: str, value: object) -> object:
    if isinstance(value, int) and name.endswith(MOMENTS):
        return moment(value)
    return value
