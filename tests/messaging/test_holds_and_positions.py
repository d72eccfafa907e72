"""Retention holds keep messages from the topic's time to live, and from nothing else; positions
keep nothing, and have a lag (protocol §3.8, §3.9, §7)."""

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from messaging.model.row_format import HOLDS, POSITIONS
from messaging.read import counts
from messaging.read.poll import Poll
from messaging.retention.holds_and_positions import (
    HOLDS_COUNT_MAX,
    POSITIONS_COUNT_MAX,
)
from messaging.service import MessagingService
from messaging.settings import MessagingSettings
from tests.messaging.world import (
    AUDIT,
    NOON_MS,
    CountingStore,
    FlakyWorld,
    World,
    payloads,
    polled,
    publish,
    request,
)
from tuff.protocol.errors import (
    DamagedRecordError,
    FuturePositionError,
    HoldNotFoundError,
    PositionNotFoundError,
    StorageUnavailableError,
    TooManyHoldsError,
    TooManyPositionsError,
    TopicHeldError,
)
from tuff.protocol.ids import FIRST_ID, LAST_ID, MessageId, TopicId, past_group

AGE_MS = 1_000_000
TTL_MS = 100_000  # the fixture's topic


async def hold(service: MessagingService, name: str = "job", **asked: int) -> MessageId:
    first, max_age_ms = asked.get("first", 0), asked.get("max_age_ms", AGE_MS)
    return (await service.holds_and_positions.hold(AUDIT, name, first, max_age_ms=max_age_ms)).first


async def test_a_held_message_outlives_the_ttl_until_the_hold_expires(
    world: World, service: MessagingService
) -> None:
    await publish(service, b"before")
    world.clock.now_ms += 1
    held = await publish(service, b"held")
    world.clock.now_ms += 1
    await service.holds_and_positions.hold(AUDIT, "job", held.first, max_age_ms=2 * TTL_MS)

    world.clock.now_ms = NOON_MS + TTL_MS + 5_000
    await service.cleaner.run_pass()
    assert await polled(service) == [b"held"]
    assert (await service.offsets.offsets(AUDIT)).earliest == held.first
    world.clock.now_ms = NOON_MS + 2 + 2 * TTL_MS - 1
    await service.cleaner.run_pass()
    assert await polled(service) == [b"held"]

    world.clock.now_ms += 1
    assert await polled(service) == []
    assert (await service.cleaner.run_pass()).dropped_count == 1


async def test_a_released_hold_counts_at_once(world: World, service: MessagingService) -> None:
    await publish(service, b"held")
    await hold(service)
    world.clock.now_ms += TTL_MS
    assert await polled(service) == [b"held"]

    await service.holds_and_positions.release(AUDIT, "job")

    assert await polled(service) == []
    with pytest.raises(HoldNotFoundError):
        await service.holds_and_positions.release(AUDIT, "job")


async def test_a_hold_does_not_override_a_messages_own_ttl(
    world: World, service: MessagingService
) -> None:
    await publish(service, b"short", ttl_s=10)
    await publish(service, b"long")
    await hold(service)
    world.clock.now_ms += 2 * TTL_MS

    assert await polled(service) == [b"long"]
    assert (await service.cleaner.run_pass()).dropped_count == 1


async def test_a_hold_brings_no_expired_message_back(
    world: World, service: MessagingService
) -> None:
    await publish(service, b"expired")
    world.clock.now_ms += TTL_MS
    live = await publish(service, b"live")

    first = await hold(service, first=0)

    assert first == MessageId(NOON_MS + 1, 0)
    assert await polled(service) == [b"live"]
    world.clock.now_ms += TTL_MS + AGE_MS - 1
    assert await polled(service) == []
    again = await service.holds_and_positions.hold(AUDIT, "job", live.first, max_age_ms=AGE_MS)
    assert again.first == MessageId(world.clock.now_ms - TTL_MS + 1, 0)
    assert await polled(service) == []


async def test_setting_a_hold_again_renews_and_moves_it(
    world: World, service: MessagingService
) -> None:
    await publish(service, b"a")
    world.clock.now_ms += 10
    second = await publish(service, b"b")
    await hold(service)
    world.clock.now_ms += AGE_MS - 1

    moved = await service.holds_and_positions.hold(AUDIT, "job", second.first, max_age_ms=AGE_MS)

    assert moved.first == second.first
    assert moved.set_at_ms == world.clock.now_ms
    assert moved.expires_at_ms == world.clock.now_ms + AGE_MS
    assert await polled(service) == [b"b"]
    world.clock.now_ms += AGE_MS - 1
    assert await polled(service) == [b"b"]
    assert list(service.holds_and_positions.holds(AUDIT)) == ["job"]


