"""Transaction services on temporary directories."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.tx.service import NewService, Rows, Service
from tx.settings import TransactionSettings


@pytest.fixture
async def new_service(tmp_path: Path) -> AsyncIterator[NewService]:
    """Makes services that are not open yet; every one of their lives ends with the test."""
    lives: list[Service] = []

    def new(
        settings: TransactionSettings | None = None,
        directory: Path = tmp_path,
        *,
        rows: Rows | None = None,
    ) -> Service:
        return Service(directory, settings, rows=rows, lives=lives)

    yield new
    for life in lives:
        await life.kill()


@pytest.fixture
async def service(new_service: NewService) -> Service:
    return await new_service().open()
