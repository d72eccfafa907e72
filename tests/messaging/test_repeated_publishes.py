"""A publish that is sent again is written once, as long as the server remembers it (decision
0056)."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from messaging.model.producer_rows import Written
from messaging.model.row_format import PRODUCERS, count_between
from messaging.service import MessagingService
from messaging.write import producers
from messaging.write.producers import WINDOW_MS, RequestId, checksum_of, request_id_of
from messaging.write.publish import NumberedPublish, Published, Results
from tests.cluster.shared_store import SharedTables
from tests.messaging.members import Member, new_tables
from tests.messaging.world import AUDIT, FlakyWorld, World, polled, request, settle_down
from tuff.protocol.errors import (
    BadRequestError,
    OverloadedError,
    PartitionRetiredError,
    RequestForgottenError,
    RequestIdReusedError,
    StorageUnavailableError,
)
from tuff.protocol.ids import TopicId
from tuff.protocol.requests import Ack, Delay, PublishRequest

ONE, OTHER = b"producer", b"another!"


def first(number: int, answered: int = 1, producer: bytes = ONE) -> RequestId:
    return RequestId(producer, number, answered)


def again(number: int, answered: int = 1, *, age_ms: int = 5, producer: bytes = ONE) -> RequestId:
    return RequestId(producer, number, answered, age_ms)


async def sent(
    service: MessagingService,
    request_id: RequestId,
    *payloads: bytes,
    topic: TopicId = AUDIT,
    ack: Ack = Ack.DURABLE,
) -> Published:
    return await service.publisher.publish(
        topic, request(*payloads), ack=ack, request_id=request_id
    )


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def service(world: World) -> AsyncIterator[MessagingService]:
    async with world.running(audit={}) as service:
        yield service


async def test_a_repetition_has_the_reply_of_the_first_attempt_and_writes_nothing(
    service: MessagingService,
) -> None:
    before = await sent(service, first(1), b"a", b"b")

    repeated = await sent(service, again(1), b"a", b"b")

    assert repeated == before._replace(is_repeated=True)
    assert await polled(service) == [b"a", b"b"]


async def test_the_first_attempt_may_arrive_behind_its_repetition(
    service: MessagingService,
) -> None:
    repeated = await sent(service, again(1), b"a")

    late = await sent(service, first(1), b"a")

    assert (repeated.is_repeated, late) == (False, repeated._replace(is_repeated=True))
    assert await polled(service) == [b"a"]


async def test_a_publish_that_is_answered_does_not_arrive_late(service: MessagingService) -> None:
    await sent(service, first(2, answered=2), b"b")

    with pytest.raises(RequestForgottenError, match="all below 2 are answered"):
        await sent(service, first(1), b"a")

    assert await polled(service) == [b"b"]


async def test_a_repetition_during_the_write_of_the_first_attempt_waits_for_it() -> None:
    world = World()
    gate = world.gate_writes()
    async with world.running(audit={}) as service:
        gate.clear()
        attempts = [await settle_down(sent(service, first(1), b"a"))]
        attempts += [await settle_down(sent(service, again(1), b"a")) for _ in range(2)]
        assert not any(each.done() for each in attempts)
        gate.set()

        before, *repeated = await asyncio.gather(*attempts)

        assert repeated == [before._replace(is_repeated=True)] * 2
        assert await polled(service) == [b"a"]


async def test_a_repetition_in_the_batch_of_the_first_attempt_is_written_once() -> None:
    world = World()
    gate = world.gate_writes()
    async with world.running(audit={}) as service:
        gate.clear()
        blocker = await settle_down(sent(service, first(1), b"blocker"))
        attempts = [await settle_down(sent(service, first(2), b"a")) for _ in range(3)]
        gate.set()

        found = await asyncio.gather(blocker, *attempts)

        assert [each.is_repeated for each in found] == [False, False, True, True]
        assert await polled(service) == [b"blocker", b"a"]


async def test_a_restart_forgets_no_publish(world: World) -> None:
    async with world.running(audit={}) as service:
        before = await sent(service, first(1), b"a")
    async with world.running() as service:
        assert await sent(service, again(1), b"a") == before._replace(is_repeated=True)
        assert await polled(service) == [b"a"]


@pytest.mark.parametrize("takes_effect", [False, True])
async def test_a_publish_whose_write_failed_is_written_by_its_repetition(
    takes_effect: bool,
) -> None:
    world = FlakyWorld()
    async with world.running(audit={}) as service:
        await sent(service, first(1), b"a")
        world.fail_write(0, takes_effect=takes_effect)
        if takes_effect:
            await sent(service, first(2), b"b")
        else:
            with pytest.raises(StorageUnavailableError):
                await sent(service, first(2), b"b")

        repeated = await sent(service, again(2), b"b")

        assert repeated.is_repeated == takes_effect
        assert await polled(service) == [b"a", b"b"]
    async with world.running() as service:
        assert (await sent(service, again(2), b"b")).is_repeated


async def test_a_number_belongs_to_one_producer(service: MessagingService) -> None:
    await sent(service, first(1), b"a")

    assert not (await sent(service, again(1, producer=OTHER), b"a")).is_repeated
    assert await polled(service) == [b"a", b"a"]


async def test_a_number_with_other_messages_is_refused(service: MessagingService) -> None:
    await sent(service, first(1), b"a")

    with pytest.raises(RequestIdReusedError, match="publish 1 of this producer had other messages"):
        await sent(service, again(1), b"b")

    assert await polled(service) == [b"a"]


async def test_what_is_answered_is_forgotten(world: World, service: MessagingService) -> None:
    sizes = []
    for number in range(1, 200):
        await sent(service, first(number, answered=max(1, number - 2)), b"a")
        (size,) = {len(value) for key, value in world.rows.items() if key[:1] == PRODUCERS}
        sizes.append(size)

    assert max(sizes) == sizes[2] == sizes[-1]


async def test_a_repetition_behind_the_window_is_refused(service: MessagingService) -> None:
    with pytest.raises(RequestForgottenError, match="900\\.0 seconds ago"):
        await sent(service, again(1, age_ms=WINDOW_MS + 1), b"a")

    assert not (await sent(service, again(1, age_ms=WINDOW_MS), b"a")).is_repeated


async def test_a_producer_is_remembered_for_the_window_and_then_its_row_is_deleted(
    world: World, service: MessagingService
) -> None:
    await sent(service, first(1), b"a")
    world.clock.now_ms += WINDOW_MS
    await sent(service, first(1, producer=OTHER), b"b")
    assert (await sent(service, again(1, age_ms=WINDOW_MS), b"a")).is_repeated

    world.clock.now_ms += 2 * WINDOW_MS
    await sent(service, first(2, producer=OTHER), b"c")

    assert [key[-8:] for key in world.rows if key[:1] == PRODUCERS] == [OTHER]


async def test_a_clock_that_jumped_during_a_stop_forgets_nothing(world: World) -> None:
    async with world.running(audit={}) as service:
        await sent(service, first(1), b"a")
    world.clock.now_ms += 10 * WINDOW_MS
    async with world.running() as service:
        await sent(service, first(1, producer=OTHER), b"b")
        assert (await sent(service, again(1), b"a")).is_repeated


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_what_was_forgotten_for_room_is_not_published_again(
    world: World, monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_COUNT_MAX", 2)
    async with world.running(audit={}) as service:
        for name in (b"11111111", b"22222222", b"33333333"):
            world.clock.now_ms += 10_000
            await sent(service, first(1, producer=name), name)
        if not is_restarted:
            await _repeat_after_a_gap(world, service)
    if is_restarted:
        async with world.running() as service:
            await _repeat_after_a_gap(world, service)


async def _repeat_after_a_gap(world: World, service: MessagingService) -> None:
    # The first producer is forgotten. What was sent since then would be remembered.
    world.clock.now_ms += 5_000
    with pytest.raises(RequestForgottenError):
        await sent(service, again(1, producer=b"11111111", age_ms=25_000), b"11111111")
    assert not (await sent(service, again(1, producer=b"44444444", age_ms=2_000), b"4")).is_repeated
    assert (
        await sent(service, again(1, producer=b"33333333", age_ms=9_000), b"33333333")
    ).is_repeated
    assert await polled(service) == [b"11111111", b"22222222", b"33333333", b"4"]


async def test_the_memory_of_all_producers_is_bounded_by_bytes(
    world: World, monkeypatch: pytest.MonkeyPatch, service: MessagingService
) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_BYTES_MAX", 100_000)
    for number in range(1, 300):
        await sent(service, first(number, producer=b"%08d" % (number % 3)), b"a")

    rows = [value for key, value in world.rows.items() if key[:1] == PRODUCERS and len(value) > 13]
    assert len(rows) == len(service.state.producers)
    assert sum(map(len, rows)) < 100_000


async def test_a_producer_with_too_many_publishes_under_way_has_to_wait(
    monkeypatch: pytest.MonkeyPatch, service: MessagingService
) -> None:
    monkeypatch.setattr(producers, "ENTRIES_BYTES_MAX", 1_000)
    written = 1_001 // 27 + 1
    for number in range(1, written + 1):
        await sent(service, first(number), b"a")

    with pytest.raises(OverloadedError, match="send a higher ANSWERED"):
        await sent(service, first(written + 1), b"a")

    assert (await sent(service, again(written), b"a")).is_repeated
    await sent(service, first(written + 1, answered=written), b"a")


async def test_a_publish_under_a_transaction_is_repeated_with_its_range(
    world: World, service: MessagingService
) -> None:
    pointer = world.transactions.start(7)
    call = service.publisher.publish
    await service.publisher.store(AUDIT, request(b"stored", pointer=pointer))
    entry = request(b"a", b"b", pointer=pointer)
    before = await call(AUDIT, entry, request_id=first(1))
    reference = await call(AUDIT, PublishRequest(pointer, ()), request_id=first(2))

    assert await call(AUDIT, entry, request_id=again(1)) == before._replace(is_repeated=True)
    repeated = await call(AUDIT, PublishRequest(pointer, ()), request_id=again(2))
    assert repeated == reference._replace(is_repeated=True)
    world.commit(service, pointer)
    assert await polled(service) == [b"a", b"b", b"stored"]


async def test_delayed_messages_wait_once(world: World, service: MessagingService) -> None:
    delays = [Delay(5_000, is_time=False), Delay(9_000, is_time=False)]
    entry = PublishRequest(None, (b"a", b"b"), delays=delays)
    before = await service.publisher.publish(AUDIT, entry, request_id=first(1))
    world.clock.now_ms += 100

    repeated = await service.publisher.publish(AUDIT, entry, request_id=again(1))

    assert repeated == before._replace(is_repeated=True)
    assert repeated.delayed is not None
    assert repeated.delayed.count == 2


async def test_a_publish_to_several_partitions_is_repeated_after_their_number_has_changed(
    service: MessagingService,
) -> None:
    topic = TopicId("default", "divided")
    await service.topics.create(topic, {}, partition_count=3)
    before = await sent(service, first(1), b"a", topic=topic)
    last = topic.partition(2)
    to_last = await sent(service, first(2), b"b", topic=last)
    await service.topics.update(topic, {}, partition_count=1)

    assert await sent(service, again(1), b"a", topic=topic) == before._replace(is_repeated=True)
    assert await sent(service, again(2), b"b", topic=last) == to_last._replace(is_repeated=True)
    with pytest.raises(PartitionRetiredError):
        await sent(service, again(3), b"c", topic=last)


async def test_a_publish_that_was_answered_before_it_was_durable_is_repeated(
    service: MessagingService,
) -> None:
    before = await sent(service, first(1), b"a", ack=Ack.RECEIVED)

    repeated = await sent(service, again(1), b"a", ack=Ack.RECEIVED)

    assert repeated == before._replace(is_repeated=True)
    assert await polled(service) == [b"a"]


def numbered(request_id: RequestId | None, *payloads: bytes) -> NumberedPublish:
    checksum = 0 if request_id is None else checksum_of(payloads)
    return NumberedPublish(request(*payloads), request_id, checksum)


async def test_neighbouring_publishes_are_written_together_and_once(
    service: MessagingService,
) -> None:
    before = await sent(service, first(2), b"b")
    await sent(service, first(3, producer=OTHER), b"other")
    publishes = [
        numbered(first(1), b"a", b"a"),
        numbered(first(2), b"b"),
        numbered(first(3, producer=OTHER), b"another"),
        numbered(None, b"plain"),
        numbered(first(4), b"c"),
    ]
    done: asyncio.Future[Results | Exception] = asyncio.get_running_loop().create_future()

    assert service.publisher.publish_plain(AUDIT, publishes, done.set_result)

    results = await done
    assert isinstance(results, Results)
    written = [each for each in results.written if isinstance(each, Written)]
    assert [count_between(each.first, each.last) for each in written] == [2, 1, 1, 1]
    assert (written[1], results.repeated) == (
        (before.first.offset, before.last.offset, None, ()),
        [1],
    )
    assert isinstance(results.written[2], RequestIdReusedError)
    assert await polled(service) == [b"b", b"other", b"a", b"a", b"plain", b"c"]
    for number, payloads in {1: (b"a", b"a"), 4: (b"c",)}.items():
        repeated = await sent(service, again(number), *payloads)
        assert repeated.is_repeated
    assert len(await polled(service)) == 6


async def test_a_deleted_topic_leaves_no_producer(world: World, service: MessagingService) -> None:
    await sent(service, first(1), b"a")
    await service.topics.delete(AUDIT)
    assert not [key for key in world.rows if key[:1] == PRODUCERS]

    await service.topics.create(AUDIT, {})
    assert not (await sent(service, again(1), b"a")).is_repeated


async def test_a_failed_deletion_of_a_topic_forgets_no_publish() -> None:
    world = FlakyWorld()
    async with world.running(audit={}) as service:
        await sent(service, first(1), b"a")
        world.fail_write(0, takes_effect=False)
        with pytest.raises(StorageUnavailableError):
            await service.topics.delete(AUDIT)

        assert (await sent(service, again(1), b"a")).is_repeated


async def test_repetitions_to_a_topic_with_a_damaged_row_are_refused(world: World) -> None:
    async with world.running(audit={}) as service:
        await sent(service, first(1), b"a")
    world.damage_row(PRODUCERS)
    world.clock.now_ms += 60_000
    async with world.running() as service:
        with pytest.raises(RequestForgottenError):
            await sent(service, again(1, age_ms=60_000), b"a")
        await sent(service, first(2), b"b")
        assert await polled(service) == [b"a", b"b"]


async def test_the_new_owner_of_a_topic_remembers_its_publishes() -> None:
    tables: SharedTables = new_tables()
    async with Member(tables, "a").serving(AUDIT) as a, Member(tables, "b").serving() as b:
        before = await sent(a.service, first(1), b"a")
        await a.pass_on(AUDIT, b)
        assert len(a.service.state.producers) == 0

        assert await sent(b.service, again(1), b"a") == before._replace(is_repeated=True)
        await sent(b.service, first(2, answered=2), b"b")

        await b.pass_on(AUDIT, a)
        assert (await sent(a.service, again(2, answered=2), b"b")).is_repeated
        assert await polled(a.service) == [b"a", b"b"]


async def test_a_server_that_fences_the_owner_of_a_topic_remembers_its_publishes() -> None:
    tables: SharedTables = new_tables()
    async with Member(tables, "a").serving(AUDIT) as a, Member(tables, "b").serving() as b:
        await sent(a.service, first(1), b"a")
        await b.fence(a, AUDIT)

        assert (await sent(b.service, again(1), b"a")).is_repeated
        assert await polled(b.service) == [b"a"]


@pytest.mark.parametrize(
    ("text", "age", "expected"),
    [
        ("0123456789abcdef.7", None, RequestId(bytes.fromhex("0123456789abcdef"), 7, 7)),
        ("0123456789abcdef.7.5", "12", RequestId(bytes.fromhex("0123456789abcdef"), 7, 5, 12)),
        (None, None, None),
    ],
)
def test_a_request_id_names_producer_number_and_what_is_answered(
    text: str | None, age: str | None, expected: RequestId | None
) -> None:
    assert request_id_of(text, age) == expected


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("", None),
        ("0123456789abcdef", None),
        ("0123456789ABCDEF.7", None),
        ("0123456789abcde.7", None),
        ("0123456789abcdef.-7", None),
        ("0123456789abcdef.\u0667", None),
        ("0123456789abcdef.7.8", None),
        ("0123456789abcdef.7.5.3", None),
        ("0123456789abcdef." + "9" * 19, None),
        ("0123456789abcdef.7", "-1"),
        ("0123456789abcdef.7", "soon"),
        (None, "5"),
    ],
)
def test_a_malformed_request_id_is_refused(text: str | None, age: str | None) -> None:
    with pytest.raises(BadRequestError):
        request_id_of(text, age)
