"""A world, and a running service with one topic in it."""

from collections.abc import AsyncIterator

import pytest

from messaging.service import MessagingService
from tests.messaging.world import AUDIT, World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def service(world: World) -> AsyncIterator[MessagingService]:
    async with world.running() as running:
        await running.topics.create(AUDIT, {"ttl": "100"})
        yield running
