"""Transaction services on temporary directories."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.tx.service import Service


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    opened = await Service(tmp_path).open()
    yield opened
    await opened.kill()
