"""How far named positions are behind their topics, for `/metrics` (protocol §7)."""

from messaging.retention.holds_and_positions import PositionLag
from messaging.service import MessagingService
from tests.messaging.world import AUDIT, NOON_MS, CountingStore, World, publish
from tuff.protocol.ids import FIRST_ID, LAST_ID, TopicId

TTL_MS = 100_000  # the fixture's topic


async def behind(service: MessagingService) -> dict[str, int]:
    lags = await service.holds_and_positions.position_lags(count_max=100)
    return {lag.name: lag.behind_ms for lag in lags}


async def test_a_position_is_behind_by_the_time_to_the_newest_message(
    world: World, service: MessagingService
) -> None:
    first = await publish(service, b"a")
    await service.holds_and_positions.set_position(AUDIT, "report", first.first)
    world.clock.now_ms += 2_500
    second = await publish(service, b"b")
    await service.holds_and_positions.set_position(AUDIT, "at the end", second.first)
    await service.holds_and_positions.set_position(AUDIT, "past it", LAST_ID)

    (_, _, report) = await service.holds_and_positions.position_lags(count_max=3)

    assert await behind(service) == {"report": 2_500, "at the end": 0, "past it": 0}
    assert report == PositionLag(topic=AUDIT, name="report", behind_ms=2_500, updated_at_ms=NOON_MS)


async def test_what_is_undecided_or_undone_counts_as_the_end(
    world: World, service: MessagingService
) -> None:
    first = await publish(service, b"a")
    await service.holds_and_positions.set_position(AUDIT, "report", first.first)
    world.clock.now_ms += 1_000
    pointer = world.transactions.start(5)
    await publish(service, b"b", pointer=pointer)
    undecided = await behind(service)

    world.transactions.end(pointer, world.transactions.invalid)
    await service.rows.mark_rolled_back([pointer])

    assert undecided == await behind(service) == {"report": 1_000}


async def test_what_expired_unread_or_was_truncated_is_no_lag(
    world: World, service: MessagingService
) -> None:
    await service.holds_and_positions.set_position(AUDIT, "new", FIRST_ID)
    empty = await behind(service)
    await publish(service, b"a")
    world.clock.now_ms += TTL_MS
    second = await publish(service, b"b")
    expiring = await behind(service)
    world.clock.now_ms += 2_000
    await publish(service, b"c")
    await service.topics.truncate(AUDIT, second.first)
    truncated = await behind(service)
    world.clock.now_ms += TTL_MS

    assert (empty, truncated, await behind(service)) == ({"new": 0}, {"new": 2_000}, {"new": 0})
    assert 0 <= TTL_MS - expiring["new"] <= 1_000


async def test_a_topic_costs_one_step_in_the_store_and_those_without_positions_nothing(
    world: World,
) -> None:
    other = TopicId("default", "other")
    store = CountingStore(world.rows)
    world.open_store = lambda: store
    async with world.running(audit={}) as service:
        await service.topics.create(other, {})
        await publish(service, *[b"a"] * 50)
        for name in ("one", "two", "three"):
            await service.holds_and_positions.set_position(AUDIT, name, FIRST_ID)
        store.read_count = 0
        lags = await service.holds_and_positions.position_lags(count_max=2)

    assert [(lag.topic, lag.name) for lag in lags] == [(AUDIT, "one"), (AUDIT, "three")]
    assert service.holds_and_positions.position_count() == 3
    assert store.read_count == 1
