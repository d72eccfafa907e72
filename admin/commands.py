"""The offline commands of server.py: `fsck`, `salvage`, `backup`, `restore`, `inspect` (promise 8),
`doctor` and `explain`.

Each prints JSON, one object per line, for the `tuff` command and for Spark, which import nothing
of the server. A finding has the kind `damage`, or `doubt` if it may be no corruption. The last
object counts the others, except that of `inspect`.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from admin import doctor, explain_offline, inspect_files, inspect_tables
from admin.backup_and_restore import copy, restore_archive
from admin.data_directory import DataDirectory
from admin.findings import CorruptDataError, Finding, RefusedError, StoreMissingError
from admin.fsck import check
from admin.salvage import salvage, salvage_archive
from admin.salvage_messages import SalvageReport
from messaging.engines.engine_interface import StoreError
from messaging.read.poll import Poll
from process.directory_locks import DirectoryNameError
from process.option_parser import OptionParser
from tuff.protocol.errors import TuffError
from tuff.protocol.ids import topic_id
from tuff.protocol.requests import Isolation
from tuff_storage.disk.locks import DirectoryLockedError
from tx.file_headers import NewerFilesError

EXIT_CORRUPT = 1  # or, of `inspect`: unreadable
EXIT_REFUSED = 2
_REFUSALS = (RefusedError, NewerFilesError, DirectoryLockedError, DirectoryNameError, StoreError)
_RUNNING = (
    "or use a copy: `tuff backup FILE` copies the data of a running server, and `tuff restore FILE "
    "DIR` makes a directory of it"
)

Line = Mapping[str, object]

_FILES: Mapping[str, Callable[[Path], Iterable[Line]]] = {
    "snapshot": inspect_files.snapshot_lines,
    "snapshots": inspect_files.directory_lines,
    "log": inspect_files.log_lines,
    "tables": inspect_tables.table_rows,
}
_HBASE = ("hbase-regions", "hbase-rows")


def main(
    arguments: list[str],
    *,
    now_ms: int,
    elapsed_s: Callable[[], float],
    new_store_id: Callable[[], str],
) -> int:
    """Run one command; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        if options.command in ("doctor", "explain", "inspect"):
            return _look(options, now_ms=now_ms, elapsed_s=elapsed_s)
        return _run(options, now_ms=now_ms, new_store_id=new_store_id)
    except CorruptDataError as error:
        return _fail(str(error), EXIT_CORRUPT)
    except _REFUSALS as error:
        return _fail(_refusal(error, options), EXIT_REFUSED)
    except OSError as error:
        path = error.filename or options.directory
        return _fail(f"{path} can't be used: {error.strerror}", EXIT_REFUSED)


def _refusal(error: Exception, options: argparse.Namespace) -> str:
    match error:
        case DirectoryLockedError() if options.command != "restore":
            return f"{error}; {_RUNNING}"
        case StoreMissingError() if error.option in options:
            return f"{error}; {error.advice}"
        case _:
            return str(error)


def _run(options: argparse.Namespace, *, now_ms: int, new_store_id: Callable[[], str]) -> int:
    if options.command == "restore" and options.directory.is_file():
        row_count = restore_archive(options.directory, options.new, now_ms=now_ms)
        _print({"kind": "restored", "rows": row_count})
        return 0
    if options.command == "salvage" and options.directory.is_file():
        return _salvage(
            salvage_archive(
                options.directory, options.new, now_ms=now_ms, new_store_id=new_store_id
            )
        )
    if options.command == "restore":  # a backup contains both stores
        data = DataDirectory.of(options.directory)
    else:
        data = DataDirectory.locate(options.directory, options.snapshots)
    with ExitStack() as locks:
        data.require_stores(with_messages=not options.without_messages)
        data.lock_out_servers(locks)
        match options.command:
            case "fsck":
                return _fsck(data, now_ms=now_ms)
            case "salvage":
                return _salvage(
                    salvage(data, options.new, now_ms=now_ms, new_store_id=new_store_id)
                )
            case "backup":
                return _copied("backed up", *copy(data, options.new, now_ms=now_ms))
            case _:
                return _copied("restored", *copy(data, options.new, now_ms=now_ms))


def _explain(options: argparse.Namespace, *, now_ms: int) -> int:
    data = DataDirectory.locate(options.directory, options.snapshots)
    data.require_stores(with_messages=True)
    try:
        topic = topic_id(options.namespace, options.topic)
        reader = Poll(tx=options.tx, isolation=Isolation(options.isolation))
        _print(explain_offline.explained(data, topic, options.id, reader, now_ms=now_ms))
    except TuffError as error:
        return _fail(error.detail, EXIT_REFUSED)
    return 0


