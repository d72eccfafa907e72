"""Writes that fail: no false answer, nothing lost, ids only rise (design §5)."""

import asyncio

import pytest

from messaging.read.poll import Poll
from messaging.storage.engine import Store, StoreError
from messaging.storage.memory import MemoryStore
from messaging.storage.rows import METADATA_KEY, StoreMetadata, frame, topic_key, unframe
from tests.messaging.world import (
    AUDIT,
    COMMITTED,
    FlakyTable,
    World,
    polled,
    publish,
    request,
)
from tuff.protocol.errors import (
    DamagedRecordError,
    StorageUnavailableError,
    TopicExistsError,
    TuffError,
)
from tuff.protocol.ids import MessageId, TopicId


class FlakyWorld(World):
    """A world whose next opened table fails its n-th write from now; opening may be barred."""

    def __init__(self) -> None:
        super().__init__(self._open)
        self.table: FlakyTable | None = None
        self.is_barred = False
        self.open_count = 0

    def _open(self) -> Store:
        if self.is_barred:
            raise StoreError("the disk is gone")
        self.open_count += 1
        self.table = FlakyTable(MemoryStore(self.rows))
        return self.table

    def fail_write(self, number: int, *, takes_effect: bool) -> None:
        assert self.table is not None
        self.table.writes_left, self.table.takes_effect = number, takes_effect


@pytest.fixture
def world() -> FlakyWorld:
    return FlakyWorld()


@pytest.mark.parametrize("takes_effect", [False, True])
async def test_a_failed_write_is_answered_by_what_is_found(
    world: FlakyWorld, takes_effect: bool
) -> None:
    async with world.running(audit={}) as service:
        first = await publish(service, b"before")
        world.fail_write(0, takes_effect=takes_effect)

        if takes_effect:
            await publish(service, b"in doubt")
        else:
            with pytest.raises(StorageUnavailableError):
                await publish(service, b"in doubt")

        after = await publish(service, b"after")
        in_doubt = [b"in doubt"] if takes_effect else []
        assert await polled(service) == [b"before", *in_doubt, b"after"]
        assert after.first > first.last
        assert service.status == ("ok", None)


@pytest.mark.parametrize("takes_effect", [False, True])
@pytest.mark.parametrize("failing", range(6))
async def test_whatever_write_fails_what_was_acknowledged_is_there_in_order(
    world: FlakyWorld, failing: int, takes_effect: bool
) -> None:
    acknowledged: list[bytes] = []
    last = MessageId(0, 0)
    async with world.running(audit={}) as service:
        world.fail_write(failing, takes_effect=takes_effect)
        for number in range(8):
            payload = b"%d" % number
            world.clock.now_ms -= 10
            try:
                published = await publish(service, payload)
            except StorageUnavailableError:
                continue
            assert published.first > last
            last = published.last
            acknowledged.append(payload)

        assert await polled(service) == acknowledged

    async with world.running() as service:
        assert await polled(service) == acknowledged


async def test_a_store_that_stays_away_is_down_until_it_is_back(world: FlakyWorld) -> None:
    world.is_barred = True
    async with world.running() as service:
        for _ in range(3):
            await service.tick()

        assert service.status == ("down", "the disk is gone")

        world.is_barred = False
        await service.tick()
        assert service.status == ("ok", None)


async def test_a_store_that_was_closed_between_two_writes_is_opened_again(
    world: FlakyWorld,
) -> None:
    async with world.running(audit={}) as service:
        await publish(service, b"before")
        await service.store.close("another server has taken it over")

        await service.tick()

        await publish(service, b"after")
        assert await polled(service) == [b"before", b"after"]


