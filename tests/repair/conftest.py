"""One past for all tests of this folder: they damage copies of it."""

from pathlib import Path

import pytest

from tests.http.conftest import new_server as new_server
from tests.repair.files import Past, make_past


@pytest.fixture(scope="session")
def past(tmp_path_factory: pytest.TempPathFactory) -> Past:
    return make_past(tmp_path_factory.mktemp("past"))


@pytest.fixture
def data(past: Past, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return past.copy(tmp_path / "data")