async def test_a_hold_may_begin_in_the_future(world: World, service: MessagingService) -> None:
    await publish(service, b"now")
    first = await hold(service, first=NOON_MS + 5)
    world.clock.now_ms += 5
    await publish(service, b"then")

    world.clock.now_ms += TTL_MS

    assert first == MessageId(NOON_MS + 5, 0)
    assert await polled(service) == [b"then"]
    assert await hold(service, first=1 << 80) == LAST_ID


async def test_a_group_is_held_with_its_stored_payloads(
    world: World, service: MessagingService
) -> None:
    pointer = world.transactions.start(7)
    await service.publisher.store(AUDIT, request(b"a", b"b", pointer=pointer))
    world.clock.now_ms += 90_000
    brought = await publish(service, pointer=pointer)
    await service.holds_and_positions.hold(AUDIT, "job", brought.first, max_age_ms=AGE_MS)
    world.commit(service, pointer)

    world.clock.now_ms += 900_000
    await service.cleaner.run_pass()

    assert await polled(service) == [b"a", b"b"]


async def test_a_truncation_beyond_a_hold_is_refused(
    world: World, service: MessagingService
) -> None:
    first = await publish(service, b"a")
    world.clock.now_ms += 1
    second = await publish(service, b"b")
    world.clock.now_ms += 1
    third = await publish(service, b"c")
    await service.holds_and_positions.hold(AUDIT, "job", second.first, max_age_ms=AGE_MS)

    with pytest.raises(TopicHeldError, match="job") as refused:
        await service.topics.truncate(AUDIT, third.first)

    assert refused.value.members == {"holds": ["job"]}
    assert await polled(service) == [b"a", b"b", b"c"]
    assert await service.topics.truncate(AUDIT, second.first) == second.first
    assert await service.topics.truncate(AUDIT, first.first) == second.first
    world.clock.now_ms += AGE_MS
    await service.topics.truncate(AUDIT, third.first)


async def test_holds_and_positions_survive_a_restart_and_die_with_the_topic(world: World) -> None:
    async with world.running(audit={"ttl": "100"}) as service:
        published = await publish(service, b"a")
        await hold(service)
        await service.holds_and_positions.set_position(AUDIT, "reader", published.first)
        told = service.holds_and_positions.holds(AUDIT)

    world.clock.now_ms += TTL_MS
    async with world.running() as service:
        assert service.holds_and_positions.holds(AUDIT) == told
        generation, position = service.holds_and_positions.position(AUDIT, "reader")
        assert (generation, position.position) == (1, published.first)
        assert position.updated_at_ms == NOON_MS
        assert await polled(service) == [b"a"]
        await service.topics.delete(AUDIT)
        assert not [key for key in world.rows if key[:1] in (HOLDS, POSITIONS)]
        await service.topics.create(AUDIT, {"ttl": "100"})
        assert service.holds_and_positions.holds(AUDIT) == {}
        assert service.holds_and_positions.positions(AUDIT) == (2, {})


async def test_positions_keep_no_message_and_may_move_back(
    world: World, service: MessagingService
) -> None:
    published = await publish(service, b"a")
    await service.holds_and_positions.set_position(AUDIT, "reader", published.first)
    await service.holds_and_positions.set_position(AUDIT, "reader", FIRST_ID)
    await service.holds_and_positions.set_position(AUDIT, "another", published.first)
    world.clock.now_ms += TTL_MS

    assert await polled(service) == []
    _, found = service.holds_and_positions.positions(AUDIT)
    assert [(name, each.position) for name, each in found.items()] == [
        ("another", published.first),
        ("reader", FIRST_ID),
    ]
    await service.holds_and_positions.delete_position(AUDIT, "reader")
    with pytest.raises(PositionNotFoundError):
        service.holds_and_positions.position(AUDIT, "reader")
    with pytest.raises(PositionNotFoundError):
        await service.holds_and_positions.delete_position(AUDIT, "reader")


async def test_holds_and_positions_are_bounded_and_expired_holds_do_not_count(
    world: World, service: MessagingService
) -> None:
    for number in range(HOLDS_COUNT_MAX):
        await hold(service, f"job-{number}", max_age_ms=1_000)
    for number in range(POSITIONS_COUNT_MAX):
        await service.holds_and_positions.set_position(AUDIT, f"reader-{number}", FIRST_ID)

    with pytest.raises(TooManyHoldsError):
        await hold(service, "one-more")
    with pytest.raises(TooManyPositionsError):
        await service.holds_and_positions.set_position(AUDIT, "one-more", FIRST_ID)
    await hold(service, "job-5", max_age_ms=2_000)
    await service.holds_and_positions.set_position(AUDIT, "reader-5", FIRST_ID)
    world.clock.now_ms += 1_000

    await hold(service, "one-more")

    assert list(service.holds_and_positions.holds(AUDIT)) == ["job-5", "one-more"]
    assert sum(key.startswith(HOLDS) for key in world.rows) == 2


