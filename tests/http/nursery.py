"""`python -m tests.http.nursery FD`: has loaded the server, and forks itself into servers.

    request := {"arguments": […], "directory": "…", "environment": {…}}, with three descriptors:
               standard output, standard error, and where to write the exit code at the end
    answer := the process id

Nothing runs in here but this loop: no thread, no event loop, no open store, so what a fork begins
with is what `python server.py` has when it calls `main`. When the asker is gone, so are all forks.
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
    """A server that runs: its process id, and who is told how it ended."""

    pid: int
    status: int


def main(descriptor: int) -> int:
    """Serve one asker until it hangs up; in a fork, the server's own exit code."""
    serve: Main = import_module("server").main
    asker = socket.socket(fileno=descriptor)
    children: dict[int, Child] = {}  # by a descriptor that can be read once it has ended
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    while True:
        for ready, _ in poller.poll():
            if ready != descriptor:
                poller.unregister(ready)
                _tell(children.pop(ready))
                os.close(ready)
                continue
            asked, given, _, _ = socket.recv_fds(asker, REQUEST_BYTES_MAX, 3)
            if not asked:
                for child in children.values():
                    os.kill(child.pid, signal.SIGKILL)
                return 0
            if not (pid := os.fork()):
                asker.detach()
                return serve(_settle(json.loads(asked), given))
            out, errors, status = given
            os.close(out)
            os.close(errors)
            ended = os.pidfd_open(pid)
            children[ended] = Child(pid, status)
            poller.register(ended, select.POLLIN)
            asker.send(b"%d" % pid)


def _tell(child: Child) -> None:
    _, status = os.waitpid(child.pid, 0)
    try:
        os.write(child.status, b"%d" % os.waitstatus_to_exitcode(status))
    except BrokenPipeError:
        pass  # nobody wants to know
    finally:
        os.close(child.status)


def _settle(asked: dict[str, object], given: list[int]) -> list[str]:
    """Make a fork what a new process would be; its arguments."""
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
