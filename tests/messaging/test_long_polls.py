"""Long polls: what wakes them, and what ends their wait (protocol §3.4, `wait`)."""

import asyncio
from dataclasses import replace

import pytest

from messaging.read.poll import Poll, PollResult
from messaging.service import MessagingService
from tests.messaging.world import (
    AUDIT,
    FlakyWorld,
    World,
    payloads,
    publish,
    request,
    settle_down,
)
from tuff.protocol.errors import (
    StorageUnavailableError,
    TopicNotFoundError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionsUnavailableError,
)
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.requests import Isolation
from tuff.protocol.transaction import Transaction

TTL_MS = 100_000  # the fixture's topic
SLEEPS = Poll(isolation=Isolation.COMMITTED, wait_s=60)


async def asleep(
    world: World, service: MessagingService, *, ttl_s: int | None = None, left_ms: int = TTL_MS
) -> "asyncio.Future[PollResult]":
    """A poll that waits behind an undecided row with so much time to live left; a message follows
    the row."""
    world.transactions.start(7)
    first = await publish(service, b"open", pointer=7, ttl_s=ttl_s)
    world.clock.now_ms = first.first.publish_timestamp_ms + (ttl_s or 100) * 1000 - left_ms
    await publish(service, b"next")
    waiting = await settle_down(service.polls.poll(AUDIT, SLEEPS))
    assert not waiting.done()
    return waiting


async def woken(waiting: "asyncio.Future[PollResult]") -> list[bytes]:
    """What the poll returns, long before its wait is over."""
    async with asyncio.timeout(SLEEPS.wait_s / 6):
        return payloads(await waiting)


async def looked_again(world: World) -> None:
    """Wait until the poll has read again; nothing else asks for the time here."""
    world.clock.asked.clear()
    await world.clock.asked.wait()
    await settle_down(asyncio.sleep(0))


async def looks(service: MessagingService) -> None:
    """Let the poll behind the row read now, whatever time it is."""
    service.rows.wake_readers({7})
    await settle_down(asyncio.sleep(0))


@pytest.mark.parametrize("ttl_s", [None, 5], ids=["of the topic", "its own"])
async def test_a_blocked_reader_wakes_when_the_row_expires(
    world: World, service: MessagingService, ttl_s: int | None
) -> None:
    waiting = await asleep(world, service, ttl_s=ttl_s, left_ms=30)

    world.clock.now_ms += 30

    assert await woken(waiting) == [b"next"]


async def test_a_reader_that_wakes_too_early_waits_again(
    world: World, service: MessagingService
) -> None:
    """The clock of messages may be slower than the timer of the event loop."""
    waiting = await asleep(world, service, left_ms=3)
    await looked_again(world)

    assert (waiting.done(), service.polls.waiting_count) == (False, 1)
    world.clock.now_ms += 3

    assert await woken(waiting) == [b"next"]


async def test_a_blocked_reader_wakes_when_the_hold_on_the_row_expires(
    world: World, service: MessagingService
) -> None:
    await service.holds_and_positions.hold(AUDIT, "job", 0, max_age_ms=TTL_MS + 30)
    waiting = await asleep(world, service, left_ms=0)

    world.clock.now_ms += 30

    assert await woken(waiting) == [b"next"]


@pytest.mark.parametrize("is_released", [True, False], ids=["released", "set anew behind it"])
async def test_a_blocked_reader_wakes_when_the_hold_on_the_row_is_released(
    world: World, service: MessagingService, is_released: bool
) -> None:
    await service.holds_and_positions.hold(AUDIT, "job", 0, max_age_ms=10 * TTL_MS)
    waiting = await asleep(world, service, left_ms=0)

    if is_released:
        await service.holds_and_positions.release(AUDIT, "job")
    else:
        await service.holds_and_positions.hold(AUDIT, "job", world.clock.now_ms, max_age_ms=TTL_MS)

    assert await woken(waiting) == [b"next"]


