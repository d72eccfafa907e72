"""A change of a topic's properties changes what it names, and says which messages expire by it
(protocol §2)."""

import pytest

from messaging.service import MessagingService
from messaging.topic_changes import ChangedTopic, Expiring, PropertyChange
from tests.messaging.world import AUDIT, NOON_MS, World, polled, publish, request
from tuff.protocol.errors import InvalidTopicPropertiesError, TopicNotFoundError
from tuff.protocol.ids import TopicId

YEAR_S = 31_536_000


async def change(
    service: MessagingService, *removed: str, partitions: int | None = None, **given: str
) -> ChangedTopic:
    named = PropertyChange(given, removed, partitions)
    return await service.topics.change(AUDIT, named, is_dry_run=False)


async def expiring(service: MessagingService, ttl_s: int) -> Expiring | None:
    named = PropertyChange({"ttl": str(ttl_s)})
    return (await service.topics.change(AUDIT, named, is_dry_run=True)).expiring


async def test_a_change_of_the_partitions_keeps_the_time_to_live_and_the_messages() -> None:
    """An update of one property put the ttl back to the server's default, and messages expired."""
    world = World()
    async with world.running(audit={"ttl": str(YEAR_S), "owner": "me"}) as service:
        await publish(service, b"old")
        world.clock.now_ms += 1000 * (world.settings.default_ttl + 1)

        changed = await change(service, partitions=2)

        assert changed.properties == {"ttl": str(YEAR_S), "owner": "me"}
        assert (changed.partitions.active, changed.expiring) == ((0, 1), None)
        assert service.topics.get(AUDIT).properties == changed.properties
        assert service.topics.get(AUDIT.partition(1)).ttl_s == YEAR_S


async def test_properties_are_set_and_removed_one_by_one() -> None:
    world = World()
    async with world.running(audit={"ttl": "60", "owner": "me", "team": "red"}) as service:
        await change(service, owner="you", color="blue")
        await change(service, "team", "never there")
        assert service.topics.get(AUDIT).properties == {
            "ttl": "60", "owner": "you", "color": "blue",
        }  # fmt: skip

        changed = await change(service, "ttl")

        assert changed.properties["ttl"] == str(world.settings.default_ttl)


async def test_a_topic_with_a_longer_ttl_than_the_server_allows_now_can_be_changed() -> None:
    world = World()
    async with world.running(audit={"ttl": "1000"}) as service:
        service.topics._settings = type(world.settings)(max_ttl=100, default_ttl=50)

        await change(service, owner="me")

        assert service.topics.get(AUDIT).properties == {"ttl": "1000", "owner": "me"}
        with pytest.raises(InvalidTopicPropertiesError, match="100 seconds or less"):
            await change(service, ttl="101")


async def test_a_shorter_ttl_says_how_many_messages_expire_by_it_and_of_which_time() -> None:
    world = World()
    async with world.running(audit={"ttl": "1000"}) as service:
        await publish(service, b"expired before")
        world.clock.now_ms += 1_000_000
        await publish(service, b"a", b"b")
        world.clock.now_ms += 50_000
        pointer = world.transactions.start(7)
        await publish(service, b"c", pointer=pointer)
        world.clock.now_ms += 50_000
        await publish(service, b"kept")

        assert await expiring(service, 1001) is None
        assert await expiring(service, 101) is None
        first_ms = NOON_MS + 1_000_000
        assert await expiring(service, 60) == Expiring(2, False, first_ms, first_ms + 40_001)
        assert await expiring(service, 50) == Expiring(3, False, first_ms, first_ms + 50_001)
        assert await polled(service) == [b"a", b"b", b"c", b"kept"]

        changed = await change(service, ttl="50")

        assert changed.expiring == Expiring(3, False, first_ms, first_ms + 50_001)
        assert await polled(service) == [b"kept"]


async def test_what_a_hold_keeps_or_was_rolled_back_is_not_counted() -> None:
    world = World()
    async with world.running(audit={"ttl": "1000"}) as service:
        pointer = world.transactions.start(7)
        await publish(service, b"taken back", pointer=pointer)
        await publish(service, b"not held")
        world.clock.now_ms += 10
        held = await publish(service, b"held")
        world.transactions.end(pointer, world.transactions.aborted)
        await service.rows.roll_back([pointer])
        world.clock.now_ms += 100_000
        assert (await expiring(service, 1)) == Expiring(2, False, NOON_MS, NOON_MS + 99_011)

        await service.holds_and_positions.hold(AUDIT, "job", held.first, max_age_ms=500_000)

        assert (await expiring(service, 1)) == Expiring(1, False, NOON_MS, NOON_MS + 10)


async def test_the_messages_of_all_partitions_are_counted() -> None:
    world = World()
    async with world.running(audit={"ttl": "1000"}) as service:
        await change(service, partitions=3)
        for number in range(3):
            await publish_to(service, AUDIT.partition(number))
        world.clock.now_ms += 100_000

        found = await expiring(service, 1)

        assert found is not None
        assert found.count == 3


async def test_a_topic_that_does_not_exist_is_not_changed() -> None:
    async with World().running() as service:
        with pytest.raises(TopicNotFoundError):
            await change(service, ttl="5")


async def publish_to(service: MessagingService, topic: TopicId) -> None:
    await service.publisher.publish(topic, request(b"x"))
