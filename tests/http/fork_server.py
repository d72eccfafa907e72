"""`python -m tests.http.fork_server FD`: loads the server, and forks a process for each request.

    request := {"arguments": […], "directory": "…", "environment": {…}}, with three descriptors:
               standard output, standard error, and where to write the exit code at the end
    answer := the process id

This process runs nothing but the loop: no thread, no event loop, no open store. So a fork begins
in the state that `python server.py` has when it calls `main`. When the client closes its end, all
forks are killed.
"""

import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

REQUEST_BYTES_MAX = 1 << 17  # bytes; an environment is most of it
DESCRIPTORS_MAX = 1_024  # descriptors of this process: two for each server that runs

Main = Callable[[list[str]], int]


@dataclass(frozen=True, slots=True)
class Child:
    """A server that runs: its process id, and the descriptor to which its exit code goes."""

    pid: int
    status: int


def main(descriptor: int) -> int:
    """Serve one client until it closes its end; in a fork, returns the server's exit code."""
    serve: Main = import_module("server").main
    client = socket.socket(fileno=descriptor)
    children: dict[int, Child] = {}  # by a descriptor that can be read once it has ended
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    while True:
        for ready, _ in poller.poll():
            if ready != descriptor:
                poller.unregister(ready)
                _report(children.pop(ready))
                os.close(ready)
                continue
            asked, given, _, _ = socket.recv_fds(client, REQUEST_BYTES_MAX, 3)
            if not asked:
                for child in children.values():
                    os.kill(child.pid, signal.SIGKILL)
                return 0
            if not (pid := os.fork()):
                client.detach()
                return serve(_set_up(json.loads(asked), given))
            out, errors, status = given
            os.close(out)
            os.close(errors)
            ended = os.pidfd_open(pid)
            children[ended] = Child(pid, status)
            poller.register(ended, select.POLLIN)
            client.send(b"%d" % pid)


def _report(child: Child) -> None:
    _, status = os.waitpid(child.pid, 0)
    try:
        os.write(child.status, b"%d" % os.waitstatus_to_exitcode(status))
    except BrokenPipeError:
        pass  # the client is gone
    finally:
        os.close(child.status)


def _set_up(asked: dict[str, object], given: list[int]) -> list[str]:
    """Set up a fork as a new process would be; returns its arguments."""
    os.setsid()
    for descriptor, place in zip(given[:2], (1, 2), strict=True):
        os.dup2(descriptor, place)
    os.closerange(3, DESCRIPTORS_MAX)
    match asked:
        case {
            "directory": str(directory),
            "environment": dict(environment),
            "arguments": list(arguments),
        }:
            os.chdir(directory)
            os.environ.clear()
            os.environ.update(environment)
            sys.argv[1:] = arguments
            return arguments
        case _:
            raise AssertionError(f"no request: {asked}")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
