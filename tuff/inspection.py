"""What the server's own code reads in its files and tables, as rows of JSON.

It runs in a process of its own (`server.py inspect …`, which prints one object per line), as the
library imports no room of the server.
"""

import json
import subprocess
from collections.abc import Generator

from tuff.launch import server_command
from tuff.protocol.errors import DamagedRecordError, InternalError

Row = dict[str, object]

DAMAGE = "damage"  # the kind of a row that tells where a file stops being readable


def inspect(what: str, argument: str) -> Generator[Row, None, None]:
    """The rows of what an argument names: a file, a directory, or a place in HBase.

    Raises:
        LaunchError: there is no server beside this package.
        DamagedRecordError: it could not be read at all; the sentence is the server's.
    """
    command = server_command(["inspect", what, argument])
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None, "it is a pipe"
        assert process.stderr is not None, "it is a pipe"
        try:
            for line in process.stdout:
                yield _row(line)
        except GeneratorExit:
            process.kill()  # who wants no more rows waits for none
            raise
        said = process.stderr.read().decode("utf-8", "replace").strip()
    if process.returncode != 0:
        last = said.splitlines()[-1] if said else f"tuff: it exited with {process.returncode}"
        raise DamagedRecordError(
            f"{argument} can't be shown: {last.removeprefix('tuff: ')}", code="unreadable_file"
        )


def _row(line: bytes) -> Row:
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InternalError(f"`server.py inspect` printed {line[:80]!r}, which is no JSON object")
    return value
