"""A server for each module, and the command as a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

import tuff
from tuff.launch import ServerProcess

Tuff = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("server")
    with ServerProcess(home / "data", log=home / "log.txt") as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[tuff.Client]:
    with tuff.connect(server.url, client="tests") as made:
        yield made


@pytest.fixture
def run(server: ServerProcess) -> Tuff:
    def run_tuff(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tuff.cli", *arguments],
            env={**os.environ, "TUFF_URL": server.url, "NO_COLOR": "1"},
            input=given,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    return run_tuff
