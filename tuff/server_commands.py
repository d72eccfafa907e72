"""Runs the offline commands of server.py, and reads the JSON rows that they print.

The server's own code decodes its files. It runs in a process of its own, since the library imports
nothing of the server.
"""

import json
import subprocess
from collections.abc import Generator, Sequence
from os import SEEK_END
from tempfile import TemporaryFile

from tuff.launch import server_command
from tuff.protocol.errors import BadRequestError, DamagedRecordError, InternalError

Row = dict[str, object]

EXIT_USAGE = 2  # the command was refused: wrong arguments, a wrong file, or files in use
STDERR_BYTES_MAX = 64 << 10  # bytes; only the end of standard error is read
DAMAGE = "damage"  # the kind of a row that reports corruption


class ServerCommandError(Exception):
    """The command ended with an exit code above 0; the text is its last line on standard error."""

    def __init__(self, sentence: str, exit_code: int) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


def server_rows(arguments: Sequence[str]) -> Generator[Row, None, None]:
    """The rows that a command prints, as it prints them.

    Raises:
        LaunchError: there is no server beside this package.
        ServerCommandError: after the last row: the command failed.
        InternalError: it printed something else.
    """
    # Standard error is a file: a process that fills one pipe waits for the reader of the other.
    with (
        TemporaryFile() as errors,
        subprocess.Popen(
            server_command(arguments), stdout=subprocess.PIPE, stderr=errors
        ) as process,
    ):
        assert process.stdout is not None, "it is a pipe"
        try:
            for line in process.stdout:
                yield _row(line)
        except BaseException:
            process.kill()  # the caller stopped reading, or the output is not valid
            raise
        code = process.wait()
        errors.seek(max(0, errors.seek(0, SEEK_END) - STDERR_BYTES_MAX))
        lines = errors.read().decode("utf-8", "replace").strip().splitlines()
    if code != 0:
        last = lines[-1] if lines else f"it exited with {code}"
        raise ServerCommandError(last.removeprefix("tuff: "), code)


def inspect(what: str, argument: str) -> Generator[Row, None, None]:
    """The rows of a file, a directory or a range in HBase, as `server.py inspect` prints them.

    Raises:
        LaunchError: there is no server beside this package.
        BadRequestError: it is not of the kind `what`, or a server uses it.
        DamagedRecordError: it can't be read at all.
    """
    try:
        yield from server_rows(["inspect", what, argument])
    except ServerCommandError as error:
        if error.exit_code == EXIT_USAGE:
            raise BadRequestError(str(error), code="wrong_file") from None
        raise DamagedRecordError(
            f"{argument} can't be shown: {error}", code="unreadable_file"
        ) from None


def _row(line: bytes) -> Row:
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InternalError(f"server.py printed {line[:80]!r}, which is not a JSON object")
    return value
