"""`server.py inspect …`: what the server's files and tables hold, as JSON, one object a line.

It runs in a process of its own, so that the `tuff` command and Spark need no room of the server.
Damage is an object of the kind `damage`: everything that can be read is printed all the same. A
file or directory is named by its path; a place in HBase by JSON (messaging/inspect_hbase.py).
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from time import perf_counter

from messaging import inspect as message_files
from messaging.storage.seam import StoreError
from tx import inspect as transaction_files

EXIT_FAILED = 1
EXIT_USAGE = 2

Rows = Iterable[Mapping[str, object]]


INSPECTORS: Mapping[str, Callable[[Path], Rows]] = {
    "snapshot": transaction_files.snapshot_rows,
    "snapshots": transaction_files.directory_rows,
    "log": transaction_files.log_rows,
    "tables": message_files.table_rows,
}
OF_HBASE = ("hbase-regions", "hbase-rows")


def main(arguments: list[str]) -> int:
    """Print what a file or a directory holds; returns the exit code."""
    if len(arguments) != 2 or arguments[0] not in (*INSPECTORS, *OF_HBASE):
        names = "|".join(INSPECTORS)
        return _fail(
            f"usage: server.py inspect {names} PATH, {'|'.join(OF_HBASE)} JSON", EXIT_USAGE
        )
    what, where = arguments
    try:
        for row in _hbase_rows(what, where) if what in OF_HBASE else _file_rows(what, Path(where)):
            print(json.dumps(row))
    except transaction_files.WrongFileError as error:
        return _fail(str(error), EXIT_USAGE)
    except InspectionError as error:
        return _fail(str(error), EXIT_FAILED)
    return 0


class InspectionError(Exception):
    """Nothing can be shown; one sentence."""


def _file_rows(what: str, path: Path) -> Rows:
    if not path.exists():
        raise InspectionError(f"there is no {path}")
    try:
        yield from INSPECTORS[what](path)
    except FileNotFoundError as error:  # it is there, and what makes it a store is not
        raise transaction_files.WrongFileError(
            f"{path} is no message store: {error.strerror}"
        ) from error
    except BlockingIOError as error:  # a server has it
        raise transaction_files.WrongFileError(error.strerror) from error
    except OSError as error:
        raise InspectionError(f"{path} can't be read: {error.strerror}") from error


def _hbase_rows(what: str, where: str) -> Rows:
    try:
        from messaging.inspect_hbase import Where, region_rows, regions
    except ModuleNotFoundError as error:
        raise InspectionError(
            f"to read HBase needs {error.name}, which is not installed; "
            "pip install 'tuff-messaging[hbase]'"
        ) from None
    try:
        place = Where.from_json(json.loads(where), elapsed_s=perf_counter)
        yield from regions(place) if what == "hbase-regions" else region_rows(place)
    except (ValueError, StoreError) as error:
        raise InspectionError(str(error)) from error


def _fail(sentence: str, code: int) -> int:
    print(f"tuff: {sentence}", file=sys.stderr)
    return code
