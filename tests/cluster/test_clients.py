"""The Python clients and servers of a cluster: forwarded calls, and owners that change."""

import asyncio

import pytest

import tuff
from cluster.peers import Owner
from tests.cluster.nodes import AUDIT, Node

NOWHERE = "http://127.0.0.1:1"  # nothing listens there
LOST = Owner("lost", NOWHERE)  # forwarding to it fails: the reply is `ownership_moving`


async def test_a_program_needs_no_knowledge_of_owners(pair: tuple[Node, Node]) -> None:
    front, owner = pair

    async with tuff.AsyncClient(front.url, retries=0) as client:
        await client.publish(AUDIT, "one")
        async with client.transaction() as tx:
            await tx.publish(AUDIT, "two")
        read = await client.poll(AUDIT, isolation="committed")

    assert [message.payload for message in read] == [b"one", b"two"]
    assert front.answered == []
    assert len(owner.answered) == 4


async def test_the_next_call_goes_to_the_owner_without_a_second_hop(
    pair: tuple[Node, Node],
) -> None:
    front, owner = pair

    async with tuff.AsyncClient(f"{front.url},{owner.url}", retries=0) as client:
        await client.publish(AUDIT, "one")
        front.owners.of_topics[AUDIT] = LOST
        await client.publish(AUDIT, "two")

        assert [message.payload for message in await client.poll(AUDIT)] == [b"one", b"two"]


async def test_the_blocking_client_learns_the_owner_too(pair: tuple[Node, Node]) -> None:
    front, owner = pair

    def use(client: tuff.Client) -> None:
        with client.transaction() as tx:
            tx.publish(AUDIT, "one")
        front.owners.of_topics[AUDIT] = front.owners.leading = LOST
        with client.transaction():
            pass

    with tuff.Client(f"{front.url},{owner.url}", retries=0) as client:
        await asyncio.to_thread(use, client)

    assert front.answered == []


async def test_an_owner_that_is_not_among_the_addresses_is_reached_by_forwarding_alone(
    pair: tuple[Node, Node],
) -> None:
    front, _ = pair

    async with tuff.AsyncClient(f"{front.url},{NOWHERE}", retries=0) as client:
        await client.publish(AUDIT, "one")
        front.owners.of_topics[AUDIT] = LOST
        with pytest.raises(tuff.errors.OwnershipMovingError, match="nothing was changed"):
            await client.publish(AUDIT, "two")


async def test_a_client_follows_a_topic_to_its_new_owner(pair: tuple[Node, Node]) -> None:
    front, owner = pair

    async with tuff.AsyncClient(f"{front.url},{owner.url}", retries=0) as client:
        await client.publish(AUDIT, "old owner")
        await front.components.messaging.topics.create(AUDIT, {})
        del front.owners.of_topics[AUDIT]
        owner.owners.of_topics[AUDIT] = front.owner

        await client.publish(AUDIT, "forwarded to the new owner")
        owner.owners.of_topics[AUDIT] = LOST
        await client.publish(AUDIT, "sent to the new owner")

    publish = "POST /v1/namespaces/{ns}/topics/{t}/publish"
    assert owner.answered == [publish]
    assert front.answered == [publish, publish]


async def test_a_call_that_an_owner_refuses_as_moving_is_sent_to_another_server(
    pair: tuple[Node, Node],
) -> None:
    front, owner = pair

    async with tuff.AsyncClient(f"{front.url},{owner.url}", retries=1) as client:
        await client.publish(AUDIT, "old owner")
        await front.components.messaging.topics.create(AUDIT, {})
        del front.owners.of_topics[AUDIT]
        owner.owners.of_topics[AUDIT] = LOST

        await client.publish(AUDIT, "new owner")

    assert len(front.answered) == len(owner.answered) == 1
