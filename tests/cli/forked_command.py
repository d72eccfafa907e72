"""A program `tuff` for the shell lines of the documents. One process has loaded all commands, and
runs each in a fork of itself: to load them takes ten times as long as most commands run.

    python -m tests.cli.forked_command SOCKET

    request := {"arguments": […], "directory": "…", "environment": {…}}, with three descriptors:
               standard input, output and error
    answer := the exit code

The process runs nothing but the loop, as tests/http/fork_server.py. The start of a command as users
start it is tested in test_terminal.py, test_exit_codes.py and tests/release.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from tests.http.forking import REPOSITORY
from tuff_cli import main as run_command
from tuff_cli.program import program

REQUEST_BYTES_MAX = 1 << 17  # bytes; an environment is most of it
READY = b"ready\n"
BROKEN = 70  # the exit code of a command that ended without one

SCRIPT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as forks:
    forks.connect({address!r})
    asked = {{"arguments": sys.argv[1:], "directory": os.getcwd(), "environment": dict(os.environ)}}
    socket.send_fds(forks, [json.dumps(asked).encode()], [0, 1, 2])
    sys.exit(int(forks.recv(16) or b"{broken}"))
"""


@contextmanager
def forked_commands(directory: Path) -> Iterator[None]:
    """Within the block, `tuff` in this directory is that program."""
    address = str(directory / "forks")
    command = [sys.executable, "-m", "tests.cli.forked_command", address]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE) as forks:
        try:
            assert forks.stdout is not None
            assert forks.stdout.readline() == READY
            script = SCRIPT.format(python=sys.executable, address=address, broken=BROKEN)
            (directory / "tuff").write_text(script)
            (directory / "tuff").chmod(0o755)
            yield
        finally:
            forks.kill()


def main(address: str) -> NoReturn:
    """Serve until the end of the process."""
    assert all(program.commands.values())  # loads each
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(100)
        os.write(1, READY)
        while True:
            client, _ = listener.accept()
            if not os.fork():
                listener.close()
                answer(client)
            client.close()
            with suppress(ChildProcessError):  # there is none
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def answer(client: socket.socket) -> NoReturn:
    """Run one command in this process, and tell its client the exit code."""
    asked, given, _, _ = socket.recv_fds(client, REQUEST_BYTES_MAX, 3)
    request = json.loads(asked)
    for place, descriptor in enumerate(given):
        os.dup2(descriptor, place)
        os.close(descriptor)
    code = BROKEN
    try:
        os.chdir(request["directory"])
        os.environ.clear()
        os.environ.update(request["environment"])
        run_command(request["arguments"])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else BROKEN
    finally:
        client.send(b"%d" % code)
        os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