async def test_renewed_holds_keep_no_message_longer_than_max_ttl_and_hold_max(
    world: World,
) -> None:
    """HBase deletes rows by a time to live of the table, which must be long enough."""
    world.settings = MessagingSettings(default_ttl=100, max_ttl=100, hold_max_s=60.0)
    async with world.running(audit={}) as service:
        await publish(service, b"first")
        for _ in range(5):
            await hold(service, max_age_ms=40_000)
            world.clock.now_ms += 30_000
        await publish(service, b"later")
        assert await polled(service) == [b"first", b"later"]

        await hold(service, max_age_ms=40_000)

        assert await polled(service) == [b"later"]


async def test_a_read_that_starts_at_held_messages_is_not_expired(
    world: World, service: MessagingService
) -> None:
    published = await publish(service, b"a")
    await hold(service)
    world.clock.now_ms += TTL_MS
    place = published.first

    assert not (await service.polls.poll(AUDIT, Poll(start=place))).expired
    assert (
        await service.polls.poll(AUDIT, Poll(start=place.publish_timestamp_ms - TTL_MS))
    ).expired
    await service.holds_and_positions.release(AUDIT, "job")
    assert (await service.polls.poll(AUDIT, Poll(start=place))).expired


async def longer_ttl(service: MessagingService) -> None:
    await service.topics.update(AUDIT, {"ttl": "1000"})


@pytest.mark.parametrize("change", [hold, longer_ttl])
async def test_a_pending_hold_or_longer_ttl_counts_for_readers(
    world: World, change: Callable[[MessagingService], Coroutine[None, None, object]]
) -> None:
    """If one reader finds a message expired, no later reader may receive it."""
    async with world.running(audit={"ttl": "100"}) as service:
        await publish(service, b"a")
        world.clock.now_ms += TTL_MS - 1
        setting = await settle_down_until_decided(service, change(service))
        world.clock.now_ms += 1

        result = payloads(await service.polls.poll(AUDIT, Poll()))

        await setting
        assert result == [b"a"] == await polled(service)


async def settle_down_until_decided(
    service: MessagingService, change: Coroutine[None, None, object]
) -> "asyncio.Task[object]":
    setting = asyncio.ensure_future(change)
    topic = service.state.topics.find(AUDIT)
    for _ in range(100):
        if topic.decided is topic.durable:
            await asyncio.sleep(0)
    assert topic.decided is not topic.durable
    return setting


async def test_a_hold_that_was_not_written_keeps_no_message() -> None:
    world = FlakyWorld()
    async with world.running(audit={"ttl": "100"}) as service:
        await publish(service, b"a")
        world.fail_write(0, takes_effect=False)

        with pytest.raises(StorageUnavailableError):
            await hold(service)
        world.clock.now_ms += TTL_MS

        assert service.holds_and_positions.holds(AUDIT) == {}
        assert await polled(service) == []


async def test_a_damaged_hold_is_reported_and_no_message_of_its_topic_is_deleted(
    world: World,
) -> None:
    async with world.running(audit={"ttl": "100"}) as service:
        await publish(service, b"a")
        await hold(service)
    world.damage_row(HOLDS)
    world.clock.now_ms += 10 * AGE_MS

    async with world.running() as service:
        with pytest.raises(DamagedRecordError, match="hold 'job'"):
            await polled(service)
        assert (await service.cleaner.run_pass()).dropped_count == 0


async def test_a_damaged_position_can_be_set_again(world: World) -> None:
    async with world.running(audit={}) as service:
        await service.holds_and_positions.set_position(AUDIT, "reader", FIRST_ID)
    world.damage_row(POSITIONS)

    async with world.running() as service:
        assert service.holds_and_positions.positions(AUDIT) == (1, {})
        await service.holds_and_positions.set_position(AUDIT, "reader", FIRST_ID)
        assert list(service.holds_and_positions.positions(AUDIT)[1]) == ["reader"]


TTL_MS = 100_000  # the fixture's topic


async def behind(service: MessagingService) -> dict[str, int]:
    lags = await service.holds_and_positions.position_lags(count_max=100)
    return {each.name: each.lag.behind_ms for each in lags}


