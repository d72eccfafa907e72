"""Counts of messages: a topic's, and those that a reader has not read yet (protocol §3.6)."""

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messaging.engines.row_store import Store
from messaging.model.visibility import Undecided
from messaging.read.counts import MessageCount, count_messages
from messaging.service import MessagingService
from tests.messaging.packed_stores import packed_store
from tests.messaging.scan_model import SNAPSHOT, ModelRow, build, query, read, start_number, topics
from tests.messaging.world import AUDIT, NOON_MS, World, publish
from tuff.protocol.errors import StorageUnavailableError, TopicNotFoundError
from tuff.protocol.ids import FIRST_ID, MessageId, TopicId
from tuff.protocol.requests import PublishRequest


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def service(world: World) -> AsyncIterator[MessagingService]:
    async with world.running(audit={}) as running:
        yield running


async def count(service: MessagingService, *, after: MessageId | None = None) -> int:
    return (await service.counts.count(AUDIT, after=after)).count


@given(rows=topics, data=st.data())
def test_a_count_is_that_of_the_messages_that_a_reader_gets(
    rows: list[ModelRow], data: st.DataObject
) -> None:
    table, _, places = build(rows)
    known = [MessageId(*place, *at) for place, stored in places for at in [(0, 0), *stored]]
    after = data.draw(st.sampled_from([FIRST_ID, *known]))
    asked = query(
        start=start_number(after, inclusive=False), snapshot=SNAPSHOT, undecided=Undecided.SKIP
    )
    expected = read(table, asked).items

    for store in (Store(table), packed_store(table.rows)):
        found, _ = count_messages(store, asked, records_count_max=1_000)
        assert (found.count, found.is_lower_bound) == (len(expected), False)
        times = {int.from_bytes(each[:8], "big") for each, _ in expected}
        assert found.oldest_ms == min(times, default=None)


async def test_messages_of_one_publish_are_counted(world: World, service: MessagingService) -> None:
    published = await publish(service, b"a", b"b", b"c", b"d")
    world.clock.now_ms += 5_000

    found = await service.counts.count(AUDIT, after=published.first)

    assert found == MessageCount(3, is_lower_bound=False, oldest_ms=NOON_MS)
    assert found.age_ms(now_ms=world.clock.now_ms) == 5_000
    assert await count(service) == 4
    assert await count(service, after=published.last) == 0


async def test_rows_that_were_rolled_back_do_not_count(
    world: World, service: MessagingService
) -> None:
    await publish(service, b"a", pointer=world.transactions.start(1))
    await publish(service, b"b", pointer=world.transactions.start(2))
    assert await count(service) == 0
    world.commit(service, 1)
    assert await count(service) == 1

    await world.abort(service, 2)

    assert await count(service) == 1
    world.transactions.is_up = False
    assert await count(service) == 1


async def test_messages_behind_an_open_transaction_count(
    world: World, service: MessagingService
) -> None:
    await publish(service, b"a", pointer=world.transactions.start(1))
    await publish(service, b"b")

    assert await count(service) == 1


async def test_messages_that_have_expired_do_not_count(
    world: World, service: MessagingService
) -> None:
    await publish(service, b"a", ttl_s=1)
    await publish(service, b"b")

    world.clock.now_ms += 1_001

    assert await count(service) == 1


async def test_a_long_count_is_a_lower_bound(service: MessagingService) -> None:
    for _ in range(3):
        await publish(service, b"a", b"b")

    found = await service.counts.counts_of([(AUDIT, None)] * 2, records_count_max=0)

    assert [each.count for each in found] == [6, 6]  # each count reads some records in any case
    query_of_all = service.counts._query(AUDIT, None, None)
    bounded, passed_count = count_messages(
        service.store.require_up(), query_of_all, records_count_max=2
    )
    assert (bounded.is_lower_bound, passed_count) == (True, 2)
    assert 0 < bounded.count < 6


async def test_a_topic_counts_all_its_partitions(service: MessagingService) -> None:
    made = TopicId("default", "orders")
    await service.topics.create(made, {}, partition_count=3)
    assert await service.counts.of_topic(made) == MessageCount()
    for number in range(3):
        await service.publisher.publish(
            made.partition(number), PublishRequest(None, [b"a"] * (number + 1))
        )

    assert (await service.counts.of_topic(made)).count == 6
    assert (await service.counts.of_topic(made.partition(1))).count == 2


async def test_a_missing_topic_has_no_count(service: MessagingService) -> None:
    with pytest.raises(TopicNotFoundError):
        await service.counts.of_topic(TopicId("default", "missing"))


async def test_a_position_behind_which_nothing_can_be_read_is_not_behind(
    world: World, service: MessagingService
) -> None:
    read_to = (await publish(service, b"a")).last
    await service.holds_and_positions.set_position(AUDIT, "report", read_to)
    world.clock.now_ms += 9_000
    await publish(service, b"b", pointer=world.transactions.start(1))
    await world.abort(service, 1)
    (found,) = await service.holds_and_positions.position_lags(count_max=1)
    assert (found.lag.behind_ms, found.lag.unread.count) == (0, 0)

    await publish(service, b"c", b"d")

    (found,) = await service.holds_and_positions.position_lags(count_max=1)
    assert (found.lag.behind_ms, found.lag.unread.count) == (9_000, 2)
    assert found.lag.unread.oldest_ms == world.clock.now_ms


async def test_a_store_that_is_not_open_yet_counts_nothing(world: World) -> None:
    """A scrape of the metrics while the server started ended with an AttributeError."""
    with pytest.raises(StorageUnavailableError):
        await world.new_service().inspection.counts(count_max=1)
