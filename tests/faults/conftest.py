"""The factory of servers, as the HTTP tests have it, and what stands between them and a disk."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.disk import Shim, build
from tests.http.conftest import new_server as new_server
from tests.programs import require


@pytest.fixture(scope="session")
def shim_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shim of `tests/faults/disk.py`, compiled once."""
    require("cc")
    return build(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def shim(shim_library: Path, tmp_path: Path) -> Shim:
    """A shim in front of what is below `tmp_path/home`."""
    (tmp_path / "home").mkdir()
    return Shim(shim_library, root=tmp_path / "home", control=tmp_path / "control")


@pytest.fixture
def quiet() -> Iterator[None]:
    """No log: each of thousands of recoveries says what it cut off."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)
