"""The sweep: what it removes, and what it never touches (design §5, Retention)."""

from messaging.polls import Isolation, Poll
from messaging.service import MessagingService
from tests.messaging.world import AUDIT, NOON_MS, World, polled, publish, request


def data_rows(world: World) -> int:
    return sum(key[:1] in (b"m", b"p") for key in world.rows)


async def test_expired_rows_go_and_the_floor_with_them(
    world: World, service: MessagingService
) -> None:
    await publish(service, b"old")
    await publish(service, b"shorter", ttl_s=10)
    world.clock.now_ms += 50_000
    await publish(service, b"young")
    assert (await service.sweep()).dropped_count == 1
    world.clock.now_ms += 50_000

    report = await service.sweep()

    assert report.dropped_count == 1
    assert data_rows(world) == 1
    world.clock.now_ms -= 60_000  # a clock that is corrected shows no hole
    assert await polled(service) == [b"young"]


async def test_rows_of_every_older_generation_go(world: World, service: MessagingService) -> None:
    """The ancestor swept the first generation only."""
    world.transactions.start(7)
    for _ in range(3):
        await publish(service, b"x")
        await service.store(AUDIT, request(b"y", pointer=7))
        await service.delete_topic(AUDIT)
        await service.create_topic(AUDIT, {"ttl": "100"})
    await publish(service, b"kept")

    report = await service.sweep()

    assert report.dropped_count == 6
    assert await polled(service) == [b"kept"]
    await service.delete_topic(AUDIT)
    assert (await service.sweep()).dropped_count == 1
    assert data_rows(world) == 0


async def test_nothing_is_deleted_while_the_clock_is_in_doubt(
    world: World, service: MessagingService
) -> None:
    await publish(service, b"kept")
    world.may_delete = False
    world.clock.now_ms += 10_000_000

    report = await service.sweep()

    assert report.dropped_count == 0
    world.clock.now_ms = NOON_MS
    assert await polled(service) == [b"kept"]


async def test_payloads_stay_while_in_progress_and_until_no_late_publish_can_need_them(
    world: World, service: MessagingService
) -> None:
    pointer = world.transactions.start(7)
    await service.store(AUDIT, request(b"stored", pointer=pointer))
    world.clock.now_ms += 5_000_000
    await service.sweep()
    await publish(service, pointer=pointer)
    assert await polled(service) == [b"stored"]

    world.transactions.end(pointer, world.transactions.committed)
    service.settle([pointer])
    await service.tick()
    world.clock.now_ms = NOON_MS + (100 + 100) * 1000 - 1
    await service.sweep()
    assert data_rows(world) == 2

    world.clock.now_ms = NOON_MS + 5_100_000
    await service.sweep()
    assert data_rows(world) == 0


async def test_payloads_in_progress_stay_while_transactions_are_down(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(7)
    await service.store(AUDIT, request(b"stored", pointer=7))
    world.transactions.is_up = False
    world.clock.now_ms += 5_000_000

    await service.sweep()

    assert data_rows(world) == 1


async def test_the_longest_transaction_ever_configured_counts(world: World) -> None:
    world.longest_transaction_s = 1000
    world.transactions.start(7)
    async with world.running() as service:
        await service.create_topic(AUDIT, {"ttl": "100"})
        await service.store(AUDIT, request(b"stored", pointer=7))
        world.transactions.end(7, world.transactions.committed)
        service.settle([7])
        await service.tick()

    world.longest_transaction_s = 1
    world.clock.now_ms += 1_099_999
    async with world.running() as service:
        await service.sweep()
        assert data_rows(world) == 1
        world.clock.now_ms += 1
        await service.sweep()
        assert data_rows(world) == 0


async def test_rows_of_invalid_transactions_are_inverted_and_carry_nothing_then(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(7)
    world.transactions.start(8)
    await publish(service, b"invalid", pointer=7)
    await publish(service, b"undecided", pointer=8)
    world.transactions.end(7, world.transactions.invalid)

    report = await service.sweep()

    assert report.carried == {8}
    assert report.source == "snapshot.1"
    assert service.last_sweep == (NOON_MS, "snapshot.1")
    world.transactions.invalid.clear()  # truncated
    held = await service.poll(AUDIT, Poll(isolation=Isolation.COMMITTED))
    assert (held.items, held.blocked_by) == ([], 8)
    assert await polled(service) == [b"invalid", b"undecided"]


async def test_the_patrol_inverts_rows_that_the_index_lost(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(7)
    await publish(service, b"x", pointer=7)
    service.settle([7])
    await service.tick()
    world.transactions.end(7, world.transactions.invalid)

    assert (await service.sweep()).inverted_count == 1
    assert (await service.sweep()).inverted_count == 0


async def test_damaged_rows_are_counted_and_kept(world: World, service: MessagingService) -> None:
    await publish(service, b"x")
    key = next(key for key in world.rows if key.startswith(b"m"))
    world.rows[key] = world.rows[key][:-1] + b"?"
    world.clock.now_ms += 1_000_000

    report = await service.sweep()

    assert (report.damaged_count > 0, report.dropped_count) == (True, 0)
    assert key in world.rows


async def test_a_sweep_survives_a_restart(world: World) -> None:
    async with world.running() as service:
        await service.create_topic(AUDIT, {"ttl": "100"})
        await service.sweep()
    async with world.running() as service:
        assert service.last_sweep == (NOON_MS, "snapshot.1")


async def test_sweeps_work_in_bounded_pieces(world: World, service: MessagingService) -> None:
    await publish(service, *[b"x"] * 25_000)
    world.clock.now_ms += 100_000

    assert (await service.sweep()).dropped_count == 25_000
    assert data_rows(world) == 0
