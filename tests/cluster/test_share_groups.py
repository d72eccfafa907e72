"""Share groups in a cluster: the owner of the topic leases its messages."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.cluster.nodes import AUDIT, Node, call, nodes
from tests.process.served import until
from tuff.protocol.requests import PublishRequest

PATH = f"/v1/namespaces/default/topics/{AUDIT.name}/share-groups/billing"


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Node, Node]]:
    """A server, and the one that owns the topic."""
    async with nodes(tmp_path, 2) as (front, owner):
        await owner.components.messaging.topics.create(AUDIT, {})
        front.owners.of_topics[AUDIT] = owner.owner
        yield front, owner


async def test_requests_to_another_server_reach_the_owner_of_the_topic(
    pair: tuple[Node, Node], session: aiohttp.ClientSession
) -> None:
    front, owner = pair
    messaging = owner.components.messaging
    url, form = f"{front.url}{PATH}", {"Content_Type": "application/json"}
    assert (await call(session, "PUT", url, body=b"{}", **form)).status == 200

    waiting = asyncio.ensure_future(
        call(session, "POST", f"{url}/lease?wait=20", body=b"{}", **form)
    )
    await until(lambda: messaging.polls.waiting_count == 1)
    await messaging.publisher.publish(AUDIT, PublishRequest(None, [b"a"]))
    leased = await waiting

    (message,) = json.loads(leased.body)["messages"]
    assert leased.headers["tuff-owner"] == owner.url
    named = {"id": message["id"], "token": message["token"]}
    body = json.dumps({"messages": [named]}).encode()
    done = await call(session, "POST", f"{url}/acknowledge", body=body, **form)
    assert json.loads(done.body)["results"][0]["result"] == "accepted"
    assert front.answered == []


async def test_a_request_that_its_client_gave_up_takes_no_message(
    pair: tuple[Node, Node], session: aiohttp.ClientSession
) -> None:
    front, owner = pair
    messaging = owner.components.messaging
    url, form = f"{front.url}{PATH}", {"Content_Type": "application/json"}
    await call(session, "PUT", url, body=b"{}", **form)
    waiting = asyncio.ensure_future(
        call(session, "POST", f"{url}/lease?wait=20", body=b"{}", **form)
    )
    await until(lambda: messaging.polls.waiting_count == 1)

    waiting.cancel()

    await until(lambda: messaging.polls.waiting_count == 0)
    await messaging.publisher.publish(AUDIT, PublishRequest(None, [b"a"]))
    leased = await call(session, "POST", f"{url}/lease", body=b"{}", **form)
    assert len(json.loads(leased.body)["messages"]) == 1
