"""`tuff fsck`, `salvage`, `backup`, `restore`: check and copy a server's data.

`server.py fsck …` reads the files of a stopped server in a process of its own (admin/commands.py).
A running server sends its backup over HTTP; a download that fails leaves no file.
"""

import os
import shlex
from dataclasses import dataclass
from errno import EEXIST
from pathlib import Path
from ssl import SSLContext
from typing import BinaryIO

import click

from tuff.address import addresses_of
from tuff.blocking.http import pieces
from tuff.flows_and_repeated_calls import Call
from tuff.launch import EXIT_USAGE, Row, ServerCommandError, server_rows
from tuff.protocol.errors import BadRequestError, DamagedRecordError, TuffError
from tuff.protocol.operations import TAKE_BACKUP
from tuff.protocol.sentences import counted
from tuff.requests_and_responses import Request
from tuff_cli.options import PathType, Target, output_options, pass_target, server_options
from tuff_cli.output import Table, notice, print_json, print_table
from tuff_storage.disk.backup_archive import ArchiveError, NewerArchiveError, read_parts
from tuff_storage.disk.files import sync_directory

# The kinds of the summary, which is the last row and counts the others.
SUMMARIES = ("checked", "salvaged", "backed up", "restored", "inspected", "deployed")
REASON_LENGTH_MAX = 2_000  # characters; the reason of a finding is not cut off
PART_SUFFIX = ".part"  # of a file that is still being received
ANNOUNCED_BYTES = 8 << 20  # reading less takes no noticeable time
PIECE_BYTES = 1 << 20  # bytes held in memory
PIECE_S_MAX = 60.0  # seconds until the next piece; packing the transactions of a large state first
CONNECT_S_MAX = 5.0

_BACKUP: Call[None] = Call(Request(operation=TAKE_BACKUP), lambda _: None)

_DATA = PathType(exists=True, file_okay=False, path_type=Path)
SNAPSHOTS = click.option(
    "--snapshots",
    type=_DATA,
    help="The transaction files, if they are neither in nor beside the data directory.",
)
_WITHOUT_MESSAGES = click.option(
    "--without-messages",
    is_flag=True,
    help="Expect no message store: it is in HBase, was in memory, or is lost.",
)


@click.command()
@click.argument("directory", type=PathType(exists=True, path_type=Path))
@SNAPSHOTS
@_WITHOUT_MESSAGES
@output_options
def fsck(*, directory: Path, snapshots: Path | None, without_messages: bool, as_json: bool) -> None:
    """Check all files in DIRECTORY (--data of a stopped server), and show what is corrupt.

    DIRECTORY may be a backup of a running server, a file: each of its bytes is checked, and nothing
    is restored.
    """
    flags = _flags(snapshots, without_messages=without_messages)
    if directory.is_file():
        if flags:
            raise click.UsageError(
                f"{directory} is a backup of a running server, which has all of its data in one "
                "file: --snapshots and --without-messages are for directories"
            )
        check_backup(directory, as_json=as_json)
        return
    summary = run_server(["fsck", str(directory), *flags], as_json=as_json)
    if damage_count := int(str(summary["damages"])):
        salvaging = shlex.join(["tuff", "salvage", *flags, str(directory)])
        raise DamagedRecordError(
            f"{directory} is corrupt in {counted(damage_count, 'location')}; write what can be "
            f"read to a new directory with `{salvaging} NEW`",
            code="damaged_files",
        )


@click.command()
@click.argument("directory", type=PathType(exists=True, path_type=Path))
@click.argument("new", type=PathType(path_type=Path))
@SNAPSHOTS
@_WITHOUT_MESSAGES
@output_options
def salvage(
    *, directory: Path, new: Path, snapshots: Path | None, without_messages: bool, as_json: bool
) -> None:
    """Copy everything readable in DIRECTORY to NEW, from which a server can start; show the rest.

    DIRECTORY may be a backup of a running server, a file. It is not changed.
    """
    flags = _flags(snapshots, without_messages=without_messages)
    summary = run_server(["salvage", str(directory), str(new), *flags], as_json=as_json)
    if summary["lost"] and not as_json:
        notice(
            "lost counts places in files, and not messages: each may have had many, of any topic; "
            f"compare the topics of a server on {new} with what their programs expect"
        )


