"""Messages that groups had not read when they expired or were truncated: counts, log and totals."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from random import Random

import pytest

from messaging.groups.group_log_records import MemberRecord
from messaging.groups.share_coordinator import LeaseRequest
from messaging.groups.share_decisions import Acknowledgement, ProcessingOrder
from messaging.model.row_format import MESSAGES
from messaging.read import lost_messages
from messaging.read.lost_messages import GroupKind, GroupName, LossCause
from messaging.service import MessagingService
from tests.messaging.world import AUDIT, World
from tuff.protocol.attributes import Attributes
from tuff.protocol.group_preferences import GroupPreferences, GroupStart
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.leases import LeaseAction
from tuff.protocol.requests import PublishRequest

LOG = TopicId("default", "billing:group")
PARTITION = AUDIT.partition(0).name
CONSUMERS = GroupName(GroupKind.CONSUMER, "default", "billing")
WORKERS = GroupName(GroupKind.SHARE, "default", "mailing")
TTL_MS = 60_000


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def service(world: World) -> AsyncIterator[MessagingService]:
    async with world.running(audit={"ttl": str(TTL_MS // 1000)}) as running:
        yield running


async def publish(
    service: MessagingService, count: int, *, tags: tuple[str, ...] = ()
) -> MessageId:
    """Publish so many messages; the id of the last."""
    payloads = [b"m"] * count
    attributes = (Attributes(tags=tags),) * count if tags else None
    request = PublishRequest(None, payloads, attributes=attributes)
    return (await service.publisher.publish(AUDIT, request)).last


async def join(service: MessagingService, start: GroupStart | None = None) -> None:
    request = MemberRecord(member_id="m1", topics=(AUDIT.name,), assignor="range")
    await service.groups.join(LOG, request, start)


async def commit(service: MessagingService, after: MessageId) -> None:
    await service.groups.commit(LOG, "m1", 1, {PARTITION: after}, pointer=None)


async def reach_start_of(service: MessagingService) -> None:
    """A group that has read the first of the messages."""
    await join(service)
    await commit(service, await publish(service, 1))


async def lease(service: MessagingService, count: int) -> list[Acknowledgement]:
    """Lease messages; acknowledgements that accept them."""
    request = LeaseRequest(count=count)
    given = (await service.share_groups.lease(AUDIT, "mailing", request)).messages
    return [
        Acknowledgement(id=each.lease.id, token=each.lease.token, action=LeaseAction.ACCEPT)
        for each in given
    ]


async def create_share_group(service: MessagingService, tags: str | None = None) -> None:
    await service.share_groups.create(
        AUDIT, "mailing", start="earliest", order=ProcessingOrder.NONE, tags=tags, lease_ms=1_000
    )


def lost(service: MessagingService) -> dict[tuple[GroupName, str], int]:
    totals = service.lost_messages.totals
    return {(key.group, key.cause.value): count for key, count in totals.items()}


async def test_what_expires_before_a_group_read_it_is_counted_once_and_logged(
    world: World, service: MessagingService, caplog: pytest.LogCaptureFixture
) -> None:
    await reach_start_of(service)
    await publish(service, 3)
    world.clock.now_ms += TTL_MS

    for _ in range(2):
        await service.cleaner.run_pass()

    assert lost(service) == {(CONSUMERS, "expired"): 3}
    lines = [each for each in caplog.records if getattr(each, "code", "") == "messages_lost"]
    assert [each.getMessage() for each in lines] == [
        "3 messages of default:audit expired before the consumer group default:billing had read "
        "them"
    ]
    assert [each.levelno for each in lines] == [logging.WARNING]
    assert not [key for key in world.rows if key.startswith(MESSAGES + b"default\0audit")]


async def test_looks_before_the_rows_are_deleted_count_them_once(
    world: World, service: MessagingService
) -> None:
    await reach_start_of(service)
    await publish(service, 3)
    world.clock.now_ms += TTL_MS

    for _ in range(2):
        await service.groups.note_lost_and_expire()

    assert lost(service) == {(CONSUMERS, "expired"): 3}


async def test_what_a_group_has_read_is_no_loss(world: World, service: MessagingService) -> None:
    await join(service)
    await commit(service, await publish(service, 3))
    world.clock.now_ms += TTL_MS

    await service.cleaner.run_pass()

    assert lost(service) == {}


async def test_a_slow_consumer_s_losses_between_two_passes_are_counted_with_its_commits(
    world: World, service: MessagingService
) -> None:
    await reach_start_of(service)
    await publish(service, 3)
    world.clock.now_ms += TTL_MS
    live = await publish(service, 2)

    await commit(service, live)
    await service.cleaner.run_pass()

    assert lost(service) == {(CONSUMERS, "expired"): 3}


async def test_a_new_group_loses_nothing_of_what_was_gone_before_it(
    world: World, service: MessagingService
) -> None:
    await publish(service, 3)
    world.clock.now_ms += TTL_MS
    await join(service)
    await create_share_group(service)
    await lease(service, 10)
    world.clock.now_ms += 1_000

    await service.cleaner.run_pass()

    assert lost(service) == {}


async def test_a_group_that_never_committed_loses_what_expires_after_its_start(
    world: World, service: MessagingService
) -> None:
    await publish(service, 3)
    world.clock.now_ms += TTL_MS
    await join(service)
    await publish(service, 2)
    world.clock.now_ms += TTL_MS

    await service.cleaner.run_pass()

    assert lost(service) == {(CONSUMERS, "expired"): 2}


async def test_an_operator_s_reset_is_no_loss(world: World, service: MessagingService) -> None:
    await join(service)
    await commit(service, await publish(service, 3))
    await service.groups.leave(LOG, "m1", keeps_assignment=False)
    world.clock.now_ms += TTL_MS
    await service.groups.reset(LOG, {PARTITION: None})

    await service.cleaner.run_pass()

    assert lost(service) == {}


async def test_a_truncation_is_counted_as_one(
    world: World, service: MessagingService, caplog: pytest.LogCaptureFixture
) -> None:
    await reach_start_of(service)
    await publish(service, 3)
    await service.topics.truncate(AUDIT, world.clock.now_ms + 1)

    await service.cleaner.run_pass()

    assert lost(service) == {(CONSUMERS, "truncated"): 3}
    assert "3 messages of default:audit were truncated before the consumer group" in caplog.text


async def test_messages_that_the_group_s_tags_pass_over_are_no_loss(
    world: World, service: MessagingService
) -> None:
    preferences = GroupPreferences(tags="eu")
    await service.groups.change_preferences(LOG, lambda _before: preferences)
    await create_share_group(service, tags="eu")
    await reach_start_of(service)
    await publish(service, 3)
    await publish(service, 2, tags=("eu",))
    await publish(service, 1, tags=("us",))
    world.clock.now_ms += TTL_MS

    await service.cleaner.run_pass()

    assert lost(service) == {(CONSUMERS, "expired"): 2, (WORKERS, "expired"): 2}


async def test_while_the_clock_is_doubtful_nothing_is_lost(
    world: World, service: MessagingService
) -> None:
    await reach_start_of(service)
    await publish(service, 3)
    world.clock.now_ms += TTL_MS
    world.may_delete = False
    await commit(service, await publish(service, 1))
    await service.cleaner.run_pass()

    assert lost(service) == {}


async def test_a_topic_that_the_group_reads_no_more_is_no_loss(
    world: World, service: MessagingService
) -> None:
    await reach_start_of(service)
    await service.topics.create(TopicId("default", "other"), {})
    other = MemberRecord(member_id="m1", topics=("other",), assignor="range")
    await service.groups.join(LOG, other)
    await publish(service, 3)
    world.clock.now_ms += TTL_MS

    await service.cleaner.run_pass()

    assert lost(service) == {}


async def test_after_a_start_what_expired_since_the_end_is_counted_and_nothing_twice(
    world: World,
) -> None:
    async with world.running(audit={"ttl": "60"}) as service:
        await reach_start_of(service)
        await publish(service, 3)
        world.clock.now_ms += TTL_MS
        late = await publish(service, 2)
        await service.cleaner.run_pass()
        assert lost(service) == {(CONSUMERS, "expired"): 3}
    world.clock.now_ms = late.publish_timestamp_ms + TTL_MS

    async with world.running() as service:
        await service.cleaner.run_pass()

        assert lost(service) == {(CONSUMERS, "expired"): 2}


async def test_a_share_group_loses_what_no_worker_has_and_is_not_done(
    world: World, service: MessagingService
) -> None:
    await create_share_group(service)
    await publish(service, 10)
    first, second, third, *_ = await lease(service, 3)
    await service.share_groups.acknowledge(AUDIT, "mailing", [first])
    released = Acknowledgement(
        id=second.id, token=second.token, action=LeaseAction.RELEASE, ms=1_000
    )
    await service.share_groups.acknowledge(AUDIT, "mailing", [released])
    renewed = Acknowledgement(
        id=third.id, token=third.token, action=LeaseAction.RENEW, ms=3_600_000
    )
    await service.share_groups.acknowledge(AUDIT, "mailing", [renewed])
    world.clock.now_ms += TTL_MS

    for _ in range(2):
        await service.cleaner.run_pass()

    assert lost(service) == {(WORKERS, "expired"): 8}


async def test_a_share_group_loses_of_each_partition_of_a_topic(
    world: World, service: MessagingService
) -> None:
    await service.topics.update(AUDIT, {"ttl": str(TTL_MS // 1000)}, partition_count=2)
    await create_share_group(service)
    for number, count in enumerate((3, 2)):
        request = PublishRequest(None, [b"m"] * count)
        await service.publisher.publish(AUDIT.partition(number), request)
    world.clock.now_ms += TTL_MS

    await service.cleaner.run_pass()

    assert lost(service) == {(WORKERS, "expired"): 5}


async def test_what_a_share_group_had_done_before_a_start_is_no_loss(world: World) -> None:
    async with world.running(audit={"ttl": "60"}) as service:
        await create_share_group(service)
        await publish(service, 5)
        _, second, *_ = await lease(service, 5)
        await service.share_groups.acknowledge(AUDIT, "mailing", [second])
    world.clock.now_ms += TTL_MS

    async with world.running() as service:
        await service.cleaner.run_pass()

        assert lost(service) == {(WORKERS, "expired"): 4}


async def test_metrics_have_a_bounded_number_of_groups(
    world: World, service: MessagingService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_messages, "TOTALS_COUNT_MAX", 1)
    await reach_start_of(service)
    await create_share_group(service)
    await publish(service, 3)
    world.clock.now_ms += TTL_MS

    await service.cleaner.run_pass()

    assert lost(service) == {(CONSUMERS, "expired"): 3}


async def test_the_losses_of_a_message_are_known_by_group(
    world: World, service: MessagingService
) -> None:
    await reach_start_of(service)
    gone = await publish(service, 1)
    world.clock.now_ms += TTL_MS
    live = await publish(service, 1)
    await service.cleaner.run_pass()
    await commit(service, live)

    (found,) = service.lost_messages.of_message(AUDIT, gone)

    assert (found.group, found.cause) == (CONSUMERS, LossCause.EXPIRED)
    assert service.lost_messages.of_message(AUDIT, live) == []


class Model:
    """What is lost: each message that expired, or was truncated, before it was done."""

    def __init__(self) -> None:
        self.unread: list[MessageId] = []
        self.lost = 0

    def remove_before(self, first_ms: int) -> None:
        gone = [each for each in self.unread if each.publish_timestamp_ms < first_ms]
        self.lost += len(gone)
        self.unread = self.unread[len(gone) :]

    def read(self, count: int) -> MessageId | None:
        """The last of these messages, which are done."""
        done, self.unread = self.unread[:count], self.unread[count:]
        return done[-1] if done else None


class Run:
    """Random calls, and what they mean for a consumer group and a share group."""

    def __init__(self, seed: int) -> None:
        self.chance, self.world = Random(seed), World()
        self.models = {CONSUMERS: Model(), WORKERS: Model()}

    def expire(self) -> None:
        for model in self.models.values():
            model.remove_before(self.world.clock.now_ms - TTL_MS + 1)

    async def publish(self, service: MessagingService) -> None:
        count = self.chance.randrange(1, 5)
        last = await publish(service, count)
        ids = [replace(last, seq_id=last.seq_id - each) for each in reversed(range(count))]
        for model in self.models.values():
            model.unread += ids

    async def wait(self, _service: MessagingService) -> None:
        self.world.clock.now_ms += self.chance.randrange(1, TTL_MS)
        self.expire()

    async def commit(self, service: MessagingService) -> None:
        after = self.models[CONSUMERS].read(self.chance.randrange(1, 5))
        if after is not None:
            await commit(service, after)

    async def work(self, service: MessagingService) -> None:
        leased = await lease(service, self.chance.randrange(1, 5))
        if leased:
            await service.share_groups.acknowledge(AUDIT, "mailing", leased)
            self.models[WORKERS].read(len(leased))

    async def sweep(self, service: MessagingService) -> None:
        await service.cleaner.run_pass()

    async def truncate(self, service: MessagingService) -> None:
        cut_ms = self.world.clock.now_ms - self.chance.randrange(1, TTL_MS)
        await service.topics.truncate(AUDIT, cut_ms)
        for model in self.models.values():
            model.remove_before(cut_ms)

    async def step(self, service: MessagingService) -> None:
        calls = (self.publish, self.publish, self.wait, self.commit, self.work, self.sweep)
        await self.chance.choice((*calls, self.truncate))(service)


@pytest.mark.parametrize("seed", range(20))
async def test_the_losses_are_those_of_a_model(seed: int) -> None:
    run, found = Run(seed), Counter[GroupName]()
    for number in range(3):  # with restarts
        properties = {"ttl": str(TTL_MS // 1000)} if number == 0 else None
        async with run.world.running(audit=properties) as service:
            await join(service)
            await create_share_group(service)
            for _ in range(30):
                await run.step(service)
            await run.sweep(service)
            for (group, _), count in lost(service).items():
                found[group] += count

    assert found == Counter({group: model.lost for group, model in run.models.items()})


async def test_other_work_comes_in_between_the_groups(service: MessagingService) -> None:
    for number in range(20):
        member = MemberRecord(member_id="m1", topics=(AUDIT.name,), assignor="range")
        await service.groups.join(TopicId("default", f"g{number}:group"), member)
    turns = 0

    async def work() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    working = asyncio.ensure_future(work())
    await service.groups.note_lost_and_expire()
    working.cancel()

    assert turns >= 20
