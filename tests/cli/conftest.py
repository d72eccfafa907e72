"""A server for each module, and the command with its address."""

import subprocess
from collections.abc import Callable

import pytest

from tests.cli.command import tuff_command
from tests.client.conftest import client as client
from tests.client.conftest import server as server
from tests.http.process import ServerProcess

Tuff = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(server: ServerProcess) -> Tuff:
    def run_tuff(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return tuff_command(*arguments, given=given, url=server.url)

    return run_tuff
