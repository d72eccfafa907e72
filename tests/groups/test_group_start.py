"""Where a group begins: decided once for each topic, at its first subscription, and durably."""

from collections.abc import AsyncIterator, Mapping

import pytest

from messaging.groups import group_logs
from messaging.groups.consumer_coordinator import GroupCoordinator
from messaging.groups.group_log_records import MemberRecord
from messaging.service import MessagingService
from tests.messaging.world import AUDIT, World
from tuff.protocol.errors import TooManyMembersError, TransactionsUnavailableError
from tuff.protocol.group_preferences import GroupStart
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.requests import PublishRequest

LOG = TopicId("default", "billing:group")
RETRY = TopicId("default", "audit.retry")
FIRST, SECOND = AUDIT.partition(0), AUDIT.partition(1)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def service(world: World) -> AsyncIterator[MessagingService]:
    async with world.running(audit={}) as running:
        yield running


async def publish(
    service: MessagingService, topic: TopicId = AUDIT, *, pointer: int | None = None
) -> MessageId:
    published = await service.publisher.publish(topic, PublishRequest(pointer, [b"message"]))
    return published.last


async def join(
    groups: GroupCoordinator,
    *topics: TopicId,
    member_id: str = "m1",
    start: GroupStart = GroupStart.LATEST,
) -> None:
    names = tuple(each.name for each in topics or (AUDIT,))
    request = MemberRecord(member_id=member_id, topics=names, assignor="range")
    await groups.join(LOG, request, start)


async def offsets(groups: GroupCoordinator) -> Mapping[str, MessageId]:
    state = await groups.committed(LOG)
    return {name: each.after for name, each in state.offsets.items()}


async def test_a_group_at_latest_has_an_offset_behind_what_exists(
    service: MessagingService,
) -> None:
    newest = await publish(service)

    await join(service.groups)

    assert await offsets(service.groups) == {FIRST.name: newest}


async def test_a_group_at_earliest_has_no_offset(service: MessagingService) -> None:
    await publish(service)

    await join(service.groups, start=GroupStart.EARLIEST)

    assert await offsets(service.groups) == {}


@pytest.mark.parametrize("is_summarized", [False, True])
async def test_the_start_outlives_members_and_restarts(
    world: World, monkeypatch: pytest.MonkeyPatch, *, is_summarized: bool
) -> None:
    monkeypatch.setattr(group_logs, "SUMMARY_BYTES_MIN", 1 if is_summarized else 10_000)
    async with world.running(audit={}) as service:
        newest = await publish(service)
        await join(service.groups)
        await publish(service)
        await service.groups.leave(LOG, "m1", keeps_assignment=False)

    async with world.running() as service:
        await publish(service)
        await join(service.groups, member_id="m2")
        assert await offsets(service.groups) == {FIRST.name: newest}


@pytest.mark.parametrize("is_summarized", [False, True])
async def test_a_partition_that_is_added_begins_at_its_beginning(
    service: MessagingService, monkeypatch: pytest.MonkeyPatch, *, is_summarized: bool
) -> None:
    monkeypatch.setattr(group_logs, "SUMMARY_BYTES_MIN", 1 if is_summarized else 10_000)
    newest = await publish(service)
    await join(service.groups)
    await service.groups.leave(LOG, "m1", keeps_assignment=False)
    await service.topics.update(AUDIT, {}, partition_count=2)
    await publish(service, SECOND)

    await join(service.groups, member_id="m2")

    assert await offsets(service.groups) == {FIRST.name: newest}


async def test_a_topic_that_is_created_later_begins_at_its_beginning(
    service: MessagingService,
) -> None:
    await join(service.groups, AUDIT, RETRY)
    await service.groups.leave(LOG, "m1", keeps_assignment=False)
    await service.topics.create(RETRY, {})
    await publish(service, RETRY)

    await join(service.groups, AUDIT, RETRY, member_id="m2")

    assert RETRY.partition(0).name not in await offsets(service.groups)


async def test_a_topic_that_a_group_subscribes_to_later_begins_as_its_member_asks(
    service: MessagingService,
) -> None:
    await service.topics.create(RETRY, {})
    await publish(service)
    await join(service.groups, start=GroupStart.EARLIEST)
    newest = await publish(service, RETRY)

    await join(service.groups, AUDIT, RETRY, member_id="m2")

    assert await offsets(service.groups) == {RETRY.partition(0).name: newest}


async def test_a_start_is_not_decided_by_a_join_that_is_refused(
    service: MessagingService, monkeypatch: pytest.MonkeyPatch
) -> None:
    await join(service.groups, RETRY)
    monkeypatch.setattr("messaging.groups.consumer_decisions.MEMBERS_COUNT_MAX", 1)
    await publish(service)
    with pytest.raises(TooManyMembersError):
        await join(service.groups, member_id="m2")
    await service.groups.leave(LOG, "m1", keeps_assignment=False)
    newest = await publish(service)

    await join(service.groups, member_id="m3")

    assert await offsets(service.groups) == {FIRST.name: newest}


async def test_a_message_that_is_committed_later_is_behind_the_start(
    world: World, service: MessagingService
) -> None:
    newest = await publish(service)
    await publish(service, pointer=world.transactions.start(1))

    await join(service.groups)

    assert await offsets(service.groups) == {FIRST.name: newest}


async def test_without_transactions_a_start_at_latest_waits_for_undecided_messages(
    world: World, service: MessagingService
) -> None:
    decided = await publish(service)
    world.transactions.is_up = False
    await join(service.groups)
    assert await offsets(service.groups) == {FIRST.name: decided}
    await service.groups.leave(LOG, "m1", keeps_assignment=False)
    await service.groups.delete(LOG)

    world.transactions.is_up = True
    await publish(service, pointer=world.transactions.start(1))
    world.transactions.is_up = False
    with pytest.raises(TransactionsUnavailableError):
        await join(service.groups)

    world.transactions.is_up = True
    world.commit(service, 1)
    newest = await publish(service)
    await join(service.groups)
    assert await offsets(service.groups) == {FIRST.name: newest}


async def test_a_deleted_group_decides_its_start_again(service: MessagingService) -> None:
    await join(service.groups)
    await service.groups.leave(LOG, "m1", keeps_assignment=False)
    await service.groups.delete(LOG)
    newest = await publish(service)

    await join(service.groups, member_id="m2")

    assert await offsets(service.groups) == {FIRST.name: newest}
