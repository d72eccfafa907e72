"""`server.py inspect …`: what the server's files hold, as JSON, one object a line (design §4).

It runs in a process of its own, so that the `tuff` command needs no room of the server. Damage is
an object of the kind `damage`: everything that can be read is printed all the same.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from messaging import inspect as message_files
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


def main(arguments: list[str]) -> int:
    """Print what a file or a directory holds; returns the exit code."""
    if len(arguments) != 2 or arguments[0] not in INSPECTORS:
        return _fail(f"usage: server.py inspect {'|'.join(INSPECTORS)} PATH", EXIT_USAGE)
    what, path = arguments[0], Path(arguments[1])
    if not path.exists():
        return _fail(f"there is no {path}", EXIT_FAILED)
    try:
        for row in INSPECTORS[what](path):
            print(json.dumps(row))
    except OSError as error:
        return _fail(f"{path} can't be read: {error.strerror}", EXIT_FAILED)
    return 0


def _fail(sentence: str, code: int) -> int:
    print(f"tuff: {sentence}", file=sys.stderr)
    return code
