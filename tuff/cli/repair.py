"""`tuff fsck`, `salvage`, `backup`, `restore`: a stopped server's data, looked at and copied.

The server's own code reads the files, in a process of its own (`server.py fsck …`), which prints
one JSON object per line.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click

from tuff.cli.options import output_options
from tuff.cli.output import notice, print_json, print_table
from tuff.launch import server_command
from tuff.protocol.errors import BadRequestError, DamagedRecordError

Row = dict[str, object]

EXIT_DAMAGED = 1
EXIT_USAGE = 2
SUMMARIES = (
    "checked",
    "salvaged",
    "backed up",
    "restored",
)  # kinds of the last row, which counts the others
REASON_LENGTH_MAX = 2_000  # characters; a sentence that says what was lost is shown whole

_DATA = click.Path(exists=True, file_okay=False, path_type=Path)
_SNAPSHOTS = click.option(
    "--snapshots", type=_DATA, help="Where the snapshots are, if not in DIRECTORY/snapshots."
)


@click.command()
@click.argument("directory", type=_DATA)
@_SNAPSHOTS
@output_options
def fsck(*, directory: Path, snapshots: Path | None, as_json: bool) -> None:
    """Read everything in DIRECTORY (a stopped server's --data), and show what is damaged."""
    summary = _run(["fsck", str(directory), *_placed(snapshots)], as_json=as_json)
    if summary["damages"]:
        raise DamagedRecordError(
            f"{directory} is damaged in {summary['damages']} places; what is whole can be written "
            f"into a new directory with `tuff salvage {directory} NEW`",
            code="damaged_files",
        )


@click.command()
@click.argument("directory", type=_DATA)
@click.argument("new", type=click.Path(path_type=Path))
@_SNAPSHOTS
@output_options
def salvage(*, directory: Path, new: Path, snapshots: Path | None, as_json: bool) -> None:
    """Write what is whole in DIRECTORY to NEW, from which a server can start; show what was lost.

    DIRECTORY is not touched.
    """
    _run(["salvage", str(directory), str(new), *_placed(snapshots)], as_json=as_json)


@click.command()
@click.argument("directory", type=_DATA)
@click.argument("target", type=click.Path(path_type=Path))
@_SNAPSHOTS
@output_options
def backup(*, directory: Path, target: Path, snapshots: Path | None, as_json: bool) -> None:
    """Copy DIRECTORY (a stopped server's --data) to TARGET, which is new, and verify the copy."""
    _run(["backup", str(directory), str(target), *_placed(snapshots)], as_json=as_json)


@click.command()
@click.argument("source", type=_DATA)
@click.argument("directory", type=click.Path(path_type=Path))
@output_options
def restore(*, source: Path, directory: Path, as_json: bool) -> None:
    """Copy the backup SOURCE to DIRECTORY, which is new, for a server's --data; verify it."""
    _run(["restore", str(source), str(directory)], as_json=as_json)


def _placed(snapshots: Path | None) -> list[str]:
    return [] if snapshots is None else ["--snapshots", str(snapshots)]


def _run(arguments: list[str], *, as_json: bool) -> Row:
    """Print what the server's code says of the directories; its last row."""
    rows = list(_rows(arguments))
    if as_json:
        for row in rows:
            print_json(row)
        return rows[-1]
    summary = rows.pop()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if rows:
        lines = ([row.get(name, "") for name in columns] for row in rows)
        print_table(columns, lines, title=arguments[1], cell_length_max=REASON_LENGTH_MAX)
    counts = ", ".join(f"{name} {value}" for name, value in summary.items() if name != "kind")
    notice(f"{summary['kind']}: {counts}")
    return summary


def _rows(arguments: list[str]) -> Iterator[Row]:
    done = subprocess.run(
        server_command(arguments), capture_output=True, text=True, encoding="utf-8", check=False
    )
    rows: list[Row] = [json.loads(line) for line in done.stdout.splitlines()]
    if not rows or rows[-1].get("kind") not in SUMMARIES:
        lines = done.stderr.strip().splitlines() or [f"it exited with {done.returncode}"]
        sentence = lines[-1].removeprefix("tuff: ")
        if done.returncode == EXIT_DAMAGED:
            raise DamagedRecordError(sentence, code="damaged_files")
        if done.returncode == EXIT_USAGE:
            raise click.UsageError(sentence)
        raise BadRequestError(f"{arguments[1]} can't be read: {sentence}", code="unreadable_files")
    yield from rows
