"""What a batch writes for plain publishes: one value for neighbours of one topic and moment."""

import asyncio

from messaging.service import MessagingService
from messaging.storage.packed_rows import row_count
from messaging.storage.rows import MESSAGES, PAYLOADS
from tests.messaging.world import AUDIT, World, polled, publish, request
from tuff.protocol.ids import TopicId

OTHER = TopicId("default", "other")


def stored(world: World, table: bytes = MESSAGES) -> list[int]:
    """How many rows each stored value of a table stands for, in the order of the keys."""
    return [row_count(value) for key, value in sorted(world.rows.items()) if key[:1] == table]


async def test_a_publish_of_several_messages_is_one_value(
    world: World, service: MessagingService
) -> None:
    await publish(service, b"a", b"b", b"c")
    await publish(service, b"d")

    assert stored(world) == [3, 1]
    assert await polled(service) == [b"a", b"b", b"c", b"d"]


async def test_publishes_of_one_batch_share_a_value_where_they_follow_each_other(
    world: World, service: MessagingService
) -> None:
    await service.topics.create(OTHER, {})

    await asyncio.gather(
        publish(service, b"a"),
        publish(service, b"b", b"c"),
        service.publisher.publish(OTHER, request(b"elsewhere", b"as well")),
        publish(service, b"d"),
        publish(service, b"e", ttl_s=60),
        publish(service, b"f"),
    )

    assert sorted(stored(world)) == [1, 1, 1, 2, 3]
    assert await polled(service) == [b"a", b"b", b"c", b"d", b"e", b"f"]


async def test_messages_with_a_pointer_are_values_by_themselves(
    world: World, service: MessagingService
) -> None:
    """A rollback turns each of them, and readers decide about each."""
    pointer = world.transactions.start(7)

    await publish(service, b"a", b"b", pointer=pointer)

    assert stored(world) == [1, 1]


async def test_stored_messages_are_runs_of_their_store(
    world: World, service: MessagingService
) -> None:
    pointer = world.transactions.start(7)

    await service.publisher.store(AUDIT, request(b"a", b"b", pointer=pointer))
    await service.publisher.store(AUDIT, request(b"c", pointer=pointer))
    await publish(service, pointer=pointer)

    assert stored(world, PAYLOADS) == [2, 1]
    assert await polled(service) == [b"a", b"b", b"c"]
