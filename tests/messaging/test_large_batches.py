"""Batches of very many rows: nobody else waits while each of them is looked at (protocol §5.2, §8:
what is promised within a second has to have its turn on the event loop)."""

import asyncio

import pytest

from messaging.read import tail_cache
from messaging.service import MessagingService
from tests.messaging.world import AUDIT, COMMITTED, World, polled, publish, request
from tuff.protocol.requests import PublishRequest

LARGE_COUNT = 12  # rows; more than may be changed one by one


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The keys of rows that were changed one by one in the newest rows of a topic."""
    keys: list[bytes] = []
    change = tail_cache._TopicTail.change

    def noted(self: tail_cache._TopicTail, key: bytes, value: bytes | None) -> None:
        keys.append(key)
        change(self, key, value)

    monkeypatch.setattr(tail_cache, "CHANGED_COUNT_MAX", LARGE_COUNT - 1)
    monkeypatch.setattr(tail_cache._TopicTail, "change", noted)
    return keys


@pytest.mark.parametrize("ttls_s", [[5] * 12, [5, None, 6] * 4], ids=["one", "several"])
async def test_messages_with_a_time_to_live_are_taken_in_at_once(
    changed: list[bytes], service: MessagingService, ttls_s: list[int | None]
) -> None:
    large = [b"%d" % number for number in range(LARGE_COUNT)]

    await service.publisher.publish(
        AUDIT, PublishRequest(pointer=None, payloads=large, ttls_s=ttls_s)
    )

    assert changed == []
    assert await polled(service) == large


async def test_a_large_publish_that_is_marked_is_read_from_the_store(
    changed: list[bytes], world: World, service: MessagingService
) -> None:
    large = [b"gone"] * LARGE_COUNT
    world.transactions.start(7)
    await publish(service, *large, pointer=7)
    await publish(service, b"stays")
    assert await polled(service) == [*large, b"stays"]

    await world.abort(service, 7)

    assert changed == []
    assert await polled(service, COMMITTED) == [b"stays"]
    assert await polled(service) == [*large, b"stays"]
    await publish(service, b"more")
    assert await polled(service, COMMITTED) == [b"stays", b"more"]


async def test_a_large_publish_beside_a_reference_of_its_batch_is_taken_in_at_once(
    changed: list[bytes], world: World, service: MessagingService
) -> None:
    """The reference is a change, and lies behind the publish."""
    large = [b"x"] * LARGE_COUNT
    world.transactions.start(7)
    await service.publisher.store(AUDIT, request(b"stored", pointer=7))

    await asyncio.gather(publish(service, *large), publish(service, pointer=7))

    assert len(changed) == 1
    assert await polled(service) == [*large, b"stored"]
