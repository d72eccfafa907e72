"""Starts servers as forks of one process that has loaded everything (`fork_server.py`).

Imports are four fifths of the cost of a start, and a run of the tests starts more than a hundred
servers. A fork runs the same `server.main`, in a process of its own with its own directory,
environment and output; it ends, is killed and is waited for like any other. test_process.py tests
what comes before `main`: there, and in the programs of `make prove`, servers start as users start
them.
"""

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import BinaryIO

REPOSITORY = Path(__file__).resolve().parents[2]
STATUS_BYTES_MAX = 16  # bytes of an exit code, in digits
PID_BYTES_MAX = 16


class ForkedProcess:
    """As much of `subprocess.Popen` as servers need. `_reading` guards what was read."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        self._reading = Lock()

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        return self._read(0)

    def wait(self, timeout: float) -> int:
        """The exit code, as soon as there is one. Raises: TimeoutExpired."""
        code = self._read(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("a forked server", timeout)
        return code

    def _read(self, timeout_s: float) -> int | None:
        with self._reading:
            if self.returncode is None and select.select([self._status], [], [], timeout_s)[0]:
                told = os.read(self._status, STATUS_BYTES_MAX)
                os.close(self._status)
                assert told, "the fork server ended before its child"
                self.returncode = int(told)
            return self.returncode


class ForkServer:
    """The process that forks. `_asking` is held from a request to its answer."""

    def __init__(self) -> None:
        self._asking = Lock()
        self._near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.http.fork_server", str(far.fileno())],
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                pass_fds=[far.fileno()],
                start_new_session=True,
            )

    def fork(
        self, arguments: list[str], directory: Path, *, out: BinaryIO, errors: BinaryIO
    ) -> ForkedProcess:
        """`server.py ARGUMENTS` in that directory."""
        asked = {
            "arguments": arguments,
            "directory": str(directory.absolute()),
            "environment": dict(os.environ),
        }
        told, status = os.pipe()
        try:
            with self._asking:
                given = [out.fileno(), errors.fileno(), status]
                socket.send_fds(self._near, [json.dumps(asked).encode()], given)
                pid = self._near.recv(PID_BYTES_MAX)
        finally:
            os.close(status)
        assert pid, "the fork server has ended"
        return ForkedProcess(int(pid), told)

    def close(self) -> None:
        """End it, and every server that it forked and that still runs."""
        self._near.close()
        self._process.wait()


# Those of the test sessions in this process: one, or none.
_fork_servers: list[ForkServer | None] = []


@contextmanager
def forking() -> Iterator[None]:
    """Within the block servers are forks, unless a test needs something special of one."""
    _fork_servers.append(None)
    try:
        yield
    finally:
        started = _fork_servers.pop()
        if started is not None:
            started.close()


def fork_server() -> ForkServer | None:
    """The process that forks servers, started by the first call; None: start them as users do."""
    if not _fork_servers:
        return None
    found = _fork_servers[-1] = _fork_servers[-1] or ForkServer()
    return found
