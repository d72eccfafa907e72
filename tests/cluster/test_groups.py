"""Consumer groups in a cluster: the owner of a group's log is its coordinator."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest

from cluster.partitions_client import PartitionsClient
from kernel.owner_floor import NO_FLOOR
from messaging.groups.consumer_coordinator import GroupCoordinator
from messaging.groups.consumer_decisions import GroupState, Heartbeat
from messaging.groups.group_log_records import MemberRecord
from messaging.read.counts import MessageCount
from tests.cluster.nodes import AUDIT, Node, call, nodes
from tests.messaging.members import Member, new_tables
from tuff.protocol.errors import OwnershipMovingError, TopicNotFoundError, TuffError
from tuff.protocol.group_preferences import GroupPreferences, GroupStart
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.requests import Isolation, PublishRequest

GROUP_LOG = TopicId("default", "billing:group")
ORDERS, MISSING = TopicId("default", "orders"), TopicId("default", "missing")
PATH = "/v1/namespaces/default/groups/billing"
JOIN = json.dumps({"memberId": "m1", "memberEpoch": 0, "topics": [AUDIT.name]}).encode()


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Node, Node]]:
    """A server, and the one that owns the log of the group."""
    async with nodes(tmp_path, 2) as (front, owner):
        await owner.components.messaging.topics.create(AUDIT, {})
        front.owners.of_topics[GROUP_LOG] = owner.owner
        yield front, owner


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


async def test_preferences_are_those_of_the_owner_of_the_log(
    pair: tuple[Node, Node], session: aiohttp.ClientSession
) -> None:
    front, owner = pair
    url, form = f"{front.url}{PATH}", {"Content_Type": "application/json"}

    put = await call(session, "PUT", f"{url}/preferences", body=b'{"tags":"urgent"}', **form)
    joined = await call(session, "POST", f"{url}/heartbeat", body=JOIN, **form)

    assert put.headers["tuff-owner"] == owner.url
    assert json.loads(joined.body)["preferences"]["tags"] == "urgent"
    found = await owner.components.messaging.groups.preferences(GROUP_LOG)
    assert found == GroupPreferences(tags="urgent")
    assert front.answered == []


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


async def test_the_coordinator_asks_the_owner_of_a_topic(
    pair: tuple[Node, Node],
) -> None:
    front, owner = pair
    topics = owner.components.messaging.topics
    await topics.create(ORDERS, {}, partition_count=3)
    await topics.update(ORDERS, {}, partition_count=2)
    publish = owner.components.messaging.publisher.publish
    published = await publish(ORDERS.partition(1), PublishRequest(None, [b"one", b"two"]))
    for topic in (ORDERS, MISSING):
        front.owners.of_topics[topic] = owner.owner
    asked = PartitionsClient(lambda: SimpleNamespace(ownership=front.owners), front.peers)

    assert await asked.partitions(ORDERS) == [0, 1, 2]
    earliest, end = await asked.ends(ORDERS.partition(1), Isolation.COMMITTED)
    assert (earliest, end) == (published.first, published.last)
    assert await asked.ends(ORDERS.partition(0), Isolation.ALL) == (None, None)
    oldest_ms = published.first.publish_timestamp_ms
    assert await asked.count(ORDERS.partition(1), None) == MessageCount(
        2, is_lower_bound=False, oldest_ms=oldest_ms
    )
    assert await asked.count(ORDERS.partition(1), published.last) == MessageCount()
    with pytest.raises(TopicNotFoundError):
        await asked.partitions(MISSING)
    with pytest.raises(OwnershipMovingError, match="has just come to this server"):
        await asked.partitions(AUDIT)


class Remote:
    """The topics of another server: their partitions, or the error with which it answers."""

    def __init__(self) -> None:
        self.numbers: list[int] | TuffError = [0, 1, 2]
        self.asked_count = 0

    async def partitions(self, _topic: TopicId) -> list[int]:
        self.asked_count += 1
        if isinstance(self.numbers, TuffError):
            raise self.numbers
        return self.numbers

    async def ends(
        self, _partition: TopicId, _isolation: Isolation
    ) -> tuple[MessageId | None, MessageId | None]:
        return MessageId(1_000, 0), MessageId(5_000, 0)

    async def count(self, _partition: TopicId, after: MessageId | None) -> MessageCount:
        return MessageCount(4 if after is None else 3, is_lower_bound=False, oldest_ms=1_000)


async def test_a_group_shares_the_partitions_of_a_topic_of_another_server() -> None:
    remote = Remote()
    async with Member(new_tables(), "a").serving() as a:
        await a.handover.take([GROUP_LOG], NO_FLOOR)
        groups = a.service.groups
        groups.other_owners = remote
        join = MemberRecord(member_id="m1", topics=("orders",), assignor="sticky")

        remote.numbers = OwnershipMovingError("moving")
        with pytest.raises(OwnershipMovingError):
            await groups.join(GROUP_LOG, join)
        remote.numbers = [0, 1, 2]
        joined = await groups.join(GROUP_LOG, join)
        assert sorted(joined.assigned) == ["orders:0", "orders:1", "orders:2"]
        lags = await groups.lags(GROUP_LOG, await state(groups))
        assert [lag and lag.behind_ms for _, lag in lags.values()] == [4_000] * 3

        # What the group knows is kept while nobody can tell, and a change is noticed.
        asked_count = remote.asked_count
        for numbers in (OwnershipMovingError("moving"), [0, 1, 2, 3]):
            remote.numbers = numbers
            a.clock.now_ms += 2_000
            beat = Heartbeat(
                member_id="m1",
                epoch=joined.epoch,
                group_epoch=joined.group_epoch,
                owned=frozenset(joined.assigned),
            )
            joined = await groups.heartbeat(GROUP_LOG, beat)
            count = 3 if isinstance(numbers, TuffError) else 4
            assert len(joined.assigned) == count
        assert remote.asked_count == asked_count + 2


@pytest.mark.parametrize("passed_ms", [2_000, -3_600_000])
async def test_partitions_of_another_server_are_asked_for_again_though_the_clock_was_set_back(
    passed_ms: int,
) -> None:
    remote = Remote()
    async with Member(new_tables(), "a").serving() as a:
        await a.handover.take([GROUP_LOG], NO_FLOOR)
        groups = a.service.groups
        groups.other_owners = remote
        join = MemberRecord(member_id="m1", topics=("orders",), assignor="sticky")
        await groups.join(GROUP_LOG, join)
        remote.numbers = [0, 1, 2, 3]
        a.clock.now_ms += passed_ms

        joined = await groups.join(GROUP_LOG, replace(join, member_id="m2"))

        state_now = await state(groups)
        assert state_now.partitions["orders"] == ("orders:0", "orders:1", "orders:2", "orders:3")
        assert joined.member_id == "m2"


async def test_a_group_begins_behind_the_messages_of_another_server() -> None:
    async with Member(new_tables(), "a").serving() as a:
        await a.handover.take([GROUP_LOG], NO_FLOOR)
        groups = a.service.groups
        groups.other_owners = Remote()
        join = MemberRecord(member_id="m1", topics=("orders",), assignor="sticky")

        await groups.join(GROUP_LOG, join, GroupStart.LATEST)

        found = await state(groups)
        assert {each.after for each in found.offsets.values()} == {MessageId(5_000, 0)}
        lags = await groups.lags(GROUP_LOG, found)
        assert [lag and lag.unread.count for _, lag in lags.values()] == [3, 3, 3]


async def state(groups: GroupCoordinator) -> GroupState:
    return await groups.committed(GROUP_LOG)


async def test_a_group_and_its_waits_reach_a_topic_of_another_namespace_and_server(
    pair: tuple[Node, Node], session: aiohttp.ClientSession
) -> None:
    front, owner = pair
    other = TopicId("other", "orders")
    await front.components.messaging.topics.create(other, {})
    owner.owners.of_topics[other] = front.owner
    topics = {AUDIT.name: {"after": {"0": "0" * 40}}, "other:orders": {"after": {"0": "0" * 40}}}
    form = {"Content_Type": "application/json"}

    wait = json.dumps({"topics": topics}).encode()
    url = f"{owner.url}/v1/namespaces/default/wait"
    quiet = await call(session, "POST", url, body=wait, **form)
    await front.components.messaging.publisher.publish(other, PublishRequest(None, [b"one"]))
    found = await call(session, "POST", url, body=wait, **form)

    assert json.loads(quiet.body) == {"partitions": []}
    assert json.loads(found.body) == {"partitions": ["other:orders:0"]}


async def test_an_expired_group_is_taken_from_the_list_of_the_cluster() -> None:
    changed: list[TopicId] = []

    async def note(group_log: TopicId) -> None:
        changed.append(group_log)

    async with Member(new_tables(), "a").serving() as a:
        await a.handover.take([GROUP_LOG], NO_FLOOR)
        groups = a.service.groups
        groups.other_owners = Remote()
        groups.log_changed = note
        await groups.join(
            GROUP_LOG, MemberRecord(member_id="m1", topics=("orders",), assignor="sticky")
        )
        await groups.leave(GROUP_LOG, "m1", keeps_assignment=False)
        a.clock.now_ms += 7 * 24 * 3_600_000

        await a.service.cleaner.run_pass()

        assert changed == [GROUP_LOG, GROUP_LOG]
        assert groups.names("default") == []
