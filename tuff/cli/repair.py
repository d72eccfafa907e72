"""`tuff fsck`, `salvage`, `backup`, `restore`: check and copy a server's data.

The files of a stopped server are read by `server.py fsck …`, a process of its own, which prints one
JSON object per line (admin/commands.py). A running server sends its backup over HTTP.
"""

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click

from tuff.backups import download
from tuff.cli.options import Session, output_options, server_options, session
from tuff.cli.output import counted, notice, print_json, print_table
from tuff.launch import server_command
from tuff.protocol.errors import BadRequestError, DamagedRecordError, TuffError

Row = dict[str, object]

EXIT_CORRUPT = 1
EXIT_USAGE = 2
# The kinds of the last row, which counts the others.
SUMMARIES = ("checked", "salvaged", "backed up", "restored", "looked at", "deployed")
REASON_LENGTH_MAX = 2_000  # characters; no sentence about what was lost is cut off

_DATA = click.Path(exists=True, file_okay=False, path_type=Path)
_SNAPSHOTS = click.option(
    "--snapshots", type=_DATA, help="The snapshots, if they are neither in nor beside DIRECTORY."
)
_WITHOUT_MESSAGES = click.option(
    "--without-messages",
    is_flag=True,
    help="There is no message store: it is in HBase, was in memory, or is lost.",
)


@click.command()
@click.argument("directory", type=_DATA)
@_SNAPSHOTS
@_WITHOUT_MESSAGES
@output_options
def fsck(*, directory: Path, snapshots: Path | None, without_messages: bool, as_json: bool) -> None:
    """Check all files in DIRECTORY (a stopped server's --data), and show what is corrupt."""
    flags = _flags(snapshots, without_messages=without_messages)
    summary = run_server(["fsck", str(directory), *flags], as_json=as_json)
    if damage_count := int(str(summary["damages"])):
        salvaging = shlex.join(["tuff", "salvage", *flags, str(directory)])
        raise DamagedRecordError(
            f"{directory} is corrupt in {counted(damage_count, 'location')}; write what can be "
            f"read to a new directory with `{salvaging} NEW`",
            code="damaged_files",
        )


@click.command()
@click.argument("directory", type=_DATA)
@click.argument("new", type=click.Path(path_type=Path))
@_SNAPSHOTS
@_WITHOUT_MESSAGES
@output_options
def salvage(
    *, directory: Path, new: Path, snapshots: Path | None, without_messages: bool, as_json: bool
) -> None:
    """Write what can be read in DIRECTORY to NEW, from which a server can start; show what is lost.

    DIRECTORY is not changed.
    """
    flags = _flags(snapshots, without_messages=without_messages)
    run_server(["salvage", str(directory), str(new), *flags], as_json=as_json)


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[DIRECTORY] TARGET")
@_SNAPSHOTS
@_WITHOUT_MESSAGES
@server_options
@output_options
@session
def backup(
    session: Session,
    *,
    paths: tuple[Path, ...],
    snapshots: Path | None,
    without_messages: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Write all data of the running server, as of this moment, to the file TARGET.

    With DIRECTORY, a stopped server's --data: copy that to TARGET, a new directory. Either way
    TARGET is verified, and is a complete backup or does not exist.
    """
    flags = _flags(snapshots, without_messages=without_messages)
    match paths:
        case (target,) if not flags:
            _download(session.address(url), target, as_json=as_json)
        case (directory, target) if url is None:
            run_server(["backup", str(directory), str(target), *flags], as_json=as_json)
        case _:
            raise click.UsageError(
                "name TARGET, and before it DIRECTORY if the server is stopped; --snapshots and "
                "--without-messages need DIRECTORY, --url is for a running server"
            )


@click.command()
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("directory", type=click.Path(path_type=Path))
@_WITHOUT_MESSAGES
@output_options
def restore(*, source: Path, directory: Path, without_messages: bool, as_json: bool) -> None:
    """Make DIRECTORY, for a server's --data, from the backup SOURCE, and verify it."""
    flags = _flags(None, without_messages=without_messages)
    run_server(["restore", str(source), str(directory), *flags], as_json=as_json)


def _download(url: str, target: Path, *, as_json: bool) -> None:
    try:
        downloaded = download(url, target)
    except FileExistsError:
        raise click.UsageError(f"{target} exists already; name a new file") from None
    except OSError as error:
        raise click.UsageError(f"{target} can't be written: {error.strerror}") from None
    counts = {"parts": downloaded.part_count, "bytes": downloaded.size_bytes}
    if as_json:
        print_json({"kind": "backed up", **counts})
    else:
        shown = ", ".join(f"{name} {value}" for name, value in counts.items())
        notice(f"backed up: {shown}")


def _flags(snapshots: Path | None, *, without_messages: bool) -> list[str]:
    flags = [] if snapshots is None else ["--snapshots", str(snapshots)]
    return [*flags, "--without-messages"] if without_messages else flags


def run_server(arguments: list[str], *, as_json: bool) -> Row:
    """Print the rows of a command of server.py; returns its last row, the summary."""
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
        if done.returncode == EXIT_CORRUPT:
            raise DamagedRecordError(sentence, code="damaged_files")
        if done.returncode == EXIT_USAGE:
            raise BadRequestError(sentence, code="command_refused")
        raise TuffError(f"{arguments[1]} can't be read: {sentence}", code="unreadable_files")
    yield from rows
