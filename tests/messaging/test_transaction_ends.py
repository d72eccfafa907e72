"""What the end of a transaction does to its rows and index rows (design §5, §6)."""

import asyncio

import pytest

from messaging.read.poll import Poll
from messaging.service import MessagingService
from tests.messaging.world import AUDIT, COMMITTED, NOON_MS, World, polled, publish, request
from tuff.protocol.errors import TransactionsUnavailableError


async def test_marked_rows_are_hidden_from_snapshots_and_carry_no_pointer(
    world: World, service: MessagingService
) -> None:
    pointers = [world.transactions.start(7), world.transactions.start(8)]
    await publish(service, b"a", b"b", pointer=7)
    await publish(service, b"c", pointer=8)
    await service.publisher.store(AUDIT, request(b"stored", pointer=8))

    await service.rows.roll_back(pointers)
    await service.rows.roll_back(pointers)
    for pointer in pointers:
        world.transactions.end(pointer, world.transactions.aborted)

    assert [service.rows.is_carried(pointer) for pointer in pointers] == [False, False]
    assert await polled(service, COMMITTED) == []
    assert await polled(service) == [b"a", b"b", b"c"]


async def test_a_large_publish_is_marked_whole(world: World, service: MessagingService) -> None:
    world.transactions.start(7)
    await publish(service, *[b"x"] * 25_000, pointer=7)

    await service.rows.roll_back([7])
    world.transactions.end(7, world.transactions.aborted)

    assert await polled(service, COMMITTED) == []
    assert not service.rows.is_carried(7)


async def test_a_mark_never_writes_a_deleted_row_again(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(7)
    await publish(service, b"x", pointer=7)
    world.clock.now_ms += 100_000
    await service.cleaner.run_pass()

    await service.rows.roll_back([7])

    assert [key for key in world.rows if key.startswith(b"m")] == []


async def test_the_index_survives_restarts_until_the_outcomes_are_known(world: World) -> None:
    world.transactions.start(7)
    world.transactions.start(8)
    async with world.running(audit={}) as service:
        await publish(service, b"x", pointer=7)
        await publish(service, b"y", pointer=8)
        await service.publisher.store(AUDIT, request(b"z", pointer=8))

    world.clock.now_ms += 5000
    async with world.running() as service:
        assert service.rows.indexed_pointers() == [7, 8]
        assert service.rows.topics([7, 8]) == ["default:audit"]
        assert service.rows.published_by(NOON_MS - 1) == []
        assert sorted(service.rows.published_by(NOON_MS)) == [7, 8]
        service.rows.end_committed([7])
        await service.rows.roll_back([8])
        assert service.rows.indexed_pointers() == []

    async with world.running() as service:
        assert service.rows.indexed_pointers() == []
    assert [key for key in world.rows if key.startswith(b"i")] == []


async def test_a_settled_pointer_is_carried_until_its_index_rows_are_deleted(
    world: World, service: MessagingService
) -> None:
    """If its outcome were forgotten before, a crash would leave its index rows without one."""
    world.transactions.start(7)
    await publish(service, b"x", pointer=7)

    service.rows.end_committed([7])
    assert service.rows.is_carried(7)
    assert service.rows.published_by(NOON_MS + 1_000) == []

    await service.tick()
    assert not service.rows.is_carried(7)


async def test_a_transaction_holds_readers_from_its_first_publish_on(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(7)
    await service.publisher.store(AUDIT, request(b"holds nobody", pointer=7))
    assert service.rows.published_by(NOON_MS + 1_000) == []

    world.clock.now_ms += 5
    await publish(service, b"x", pointer=7)
    world.clock.now_ms += 5
    await publish(service, b"y", pointer=7)

    assert service.rows.published_by(NOON_MS + 4) == []
    assert service.rows.published_by(NOON_MS + 5) == [7]


async def test_a_rollback_goes_in_steps_between_which_other_writes_have_their_turn(
    world: World, service: MessagingService
) -> None:
    """100,000 rows in one batch held up the publishes of all others for 1.5 s."""
    world.transactions.start(7)
    await publish(service, *[b"x"] * 15_000, pointer=7)
    batches = service.state.last_batch.batch_number

    rollback = asyncio.ensure_future(service.rows.roll_back([7]))
    await publish(service, b"of others")

    assert not rollback.done()
    await rollback
    assert service.state.last_batch.batch_number - batches >= 4
    assert not service.rows.is_carried(7)


async def test_a_small_rollback_does_not_wait_for_a_large_one(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(7)
    world.transactions.start(8)
    await publish(service, *[b"x"] * 15_000, pointer=7)
    await publish(service, b"y", pointer=8)

    large = asyncio.ensure_future(service.rows.roll_back([7]))
    await service.rows.roll_back([8])

    assert not large.done()
    await large


async def test_large_messages_are_rolled_back_in_steps_of_bytes(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(7)
    for _ in range(8):
        await publish(service, b"x" * 700_000, pointer=7)
    batches = service.state.last_batch.batch_number

    await service.rows.roll_back([7])

    assert service.state.last_batch.batch_number - batches >= 2
    assert not service.rows.is_carried(7)


async def test_a_reader_in_the_snapshot_of_an_ended_transaction_sees_no_part_of_a_publish(
    world: World, service: MessagingService
) -> None:
    pointer = world.transactions.start(7)
    own = Poll(transaction=await world.transactions.snapshot_of(pointer))
    await publish(service, *[b"x"] * 9_500, pointer=pointer)
    assert len(await polled(service, own)) == 9_500

    rollback = asyncio.ensure_future(service.rows.roll_back([pointer]))
    world.transactions.end(pointer, world.transactions.invalid)
    counts = []
    while not rollback.done():
        counts.append(len(await polled(service, own)))
        await asyncio.sleep(0)

    assert {*counts, len(await polled(service, own))} == {0}
    await rollback


async def test_a_snapshot_of_the_request_needs_no_transactions_unless_rows_may_be_missing(
    world: World,
) -> None:
    pointer = world.transactions.start(7)
    own = Poll(transaction=await world.transactions.snapshot_of(pointer))
    async with world.running(audit={}) as service:
        await publish(service, *[b"x"] * 9_500, pointer=pointer)
        world.transactions.is_up = False
        assert len(await polled(service, own)) == 9_500

        rollback = asyncio.ensure_future(service.rows.roll_back([pointer]))
        await asyncio.sleep(0)
        with pytest.raises(TransactionsUnavailableError):
            await polled(service, own)
        await rollback
        assert await polled(service, own) == []

        world.transactions.is_up = True
        await publish(service, b"left", pointer=world.transactions.start(8))
    own = Poll(transaction=await world.transactions.snapshot_of(8))
    world.transactions.is_up = False
    async with world.running() as service:
        with pytest.raises(TransactionsUnavailableError):
            await polled(service, own)
