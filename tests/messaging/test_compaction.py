"""Deleted rows leave the disk (protocol §2): LevelDB is made to compact their tables."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from messaging.engines.engine_interface import CanCompact, Piece, StoreDamagedError
from messaging.engines.row_store import Store
from messaging.read.poll import Poll
from messaging.service import MessagingService
from tests.messaging.world import AUDIT, World, leveldb, payloads, request
from tuff.protocol.ids import TopicId

KEPT = TopicId("default", "kept")
MIB = 1 << 20


def stored_mib(directory: Path) -> float:
    return sum(path.stat().st_size for path in directory.glob("*.ldb")) / MIB


class LevelDbWorld(World):
    """A world on LevelDB, whose free space a test sets."""

    def __init__(self, directory: Path) -> None:
        super().__init__(lambda: leveldb(directory))
        self.directory = directory


@pytest.fixture
def world(tmp_path: Path) -> LevelDbWorld:
    return LevelDbWorld(tmp_path)


@pytest.fixture
async def service(world: LevelDbWorld) -> AsyncIterator[MessagingService]:
    async with world.running(audit={"ttl": "1000"}) as running:
        await running.topics.create(KEPT, {"ttl": "1000"})
        for topic in (KEPT, AUDIT, KEPT, AUDIT, AUDIT):
            for _ in range(8):
                messages = [os.urandom(1_000) for _ in range(1_000)]
                await running.publisher.publish(topic, request(*messages))
        yield running


async def kept(service: MessagingService) -> list[bytes]:
    return payloads(await service.polls.poll(KEPT, Poll(limit=10_000)))


async def test_the_space_of_a_deleted_topic_is_free_after_the_next_pass(
    world: LevelDbWorld, service: MessagingService
) -> None:
    """72 of 72 MB were on the disk 18 s later, and after minutes as well."""
    kept_count = len(await kept(service))
    await service.topics.delete(AUDIT)

    await service.cleaner.run_pass()

    assert stored_mib(world.directory) < 20
    assert len(await kept(service)) == kept_count


async def test_the_space_of_expired_and_truncated_messages_is_free_after_the_next_pass(
    world: LevelDbWorld, service: MessagingService
) -> None:
    world.clock.now_ms += 10
    last = await service.publisher.publish(KEPT, request(b"last"))
    await service.topics.truncate(KEPT, last.last)
    await service.cleaner.run_pass()
    assert stored_mib(world.directory) < 28
    world.clock.now_ms += 1_000_000

    await service.cleaner.run_pass()

    assert stored_mib(world.directory) < 4


async def test_nothing_is_compacted_without_the_space_for_it(
    world: LevelDbWorld, service: MessagingService, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await service.topics.delete(AUDIT)
    world.free_bytes = 3 * MIB

    await service.cleaner.run_pass()
    # LevelDB may compact tables by itself meanwhile, so their size says nothing.
    assert "compactions freed" not in caplog.text

    world.free_bytes = 200 * MIB
    await service.cleaner.run_pass()
    assert stored_mib(world.directory) < 20


async def test_deleted_rows_in_large_tables_need_space_only_for_the_rows_beside_them(
    world: LevelDbWorld,
) -> None:
    """Two tables of a write buffer each, with some rows of another topic, kept 64 MiB of a deleted
    topic on a full disk for good."""
    async with world.running(audit={"ttl": "1000"}) as service:
        await service.topics.create(KEPT, {"ttl": "1000"})
        await service.publisher.publish(KEPT, request(b"one"))
        for _ in range(40):
            await service.publisher.publish(
                AUDIT, request(*(os.urandom(1_000) for _ in range(1_000)))
            )
        await service.topics.delete(AUDIT)
        assert stored_mib(world.directory) > 30
        world.free_bytes = 32 * MIB - 100_000
        store = service.store.require_up()
        assert isinstance(store, Store)
        assert isinstance(store.engine, CanCompact)
        assert store.engine.next_piece(b"mdefault:audit", b"mdefault:b").written_bytes < 24 * MIB

        await service.cleaner.run_pass()

        assert stored_mib(world.directory) < 4
        assert await kept(service) == [b"one"]


async def test_damaged_tables_are_not_compacted(
    world: LevelDbWorld, service: MessagingService
) -> None:
    """LevelDB that meets damage in a compaction fails each write from then on."""
    store = service.store.require_up()
    assert isinstance(store, Store)
    engine = store.engine
    everything = Piece(b"", b"\xff", 0)
    assert isinstance(engine, CanCompact)
    engine.compact(everything)
    table = max(world.directory.glob("*.ldb"), key=lambda path: path.stat().st_size)
    with table.open("r+b") as file:
        file.seek(table.stat().st_size // 2)
        file.write(b"damage")

    with pytest.raises(StoreDamagedError, match="it is not compacted"):
        engine.compact(everything)

    await service.publisher.publish(KEPT, request(b"later"))
