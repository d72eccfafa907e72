"""The ZooKeeper servers of the tests end with the tests."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.http.client import until
from tests.metadata.zookeeper_server import NEEDS_JAVA, ZooKeeperServer, is_running, why_missing

TESTS_THAT_HANG = """
import sys
from pathlib import Path
from tests.metadata.zookeeper_server import ZooKeeperServer
print(ZooKeeperServer(Path(sys.argv[1])).pid, flush=True)
sys.stdin.read()
"""


@NEEDS_JAVA
def test_a_server_ends_when_the_tests_are_killed(tmp_path: Path) -> None:
    tests = subprocess.Popen(
        [sys.executable, "-c", TESTS_THAT_HANG, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with tests:
        assert tests.stdout is not None
        pid = int(tests.stdout.readline())
        assert is_running(pid)

        os.kill(tests.pid, signal.SIGKILL)

        until(lambda: not is_running(pid))


@NEEDS_JAVA
def test_a_stopped_server_can_be_started_again_on_its_port(tmp_path: Path) -> None:
    server = ZooKeeperServer(tmp_path)
    address = server.address

    server.stop()
    assert not server.is_running()
    server.stop()
    server.start()

    assert server.is_running()
    assert server.address == address
    server.kill()
    assert not server.is_running()


def test_without_java_the_reason_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    assert why_missing() == (
        "ZooKeeper needs Java, which is not installed: "
        "set JAVA_HOME, or apt-get install default-jdk-headless"
    )
