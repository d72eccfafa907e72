"""A client of HTTP for the tests of servers in a cluster."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.cluster.nodes import client


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with client() as made:
        yield made
