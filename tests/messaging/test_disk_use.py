"""What the store takes on its disk, and a retention pass on request (protocol §7)."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from messaging.disk_use import TopicSpace
from messaging.engines.engine_interface import CanCompact, Piece
from messaging.engines.row_store import Store
from messaging.service import MessagingService
from tests.messaging.world import AUDIT, World, leveldb, request
from tuff.protocol.errors import TopicNotFoundError
from tuff.protocol.ids import TopicId

PARTS = TopicId("default", "parts")
MIB = 1 << 20


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(lambda: leveldb(tmp_path))


@pytest.fixture
async def service(world: World) -> AsyncIterator[MessagingService]:
    async with world.running(audit={"ttl": "1000"}) as running:
        await running.topics.create(PARTS, {"ttl": "1000"}, partition_count=2)
        yield running


async def fill(service: MessagingService, topic: TopicId, mib: int) -> None:
    for _ in range(mib):
        messages = [os.urandom(1 << 10) for _ in range(1 << 10)]
        await service.publisher.publish(topic, request(*messages))


async def into_files(service: MessagingService) -> None:
    """LevelDB estimates what is in its tables, and not what is in memory."""
    await fill(service, PARTS.partition(1), 8)
    store = service.store.require_up()
    assert isinstance(store, Store)
    assert isinstance(store.engine, CanCompact)
    store.engine.compact(Piece(b"", b"\xff", 0))


async def test_what_has_expired_is_on_the_disk_and_not_live_until_a_compaction(
    world: World, service: MessagingService
) -> None:
    await fill(service, AUDIT, 4)
    await into_files(service)
    before = await service.disk_use.of_topic(AUDIT)
    assert before.live_bytes == before.disk_bytes > 4 * MIB
    world.clock.now_ms += 10
    last = await service.publisher.publish(AUDIT, request(b"last"))
    await service.topics.truncate(AUDIT, last.last)

    held = await service.disk_use.of_topic(AUDIT)
    await service.cleaner.run_pass()  # 4 MiB are too little for a pass that nobody asked for
    after_pass = await service.disk_use.of_topic(AUDIT)
    done = await service.disk_use.reclaim()

    assert held.live_bytes < MIB
    assert held.disk_bytes > 4 * MIB
    assert after_pass.disk_bytes > 4 * MIB
    assert done["isComplete"] is True
    assert int(str(done["freedBytes"])) > 3 * MIB
    assert (await service.disk_use.of_topic(AUDIT)).disk_bytes < MIB


async def test_a_requested_compaction_without_space_says_that_there_is_more(
    world: World, service: MessagingService
) -> None:
    await fill(service, AUDIT, 4)
    await into_files(service)
    await service.topics.delete(AUDIT)
    world.free_bytes = 3 * MIB

    assert await service.disk_use.reclaim() == {"freedBytes": 0, "isComplete": False}

    world.free_bytes = 200 * MIB
    done = await service.disk_use.reclaim()
    assert done["isComplete"] is True
    assert int(str(done["freedBytes"])) > 3 * MIB


async def test_the_reply_has_the_tables_and_each_topic_with_its_partitions_and_the_deleted_ones(
    service: MessagingService,
) -> None:
    await fill(service, AUDIT, 4)
    await into_files(service)
    await service.topics.delete(AUDIT)

    form = await service.disk_use.body()

    parts, audit = [
        next(each for each in _objects(form["topics"]) if each["name"] == name)
        for name in ("parts", AUDIT.name)
    ]
    assert _number(parts["liveBytes"]) == _number(parts["diskBytes"]) > 8 * MIB
    assert _number(audit["liveBytes"]) == 0
    assert _number(audit["diskBytes"]) > 4 * MIB
    tables = {str(each["name"]): _number(each["diskBytes"]) for each in _objects(form["tables"])}
    assert tables["messages"] == _number(parts["diskBytes"]) + _number(audit["diskBytes"])


async def test_a_topic_without_messages_takes_nothing_and_a_missing_one_is_refused(
    service: MessagingService,
) -> None:
    assert await service.disk_use.of_topic(PARTS) == TopicSpace(0, 0)
    assert await service.disk_use.of_topic(PARTS.partition(1)) == TopicSpace(0, 0)
    with pytest.raises(TopicNotFoundError):
        await service.disk_use.of_topic(TopicId("default", "missing"))


def _objects(value: object) -> list[dict[str, object]]:
    assert isinstance(value, list)
    return value


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value
