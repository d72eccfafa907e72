"""Consumer groups in a cluster: the owner of a group's log is its coordinator."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.cluster.nodes import AUDIT, Node, call, client, nodes
from tuff.protocol.ids import TopicId
from tuff.protocol.requests import PublishRequest

GROUP_LOG = TopicId("default", "billing:group")
PATH = "/v1/namespaces/default/groups/billing"
JOIN = json.dumps({"memberId": "m1", "memberEpoch": 0, "topics": [AUDIT.name]}).encode()


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Node, Node]]:
    """A server, and the one that owns the log of the group."""
    async with nodes(tmp_path, 2) as (front, owner):
        await owner.components.messaging.topics.create(AUDIT, {})
        front.owners.of_topics[GROUP_LOG] = owner.owner
        yield front, owner


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with client() as made:
        yield made


async def test_the_owner_of_the_log_coordinates_the_group(
    pair: tuple[Node, Node], session: aiohttp.ClientSession
) -> None:
    front, owner = pair
    url = f"{front.url}{PATH}"

    joined = await call(
        session, "POST", f"{url}/heartbeat", body=JOIN, Content_Type="application/json"
    )
    shown = await call(session, "GET", url)

    assert json.loads(joined.body)["assigned"] == [AUDIT.partition(0).name]
    assert joined.headers["tuff-owner"] == owner.url
    assert json.loads(shown.body)["state"] == "stable"
    assert front.answered == []
    assert front.owners.asked == [(GROUP_LOG, False, True), (GROUP_LOG, False, False)]


async def test_the_cluster_learns_of_a_group_that_was_made_and_deleted(
    pair: tuple[Node, Node], session: aiohttp.ClientSession
) -> None:
    _, owner = pair
    groups = owner.components.messaging.groups
    groups.log_changed = owner.owners.note_change
    url = f"{owner.url}{PATH}"

    for body in (JOIN, JOIN, b'{"memberId":"m1","memberEpoch":-1}'):
        await call(session, "POST", f"{url}/heartbeat", body=body, Content_Type="application/json")
    assert owner.owners.changed == [GROUP_LOG]
    deleted = await call(session, "DELETE", url)

    assert deleted.status == 200
    assert owner.owners.changed == [GROUP_LOG, GROUP_LOG]


async def test_a_former_owner_forgets_the_group(
    pair: tuple[Node, Node], session: aiohttp.ClientSession
) -> None:
    """Another coordinator may have written to the log since."""
    _, owner = pair
    url = f"{owner.url}{PATH}"
    await call(session, "POST", f"{url}/heartbeat", body=JOIN, Content_Type="application/json")
    topics = owner.components.messaging.state.topics
    found = topics.find(GROUP_LOG)

    topics.remove(GROUP_LOG)
    topics.load(GROUP_LOG, found.durable)
    await owner.components.messaging.publisher.publish(
        GROUP_LOG, PublishRequest(None, [b'{"type":"left","memberId":"m1"}'])
    )
    shown = await call(session, "GET", url)

    assert json.loads(shown.body)["state"] == "empty"
