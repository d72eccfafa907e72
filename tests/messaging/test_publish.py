"""Publish, store and rollback, as readers see them (protocol §3, §6)."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from kernel.large_bodies import LARGE_BODY_BYTES
from kernel.requests_and_replies import Request
from messaging.model.row_format import MESSAGES
from messaging.model.visibility import Undecided
from messaging.read.poll import Poll
from messaging.service import MessagingService
from messaging.write.publish import routes
from messaging.write.write_batch import WriteBatch
from messaging.write.write_queue import Write
from tests.messaging.world import (
    AUDIT,
    COMMITTED,
    NOON_MS,
    World,
    payloads,
    polled,
    publish,
    publish_commits,
    publish_final,
    request,
    settle_down,
)
from tuff.protocol.errors import (
    BadRequestError,
    EmptyPublishError,
    InvalidTtlError,
    OverloadedError,
    ShuttingDownError,
    TopicNotFoundError,
    TransactionCommittedError,
    TransactionsUnavailableError,
    TransactionUnknownError,
    TuffError,
)
from tuff.protocol.ids import MessageId, Offset, TopicId
from tuff.protocol.media_types import MediaType
from tuff.protocol.operations import PUBLISH
from tuff.protocol.requests import PublishEntry, PublishRequest, RollbackDetail

T = TypeVar("T")


async def test_messages_of_a_publish_are_neighbours_in_order(service: MessagingService) -> None:
    published = await publish(service, b"a", b"b", b"c")

    result = await service.polls.poll(AUDIT, Poll())

    assert [(MessageId.from_bytes(i), p) for i, p in result.items] == [
        (MessageId(NOON_MS, 0), b"a"),
        (MessageId(NOON_MS, 1), b"b"),
        (MessageId(NOON_MS, 2), b"c"),
    ]
    assert (published.first, published.last) == (MessageId(NOON_MS, 0), MessageId(NOON_MS, 2))
    assert published.rollback is None
    assert result.caught_up


@pytest.mark.parametrize("run_bytes_max", [1, 7, 1000])
async def test_concurrent_publishes_do_not_mix_their_messages(
    service: MessagingService, monkeypatch: pytest.MonkeyPatch, run_bytes_max: int
) -> None:
    monkeypatch.setattr("messaging.write.write_batch.RUN_BYTES_MAX", run_bytes_max)

    await asyncio.gather(*(publish(service, *[b"%d" % n] * 3) for n in range(10)))

    found = await polled(service)

    assert [found[at : at + 3] for at in range(0, 30, 3)] == [[b"%d" % n] * 3 for n in range(10)]


async def test_concurrent_publishes_of_all_kinds_keep_their_order(
    world: World, service: MessagingService
) -> None:
    other, pointer = TopicId("default", "other"), world.transactions.start(7)
    await service.topics.create(other, {})
    plain = [service.publisher.publish(to, request(b"%d" % n))
             for n, to in enumerate((AUDIT, AUDIT, other, AUDIT))]  # fmt: skip
    await asyncio.gather(
        *plain,
        publish(service, b"4", pointer=pointer),
        publish(service, b"5", ttl_s=60),
        publish(service, b"6", b"7"),
    )

    assert await polled(service) == [b"0", b"1", b"3", b"4", b"5", b"6", b"7"]
    assert payloads(await service.polls.poll(other, Poll())) == [b"2"]


async def test_a_committed_reader_is_held_by_an_undecided_publish(
    world: World, service: MessagingService
) -> None:
    pointer = world.transactions.start(7)
    await publish(service, b"before")
    await publish(service, b"undecided", pointer=pointer)
    await publish(service, b"after")

    held = await service.polls.poll(AUDIT, COMMITTED)

    assert payloads(held) == [b"before"]
    assert (held.blocked_by, held.caught_up) == (7, False)
    assert await polled(service) == [b"before", b"undecided", b"after"]

    world.commit(service, pointer)
    assert await polled(service, COMMITTED) == [b"before", b"undecided", b"after"]


async def test_a_fixed_snapshot_can_skip_undecided_rows(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(7)
    reader = world.transactions.start(8)
    await publish(service, b"undecided", pointer=7)
    await publish(service, b"own", pointer=reader)

    result = await service.polls.poll(AUDIT, Poll(tx=reader, undecided=Undecided.SKIP))

    assert payloads(result) == [b"own"]
    assert result.caught_up


async def test_stored_messages_appear_where_the_reference_stands(
    world: World, service: MessagingService
) -> None:
    pointer = world.transactions.start(7)
    await service.publisher.store(AUDIT, request(b"s1", b"s2", pointer=pointer))
    await publish(service, b"first")
    await service.publisher.store(AUDIT, request(b"s3", pointer=pointer))
    published = await publish(service, pointer=pointer)
    await publish(service, b"last")

    result = await service.polls.poll(AUDIT, Poll())

    assert payloads(result) == [b"first", b"s1", b"s2", b"s3", b"last"]
    assert published.first == published.last
    assert MessageId.from_bytes(result.items[1][0]) == MessageId(NOON_MS, 4, NOON_MS, 0)


async def test_a_reference_brings_only_what_was_stored_since_the_one_before(
    world: World, service: MessagingService
) -> None:
    pointer = world.transactions.start(7)
    await service.publisher.store(AUDIT, request(b"one", pointer=pointer))
    await publish(service, pointer=pointer)
    await service.publisher.store(AUDIT, request(b"two", pointer=pointer))
    await publish(service, pointer=pointer)
    await publish(service, pointer=pointer)

    assert await polled(service) == [b"one", b"two"]


async def test_two_references_of_one_batch_do_not_bring_the_same_messages(
    world: World, service: MessagingService
) -> None:
    pointer = world.transactions.start(7)
    await service.publisher.store(AUDIT, request(b"once", pointer=pointer))
    await asyncio.gather(publish(service, pointer=pointer), publish(service, pointer=pointer))

    assert await polled(service) == [b"once"]


async def test_a_reference_to_messages_stored_before_a_deletion_is_refused(
    world: World, service: MessagingService
) -> None:
    pointer = world.transactions.start(7)
    await service.publisher.store(AUDIT, request(b"lost", pointer=pointer))
    await service.topics.delete(AUDIT)
    await service.topics.create(AUDIT, {})

    with pytest.raises(TopicNotFoundError):
        await publish(service, pointer=pointer)
    with pytest.raises(TopicNotFoundError):
        await service.rows.check_entries([PublishEntry(topic=AUDIT, payloads=(), pointer=pointer)])


async def test_messages_may_be_published_beside_ones_stored_before_a_deletion(
    world: World, service: MessagingService
) -> None:
    pointer = world.transactions.start(7)
    await service.publisher.store(AUDIT, request(b"lost", pointer=pointer))
    await service.topics.delete(AUDIT)
    await service.topics.create(AUDIT, {})
    entries = [PublishEntry(topic=AUDIT, payloads=[b"x"], pointer=pointer)]

    await service.rows.check_entries(entries)

    await publish_final(service, entries)
    assert await polled(service) == [b"x"]


@pytest.mark.parametrize("kind", ["publish", "publish_tx", "store", "publish_final"])
async def test_a_waiting_write_is_refused_when_its_topic_is_created_again(
    world: World, service: MessagingService, kind: str
) -> None:
    other = TopicId("default", "other")
    await service.topics.create(other, {})
    pointer = world.transactions.start(7)
    final = [PublishEntry(topic=each, payloads=[b"x"], pointer=pointer) for each in (other, AUDIT)]
    under_way = {
        "publish": lambda: publish(service, b"x"),
        "publish_tx": lambda: publish(service, b"x", pointer=pointer),
        "store": lambda: service.publisher.store(AUDIT, request(b"x", pointer=pointer)),
        "publish_final": lambda: publish_final(service, final),
    }[kind]()
    # All three are taken in before the first is written: the topic is the old one to each.
    deleted, made, refused = await asyncio.gather(
        service.topics.delete(AUDIT),
        _made_again(service),
        under_way,
        return_exceptions=True,
    )

    assert (deleted, made) == (None, None)
    assert isinstance(refused, TopicNotFoundError)
    assert await polled(service) == payloads(await service.polls.poll(other, Poll())) == []
    assert service.rows.indexed_pointers() == []


async def _made_again(service: MessagingService) -> None:
    await service.topics.create(AUDIT, {})


async def test_a_rollback_hides_exactly_one_publish_and_can_be_repeated(
    world: World, service: MessagingService
) -> None:
    pointer = world.transactions.start(7)
    first = await publish(service, b"kept", pointer=pointer)
    second = await publish(service, b"taken back", pointer=pointer)
    assert first.rollback is not None
    assert second.rollback is not None

    await service.publisher.rollback(AUDIT, second.rollback)
    await service.publisher.rollback(AUDIT, second.rollback)

    world.commit(service, pointer)
    assert await polled(service, COMMITTED) == [b"kept"]
    assert await polled(service) == [b"kept", b"taken back"]


async def test_a_rollback_touches_no_rows_of_others_within_its_range(
    world: World, service: MessagingService
) -> None:
    """CDAP's message store inverted every row of the range, of any transaction."""
    world.transactions.start(7)
    world.transactions.start(8)
    await publish(service, b"plain")
    await publish(service, b"of 8", pointer=8)
    await publish(service, b"of 7", pointer=7)

    everything = RollbackDetail(7, Offset(0, 0), Offset(NOON_MS + 1000, 0))
    await service.publisher.rollback(AUDIT, everything)

    world.transactions.end(8, world.transactions.committed)
    world.transactions.end(7, world.transactions.committed)
    assert await polled(service, COMMITTED) == [b"plain", b"of 8"]


