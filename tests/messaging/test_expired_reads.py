"""When a read is marked as expired: messages may have expired that this reader has not received
(protocol §3.4, `Tuff-Expired`).

Readers take it for a loss of data. Every reader from the beginning once got it from its second poll
on: the id to continue from was right before the first live offset of that time.
"""

from dataclasses import replace

from messaging.read.poll import Poll, PollResult
from messaging.service import MessagingService
from tests.messaging.world import AUDIT, COMMITTED, NOON_MS, World, publish, request
from tuff.protocol.ids import FIRST_ID, MessageId, TopicId

TTL_MS = 100_000  # the fixture's topic
OTHER = TopicId("default", "other")


async def publish_elsewhere(service: MessagingService) -> None:
    await service.publisher.publish(OTHER, request(b"elsewhere"))


async def go_on(
    service: MessagingService, before: PollResult, poll: Poll = COMMITTED
) -> PollResult:
    start = MessageId.from_bytes(before.next_id)
    return await service.polls.poll(AUDIT, replace(poll, start=start, inclusive=False))


async def test_a_reader_of_an_empty_topic_is_never_expired(
    world: World, service: MessagingService
) -> None:
    await service.topics.create(OTHER, {})
    await publish_elsewhere(service)
    reply = await service.polls.poll(AUDIT, COMMITTED)

    for _ in range(3):
        world.clock.now_ms += 2 * TTL_MS // 3
        reply = await go_on(service, reply)
        assert not reply.expired
        await publish_elsewhere(service)


async def test_the_first_message_after_a_long_idle_interval_is_not_expired(
    world: World, service: MessagingService
) -> None:
    await service.topics.create(OTHER, {})
    await publish_elsewhere(service)
    begun = await service.polls.poll(AUDIT, COMMITTED)
    world.clock.now_ms += 10 * TTL_MS
    silent = await go_on(service, begun)
    latest = service.polls.latest(AUDIT)
    await publish(service, b"the first ever")

    replies = [
        await go_on(service, begun),
        await go_on(service, silent),
        await service.polls.poll(AUDIT, Poll(start=latest, inclusive=False)),
    ]

    assert [(reply.items[0][1], reply.expired) for reply in replies] == [
        (b"the first ever", False)
    ] * 3


async def test_a_reader_blocked_at_the_first_row_is_not_expired_until_that_row_is(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(7)
    await publish(service, b"held", pointer=7)
    reply = await service.polls.poll(AUDIT, COMMITTED)

    world.clock.now_ms += TTL_MS - 1
    reply = await go_on(service, reply)
    assert (reply.blocked_by, reply.expired) == (7, False)

    world.clock.now_ms += 1
    reply = await go_on(service, reply)
    assert (reply.items, reply.expired) == ([], True)


async def test_a_message_that_expired_behind_a_reader_is_a_loss(
    world: World, service: MessagingService
) -> None:
    await publish(service, b"the start of all", ttl_s=1)
    world.clock.now_ms += TTL_MS
    begun = await service.polls.poll(AUDIT, COMMITTED)
    await publish(service, b"missed")
    world.clock.now_ms += TTL_MS

    assert (await go_on(service, begun)).expired
    await publish(service, b"later")
    assert (await go_on(service, begun)).expired


async def test_a_reader_of_the_last_message_missed_nothing_when_that_expires(
    world: World, service: MessagingService
) -> None:
    """The id to continue from is then that of the message."""
    await publish(service, b"a", b"the last")
    read = await service.polls.poll(AUDIT, COMMITTED)
    assert (len(read.items), read.next_id) == (2, read.items[-1][0])
    world.clock.now_ms += 2 * TTL_MS

    assert not (await go_on(service, read)).expired
    await publish(service, b"after a long silence")

    reply = await go_on(service, read)
    assert (reply.items[0][1], reply.expired) == (b"after a long silence", False)


async def test_a_blocked_reader_misses_the_blocking_row_once_it_expires(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(7)
    await publish(service, b"a")
    world.clock.now_ms += 1_000
    await publish(service, b"held", pointer=7)
    read = await service.polls.poll(AUDIT, COMMITTED)
    assert (len(read.items), read.blocked_by) == (1, 7)

    world.clock.now_ms += TTL_MS - 1
    assert not (await go_on(service, read)).expired
    world.clock.now_ms += 1
    assert (await go_on(service, read)).expired


async def test_a_reader_that_stopped_before_a_message_missed_it(
    world: World, service: MessagingService
) -> None:
    await publish(service, b"a", b"b")
    read = await service.polls.poll(AUDIT, replace(COMMITTED, limit=1))
    world.clock.now_ms += 2 * TTL_MS

    assert (await go_on(service, read)).expired


async def test_a_reader_inside_a_group_may_have_missed_the_rest(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(7)
    await service.publisher.store(AUDIT, request(b"a", b"b", pointer=7))
    await publish(service, pointer=7)
    world.transactions.end(7, world.transactions.committed)
    read = await service.polls.poll(AUDIT, replace(COMMITTED, limit=1))
    assert len(read.items) == 1
    world.clock.now_ms += 2 * TTL_MS

    assert (await go_on(service, read)).expired


async def test_idle_intervals_and_losses_are_known_after_a_restart(world: World) -> None:
    async with world.running(audit={"ttl": str(TTL_MS // 1000)}) as service:
        await service.topics.create(OTHER, {})
        await publish_elsewhere(service)
        begun = await service.polls.poll(AUDIT, COMMITTED)
        await publish(service, b"a")
        seen = await go_on(service, await go_on(service, begun))
    world.clock.now_ms += 2 * TTL_MS

    async with world.running() as service:
        assert not (await go_on(service, seen)).expired
        await publish(service, b"b")
        assert not (await go_on(service, seen)).expired
        assert (await go_on(service, begun)).expired


async def test_a_start_that_has_expired_is_reported(
    world: World, service: MessagingService
) -> None:
    published = await publish(service, b"x")
    world.clock.now_ms += 100_000

    told = [
        (await service.polls.poll(AUDIT, Poll(start=start))).expired
        for start in (published.first, NOON_MS, NOON_MS + 1, FIRST_ID, None, 0)
    ]

    assert told == [True, True, False, False, False, False]
