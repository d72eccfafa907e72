"""The preferences of a group: kept with the log of the group, and changed on the server."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from kernel.owner_floor import NO_FLOOR
from messaging.groups.consumer_coordinator import PREFERENCES
from messaging.service import MessagingService
from messaging.topic_changes import PropertyChange
from tests.groups.test_consumer_coordinator import LOG, NAME, beat, commit, committed, joined
from tests.messaging.members import Member, new_tables
from tests.messaging.world import AUDIT, FlakyWorld, World, publish
from tuff.protocol.errors import DamagedRecordError, GroupNotFoundError, StorageUnavailableError
from tuff.protocol.group_preferences import GroupPreferences, GroupStart, RetryPolicy

URGENT = GroupPreferences(
    start="latest",
    isolation="all",
    tags="urgent|late",
    retry=RetryPolicy(delays=(1.5, 10), in_order=True),
    dead_letters="audit.failed",
)
MAX_TTL_S = 1_000


@pytest.fixture
def world() -> World:
    made = World()
    made.settings = type(made.settings)(max_ttl=MAX_TTL_S, default_ttl=MAX_TTL_S)
    return made


@pytest.fixture
async def service(world: World) -> AsyncIterator[MessagingService]:
    async with world.running(audit={}) as running:
        yield running


def to(preferences: GroupPreferences) -> Callable[[GroupPreferences], GroupPreferences]:
    return lambda _before: preferences


def changing(**form: object) -> Callable[[GroupPreferences], GroupPreferences]:
    return lambda before: before.with_changes(form)


async def test_a_group_without_preferences_says_nothing(service: MessagingService) -> None:
    view = await joined(service.groups)

    assert view.preferences == await service.groups.preferences(LOG) == GroupPreferences()


async def test_a_group_that_does_not_exist_has_no_preferences(service: MessagingService) -> None:
    with pytest.raises(GroupNotFoundError):
        await service.groups.preferences(LOG)
    assert service.groups.names("default") == []


async def test_preferences_create_the_group_and_members_get_them_as_they_join(
    service: MessagingService,
) -> None:
    assert await service.groups.change_preferences(LOG, to(URGENT)) == URGENT

    assert service.groups.names("default") == ["billing"]
    assert (await joined(service.groups)).preferences == URGENT


async def test_members_learn_a_change_by_their_next_heartbeat(service: MessagingService) -> None:
    view = await joined(service.groups)

    await service.groups.change_preferences(LOG, to(URGENT))

    after = await beat(service.groups, view, NAME)
    assert after.preferences == URGENT
    assert after.epoch == view.epoch  # nothing moves


async def test_preferences_outlive_the_records_of_the_group(world: World) -> None:
    async with world.running(audit={}) as service:
        await service.groups.change_preferences(LOG, to(URGENT))
        await joined(service.groups)
        await commit(service.groups, 7)
    world.clock.now_ms += 2 * MAX_TTL_S * 1_000

    async with world.running() as service:
        assert await committed(service.groups) is None
        assert await service.groups.preferences(LOG) == URGENT


async def test_changes_at_once_both_count(service: MessagingService) -> None:
    await asyncio.gather(
        service.groups.change_preferences(LOG, changing(tags="urgent")),
        service.groups.change_preferences(LOG, changing(start="latest")),
    )

    found = await service.groups.preferences(LOG)
    assert found == GroupPreferences(tags="urgent", start="latest")


async def test_a_change_that_is_refused_changes_nothing(service: MessagingService) -> None:
    await service.groups.change_preferences(LOG, to(URGENT))

    with pytest.raises(ValueError, match="earliest or latest"):
        await service.groups.change_preferences(LOG, changing(tags=None, start="first"))
    assert await service.groups.preferences(LOG) == URGENT


async def test_a_change_keeps_offsets_and_the_time_to_live_of_the_log(
    service: MessagingService,
) -> None:
    await joined(service.groups)
    await commit(service.groups, 7)
    before = service.topics.get(LOG)

    await service.groups.change_preferences(LOG, to(URGENT))

    assert await committed(service.groups) == 7
    after = service.topics.get(LOG)
    assert (after.ttl_s, after.generation) == (before.ttl_s, before.generation)


@pytest.mark.parametrize("takes_effect", [False, True])
async def test_after_a_failed_write_the_preferences_are_those_of_the_store(
    takes_effect: bool,
) -> None:
    world = FlakyWorld()
    async with world.running(audit={}) as service:
        await joined(service.groups)
        world.fail_write(0, takes_effect=takes_effect)

        if takes_effect:
            await service.groups.change_preferences(LOG, to(URGENT))
        else:
            with pytest.raises(StorageUnavailableError):
                await service.groups.change_preferences(LOG, to(URGENT))

        expected = URGENT if takes_effect else GroupPreferences()
        assert await service.groups.preferences(LOG) == expected


@pytest.mark.parametrize(
    ("named", "start", "preferred"),
    [
        (None, 1, "latest"),
        (None, 0, "earliest"),
        (None, 0, None),
        (GroupStart.EARLIEST, 0, "latest"),
        (GroupStart.LATEST, 1, "earliest"),
    ],
)
async def test_a_group_begins_where_the_member_says_or_else_the_preferences(
    service: MessagingService, named: GroupStart | None, start: int, preferred: str | None
) -> None:
    await publish(service, b"one")
    await service.groups.change_preferences(LOG, changing(start=preferred))

    await joined(service.groups, start=named)

    assert len((await service.groups.committed(LOG)).offsets) == start


async def test_a_group_that_begins_again_has_no_preferences(service: MessagingService) -> None:
    await service.groups.change_preferences(LOG, to(URGENT))
    await service.groups.delete(LOG)

    assert (await joined(service.groups)).preferences == GroupPreferences()


async def test_preferences_move_with_the_log_to_another_server() -> None:
    tables = new_tables()
    async with Member(tables, "a").serving() as a:
        await a.handover.take([LOG, AUDIT], NO_FLOOR)
        await a.service.groups.change_preferences(LOG, to(URGENT))

    async with Member(tables, "b").serving() as b:
        await b.handover.take([LOG, AUDIT], NO_FLOOR)
        assert await b.service.groups.preferences(LOG) == URGENT


@pytest.mark.parametrize("text", ["", "[]", '{"start":"first"}', '{"later":null}'])
async def test_preferences_that_can_not_be_read_are_reported(
    service: MessagingService, text: str
) -> None:
    await joined(service.groups)
    change: Mapping[str, str] = {PREFERENCES: text}
    await service.topics.change(LOG, PropertyChange(change), is_dry_run=False)

    with pytest.raises(DamagedRecordError, match="no preferences have this form"):
        await service.groups.preferences(LOG)
