"""A forked server is a process like any other."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.http.client import until
from tests.http.conftest import NewServer
from tests.http.forking import ForkedProcess, ForkServer
from tests.http.process import ServerProcess


def is_listening(server: ServerProcess) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex((server.host, server.port)) == 0


def test_a_forked_server_has_a_process_and_a_directory_of_its_own(new_server: NewServer) -> None:
    one, other = new_server(), new_server()

    assert isinstance(one.process, ForkedProcess)
    assert len({os.getpid(), one.pid, other.pid}) == 3
    assert os.getpgid(one.pid) == one.pid
    assert Path(f"/proc/{one.pid}/cwd").resolve() == one.home
    opened = {os.readlink(entry) for entry in Path(f"/proc/{other.pid}/fd").iterdir()}
    assert not [path for path in opened if path.startswith(str(one.home))]


def test_the_exit_code_of_a_forked_server_is_known(new_server: NewServer, tmp_path: Path) -> None:
    stopped, killed = new_server(), new_server()

    with pytest.raises(subprocess.TimeoutExpired):
        stopped.process.wait(0.01)
    assert (stopped.process.poll(), stopped.terminate()) == (None, 0)
    killed.kill()
    assert killed.process.returncode == -9
    with pytest.raises(AssertionError, match=r"exit 2: tuff: .*postgres"):
        new_server("messaging.store=postgres")


def test_no_server_outlives_its_fork_server(tmp_path: Path) -> None:
    forks = ForkServer()
    server = ServerProcess(tmp_path, "--data", "d", "--port", "0", forks=forks).wait_ready()
    assert is_listening(server)

    forks.close()

    until(lambda: not is_listening(server), what="the server to end")
