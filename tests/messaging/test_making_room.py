"""On a disk that is nearly full, what makes room is possible, and nothing else (protocol §7)."""

from collections.abc import Awaitable, Callable

import pytest

from messaging.service import MessagingService
from tests.messaging.world import AUDIT, FlakyWorld, World, polled, publish, request
from tuff.protocol.errors import StorageUnavailableError
from tuff.protocol.ids import MessageId, TopicId

FULL = "only 30 MiB are free; no messages are taken"
TO_THE_LAST = "only 1 MiB are free, too little even to delete messages"
Act = Callable[[MessagingService], Awaitable[object]]

MAKING_ROOM: dict[str, Act] = {
    "end a hold": lambda service: service.holds_and_positions.release(AUDIT, "kept"),
    "shorten the time to live": lambda service: service.topics.update(AUDIT, {"ttl": "5"}),
    "delete the topic": lambda service: service.topics.delete(AUDIT),
    "truncate the topic": lambda service: service.topics.truncate(AUDIT, MessageId(1 << 50, 0)),
    "retention": lambda service: service.cleaner.run_pass(),
}
TAKING_SPACE: dict[str, Act] = {
    "publish": lambda service: service.publisher.publish(AUDIT, request(b"b")),
    "store": lambda service: service.publisher.store(AUDIT, request(b"b", pointer=7)),
    "create a topic": lambda service: service.topics.create(TopicId("default", "new"), {}),
    "lengthen the time to live": lambda service: service.topics.update(AUDIT, {"ttl": "5000"}),
    "add partitions": lambda service: service.topics.update(AUDIT, {"ttl": "5"}, partition_count=2),
    "set a hold": lambda service: service.holds_and_positions.hold(
        AUDIT, "more", 0, max_age_ms=1_000
    ),
}


async def begin(service: MessagingService, name: str) -> None:
    await publish(service, b"a")
    if name == "end a hold":
        await service.holds_and_positions.hold(AUDIT, "kept", 0, max_age_ms=1_000)


@pytest.mark.parametrize("name", MAKING_ROOM)
async def test_what_makes_room_is_possible_below_the_reserve(name: str) -> None:
    world = World()
    async with world.running(audit={"ttl": "100"}) as service:
        await begin(service, name)
        world.lack_of_space = FULL
        await service.tick()

        await MAKING_ROOM[name](service)

        assert world.released_count == 0


@pytest.mark.parametrize("name", TAKING_SPACE)
async def test_what_takes_space_is_refused_below_the_reserve(name: str) -> None:
    world = World()
    world.transactions.start(7)
    async with world.running(audit={"ttl": "100"}) as service:
        world.lack_of_space = FULL
        await service.tick()

        with pytest.raises(StorageUnavailableError, match=r"^nothing was written: only 30 MiB"):
            await TAKING_SPACE[name](service)


@pytest.mark.parametrize("name", MAKING_ROOM)
async def test_what_makes_room_gets_the_space_that_is_kept_for_it(name: str) -> None:
    world = World()
    async with world.running(audit={"ttl": "100"}) as service:
        await begin(service, name)
        world.lack_of_space, world.lack_of_last_space = FULL, TO_THE_LAST
        await service.tick()
        assert world.released_count == 0  # reads need none of it

        await MAKING_ROOM[name](service)

        assert world.released_count == 1


@pytest.mark.parametrize("name", MAKING_ROOM)
async def test_a_disk_without_any_space_is_not_filled_by_deletions(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that fails to write is closed, and then it can't be read either."""

    async def nothing_left() -> None:
        pass

    world = World()
    monkeypatch.setattr(world, "_release_spare", nothing_left)
    async with world.running(audit={"ttl": "100"}) as service:
        await begin(service, name)
        world.lack_of_space, world.lack_of_last_space = FULL, TO_THE_LAST
        await service.tick()

        with pytest.raises(StorageUnavailableError, match="too little even to delete"):
            await MAKING_ROOM[name](service)

        assert await polled(service) == [b"a"]


async def test_a_disk_that_became_full_since_the_last_tick_gives_that_space_as_well() -> None:
    world = World()
    async with world.running(audit={"ttl": "100"}) as service:
        await publish(service, b"a")
        world.lack_of_space, world.lack_of_last_space = FULL, TO_THE_LAST

        await service.topics.delete(AUDIT)

        assert world.released_count == 1


async def test_a_store_that_is_down_gets_the_space_that_is_kept_to_be_opened_again() -> None:
    world = FlakyWorld()
    world.is_barred = True
    world.lack_of_space, world.lack_of_last_space = FULL, TO_THE_LAST
    async with world.running() as service:
        assert world.released_count == 1
        world.is_barred = False
        world.lack_of_last_space = TO_THE_LAST

        await service.tick()

        assert world.released_count == 2
        assert service.status == ("ok", None)


async def test_a_store_on_a_full_disk_is_opened_again_every_five_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each attempt of LevelDB left an empty file behind, five of them a second."""

    async def nothing_left() -> None:
        pass

    world = FlakyWorld()
    world.is_barred = True
    monkeypatch.setattr(world, "_release_spare", nothing_left)
    world.lack_of_space, world.lack_of_last_space = FULL, TO_THE_LAST
    opened: list[int] = []
    bar = world.open_store
    world.open_store = lambda: opened.append(world.clock.now_ms) or bar()
    async with world.running() as service:
        opened.clear()
        for _ in range(50):
            await service.tick()
            world.clock.now_ms += 200

        assert len(opened) == 2