async def test_a_damaged_row_keeps_no_other_of_its_transaction_from_being_rolled_back(
    world: World, service: MessagingService
) -> None:
    pointer = world.transactions.start(7)
    await publish(service, b"damaged", pointer=pointer)
    world.damage_row(MESSAGES)
    second = await publish(service, b"rolled back", pointer=pointer)

    await service.rows.roll_back([pointer])

    world.transactions.end(pointer, world.transactions.committed)
    assert await polled(service, replace(COMMITTED, start=second.first)) == []


async def test_a_rollback_of_an_unknown_pointer_changes_nothing(
    world: World, service: MessagingService
) -> None:
    await publish(service, b"plain")
    detail = RollbackDetail(99, Offset(0, 0), Offset(NOON_MS + 1, 0))

    await service.publisher.rollback(AUDIT, detail)

    assert await polled(service, COMMITTED) == [b"plain"]
    world.transactions.committed.add(99)
    with pytest.raises(TransactionCommittedError):
        await service.publisher.rollback(AUDIT, detail)
    with pytest.raises(TopicNotFoundError):
        await service.publisher.rollback(TopicId("default", "none"), detail)


async def test_permits_are_released_when_the_write_is_durable_or_refused(
    world: World, service: MessagingService
) -> None:
    pointer = world.transactions.start(7)
    await publish(service, b"a", pointer=pointer)

    waiting = await settle_down(publish(service, b"x"))
    late = asyncio.ensure_future(publish(service, b"b", pointer=pointer))
    await asyncio.sleep(0)
    world.transactions.end(pointer, world.transactions.committed)
    await waiting
    with pytest.raises(TransactionCommittedError):
        await late

    assert [permit.is_left for permit in world.transactions.permits] == [True, True]
    assert await polled(service) == [b"a", b"x"]


