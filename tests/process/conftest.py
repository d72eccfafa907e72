"""Servers for the tests of the HTTP edge."""

from collections.abc import AsyncIterator

import pytest

from tests.process.served import Served, served


@pytest.fixture
async def both() -> AsyncIterator[Served]:
    """The same routes behind two ports; at one, connections only parse."""
    async with served() as made:
        yield made
