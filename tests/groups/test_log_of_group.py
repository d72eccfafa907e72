"""The log of a group stays short, and keeps what is needed: summaries, transactions, expiry."""

import pytest

from messaging.groups import consumer_coordinator as coordinator
from messaging.groups import group_logs
from messaging.groups.consumer_coordinator import GroupCoordinator, MemberView
from messaging.groups.consumer_decisions import GroupState, Heartbeat
from messaging.groups.group_log_records import AssignmentRecord, MemberLeftRecord, MemberRecord
from messaging.read.poll import Poll
from tests.messaging.members import Member, new_tables
from tests.messaging.world import AUDIT, World
from tuff.protocol.errors import TooManyGroupsError
from tuff.protocol.ids import MessageId, TopicId

LOG = TopicId("default", "billing:group")
NAME = AUDIT.partition(0).name


async def joined(groups: GroupCoordinator) -> MemberView:
    return await groups.join(
        LOG, MemberRecord(member_id="m1", topics=(AUDIT.name,), assignor="range")
    )


async def commit(groups: GroupCoordinator, number: int, *, pointer: int | None = None) -> None:
    await groups.commit(LOG, "m1", 1, {NAME: MessageId(number, 0)}, pointer=pointer)


async def test_a_namespace_has_a_limited_number_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "GROUPS_COUNT_MAX", 1)
    world = World()
    async with world.running(audit={}) as service:
        await joined(service.groups)
        member = MemberRecord(member_id="m1", topics=(AUDIT.name,), assignor="range")
        new = TopicId("default", "new:group")

        with pytest.raises(TooManyGroupsError, match="namespace default has 1 consumer groups"):
            await service.groups.join(new, member)

        assert service.groups.names("default") == ["billing"]
        await joined(service.groups)  # the group that exists
        await service.groups.join(TopicId("other", "new:group"), member)
        await service.groups.leave(LOG, "m1", keeps_assignment=False)
        await service.groups.delete(LOG)
        await service.groups.join(new, member)


async def test_transactions_that_overlap_do_not_let_the_log_grow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_logs, "SUMMARY_BYTES_MIN", 1_000)
    world = World()
    async with world.running(audit={}) as service:
        await joined(service.groups)
        for number in range(1, 60):
            await commit(service.groups, number, pointer=world.transactions.start(number))
            if number > 1:
                world.commit(service, number - 1)

        assert len((await service.polls.poll(LOG, Poll())).items) < 25
        before = await service.groups.committed(LOG)
        assert before.offsets[NAME].after == MessageId(58, 0)

    async with world.running() as service:
        assert await service.groups.committed(LOG) == before
        world.commit(service, 59)
        assert (await service.groups.committed(LOG)).offsets[NAME].after == MessageId(59, 0)


async def test_a_summary_keeps_the_records_of_a_transaction_in_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_logs, "SUMMARY_BYTES_MIN", 500)
    world = World()
    async with world.running(audit={}) as service:
        await joined(service.groups)
        await commit(service.groups, 90, pointer=world.transactions.start(5))
        for number in range(1, 20):
            await commit(service.groups, number)

    async with world.running() as service:
        assert (await service.groups.committed(LOG)).offsets[NAME].after == MessageId(19, 0)
        world.commit(service, 5)
        assert (await service.groups.committed(LOG)).offsets[NAME].after == MessageId(90, 0)


async def test_heartbeats_keep_the_offsets_of_a_quiet_topic_from_expiring() -> None:
    world = World()
    world.settings = type(world.settings)(max_ttl=1_000, default_ttl=1_000)
    async with world.running(audit={}) as service:
        view = await joined(service.groups)
        await commit(service.groups, 7)
        beat = Heartbeat(
            member_id="m1",
            epoch=view.epoch,
            group_epoch=view.group_epoch,
            owned=frozenset({NAME}),
        )
        for _ in range(6):
            world.clock.now_ms += 400_000
            await service.groups.heartbeat(LOG, beat)
        before = await service.groups.committed(LOG)

    async with world.running() as service:
        assert await service.groups.committed(LOG) == before
        assert before.offsets[NAME].after == MessageId(7, 0)


async def test_a_log_whose_oldest_records_have_expired_can_be_read() -> None:
    world = World()
    world.settings = type(world.settings)(max_ttl=1_000, default_ttl=1_000)
    async with world.running(audit={}) as service:
        await joined(service.groups)
        world.clock.now_ms += 400_000
        await commit(service.groups, 7)
        await service.groups.leave(LOG, "m1", keeps_assignment=False)

    world.clock.now_ms += 700_000
    async with world.running() as service:
        state = await service.groups.committed(LOG)
        assert (state.members, state.offsets[NAME].after) == ({}, MessageId(7, 0))
        assert (await joined(service.groups)).assigned == (NAME,)


async def test_a_server_that_lost_the_log_fences_nobody(caplog: pytest.LogCaptureFixture) -> None:
    tables = new_tables()
    async with (
        Member(tables, "a").serving(AUDIT, LOG) as a,
        Member(tables, "b").serving() as b,
    ):
        await joined(a.service.groups)
        await a.pass_on(LOG, b)
        a.clock.now_ms += 100_000

        await a.service.groups.tick()
        caplog.clear()
        await a.service.groups.tick()

        assert caplog.messages == []
        assert list((await b.service.groups.committed(LOG)).members) == ["m1"]


def test_a_member_of_which_records_have_expired_is_forgotten() -> None:
    state = GroupState()
    state.apply(MemberLeftRecord(member_id="m0"))
    state.apply(
        AssignmentRecord(
            member_id="m1", epoch=3, previous_epoch=2, assigned={"t:0": 3}, revoking={}
        )
    )

    state.forget_incomplete_members()

    assert state == GroupState()