async def test_a_blocked_reader_wakes_when_the_hold_on_the_row_was_not_written() -> None:
    """It counted while it was being written."""
    world = FlakyWorld()
    gate = world.gate_writes()
    async with world.running(audit={"ttl": "100"}) as service:
        waiting = await asleep(world, service, left_ms=3)
        gate.clear()
        world.fail_write(0, takes_effect=False)
        setting = await settle_down(
            service.holds_and_positions.hold(AUDIT, "job", 0, max_age_ms=TTL_MS)
        )
        await looks(service)  # and now the hold counts
        world.clock.now_ms += 3
        await looks(service)
        was_answered = waiting.done()

        gate.set()
        with pytest.raises(StorageUnavailableError):
            await setting
        assert not was_answered
        assert await woken(waiting) == [b"next"]


async def test_a_longer_ttl_in_a_doubtful_clock_wakes_readers_at_the_beginning(
    world: World, service: MessagingService
) -> None:
    """While the clock is in doubt, a longer time to live shows messages again that had expired by
    it. New readers received them, and a poll that waited behind them did not."""
    await publish(service, b"kept")
    world.clock.now_ms += 2 * TTL_MS
    world.may_delete = False
    waiting = await settle_down(service.polls.poll(AUDIT, Poll(wait_s=60)))
    assert not waiting.done()

    await service.topics.update(AUDIT, {"ttl": "1000"})

    assert await woken(waiting) == [b"kept"]


async def test_a_poll_that_waits_ends_when_its_topic_is_deleted(service: MessagingService) -> None:
    waiting = await settle_down(service.polls.poll(AUDIT, Poll(wait_s=60)))

    await service.topics.delete(AUDIT)
    await service.topics.create(AUDIT, {})

    with pytest.raises(TopicNotFoundError):
        await waiting


async def test_a_poll_that_waits_wakes_for_its_own_topic_only(service: MessagingService) -> None:
    other = TopicId("default", "other")
    await service.topics.create(other, {})
    waiting = await settle_down(service.polls.poll(AUDIT, Poll(wait_s=60)))
    elsewhere = await settle_down(service.polls.poll(other, Poll(wait_s=60)))

    await publish(service, b"x")

    assert [payload for _, payload in (await waiting).items] == [b"x"]
    assert not elsewhere.done()
    service.polls.stop_waiting()
    assert (await elsewhere).items == []


async def test_a_poll_does_not_wait_once_it_has_reached_its_end(
    service: MessagingService,
) -> None:
    published = await publish(service, b"x")
    behind = await service.polls.poll(
        AUDIT, Poll(start=published.last, inclusive=False, through=published.last, wait_s=60)
    )
    assert (behind.items, behind.caught_up) == ([], True)


async def test_a_wait_ends_when_the_time_is_over(service: MessagingService) -> None:
    result = await service.polls.poll(AUDIT, Poll(wait_s=0.01))
    assert (result.items, result.caught_up) == ([], True)


