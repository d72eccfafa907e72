"""The retention pass: which rows it deletes, and which it never changes (design §5, Retention)."""

import asyncio
from typing import ClassVar

import pytest

from messaging.engines.engine_interface import Engine
from messaging.log.topics import TopicRecord
from messaging.model.row_format import MESSAGES, frame, prefix_of, topic_key, unframe
from messaging.read.poll import Poll
from messaging.retention import cleaner
from messaging.service import MessagingService
from tests.messaging.world import (
    AUDIT,
    NOON_MS,
    DamagedStore,
    World,
    polled,
    publish,
    request,
    settle_down,
    watched,
)
from tuff.protocol.errors import StorageUnavailableError
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.requests import Isolation


def data_rows(world: World) -> int:
    return sum(key[:1] in (b"m", b"p") for key in world.rows)


def log_start_of(world: World, topic: TopicId) -> MessageId:
    key = topic_key(topic)
    return TopicRecord.from_bytes(key, world.rows[key]).log_start


async def test_expired_rows_are_deleted_and_the_log_start_rises(
    world: World, service: MessagingService
) -> None:
    await publish(service, b"old")
    await publish(service, b"shorter", ttl_s=10)
    world.clock.now_ms += 50_000
    await publish(service, b"young")
    assert (await service.cleaner.run_pass()).dropped_count == 1
    world.clock.now_ms += 50_000

    report = await service.cleaner.run_pass()

    assert report.dropped_count == 1
    assert data_rows(world) == 1
    world.clock.now_ms -= 60_000  # a clock that is corrected shows no hole
    assert await polled(service) == [b"young"]


async def test_rows_of_every_older_generation_are_deleted(
    world: World, service: MessagingService
) -> None:
    """CDAP's message store deleted rows of the first generation only."""
    world.transactions.start(7)
    for _ in range(3):
        await publish(service, b"x")
        await service.publisher.store(AUDIT, request(b"y", pointer=7))
        await service.topics.delete(AUDIT)
        await service.topics.create(AUDIT, {"ttl": "100"})
    await publish(service, b"kept")

    report = await service.cleaner.run_pass()

    assert report.dropped_count == 6
    assert await polled(service) == [b"kept"]
    await service.topics.delete(AUDIT)
    assert (await service.cleaner.run_pass()).dropped_count == 1
    assert data_rows(world) == 0


async def test_a_deleted_generation_is_scanned_by_one_pass_only() -> None:
    world, scan_count = watched()
    scan_counts = []
    async with world.running(audit={}) as service:
        await publish(service, b"x")
        await service.topics.delete(AUDIT)
        for _ in range(2):
            before = scan_count()
            await service.cleaner.run_pass()
            scan_counts.append(scan_count() - before)

    assert scan_counts == [4, 1]  # its delayed messages, messages and payloads, and the patrol


async def test_nothing_is_deleted_while_the_clock_is_in_doubt(
    world: World, service: MessagingService
) -> None:
    await publish(service, b"kept")
    world.may_delete = False
    world.clock.now_ms += 10_000_000

    report = await service.cleaner.run_pass()

    assert report.dropped_count == 0
    world.clock.now_ms = NOON_MS
    assert await polled(service) == [b"kept"]


async def test_payloads_are_kept_until_no_late_publish_can_need_them(
    world: World, service: MessagingService
) -> None:
    pointer = world.transactions.start(7)
    await service.publisher.store(AUDIT, request(b"stored", pointer=pointer))
    world.clock.now_ms += 5_000_000
    await service.cleaner.run_pass()
    await publish(service, pointer=pointer)
    assert await polled(service) == [b"stored"]

    world.commit(service, pointer)
    await service.tick()
    # It outlived the longest transaction that was ever allowed; its message lives 100 s even so.
    world.clock.now_ms = NOON_MS + 5_100_000 - 1
    await service.cleaner.run_pass()
    assert data_rows(world) == 2
    assert await polled(service) == [b"stored"]

    world.clock.now_ms = NOON_MS + 5_100_000
    await service.cleaner.run_pass()
    assert data_rows(world) == 0


