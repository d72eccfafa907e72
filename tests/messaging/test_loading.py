"""What a start reads from the store: metadata, clock, formats, and rows that are damaged or newer
(design §5)."""

import pytest

from messaging.model.row_format import (
    METADATA_KEY,
    TOPICS,
    StoreMetadata,
    frame,
    topic_key,
    unframe,
)
from messaging.read.poll import Poll
from messaging.service import MessagingService
from tests.messaging.world import AUDIT, NOON_MS, World, polled, publish, request
from tuff.protocol.errors import DamagedRecordError, StorageUnavailableError, TuffError
from tuff.protocol.ids import TopicId


async def test_records_of_the_transaction_files_survive_a_restart(world: World) -> None:
    def recorded(service: MessagingService) -> tuple[str | None, int, int | None]:
        facts = service.recorded_metadata()
        assert facts is not None
        return facts.store_id, facts.highest_pointer, service.recorded_lsn()

    async with world.running() as service:
        assert (service.recorded_metadata(), service.recorded_lsn()) == (None, None)
        service.rows.note_reserved(500)
        await service.record_store_id("ab12")
        service.rows.note_reserved(900)
        service.rows.note_reserved(700)
        service.rows.note_durable(12)
        assert recorded(service) == ("ab12", 500, None)
        await service.tick()
        assert recorded(service) == ("ab12", 900, 12)

    async with world.running() as service:
        await service.topics.create(TopicId("a", "b"), {})
        assert recorded(service) == ("ab12", 900, 12)


async def test_an_idle_server_records_its_clock_unless_that_is_in_doubt(
    world: World,
) -> None:
    async with world.running() as service:
        assert service.state.recovered_clock_ms is None
        world.clock.now_ms += 60_000
        await service.tick()

    world.may_delete = False
    world.clock.now_ms += 10_000_000
    async with world.running() as service:
        assert service.state.recovered_clock_ms == NOON_MS + 60_000
        await service.topics.create(TopicId("a", "b"), {})

    async with world.running() as service:
        assert service.state.recovered_clock_ms == NOON_MS + 60_000


async def test_a_missing_last_batch_row_is_reconstructed_from_the_highest_row(world: World) -> None:
    async with world.running(audit={}) as service:
        before = await publish(service, b"before")
    del world.rows[b"smark"]
    world.clock.now_ms -= 1000

    async with world.running() as service:
        after = await publish(service, b"after")
        assert after.first > before.last
        assert await polled(service) == [b"before", b"after"]


async def test_a_damaged_topic_row_is_reported_and_never_overwritten(world: World) -> None:
    async with world.running(audit={}):
        pass
    world.damage_row(TOPICS)

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
async def test_damaged_or_missing_metadata_keeps_the_store_down(
    world: World, facts: bytes | None, told: str
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


async def test_the_first_batch_records_the_format(world: World) -> None:
    world.longest_transaction_s = 0.0
    async with world.running() as service:
        assert world.rows == {}
        await service.topics.create(AUDIT, {})

    assert StoreMetadata.from_bytes(METADATA_KEY, world.rows[METADATA_KEY]).format == 1


async def test_a_store_of_a_newer_format_is_refused_and_not_changed(world: World) -> None:
    """Its other rows are not read: in a newer format they may mean anything."""
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
async def test_a_newer_row_that_a_start_needs_keeps_the_store_down(
    world: World, key: bytes
) -> None:
    """A last-batch row made from the other rows would overwrite that of the newer version."""
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


async def test_a_newer_topic_row_makes_its_topic_unreadable_only(world: World) -> None:
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
