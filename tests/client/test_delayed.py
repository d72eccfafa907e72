"""Delayed messages with both clients (protocol §3.10)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import tuff
from tests.http.process import ServerProcess

NEVER = timedelta(hours=1)


def texts(found: list[tuff.admin.DelayedMessage]) -> list[bytes | None]:
    return [each.payload for each in found]


def test_delayed_messages_are_listed_and_cancelled(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    published = client.publish(topic, "a", "b", delay=NEVER, ttl=60)
    moment = (datetime.now(UTC) + timedelta(days=30)).replace(microsecond=678_000)
    client.publish(topic, "c", at=moment)

    first, second, third = client.delayed.list(topic, payloads=True)
    assert published.delayed_ids == (first.id, second.id)
    assert texts([first, second, third]) == [b"a", b"b", b"c"]
    assert (first.ttl_s, first.size_bytes, third.due_ms) == (60, 1, int(moment.timestamp() * 1000))
    assert client.delayed.list(topic, after=first.id, limit=1)[0].payload is None
    client.delayed.delete(topic, first.id)
    with pytest.raises(tuff.errors.DelayedNotFoundError):
        client.delayed.delete(topic, first.id)


def test_delayed_messages_of_all_partitions_are_one_list(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    client.topics.update(topic, partitions=3)
    for number in range(9):
        client.publish(f"{topic}/{number % 3}", str(number), delay=1_000 + number)

    found = client.delayed.list(topic, payloads=True)
    assert texts(found) == [b"%d" % number for number in range(9)]
    pages = [client.delayed.list(topic, limit=2), client.delayed.list(topic, after=found[1].id)]
    assert [each.id for page in pages for each in page] == [each.id for each in found]
    client.delayed.delete(topic, found[4].id)
    assert len(client.delayed.list(topic)) == 8
    with pytest.raises(tuff.errors.DelayedNotFoundError):
        client.delayed.delete(topic, found[4].id)


def test_delayed_messages_are_acknowledged_as_all_are(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    """The client ignored `ack`, the command refused it, and HTTP took it."""
    early = client.publish(topic, "early", delay=NEVER, ack="received")
    assert client.publish(topic, "unknown", delay=NEVER, ack="none") == tuff.Published()
    client.publish(topic, "last", delay=NEVER)

    assert early.delayed_ids[0] == client.delayed.list(topic)[0].id
    assert texts(client.delayed.list(topic, payloads=True)) == [b"early", b"unknown", b"last"]


def test_a_message_that_waits_has_its_attributes(client: tuff.Client, topic: tuff.TopicId) -> None:
    headers = [("a", "1"), ("b", b"\xff"), ("a", "2")]
    message = tuff.NewMessage("x", key="k", tags=["new"], headers=headers)
    client.publish(topic, message, delay=NEVER)

    (found,) = client.delayed.list(topic)

    assert (found.key, found.tags) == (b"k", ("new",))
    assert found.headers == (("a", b"1"), ("a", b"2"), ("b", b"\xff"))


def test_a_message_id_cancels_nothing(client: tuff.Client, topic: tuff.TopicId) -> None:
    entered: Any = client.publish(topic, "x").ids[0]
    with pytest.raises(TypeError, match="as in the delayed_ids of a publish"):
        client.delayed.delete(topic, entered)


def test_a_delayed_message_enters(client: tuff.Client, topic: tuff.TopicId) -> None:
    client.publish(topic, "x", delay=0.02)
    (message,) = client.poll(topic, wait=60)
    assert message.payload == b"x"


def test_a_context_decides_about_its_delayed_messages(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    with client.transaction() as tx:
        tx.publish(topic, "kept", delay=0.01)
        tx.publish(topic, "also kept", at=1)
    with client.transaction() as tx:
        tx.publish(topic, "gone", delay=0.01)
        tx.abort()
    transaction = client.transactions.start()
    published = client.publish(topic, "rolled back", transaction=transaction, delay=0.01)
    assert published.rollback is not None
    client.rollback(topic, published.rollback)
    client.transactions.commit(transaction)

    client.publish(topic, "last", delay=0.1)

    found: list[bytes] = []
    start: tuff.MessageId | None = None
    while not found or found[-1] != b"last":
        poll = client.poll(topic, start, inclusive=False, wait=10)
        found += [each.payload for each in poll]
        start = poll.next_id
    assert sorted(found) == [b"also kept", b"kept", b"last"]


async def test_the_asyncio_client_has_the_same(
    server: ServerProcess, client: tuff.Client, topic: tuff.TopicId
) -> None:
    async with tuff.AsyncClient(server.url) as other:
        published = await other.publish(topic, "x", delay=NEVER)
        (found,) = await other.delayed.list(topic)
        assert found.id == published.delayed_ids[0]
        await other.delayed.delete(topic, found.id)
        assert client.delayed.list(topic) == []


def test_impossible_delays_are_refused(client: tuff.Client, topic: tuff.TopicId) -> None:
    with pytest.raises(tuff.errors.InvalidDelayError):
        client.publish(topic, "x", delay=0)
    with pytest.raises(ValueError, match="either delay or at"):
        client.publish(topic, "x", delay=1, at=1)  # type: ignore[call-overload] # that is the test
    with pytest.raises(ValueError, match="a datetime with a time zone"):
        client.publish(topic, "x", at=datetime(2035, 1, 1))  # noqa: DTZ001 - that is the test
