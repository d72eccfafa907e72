"""Delayed messages enter their topic when they are due, once, in order, and only if their
transaction commits (protocol §3.10; decision 0043, section 5)."""

import asyncio
import logging
import tracemalloc
from collections.abc import AsyncIterator, Sequence

import pytest

from messaging.log.delayed_due_times import Due, DueTimes
from messaging.model.row_format import DELAYED, INDEX, MESSAGES, prefix_of, topic_key
from messaging.read.poll import Poll
from messaging.service import MessagingService
from messaging.write import delayed_messages
from messaging.write.delayed_messages import ENTERED_COUNT_MAX, RETRY_MS
from messaging.write.publish import Published
from tests.messaging.world import (
    AUDIT,
    COMMITTED,
    NOON_MS,
    FlakyWorld,
    World,
    payloads,
    polled,
    publish,
    publish_final,
    settle_down,
)
from tuff.protocol.errors import (
    DamagedRecordError,
    DelayedNotFoundError,
    InvalidDelayError,
    InvalidTtlError,
    ShuttingDownError,
    StorageUnavailableError,
    TopicNotFoundError,
)
from tuff.protocol.ids import DelayedId, MessageId, Offset
from tuff.protocol.requests import (
    DELAY_MS_MAX,
    Delay,
    PublishEntry,
    PublishRequest,
    RollbackDetail,
)

POINTER = 7
YEAR_MS = 365 * 86_400_000


@pytest.fixture
async def service(world: World) -> AsyncIterator[MessagingService]:
    async with world.running(audit={"ttl": "100"}) as running:
        yield running


def after(ms: int) -> Delay:
    return Delay(ms, is_time=False)


async def delayed(
    service: MessagingService,
    *texts: bytes,
    delays: Sequence[Delay],
    pointer: int | None = None,
    ttl_s: int | None = None,
) -> Published:
    delays = list(delays) * len(texts) if len(delays) == 1 else delays
    ttls_s = None if ttl_s is None else [ttl_s] * len(texts)
    request = PublishRequest(pointer=pointer, payloads=texts, ttls_s=ttls_s, delays=delays)
    return await service.publisher.publish(AUDIT, request)


async def looked(service: MessagingService) -> None:
    """Let the service look at all topics whose time has come, as its tick does."""
    service.state.due_times.changed.set()
    for _ in range(100):
        await asyncio.sleep(0)


async def advance(world: World, service: MessagingService, ms: int) -> None:
    world.clock.now_ms += ms
    await looked(service)


async def waiting(service: MessagingService) -> list[bytes]:
    found = await service.delayed.listed(AUDIT, count_max=1000)
    return [each.row.payload for each in found]


def rows_of(world: World, table: bytes) -> list[bytes]:
    return [key for key in world.rows if key.startswith(table)]


async def test_a_message_enters_at_its_millisecond_and_not_before(
    world: World, service: MessagingService
) -> None:
    await delayed(service, b"x", delays=[after(1500)])

    await advance(world, service, 1499)
    assert (await polled(service), await waiting(service)) == ([], [b"x"])

    await advance(world, service, 1)
    assert (await polled(service), await waiting(service)) == ([b"x"], [])
    assert rows_of(world, DELAYED) == []


async def test_its_id_and_its_time_to_live_begin_when_it_enters(
    world: World, service: MessagingService
) -> None:
    await delayed(service, b"x", delays=[after(50_000)], ttl_s=10)
    await publish(service, b"between")
    await advance(world, service, 50_000)

    result = await service.polls.poll(AUDIT, Poll())
    assert payloads(result) == [b"between", b"x"]
    assert MessageId.from_bytes(result.items[1][0]).publish_timestamp_ms == NOON_MS + 50_000
    await advance(world, service, 9_999)
    assert await polled(service) == [b"between", b"x"]
    await advance(world, service, 1)
    assert await polled(service) == [b"between"]


