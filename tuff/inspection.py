"""The content of the server's files and tables, as rows of JSON, read by the server's own code.

It runs in a process of its own (`server.py inspect …`, which prints one object per line), since the
library imports nothing of the server.
"""

import json
import subprocess
from collections.abc import Generator
from os import SEEK_END
from tempfile import TemporaryFile

from tuff.launch import server_command
from tuff.protocol.errors import BadRequestError, DamagedRecordError, InternalError

Row = dict[str, object]

EXIT_USAGE = 2  # of `server.py inspect`
SAID_BYTES_MAX = 64 << 10  # bytes; only the end of its standard error is read
DAMAGE = "damage"  # the kind of a row that reports corruption


def inspect(what: str, argument: str) -> Generator[Row, None, None]:
    """The rows in what the argument names: a file, a directory, or a location in HBase.

    Raises:
        LaunchError: there is no server beside this package.
        BadRequestError: it is of another kind than `what`, or in use.
        DamagedRecordError: it could not be read at all.
    """
    command = server_command(["inspect", what, argument])
    # Errors go to a file: a process that fills one pipe waits for the reader of the other.
    with (
        TemporaryFile() as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        assert process.stdout is not None, "it is a pipe"
        try:
            for line in process.stdout:
                yield _row(line)
        except GeneratorExit:
            process.kill()  # the caller wants no more rows
            raise
        code = process.wait()
        errors.seek(max(0, errors.seek(0, SEEK_END) - SAID_BYTES_MAX))
        said = errors.read().decode("utf-8", "replace").strip()
    last = said.splitlines()[-1] if said else f"it exited with {code}"
    sentence = last.removeprefix("tuff: ")
    if code == EXIT_USAGE:
        raise BadRequestError(sentence, code="wrong_file")
    if code != 0:
        raise DamagedRecordError(f"{argument} can't be shown: {sentence}", code="unreadable_file")


def _row(line: bytes) -> Row:
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InternalError(f"`server.py inspect` printed {line[:80]!r}, which is no JSON object")
    return value
