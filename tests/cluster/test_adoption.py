"""Topics without a live owner get one, and the owner records are read only after an event that can
have left such a topic (decision 0042)."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress

import pytest

from tests.cluster.owners import Cluster, Server
from tests.metadata.memory_store import MemoryMetadataStore
from tuff.protocol.errors import OwnershipMovingError
from tuff.protocol.ids import TopicId

AUDIT = TopicId("default", "audit")


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    store = MemoryMetadataStore()
    try:
        async with AsyncExitStack() as stack:
            yield Cluster(store, stack)
    finally:
        store.close()


def topics(count: int) -> list[TopicId]:
    return [TopicId("default", f"t{number}") for number in range(count)]


async def claim(server: Server, *claimed: TopicId) -> None:
    """Create topics at this server."""
    for topic in claimed:
        owner = await server.ownership.owner_of(topic, is_forwarded=True, creates=True)
        assert owner is None


async def look(*servers: Server) -> None:
    """What servers do each second."""
    for each in servers:
        await each.ownership.refresh()
        await each.ownership.adopt()


def served(*servers: Server) -> list[list[TopicId]]:
    return [sorted(each.ownership.topics()) for each in servers]


@pytest.mark.parametrize("count", [3, 30])
async def test_a_server_reads_no_owner_records_while_nothing_happens(
    cluster: Cluster, count: int
) -> None:
    a, b = await cluster.start("a", "b")
    await claim(a, *topics(count))
    await look(a, b)
    before = b.metadata.read_count

    await look(b)
    await b.ownership.retry()
    await look(b)

    # Of each look: two members, and what was given to the server; in between, two incarnations.
    assert b.metadata.read_count - before == 2 * 3 + 2


async def test_a_server_is_told_of_a_topic_that_was_given_to_it(cluster: Cluster) -> None:
    a, b, c = await cluster.start("a", "b", "c")
    await claim(a, AUDIT)
    await look(a, b, c)
    await a.ownership.move(AUDIT, "b")
    before = c.metadata.read_count

    await look(a, b, c)

    assert served(a, b, c) == [[], [AUDIT], []]
    assert c.metadata.read_count - before == 4  # three members, and what was given to it


async def test_a_topic_given_to_a_server_that_had_ended_is_claimed(cluster: Cluster) -> None:
    """The other servers have looked for its topics before."""
    a, b, c = await cluster.start("a", "b", "c")
    await claim(a, AUDIT)
    await look(a, b, c)
    cluster.expire(b)
    await look(c)
    await a.ownership.move(AUDIT, "b")  # it does not know yet that it has ended

    await look(a, c)

    assert served(a, c) == [[AUDIT], []]


@pytest.mark.parametrize("takes_effect", [False, True])
async def test_a_topic_is_served_after_a_release_that_failed(
    cluster: Cluster, takes_effect: bool
) -> None:
    a, b = await cluster.start("a", "b")
    await claim(a, AUDIT)
    await look(a, b)
    a.metadata.fail_call(0, takes_effect=takes_effect)
    with pytest.raises(OwnershipMovingError, match="does not answer"):
        await a.ownership.move(AUDIT, "b")

    await a.ownership.retry()
    await look(a, a, b)

    assert served(a, b) == ([[], [AUDIT]] if takes_effect else [[AUDIT], []])


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_topic_is_served_after_a_claim_that_failed(cluster: Cluster, number: int) -> None:
    """Its owner record names the server, and no request comes any more."""
    a, b = await cluster.start("a", "b")
    await look(a, b)
    a.metadata.fail_call(number, takes_effect=True)
    with suppress(OwnershipMovingError):
        await claim(a, AUDIT)
    a.metadata.work()

    await a.ownership.retry()
    await look(a, b)

    assert a.metadata.failed_count == 1
    assert served(a, b) == [[AUDIT], []]


async def test_many_topics_are_claimed_by_calls_one_after_the_other(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.topic_claims.ADOPTED_COUNT_MAX", 3)
    a, b = await cluster.start("a", "b")
    await claim(a, *topics(8))
    cluster.expire(a)
    await b.ownership.refresh()

    are_left = [await b.ownership.adopt() for _ in range(3)]

    assert are_left == [True, True, False]
    assert served(b) == [sorted(topics(8))]


async def test_the_share_of_a_server_that_begins_to_drain_is_taken_by_the_others(
    cluster: Cluster,
) -> None:
    """It took none of its share of the topics of an ended server before."""
    a, b, c = await cluster.start("a", "b", "c")
    await claim(a, *topics(8))
    cluster.expire(a)
    await look(c)
    assert 0 < len(c.ownership.topics()) < 8
    b.ownership.is_draining = True
    await b.ownership.publish_load()

    await look(b, c)

    assert served(b, c) == [[], sorted(topics(8))]


async def test_a_server_that_takes_topics_again_takes_its_share(cluster: Cluster) -> None:
    """All servers drained when the owner ended."""
    a, b = await cluster.start("a", "b")
    await claim(a, AUDIT)
    await look(b)
    await b.ownership.drain()
    cluster.expire(a)
    await look(b)
    assert served(b) == [[]]

    await b.ownership.undrain()
    await look(b)

    assert served(b) == [[AUDIT]]


async def test_a_draining_server_finds_a_topic_of_which_it_was_not_told(cluster: Cluster) -> None:
    """It was given to it before the drain, by a server that ended at once."""
    a, b, c = await cluster.start("a", "b", "c")
    await claim(a, AUDIT)
    await look(a, b, c)
    await a.ownership.move(AUDIT, "b")
    cluster.expire(a)
    await b.ownership.drain()

    await look(b, c)

    assert served(b, c) == [[AUDIT], []]


async def test_topics_of_a_server_that_came_and_went_between_two_looks_are_claimed(
    cluster: Cluster,
) -> None:
    a, b = await cluster.start("a", "b")
    await a.ownership.retry()
    await look(a, b)
    cluster.expire(b)
    await look(a)
    (again,) = await cluster.start("b")
    await claim(again, AUDIT)
    cluster.expire(again)
    await look(a)

    await a.ownership.retry()
    await look(a)

    assert served(a) == [[AUDIT]]
