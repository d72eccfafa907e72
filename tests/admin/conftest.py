"""One data directory for all tests of this folder, which corrupt copies of it."""

from pathlib import Path

import pytest

from tests.admin.files import Past, make_past
from tests.http.conftest import new_server as new_server
from tests.messaging.conftest import service as service
from tests.messaging.conftest import world as world


@pytest.fixture(scope="session")
def past(tmp_path_factory: pytest.TempPathFactory) -> Past:
    return make_past(tmp_path_factory.mktemp("past"))


@pytest.fixture
def data(past: Past, tmp_path: Path) -> Path:
    """A copy that a test may corrupt."""
    return past.copy(tmp_path / "data")