def _fsck(data: DataDirectory, *, now_ms: int) -> int:
    report = check(data, now_ms=now_ms)
    for finding in report.findings:
        _print(_row(finding))
    count = len(report.corruptions)
    elsewhere = {"snapshots": str(data.snapshots)} if data.has_snapshots_elsewhere else {}
    _print({"kind": "checked", "rows": report.row_count, "damages": count, **elsewhere})
    return EXIT_CORRUPT if count else 0


def _salvage(report: SalvageReport) -> int:
    for finding in report.lost:
        _print({"kind": "lost", "place": finding.location, "reason": finding.reason})
    for decision in report.decided:
        _print({"kind": "decided", "place": decision.location, "reason": decision.reason})
    kept = {f"{table} rows": count for table, count in sorted(report.kept.items())}
    _print({"kind": "salvaged", **kept, "lost": len(report.lost)})
    return 0


def _copied(done: str, file_count: int, size_bytes: int) -> int:
    _print({"kind": done, "files": file_count, "bytes": size_bytes})
    return 0


def _look(options: argparse.Namespace, *, now_ms: int, elapsed_s: Callable[[], float]) -> int:
    if options.command == "inspect":
        return _inspect(options.what, options.path, elapsed_s=elapsed_s)
    if options.command == "explain":
        return _explain(options, now_ms=now_ms)
    for found in doctor.findings(
        options.config, options.data, options.set, now_ms=now_ms, elapsed_s=elapsed_s
    ):
        _print({**asdict(found), "level": found.level.value})
    return 0


def _inspect(what: str, path: str, *, elapsed_s: Callable[[], float]) -> int:
    if what in _HBASE:
        return _inspect_hbase(what, path, elapsed_s=elapsed_s)
    return _inspect_files(what, Path(path))


def _inspect_files(what: str, path: Path) -> int:
    """Corruption is an object of the kind `damage`: everything that can be read is printed."""
    if not path.exists():
        return _fail(f"there is no {path}", EXIT_CORRUPT)
    try:
        for row in _FILES[what](path):
            _print(row)
    except OSError as error:
        return _fail(f"{path} can't be read: {error.strerror}", EXIT_CORRUPT)
    return 0


def _inspect_hbase(what: str, where: str, *, elapsed_s: Callable[[], float]) -> int:
    try:
        from admin.inspect_hbase import location, region_lines, regions
    except ModuleNotFoundError as error:
        return _fail(
            f"reading HBase needs {error.name}, which is not installed; "
            "pip install 'tuff-messaging[hbase]'",
            EXIT_CORRUPT,
        )
    try:
        settings, rows = location(json.loads(where))
        lines = (
            regions(settings, elapsed_s=elapsed_s)
            if what == "hbase-regions"
            else region_lines(settings, rows, elapsed_s=elapsed_s)
        )
        for line in lines:
            _print(line)
    except (ValueError, StoreError) as error:
        return _fail(str(error), EXIT_CORRUPT)
    return 0


def _row(finding: Finding) -> Line:
    return {
        "kind": "damage" if finding.is_corruption else "doubt",
        "place": finding.location,
        "reason": finding.reason,
        "advice": finding.advice,
    }


def _parser() -> OptionParser:
    parser = OptionParser(prog="server.py")
    commands = parser.add_subparsers(required=True, dest="command")
    fsck = commands.add_parser("fsck", help="read everything, and report corruption")
    salvaging = commands.add_parser("salvage", help="write everything readable to a new directory")
    backup = commands.add_parser("backup", help="copy data to a new directory")
    restore = commands.add_parser("restore", help="create a data directory from a backup")
    why = commands.add_parser("explain", help="say why a reader does not receive a message")
    for command in (fsck, salvaging, backup, restore, why):
        command.add_argument("directory", type=Path, metavar="DIR")
    for command in (fsck, salvaging, backup, why):
        command.add_argument("--snapshots", type=Path, metavar="DIR")
    for command in (fsck, salvaging, backup, restore):
        command.add_argument("--without-messages", action="store_true")
    for name in ("namespace", "topic", "id"):
        why.add_argument(name)
    why.add_argument("--isolation", choices=["committed", "all"], default="committed")
    why.add_argument("--tx", type=int)
    for command in (salvaging, backup, restore):
        command.add_argument("new", type=Path, metavar="NEW")
    check = commands.add_parser("doctor", help="check the machine, settings and directories")
    check.add_argument("--config", type=Path, metavar="FILE.toml")
    check.add_argument("--data", type=Path, metavar="DIR")
    check.add_argument("--set", action="append", default=[], metavar="section.key=value")
    inspect = commands.add_parser("inspect", help="print what a file or a table contains")
    inspect.add_argument("what", choices=[*_FILES, *_HBASE])
    inspect.add_argument("path", help="a path; of HBase, JSON (admin/inspect_hbase.py)")
    return parser


def _print(row: Line) -> None:
    print(json.dumps(row))


def _fail(sentence: str, code: int) -> int:
    print(f"tuff: {sentence}", file=sys.stderr)
    return code
