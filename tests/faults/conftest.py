"""The factory of servers, as the HTTP tests have it, and what stands between them and a disk."""

from pathlib import Path

import pytest

from tests.faults.disk import build, has_compiler
from tests.http.conftest import new_server as new_server


@pytest.fixture(scope="session")
def shim_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shim of `tests/faults/disk.py`, compiled once."""
    if not has_compiler():
        pytest.skip("needs cc, to stand between a server and its disk")
    return build(tmp_path_factory.mktemp("shim"))
