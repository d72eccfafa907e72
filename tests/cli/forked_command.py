"""A program `tuff` for the shell lines of the documents, and the offline tools (`server.py fsck …`)
for the commands that the tests run. One process has loaded them all, and runs each in a fork of
itself: to load them takes ten times as long as most of them run.

    python -m tests.cli.forked_command DIRECTORY

    request := {"program": "tuff"|"server.py", "arguments": […], "directory": "…",
                "environment": {…}}, with three descriptors: standard input, output and error
    answer := the exit code

The process runs nothing but the loop, as tests/http/fork_server.py. The start of a command and of a
tool as users start it is tested in test_terminal.py, test_exit_codes.py and tests/release.
"""

import json
import os
import socket
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from runpy import run_path
from typing import NoReturn

from tests.cli.forking import BROKEN, COMMAND, READY, SERVER, SOCKET, tools_from
from tests.http.forking import REPOSITORY
from tuff_cli import main as run_command
from tuff_cli.program import program

LOADED = ("server", "admin.commands", "admin.access_file")
REQUEST_BYTES_MAX = 1 << 17  # bytes; an environment is most of it


def main(directory: Path) -> NoReturn:
    """Serve until the end of the process."""
    assert all(program.commands.values())  # loads each
    for module in LOADED:
        import_module(module)
    with (
        tools_from(lambda: directory),
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
    ):
        listener.bind(str(directory / SOCKET))
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
        if request["program"] == COMMAND:
            run_command(request["arguments"])
        sys.argv = [str(REPOSITORY / SERVER), *request["arguments"]]
        run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else BROKEN
    finally:
        with suppress(BrokenPipeError):  # the client was killed
            client.send(b"%d" % code)
        os._exit(code)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
