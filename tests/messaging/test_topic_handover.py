"""Servers of a cluster take topics over from each other, over one model of the shared tables
(decision 0042): nothing is lost, hidden or written by two servers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import pytest

from kernel.owner_floor import NO_FLOOR, Floor
from messaging.model.row_format import INDEX, MESSAGES, PAYLOADS
from messaging.read.poll import Poll
from tests.cluster.shared_store import SharedTables
from tests.messaging.members import Member, new_tables
from tests.messaging.test_delayed import looked
from tests.messaging.world import (
    AUDIT,
    COMMITTED,
    NOON_MS,
    in_thread,
    polled,
    publish,
    request,
    settle_down,
)
from tuff.protocol.errors import (
    OwnershipMovingError,
    StorageUnavailableError,
    TopicNotFoundError,
)
from tuff.protocol.ids import MessageId, Offset, TopicId
from tuff.protocol.requests import Delay, PublishRequest

T = TypeVar("T")
OTHER = TopicId("default", "other")
HOUR_MS = 3_600_000


@pytest.fixture
def tables() -> SharedTables:
    return new_tables()


@pytest.fixture
async def a(tables: SharedTables) -> AsyncIterator[Member]:
    """The owner of AUDIT and OTHER."""
    async with Member(tables, "a").serving(AUDIT, OTHER) as member:
        yield member


@pytest.fixture
async def b(tables: SharedTables) -> AsyncIterator[Member]:
    async with Member(tables, "b").serving() as member:
        yield member


def position(member: Member, name: str) -> MessageId:
    return member.service.holds_and_positions.position(AUDIT, name)[1].position


async def ids(member: Member) -> list[bytes]:
    return [each for each, _ in (await member.service.polls.poll(AUDIT, Poll())).items]


async def test_a_server_starts_without_topics_and_says_that_they_may_be_elsewhere(
    a: Member, b: Member
) -> None:
    assert a.handover.topics() == [AUDIT, OTHER]
    assert b.handover.topics() == []
    for call in (publish(b.service, b"x"), polled(b.service), b.service.topics.create(AUDIT, {})):
        with pytest.raises(OwnershipMovingError, match="default:audit is moving"):
            await call


async def test_the_new_owner_has_everything_of_the_topic(a: Member, b: Member) -> None:
    await a.service.topics.update(AUDIT, {"ttl": "77", "color": "red"})
    await publish(a.service, b"1")
    first = MessageId.from_bytes((await ids(a))[0])
    await a.service.holds_and_positions.hold(AUDIT, "held", first, max_age_ms=HOUR_MS)
    await a.service.holds_and_positions.set_position(AUDIT, "read", first)
    a.transactions.start(7)
    await publish(a.service, b"2", pointer=7)

    await a.pass_on(AUDIT, b)

    assert (a.handover.topics(), b.handover.topics()) == ([OTHER], [AUDIT])
    assert b.service.topics.get(AUDIT).properties == {"ttl": "77", "color": "red"}
    assert b.service.holds_and_positions.holds(AUDIT)["held"].first == first
    assert position(b, "read") == first
    assert [each.topic for each in b.service.state.index.ranges(7)] == [AUDIT]
    assert list(a.service.state.index.pointers()) == []
    assert await polled(b.service) == [b"1", b"2"]
    await publish(b.service, b"3")
    assert await polled(b.service) == [b"1", b"2", b"3"]


async def test_only_the_rows_of_the_topic_come_with_it(a: Member, b: Member) -> None:
    a.transactions.start(7)
    await a.service.publisher.publish(OTHER, request(b"1", pointer=7))
    await a.pass_on(AUDIT, b)

    assert list(b.service.state.index.pointers()) == []
    assert list(a.service.state.index.pointers()) == [7]
    with pytest.raises(OwnershipMovingError):
        b.service.topics.get(OTHER)


async def test_ids_continue_above_the_floor_of_an_owner_with_a_faster_clock(
    a: Member, b: Member
) -> None:
    a.clock.now_ms += HOUR_MS
    await publish(a.service, b"1")
    await a.service.holds_and_positions.set_position(AUDIT, "read", MessageId(1, 0))

    await a.pass_on(AUDIT, b)
    await publish(b.service, b"2")
    await b.service.holds_and_positions.set_position(AUDIT, "read", MessageId(2, 0))

    assert await polled(b.service) == [b"1", b"2"]
    assert await ids(b) == sorted(await ids(b))
    await b.pass_on(AUDIT, a)
    assert await polled(a.service) == [b"1", b"2"]
    assert position(a, "read") == MessageId(2, 0)


async def test_all_rows_of_a_fenced_owner_are_there_and_it_acknowledges_no_more(
    a: Member, b: Member
) -> None:
    a.clock.now_ms += HOUR_MS
    await publish(a.service, b"1")
    await a.service.holds_and_positions.set_position(AUDIT, "read", MessageId(1, 0))

    await b.fence(a, AUDIT)
    await b.service.holds_and_positions.set_position(AUDIT, "read", MessageId(2, 0))
    with pytest.raises(StorageUnavailableError, match="taken"):
        await publish(a.service, b"late")
    await publish(b.service, b"2")
    a.opener.stores[0].flush()  # its background work was paused all the time
    b.opener.store.flush()

    async with Member(b.tables, "c").serving() as c:
        await c.fence(b, AUDIT)
        assert await polled(c.service) == [b"1", b"2"]
        assert position(c, "read") == MessageId(2, 0)


async def test_a_batch_in_flight_during_a_take_is_not_visible_early(
    a: Member, tables: SharedTables
) -> None:
    b = Member(tables, "b")
    gate = b.gate_writes()
    async with b.serving(third := TopicId("default", "third")):
        a.clock.now_ms += HOUR_MS
        await publish(a.service, b"1")
        floor = await a.handover.give(AUDIT)
        gate.clear()
        publishing = await settle_down(b.service.publisher.publish(third, request(b"slow")))

        taking = await settle_down(b.handover.take([AUDIT], floor))

        assert b.service.state.high_water_mark < Offset(NOON_MS + HOUR_MS, 0)
        assert b.handover.topics() == [third]
        assert (await b.service.polls.poll(third, Poll())).items == []
        gate.set()
        await publishing
        await taking
        assert await polled(b.service) == [b"1"]


async def test_a_topic_that_is_given_away_acknowledges_what_is_under_way_and_refuses_the_rest(
    tables: SharedTables, b: Member
) -> None:
    a = Member(tables, "a")
    gate = a.gate_writes()
    async with a.serving(AUDIT):
        gate.clear()
        under_way = await settle_down(publish(a.service, b"1"))
        queued = await settle_down(publish(a.service, b"2"))
        giving = await settle_down(a.handover.give(AUDIT))

        with pytest.raises(OwnershipMovingError, match="try again"):
            await publish(a.service, b"3")
        gate.set()
        await under_way
        with pytest.raises(OwnershipMovingError, match="try again"):
            await queued
        await b.handover.take([AUDIT], await giving)
        assert await polled(b.service) == [b"1"]


async def test_a_read_under_way_does_not_hide_later_messages_from_the_next_readers(
    a: Member, b: Member
) -> None:
    """What it read is cached, after the topic was given away."""
    await publish(a.service, b"1", b"2")
    a.service.state.tail_cache.restart(a.service.state.high_water_mark)
    until_given = asyncio.Event()

    async def slow(function: Callable[[], T]) -> T:
        a.service.store.in_thread_read = in_thread
        found = function()
        await until_given.wait()
        return found

    a.service.store.in_thread_read = slow
    reading = await settle_down(polled(a.service))
    floor = await a.handover.give(AUDIT)
    until_given.set()
    assert await reading == [b"1", b"2"]
    assert a.service.state.tail_cache.size_bytes > 0

    await b.handover.take([AUDIT], floor)
    await publish(b.service, b"3")
    await b.pass_on(AUDIT, a)
    await publish(a.service, b"4")

    assert await polled(a.service) == [b"1", b"2", b"3", b"4"]


async def test_the_memory_of_a_topic_that_was_given_away_is_free(a: Member) -> None:
    await publish(a.service, bytes(10_000))
    assert a.service.state.tail_cache.size_bytes > 10_000

    await a.handover.give(AUDIT)

    assert a.service.state.tail_cache.size_bytes == 0


async def test_a_topic_that_comes_back_has_what_the_other_server_wrote(
    a: Member, b: Member
) -> None:
    """Neither the cache of messages nor the idle intervals of the first server know of it."""
    await publish(a.service, b"1")
    await a.pass_on(AUDIT, b)
    b.clock.now_ms += 10
    await publish(b.service, b"2")
    a.clock.now_ms = NOON_MS + 10_000
    await a.service.publisher.publish(OTHER, request(b"beside it"))  # an idle interval ends
    await b.pass_on(AUDIT, a)
    await publish(a.service, b"3")

    assert await polled(a.service) == [b"1", b"2", b"3"]
    after_first = MessageId.from_bytes((await ids(a))[0])
    found = await a.service.polls.poll(AUDIT, Poll(start=after_first, inclusive=False))
    assert [payload for _, payload in found.items] == [b"2", b"3"]


async def test_a_reader_that_missed_expired_messages_of_another_owner_is_told(
    a: Member, b: Member
) -> None:
    await a.service.topics.update(AUDIT, {"ttl": "5"})
    await publish(a.service, b"1")
    last_read = MessageId.from_bytes((await ids(a))[0])
    await a.pass_on(AUDIT, b)
    b.clock.now_ms += 1_000
    await publish(b.service, b"2")
    a.clock.now_ms += 8_000
    await a.service.publisher.publish(OTHER, request(b"beside it"))  # an idle interval ends
    await b.pass_on(AUDIT, a)

    found = await a.service.polls.poll(AUDIT, Poll(start=last_read, inclusive=False))

    assert found.items == []
    assert found.expired


async def test_a_long_poll_wakes_when_its_topic_is_given_away(a: Member, b: Member) -> None:
    polling = await settle_down(a.service.polls.poll(AUDIT, Poll(wait_s=60)))
    assert a.service.polls.waiting_count == 1

    await a.pass_on(AUDIT, b)

    with pytest.raises(OwnershipMovingError, match="has moved"):
        await asyncio.wait_for(polling, 5)


@pytest.mark.parametrize("takes_effect", [False, True])
async def test_a_topic_stays_served_if_its_handover_fails_in_the_store(
    a: Member, b: Member, takes_effect: bool
) -> None:
    await publish(a.service, b"1")
    first = a.opener.store
    a.opener.store.failures.write = "the gateway is gone"
    a.opener.store.failures.takes_effect = takes_effect
    if takes_effect:  # the batch is found again, so it succeeded
        await b.handover.take([AUDIT], await a.handover.give(AUDIT))
    else:
        with pytest.raises(StorageUnavailableError, match="proven not to be there"):
            await a.handover.give(AUDIT)
        assert a.handover.topics() == [AUDIT, OTHER]
        await publish(a.service, b"2")
        await a.pass_on(AUDIT, b)
    assert a.opener.store is not first
    assert await polled(b.service) == ([b"1"] if takes_effect else [b"1", b"2"])


async def test_a_topic_stays_served_while_its_rows_do_not_get_into_the_tables(
    a: Member, b: Member
) -> None:
    await publish(a.service, b"1")
    a.opener.store.failures.wait_until_shared = "the tables are gone"

    with pytest.raises(StorageUnavailableError, match="tables are gone"):
        await a.handover.give(AUDIT)

    await publish(a.service, b"2")
    await a.pass_on(AUDIT, b)
    assert await polled(b.service) == [b"1", b"2"]


async def test_a_take_that_fails_can_be_repeated(a: Member, b: Member) -> None:
    a.clock.now_ms += HOUR_MS
    await publish(a.service, b"1")
    floor = await a.handover.give(AUDIT)

    b.opener.store.failures.read = "the tables are gone"
    with pytest.raises(StorageUnavailableError, match="tables are gone"):
        await b.handover.take([AUDIT], floor)
    b.opener.store.failures.write = "the journal is gone"
    with pytest.raises(StorageUnavailableError, match="proven not to be there"):
        await b.handover.take([AUDIT], floor)
    assert b.handover.topics() == []

    await b.handover.take([AUDIT], floor)
    await publish(b.service, b"2")
    assert await polled(b.service) == [b"1", b"2"]
    assert b.opener.store.cell_ms > floor.cell_ms


async def test_cells_stay_above_the_floor_if_the_store_is_opened_again_during_a_take(
    a: Member, tables: SharedTables
) -> None:
    b = Member(tables, "b")
    gate = b.gate_writes()
    async with b.serving(TopicId("default", "third")):
        a.clock.now_ms += HOUR_MS
        await a.service.holds_and_positions.set_position(AUDIT, "read", MessageId(1, 0))
        floor = await a.handover.give(AUDIT)
        gate.clear()
        b.opener.store.failures.write = "the journal is gone"
        failing = await settle_down(b.service.record_store_id("1"))
        taking = await settle_down(b.handover.take([AUDIT], floor))
        gate.set()
        with pytest.raises(StorageUnavailableError):
            await failing
        await taking

        await b.service.holds_and_positions.set_position(AUDIT, "read", MessageId(2, 0))

        assert b.opener.store.cell_ms > floor.cell_ms
        async with Member(tables, "c").serving() as c:
            await b.pass_on(AUDIT, c)
            assert position(c, "read") == MessageId(2, 0)


async def test_a_server_that_is_fenced_later_does_not_hide_rows_of_the_new_owner(
    a: Member, b: Member
) -> None:
    """The batch that it writes during the handover says that rows of the topic may be missing from
    the tables, and a fence puts them again with the time of its newest batch."""
    await a.service.holds_and_positions.set_position(AUDIT, "read", MessageId(1, 0))
    store, clock = a.opener.store, a.clock
    floors: list[Floor] = []

    def slow() -> None:
        # The wait for the rows of the topic ends here, while the batch takes its slot.
        store.failures.between = lambda: None
        store.wait_until_shared()

    store.failures.between = slow
    clock.now_ms += 5_000
    await a.service.publisher.publish(OTHER, request(b"beside it"))
    floors.append(await a.handover.give(AUDIT))
    await b.handover.take([AUDIT], floors[0])
    await b.service.holds_and_positions.set_position(AUDIT, "read", MessageId(2, 0))
    b.opener.store.flush()

    async with Member(b.tables, "c").serving() as c:
        await c.fence(a)
        await b.pass_on(AUDIT, c)
        assert position(c, "read") == MessageId(2, 0)


async def test_no_later_batch_says_that_rows_of_a_topic_that_was_given_away_may_be_missing(
    a: Member, tables: SharedTables
) -> None:
    await publish(a.service, b"1")
    settled_to = len(tables.journals[b"a:1"])

    await a.handover.give(AUDIT)

    assert tables.journals[b"a:1"][-1].first > settled_to


async def test_topics_that_are_given_away_at_the_same_time_share_a_wait_for_their_rows(
    tables: SharedTables,
) -> None:
    topics = [TopicId("ns", f"t{number}") for number in range(8)]
    async with Member(tables, "a").serving(*topics) as a:
        wait, waits = a.opener.store.wait_until_shared, list[None]()

        def counted() -> None:
            waits.append(None)
            wait()

        a.opener.store.wait_until_shared = counted
        await asyncio.gather(*map(a.handover.give, topics))

        assert len(waits) == 2  # the one that had begun already, and one for all others
        assert a.handover.topics() == []


async def test_index_rows_of_a_committed_transaction_are_deleted_before_the_new_owner_reads(
    a: Member, b: Member, tables: SharedTables
) -> None:
    a.transactions.start(7)
    await publish(a.service, b"1", pointer=7)
    a.commit(a.service, 7)

    await a.pass_on(AUDIT, b)

    assert list(b.service.state.index.pointers()) == []
    assert not [key for key in tables.rows() if key.startswith(INDEX)]


@pytest.mark.parametrize("is_written", [False, True], ids=["in the wait", "in the last batch"])
async def test_index_rows_that_settle_during_the_handover_are_deleted_in_time(
    tables: SharedTables, b: Member, is_written: bool
) -> None:
    a = Member(tables, "a")
    gate = a.gate_writes()
    async with a.serving(AUDIT):
        a.transactions.start(7)
        await publish(a.service, b"1", pointer=7)
        wait = a.opener.store.wait_until_shared

        def waited() -> None:
            a.opener.store.wait_until_shared = wait
            if is_written:
                gate.clear()
            else:
                a.commit(a.service, 7)
            wait()

        a.opener.store.wait_until_shared = waited
        giving = await settle_down(a.handover.give(AUDIT))
        if is_written:
            a.commit(a.service, 7)
        gate.set()
        await b.handover.take([AUDIT], await giving)

        assert list(b.service.state.index.pointers()) == []
        assert not [key for key in tables.rows() if key.startswith(INDEX)]


async def test_rows_of_an_aborted_transaction_are_marked_after_a_handover_that_failed(
    tables: SharedTables,
) -> None:
    a = Member(tables, "a")
    gate = a.gate_writes()
    async with a.serving(AUDIT):
        a.transactions.start(7)
        await publish(a.service, b"1", pointer=7)
        gate.clear()
        a.opener.store.failures.write = "the gateway is gone"
        giving = await settle_down(a.handover.give(AUDIT))
        marking = await settle_down(a.abort(a.service, 7))
        gate.set()
        with pytest.raises(StorageUnavailableError):
            await giving
        await asyncio.gather(marking, return_exceptions=True)
        await a.service.tick()

        assert await polled(a.service, COMMITTED) == []
        assert list(a.service.state.index.pointers()) == []


async def test_rows_of_a_topic_that_is_given_away_are_not_marked_here(
    tables: SharedTables, b: Member
) -> None:
    a = Member(tables, "a")
    gate = a.gate_writes()
    async with a.serving(AUDIT):
        a.transactions.start(7)
        await publish(a.service, b"1", pointer=7)
        gate.clear()
        giving = await settle_down(a.handover.give(AUDIT))
        marking = await settle_down(a.abort(a.service, 7))
        gate.set()
        with pytest.raises(OwnershipMovingError):
            await marking
        await b.handover.take([AUDIT], await giving)
        before = dict(tables.rows())

        await a.service.tick()
        a.opener.store.flush()

        assert tables.rows() == before
        b.transactions.aborted.add(7)
        assert [each.topic for each in b.service.state.index.ranges(7)] == [AUDIT]
        await b.service.rows.roll_back([7])
        assert await polled(b.service, COMMITTED) == []


async def test_a_retention_pass_writes_nothing_of_a_topic_that_was_given_away(
    tables: SharedTables, b: Member
) -> None:
    a = Member(tables, "a")
    async with a.serving(AUDIT, OTHER):
        await a.service.topics.update(AUDIT, {"ttl": "5"})
        await publish(a.service, b"1")
        a.clock.now_ms += 60_000
        passing = asyncio.ensure_future(a.service.cleaner.run_pass())
        await asyncio.sleep(0)  # it has read which topics there are
        floor = await a.handover.give(AUDIT)
        await b.handover.take([AUDIT], floor)
        before = dict(tables.rows())
        await passing
        a.opener.store.flush()

        assert tables.rows() == before
        assert await polled(b.service) == [b"1"]


async def test_a_retention_pass_reads_no_rows_of_topics_that_others_own(
    tables: SharedTables, a: Member, b: Member
) -> None:
    await publish(a.service, b"1")
    await a.pass_on(OTHER, b)
    await b.service.publisher.publish(OTHER, request(b"2"))
    a.opener.store.flush()
    b.opener.store.flush()
    a.opener.store.scanned.clear()

    await a.service.cleaner.run_pass()

    names = {
        key[1:].split(b":")[1] for key in a.opener.store.scanned if key[:1] in (MESSAGES, PAYLOADS)
    }
    assert names == {b"audit"}


async def test_each_pass_of_a_patrol_reads_some_topics_until_all_were_read(
    tables: SharedTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that came in the meantime, and not those that were given away."""
    monkeypatch.setattr("messaging.retention.cleaner.PATROL_SCANS_MAX", 2)
    topics = [TopicId("default", f"t{number}") for number in range(5)]
    a, b = Member(tables, "a"), Member(tables, "b")
    async with a.serving(*topics[1:]), b.serving(topics[0]):
        for topic in topics:
            owner = b if topic == topics[0] else a
            await owner.service.publisher.publish(topic, request(b"short", ttl_s=10))
        for each in (a, b):
            each.clock.now_ms += 20_000
        dropped = [(await a.service.cleaner.run_pass()).dropped_count]
        await b.pass_on(topics[0], a)
        await a.pass_on(topics[3], b)
        dropped += [(await a.service.cleaner.run_pass()).dropped_count for _ in range(5)]
        of_b = (await b.service.cleaner.run_pass()).dropped_count

        assert dropped == [2, 1, 0, 0, 1, 0]
        assert of_b == 1