async def test_a_commit_that_is_refused_in_a_write_of_several_is_refused_by_itself(
    world: World, service: MessagingService
) -> None:
    other = TopicId("default", "other")
    await service.topics.create(other, {})
    commits = [
        [PublishEntry(topic=each, payloads=[b"%d" % n], pointer=world.transactions.start(n))]
        for n, each in enumerate((AUDIT, other, AUDIT), start=7)
    ]

    _, (first, refused, third) = await asyncio.gather(
        service.topics.delete(other), publish_commits(service, commits)
    )

    assert isinstance(refused, TopicNotFoundError)
    assert not isinstance(first, TuffError)
    assert not isinstance(third, TuffError)
    assert [(each.pointer, each.first) for each in (*first, *third)] == [
        (7, Offset(NOON_MS, 0)), (9, Offset(NOON_MS, 1)),
    ]  # fmt: skip
    assert service.rows.final_pointers() == {7, 9}
    assert await polled(service) == [b"7", b"9"]


async def test_entries_of_a_commit_are_one_batch_of_final_rows(
    world: World, service: MessagingService
) -> None:
    other = TopicId("default", "other")
    await service.topics.create(other, {})
    pointer = world.transactions.start(7)
    await service.publisher.store(other, request(b"stored", pointer=pointer))

    details = await publish_final(
        service,
        [
            PublishEntry(topic=AUDIT, payloads=[b"inline"], pointer=pointer),
            PublishEntry(topic=other, payloads=[], pointer=pointer),
        ],
    )

    assert [detail.first for detail in details] == [Offset(NOON_MS, 1), Offset(NOON_MS, 2)]
    assert service.rows.final_pointers() == {pointer}
    assert service.rows.topics([pointer]) == ["default:audit", "default:other"]
    assert payloads(await service.polls.poll(other, Poll())) == [b"stored"]


