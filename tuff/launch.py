"""Runs server.py in a process of its own: as a server (protocol §8), or as an offline command whose
JSON rows are read.

The library imports nothing of the server. It starts `server.py` by its resolved path, with
`python -P`, so that a user's own `tx.py` in the working directory can't replace the server's.
"""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from os import SEEK_END
from pathlib import Path
from tempfile import TemporaryFile
from typing import NoReturn

from tuff.protocol.errors import BadRequestError, DamagedRecordError, InternalError

START_TIMEOUT_S = 30.0  # seconds; recovery of a large log takes a few
STOP_TIMEOUT_S = 15.0  # seconds; a server stops within 10
READY = "tuff ready on "
EXIT_USAGE = 2  # the command was refused: wrong arguments, a wrong file, or files in use
STDERR_BYTES_MAX = 64 << 10  # bytes; only the end of standard error is read
DAMAGE = "damage"  # the kind of a row that reports corruption

Row = dict[str, object]

_HERE = Path(__file__).resolve().parent
_CANDIDATES = (_HERE.parent / "server.py", _HERE.parent / "tuff_server" / "server.py")


class LaunchError(Exception):
    """The server can't be found, or did not start; the text says why."""


def server_file() -> Path:
    """The path of server.py: beside the package in a checkout, in `tuff_server/` if installed.

    Raises:
        LaunchError: it is in neither directory.
    """
    for file in _CANDIDATES:
        # A server.py without these components beside it belongs to another package.
        if file.is_file() and (file.parent / "process" / "components.py").is_file():
            return file
    raise LaunchError(
        f"no server is installed beside {_HERE}; install the complete tuff-messaging package"
    )


def server_command(arguments: Sequence[str]) -> list[str]:
    """The command line that runs the server with these arguments. Raises: LaunchError."""
    return [sys.executable, "-P", str(server_file()), *arguments]


def run_pipeline() -> NoReturn:
    """Run `tuff-pipeline` in this process; like the server, it is started by its path."""
    program = server_file().parent / "pipeline" / "__main__.py"
    os.execv(sys.executable, [sys.executable, "-P", str(program), *sys.argv[1:]])


class ServerProcess:
    """A server on a free port, with all its data in one directory; use it in a `with` block.

    It ends with this process, also if that is killed. Its log is appended to the file `log`.
    """

    def __init__(self, data: Path | str, *, log: Path | str, arguments: Sequence[str] = ()) -> None:
        given = ["--data", str(data), "--port", "0", "--until-stdin-closes", *arguments]
        command = server_command(given)
        self._log = Path(log)
        with self._log.open("ab") as errors:
            # In a process group of its own: Ctrl-C interrupts only the program that started it,
            # which may still need the server while it stops.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # never written to: it ends with this process, if killed
                stdout=subprocess.PIPE,
                stderr=errors,
                process_group=0,
            )
        try:
            self.url = self._ready_url()
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> int:
        """Stop it after its current requests; returns its exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_TIMEOUT_S)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill it, as a crash would."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _ready_url(self) -> str:
        assert self._process.stdout is not None, "its standard output is a pipe"
        descriptor, printed = self._process.stdout.fileno(), b""
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        while b"\n" not in printed:
            chunk = os.read(descriptor, 4096) if poller.poll(START_TIMEOUT_S * 1000) else b""
            if not chunk:
                raise LaunchError(self._start_failure())
            printed += chunk
        line = printed.decode("utf-8", "replace").splitlines()[0]
        if not line.startswith(READY):
            raise LaunchError(f"the server printed {line!r} instead of {READY!r} and its URL")
        return line.removeprefix(READY).strip()

    def _start_failure(self) -> str:
        lines = self._log.read_text(errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "its log is empty")
        return f"the server did not start: {last.strip()} (its log is {self._log})"


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