async def test_messages_enter_in_the_order_of_due_time_and_then_of_arrival(
    world: World, service: MessagingService
) -> None:
    await delayed(service, b"b1", b"c", b"a", delays=[after(20), after(30), after(10)])
    await delayed(service, b"b2", delays=[after(20)])

    await advance(world, service, 40)

    assert await polled(service) == [b"a", b"b1", b"b2", b"c"]


async def test_a_time_in_the_past_is_due_at_once(world: World, service: MessagingService) -> None:
    await delayed(service, b"x", delays=[Delay(5, is_time=True)])
    await looked(service)
    assert await polled(service) == [b"x"]


async def test_a_long_poll_wakes_when_a_message_enters(
    world: World, service: MessagingService
) -> None:
    await delayed(service, b"x", delays=[after(10)])
    poll = await settle_down(service.polls.poll(AUDIT, Poll(wait_s=60.0)))
    assert not poll.done()

    await advance(world, service, 10)

    assert payloads(await poll) == [b"x"]


async def test_the_loop_wakes_by_itself_when_a_message_is_due(
    world: World, service: MessagingService
) -> None:
    await delayed(service, b"x", delays=[after(20)])
    poll = await settle_down(service.polls.poll(AUDIT, Poll(wait_s=10.0)))
    world.clock.now_ms += 20  # the alarm is set for 20 ms of real time

    assert payloads(await poll) == [b"x"]


async def test_more_messages_than_a_batch_enter_at_once(
    world: World, service: MessagingService
) -> None:
    texts = [b"%d" % number for number in range(2 * ENTERED_COUNT_MAX + 1)]
    await delayed(service, *texts, delays=[after(1)])
    world.observed.clear()
    await advance(world, service, 1)
    assert await polled(service) == texts
    assert [name for name, _ in world.observed].count("store_batch_requests") == 3
    assert service.delayed.entered_count == len(texts)


async def test_a_restart_enters_what_became_due_meanwhile(world: World) -> None:
    async with world.running(audit={"ttl": "100"}) as service:
        await delayed(service, b"late", b"later", b"not yet", delays=[
            after(100), after(200), after(10_000)
        ])  # fmt: skip
    world.clock.now_ms += 5_000

    async with world.running() as service:
        await looked(service)
        assert await polled(service) == [b"late", b"later"]
        assert await waiting(service) == [b"not yet"]
        await advance(world, service, 5_000)
        assert await polled(service) == [b"late", b"later", b"not yet"]


async def test_times_of_earlier_looks_take_no_memory() -> None:
    """While one message waited for days, each look for others left a time behind."""
    times = DueTimes()
    times.note(AUDIT, 1_000_000)
    for now_ms in range(10_000):
        times.note(AUDIT, now_ms)
        assert times.take(now_ms=now_ms) == AUDIT
        times.note(AUDIT, 1_000_000)
        if now_ms == 100:
            tracemalloc.start()

    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held_bytes < 100_000
    assert times.next_ms() == 1_000_000
    assert times.take(now_ms=1_000_000) == AUDIT
    assert times.next_ms() is None


async def test_a_start_reads_one_row_of_each_topic(world: World) -> None:
    async with world.running(audit={"ttl": "100"}) as service:
        await delayed(service, *[b"x"] * 500, delays=[after(1_000)])
        await delayed(service, b"first", delays=[after(10)])
    async with world.running() as service:
        assert service.state.due_times.next_ms() == NOON_MS + 10


async def test_a_start_does_not_look_for_messages_of_deleted_generations(world: World) -> None:
    async with world.running(audit={"ttl": "100"}) as service:
        await delayed(service, b"old", delays=[after(1_000)])
        await service.topics.delete(AUDIT)
        await service.topics.create(AUDIT, {"ttl": "100"})
    async with world.running() as service:
        assert service.state.due_times.next_ms() is None