async def test_a_write_without_rows_causes_no_sync_unless_it_forces_one(
    world: World, service: MessagingService
) -> None:
    def nothing(_batch: WriteBatch) -> None: ...

    world.observed.clear()
    await service.committer.submit(Write(nothing))
    before = list(world.observed)
    await service.committer.submit(Write(WriteBatch.force))

    assert before == []
    assert world.observed != []


async def test_bad_bodies_are_refused_before_the_topic_is_looked_up(
    service: MessagingService,
) -> None:
    missing = TopicId("default", "missing")

    with pytest.raises(EmptyPublishError):
        await service.publisher.publish(missing, request())
    with pytest.raises(BadRequestError):
        await service.publisher.store(missing, request(b"x"))
    with pytest.raises(BadRequestError):
        await service.publisher.store(missing, request(pointer=7))
    with pytest.raises(TopicNotFoundError):
        await service.publisher.publish(missing, request(b"x"))


async def test_a_ttl_longer_than_the_topics_is_refused(service: MessagingService) -> None:
    await publish(service, b"x", ttl_s=100)
    with pytest.raises(InvalidTtlError):
        await publish(service, b"x", ttl_s=101)


async def test_publishing_without_a_transaction_needs_no_transaction_service(
    world: World, service: MessagingService
) -> None:
    world.transactions.is_up = False

    await publish(service, b"goes on")

    assert await polled(service) == [b"goes on"]
    assert await polled(service, COMMITTED) == [b"goes on"]
    with pytest.raises(TransactionsUnavailableError):
        await publish(service, b"x", pointer=7)


async def test_a_closing_service_ends_polls_and_refuses_writes(world: World) -> None:
    async with world.running(audit={}) as service:
        waiting = await settle_down(service.polls.poll(AUDIT, Poll(wait_s=60)))
        await service.close()

        assert payloads(await waiting) == []
        with pytest.raises(ShuttingDownError):
            await publish(service, b"x")
        with pytest.raises(ShuttingDownError):
            await service.publisher.rollback(AUDIT, RollbackDetail(99, Offset(0, 0), Offset(1, 0)))
        with pytest.raises(ShuttingDownError):
            await service.committer.submit(Write(WriteBatch.force, internal=True))


async def test_ids_after_a_restart_are_above_all_earlier_ones(world: World) -> None:
    async with world.running(audit={}) as service:
        before = await publish(service, b"before")
    world.clock.now_ms -= 50_000

    async with world.running() as service:
        after = await publish(service, b"after")
        assert await polled(service) == [b"before", b"after"]

    assert after.first > before.last


async def test_stored_messages_count_once_with_their_bytes_when_published(
    world: World, service: MessagingService
) -> None:
    """They were once counted with 0 bytes."""
    pointer = world.transactions.start(5)
    await service.publisher.store(AUDIT, request(b"12345", b"678", pointer=pointer))
    await service.publisher.store(AUDIT, request(b"90", pointer=pointer))
    stored = _figures(service)

    await publish(service, pointer=pointer)
    await publish(service, pointer=pointer)

    assert (stored, _figures(service)) == ({}, {AUDIT: (3, 10)})


def _figures(service: MessagingService) -> dict[TopicId, tuple[int, int]]:
    return {topic: (count, size_bytes) for topic, count, size_bytes in service.topics.figures()}


