"""The state that region observers get, and their records (design §5, Retention)."""

import struct
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from messaging.engines.memory import MemoryStore
from messaging.log.region_observers import (
    RegionRecord,
    UnreadableRecordError,
    cleared_everywhere,
)
from messaging.model.row_format import DELAYED
from messaging.service import MessagingService
from messaging.settings import MessagingSettings
from tests.messaging.test_delayed import after, delayed
from tests.messaging.world import AUDIT, NOON_MS, FlakyStore, World, polled, publish, request
from tuff.protocol.errors import UnavailableError

GOLDEN = Path(__file__).parent.parent / "golden"


class RegionStore(MemoryStore):
    """A store whose message rows lie in these regions."""

    def __init__(self, rows: dict[bytes, bytes], regions: Collection[str]) -> None:
        super().__init__(rows)
        self._regions = regions

    def message_regions(self) -> Collection[str]:
        return self._regions


class Observed(World):
    """A world with two regions and a directory between them and the server."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.regions = ["aa", "bb"]
        self.open_store = lambda: RegionStore(self.rows, self.regions)
        self.settings = MessagingSettings(store="hbase", observer_directory=str(directory))

    def state(self) -> bytes:
        return (self.directory / "state").read_bytes()

    def state_ms(self) -> int:
        (now_ms,) = struct.unpack_from(">Q", self.state(), 14)
        return int(now_ms)

    def record(self, region: str, *cleared: int, ended_ms: int = NOON_MS) -> None:
        found = RegionRecord(
            region=region,
            state_ms=NOON_MS,
            ended_ms=ended_ms,
            dropped_count=0,
            inverted_count=0,
            cleared=frozenset(cleared),
        )
        (self.directory / "regions" / f"{region}.major").write_bytes(found.to_bytes())


@pytest.fixture
def world(tmp_path: Path) -> Observed:
    return Observed(tmp_path / "observers")


async def test_a_pass_publishes_the_state_and_changes_no_row(
    world: Observed, service: MessagingService
) -> None:
    world.transactions.start(70)
    world.transactions.end(world.transactions.start(66), world.transactions.invalid)
    await publish(service, b"x")
    world.clock.now_ms += 1_000_000
    rows = {key: value for key, value in world.rows.items() if key[:1] == b"m"}

    report = await service.cleaner.run_pass()

    assert report.dropped_count == 0
    assert {key: value for key, value in world.rows.items() if key[:1] == b"m"} == rows
    assert world.state() == bytes.fromhex((GOLDEN / "retention-state.hex").read_text())


@pytest.mark.parametrize("reason", ["the clock is in doubt", "transactions are down"])
async def test_no_state_is_published_that_could_be_wrong(
    world: Observed, service: MessagingService, reason: str
) -> None:
    if reason == "the clock is in doubt":
        world.may_delete = False
    else:
        world.transactions.is_up = False

    await service.cleaner.run_pass()

    assert not (world.directory / "state").exists()


async def test_stored_payloads_count_as_in_progress_until_their_transaction_is_settled(
    world: Observed, service: MessagingService
) -> None:
    await service.publisher.store(AUDIT, request(b"x", pointer=world.transactions.start(7)))
    world.transactions.end(7, world.transactions.committed)

    await service.cleaner.run_pass()

    assert world.state().endswith(struct.pack(">IQI", 1, 7, 0))


async def test_a_topic_with_a_pending_change_is_not_in_the_state(
    world: Observed, service: MessagingService
) -> None:
    """Its longer time to live may keep messages that the durable one lets expire."""
    topic = service.state.topics.find(AUDIT)
    assert topic.decided is not None
    topic.decided = replace(topic.decided, properties={"ttl": "5000"})

    await service.cleaner.run_pass()

    assert b"default:audit:" not in world.state()


async def test_a_state_whose_time_can_not_be_recorded_is_not_published(world: Observed) -> None:
    """After a crash between the two, readers would see the rows around those that are gone."""
    flaky = FlakyStore(RegionStore(world.rows, world.regions))
    world.open_store = lambda: flaky
    async with world.running(audit={"ttl": "100"}) as service:
        flaky.writes_left = 0

        with pytest.raises(UnavailableError):
            await service.cleaner.run_pass()

    assert not (world.directory / "state").exists()


async def test_a_retention_pass_continues_when_the_observer_directory_can_not_be_written(
    world: Observed, service: MessagingService, caplog: pytest.LogCaptureFixture
) -> None:
    world.directory.write_text("no directory can be made here")

    await service.cleaner.run_pass()

    assert "region observers get no newer state" in caplog.text


async def test_a_clock_set_back_shows_no_message_that_observers_may_have_removed(
    world: Observed,
) -> None:
    async with world.running(audit={"ttl": "100"}) as service:
        await publish(service, b"old")
        world.clock.now_ms += 100_000
        await service.cleaner.run_pass()
    world.clock.now_ms = NOON_MS
    world.may_delete = False

    async with world.running() as service:
        await publish(service, b"new")
        assert await polled(service) == [b"new"]
        await service.topics.update(AUDIT, {"ttl": "5000"})
        assert await polled(service) == [b"new"]


async def test_a_pointer_is_cleared_once_every_region_has_cleared_it(
    world: Observed, service: MessagingService
) -> None:
    await service.cleaner.run_pass()
    assert not service.rows.is_cleared(66)
    world.record("aa", 66, 67)
    await service.cleaner.run_pass()
    assert not service.rows.is_cleared(66)
    world.record("bb", 66)

    await service.cleaner.run_pass()

    assert service.rows.is_cleared(66)
    assert not service.rows.is_cleared(67)


async def test_a_region_that_was_split_has_cleared_nothing(
    world: Observed, service: MessagingService
) -> None:
    await service.cleaner.run_pass()
    world.record("aa", 66)
    world.record("bb", 66)
    world.regions += ["cc"]

    await service.cleaner.run_pass()

    assert not service.rows.is_cleared(66)


async def test_a_torn_record_has_cleared_nothing(
    world: Observed, service: MessagingService, caplog: pytest.LogCaptureFixture
) -> None:
    await service.cleaner.run_pass()
    world.record("aa", 66)
    world.record("bb", 66)
    torn = world.directory / "regions" / "bb.major"
    torn.write_bytes(torn.read_bytes()[:-1])

    await service.cleaner.run_pass()

    assert not service.rows.is_cleared(66)
    assert "bb.major" in caplog.text


async def test_records_of_dropped_regions_are_deleted_after_a_week(
    world: Observed, service: MessagingService
) -> None:
    await service.cleaner.run_pass()
    world.record("gone", 66)
    world.record("gone-today", 66, ended_ms=NOON_MS + 1)
    world.clock.now_ms += 7 * 86_400_000 + 1

    await service.cleaner.run_pass()

    left = sorted(path.name for path in (world.directory / "regions").iterdir())
    assert left == ["gone-today.major"]


async def test_without_observers_every_pointer_is_cleared(tmp_path: Path) -> None:
    async with World().running() as service:
        assert service.rows.is_cleared(66)


def test_a_store_without_regions_clears_nothing() -> None:
    assert cleared_everywhere([], []) == frozenset()


def test_a_record_of_a_region_is_read() -> None:
    data = bytes.fromhex((GOLDEN / "region-record.hex").read_text())

    record = RegionRecord.from_bytes(data)

    assert record == RegionRecord(
        region="0123456789abcdef0123456789abcdef",
        state_ms=1_480_000_000_000,
        ended_ms=1_480_000_001_500,
        dropped_count=12,
        inverted_count=3,
        cleared=frozenset({1_479_999_990_000_000_066, 1_479_999_990_000_000_067}),
    )
    assert record.to_bytes() == data


@pytest.mark.parametrize("cut", range(14 + 34 + 32 + 4 + 16))
def test_a_record_that_is_cut_is_refused(cut: int) -> None:
    data = bytes.fromhex((GOLDEN / "region-record.hex").read_text())

    with pytest.raises(UnreadableRecordError):
        RegionRecord.from_bytes(data[:cut])


@pytest.mark.parametrize("at", [0, 9, 11, 20, 60, 99])
def test_a_record_with_a_changed_byte_is_refused(at: int) -> None:
    data = bytearray.fromhex((GOLDEN / "region-record.hex").read_text())
    data[at] ^= 1

    with pytest.raises(UnreadableRecordError):
        RegionRecord.from_bytes(bytes(data))


async def test_no_state_is_published_while_the_store_is_closed(
    world: Observed, service: MessagingService, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(service, b"invalid", pointer=world.transactions.start(7))
    world.transactions.end(7, world.transactions.invalid)
    await service.cleaner._store.close("for this test")

    with pytest.raises(UnavailableError, match="for this test"):
        await service.cleaner.run_pass()

    assert not (world.directory / "state").exists()
    assert caplog.text == ""  # it tries nothing of the pass


async def test_a_pass_removes_delayed_messages_of_deleted_topics_itself(
    world: Observed, service: MessagingService
) -> None:
    """Region observers see messages and payloads only."""
    await delayed(service, b"old", delays=[after(10)])
    await service.topics.delete(AUDIT)
    await service.cleaner.run_pass()
    assert not [key for key in world.rows if key.startswith(DELAYED)]