async def test_a_store_that_can_not_even_be_closed_is_opened_again(
    world: FlakyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def close() -> None:
        raise StoreError("the disk is gone")

    async with asyncio.timeout(10), world.running(audit={}) as service:
        world.fail_write(0, takes_effect=True)
        monkeypatch.setattr(world.table, "close", close)

        await publish(service, b"in doubt")

        assert await polled(service) == [b"in doubt"]


async def test_a_store_that_stays_away_refuses_at_once_and_decides_when_it_is_back(
    world: FlakyWorld,
) -> None:
    pointer = world.transactions.start(7)
    async with world.running(audit={}) as service:
        world.fail_write(0, takes_effect=True)
        world.is_barred = True

        with pytest.raises(StorageUnavailableError):
            await publish(service, b"in doubt", pointer=pointer)
        with pytest.raises(StorageUnavailableError):
            await publish(service, b"refused")
        with pytest.raises(StorageUnavailableError):
            await polled(service)
        assert service.status == ("down", "the disk is gone")
        # Nobody knows yet whether its row is there: an ending must not pass it.
        assert not world.transactions.permits[0].is_left

        world.is_barred = False
        await service.tick()

        assert world.transactions.permits[0].is_left
        assert service.rows.is_carried(pointer)
        assert await polled(service) == [b"in doubt"]


async def test_a_batch_that_is_not_there_is_taken_back_from_memory_too(world: FlakyWorld) -> None:
    pointer = world.transactions.start(7)
    async with world.running(audit={}) as service:
        await service.publisher.store(AUDIT, request(b"stored", pointer=pointer))
        world.fail_write(0, takes_effect=False)
        with pytest.raises(StorageUnavailableError):
            await publish(service, pointer=pointer)

        await publish(service, pointer=pointer)

        assert await polled(service) == [b"stored"]


async def test_a_refusal_that_rests_on_a_pending_change_fails_with_it(world: FlakyWorld) -> None:
    """Two creations in one batch: the second is told "exists" only if the first is durable."""
    async with world.running() as service:
        world.fail_write(0, takes_effect=False)
        answers = await asyncio.gather(
            service.topics.create(AUDIT, {}),
            service.topics.create(AUDIT, {}),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers] == [StorageUnavailableError] * 2
        assert service.topics.names("default") == []

        answers = await asyncio.gather(
            service.topics.create(AUDIT, {}),
            service.topics.create(AUDIT, {}),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers] == [type(None), TopicExistsError]


async def test_marking_that_fails_is_tried_again_until_it_is_done(world: FlakyWorld) -> None:
    pointer = world.transactions.start(7)
    async with world.running(audit={}) as service:
        await publish(service, b"taken back", pointer=pointer)
        world.transactions.end(pointer, world.transactions.aborted)
        world.fail_write(0, takes_effect=False)
        with pytest.raises(StorageUnavailableError):
            await service.rows.mark_rolled_back([pointer])
        assert service.rows.is_carried(pointer)
        assert service.rows.published_by(1 << 60) == []

        await service.tick()

        assert not service.rows.is_carried(pointer)
        assert await polled(service, COMMITTED) == []
        assert await polled(service) == [b"taken back"]


async def test_a_damaged_topic_row_is_loud_and_never_created_over(world: FlakyWorld) -> None:
    async with world.running(audit={}):
        pass
    key = b"tdefault:audit:"
    world.rows[key] = world.rows[key][:-1] + b"?"

    async with world.running() as service:
        for call in (
            service.topics.create(AUDIT, {}),
            publish(service, b"x"),
            service.polls.poll(AUDIT, Poll()),
        ):
            with pytest.raises(DamagedRecordError):
                await call


@pytest.mark.parametrize(
    ("facts", "told"), [(b"rubbish", "use `tuff salvage`"), (None, "it is missing")]
)
async def test_damaged_or_lost_facts_keep_the_store_down_and_are_named(
    world: FlakyWorld, facts: bytes | None, told: str
) -> None:
    async with world.running() as service:
        await service.record_store_id("ab")
    del world.rows[METADATA_KEY]
    if facts is not None:
        world.rows[METADATA_KEY] = facts

    async with world.running() as service:
        state, reason = service.status
        assert state == "down"
        assert told in str(reason)
        with pytest.raises(TuffError):
            service.recorded_metadata()


async def test_the_first_batch_says_in_which_format_the_store_is_written(world: FlakyWorld) -> None:
    world.longest_transaction_s = 0.0
    async with world.running() as service:
        assert world.rows == {}
        await service.topics.create(AUDIT, {})

    assert StoreMetadata.from_bytes(METADATA_KEY, world.rows[METADATA_KEY]).format == 1


async def test_a_store_of_a_newer_format_is_named_and_left_as_it_is(world: FlakyWorld) -> None:
    """Its other rows are not looked at: in a newer format they may mean anything."""
    async with world.running(audit={}):
        pass
    world.rows[METADATA_KEY] = frame(METADATA_KEY, 0, b'{"format":2,"layout":"other"}')
    world.rows[b"t\xff"] = b"a row of another layout"
    before = dict(world.rows)

    async with world.running() as service:
        state, reason = service.status
        with pytest.raises(StorageUnavailableError):
            await publish(service, b"x")
        with pytest.raises(StorageUnavailableError):
            await service.record_store_id("ab")
        await service.tick()

    assert state == "down"
    assert reason is not None
    assert "a newer version wrote the store in format 2, and this server reads format 1" in reason
    assert "salvage" not in reason
    assert world.rows == before


@pytest.mark.parametrize("key", [b"smark", b"sfacts", b"i"])
async def test_a_newer_row_that_must_be_understood_keeps_the_store_down(
    world: FlakyWorld, key: bytes
) -> None:
    """A mark made up from the rows would be written over what the newer version keeps there."""
    world.transactions.start(7)
    async with world.running(audit={}) as service:
        await publish(service, b"x", pointer=7)
    key = next(each for each in world.rows if each.startswith(key))
    world.rows[key] = _with_flag(key, world.rows[key])
    before = dict(world.rows)

    async with world.running() as service:
        state, reason = service.status
        await service.tick()

    assert state == "down"
    assert "a newer version wrote it" in str(reason)
    assert "damaged" not in str(reason)
    assert world.rows == before


async def test_a_newer_topic_row_costs_its_topic_only(world: FlakyWorld) -> None:
    other = TopicId("default", "other")
    async with world.running(audit={}) as service:
        await service.topics.create(other, {})
    key = topic_key(AUDIT)
    world.rows[key] = _with_flag(key, world.rows[key])

    async with world.running() as service:
        with pytest.raises(DamagedRecordError, match="newer version wrote it") as raised:
            await publish(service, b"x")
        await service.publisher.publish(other, request(b"y"))

    assert "salvage" not in str(raised.value)
    assert "is damaged" not in str(raised.value)


def _with_flag(key: bytes, value: bytes) -> bytes:
    flags, body = unframe(key, value)
    return frame(key, flags | 0x04, body)


async def test_a_lost_mark_is_found_again_from_the_rows(world: FlakyWorld) -> None:
    async with world.running(audit={}) as service:
        before = await publish(service, b"before")
    del world.rows[b"smark"]
    world.clock.now_ms -= 1000

    async with world.running() as service:
        after = await publish(service, b"after")
        assert after.first > before.last
        assert await polled(service) == [b"before", b"after"]


async def test_a_disk_that_is_nearly_full_takes_only_what_others_wait_for() -> None:
    world = World()
    async with world.running(audit={}) as service:
        pointer = world.transactions.start(7)
        await publish(service, b"a", pointer=pointer)
        world.lack_of_space = "only 3 MiB are free"
        await service.tick()

        with pytest.raises(StorageUnavailableError, match="nothing was written: only 3 MiB"):
            await publish(service, b"b")
        assert await polled(service) == [b"a"]
        world.transactions.end(pointer, world.transactions.invalid)
        await service.rows.mark_rolled_back([pointer])
        assert not service.rows.is_carried(pointer)

        world.lack_of_space = None
        await service.tick()
        await publish(service, b"c")
        assert await polled(service) == [b"a", b"c"]


async def test_a_store_is_opened_by_one_at_a_time(world: FlakyWorld) -> None:
    async with world.running(audit={}) as service:
        world.is_barred = True
        world.fail_write(0, takes_effect=False)
        with pytest.raises(StorageUnavailableError):
            await publish(service, b"lost")
        world.is_barred = False
        world.open_count = 0

        await asyncio.gather(*(service.tick() for _ in range(3)))

        assert world.open_count == 1
        await publish(service, b"again")
