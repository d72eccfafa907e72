"""Servers for the tests of the HTTP edge, and a clock that a test sets."""

from collections.abc import AsyncIterator

import pytest

from tests.process.manual_clock import ManualClock
from tests.process.served import Served, served


@pytest.fixture
async def server() -> AsyncIterator[Served]:
    """Routes behind a port."""
    async with served() as made:
        yield made


@pytest.fixture
def manual() -> ManualClock:
    return ManualClock(wall_ms=1_700_000_000_000)