@click.command()
@click.argument("paths", nargs=-1, type=PathType(path_type=Path), metavar="[DIRECTORY] TARGET")
@SNAPSHOTS
@_WITHOUT_MESSAGES
@server_options
@output_options
@pass_target
def backup(
    target: Target,
    *,
    paths: tuple[Path, ...],
    snapshots: Path | None,
    without_messages: bool,
    as_json: bool,
) -> None:
    """Write a consistent backup of the running server to the file TARGET.

    With DIRECTORY, the --data of a stopped server: copy it to TARGET, a new directory. TARGET is
    verified; if the command fails, TARGET does not exist.
    """
    flags = _flags(snapshots, without_messages=without_messages)
    match paths:
        case (archive,) if not flags:
            _download(target, archive, as_json=as_json)
        case (directory, archive) if "--url" not in target.typed:
            run_server(["backup", str(directory), str(archive), *flags], as_json=as_json)
        case _:
            raise click.UsageError(
                "give TARGET for a running server, and DIRECTORY and TARGET for a stopped one, to "
                "which --snapshots and --without-messages apply, and --url does not"
            )


@click.command()
@click.argument("source", type=PathType(exists=True, path_type=Path))
@click.argument("directory", type=PathType(path_type=Path))
@_WITHOUT_MESSAGES
@output_options
def restore(*, source: Path, directory: Path, without_messages: bool, as_json: bool) -> None:
    """Create the data directory DIRECTORY (for --data) from the backup SOURCE, and verify it."""
    flags = _flags(None, without_messages=without_messages)
    run_server(["restore", str(source), str(directory), *flags], as_json=as_json)


def _download(target: Target, archive: Path, *, as_json: bool) -> None:
    target.client().close()  # it checks the address and the token
    try:
        downloaded = download(
            target.url, archive, token=target.token, ssl_context=target.tls_files.context()
        )
    except FileExistsError:
        raise click.UsageError(f"{archive} exists already; name a new file") from None
    except TuffError:  # a lost connection is an OSError, too
        raise
    except OSError as error:
        raise click.UsageError(f"{archive} can't be written: {error.strerror}") from None
    counts = {"parts": downloaded.part_count, "bytes": downloaded.size_bytes}
    if as_json:
        print_json({"kind": "backed up", **counts})
    else:
        shown = ", ".join(f"{name} {value}" for name, value in counts.items())
        notice(f"backed up: {shown}")


def check_backup(archive: Path, *, as_json: bool) -> None:
    """Print the size of a backup of a running server, of which each byte is as it was written.

    Raises:
        DamagedRecordError: it is not whole.
        BadRequestError: it is of a newer version.
        TuffError: it can't be read.
    """
    _announce(archive)
    try:
        with archive.open("rb") as file:
            part_count = sum(1 for _ in read_parts(file))
            size_bytes = file.tell()
    except NewerArchiveError as error:
        raise BadRequestError(
            f"{archive} can't be checked here: {error}; use a `tuff` of the version that wrote it, "
            "or another backup, if it was none",
            code="command_refused",
        ) from None
    except ArchiveError as error:
        keeping = shlex.join(["tuff", "salvage", str(archive)])
        raise DamagedRecordError(
            f"{archive} is not a whole backup: {error}; use another one, or write what can be read "
            f"to a new directory with `{keeping} NEW`",
            code="damaged_backup",
        ) from None
    except OSError as error:
        raise TuffError(
            f"{archive} can't be read: {error.strerror}", code="unreadable_files"
        ) from None
    counts = {"parts": part_count, "bytes": size_bytes, "damages": 0}
    if as_json:
        print_json({"kind": "checked", **counts})
    else:
        notice(f"checked: {', '.join(f'{name} {value}' for name, value in counts.items())}")


def _flags(snapshots: Path | None, *, without_messages: bool) -> list[str]:
    flags = [] if snapshots is None else ["--snapshots", str(snapshots)]
    return [*flags, "--without-messages"] if without_messages else flags


