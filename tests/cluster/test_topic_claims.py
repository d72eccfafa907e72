"""Servers claim and release topics over one metadata store and one model of the shared tables
(decision 0042): there is one owner at a time, and it has everything that was acknowledged."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from itertools import pairwise

import pytest

from tests.cluster.owners import Cluster, Server, eventually
from tests.messaging.world import NOON_MS, Clock, request
from tests.metadata.memory_store import MemoryMetadataStore
from tuff.protocol.errors import (
    OwnershipMovingError,
    StorageUnavailableError,
    TopicNotFoundError,
    UnavailableError,
)
from tuff.protocol.ids import TopicId

AUDIT, OTHER = TopicId("default", "audit"), TopicId("default", "other")
HOUR_MS = 3_600_000


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    store = MemoryMetadataStore()
    try:
        async with AsyncExitStack() as stack:
            made = Cluster(store, stack)
            yield made
            for each in made.servers.values():
                each.runs.set()
    finally:
        store.close()


async def claimed(server: Server, topic: TopicId, *, creates: bool = True) -> bool:
    """Whether this server owns the topic, after a request that another one forwarded to it."""
    return await server.ownership.owner_of(topic, is_forwarded=True, creates=creates) is None


async def published(server: Server, topic: TopicId, payload: bytes) -> None:
    """A publish at a server, whatever it knows of the owner."""
    await server.member.service.publisher.publish(topic, request(payload))


async def test_one_of_many_claims_wins(cluster: Cluster) -> None:
    servers = await cluster.start("a", "b", "c", "d", "e")

    won = await asyncio.gather(*(claimed(each, AUDIT) for each in servers))

    assert sum(won) == 1
    winner = servers[won.index(True)]
    assert cluster.owner(AUDIT).server_id == winner.server_id
    assert [each.member.handover.topics() for each in servers if each is not winner] == [[]] * 4
    assert winner.member.handover.topics() == [AUDIT]
    assert cluster.tables.fence_counts == {}


async def test_a_dead_owner_is_fenced_before_its_topic_is_claimed(cluster: Cluster) -> None:
    a, b = await cluster.start("a", "b")
    await cluster.create(a, AUDIT)
    await published(a, AUDIT, b"1")
    cluster.expire(a)

    assert await claimed(b, AUDIT)

    with pytest.raises(StorageUnavailableError, match="taken the tables"):
        await published(a, AUDIT, b"late")
    assert cluster.tables.fence_counts == {("a", 1): 1}
    await published(b, AUDIT, b"2")
    assert await cluster.poll(b, AUDIT) == [b"1", b"2"]
    assert a.lost_count == 1


async def test_a_new_owner_with_a_slower_clock_continues_above_the_floor(
    cluster: Cluster,
) -> None:
    cluster.clocks["a"] = Clock(NOON_MS + HOUR_MS)
    a, b = await cluster.start("a", "b")
    await cluster.create(a, AUDIT)
    await published(a, AUDIT, b"1")
    cluster.expire(a)
    assert await claimed(b, AUDIT)
    await published(b, AUDIT, b"2")

    assert await cluster.poll(b, AUDIT) == [b"1", b"2"]
    floor = cluster.owner(AUDIT).floor
    assert floor.offset.timestamp_ms == NOON_MS + HOUR_MS
    assert floor.cell_ms > NOON_MS + HOUR_MS
    assert cluster.record(AUDIT).ranges[-1].start == floor.offset


async def test_a_live_owner_is_not_fenced_by_servers_that_do_not_know_it(cluster: Cluster) -> None:
    (b,) = await cluster.start("b")
    a = cluster.servers["a"] = Server(cluster, "a")  # b has not seen it
    await a.start(cluster.stack)
    assert await claimed(a, AUDIT)
    assert "a" not in b.ownership.members

    owner = await b.ownership.owner_of(AUDIT, is_forwarded=False, creates=False)

    assert owner is not None
    assert owner.server_id == "a"
    assert cluster.tables.fence_counts == {}


async def test_an_old_idea_of_the_owner_leads_to_one_refused_request(cluster: Cluster) -> None:
    a, b, c = await cluster.start("a", "b", "c")
    await cluster.create(b, AUDIT)
    owner = await cluster.publish(a, AUDIT, b"1")
    new = next(each for each in (a, b, c) if each not in (owner, a)) if owner is not a else b
    await owner.ownership.move(AUDIT, new.server_id)
    assert await claimed(new, AUDIT)

    with pytest.raises(OwnershipMovingError):
        await cluster.routed(cluster_client(cluster, owner, new), AUDIT)
    served = await cluster.publish(cluster_client(cluster, owner, new), AUDIT, b"2")

    assert served is new
    assert cluster.tables.fence_counts == {}


def cluster_client(cluster: Cluster, *others: Server) -> Server:
    """A server that is none of these."""
    return next(each for each in cluster.servers.values() if each not in others)


async def test_a_request_for_a_topic_without_an_owner_goes_to_a_lighter_server(
    cluster: Cluster,
) -> None:
    a, b = await cluster.start("a", "b")
    for number in range(3):
        assert await claimed(a, TopicId("default", f"t{number}"))
    await a.ownership.publish_load()
    await cluster.refresh()

    assert await cluster.routed(a, AUDIT, creates=True) is b
    assert cluster.owner(AUDIT).server_id == "b"


async def test_an_unknown_topic_is_not_found_and_leaves_no_records(cluster: Cluster) -> None:
    a, b = await cluster.start("a", "b")
    for server in (a, b):
        for is_forwarded in (False, True):
            with pytest.raises(TopicNotFoundError, match="there is no topic default:audit"):
                await server.ownership.owner_of(AUDIT, is_forwarded=is_forwarded, creates=False)

    assert list(cluster.owners.scan()) == []
    assert cluster.persistence.read_topic_persistence_info(AUDIT) is None


async def test_a_topic_that_was_moved_is_served_by_the_new_owner_only(cluster: Cluster) -> None:
    a, b = await cluster.start("a", "b")
    assert await claimed(a, AUDIT)
    await cluster.create(a, AUDIT)
    await published(a, AUDIT, b"1")

    await a.ownership.move(AUDIT, "b")

    with pytest.raises(OwnershipMovingError):
        await published(a, AUDIT, b"late")
    assert cluster.owner(AUDIT).server_id == "b"
    assert await cluster.publish(a, AUDIT, b"2") is b
    assert await cluster.poll(a, AUDIT) == [b"1", b"2"]
    with pytest.raises(OwnershipMovingError, match="does not own"):
        await a.ownership.move(AUDIT, "b")
    with pytest.raises(OwnershipMovingError, match="no live server z"):
        await b.ownership.move(AUDIT, "z")


async def test_a_server_with_many_topics_serves_one_that_was_moved_to_it(
    cluster: Cluster,
) -> None:
    """Otherwise it would send requests to a lighter server, which sends them back."""
    a, b = await cluster.start("a", "b")
    for number in range(3):
        assert await claimed(b, TopicId("default", f"t{number}"))
    assert await claimed(a, AUDIT)
    await cluster.create(a, AUDIT)
    await a.ownership.move(AUDIT, "b")

    assert await cluster.routed(b, AUDIT) is b


async def test_a_drained_server_has_no_topics_and_claims_none(cluster: Cluster) -> None:
    a, b = await cluster.start("a", "b")
    for topic in (AUDIT, OTHER):
        assert await claimed(a, topic)
        await cluster.create(a, topic)
    await published(a, AUDIT, b"1")

    await a.ownership.drain()
    await cluster.refresh()

    assert a.member.handover.topics() == []
    assert await cluster.publish(a, AUDIT, b"2") is b
    assert await cluster.poll(b, AUDIT) == [b"1", b"2"]
    await a.ownership.adopt()
    assert await cluster.routed(a, OTHER) is b
    assert a.ownership.topics() == {}
    assert cluster.tables.fence_counts == {}


async def test_a_draining_server_keeps_its_topics_while_no_other_takes_any(
    cluster: Cluster,
) -> None:
    a, b = await cluster.start("a", "b")
    await cluster.create(a, AUDIT)
    await b.ownership.drain()
    await cluster.refresh()

    await a.ownership.drain()

    assert a.member.handover.topics() == [AUDIT]
    assert await cluster.publish(b, AUDIT, b"1") is a


async def test_a_draining_server_refuses_a_forwarded_request_if_another_can_serve_it(
    cluster: Cluster,
) -> None:
    """The server that forwarded it did not know of the drain, and sends it elsewhere afterwards."""
    a, b, c = await cluster.start("a", "b", "c")
    for server, count in ((a, 2), (c, 1)):
        for number in range(count):
            assert await claimed(server, TopicId("default", f"{server.server_id}{number}"))
        await server.ownership.publish_load()
    await cluster.refresh()
    await b.ownership.drain()

    with pytest.raises(OwnershipMovingError, match="is not at b"):
        await cluster.routed(a, AUDIT, creates=True)

    assert await cluster.routed(a, AUDIT, creates=True) is c


@pytest.mark.parametrize("others", [(), ("b",)])
async def test_draining_servers_serve_what_no_other_server_takes(
    cluster: Cluster, others: tuple[str, ...]
) -> None:
    servers = await cluster.start("a", *others)
    for each in servers:
        await each.ownership.drain()
    await cluster.refresh()

    assert await cluster.create(servers[-1], AUDIT) is servers[-1]
    assert await cluster.publish(servers[0], AUDIT, b"1") is servers[-1]


async def test_the_topics_of_a_server_that_left_alone_are_adopted_after_the_next_start(
    cluster: Cluster,
) -> None:
    (a,) = await cluster.start("a")
    await cluster.create(a, AUDIT)
    await published(a, AUDIT, b"1")
    await a.ownership.leave()
    assert cluster.owner(AUDIT).server_id is None
    a.membership.metadata_session.close()

    (again,) = await cluster.start("a")
    await again.ownership.adopt()

    assert again.member.handover.topics() == [AUDIT]
    assert await cluster.poll(again, AUDIT) == [b"1"]


async def test_topics_of_a_dead_server_are_adopted_by_exactly_one(cluster: Cluster) -> None:
    a, b, c = await cluster.start("a", "b", "c")
    topics = [TopicId("default", f"t{number}") for number in range(10)]
    for topic in topics:
        assert await claimed(a, topic)
        await cluster.create(a, topic)
    cluster.expire(a)
    await cluster.refresh()

    await asyncio.gather(b.ownership.adopt(), c.ownership.adopt())

    assert sorted([*b.member.handover.topics(), *c.member.handover.topics()]) == topics
    assert b.member.handover.topics()
    assert c.member.handover.topics()


async def test_a_topic_that_was_moved_is_adopted_before_anybody_asks(cluster: Cluster) -> None:
    a, b = await cluster.start("a", "b")
    assert await claimed(a, AUDIT)
    await a.ownership.move(AUDIT, "b")

    await b.ownership.adopt()

    assert b.member.handover.topics() == [AUDIT]


async def test_a_server_with_too_many_topics_gives_some_away(cluster: Cluster) -> None:
    (a,) = await cluster.start("a")
    for number in range(6):
        assert await claimed(a, TopicId("default", f"t{number}"))
    (b,) = await cluster.start("b")
    await a.ownership.publish_load()
    await cluster.refresh()

    await a.ownership.rebalance()
    await b.ownership.adopt()

    assert len(a.member.handover.topics()) == len(b.member.handover.topics()) == 3


async def test_the_next_incarnation_takes_its_topics_back_after_another_server_had_them(
    cluster: Cluster,
) -> None:
    first, b = await cluster.start("a", "b")
    assert await claimed(first, AUDIT)
    await cluster.create(first, AUDIT)
    await published(first, AUDIT, b"1")
    cluster.expire(first)
    assert await claimed(b, AUDIT)
    await published(b, AUDIT, b"2")
    (second,) = await cluster.start("a")
    await b.ownership.move(AUDIT, "a")
    assert await claimed(second, AUDIT)

    await published(second, AUDIT, b"3")
    with pytest.raises(UnavailableError):
        await published(first, AUDIT, b"late")

    assert await cluster.poll(second, AUDIT) == [b"1", b"2", b"3"]
    ranges = cluster.record(AUDIT).ranges
    assert [(each.server_id, each.incarnation) for each in ranges] == [("a", 1), ("b", 1), ("a", 2)]
    assert all(older.epoch < newer.epoch for older, newer in pairwise(ranges))
    assert all(older.start < newer.start for older, newer in pairwise(ranges[1:]))


async def test_a_release_that_was_paused_does_not_replace_a_later_owner(cluster: Cluster) -> None:
    a, b, c = await cluster.start("a", "b", "c")
    assert await claimed(a, AUDIT)
    await cluster.create(a, AUDIT)
    await published(a, AUDIT, b"1")
    # Everything is done but the write of the record.
    a.pauses_when = lambda: a.member.service.state.topics.maybe_find(AUDIT) is None
    moving = asyncio.ensure_future(a.ownership.move(AUDIT, "c"))
    await a.paused.wait()
    cluster.expire(a)
    assert await claimed(b, AUDIT)
    await published(b, AUDIT, b"2")
    a.runs.set()

    with pytest.raises(OwnershipMovingError):
        await moving

    assert cluster.owner(AUDIT).server_id == "b"
    assert not await claimed(c, AUDIT)
    assert await cluster.poll(c, AUDIT) == [b"1", b"2"]


async def test_of_two_servers_that_fenced_the_owner_one_claims(cluster: Cluster) -> None:
    a, b, c = await cluster.start("a", "b", "c")
    assert await claimed(a, AUDIT)
    await cluster.create(a, AUDIT)
    await published(a, AUDIT, b"1")
    cluster.expire(a)
    b.pauses_when = lambda: cluster.tables.fence_counts["a", 1] == 1
    claiming = asyncio.ensure_future(claimed(b, AUDIT))
    await b.paused.wait()

    assert await claimed(c, AUDIT)
    await published(c, AUDIT, b"2")
    b.runs.set()

    assert not await claiming
    assert b.member.handover.topics() == []
    assert await cluster.poll(b, AUDIT) == [b"1", b"2"]


async def test_a_claim_that_was_paused_does_not_serve_a_topic_of_a_later_owner(
    cluster: Cluster,
) -> None:
    a, b = await cluster.start("a", "b")
    a.pauses_when = lambda: cluster.owners.read_owner_info(AUDIT) is not None
    claiming = asyncio.ensure_future(claimed(a, AUDIT))
    await a.paused.wait()
    cluster.expire(a)
    assert await claimed(b, AUDIT)
    await cluster.create(b, AUDIT)
    await published(b, AUDIT, b"1")
    a.runs.set()
    with pytest.raises(OwnershipMovingError):
        await claiming

    assert a.member.handover.topics() == []
    assert cluster.owner(AUDIT).server_id == "b"
    assert await cluster.poll(b, AUDIT) == [b"1"]


FAILURES = [(number, takes_effect) for number in range(8) for takes_effect in (False, True)]


@pytest.mark.parametrize(("number", "takes_effect"), FAILURES)
async def test_a_topic_is_served_after_a_claim_that_failed(
    cluster: Cluster, number: int, takes_effect: bool
) -> None:
    """At any of its calls to the metadata store, which had taken effect or not. The server has more
    topics than the others, so requests without an owner go elsewhere."""
    a, b, c = await cluster.start("a", "b", "c")
    assert await claimed(b, OTHER)
    assert await claimed(a, AUDIT)
    await cluster.create(a, AUDIT)
    await published(a, AUDIT, b"0")
    cluster.expire(a)
    await b.ownership.publish_load()
    await cluster.refresh()

    b.metadata.fail_call(number, takes_effect=takes_effect)
    with suppress(OwnershipMovingError):
        assert await claimed(b, AUDIT)
    b.metadata.work()

    first = await eventually(lambda: cluster.publish(b, AUDIT, b"1"))
    second = await eventually(lambda: cluster.publish(c, AUDIT, b"2"))
    assert first is second
    assert await cluster.poll(b, AUDIT) == [b"0", b"1", b"2"]
    assert b.metadata.failed_count == 1


@pytest.mark.parametrize(("number", "takes_effect"), [(0, False), (0, True), (1, False)])
async def test_a_topic_is_served_after_a_move_that_failed(
    cluster: Cluster, number: int, takes_effect: bool
) -> None:
    a, b, c = await cluster.start("a", "b", "c")
    assert await claimed(a, OTHER)
    assert await claimed(a, AUDIT)
    await cluster.create(a, AUDIT)
    await published(a, AUDIT, b"0")
    await a.ownership.publish_load()
    await cluster.refresh()

    a.metadata.fail_call(number, takes_effect=takes_effect)
    with suppress(OwnershipMovingError):
        await a.ownership.move(AUDIT, "b")
    a.metadata.work()

    for payload, at in ((b"1", a), (b"2", b), (b"3", c)):
        await eventually(lambda at=at, payload=payload: cluster.publish(at, AUDIT, payload))
    assert await cluster.poll(c, AUDIT) == [b"0", b"1", b"2", b"3"]
    assert sum(AUDIT in each.member.handover.topics() for each in (a, b, c)) == 1


async def test_a_server_whose_store_fails_during_a_claim_serves_the_topic_later(
    cluster: Cluster,
) -> None:
    a, b = await cluster.start("a", "b")
    await cluster.create(a, AUDIT)
    await published(a, AUDIT, b"1")
    cluster.expire(a)
    b.member.opener.store.failures.read = "HBase does not answer"

    with pytest.raises(OwnershipMovingError, match="HBase does not answer"):
        await claimed(b, AUDIT)
    assert b.ownership.topics() == {}

    assert await claimed(b, AUDIT)
    assert await cluster.poll(b, AUDIT) == [b"1"]


async def test_a_server_keeps_a_topic_that_it_could_not_give(cluster: Cluster) -> None:
    a, b = await cluster.start("a", "b")
    await cluster.create(a, AUDIT)
    a.member.opener.store.failures.wait_until_shared = "HBase does not answer"

    with pytest.raises(OwnershipMovingError, match="HBase does not answer"):
        await a.ownership.move(AUDIT, "b")

    assert cluster.owner(AUDIT).server_id == "a"
    assert await cluster.publish(b, AUDIT, b"1") is a
