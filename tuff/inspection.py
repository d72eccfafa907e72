"""What the server's own code reads in its files and tables, as rows of JSON.

It runs in a process of its own (`server.py inspect …`, which prints one object per line), as the
library imports no room of the server.
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
SAID_BYTES_MAX = 64 << 10  # bytes; of what it says on standard error, the end matters
DAMAGE = "damage"  # the kind of a row that tells where a file stops being readable


def inspect(what: str, argument: str) -> Generator[Row, None, None]:
    """The rows of what an argument names: a file, a directory, or a place in HBase.

    Raises:
        LaunchError: there is no server beside this package.
        BadRequestError: it is something else than what was asked for.
        DamagedRecordError: it could not be read at all; the sentence is the server's.
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
            process.kill()  # who wants no more rows waits for none
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
