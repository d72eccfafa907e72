"""Messages of a prepared transaction that are set aside, and return when it commits (decision 0045,
section 2)."""

import asyncio
from dataclasses import replace

import pytest

from messaging.model.row_format import TOPICS
from messaging.read.poll import Poll, PollResult
from messaging.service import MessagingService
from tests.messaging.world import (
    AUDIT,
    COMMITTED,
    NOON_MS,
    CountingStore,
    FlakyWorld,
    World,
    payloads,
    polled,
    publish,
    request,
    settle_down,
)
from tuff.protocol.errors import StorageUnavailableError
from tuff.protocol.ids import MessageId
from tuff.protocol.requests import Delay, Isolation, PublishRequest

POINTER = NOON_MS * 1_000_000


async def commit(world: World, service: MessagingService) -> None:
    world.commit(service, POINTER)
    await settle_down(asyncio.sleep(0))
    await service.tick()


async def behind(service: MessagingService, last: PollResult) -> list[bytes]:
    start = MessageId.from_bytes(last.next_id)
    return await polled(service, replace(COMMITTED, start=start, inclusive=False))


async def test_readers_pass_them_and_receive_them_after_a_commit(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(POINTER)
    await publish(service, b"a", b"b", pointer=POINTER)
    await publish(service, b"c")
    held = await polled(service, COMMITTED)

    await service.rows.set_aside([POINTER])
    await service.rows.set_aside([POINTER])
    passed = await service.polls.poll(AUDIT, COMMITTED)

    assert (held, payloads(passed), passed.caught_up) == ([], [b"c"], True)
    assert service.rows.published_by(NOON_MS) == []

    await commit(world, service)
    assert await behind(service, passed) == [b"a", b"b"]
    assert await polled(service, COMMITTED) == [b"c", b"a", b"b"]
    assert service.rows.indexed_pointers() == []


async def test_an_abort_returns_none(world: World, service: MessagingService) -> None:
    world.transactions.start(POINTER)
    await publish(service, b"a", pointer=POINTER)
    await service.rows.set_aside([POINTER])

    await world.abort(service, POINTER)

    assert await polled(service, COMMITTED) == []
    assert not service.rows.is_carried(POINTER)


async def test_a_snapshot_from_before_the_commit_does_not_see_them(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(POINTER)
    await publish(service, b"a", pointer=POINTER)
    before = Poll(transaction=world.transactions.reader())
    await service.rows.set_aside([POINTER])
    await commit(world, service)

    assert await polled(service, before) == []
    assert await polled(service, COMMITTED) == [b"a"]


async def test_a_restart_keeps_them_aside_until_the_outcome_is_known(world: World) -> None:
    world.transactions.start(POINTER)
    async with world.running(audit={}) as service:
        await publish(service, b"a", pointer=POINTER)
        await service.rows.set_aside([POINTER])

    async with world.running() as service:
        assert service.rows.indexed_pointers() == [POINTER]
        assert service.rows.published_by(NOON_MS) == []
        assert await polled(service, COMMITTED) == []

        await commit(world, service)
        assert await polled(service, COMMITTED) == [b"a"]

    async with world.running() as service:
        assert service.rows.indexed_pointers() == []
        assert await polled(service, COMMITTED) == [b"a"]


async def test_stored_messages_return_and_delayed_ones_wait_undecided_as_before(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(POINTER)
    await service.publisher.store(AUDIT, request(b"stored", pointer=POINTER))
    await publish(service, pointer=POINTER)
    late = PublishRequest(POINTER, [b"late"], delays=[Delay(1000, is_time=False)])
    await service.publisher.publish(AUDIT, late)
    await service.rows.set_aside([POINTER])
    await commit(world, service)

    assert await polled(service, COMMITTED) == [b"stored"]
    await settle_down(asyncio.sleep(0))
    (waiting,) = await service.delayed.listed(AUDIT, count_max=10)
    assert waiting.row.payload == b"late"


async def test_what_expires_while_it_is_aside_does_not_return(
    world: World, service: MessagingService
) -> None:
    """A retention pass may have dropped the payloads already."""
    world.transactions.start(POINTER)
    await service.publisher.store(AUDIT, request(b"stored", pointer=POINTER))
    await publish(service, pointer=POINTER)
    await service.rows.set_aside([POINTER])
    world.clock.now_ms += 60_000
    await publish(service, b"later", pointer=POINTER)
    await service.rows.set_aside([POINTER])
    world.clock.now_ms += 60_000

    await commit(world, service)

    assert await polled(service, COMMITTED) == [b"later"]


async def test_a_topic_that_was_created_again_gets_none(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(POINTER)
    await publish(service, b"a", pointer=POINTER)
    await service.rows.set_aside([POINTER])
    await service.topics.delete(AUDIT)
    await service.topics.create(AUDIT, {})

    await commit(world, service)

    assert await polled(service) == []


async def test_a_commit_that_comes_before_they_are_aside_loses_none(world: World) -> None:
    gate = world.gate_writes()
    async with world.running(audit={}) as service:
        world.transactions.start(POINTER)
        await publish(service, b"a", pointer=POINTER)
        gate.clear()
        setting_aside = await settle_down(service.rows.set_aside([POINTER]))
        world.commit(service, POINTER)
        gate.set()
        await setting_aside
        await commit(world, service)

        assert await polled(service, COMMITTED) == [b"a"]


@pytest.mark.parametrize("takes_effect", [False, True])
@pytest.mark.parametrize("failing", range(2))
async def test_a_failed_write_loses_none(failing: int, takes_effect: bool) -> None:
    world = FlakyWorld()
    async with world.running(audit={}) as service:
        world.transactions.start(POINTER)
        await publish(service, b"a", pointer=POINTER)
        world.fail_write(failing, takes_effect=takes_effect)
        try:
            await service.rows.set_aside([POINTER])
        except StorageUnavailableError:
            assert failing == 0
        world.commit(service, POINTER)
        await settle_down(asyncio.sleep(0))
        await service.tick()
        await publish(service, b"b")

        assert sorted(await polled(service, COMMITTED)) == [b"a", b"b"]
        assert service.rows.indexed_pointers() == []


async def test_a_lost_write_keeps_the_order_of_the_first_publishes() -> None:
    world = FlakyWorld()
    later = POINTER + 1000 * 1_000_000
    async with world.running(audit={}) as service:
        for pointer in (POINTER, later):
            world.transactions.start(pointer)
            await publish(service, b"a", pointer=pointer)
            world.clock.now_ms += 1000
        world.fail_write(0, takes_effect=False)
        with pytest.raises(StorageUnavailableError):
            await service.rows.set_aside([POINTER])

        assert service.rows.published_by(NOON_MS) == [POINTER]


async def test_an_abort_marks_rows_that_a_lost_write_did_not_set_aside() -> None:
    world = FlakyWorld()
    gate = world.gate_writes()
    async with world.running(audit={}) as service:
        world.transactions.start(POINTER)
        await publish(service, b"a", pointer=POINTER)
        gate.clear()
        world.fail_write(0, takes_effect=False)
        setting_aside = await settle_down(service.rows.set_aside([POINTER]))
        aborting = await settle_down(world.abort(service, POINTER))
        gate.set()
        with pytest.raises(StorageUnavailableError):
            await setting_aside
        await aborting

        assert not service.rows.is_carried(POINTER)
        assert await polled(service, COMMITTED) == []


async def test_a_topic_whose_row_is_damaged_keeps_what_is_aside(world: World) -> None:
    world.transactions.start(POINTER)
    async with world.running(audit={}) as service:
        await publish(service, b"a", pointer=POINTER)
        await service.rows.set_aside([POINTER])
    before = dict(world.rows)
    world.damage_row(TOPICS)

    async with world.running() as service:
        await commit(world, service)
        assert service.rows.is_carried(POINTER)
    (key,) = [each for each in before if each.startswith(TOPICS)]
    world.rows[key] = before[key]

    async with world.running() as service:
        await commit(world, service)
        assert await polled(service, COMMITTED) == [b"a"]


async def test_the_end_of_a_topic_is_found_without_a_scan_from_what_is_aside() -> None:
    world = World()
    store = CountingStore(world.rows)
    world.open_store = lambda: store
    async with world.running(audit={}) as service:
        world.transactions.start(POINTER)
        await publish(service, b"a", pointer=POINTER)
        await service.rows.set_aside([POINTER])
        for _ in range(50):
            await publish(service, b"b")
        before = store.read_count

        assert (
            await service.offsets.offsets(AUDIT, isolation=Isolation.COMMITTED)
        ).blocked_by is None
        assert store.read_count - before < 10


async def test_what_was_rolled_back_before_does_not_return(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(POINTER)
    published = await publish(service, b"rolled back", b"too", pointer=POINTER)
    await publish(service, b"kept", pointer=POINTER)
    assert published.rollback is not None
    await service.publisher.rollback(AUDIT, published.rollback)
    await service.rows.set_aside([POINTER])

    await commit(world, service)

    assert await polled(service, COMMITTED) == [b"kept"]
