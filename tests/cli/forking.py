"""Starts commands as forks of one process that has loaded everything (`forked_command.py`)."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from unittest.mock import patch

from tests.http.forking import REPOSITORY
from tuff import launch

COMMAND, SERVER = "tuff", "server.py"
# Offline tools of the server. Its main program is forked by tests/http/forking.py.
TOOLS = ("fsck", "salvage", "backup", "restore", "inspect", "doctor", "explain", "access")
SOCKET = "forks"
READY = b"ready\n"
BROKEN = 70  # the exit code of a command that ended without one

SCRIPT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as forks:
    forks.connect({address!r})
    asked = {{
        "program": {program!r}, "arguments": sys.argv[1:],
        "directory": os.getcwd(), "environment": dict(os.environ),
    }}
    socket.send_fds(forks, [json.dumps(asked).encode()], [0, 1, 2])
    sys.exit(int(forks.recv(16) or b"{broken}"))
"""


@contextmanager
def forked_commands(directory: Path) -> Iterator[None]:
    """Within the block, `tuff` in this directory is that program, and `server.py` the tools."""
    address = str(directory / SOCKET)
    command = [sys.executable, "-m", "tests.cli.forked_command", str(directory)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE) as forks:
        try:
            assert forks.stdout is not None
            assert forks.stdout.readline() == READY
            for name in (COMMAND, SERVER):
                script = SCRIPT.format(
                    python=sys.executable, address=address, program=name, broken=BROKEN
                )
                (directory / name).write_text(script)
                (directory / name).chmod(0o755)
            yield
        finally:
            forks.kill()


@contextmanager
def forked_tools(directory: Callable[[], Path]) -> Iterator[None]:
    """Within the block, the tools that commands of this process start are forks. The process of
    which they are forks begins with the first of them, with its files in `directory`."""
    with ExitStack() as started:

        @cache
        def forks() -> Path:
            found = directory()
            started.enter_context(forked_commands(found))
            return found

        started.enter_context(tools_from(forks))
        yield


@contextmanager
def tools_from(directory: Callable[[], Path]) -> Iterator[None]:
    """Within the block, the library starts the tools that are in this directory."""
    real = launch.server_command

    def command(arguments: Sequence[str]) -> list[str]:
        if arguments[0] not in TOOLS:
            return real(arguments)
        return [sys.executable, "-IS", str(directory() / SERVER), *arguments]

    with patch.object(launch, "server_command", command):
        yield