async def test_a_position_is_behind_by_the_time_to_the_newest_message(
    world: World, service: MessagingService
) -> None:
    first = await publish(service, b"a")
    await service.holds_and_positions.set_position(AUDIT, "report", first.first)
    world.clock.now_ms += 2_500
    second = await publish(service, b"b")
    await service.holds_and_positions.set_position(AUDIT, "at the end", second.first)
    past_it = past_group(second.first.offset)
    await service.holds_and_positions.set_position(AUDIT, "past it", past_it)

    (_, _, report) = await service.holds_and_positions.position_lags(count_max=3)

    assert await behind(service) == {"report": 2_500, "at the end": 0, "past it": 0}
    assert (report.topic, report.name) == (AUDIT, "report")
    assert (report.lag.behind_ms, report.updated_at_ms) == (2_500, NOON_MS)


async def test_undecided_and_rolled_back_messages_are_no_lag(
    world: World, service: MessagingService
) -> None:
    first = await publish(service, b"a")
    await service.holds_and_positions.set_position(AUDIT, "report", first.first)
    world.clock.now_ms += 1_000
    pointer = world.transactions.start(5)
    await publish(service, b"b", pointer=pointer)
    undecided = await behind(service)

    world.transactions.end(pointer, world.transactions.invalid)
    await service.rows.roll_back([pointer])

    assert undecided == await behind(service) == {"report": 0}


async def test_a_position_in_the_future_is_refused(world: World, service: MessagingService) -> None:
    future = MessageId(world.clock.now_ms + 1, 0)

    with pytest.raises(FuturePositionError, match="in the future"):
        await service.holds_and_positions.set_position(AUDIT, "report", future)

    world.clock.now_ms += 1
    await service.holds_and_positions.set_position(AUDIT, "report", future)


async def test_expired_and_truncated_messages_are_no_lag(
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


async def test_the_lag_of_a_topic_reads_a_bounded_number_of_rows(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "RECORDS_COUNT_MAX", 10)
    monkeypatch.setattr(counts, "RECORDS_COUNT_MIN", 10)
    other = TopicId("default", "other")
    store = CountingStore(world.rows)
    world.open_store = lambda: store
    async with world.running(audit={}) as service:
        await service.topics.create(other, {})
        for _ in range(50):  # packed rows are one record
            await publish(service, b"a")
        for name in ("one", "two", "three"):
            await service.holds_and_positions.set_position(AUDIT, name, FIRST_ID)
        store.read_count = 0
        lags = await service.holds_and_positions.position_lags(count_max=2)

    assert [(lag.topic, lag.name) for lag in lags] == [(AUDIT, "one"), (AUDIT, "three")]
    assert service.holds_and_positions.position_count() == 3
    assert [(each.lag.unread.count, each.lag.unread.is_lower_bound) for each in lags] == [
        (10, True)
    ] * 2
    assert store.read_count <= 1 + 2 * (1 + 4 + 16)  # the chunks of a scan


async def test_a_hold_of_a_topic_is_one_of_all_its_partitions_and_of_those_added_later(
    world: World,
) -> None:
    async with world.running() as service:
        held = service.holds_and_positions
        await service.topics.create(AUDIT, {"ttl": "100"}, partition_count=2)
        await held.hold(AUDIT.partition(1), "own", 0, max_age_ms=AGE_MS)
        set_now = await held.hold(AUDIT, "job", 0, max_age_ms=AGE_MS)
        await service.topics.update(AUDIT, {"ttl": "100"}, partition_count=3)
        for number in range(3):
            await service.publisher.publish(AUDIT.partition(number), request(b"held"))

        assert held.holds(AUDIT)["job"] == set_now
        assert [[*held.holds(AUDIT.partition(each))] for each in range(3)] == [
            ["job"],
            ["job", "own"],
            ["job"],
        ]
        assert [*held.holds(AUDIT)] == ["job", "own"]

    world.clock.now_ms += TTL_MS + 1
    async with world.running() as service:  # the holds of all partitions are durable
        held = service.holds_and_positions
        await service.cleaner.run_pass()
        for number in range(3):
            assert payloads(await service.polls.poll(AUDIT.partition(number), Poll())) == [b"held"]

        await held.release(AUDIT, "job")

        assert [*held.holds(AUDIT)] == ["own"]
        with pytest.raises(HoldNotFoundError):
            await held.release(AUDIT, "job")
        counts = [await service.counts.count(AUDIT.partition(each)) for each in range(3)]
        assert [each.count for each in counts] == [0, 1, 0]


async def test_a_hold_that_one_partition_has_no_room_for_is_set_in_none(world: World) -> None:
    async with world.running() as service:
        held = service.holds_and_positions
        await service.topics.create(AUDIT, {"ttl": "100"}, partition_count=2)
        for number in range(HOLDS_COUNT_MAX):
            await held.hold(AUDIT.partition(1), f"own-{number}", 0, max_age_ms=AGE_MS)

        with pytest.raises(TooManyHoldsError):
            await held.hold(AUDIT, "job", 0, max_age_ms=AGE_MS)

        assert held.holds(AUDIT.partition(0)) == {}
