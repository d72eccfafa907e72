"""Partitions of a topic in a cluster: its owner has all of them (decision 0043 §3)."""

import asyncio

import pytest

from kernel.owner_floor import NO_FLOOR
from messaging.model.partition_of_key import partition_index
from messaging.read.poll import Poll
from messaging.service import MessagingService
from tests.messaging.members import Member, new_tables
from tests.messaging.world import payloads, request
from tuff.protocol.attributes import Attributes
from tuff.protocol.errors import OwnershipMovingError, TopicNotFoundError
from tuff.protocol.ids import TopicId
from tuff.protocol.requests import Delay, PublishRequest

ORDERS, GROUP = TopicId("shop", "orders"), TopicId("shop", "orders:group")
KEYS = [b"%d" % number for number in range(20)]


def keyed(*keys: bytes, pointer: int | None = None) -> PublishRequest:
    return PublishRequest(pointer, list(keys), attributes=[Attributes(key) for key in keys])


async def create(member: Member, count: int) -> None:
    await member.service.topics.create(ORDERS, {"ttl": "100"}, partition_count=count)


async def read_all(service: MessagingService) -> dict[int, list[bytes]]:
    numbers = service.topics.get(ORDERS).partitions.readable
    return {
        number: payloads(await service.polls.poll(ORDERS.partition(number), Poll()))
        for number in numbers
    }


@pytest.mark.parametrize("is_fenced", [False, True])
async def test_the_partitions_of_a_topic_move_with_it(is_fenced: bool) -> None:
    tables = new_tables()
    async with Member(tables, "a").serving() as a, Member(tables, "b").serving() as b:
        await a.handover.take([ORDERS, GROUP], NO_FLOOR)
        await create(a, 3)
        await a.service.topics.update(ORDERS, {"ttl": "100"}, partition_count=2)
        await a.service.publisher.publish(ORDERS, keyed(*KEYS))
        before = await read_all(a.service)
        assert sum(map(len, before.values())) == len(KEYS)

        if is_fenced:
            await b.fence(a, ORDERS)
        else:
            await a.pass_on(ORDERS, b)
            for topic in (ORDERS, ORDERS.partition(1), ORDERS.partition(2)):
                with pytest.raises(OwnershipMovingError):
                    await a.service.polls.poll(topic, Poll())
            assert a.handover.topics() == [GROUP]

        assert b.handover.topics() == [ORDERS]
        assert await read_all(b.service) == before
        await b.service.topics.update(ORDERS, {"ttl": "100"}, partition_count=3)
        await b.service.publisher.publish(ORDERS.partition(3), request(b"new"))
        assert (await read_all(b.service))[3] == [b"new"]


async def test_a_topic_that_is_created_again_has_no_message_of_its_former_partitions() -> None:
    """Its partitions begin above the generation that another server gave them."""
    tables = new_tables()
    async with Member(tables, "a").serving() as a, Member(tables, "b").serving() as b:
        await a.handover.take([ORDERS], NO_FLOOR)
        await create(a, 4)
        await a.service.publisher.publish(ORDERS, keyed(*KEYS))
        await a.service.topics.delete(ORDERS)

        await a.pass_on(ORDERS, b)
        await create(b, 4)

        assert await read_all(b.service) == {0: [], 1: [], 2: [], 3: []}


async def test_a_partition_that_does_not_exist_is_not_on_the_move() -> None:
    async with Member(new_tables(), "a").serving() as a:
        await a.handover.take([ORDERS], NO_FLOOR)
        await create(a, 2)

        with pytest.raises(TopicNotFoundError):
            await a.service.polls.poll(ORDERS.partition(9), Poll())


async def test_a_transaction_ends_in_all_partitions_before_the_owner_says_so() -> None:
    tables = new_tables()
    async with Member(tables, "a").serving() as a, Member(tables, "b").serving() as b:
        await a.handover.take([ORDERS], NO_FLOOR)
        await create(a, 4)
        pointer = a.transactions.start(7)
        await a.service.publisher.publish(ORDERS, keyed(*KEYS, pointer=pointer))
        await a.pass_on(ORDERS, b)

        (carried,) = b.service.rows.carried()
        assert carried.topics == {ORDERS}
        assert not b.service.rows.has_ended_in(pointer, ORDERS)
        await b.service.rows.roll_back([pointer])
        assert b.service.rows.has_ended_in(pointer, ORDERS)
        assert not a.service.rows.has_ended_in(pointer, ORDERS)


async def test_delayed_messages_of_a_partition_move_with_the_topic() -> None:
    tables = new_tables()
    async with Member(tables, "a").serving() as a, Member(tables, "b").serving() as b:
        await a.handover.take([ORDERS], NO_FLOOR)
        await create(a, 2)
        delays = [Delay(5_000, is_time=False)] * len(KEYS)
        await a.service.publisher.publish(ORDERS, keyed(*KEYS)._replace(delays=delays))
        await a.pass_on(ORDERS, b)
        assert await read_all(b.service) == {0: [], 1: []}

        b.clock.now_ms += 10_000
        b.service.state.due_times.changed.set()
        for _ in range(100):
            await asyncio.sleep(0)

        assert await read_all(b.service) == {
            number: [key for key in KEYS if partition_index(key, 2) == number] for number in (0, 1)
        }