async def test_a_patrol_continues_at_the_row_where_the_pass_before_ended(
    tables: SharedTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("messaging.retention.cleaner.CHUNK_ROWS_MAX", 2)
    monkeypatch.setattr("messaging.retention.cleaner.PATROL_ROWS_MAX", 2)
    topics = [TopicId("default", f"t{number}") for number in range(4)]
    async with Member(tables, "a").serving(*topics) as a:
        for topic in topics:
            await a.service.publisher.publish(topic, request(b"long"))
            a.clock.now_ms += 1_000
            await a.service.publisher.publish(topic, request(b"short", ttl_s=10))
        a.clock.now_ms += 20_000

        dropped = [(await a.service.cleaner.run_pass()).dropped_count for _ in range(4)]

        assert dropped == [1, 1, 1, 1]


@pytest.mark.parametrize("ends", [False, True])
async def test_the_next_owner_keeps_the_payloads_of_a_transaction_that_lived_too_long(
    a: Member, b: Member, *, ends: bool
) -> None:
    """Its retention dropped them while the message was live: it did not know how long a transaction
    had lived at the owner before."""
    await a.service.topics.update(AUDIT, {"ttl": "100"})
    a.transactions.start(7)
    await a.service.publisher.store(AUDIT, request(b"stored", pointer=7))
    a.clock.now_ms += 5_000_000
    await publish(a.service, pointer=7)
    a.commit(a.service, 7)
    await a.service.tick()
    if ends:
        await b.fence(a, AUDIT)
    else:
        await a.pass_on(AUDIT, b)
    b.clock.now_ms = a.clock.now_ms + 99_999

    await b.service.cleaner.run_pass()

    assert await polled(b.service) == [b"stored"]


async def test_a_deleted_topic_can_be_taken_and_given_and_created_elsewhere(
    a: Member, b: Member
) -> None:
    await publish(a.service, b"of the first")
    await a.service.topics.delete(AUDIT)
    await a.pass_on(AUDIT, b)
    with pytest.raises(TopicNotFoundError):
        await polled(b.service)
    assert b.handover.generation(AUDIT) == -1

    await b.service.topics.create(AUDIT, {})
    await publish(b.service, b"of the second")
    await b.pass_on(AUDIT, a)

    assert a.handover.generation(AUDIT) == 2
    assert await polled(a.service) == [b"of the second"]


async def test_a_topic_that_was_never_created_can_be_taken_and_given(a: Member, b: Member) -> None:
    new = TopicId("default", "new")
    await a.handover.take([new], NO_FLOOR)
    assert a.handover.generation(new) == 0
    with pytest.raises(TopicNotFoundError):
        a.service.topics.get(new)

    await a.pass_on(new, b)

    await b.service.topics.create(new, {})
    assert b.handover.generation(new) == 1


async def test_a_take_that_is_repeated_changes_nothing(tables: SharedTables) -> None:
    """Its caller was cancelled, and the take went on."""
    a = Member(tables, "a")
    gate = a.gate_writes()
    async with a.serving(AUDIT):
        a.transactions.start(7)
        await publish(a.service, b"1", pointer=7)
        waiting = Poll(start=NOON_MS + 1, wait_s=60)
        polling = await settle_down(a.service.polls.poll(AUDIT, waiting))
        gate.clear()
        set_position = a.service.holds_and_positions.set_position
        changing = await settle_down(set_position(AUDIT, "read", MessageId(1, 0)))
        a.commit(a.service, 7)
        taking = await settle_down(a.handover.take([AUDIT], NO_FLOOR))
        gate.set()
        await changing
        await taking

        assert position(a, "read") == MessageId(1, 0)
        assert list(a.service.state.index.pointers()) == []
        a.clock.now_ms += 5
        await publish(a.service, b"2")
        assert [payload for _, payload in (await asyncio.wait_for(polling, 5)).items] == [b"2"]


async def test_a_server_that_starts_again_continues_above_its_own_rows(
    tables: SharedTables,
) -> None:
    async with Member(tables, "a").serving(AUDIT) as first:
        first.clock.now_ms += HOUR_MS
        await publish(first.service, b"1")
    async with Member(tables, "a", 2).serving() as second:
        assert second.handover.topics() == []
        await second.fence(first, AUDIT)
        await publish(second.service, b"2")
        assert await polled(second.service) == [b"1", b"2"]


@pytest.mark.parametrize("turns", range(8))
async def test_a_truncation_of_a_topic_that_moves_is_not_refused_as_if_nothing_was_done(
    a: Member, b: Member, turns: int
) -> None:
    await publish(a.service, b"1", b"2")
    second = MessageId.from_bytes((await ids(a))[1])

    truncating = asyncio.ensure_future(a.service.topics.truncate(AUDIT, second))
    for _ in range(turns):
        await asyncio.sleep(0)
    await a.pass_on(AUDIT, b)
    (result,) = await asyncio.gather(truncating, return_exceptions=True)

    was_refused = isinstance(result, OwnershipMovingError)
    assert len(await ids(b)) == (2 if was_refused else 1)


async def later(member: Member, *texts: bytes, delay_ms: int, pointer: int | None = None) -> None:
    delays = [Delay(delay_ms, is_time=False)] * len(texts)
    request = PublishRequest(pointer=pointer, payloads=texts, delays=delays)
    await member.service.publisher.publish(AUDIT, request)


async def test_delayed_messages_move_with_their_topic_and_enter_at_the_next_owner(
    a: Member, b: Member
) -> None:
    await later(a, b"late", b"later", delay_ms=1_000)
    await a.pass_on(AUDIT, b)
    assert a.service.state.due_times.next_ms() is None
    for member in (a, b):
        member.clock.now_ms += 1_000
        await looked(member.service)
    assert await polled(b.service) == [b"late", b"later"]


async def test_the_messages_of_an_open_transaction_move_too(a: Member, b: Member) -> None:
    for member in (a, b):
        member.transactions.start(7)
    await later(a, b"late", delay_ms=1_000, pointer=7)
    assert [each.topics for each in a.service.rows.carried()] == [{AUDIT}]

    await a.pass_on(AUDIT, b)

    assert (a.handover.topics(), b.handover.topics()) == ([OTHER], [AUDIT])
    assert a.service.rows.has_ended_in(7, OTHER)
    assert not b.service.rows.has_ended_in(7, AUDIT)
    assert list(a.service.state.index.pointers()) == []
    b.commit(b.service, 7)
    b.service.rows.wake_readers([7])
    b.clock.now_ms += 1_000
    await looked(b.service)
    assert await polled(b.service) == [b"late"]


async def test_the_next_owner_finishes_a_commit_whose_delayed_messages_moved_undecided(
    a: Member, b: Member
) -> None:
    for member in (a, b):
        member.transactions.start(7)
    await later(a, b"late", delay_ms=1_000, pointer=7)
    a.commit(a.service, 7)
    b.transactions.end(7, b.transactions.committed)
    await a.pass_on(AUDIT, b)
    assert list(a.service.state.index.pointers()) == []
    assert list(b.service.state.index.pointers()) == [7]
    b.service.rows.end_committed([7])
    b.clock.now_ms += 1_000
    await looked(b.service)
    assert await polled(b.service) == [b"late"]


async def test_the_overdue_messages_of_a_lost_owner_enter_at_the_next(a: Member, b: Member) -> None:
    await later(a, b"late", delay_ms=10)
    b.clock.now_ms += 1_000
    await b.fence(a, AUDIT)
    await looked(b.service)
    assert await polled(b.service) == [b"late"]
    a.clock.now_ms += 1_000
    await looked(a.service)
    assert await polled(b.service) == [b"late"]


async def test_a_topic_that_moves_back_has_its_delayed_messages(a: Member, b: Member) -> None:
    await later(a, b"late", delay_ms=1_000)
    await a.pass_on(AUDIT, b)
    await later(b, b"later", delay_ms=1_000)
    await b.pass_on(AUDIT, a)
    a.clock.now_ms += 1_000
    await looked(a.service)
    assert await polled(a.service) == [b"late", b"later"]


async def test_a_cancellation_that_waits_while_its_topic_moves_is_refused(
    a: Member, b: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    await later(a, b"late", delay_ms=1_000)
    (found,) = await a.service.delayed.listed(AUDIT, count_max=1)
    with monkeypatch.context() as as_many_looks_as_may_be:
        as_many_looks_as_may_be.setattr("messaging.write.delayed_messages.LOOKS_COUNT_MAX", 0)
        cancelled = await settle_down(a.service.delayed.cancel(AUDIT, found.id))
        await a.pass_on(AUDIT, b)

    await looked(a.service)

    with pytest.raises(OwnershipMovingError):
        await asyncio.wait_for(cancelled, 5)
    assert a.service.state.due_times.next_ms() is None


async def test_a_transaction_can_delay_messages_at_the_next_owner(a: Member, b: Member) -> None:
    await a.pass_on(AUDIT, b)
    b.transactions.start(7)
    await later(b, b"late", delay_ms=1, pointer=7)
    b.commit(b.service, 7)
    b.service.rows.wake_readers([7])
    b.clock.now_ms += 1
    await looked(b.service)
    assert await polled(b.service) == [b"late"]
