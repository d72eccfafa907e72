"""Messages that members of a group began before they vanished (protocol §3.11, Beginnings)."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import pytest

from messaging.groups.consumer_coordinator import GroupCoordinator, MemberView, group_log_of
from messaging.groups.consumer_decisions import Heartbeat
from messaging.groups.group_log_records import MemberRecord
from messaging.service import MessagingService
from tests.messaging.world import AUDIT, World
from tuff.protocol.ids import MessageId

LOG = group_log_of(AUDIT.namespace, "billing")
NAME = f"{AUDIT.name}:0"
SESSION_MS = 45_000
KILLER = MessageId(7, 0)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def service(world: World) -> AsyncIterator[MessagingService]:
    async with world.running(audit={}) as running:
        yield running


async def joined(
    groups: GroupCoordinator, member_id: str, *, instance: str = "", assignor: str = "sticky"
) -> MemberView:
    request = MemberRecord(
        member_id=member_id,
        topics=(AUDIT.name,),
        assignor=assignor,
        instance_id=instance or None,
    )
    return await groups.join(LOG, request)


async def begins(
    groups: GroupCoordinator, view: MemberView, message: MessageId = KILLER
) -> MemberView:
    request = replace(heartbeat_of(view, NAME), begun={NAME: message})
    return await groups.heartbeat(LOG, request)


async def stays(groups: GroupCoordinator, view: MemberView, *owned: str) -> MemberView:
    return await groups.heartbeat(LOG, heartbeat_of(view, *owned))


def heartbeat_of(view: MemberView, *owned: str) -> Heartbeat:
    return Heartbeat(
        member_id=view.member_id,
        epoch=view.epoch,
        group_epoch=view.group_epoch,
        owned=frozenset(owned),
    )


async def vanish(world: World, service: MessagingService) -> None:
    world.clock.now_ms += SESSION_MS
    await service.groups.tick()


def lost(view: MemberView) -> Mapping[MessageId, int]:
    return {each.after: each.lost for each in view.lost}


async def test_the_next_owner_learns_how_many_members_a_message_has_killed(
    world: World, service: MessagingService
) -> None:
    for deaths in range(3):
        view = await joined(service.groups, f"m{deaths}")
        assert lost(view) == ({KILLER: deaths} if deaths else {})
        await begins(service.groups, view)
        await begins(service.groups, view)  # a repeated report counts once
        await vanish(world, service)

    assert lost(await joined(service.groups, "last")) == {KILLER: 3}


async def test_deaths_survive_a_restart_and_a_summary_of_the_log(world: World) -> None:
    async with world.running(audit={}) as service:
        await begins(service.groups, await joined(service.groups, "m1"))
    async with world.running() as service:
        await service.groups.committed(LOG)
        await vanish(world, service)
        state = await service.groups.committed(LOG)
        copy = type(state)()
        for record in state.summary():
            copy.apply(record)
        assert copy.begun == state.begun
    async with world.running() as service:
        assert lost(await joined(service.groups, "m2")) == {KILLER: 1}


@pytest.mark.parametrize("keeps_assignment", [False, True])
async def test_a_member_that_leaves_has_lost_nothing(
    world: World, service: MessagingService, *, keeps_assignment: bool
) -> None:
    view = await joined(service.groups, "m1", instance="one")
    await begins(service.groups, view)

    await service.groups.leave(LOG, "m1", keeps_assignment=keeps_assignment)

    assert (await service.groups.committed(LOG)).begun == {}
    await vanish(world, service)
    assert lost(await joined(service.groups, "m2", instance="one")) == {}


async def test_a_partition_that_is_released_is_given_on_without_a_death(
    service: MessagingService,
) -> None:
    await begins(service.groups, await joined(service.groups, "m1", assignor="range"))
    await joined(service.groups, "m0", assignor="range")
    told = await stays(service.groups, await joined(service.groups, "m1", assignor="range"), NAME)
    assert told.assigned == ()

    await stays(service.groups, told)
    next_owner = await stays(service.groups, await joined(service.groups, "m0", assignor="range"))

    assert (next_owner.assigned, lost(next_owner)) == ((NAME,), {})


async def test_a_commit_ends_a_beginning_and_brings_the_next_one(
    world: World, service: MessagingService
) -> None:
    view = await joined(service.groups, "m1")
    await begins(service.groups, view)
    following = MessageId(8, 0)

    await service.groups.commit(
        LOG, "m1", view.epoch, {NAME: KILLER}, pointer=None, begun={NAME: following}
    )
    await begins(service.groups, view)  # a late report of a message that is done
    await vanish(world, service)

    assert lost(await joined(service.groups, "m2")) == {following: 1}


async def test_a_report_for_the_partition_of_another_member_does_not_count(
    world: World, service: MessagingService
) -> None:
    view = await joined(service.groups, "m1")
    await begins(service.groups, view)
    second = await joined(service.groups, "m2")

    await begins(service.groups, second, MessageId(9, 0))

    assert (await service.groups.committed(LOG)).begun[NAME].after == KILLER
    await vanish(world, service)
    assert lost(await joined(service.groups, "m3")) == {KILLER: 1}


async def test_a_reset_forgets_the_deaths(world: World, service: MessagingService) -> None:
    await begins(service.groups, await joined(service.groups, "m1"))
    await vanish(world, service)

    await service.groups.reset(LOG, {NAME: MessageId(3, 0)})

    assert lost(await joined(service.groups, "m2")) == {}
