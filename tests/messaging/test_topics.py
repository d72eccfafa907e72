"""Topics: generations, properties, log starts (protocol §2)."""

from collections.abc import Mapping

import pytest

from messaging.service import MessagingService
from messaging.settings import MessagingSettings
from messaging.topic_changes import parse_properties
from tests.messaging.world import AUDIT, NOON_MS, World, polled, publish
from tuff.protocol.errors import InvalidTopicPropertiesError, TopicExistsError, TopicNotFoundError
from tuff.protocol.ids import FIRST_ID, MessageId, TopicId


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"ttl": "5"}, {"ttl": "5"}),
        ({"ttl": 5}, {"ttl": "5"}),
        ({"ttl": "0005"}, {"ttl": "5"}),
        ({"ttl": 2147483647}, {"ttl": "2147483647"}),
        ({"owner": "Zoë\n", "weight": 1.5, "n": 3}, {"owner": "Zoë\n", "weight": "1.5", "n": "3"}),
    ],
)
def test_properties_become_strings(given: object, expected: dict[str, str]) -> None:
    assert parse_properties(given) == (expected, None)


@pytest.mark.parametrize("given", ["4", 4, "0004"])
def test_the_number_of_partitions_is_no_stored_property(given: object) -> None:
    assert parse_properties({"partitions": given, "a": "b"}) == ({"a": "b"}, 4)


@pytest.mark.parametrize(
    "given",
    [
        None, [], "x", 5, {"ttl": 0}, {"ttl": -1}, {"ttl": 2147483648}, {"ttl": 1.5},
        {"ttl": "1.0"}, {"ttl": "+5"}, {"ttl": " 5"}, {"ttl": "\u0665"}, {"ttl": ""}, {"ttl": True},
        {"ttl": None}, {"ttl": []}, {"generation": 1}, {"generation": "1"}, {"a": {}}, {"a": None},
        {"a": False}, {"a": "\ud800"}, {"a": "x" * 70_000},
    ],
)  # fmt: skip
def test_bad_properties_are_refused(given: object) -> None:
    with pytest.raises(InvalidTopicPropertiesError):
        parse_properties(given)


def created(service: MessagingService) -> tuple[int, Mapping[str, str]]:
    """The topic's generation and properties."""
    record = service.topics.get(AUDIT)
    return record.generation, record.properties


async def test_a_topic_without_a_ttl_gets_the_current_default(world: World) -> None:
    world.settings = MessagingSettings(default_ttl=77)
    async with world.running(audit={"owner": "me"}) as service:
        assert created(service) == (1, {"ttl": "77", "owner": "me"})
        await service.topics.update(AUDIT, {"ttl": "5"})
        assert created(service) == (1, {"ttl": "5"})


async def test_no_topic_has_a_ttl_above_the_maximum(world: World) -> None:
    world.settings = MessagingSettings(default_ttl=50, max_ttl=60)
    async with world.running() as service:
        with pytest.raises(InvalidTopicPropertiesError, match="60 seconds or less"):
            await service.topics.create(AUDIT, {"ttl": "61"})
        with pytest.raises(TopicNotFoundError):
            service.topics.get(AUDIT)
        await service.topics.create(AUDIT, {"ttl": "60"})
        with pytest.raises(InvalidTopicPropertiesError, match="max_ttl"):
            await service.topics.update(AUDIT, {"ttl": "61"})
        assert created(service) == (1, {"ttl": "60"})


async def test_a_topic_created_again_has_the_next_generation_and_no_old_message(
    service: MessagingService,
) -> None:
    await publish(service, b"old")
    with pytest.raises(TopicExistsError):
        await service.topics.create(AUDIT, {})

    await service.topics.delete(AUDIT)
    for call in (service.topics.delete(AUDIT), polled(service), publish(service, b"x")):
        with pytest.raises(TopicNotFoundError):
            await call
    await service.topics.create(AUDIT, {"ttl": "9"})

    assert created(service) == (2, {"ttl": "9"})
    assert await polled(service) == []


async def test_topics_and_generations_of_deleted_ones_survive_a_restart(world: World) -> None:
    async with world.running() as service:
        for _ in range(3):
            await service.topics.create(AUDIT, {})
            await service.topics.delete(AUDIT)
        await service.topics.create(TopicId("b", "x"), {})
        await service.topics.create(TopicId("a", "y"), {})

    async with world.running() as service:
        assert {each.namespace for each in await service.topics.live(None)} == {"a", "b"}
        assert await service.topics.live("default") == []
        await service.topics.create(AUDIT, {})
        assert service.topics.get(AUDIT).generation == 4


async def test_a_message_expires_to_the_millisecond_without_a_retention_pass(
    world: World, service: MessagingService
) -> None:
    await publish(service, b"short", ttl_s=10)
    await publish(service, b"long")

    world.clock.now_ms = NOON_MS + 9_999
    assert await polled(service) == [b"short", b"long"]
    world.clock.now_ms = NOON_MS + 10_000
    assert await polled(service) == [b"long"]
    world.clock.now_ms = NOON_MS + 99_999
    assert await polled(service) == [b"long"]
    world.clock.now_ms = NOON_MS + 100_000
    assert await polled(service) == []


async def test_a_longer_ttl_shows_no_expired_message_again(
    world: World, service: MessagingService
) -> None:
    await publish(service, b"expired")
    world.clock.now_ms += 100_000
    await publish(service, b"live")

    await service.topics.update(AUDIT, {"ttl": "1000000"})

    assert await polled(service) == [b"live"]


async def test_no_log_start_rises_while_the_clock_is_in_doubt(
    world: World, service: MessagingService
) -> None:
    await publish(service, b"kept")
    world.may_delete = False
    world.clock.now_ms += 100_000_000

    await service.topics.update(AUDIT, {"ttl": "1000000"})
    await service.cleaner.run_pass()

    world.clock.now_ms = NOON_MS
    assert await polled(service) == [b"kept"]


async def test_a_truncation_removes_earlier_messages_for_every_reader(
    service: MessagingService,
) -> None:
    published = await publish(service, b"a", b"b", b"c")
    second = MessageId(published.first.publish_timestamp_ms, published.first.seq_id + 1)

    assert await service.topics.truncate(AUDIT, second) == second
    assert await polled(service) == [b"b", b"c"]
    assert await service.topics.truncate(AUDIT, FIRST_ID) == second
    assert await polled(service) == [b"b", b"c"]


async def test_a_truncation_in_the_future_removes_only_existing_messages(
    world: World, service: MessagingService
) -> None:
    await publish(service, b"old")

    assert await service.topics.truncate(AUDIT, NOON_MS * 1000) is None
    await publish(service, b"new")

    assert await polled(service) == [b"new"]
    async with world.running() as again:
        assert await polled(again) == [b"new"]