async def test_a_tick_looks_for_what_became_due_while_timers_stood_still(
    world: World, service: MessagingService
) -> None:
    await delayed(service, b"x", delays=[after(1_000_000)])
    world.clock.now_ms += 1_000_000
    await settle_down(service.tick())
    for _ in range(100):
        await asyncio.sleep(0)
    assert await polled(service) == [b"x"]


async def test_a_large_transaction_enters_in_several_batches(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(POINTER)
    texts = [b"%d" % number for number in range(2 * ENTERED_COUNT_MAX + 1)]
    await delayed(service, *texts, delays=[after(1)], pointer=POINTER)
    world.commit(service, POINTER)
    service.rows.wake_readers([POINTER])
    await advance(world, service, 1)
    await looked(service)
    assert await polled(service) == texts


async def test_a_message_of_a_transaction_enters_once_it_has_committed(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(POINTER)
    await delayed(service, b"x", b"y", delays=[after(10)], pointer=POINTER)
    await advance(world, service, 50)
    assert (await polled(service), await waiting(service)) == ([], [])

    world.commit(service, POINTER)
    service.rows.wake_readers([POINTER])
    await looked(service)

    assert await polled(service) == [b"x", b"y"]
    assert rows_of(world, DELAYED) == []


async def test_a_committed_message_waits_until_it_is_due(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(POINTER)
    published = await delayed(service, b"x", delays=[after(100)], pointer=POINTER)
    world.commit(service, POINTER)
    service.rows.wake_readers([POINTER])
    await looked(service)

    (found,) = await service.delayed.listed(AUDIT, count_max=10)
    assert published.delayed is not None
    assert (found.id, found.row.payload) == (published.delayed.first, b"x")
    assert await polled(service) == []
    await advance(world, service, 100)
    assert await polled(service) == [b"x"]


async def test_a_commit_can_bring_delayed_messages(world: World, service: MessagingService) -> None:
    world.transactions.start(POINTER)
    entry = PublishEntry(topic=AUDIT, payloads=[b"x"], pointer=POINTER, delays=[after(10)])
    (detail,) = await publish_final(service, [entry])
    assert service.rows.final_pointers() == {POINTER}
    world.commit(service, POINTER)
    service.rows.wake_readers([POINTER])
    await advance(world, service, 10)

    assert detail.pointer == POINTER
    assert await polled(service) == [b"x"]


async def test_a_message_does_not_wait_for_transactions_that_began_before_its_own(
    world: World, service: MessagingService
) -> None:
    """It waited up to `max_block` for any open transaction with a delayed message to its topic."""
    world.transactions.start(POINTER)
    await delayed(service, b"open", delays=[after(10)], pointer=POINTER)
    world.transactions.start(8)
    await delayed(service, b"committed", delays=[after(10)], pointer=8)
    world.commit(service, 8)
    await looked(service)

    await advance(world, service, 10)

    assert await polled(service) == [b"committed"]


async def test_each_message_of_a_transaction_enters_at_its_millisecond_in_any_order_of_delays(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(POINTER)
    delays = [after(300), after(100), after(200)]
    await delayed(service, b"300", b"100", b"200", delays=delays, pointer=POINTER)
    world.commit(service, POINTER)
    await looked(service)

    entered = []
    for _ in range(3):
        await advance(world, service, 99)
        assert await polled(service) == entered
        await advance(world, service, 1)
        entered.append(b"%d" % (world.clock.now_ms - NOON_MS))
        assert await polled(service) == entered


async def test_a_transaction_blocks_no_reader_while_its_messages_are_delayed(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(POINTER)
    await delayed(service, b"x", delays=[after(10)], pointer=POINTER)
    await publish(service, b"plain")

    assert await polled(service, COMMITTED) == [b"plain"]
    assert service.rows.published_by(NOON_MS) == []
    assert service.rows.topics([POINTER]) == ["default:audit"]
    (carried,) = service.rows.carried()
    assert (carried.topics, carried.first_publish_ms) == ({AUDIT}, None)
    assert not service.rows.has_ended_in(POINTER, AUDIT)


async def test_a_message_enters_while_the_transaction_service_is_down(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(POINTER)
    await delayed(service, b"x", delays=[after(10)], pointer=POINTER)
    world.commit(service, POINTER)
    world.transactions.is_up = False
    await advance(world, service, 10)
    assert await polled(service) == [b"x"]


async def test_a_start_finishes_a_commit_whose_messages_a_crash_kept_undecided(
    world: World,
) -> None:
    async with world.running(audit={"ttl": "100"}) as service:
        world.transactions.start(POINTER)
        await delayed(service, b"x", delays=[after(10)], pointer=POINTER)
    world.transactions.end(POINTER, world.transactions.committed)
    world.clock.now_ms += 10
    async with world.running() as service:
        assert service.rows.indexed_pointers() == [POINTER]
        service.rows.end_committed([POINTER])
        await looked(service)
        assert await polled(service) == [b"x"]
        assert service.rows.indexed_pointers() == []
    async with world.running() as service:
        await looked(service)
        assert await polled(service) == [b"x"]
        assert rows_of(world, INDEX) + rows_of(world, DELAYED) == []


@pytest.mark.parametrize("takes_effect", [True, False])
async def test_a_failed_write_of_a_commit_neither_loses_nor_repeats_a_message(
    *, takes_effect: bool
) -> None:
    world = FlakyWorld()
    async with world.running(audit={"ttl": "100"}) as service:
        world.transactions.start(POINTER)
        await delayed(service, b"x", delays=[after(10)], pointer=POINTER)
        world.fail_write(0, takes_effect=takes_effect)
        world.commit(service, POINTER)
        await advance(world, service, 10)
        await service.tick()
        await looked(service)
        assert await polled(service) == [b"x"]
        assert await waiting(service) == []
        assert not service.rows.is_carried(POINTER)


async def test_a_commit_that_is_settled_twice_delays_its_messages_once(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(POINTER)
    await delayed(service, b"x", delays=[after(10)], pointer=POINTER)
    world.commit(service, POINTER)
    service.rows.end_committed([POINTER])
    await advance(world, service, 10)
    await service.tick()
    await advance(world, service, 10)
    assert await polled(service) == [b"x"]
    assert not service.rows.is_carried(POINTER)


async def test_a_message_can_be_cancelled_from_its_commit_on(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(POINTER)
    published = await delayed(service, b"x", delays=[after(10)], pointer=POINTER)
    assert published.delayed is not None
    with pytest.raises(DelayedNotFoundError):
        await service.delayed.cancel(AUDIT, published.delayed.first)

    world.commit(service, POINTER)
    await looked(service)
    await service.delayed.cancel(AUDIT, published.delayed.first)

    await advance(world, service, 10)
    assert await polled(service) == []


async def test_a_damaged_row_of_a_commit_is_reported_and_the_others_enter(
    world: World, service: MessagingService, caplog: pytest.LogCaptureFixture
) -> None:
    world.transactions.start(POINTER)
    await delayed(service, b"x", b"y", delays=[after(10)], pointer=POINTER)
    key = world.damage_row(DELAYED)

    world.commit(service, POINTER)
    await advance(world, service, 10)

    assert await polled(service) == [b"y"]
    assert [each for each in caplog.messages if key.hex() in each and "salvage" in each]
    assert rows_of(world, DELAYED) == [key]


async def test_a_topic_whose_row_is_damaged_keeps_the_messages_of_a_commit(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.running(audit={"ttl": "100"}) as service:
        world.transactions.start(POINTER)
        await delayed(service, b"x", delays=[after(10)], pointer=POINTER)
    key = topic_key(AUDIT)
    before, world.rows[key] = world.rows[key], world.rows[key][:-1] + b"?"
    async with world.running() as service:
        world.commit(service, POINTER)
        for _ in range(3):
            await service.tick()
        assert len([each for each in caplog.messages if "committed transaction 7" in each]) == 1
    world.rows[key] = before
    async with world.running() as service:
        service.rows.end_committed([POINTER])
        await advance(world, service, 10)
        assert await polled(service) == [b"x"]


@pytest.mark.parametrize("is_committed", [True, False])
async def test_the_end_of_a_transaction_leaves_no_undecided_row(
    world: World, service: MessagingService, *, is_committed: bool
) -> None:
    world.transactions.start(POINTER)
    await delayed(service, b"x", b"y", delays=[after(10)], pointer=POINTER)
    assert len(rows_of(world, DELAYED)) == 2
    if is_committed:
        world.commit(service, POINTER)
    else:
        await world.abort(service, POINTER)
    await looked(service)

    assert await waiting(service) == ([b"x", b"y"] if is_committed else [])
    assert len(rows_of(world, DELAYED)) == (2 if is_committed else 0)
    assert rows_of(world, INDEX) == []
    assert rows_of(world, MESSAGES) == []


async def test_messages_of_an_aborted_transaction_never_enter(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(POINTER)
    await delayed(service, b"aborted", delays=[after(10)], pointer=POINTER)
    await world.abort(service, POINTER)
    service.rows.wake_readers([POINTER])
    world.transactions.start(8)
    await delayed(service, b"committed", delays=[after(10)], pointer=8)
    world.commit(service, 8)
    service.rows.wake_readers([8])

    await advance(world, service, 1_000)

    assert await polled(service) == [b"committed"]


async def test_messages_of_an_invalid_transaction_never_enter(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(POINTER)
    await delayed(service, b"x", delays=[after(10)], pointer=POINTER)
    world.transactions.end(POINTER, world.transactions.invalid)
    service.rows.wake_readers([POINTER])
    await advance(world, service, 1_000)
    assert (await polled(service), await waiting(service)) == ([], [])


async def test_a_publish_that_was_rolled_back_never_enters(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(POINTER)
    gone = await delayed(service, b"gone", delays=[after(10)], pointer=POINTER)
    await delayed(service, b"kept", delays=[after(10)], pointer=POINTER)
    await publish(service, b"also kept", pointer=POINTER)
    assert isinstance(gone.rollback, RollbackDetail)

    await service.publisher.rollback(AUDIT, gone.rollback)
    world.commit(service, POINTER)
    service.rows.wake_readers([POINTER])
    await advance(world, service, 10)

    assert await polled(service, COMMITTED) == [b"also kept", b"kept"]


async def test_retention_keeps_what_waits_however_long(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(POINTER)
    await delayed(service, b"undecided", delays=[after(10)], pointer=POINTER)
    await delayed(service, b"waits", delays=[after(2_000_000)])
    world.clock.now_ms += 1_000_000
    await service.cleaner.run_pass()
    assert await waiting(service) == [b"waits"]
    assert len(rows_of(world, DELAYED)) == 2


async def test_a_cancelled_message_never_enters(world: World, service: MessagingService) -> None:
    published = await delayed(service, b"x", b"y", delays=[after(10)])
    assert published.delayed is not None

    await service.delayed.cancel(AUDIT, published.delayed.first)

    assert await waiting(service) == [b"y"]
    with pytest.raises(DelayedNotFoundError):
        await service.delayed.cancel(AUDIT, published.delayed.first)
    await advance(world, service, 10)
    assert await polled(service) == [b"y"]
    with pytest.raises(DelayedNotFoundError):
        await service.delayed.cancel(AUDIT, published.delayed.last)


async def test_what_waits_behind_a_cancelled_message_enters_in_time(
    world: World, service: MessagingService
) -> None:
    """The look that cancelled it looked at no other, and forgot the time of the next one."""
    cancelled = await delayed(service, b"a", delays=[after(1_000)])
    await delayed(service, b"b", delays=[after(2_000)])

    assert cancelled.delayed is not None
    await service.delayed.cancel(AUDIT, cancelled.delayed.first)
    await advance(world, service, 2_000)

    assert await polled(service) == [b"b"]


async def test_of_two_calls_at_once_one_cancels(world: World, service: MessagingService) -> None:
    published = await delayed(service, b"x", delays=[after(10)])
    assert published.delayed is not None
    calls = [service.delayed.cancel(AUDIT, published.delayed.first) for _ in range(2)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert sorted(type(each).__name__ for each in results) == ["DelayedNotFoundError", "NoneType"]


async def test_a_message_is_either_cancelled_or_enters(world: World) -> None:
    gate = world.gate_writes()
    async with world.running(audit={"ttl": "100"}) as service:
        published = await delayed(service, b"x", delays=[after(10)])
        assert published.delayed is not None
        gate.clear()
        world.clock.now_ms += 10
        service.state.due_times.changed.set()
        cancel = await settle_down(service.delayed.cancel(AUDIT, published.delayed.first))
        gate.set()
        with pytest.raises(DelayedNotFoundError):
            await cancel
        assert await polled(service) == [b"x"]


async def test_a_stop_refuses_a_cancel_that_waits(world: World) -> None:
    async with world.running(audit={"ttl": "100"}) as service:
        published = await delayed(service, b"x", delays=[after(10)])
        assert published.delayed is not None
        cancel = asyncio.ensure_future(service.delayed.cancel(AUDIT, published.delayed.first))
        await asyncio.sleep(0)
        service.delayed.close()
        with pytest.raises(ShuttingDownError):
            await cancel
        with pytest.raises(ShuttingDownError):
            await service.delayed.cancel(AUDIT, published.delayed.first)


async def test_a_list_has_pages(world: World, service: MessagingService) -> None:
    await delayed(service, b"3", b"1", b"2", delays=[after(30), after(10), after(20)])
    first = await service.delayed.listed(AUDIT, count_max=2)
    assert [each.row.payload for each in first] == [b"1", b"2"]
    assert first[0].id == DelayedId(NOON_MS + 10, Offset(NOON_MS, 1))
    rest = await service.delayed.listed(AUDIT, after=first[-1].id, count_max=2)
    assert [each.row.payload for each in rest] == [b"3"]


async def test_a_deleted_topic_takes_its_delayed_messages_along(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(POINTER)
    await delayed(service, b"old", delays=[after(10)])
    await delayed(service, b"old too", delays=[after(10)], pointer=POINTER)
    await service.topics.delete(AUDIT)
    await service.topics.create(AUDIT, {"ttl": "100"})
    world.commit(service, POINTER)
    service.rows.wake_readers([POINTER])
    await advance(world, service, 10)
    assert (await polled(service), await waiting(service)) == ([], [])

    world.transactions.start(8)
    await delayed(service, b"new", delays=[after(10)], pointer=8)
    world.commit(service, 8)
    service.rows.wake_readers([8])
    await advance(world, service, 10)
    assert await polled(service) == [b"new"]


async def test_a_topic_that_is_replaced_while_its_messages_enter_gets_none(world: World) -> None:
    gate = world.gate_writes()
    async with world.running(audit={"ttl": "100"}) as service:
        await delayed(service, b"old", delays=[after(10)])
        gate.clear()
        delete = await settle_down(service.topics.delete(AUDIT))
        create = await settle_down(service.topics.create(AUDIT, {"ttl": "100"}))
        # This look reads before the deletion is durable, and writes after the creation.
        world.clock.now_ms += 10
        service.state.due_times.changed.set()
        await settle_down(asyncio.sleep(0))
        gate.set()
        await asyncio.gather(delete, create)
        await looked(service)
        assert await polled(service) == []
        assert rows_of(world, MESSAGES) == []


async def test_retention_drops_the_delayed_messages_of_a_deleted_topic(
    world: World, service: MessagingService
) -> None:
    await delayed(service, b"old", delays=[after(10)])
    await service.topics.delete(AUDIT)
    await service.topics.create(AUDIT, {"ttl": "100"})
    await delayed(service, b"new", delays=[after(10)])
    await service.cleaner.run_pass()
    (key,) = rows_of(world, DELAYED)
    assert key.startswith(DELAYED + prefix_of(AUDIT, 2))


async def test_by_a_clock_that_may_be_ahead_enters_what_has_waited_long_enough(
    world: World, service: MessagingService
) -> None:
    """All delayed messages and retries of all topics waited until an operator came."""
    recorded_ms = world.clock.now_ms
    await delayed(service, b"soon", delays=[after(5_000)])
    await delayed(service, b"in a year", delays=[after(YEAR_MS)])
    world.clock.now_ms += 2 * YEAR_MS
    start_ms = world.clock.now_ms
    world.due = lambda: Due(recorded_ms + world.clock.now_ms - start_ms, start_ms)
    named = Delay(start_ms + 5_000, is_time=True)
    await delayed(
        service, b"named", b"named as past", delays=[named, Delay(start_ms, is_time=True)]
    )
    await delayed(service, b"retry", delays=[after(1_000)])
    await advance(world, service, 0)
    assert await polled(service) == []

    await advance(world, service, RETRY_MS)
    assert await polled(service) == [b"retry"]
    await advance(world, service, 5_000)
    assert await polled(service) == [b"retry", b"soon"]

    world.due = lambda: Due(world.clock.now_ms)
    await advance(world, service, RETRY_MS)
    assert [*(await polled(service))[2:]] == [b"in a year", b"named as past", b"named"]


async def test_named_times_that_are_too_many_hold_all_back_by_a_clock_that_may_be_ahead(
    world: World, service: MessagingService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("messaging.log.state_in_memory.NAMED_COUNT_MAX", 0)
    start_ms = world.clock.now_ms
    world.due = lambda: Due(-1, start_ms)
    await delayed(service, b"retry", delays=[after(10)])
    await delayed(service, b"named", delays=[Delay(start_ms + 5_000, is_time=True)])

    await advance(world, service, RETRY_MS)
    assert await polled(service) == []


async def test_messages_enter_though_the_clock_was_ahead_once(
    world: World, service: MessagingService
) -> None:
    """After it was corrected, delayed messages of all topics waited for the hour that it had been
    ahead."""
    world.may_delete = False
    await delayed(service, b"x", delays=[after(10)])

    await advance(world, service, 10)

    assert await polled(service) == [b"x"]


async def test_nothing_enters_while_the_disk_is_nearly_full(
    world: World, service: MessagingService
) -> None:
    await delayed(service, b"x", delays=[after(10)])
    due_ms = service.delayed.next_due_ms()
    service.committer.lack_of_space = "the disk is nearly full"
    await advance(world, service, 10)
    assert await polled(service) == []
    await advance(world, service, 120_000)
    assert service.delayed.next_due_ms() == due_ms, "so the alert for late messages fires"

    service.committer.lack_of_space = None
    await advance(world, service, RETRY_MS)

    assert await polled(service) == [b"x"]
    assert service.delayed.next_due_ms() is None


@pytest.mark.parametrize("takes_effect", [True, False])
async def test_a_failed_write_neither_loses_nor_repeats_a_message(*, takes_effect: bool) -> None:
    world = FlakyWorld()
    async with world.running(audit={"ttl": "100"}) as service:
        await delayed(service, b"x", delays=[after(10)])
        world.fail_write(0, takes_effect=takes_effect)
        await advance(world, service, 10)
        await advance(world, service, RETRY_MS)
        assert await polled(service) == [b"x"]
        assert await waiting(service) == []


async def test_a_look_that_fails_by_a_bug_is_repeated_and_logged_once(
    world: World,
    service: MessagingService,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The messages waited until the next one was published, and a cancel waited for ever."""
    await delayed(service, b"x", delays=[after(10)])
    (left,) = await service.delayed.listed(AUDIT, count_max=10)
    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(delayed_messages, "_find", None)
        await advance(world, service, 10)
        await advance(world, service, RETRY_MS)
        with pytest.raises(TypeError):
            await service.delayed.cancel(AUDIT, left.id)

    await advance(world, service, 4 * RETRY_MS)

    assert await polled(service) == [b"x"]
    assert len(caplog.records) == 1


async def test_a_damaged_row_is_reported_and_never_enters(
    world: World, service: MessagingService
) -> None:
    await delayed(service, b"x", b"y", delays=[after(10)])
    key = world.damage_row(DELAYED)
    await advance(world, service, 10)
    assert await polled(service) == []
    with pytest.raises(DamagedRecordError, match=key[-18:].hex()):
        await service.delayed.listed(AUDIT, count_max=10)
    following = DelayedId.from_bytes(key)
    (left,) = await service.delayed.listed(AUDIT, after=following, count_max=10)
    assert left.row.payload == b"y"

    await service.delayed.cancel(AUDIT, following)
    await advance(world, service, RETRY_MS)

    assert await polled(service) == [b"y"]


async def test_what_is_due_before_a_damaged_row_enters(
    world: World, service: MessagingService
) -> None:
    await delayed(service, b"damaged", b"first", b"last", delays=[after(20), after(10), after(30)])
    first, damaged, last = [DelayedId.from_bytes(key) for key in sorted(rows_of(world, DELAYED))]
    key = sorted(rows_of(world, DELAYED))[1]
    world.rows[key] = world.rows[key][:-1] + b"?"

    await advance(world, service, 40)
    assert await polled(service) == [b"first"]
    await service.delayed.cancel(AUDIT, last)
    await service.delayed.cancel(AUDIT, damaged)
    with pytest.raises(DelayedNotFoundError):
        await service.delayed.cancel(AUDIT, first)
    assert await waiting(service) == []


async def test_refused_publishes(world: World, service: MessagingService) -> None:
    world.transactions.start(POINTER)
    with pytest.raises(InvalidDelayError, match="due within"):
        await delayed(service, b"x", delays=[Delay(NOON_MS + DELAY_MS_MAX + 1, is_time=True)])
    with pytest.raises(InvalidTtlError):
        await delayed(service, b"x", delays=[after(10)], ttl_s=101)
    with pytest.raises(InvalidDelayError, match="stored"):
        await delayed(service, delays=[after(10)], pointer=POINTER)
    request = PublishRequest(pointer=POINTER, payloads=[b"x"], delays=[after(10)])
    with pytest.raises(InvalidDelayError, match="stored"):
        await service.publisher.store(AUDIT, request)
    await service.topics.delete(AUDIT)
    with pytest.raises(TopicNotFoundError):
        await delayed(service, b"x", delays=[after(10)])
    with pytest.raises(TopicNotFoundError):
        await service.delayed.cancel(AUDIT, DelayedId(1, Offset(1, 0)))
    assert rows_of(world, DELAYED) == []


async def test_no_message_is_listed_while_the_store_is_down(world: World) -> None:
    service = world.new_service()
    with pytest.raises(StorageUnavailableError):
        await service.delayed.listed(AUDIT, count_max=1)


async def test_lateness_is_observed(world: World, service: MessagingService) -> None:
    await delayed(service, b"x", delays=[after(10)])
    await advance(world, service, 35)
    assert ("delayed_lateness_seconds", 0.025) in world.observed


async def test_the_explanation_of_a_damaged_one_names_it(world: World) -> None:
    world.transactions.start(POINTER)
    async with world.running(audit={}) as service:
        late = PublishRequest(POINTER, [b"late"], delays=[Delay(1000, is_time=False)])
        published = await service.publisher.publish(AUDIT, late)
        world.damage_row(DELAYED)
        assert published.delayed is not None
        with pytest.raises(DamagedRecordError, match="tuff salvage"):
            await service.explainer.explain(
                AUDIT, published.delayed.first.hex(), Poll(), may_read=bool
            )