def run_server(arguments: list[str], *, as_json: bool) -> Row:
    """Print the rows of an offline command; returns its last row, the summary.

    Raises:
        TuffError: the command failed before it had one; the kind depends on its exit code.
    """
    if not as_json:
        _announce(Path(arguments[1]))
    rows = _rows(arguments)
    if as_json:
        for row in rows:
            print_json(row)
        return rows[-1]
    summary = rows.pop()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if rows:
        lines = ([row.get(name, "") for name in columns] for row in rows)
        print_table(Table(columns, lines, arguments[1], REASON_LENGTH_MAX))
    counts = ", ".join(f"{name} {value}" for name, value in summary.items() if name != "kind")
    notice(f"{summary['kind']}: {counts}")
    return summary


def _announce(source: Path) -> None:
    """Say on standard error that a large source is read, since nothing is printed meanwhile."""
    files = [source] if source.is_file() else [each for each in source.rglob("*") if each.is_file()]
    size_bytes = sum(each.stat().st_size for each in files)
    if size_bytes >= ANNOUNCED_BYTES:
        notice(f"reading {source}, {size_bytes >> 20} MiB; 100,000 messages take some seconds")


def _rows(arguments: list[str]) -> list[Row]:
    rows: list[Row] = []
    try:
        rows.extend(server_rows(arguments))
    except ServerCommandError as error:
        # Exit code 1 of a complete run means that corruption was found, and the rows report it.
        if not _is_complete(rows):
            raise refusal(error, subject=arguments[1]) from None
    if not _is_complete(rows):
        raise TuffError(f"{arguments[1]} can't be read: no summary", code="unreadable_files")
    return rows


def _is_complete(rows: list[Row]) -> bool:
    return bool(rows) and rows[-1].get("kind") in SUMMARIES


def refusal(error: ServerCommandError, *, subject: str) -> TuffError:
    """The error of a failed offline command, by its exit code."""
    match error.exit_code:
        case code if code == EXIT_USAGE:
            return BadRequestError(str(error), code="command_refused")
        case 1:
            return DamagedRecordError(str(error), code="damaged_files")
        case _:
            return TuffError(f"{subject} can't be read: {error}", code="unreadable_files")


@dataclass(frozen=True, slots=True)
class Downloaded:
    """The size of a backup, and its parts."""

    part_count: int
    size_bytes: int


def download(
    url: str, archive: Path, *, token: str | None = None, ssl_context: SSLContext | None = None
) -> Downloaded:
    """Receive all that the server at `url` holds at this moment, and read it again from the disk.
    Of several addresses, the first that can be reached sends it.

    Raises:
        ValueError: `url` or `token` is not valid.
        FileExistsError: there is something at `archive` already.
        ConnectionLostError: the server can't be reached or trusted, or was lost on the way.
        DamagedRecordError: the reply is not a whole backup; the text says why.
        TuffError: its kind for what the server refused.
        OSError: the file can't be written.
    """
    addresses = addresses_of(url, PIECE_S_MAX, CONNECT_S_MAX, token=token, ssl_context=ssl_context)
    if archive.exists():
        raise FileExistsError(EEXIST, os.strerror(EEXIST), str(archive))
    part = archive.with_name(archive.name + PART_SUFFIX)
    try:
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)  # it has every message
        with part.open("w+b") as file:
            for piece in pieces(addresses, _BACKUP, size_bytes=PIECE_BYTES):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            downloaded = _verified(file, archive)
        part.replace(archive)
        sync_directory(archive.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return downloaded


def _verified(file: BinaryIO, archive: Path) -> Downloaded:
    try:
        count = sum(1 for _ in read_parts(file))
    except NewerArchiveError as error:
        raise DamagedRecordError(
            f"what the server sent can't be read here, and {archive} was not made: {error}; use a "
            "`tuff` of the server's version",
            code="damaged_backup",
        ) from None
    except ArchiveError as error:
        raise DamagedRecordError(
            f"the reply of the server is not a whole backup, and {archive} was not made: {error}",
            code="damaged_backup",
        ) from None
    return Downloaded(count, file.tell())
