"""Where a topic begins and ends for a reader (protocol §3.6), and what a truncation returns."""

import pytest

from messaging.log.state_in_memory import OpenStore
from messaging.model.row_format import MESSAGES, offset_in
from messaging.read.poll import Poll
from messaging.service import MessagingService
from tests.messaging.world import AUDIT, World, polled, publish, request
from tuff.protocol.errors import DamagedRecordError
from tuff.protocol.ids import MessageId
from tuff.protocol.requests import Isolation
from tuff.protocol.transaction import Transaction

PASSED_MAX = 3  # rows in one step, in place of 100,000


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done in steps of few rows, one thread's turn each."""
    monkeypatch.setattr("messaging.log.scan.SCAN_ROWS_MAX", PASSED_MAX)
    taken: list[str] = []
    read = OpenStore.read

    async def noted(engine: OpenStore, step: object) -> object:
        taken.append(str(step))
        return await read(engine, step)  # type: ignore[arg-type] # as it came

    monkeypatch.setattr(OpenStore, "read", noted)
    return taken


async def test_the_earliest_message_is_found_behind_any_number_of_expired_ones(
    world: World, service: MessagingService, steps: list[str]
) -> None:
    """With 100,000 expired rows before it that no pass had deleted, `earliest` was null."""
    for _ in range(5 * PASSED_MAX):
        await service.publisher.publish(AUDIT, request(b"short", ttl_s=1))
    live = await publish(service, b"live")
    world.clock.now_ms += 2_000

    assert (await service.offsets.offsets(AUDIT)).earliest == live.first
    assert await service.topics.truncate(AUDIT, 0) == live.first
    assert len(steps) > 2 * 3


async def test_the_earliest_message_is_found_behind_any_number_that_were_rolled_back(
    world: World, service: MessagingService, steps: list[str]
) -> None:
    world.transactions.start(7)
    for _ in range(5 * PASSED_MAX):
        await publish(service, b"undone", pointer=7)
    live = await publish(service, b"live")
    await world.abort(service, 7)

    offsets = await service.offsets.offsets(AUDIT, isolation=Isolation.COMMITTED)

    assert (offsets.earliest, offsets.end) == (live.first, live.last)
    assert steps


async def test_a_topic_with_skipped_rows_only_has_no_earliest_message(
    world: World, service: MessagingService, steps: list[str]
) -> None:
    for _ in range(5 * PASSED_MAX):
        await service.publisher.publish(AUDIT, request(b"short", ttl_s=1))
    world.clock.now_ms += 2_000

    assert (await service.offsets.offsets(AUDIT)).earliest is None
    assert steps


async def test_a_truncation_to_a_damaged_record_succeeds(
    world: World, service: MessagingService
) -> None:
    """The log start rose for ever, and the caller got an error."""
    places = []
    for payload in (b"before", b"damaged", b"behind"):
        places.append((await publish(service, payload)).first)
        world.clock.now_ms += 10
    _before, damaged, behind = places
    flip_payload(world, damaged)

    assert await service.topics.truncate(AUDIT, damaged) == damaged
    offsets = await service.offsets.offsets(AUDIT)
    assert (offsets.earliest, offsets.end) == (damaged, behind)
    async with world.running() as again:
        with pytest.raises(DamagedRecordError) as refused:
            await again.polls.poll(AUDIT, Poll())
        assert refused.value.members["id"] == damaged.hex()
        assert (await again.offsets.offsets(AUDIT)).earliest == damaged


def flip_payload(world: World, at: MessageId) -> None:
    (key,) = (each for each in world.rows if each[:1] == MESSAGES and offset_in(each) == at.offset)
    world.rows[key] = world.rows[key][:-1] + b"\xff"


async def test_a_topic_ends_where_a_reader_of_all_of_it_continues(
    world: World, service: MessagingService
) -> None:
    """`end` was once the id of an expired message before that id."""
    kept = await publish(service, b"kept")
    await service.publisher.publish(AUDIT, request(b"short", ttl_s=1))
    world.clock.now_ms += 2_000

    read_to = MessageId.from_bytes((await service.polls.poll(AUDIT, Poll())).next_id)

    assert (await service.offsets.offsets(AUDIT)).end == read_to
    assert read_to > kept.last
    assert await polled(service) == [b"kept"]


async def test_a_topic_ends_past_a_group_whose_last_message_expired_by_itself(
    world: World, service: MessagingService
) -> None:
    world.transactions.start(7)
    await service.publisher.store(AUDIT, request(b"first", pointer=7))
    await service.publisher.store(AUDIT, request(b"last", pointer=7, ttl_s=1))
    await publish(service, pointer=7)
    world.transactions.end(7, world.transactions.committed)
    whole = await service.offsets.offsets(AUDIT, isolation=Isolation.COMMITTED)
    last = (await service.polls.poll(AUDIT, Poll())).items[-1][0]
    world.clock.now_ms += 2_000

    cut = await service.offsets.offsets(AUDIT, isolation=Isolation.COMMITTED)

    assert whole.end == MessageId.from_bytes(last)
    read = await service.polls.poll(AUDIT, Poll(isolation=Isolation.COMMITTED))
    assert [payload for _, payload in read.items] == [b"first"]
    assert cut.end == MessageId.from_bytes(read.next_id)


async def test_offsets_tell_where_a_reader_begins_and_ends(
    world: World, service: MessagingService
) -> None:
    empty = await service.offsets.offsets(AUDIT)
    assert (empty.generation, empty.earliest, empty.end) == (1, None, None)

    first = await publish(service, b"a")
    world.transactions.start(7)
    held = await publish(service, b"b", pointer=7)
    last = await publish(service, b"c")

    everything = await service.offsets.offsets(AUDIT)
    committed = await service.offsets.offsets(AUDIT, isolation=Isolation.COMMITTED)
    own = await service.offsets.offsets(AUDIT, tx=7)
    assert (everything.earliest, everything.end) == (first.first, last.last)
    assert (committed.end, committed.blocked_by) == (first.last, 7)
    assert (own.end, own.blocked_by) == (last.last, None)

    await world.abort(service, 7)
    await service.topics.truncate(AUDIT, held.first)
    skipped = await service.offsets.offsets(AUDIT, isolation=Isolation.COMMITTED)
    assert (skipped.earliest, skipped.end) == (last.first, last.last)


async def test_an_end_that_comes_behind_the_snapshot_decides_nothing_for_it(
    world: World, service: MessagingService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster the snapshot comes from another server, and takes its time."""
    first = await publish(service, b"decided")
    world.transactions.start(7)
    await publish(service, b"held", pointer=7)
    taken = world.transactions.reader()

    async def snapshot() -> Transaction:
        world.commit(service, 7)
        await publish(service, b"newer")
        return taken

    monkeypatch.setattr(world.transactions, "snapshot", snapshot)
    offsets = await service.offsets.offsets(AUDIT, isolation=Isolation.COMMITTED)

    assert offsets.end == first.last