async def test_the_write_time_of_a_batch_is_measured_by_the_given_clock(world: World) -> None:
    async def slow(write: Callable[[], T]) -> T:
        world.elapsed_s += 0.000_25
        return write()

    async with world.running(audit={}):
        pass
    world.in_thread_write = slow
    async with world.running() as service:
        world.observed.clear()
        await publish(service, b"x")

        assert world.observed == [("store_fsync_seconds", 0.000_25), ("store_batch_requests", 1)]


async def test_answered_writes_are_not_pending(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("messaging.write.write_queue.PENDING_COUNT_MAX", 2)
    monkeypatch.setattr("messaging.write.write_queue.PENDING_BYTES_MAX", 3_000)
    pointer = world.transactions.start(7)
    async with world.running(audit={}) as service:
        for _ in range(5):
            await publish(service, b"x" * 1_000)
            late = asyncio.ensure_future(publish(service, b"x", pointer=pointer))
            await asyncio.sleep(0)
            world.transactions.in_progress.clear()
            with pytest.raises(TransactionUnknownError):  # a batch of which nothing is written
                await late
            world.transactions.start(pointer)

        # Neither less nor more than two wait now.
        three = [publish(service, b"x") for _ in range(3)]
        answers = await asyncio.gather(*three, return_exceptions=True)
        assert [isinstance(each, OverloadedError) for each in answers] == [False, False, True]


async def test_a_write_that_is_refused_for_overload_releases_its_permit(
    world: World, service: MessagingService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("messaging.write.write_queue.PENDING_COUNT_MAX", 0)
    world.transactions.start(7)

    with pytest.raises(OverloadedError):
        await publish(service, b"x", pointer=7)

    assert [permit.is_left for permit in world.transactions.permits] == [True]


async def test_messages_may_name_no_ttl_of_their_own(service: MessagingService) -> None:
    await service.publisher.publish(
        AUDIT, PublishRequest(pointer=None, payloads=[b"x", b"y"], ttls_s=[None, None])
    )

    assert await polled(service) == [b"x", b"y"]


async def test_a_reference_without_stored_messages_raises_no_longest_transaction(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(7)
    before = service.cleaner._state.metadata.longest_transaction_ms

    await publish(service, pointer=7)

    assert service.cleaner._state.metadata.longest_transaction_ms == before


async def test_a_large_request_is_decoded_in_a_thread(service: MessagingService) -> None:
    """On the event loop, JSON of 100,000 messages with a key kept all other clients waiting for
    a second."""
    decoded = []

    async def in_thread(function: Callable[[], T]) -> T:
        decoded.append(function)
        return function()

    service.publisher.in_thread = in_thread
    (route,) = [each for each in routes(service.publisher) if each.operation is PUBLISH]
    names = {"ns": AUDIT.namespace, "t": AUDIT.name}

    members = {"messages": ["x"]}
    requests = [
        *(
            Request(names, (), MediaType.JSON.value, None, json.dumps(body).encode())
            for body in (members, {"messages": ["x"] * 20_000})
        ),
        # Over a session the body is read already, but its messages are not.
        Request(names, (), None, None, b"", members=members, members_bytes=LARGE_BODY_BYTES),
        Request(names, (), None, None, b"", members=members, members_bytes=LARGE_BODY_BYTES + 1),
    ]
    for each in requests:
        reply = await route.handler(each)
        assert (reply.status, dict(reply.headers).keys()) == (
            200,
            {"Tuff-First-Id", "Tuff-Last-Id"},
        )

    assert len(decoded) == 2
    assert len(await polled(service, Poll(limit=30_000))) == 10_000  # the most of one reply


async def test_rows_of_large_publishes_keep_their_places_in_a_batch(
    world: World, service: MessagingService
) -> None:
    """They are made in the thread that writes the batch, and those of small ones before."""
    pointer = world.transactions.start(7)
    large = [b"%d" % number for number in range(2_001)]

    await asyncio.gather(
        publish(service, b"first"),
        publish(service, *large),
        publish(service, b"second"),
        publish(service, *large, pointer=pointer),
        publish(service, b"third", ttl_s=60),
    )

    assert await polled(service) == [b"first", *large, b"second", *large, b"third"]