async def test_payloads_in_progress_are_kept_while_transactions_are_down(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(7)
    await service.publisher.store(AUDIT, request(b"stored", pointer=7))
    world.transactions.is_up = False
    world.clock.now_ms += 5_000_000

    await service.cleaner.run_pass()

    assert data_rows(world) == 1


async def test_the_longest_configured_transaction_counts_after_a_restart(world: World) -> None:
    world.longest_transaction_s = 1000
    world.transactions.start(7)
    async with world.running(audit={"ttl": "100"}) as service:
        await service.publisher.store(AUDIT, request(b"stored", pointer=7))
        world.commit(service, 7)
        await service.tick()

    world.longest_transaction_s = 1
    world.clock.now_ms += 1_099_999
    async with world.running() as service:
        await service.cleaner.run_pass()
        assert data_rows(world) == 1
        world.clock.now_ms += 1
        await service.cleaner.run_pass()
        assert data_rows(world) == 0


async def test_the_observed_longest_transaction_counts_after_a_restart(world: World) -> None:
    world.transactions.start(7)
    async with world.running(audit={"ttl": "100"}) as service:
        await service.publisher.store(AUDIT, request(b"stored", pointer=7))
        world.clock.now_ms += 5_000_000
        await publish(service, pointer=7)
        world.commit(service, 7)

    world.clock.now_ms += 99_999
    async with world.running() as service:
        await service.cleaner.run_pass()
        assert await polled(service) == [b"stored"]


async def test_deleting_a_payload_raises_the_log_start_above_its_reference(
    world: World, service: MessagingService
) -> None:
    """At that moment its reference may be a row that can't be deleted, or read."""
    world.transactions.start(7)
    await service.publisher.store(AUDIT, request(b"stored", pointer=7))
    await world.abort(service, 7)
    world.clock.now_ms += 200_000

    assert (await service.cleaner.run_pass()).dropped_count == 1

    assert log_start_of(world, AUDIT) == MessageId(NOON_MS + 100_001, 0)


@pytest.mark.parametrize("later_ms", [20_000, 99_999])
async def test_a_message_with_a_shorter_ttl_of_its_own_does_not_raise_the_log_start(
    world: World, service: MessagingService, later_ms: int
) -> None:
    await publish(service, b"short", ttl_s=10)
    before = log_start_of(world, AUDIT)
    world.clock.now_ms += later_ms

    assert (await service.cleaner.run_pass()).dropped_count == 1

    assert log_start_of(world, AUDIT) == before


async def test_a_pass_does_not_raise_the_log_start_of_a_topic_that_is_deleted_meanwhile(
    world: World,
) -> None:
    gate = world.gate_writes()
    async with world.running(audit={"ttl": "100"}) as service:
        await publish(service, b"old")
        before = log_start_of(world, AUDIT)
        world.clock.now_ms += 200_000
        gate.clear()
        deleting = await settle_down(service.topics.delete(AUDIT))
        sweeping = await settle_down(service.cleaner.run_pass())

        gate.set()
        await asyncio.gather(deleting, sweeping)

        assert log_start_of(world, AUDIT) == before


@pytest.mark.parametrize("reason", ["deleted", "expired", "truncated"])
async def test_a_pass_deletes_what_expires_by_key_wherever_the_patrol_is(
    world: World, service: MessagingService, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setattr(cleaner, "CHUNK_ROWS_MAX", 2)
    monkeypatch.setattr(cleaner, "PATROL_ROWS_MAX", 2)
    patrolled = TopicId("default", "a")  # its rows lie before those of the other topic
    await service.topics.create(patrolled, {})
    await service.publisher.publish(patrolled, request(b"1", b"2", b"3", b"4"))
    await publish(service, b"x", b"y", b"z")
    if reason == "deleted":
        await service.topics.delete(AUDIT)
    elif reason == "expired":
        world.clock.now_ms += 200_000
    else:
        world.clock.now_ms += 1
        await service.topics.truncate(AUDIT, world.clock.now_ms)

    report = await service.cleaner.run_pass()

    assert report.dropped_count == 3


class WorldWithDoubtfulClock(World):
    """A world whose clock is confirmed while a pass is under way."""

    answers: ClassVar[list[bool]] = []

    @property
    def may_delete(self) -> bool:
        return self.answers.pop(0) if self.answers else True

    @may_delete.setter
    def may_delete(self, _value: bool) -> None:
        return


async def test_a_pass_that_kept_the_references_keeps_their_payloads(world: World) -> None:
    world = WorldWithDoubtfulClock()
    world.transactions.start(7)
    async with world.running(audit={"ttl": "100"}) as service:
        await service.publisher.store(AUDIT, request(b"stored", pointer=7))
        await publish(service, pointer=7)
        world.commit(service, 7)
        await service.tick()
        world.clock.now_ms += 1_000_000

        world.answers.append(False)
        await service.cleaner.run_pass()
        assert data_rows(world) == 2

        await service.cleaner.run_pass()
        assert data_rows(world) == 0


@pytest.mark.parametrize("tag", [b"m", b"p"])
async def test_a_row_of_a_newer_version_is_kept(
    world: World, service: MessagingService, tag: bytes
) -> None:
    world.transactions.start(7)
    await service.publisher.store(AUDIT, request(b"stored", pointer=7))
    await publish(service, b"published")
    await world.abort(service, 7)
    key = next(key for key in world.rows if key.startswith(tag))
    flags, body = unframe(key, world.rows[key])
    # A flag that a newer version gave to payload rows is one that message rows have here.
    world.rows[key] = frame(key, flags | (0x01 if tag == b"p" else 0x10), body)
    world.clock.now_ms += 1_000_000

    await service.cleaner.run_pass()

    assert [each for each in world.rows if each[:1] in (b"m", b"p")] == [key]


async def test_rows_of_invalid_transactions_are_inverted_and_leave_the_index(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(7)
    world.transactions.start(8)
    await publish(service, b"invalid", pointer=7)
    await publish(service, b"undecided", pointer=8)
    world.transactions.end(7, world.transactions.invalid)

    await service.cleaner.run_pass()

    assert service.rows.indexed_pointers() == [8]
    assert service.last_sweep == (NOON_MS, "snapshot.1")
    world.transactions.invalid.clear()  # truncated
    held = await service.polls.poll(AUDIT, Poll(isolation=Isolation.COMMITTED))
    assert (held.items, held.blocked_by) == ([], 8)
    assert await polled(service) == [b"invalid", b"undecided"]


async def test_the_patrol_inverts_rows_that_the_index_lost(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(7)
    await publish(service, b"x", pointer=7)
    service.rows.end_committed([7])
    await service.tick()
    world.transactions.end(7, world.transactions.invalid)

    assert (await service.cleaner.run_pass()).inverted_count == 1
    assert (await service.cleaner.run_pass()).inverted_count == 0


async def test_damaged_rows_are_counted_and_kept(world: World, service: MessagingService) -> None:
    await publish(service, b"x")
    key = world.damage_row(MESSAGES)
    world.clock.now_ms += 1_000_000

    report = await service.cleaner.run_pass()

    assert (report.damaged_count > 0, report.dropped_count) == (True, 0)
    assert key in world.rows


async def test_a_pass_deletes_rows_on_a_disk_that_is_nearly_full(
    world: World, service: MessagingService
) -> None:
    await publish(service, b"old")
    world.clock.now_ms += 100_000
    world.lack_of_space = "only 3 MiB are free"
    await service.tick()

    report = await service.cleaner.run_pass()

    assert report.dropped_count == 1
    assert data_rows(world) == 0
    assert service.last_sweep == (NOON_MS + 100_000, "snapshot.1")


async def test_a_pass_works_in_bounded_chunks(world: World, service: MessagingService) -> None:
    await publish(service, *[b"x"] * 25_000)
    world.clock.now_ms += 100_000

    assert (await service.cleaner.run_pass()).dropped_count == 25_000
    assert data_rows(world) == 0


async def test_a_patrol_that_starts_inside_a_publish_drops_no_part_of_it(
    world: World, service: MessagingService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock set back, readers saw only the rows that an earlier patrol had passed."""
    monkeypatch.setattr(cleaner, "CHUNK_ROWS_MAX", 2)
    monkeypatch.setattr(cleaner, "PATROL_ROWS_MAX", 2)
    await publish(service, b"a", b"b", b"c", b"d", ttl_s=10)
    assert (await service.cleaner.run_pass()).dropped_count == 0
    world.clock.now_ms += 20_000

    assert (await service.cleaner.run_pass()).dropped_count == 0

    world.clock.now_ms -= 20_000
    assert await polled(service) == [b"a", b"b", b"c", b"d"]
    world.clock.now_ms += 20_000
    dropped_counts = [(await service.cleaner.run_pass()).dropped_count for _ in range(3)]
    assert dropped_counts == [2, 0, 2]


async def test_a_patrol_that_starts_inside_a_publish_drops_rows_of_later_publishes(
    world: World, service: MessagingService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaner, "CHUNK_ROWS_MAX", 2)
    monkeypatch.setattr(cleaner, "PATROL_ROWS_MAX", 2)
    await publish(service, b"a", b"b", b"c", ttl_s=10)
    world.clock.now_ms += 1
    await publish(service, b"d", b"e", ttl_s=10)
    assert (await service.cleaner.run_pass()).dropped_count == 0
    world.clock.now_ms += 20_000

    behind_the_cut_one = (await service.cleaner.run_pass()).dropped_count
    all_laps = [(await service.cleaner.run_pass()).dropped_count for _ in range(6)]

    assert behind_the_cut_one == 1
    assert sum(all_laps) == 4


async def test_rows_of_an_older_generation_do_not_raise_the_log_start(
    world: World, service: MessagingService
) -> None:
    await publish(service, b"old")
    await service.topics.delete(AUDIT)
    await service.topics.create(AUDIT, {"ttl": "100"})
    before = log_start_of(world, AUDIT)
    world.clock.now_ms += 200_000

    assert (await service.cleaner.run_pass()).dropped_count == 1

    assert log_start_of(world, AUDIT) == before


async def test_damaged_blocks_are_counted_and_other_topics_are_cleaned() -> None:
    store: DamagedStore
    first = TopicId("default", "a")

    def open_store() -> Engine:
        nonlocal store
        store = DamagedStore(world.rows)
        return store

    world = World(open_store)
    async with world.running() as service:
        for topic in (first, AUDIT):
            await service.topics.create(topic, {"ttl": "100"})
            await service.publisher.publish(topic, request(b"old"))
        store.is_damaged = lambda key: key.startswith(MESSAGES + prefix_of(first, 1))
        world.clock.now_ms += 200_000

        report = await service.cleaner.run_pass()

        assert report.dropped_count == 1
        assert report.damaged_count == 2  # the topic's expired rows, and the patrol
        store.is_damaged = lambda _key: False
        assert data_rows(world) == 1


async def test_a_pass_continues_when_invalid_rows_can_not_be_marked(
    world: World, service: MessagingService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_pointers: object) -> None:
        raise StorageUnavailableError("the disk is full")

    await publish(service, b"old")
    world.transactions.start(7)
    await publish(service, b"invalid", pointer=7)
    world.transactions.end(7, world.transactions.invalid)
    world.clock.now_ms += 200_000
    monkeypatch.setattr(service.rows, "roll_back", refuse)

    assert (await service.cleaner.run_pass()).dropped_count == 2


async def test_the_next_pass_deletes_a_generation_that_a_pass_had_to_keep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cleaner, "CHUNK_ROWS_MAX", 2)
    monkeypatch.setattr(cleaner, "PATROL_ROWS_MAX", 2)
    patrolled = TopicId("default", "a")  # its rows lie before those of the other topic
    world = WorldWithDoubtfulClock()
    async with world.running() as service:
        for topic in (patrolled, AUDIT):
            await service.topics.create(topic, {})
        for _ in range(8):
            await service.publisher.publish(patrolled, request(b"x"))
        await publish(service, b"x", b"y", b"z")
        await service.topics.delete(AUDIT)
        world.answers.append(False)
        assert (await service.cleaner.run_pass()).dropped_count == 0

        assert (await service.cleaner.run_pass()).dropped_count == 3


async def test_a_finished_pass_is_recorded_durably(world: World, service: MessagingService) -> None:
    await service.cleaner.run_pass()

    crashed = World()
    crashed.rows = dict(world.rows)
    async with crashed.running() as next_life:
        assert next_life.last_sweep == (NOON_MS, "snapshot.1")
