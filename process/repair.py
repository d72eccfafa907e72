"""`server.py fsck|salvage|backup|restore …`: JSON, one object a line (promise 8).

In a process of its own, as `server.py inspect` is. A finding has the kind `damage`, or `doubt` for
what may as well be in order; the last line sums up.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from messaging.storage.seam import StoreError
from process.backups import DamagedDataError, NewerDataError, copy, unpack
from process.checks import Data, NoDataError, check
from process.new_directory import NotNewError
from process.places import DirectoryNameError
from process.salvaging import salvage
from tuff.disk.findings import Finding
from tuff.disk.lock import DirectoryLockedError
from tx.files import NewerFilesError

EXIT_DAMAGED = 1
EXIT_USAGE = 2
_REFUSED = (
    NoDataError, NotNewError, NewerDataError, NewerFilesError, DirectoryLockedError,
    DirectoryNameError, StoreError,
)  # fmt: skip
COPIES = {"backup": "backed up", "restore": "restored"}  # the command, and what it has done


def main(arguments: list[str], *, now_ms: int, new_store_id: Callable[[], str]) -> int:
    """Run one of the commands; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "restore" and options.directory.is_file():
            return _unpack(options.directory, options.new, now_ms=now_ms)
        return _with_data(options, now_ms=now_ms, new_store_id=new_store_id)
    except DamagedDataError as error:
        print(f"tuff: {error}", file=sys.stderr)
        return EXIT_DAMAGED
    except _REFUSED as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.filename or options.directory} can't be used: {error.strerror}")


def _with_data(options: argparse.Namespace, *, now_ms: int, new_store_id: Callable[[], str]) -> int:
    # What is restored was copied by us, with all that belongs to it.
    place = Data.below if options.command == "restore" else Data.found
    data = place(options.directory, options.snapshots)
    with ExitStack() as held:
        data.require_there(with_messages=not options.without_messages)
        data.hold(held)
        if options.command == "fsck":
            return _fsck(data, now_ms=now_ms)
        if options.command in COPIES:
            return _copy(data, options, now_ms=now_ms)
        return _salvage(data, options.new, now_ms=now_ms, new_store_id=new_store_id)


def _fsck(data: Data, *, now_ms: int) -> int:
    row_count, findings = check(data, now_ms=now_ms)
    for finding in findings:
        _print(_row(finding))
    damage_count = sum(finding.is_damage for finding in findings)
    places = {"snapshots": str(data.snapshots)} if data.is_apart else {}
    _print({"kind": "checked", "rows": row_count, "damages": damage_count, **places})
    return EXIT_DAMAGED if damage_count else 0


def _copy(data: Data, options: argparse.Namespace, *, now_ms: int) -> int:
    copied = copy(data, options.new, now_ms=now_ms)
    kind = COPIES[options.command]
    _print({"kind": kind, "files": copied.file_count, "bytes": copied.size_bytes})
    return 0


def _unpack(archive: Path, target: Path, *, now_ms: int) -> int:
    row_count = unpack(archive, target, now_ms=now_ms)
    _print({"kind": "restored", "rows": row_count})
    return 0


def _salvage(data: Data, target: Path, *, now_ms: int, new_store_id: Callable[[], str]) -> int:
    account = salvage(data, target, now_ms=now_ms, new_store_id=new_store_id)
    for finding in account.lost:
        _print({"kind": "lost", "place": finding.place, "reason": finding.reason})
    for decision in account.decided:
        _print({"kind": "decided", "place": decision.place, "reason": decision.reason})
    kept = {f"{table} rows": count for table, count in sorted(account.kept.items())}
    _print({"kind": "salvaged", **kept, "lost": len(account.lost)})
    return 0


def _row(finding: Finding) -> Mapping[str, object]:
    return {
        "kind": "damage" if finding.is_damage else "doubt",
        "place": finding.place,
        "reason": finding.reason,
        "advice": finding.advice,
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="server.py", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, dest="command")
    fsck = commands.add_parser("fsck", help="read everything, and say what is damaged")
    saving = commands.add_parser("salvage", help="write what is whole to a new directory")
    backup = commands.add_parser("backup", help="copy whole data to a new directory")
    restore = commands.add_parser("restore", help="copy a backup to a new directory")
    for command in (fsck, saving, backup, restore):
        command.add_argument("directory", type=Path, metavar="DIR")
        command.add_argument("--snapshots", type=Path, metavar="DIR")
        command.add_argument("--without-messages", action="store_true")
    for command in (saving, backup, restore):
        command.add_argument("new", type=Path, metavar="NEW")
    return parser


def _print(row: Mapping[str, object]) -> None:
    print(json.dumps(row))


def _fail(sentence: str) -> int:
    print(f"tuff: {sentence}", file=sys.stderr)
    return EXIT_USAGE
