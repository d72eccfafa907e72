"""Two servers of a cluster, and a client of HTTP."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.cluster.nodes import AUDIT, Node, client, nodes
from tuff.protocol.ids import TopicId


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with client() as made:
        yield made


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Node, Node]]:
    """A server that owns nothing of what the tests use, and the one that owns it and leads."""
    async with nodes(tmp_path, 2) as (front, owner):
        await owner.components.messaging.topics.create(AUDIT, {})
        front.owners.of_topics[AUDIT] = owner.owner
        front.owners.of_topics[TopicId("default", "g:group")] = owner.owner
        front.owners.leading = owner.owner
        yield front, owner
