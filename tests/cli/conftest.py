"""A server for each module, and the command with its address."""

import subprocess
from collections.abc import Callable, Iterator

import pytest

import tuff
from tests.cli.command import tuff_command
from tests.http.process import ServerProcess, serve

Tuff = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serve(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[tuff.Client]:
    with tuff.connect(server.url, client="tests") as made:
        yield made


@pytest.fixture
def run(server: ServerProcess) -> Tuff:
    def run_tuff(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return tuff_command(*arguments, given=given, url=server.url)

    return run_tuff