async def test_a_blocked_reader_wakes_when_the_transaction_ends(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(7)
    await publish(service, b"x", pointer=7)
    poll = Poll(isolation=Isolation.COMMITTED, wait_s=60)
    waiting = await settle_down(service.polls.poll(AUDIT, poll))

    world.commit(service, 7)
    service.rows.wake_readers([7])

    assert payloads(await waiting) == [b"x"]


async def test_a_blocked_reader_continues_when_the_rows_are_marked(
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


async def test_a_poll_in_a_fixed_snapshot_ends_when_the_blocking_transaction_commits(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(7)
    reader = world.transactions.reader()
    await publish(service, b"x", pointer=7)
    waiting = await settle_down(service.polls.poll(AUDIT, Poll(transaction=reader, wait_s=60)))
    assert not waiting.done()

    world.commit(service, 7)
    service.rows.wake_readers([7])

    result = await waiting
    assert (payloads(result), result.caught_up, result.blocked_by) == ([], False, None)


async def test_a_read_in_a_transaction_that_ends_meanwhile_is_refused() -> None:
    """Its rows are marked as rolled back between the snapshot and the read of the rows, so the
    reader would miss its own messages."""
    world = World()
    world.settings = replace(world.settings, tail_bytes_max=0)
    gate = world.gate_reads()
    async with world.running(audit={}) as service:
        world.transactions.start(7)
        await publish(service, b"own", pointer=7)
        gate.clear()
        reading = await settle_down(service.polls.poll(AUDIT, Poll(tx=7)))
        offsets = await settle_down(service.offsets.offsets(AUDIT, tx=7))

        await world.abort(service, 7)
        gate.set()

        for each in (reading, offsets):
            with pytest.raises(TransactionAbortedError):
                await each


async def test_a_poll_in_a_transaction_ends_when_that_ends(
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


async def test_a_poll_in_a_fixed_snapshot_waits_until_aborted_rows_are_marked(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(7)
    reader = world.transactions.reader()
    await publish(service, b"gone", pointer=7)
    await publish(service, b"next")
    waiting = await settle_down(service.polls.poll(AUDIT, Poll(transaction=reader, wait_s=60)))

    world.transactions.end(7, world.transactions.invalid)
    service.rows.wake_readers([7])
    await settle_down(service.tick())
    assert not waiting.done()
    await service.rows.roll_back([7])

    assert payloads(await waiting) == [b"next"]


async def readable(
    service: MessagingService, *numbers: int, added: bool = False
) -> "asyncio.Future[list[int]]":
    """A wait for these partitions, which have nothing yet."""
    after = {each: service.polls.latest(AUDIT.partition(each)) for each in numbers}
    waiting = await settle_down(service.partition_waits.readable(AUDIT, after, SLEEPS, added=added))
    assert (waiting.done(), service.polls.waiting_count) == (False, 1)
    return waiting


async def partitioned(service: MessagingService, count: int) -> None:
    await service.topics.update(AUDIT, {"ttl": "100"}, partition_count=count)


async def test_a_wait_for_several_partitions_ends_with_the_first_message_of_one(
    service: MessagingService,
) -> None:
    await partitioned(service, 3)
    await service.publisher.publish(AUDIT.partition(1), request(b"old"))
    waiting = await readable(service, 0, 1)
    await service.publisher.publish(AUDIT.partition(2), request(b"of another one"))
    await settle_down(asyncio.sleep(0))
    assert not waiting.done()

    await service.publisher.publish(AUDIT.partition(1), request(b"new"))

    assert await waiting == [1]
    assert service.polls.waiting_count == 0


async def test_a_wait_for_several_partitions_looks_past_what_is_undecided(
    world: World, service: MessagingService
) -> None:
    await partitioned(service, 3)
    waiting = await readable(service, 1, 2)
    world.transactions.start(7)
    await service.publisher.publish(AUDIT.partition(2), request(b"open", pointer=7))
    await settle_down(asyncio.sleep(0))
    assert not waiting.done()

    world.commit(service, 7)
    service.rows.wake_readers([7])

    assert await waiting == [2]


async def test_a_wait_for_many_partitions_looks_again_only_at_those_that_changed(
    world: World, service: MessagingService, monkeypatch: pytest.MonkeyPatch
) -> None:
    await partitioned(service, 50)
    waiting = await readable(service, *range(50))
    looked, poll = list[TopicId](), service.polls.poll

    async def noted(topic: TopicId, asked: Poll) -> PollResult:
        looked.append(topic)
        return await poll(topic, asked)

    monkeypatch.setattr(service.polls, "poll", noted)
    world.transactions.start(7)
    await service.publisher.publish(AUDIT.partition(33), request(b"open", pointer=7))
    await settle_down(asyncio.sleep(0))
    assert (looked, waiting.done()) == ([AUDIT.partition(33)], False)

    await service.publisher.publish(AUDIT.partition(4), request(b"new"))

    assert await waiting == [4]


async def test_a_wait_for_several_partitions_notices_new_ones_and_missing_ones(
    service: MessagingService,
) -> None:
    await partitioned(service, 2)
    waiting = await readable(service, 0, 1, added=True)
    await partitioned(service, 3)
    assert await waiting == [2]
    after = {0: service.polls.latest(AUDIT.partition(0)), 9: MessageId(0, 0)}
    assert await service.partition_waits.readable(AUDIT, after, SLEEPS, added=False) == [9]


async def test_a_stop_ends_a_wait_for_several_partitions(service: MessagingService) -> None:
    waiting = await readable(service, 0)
    service.polls.stop_waiting()
    assert await waiting == []


async def test_a_wait_for_several_topics_ends_with_the_first_message_of_one(
    service: MessagingService,
) -> None:
    """A group over two topics looked at them in turns, and was 30 times as slow."""
    other, missing = TopicId("default", "other"), TopicId("default", "missing")
    await service.topics.create(other, {})
    asked = {
        each.partition(0): Poll(start=service.polls.latest(each.partition(0)), inclusive=False)
        for each in (AUDIT, other)
    }
    waiting = await settle_down(service.partition_waits.readable_of(asked, wait_s=60))
    assert (waiting.done(), service.polls.waiting_count) == (False, 1)

    await service.publisher.publish(other.partition(0), request(b"new"))

    assert await waiting == [other.partition(0)]
    assert service.polls.waiting_count == 0
    asked[missing.partition(0)] = Poll()
    found = await service.partition_waits.readable_of(asked, wait_s=60)
    assert found == [missing.partition(0), other.partition(0)]


async def test_what_is_decided_is_readable_while_transactions_are_down(
    world: World, service: MessagingService
) -> None:
    """Default reads were refused then, also on topics without any transactional message."""
    for pointer in (7, 8, 9):
        world.transactions.start(pointer)
    await publish(service, b"plain")
    await publish(service, b"rolled back", pointer=7)
    await publish(service, b"committed", pointer=8)
    await publish(service, b"of 9", pointer=9)
    await publish(service, b"behind")
    await world.abort(service, 7)
    world.commit(service, 8)
    world.transactions.is_up = False

    result = await service.polls.poll(AUDIT, SLEEPS)
    assert payloads(result) == [b"plain", b"committed"]
    assert not result.caught_up
    next_one = replace(SLEEPS, start=MessageId.from_bytes(result.next_id), inclusive=False)
    with pytest.raises(TransactionsUnavailableError):
        await service.offsets.offsets(AUDIT, isolation=Isolation.COMMITTED)
    with pytest.raises(TransactionsUnavailableError):
        await woken(asyncio.ensure_future(service.polls.poll(AUDIT, next_one)))

    world.transactions.is_up = True
    world.commit(service, 9)
    waiting = asyncio.ensure_future(service.polls.poll(AUDIT, next_one))
    assert await woken(waiting) == [b"of 9", b"behind"]


async def test_a_poll_that_waits_while_transactions_are_down_is_woken_by_a_message(
    world: World, service: MessagingService
) -> None:
    await publish(service, b"decided", pointer=world.transactions.start(7))
    world.commit(service, 7)
    first = await service.polls.poll(AUDIT, SLEEPS)
    world.transactions.is_up = False
    next_one = replace(SLEEPS, start=MessageId.from_bytes(first.next_id), inclusive=False)

    waiting = await settle_down(service.polls.poll(AUDIT, next_one))
    assert not waiting.done()
    await publish(service, b"plain")

    assert await woken(waiting) == [b"plain"]


async def test_a_poll_that_waits_learns_that_transactions_are_down(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(7)
    waiting = await settle_down(service.polls.poll(AUDIT, SLEEPS))
    await publish(service, b"open", pointer=7)
    world.transactions.is_up = False
    await publish(service, b"behind")

    with pytest.raises(TransactionsUnavailableError):
        await woken(waiting)


async def test_a_read_that_is_blocked_goes_on_once_transactions_are_up(
    world: World, service: MessagingService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction ended between the snapshot of the reader and its question for the reason."""
    await publish(service, b"decided", pointer=world.transactions.start(7))
    world.transactions.is_up = False
    snapshot = world.transactions.snapshot

    async def comes_up() -> Transaction:
        try:
            return await snapshot()
        finally:
            world.transactions.is_up = True
            world.commit(service, 7)

    monkeypatch.setattr(world.transactions, "snapshot", comes_up)

    reading = asyncio.ensure_future(service.polls.poll(AUDIT, SLEEPS))
    assert await woken(reading) == [b"decided"]


async def test_a_wait_names_the_partition_that_is_undecided_while_transactions_are_down(
    world: World, service: MessagingService
) -> None:
    """The wait for all partitions of a reader was refused, for one of them."""
    other = TopicId("default", "other")
    await service.topics.create(other, {})
    await publish(service, b"open", pointer=world.transactions.start(7))
    world.transactions.is_up = False
    asked = Poll(isolation=Isolation.COMMITTED)

    found = await service.partition_waits.readable_of({AUDIT: asked, other: asked}, wait_s=0.0)

    assert found == [AUDIT]
