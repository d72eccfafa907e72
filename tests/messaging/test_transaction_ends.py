"""What endings do to rows, and what survives a restart (design §5, §6)."""

import pytest

from messaging.read.poll import Poll
from messaging.service import MessagingService
from tests.messaging.world import (
    AUDIT,
    COMMITTED,
    NOON_MS,
    World,
    payloads,
    polled,
    publish,
    request,
    settle_down,
)
from tuff.protocol.errors import TransactionCommittedError
from tuff.protocol.ids import TopicId
from tuff.protocol.requests import Isolation


async def test_marked_rows_are_hidden_from_snapshots_and_carry_no_pointer(
    world: World, service: MessagingService
) -> None:
    pointers = [world.transactions.start(7), world.transactions.start(8)]
    await publish(service, b"a", b"b", pointer=7)
    await publish(service, b"c", pointer=8)
    await service.publisher.store(AUDIT, request(b"stored", pointer=8))

    await service.rows.mark_rolled_back(pointers)
    await service.rows.mark_rolled_back(pointers)
    for pointer in pointers:
        world.transactions.end(pointer, world.transactions.aborted)

    assert [service.rows.is_carried(pointer) for pointer in pointers] == [False, False]
    assert await polled(service, COMMITTED) == []
    assert await polled(service) == [b"a", b"b", b"c"]


async def test_a_large_publish_is_marked_whole(world: World, service: MessagingService) -> None:
    world.transactions.start(7)
    await publish(service, *[b"x"] * 25_000, pointer=7)

    await service.rows.mark_rolled_back([7])
    world.transactions.end(7, world.transactions.aborted)

    assert await polled(service, COMMITTED) == []
    assert not service.rows.is_carried(7)


async def test_marking_never_writes_a_row_again_that_is_gone(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(7)
    await publish(service, b"x", pointer=7)
    world.clock.now_ms += 100_000
    await service.cleaner.run_pass()

    await service.rows.mark_rolled_back([7])

    assert [key for key in world.rows if key.startswith(b"m")] == []


async def test_the_index_survives_a_restart_until_the_outcome_is_told(world: World) -> None:
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
        service.rows.settle([7])
        await service.rows.mark_rolled_back([8])
        assert service.rows.indexed_pointers() == []

    async with world.running() as service:
        assert service.rows.indexed_pointers() == []
    assert [key for key in world.rows if key.startswith(b"i")] == []


async def test_a_settled_pointer_is_carried_until_its_index_rows_are_gone_from_disk(
    world: World, service: MessagingService
) -> None:
    """Were its outcome forgotten before, a crash would leave a pointer that nobody knows."""
    world.transactions.start(7)
    await publish(service, b"x", pointer=7)

    service.rows.settle([7])
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


async def test_a_held_reader_wakes_when_the_transaction_ends(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(7)
    await publish(service, b"x", pointer=7)
    poll = Poll(isolation=Isolation.COMMITTED, wait_s=60)
    waiting = await settle_down(service.polls.poll(AUDIT, poll))

    world.commit(service, 7)
    service.rows.wake_readers([7])

    assert payloads(await waiting) == [b"x"]


async def test_a_held_reader_goes_on_when_the_rows_are_marked(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(7)
    await publish(service, b"gone", pointer=7)
    await publish(service, b"next")
    poll = Poll(isolation=Isolation.COMMITTED, wait_s=60)
    waiting = await settle_down(service.polls.poll(AUDIT, poll))

    await world.abort(service, 7)
    service.rows.wake_readers([7])

    assert payloads(await waiting) == [b"next"]


async def test_waiting_ends_at_once_when_a_fixed_snapshot_is_held_by_what_has_ended(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(7)
    reader = world.transactions.snapshot()
    await publish(service, b"x", pointer=7)
    waiting = await settle_down(service.polls.poll(AUDIT, Poll(transaction=reader, wait_s=60)))
    assert not waiting.done()

    world.commit(service, 7)
    service.rows.wake_readers([7])

    result = await waiting
    assert (payloads(result), result.caught_up, result.blocked_by) == ([], False, None)


async def test_waiting_in_a_transaction_ends_when_that_ends(
    world: World, service: MessagingService
) -> None:
    for pointer in (7, 8):
        world.transactions.start(pointer)
    inside = await settle_down(service.polls.poll(AUDIT, Poll(tx=7, wait_s=60)))
    beside = await settle_down(service.polls.poll(AUDIT, Poll(tx=8, wait_s=60)))
    assert sorted(service.rows.reading_pointers()) == [7, 8]

    world.transactions.end(7, world.transactions.committed)
    service.rows.wake_readers([7])

    with pytest.raises(TransactionCommittedError):
        await inside
    assert not beside.done()
    assert sorted(service.rows.reading_pointers()) == [8]
    await publish(service, b"x")
    assert payloads(await beside) == [b"x"]


async def test_a_fixed_snapshot_held_by_an_abort_waits_for_the_marking(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(7)
    reader = world.transactions.snapshot()
    await publish(service, b"gone", pointer=7)
    await publish(service, b"next")
    waiting = await settle_down(service.polls.poll(AUDIT, Poll(transaction=reader, wait_s=60)))

    world.transactions.end(7, world.transactions.invalid)
    service.rows.wake_readers([7])
    await settle_down(service.tick())
    assert not waiting.done()
    await service.rows.mark_rolled_back([7])

    assert payloads(await waiting) == [b"next"]


async def test_facts_of_the_transaction_files_survive(world: World) -> None:
    def recorded(service: MessagingService) -> tuple[str | None, int, int | None]:
        facts = service.recorded_metadata()
        assert facts is not None
        return facts.store_id, facts.highest_pointer, service.recorded_lsn()

    async with world.running() as service:
        assert (service.recorded_metadata(), service.recorded_lsn()) == (None, None)
        service.rows.note_reserved(500)
        await service.record_store_id("ab12")
        service.rows.note_reserved(900)
        service.rows.note_reserved(700)
        service.rows.note_durable(12)
        assert recorded(service) == ("ab12", 500, None)
        await service.tick()
        assert recorded(service) == ("ab12", 900, 12)

    async with world.running() as service:
        assert recorded(service) == ("ab12", 900, 12)


async def test_the_clock_mark_is_kept_by_an_idle_server_and_not_by_a_doubtful_clock(
    world: World,
) -> None:
    async with world.running() as service:
        assert service.state.recovered_clock_ms is None
        world.clock.now_ms += 60_000
        await service.tick()

    world.may_delete = False
    world.clock.now_ms += 10_000_000
    async with world.running() as service:
        assert service.state.recovered_clock_ms == NOON_MS + 60_000
        await service.topics.create(TopicId("a", "b"), {})

    async with world.running() as service:
        assert service.state.recovered_clock_ms == NOON_MS + 60_000
