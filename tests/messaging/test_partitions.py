"""Partitions of a topic: creation, division, retirement (protocol §2, §3.1)."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messaging.engines.engine_interface import Chunks
from messaging.engines.memory import MemoryStore
from messaging.log.topics import TopicRecord
from messaging.model.partition_of_key import murmur2, partition_index
from messaging.model.partitions import ONE_PARTITION, Partitions, divided
from messaging.model.row_format import (
    DELAYED,
    MESSAGES,
    TOPICS,
    message_key,
    row_prefix,
)
from messaging.read.poll import Poll
from messaging.service import MessagingService
from tests.messaging.world import (
    FlakyWorld,
    World,
    payloads,
    publish_final,
    request,
    settle_down,
)
from tuff.protocol.attributes import Attributes
from tuff.protocol.errors import (
    InvalidTopicPropertiesError,
    PartitionRequiredError,
    PartitionRetiredError,
    StorageUnavailableError,
    TopicNotFoundError,
)
from tuff.protocol.ids import MessageId, Offset, TopicId
from tuff.protocol.requests import Delay, PublishEntry, PublishRequest, RollbackDetail

ORDERS = TopicId("shop", "orders")
KEYS = st.none() | st.binary(max_size=3)


async def create(service: MessagingService, count: int) -> None:
    await service.topics.create(ORDERS, {"ttl": "100"}, partition_count=count)


def keyed(*keys: bytes | None, pointer: int | None = None) -> PublishRequest:
    """A message for each key, whose payload is the key."""
    return PublishRequest(
        pointer=pointer,
        payloads=[key or b"-" for key in keys],
        attributes=[None if key is None else Attributes(key) for key in keys],
    )


async def read(service: MessagingService, number: int, poll: Poll | None = None) -> list[bytes]:
    return payloads(await service.polls.poll(ORDERS.partition(number), poll or Poll()))


async def read_all(service: MessagingService) -> dict[int, list[bytes]]:
    numbers = service.topics.get(ORDERS).partitions.readable
    return {number: await read(service, number) for number in numbers}


# From the tests of Kafka's Java client (UtilsTest.testMurmur2).
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_a_key_has_the_hash_of_kafka(data: bytes, expected: int) -> None:
    assert murmur2(data) == expected % (1 << 32)
    assert partition_index(data, 7) == (expected & 0x7FFFFFFF) % 7


@given(
    st.lists(KEYS, min_size=1),
    st.lists(st.integers(0, 9), min_size=1, unique=True).map(sorted),
    st.integers(0, 30),
)
def test_each_message_goes_to_the_partition_of_its_key_in_order(
    keys: list[bytes | None], numbers: list[int], turn: int
) -> None:
    entry = PublishRequest(
        pointer=7,
        payloads=[b"%d" % index for index in range(len(keys))],
        ttls_s=list(range(1, len(keys) + 1)),
        attributes=[None if key is None else Attributes(key) for key in keys],
    )

    parts = divided(entry, numbers, turn=turn)

    assert [part.number for part in parts] == sorted({part.number for part in parts})
    for part in parts:
        places = [*map(int, part.entry.payloads)]
        assert places == sorted(places)
        assert part.places == (places if len(parts) > 1 else None)
    found = [
        (int(payload), number, ttl_s, attributes)
        for number, part, _ in parts
        for payload, ttl_s, attributes in zip(
            part.payloads, part.ttls_s or (), part.attributes or (), strict=True
        )
    ]
    assert all(part.entry.pointer == 7 for part in parts)
    assert sorted(found) == [
        (
            index,
            numbers[turn % len(numbers) if key is None else partition_index(key, len(numbers))],
            index + 1,
            None if key is None else Attributes(key),
        )
        for index, key in enumerate(keys)
    ]


@given(st.lists(st.integers(1, 20), max_size=6))
def test_no_number_of_a_partition_is_used_twice(counts: list[int]) -> None:
    partitions = ONE_PARTITION
    ever: list[int] = [0]
    for count in counts:
        before, partitions = partitions, partitions.resized(count)
        added = partitions.active[len(before.active) :]
        assert len(partitions.active) == count
        assert {*before.readable, *added} == {*partitions.readable}
        assert partitions.active[: len(before.active)] == before.active[:count]
        assert not {*added} & {*ever}
        ever += added
        for number in partitions.retired[::2]:
            partitions = partitions.without(number)

    record = TopicRecord(generation=1, properties={"ttl": "5"}, partitions=partitions)
    assert TopicRecord.from_bytes(b"t", record.to_bytes(b"t")) == record


def test_the_numbers_of_partitions_end() -> None:
    partitions = Partitions((0, 9_998), (), 9_999)

    assert partitions.resized(3).active == (0, 9_998, 9_999)
    with pytest.raises(InvalidTopicPropertiesError, match="1 more are possible, not 2"):
        partitions.resized(4)


async def test_partitions_are_created_changed_and_deleted_with_their_topic(
    world: World, service: MessagingService
) -> None:
    await create(service, 3)
    await service.topics.update(ORDERS, {"ttl": "200", "owner": "me"}, partition_count=2)
    await service.topics.update(ORDERS, {"ttl": "300"}, partition_count=4)

    assert await service.topics.live("shop") == [TopicId("shop", "orders")]
    assert service.topics.get(ORDERS).partitions == Partitions((0, 1, 3, 4), (2,), 5)
    for number in (0, 1, 2, 3, 4):
        assert service.topics.get(ORDERS.partition(number)).properties == {"ttl": "300"}
    await service.topics.delete(ORDERS)
    for topic in (ORDERS, *(ORDERS.partition(number) for number in range(5))):
        with pytest.raises(TopicNotFoundError):
            service.topics.get(topic)
    await create(service, 3)
    assert service.topics.get(ORDERS).partitions == Partitions((0, 1, 2), (), 3)
    generations = [service.topics.get(ORDERS.partition(n)).generation for n in range(3)]
    assert generations == [2, 2, 2]
    await service.close()
    async with world.running() as again:
        assert again.topics.get(ORDERS).partitions == Partitions((0, 1, 2), (), 3)
        with pytest.raises(TopicNotFoundError):
            again.topics.get(ORDERS.partition(3))


async def test_an_update_without_a_count_keeps_the_partitions(service: MessagingService) -> None:
    await create(service, 2)

    await service.topics.update(ORDERS, {"ttl": "7"})

    assert service.topics.get(ORDERS).partitions.active == (0, 1)
    assert service.topics.get(ORDERS.partition(1)).properties == {"ttl": "7"}


async def test_a_publish_is_divided_by_key_as_one_batch(
    world: World, service: MessagingService
) -> None:
    await create(service, 4)
    keys = [b"%d" % number for number in range(20)]

    published = await service.publisher.publish(ORDERS, keyed(*keys))

    assert await read_all(service) == {
        number: [key for key in keys if partition_index(key, 4) == number] for number in range(4)
    }
    assert list(published.partitions) == [0, 1, 2, 3]
    first = published.first.offset.to_int()
    assert published.last.offset.to_int() == first + 19
    found = {
        payload: MessageId.from_bytes(id).offset.to_int() - first
        for number in range(4)
        for id, payload in (await service.polls.poll(ORDERS.partition(number), Poll())).items
    }
    assert found == {key: int(key) for key in keys}


async def test_messages_without_a_key_between_others_are_read_back(
    world: World, service: MessagingService
) -> None:
    """Their rows have no attributes, and are no neighbours, so they must not be packed."""
    await create(service, 2)
    one, other = (
        next(b"%d" % n for n in range(9) if partition_index(b"%d" % n, 2) == i) for i in (0, 1)
    )
    keys = [None, other, None, other, None]

    await service.publisher.publish(ORDERS, keyed(*keys))
    await service.publisher.publish(ORDERS, keyed(*[one if key else None for key in keys]))
    await service.close()

    async with world.running() as again:
        assert await read_all(again) == {0: [b"-"] * 3 + [one] * 2, 1: [other] * 2 + [b"-"] * 3}


async def test_requests_without_keys_take_turns(service: MessagingService) -> None:
    await create(service, 3)

    found = [
        list((await service.publisher.publish(ORDERS, request(b"%d" % n, b"x"))).partitions)
        for n in range(4)
    ]

    assert found == [[0], [1], [2], [0]]
    assert await read_all(service) == {
        0: [b"0", b"x", b"3", b"x"],
        1: [b"1", b"x"],
        2: [b"2", b"x"],
    }


async def test_a_producer_may_choose_the_partition(service: MessagingService) -> None:
    await create(service, 3)

    for number in (2, 0):
        published = await service.publisher.publish(ORDERS.partition(number), keyed(b"a", b"b"))
        assert not published.partitions

    assert await read_all(service) == {0: [b"a", b"b"], 1: [], 2: [b"a", b"b"]}


async def test_only_one_partition_can_be_read(service: MessagingService) -> None:
    await create(service, 2)
    await service.publisher.publish(ORDERS.partition(0), request(b"zero"))

    for call in (
        lambda: service.polls.poll(ORDERS, Poll()),
        lambda: service.offsets.offsets(ORDERS),
        lambda: service.offsets.splits(ORDERS, start=None, end=None, count=1),
        lambda: service.holds_and_positions.set_position(ORDERS, "p", MessageId(1, 1)),
    ):
        with pytest.raises(PartitionRequiredError) as raised:
            await call()
        assert raised.value.members == {"partitions": [0, 1]}
    with pytest.raises(PartitionRequiredError):
        service.polls.latest(ORDERS)
    assert await read(service, 0) == [b"zero"]


async def test_a_waiting_poll_ends_when_its_topic_gets_a_second_partition(
    service: MessagingService,
) -> None:
    await create(service, 1)
    whole = await settle_down(service.polls.poll(ORDERS, Poll(wait_s=60)))
    first = await settle_down(service.polls.poll(ORDERS.partition(0), Poll(wait_s=60)))

    await service.topics.update(ORDERS, {"ttl": "100"}, partition_count=2)

    with pytest.raises(PartitionRequiredError):
        await asyncio.wait_for(whole, 5)
    await service.publisher.publish(ORDERS.partition(0), request(b"one"))
    assert payloads(await asyncio.wait_for(first, 5)) == [b"one"]


async def test_a_retired_partition_is_read_and_takes_nothing(
    world: World, service: MessagingService
) -> None:
    await create(service, 2)
    pointer = world.transactions.start(7)
    await service.publisher.publish(ORDERS.partition(1), request(b"old"))
    await service.publisher.store(ORDERS.partition(1), request(b"stored", pointer=pointer))

    await service.topics.update(ORDERS, {"ttl": "100"}, partition_count=1)

    with pytest.raises(PartitionRetiredError):
        await service.publisher.publish(ORDERS.partition(1), request(b"new"))
    with pytest.raises(PartitionRetiredError):
        await service.publisher.store(ORDERS.partition(1), request(b"new", pointer=pointer))
    with pytest.raises(PartitionRetiredError):
        await service.publisher.publish(ORDERS, request(pointer=pointer))
    entry = PublishEntry(topic=ORDERS, payloads=[], pointer=pointer)
    with pytest.raises(PartitionRetiredError):
        await service.publisher.check_entries([entry])
    await service.publisher.publish(ORDERS, keyed(b"a", b"b", b"c"))
    assert await read_all(service) == {0: [b"a", b"b", b"c"], 1: [b"old"]}


async def test_a_retirement_is_decided_before_the_publishes_behind_it(
    world: World, service: MessagingService
) -> None:
    """Requests that were accepted before it, and are written after it."""
    await create(service, 2)
    change = service.topics.update(ORDERS, {"ttl": "100"}, partition_count=1)
    results = await asyncio.gather(
        change,
        service.publisher.publish(ORDERS.partition(1), request(b"refused")),
        service.publisher.publish(ORDERS, keyed(*[b"%d" % n for n in range(9)])),
        return_exceptions=True,
    )

    assert isinstance(results[1], PartitionRetiredError)
    found = await read_all(service)
    assert (len(found[0]), found[1]) == (9, [])


async def test_a_retired_partition_is_deleted_when_its_messages_are_gone(
    world: World, service: MessagingService
) -> None:
    await create(service, 3)
    await service.publisher.publish(ORDERS.partition(1), request(b"old"))
    await service.topics.update(ORDERS, {"ttl": "100"}, partition_count=1)

    world.may_delete = False
    await service.cleaner.run_pass()
    assert service.topics.get(ORDERS).partitions == Partitions((0,), (1, 2), 3)
    world.may_delete = True
    await service.cleaner.run_pass()
    assert service.topics.get(ORDERS).partitions == Partitions((0,), (1,), 3)
    world.clock.now_ms += 100_001
    await service.cleaner.run_pass()

    assert service.topics.get(ORDERS).partitions == Partitions((0,), (), 3)
    with pytest.raises(TopicNotFoundError):
        service.topics.get(ORDERS.partition(1))
    await service.topics.update(ORDERS, {"ttl": "100"}, partition_count=2)
    assert service.topics.get(ORDERS).partitions == Partitions((0, 3), (), 4)


@pytest.mark.parametrize("pointer", [None, 7])
async def test_delayed_messages_are_divided_by_key(
    world: World, service: MessagingService, pointer: int | None
) -> None:
    await create(service, 3)
    keys = [b"%d" % number for number in range(12)]
    delays = [Delay(1_000 + int(key), is_time=False) for key in keys]
    if pointer is not None:
        world.transactions.start(pointer)

    request = keyed(*keys, pointer=pointer)._replace(delays=delays)
    published = await service.publisher.publish(ORDERS, request)
    if pointer is not None:
        world.commit(service, pointer)
    await looked(service)

    found = {
        number: await service.delayed.listed(ORDERS.partition(number), count_max=100)
        for number in range(3)
    }
    assert {number: [each.row.payload for each in rows] for number, rows in found.items()} == {
        number: [key for key in keys if partition_index(key, 3) == number] for number in range(3)
    }
    ids = sorted((each.id for rows in found.values() for each in rows), key=lambda id: id.offset)
    assert published.delayed is not None
    assert (ids[0], ids[-1]) == (published.delayed.first, published.delayed.last)
    first = ids[0].offset.to_int()
    assert [each.offset.to_int() - first for each in ids] == list(range(12))
    assert list(published.partitions) == [0, 1, 2]
    await service.delayed.cancel(ORDERS.partition(partition_index(keys[5], 3)), ids[5])
    world.clock.now_ms += 2_000
    await looked(service)
    assert await read_all(service) == {
        number: [key for key in keys if partition_index(key, 3) == number and key != keys[5]]
        for number in range(3)
    }


async def test_delayed_messages_of_an_aborted_transaction_enter_no_partition(
    world: World, service: MessagingService
) -> None:
    await create(service, 3)
    world.transactions.start(7)
    request = keyed(b"a", b"b", b"c", pointer=7)._replace(delays=[Delay(10, is_time=False)] * 3)
    await service.publisher.publish(ORDERS, request)
    await world.abort(service, 7)

    world.clock.now_ms += 1_000
    await looked(service)

    assert await read_all(service) == {0: [], 1: [], 2: []}


async def test_a_delayed_message_outlives_the_retirement_of_its_partition(
    service: MessagingService,
) -> None:
    await create(service, 2)
    delayed = request(b"later")._replace(delays=[Delay(1_000_000, is_time=False)])
    with pytest.raises(PartitionRequiredError):
        await service.delayed.listed(ORDERS, count_max=10)

    await service.publisher.publish(ORDERS.partition(1), delayed)
    await service.topics.update(ORDERS, {"ttl": "100"}, partition_count=1)
    await service.cleaner.run_pass()

    assert len(await service.delayed.listed(ORDERS.partition(1), count_max=10)) == 1
    assert await service.delayed.listed(ORDERS.partition(0), count_max=10) == []


async def looked(service: MessagingService) -> None:
    """Let the service look at all topics whose time has come."""
    service.state.due_times.changed.set()
    for _ in range(200):
        await asyncio.sleep(0)


class _EnteringStore(MemoryStore):
    """A store in which a batch lets the delayed messages enter, once a scan of messages has
    ended."""

    is_armed = False

    def scan(self, start: bytes, stop: bytes, **how: Any) -> Chunks:
        yield from super().scan(start, stop, **how)
        delayed = [key for key in self.rows if key.startswith(DELAYED)]
        if self.is_armed and start.startswith(MESSAGES) and delayed:
            prefix = row_prefix(delayed[0])
            self.write([(message_key(prefix, Offset(1, 1)), b""), (delayed[0], None)])


async def test_a_message_that_enters_a_retired_partition_is_not_deleted_with_it() -> None:
    stores: list[_EnteringStore] = []
    world = World(lambda: stores.append(_EnteringStore(world.rows)) or stores[-1])
    async with world.running() as service:
        await create(service, 2)
        delayed = request(b"later")._replace(delays=[Delay(1_000_000, is_time=False)])
        await service.publisher.publish(ORDERS.partition(1), delayed)
        await service.topics.update(ORDERS, {"ttl": "100"}, partition_count=1)

        stores[-1].is_armed = True
        await service.topics.delete_emptied()

        assert service.topics.get(ORDERS).partitions.retired == (1,)


async def test_a_transaction_publishes_and_stores_divided(
    world: World, service: MessagingService
) -> None:
    await create(service, 3)
    keys = [b"%d" % number for number in range(12)]
    pointer = world.transactions.start(7)
    await service.publisher.store(ORDERS, keyed(*keys, pointer=pointer))
    assert await read_all(service) == {0: [], 1: [], 2: []}

    stored = await service.publisher.publish(ORDERS, request(pointer=pointer))
    inline = await service.publisher.publish(ORDERS, keyed(*keys, pointer=pointer))
    await publish_final(service, [PublishEntry(topic=ORDERS, payloads=keys, pointer=pointer)])

    assert list(stored.partitions) == list(inline.partitions) == [0, 1, 2]
    by_key = {n: [key for key in keys if partition_index(key, 3) == n] for n in range(3)}
    # The two keyed requests had the turns 0 and 1.
    assert await read_all(service) == {
        n: by_key[n] * 2 + (keys if n == 2 else []) for n in range(3)
    }


@pytest.mark.parametrize("change", ["retired", "created with 1", "created with 2"])
async def test_a_reference_is_refused_if_a_partition_with_stored_messages_is_gone(
    world: World, service: MessagingService, change: str
) -> None:
    """Without that, the transaction would commit without these messages."""
    await create(service, 3)
    pointer = world.transactions.start(7)
    keys = [key for key in map(b"%d".__mod__, range(9)) if partition_index(key, 3) == 2]
    await service.publisher.store(ORDERS, keyed(*keys, pointer=pointer))

    if change == "retired":
        await service.topics.update(ORDERS, {"ttl": "100"}, partition_count=1)
        await service.cleaner.run_pass()
        assert service.topics.get(ORDERS).partitions == Partitions((0,), (), 3)
    else:
        await service.topics.delete(ORDERS)
        await create(service, int(change[-1]))

    entry = PublishEntry(topic=ORDERS, payloads=[], pointer=pointer)
    for call in (
        service.publisher.publish(ORDERS, request(pointer=pointer)),
        service.publisher.check_entries([entry]),
        publish_final(service, [entry]),
    ):
        with pytest.raises(TopicNotFoundError):
            await call


async def test_a_reference_without_stored_messages_publishes_nothing(
    world: World, service: MessagingService
) -> None:
    await create(service, 2)
    pointer = world.transactions.start(7)

    published = await service.publisher.publish(ORDERS, request(pointer=pointer))

    assert list(published.partitions) == [0]
    assert await read_all(service) == {0: [], 1: []}


@pytest.mark.parametrize("one", [False, True])
async def test_a_rollback_hides_a_publish_in_all_partitions(
    world: World, service: MessagingService, *, one: bool
) -> None:
    await create(service, 2)
    pointer = world.transactions.start(7)
    keys = [b"%d" % number for number in range(8)]
    published = await service.publisher.publish(ORDERS, keyed(*keys, pointer=pointer))
    await service.topics.update(ORDERS, {"ttl": "100"}, partition_count=1)
    assert published.rollback == RollbackDetail(
        pointer, published.first.offset, published.last.offset
    )

    await service.publisher.rollback(ORDERS.partition(1) if one else ORDERS, published.rollback)
    world.commit(service, pointer)

    snapshot = Poll(transaction=await world.transactions.snapshot())
    zero = [key for key in keys if partition_index(key, 2) == 0]
    assert await read(service, 1, snapshot) == []
    assert await read(service, 0, snapshot) == (zero if one else [])


async def test_a_truncation_of_a_topic_is_one_of_all_partitions(service: MessagingService) -> None:
    await create(service, 2)
    keys = [b"%d" % number for number in range(8)]
    await service.publisher.publish(ORDERS, keyed(*keys))

    assert await service.topics.truncate(ORDERS.partition(0), 1 << 62) is None
    found = await read_all(service)
    assert (found[0], bool(found[1])) == ([], True)
    assert await service.topics.truncate(ORDERS, 0) == MessageId.from_bytes(
        (await service.polls.poll(ORDERS.partition(1), Poll())).items[0][0]
    )
    assert await service.topics.truncate(ORDERS, 1 << 62) is None
    assert await read_all(service) == {0: [], 1: []}


@pytest.mark.parametrize("takes_effect", [False, True])
@pytest.mark.parametrize("change", ["create", "publish", "retire", "delete"])
async def test_a_failed_write_changes_all_partitions_or_none(
    change: str, *, takes_effect: bool
) -> None:
    world = FlakyWorld()

    def tables() -> list[tuple[bytes, bytes]]:
        return [row for row in sorted(world.rows.items()) if row[0][:1] in MESSAGES + TOPICS]

    async def attempt(service: MessagingService) -> None:
        match change:
            case "create":
                await create(service, 3)
            case "publish":
                await service.publisher.publish(ORDERS, keyed(b"e", b"f", b"g", b"h"))
            case "retire":
                await service.topics.update(ORDERS, {"ttl": "9"}, partition_count=1)
            case _:
                await service.topics.delete(ORDERS)

    async with world.running() as service:
        if change != "create":
            await create(service, 3)
            await service.publisher.publish(ORDERS, keyed(b"a", b"b", b"c", b"d"))
        before = tables()
        world.fail_write(0, takes_effect=takes_effect)

        failed = await settle_down(attempt(service))
        await asyncio.sleep(0)
        await service.tick()
        if takes_effect:
            await failed
        else:
            with pytest.raises(StorageUnavailableError):
                await failed
            assert tables() == before
            await attempt(service)

        after, changed = tables(), 4 if change == "publish" else 3
        assert len({*after} - {*before}) == changed
