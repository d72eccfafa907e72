"""Where a reader begins: every call that has a start takes the same ones."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import tuff
from tuff.read_calls import start_to_json

ID = "000001a2284f52ae003200000000000000000000"


@pytest.fixture
def three(client: tuff.Client, topic: tuff.TopicId) -> list[tuff.MessageId]:
    """The ids of the topic's three messages."""
    return list(client.publish(topic, "a", "b", "c").ids)


def payloads(found: Any) -> list[bytes]:
    return [message.payload for message in found]


@pytest.mark.parametrize(
    ("start", "form"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        (tuff.MessageId.from_hex(ID), ID),
        (ID, ID),
        (1_700_000_000_000, 1_700_000_000_000),
        (datetime(2026, 1, 1, tzinfo=UTC), 1_767_225_600_000),
    ],
)
def test_a_start_has_one_form_in_requests(start: Any, form: str | int) -> None:
    assert start_to_json(start) == form


def ways(client: Any, topic: Any, start: Any) -> list[Callable[[], object]]:
    """Each call of a client that has a start."""
    return [
        lambda: client.poll(topic, start),
        lambda: next(client.subscribe(topic, start)),
        lambda: next(client.merged(topic, start)),
        lambda: client.topic(topic, tuff.STR).poll(start),
        lambda: client.rows(topic, start),
        lambda: client.topics.truncate(topic, start),
        lambda: client.holds.set(topic, "h", start, max_age=60),
        lambda: client.groups.reset("client", "g", {topic: start}),
        lambda: client.share_groups.create(topic, "g", start=start),
    ]


@pytest.mark.parametrize("number", range(9))
@pytest.mark.parametrize(
    ("start", "kind"),
    [
        ("newest", ValueError),
        ("2026-01-01", ValueError),
        (datetime(2026, 1, 1), ValueError),  # noqa: DTZ001 - that is the mistake
        (1.5, TypeError),
        (object(), TypeError),
    ],
)
def test_anything_else_is_refused_by_every_call_in_the_same_words(
    client: tuff.Client, topic: tuff.TopicId, start: object, kind: type[Exception], number: int
) -> None:
    with pytest.raises(kind, match="a start is a message id, its 40 hex digits, a datetime with"):
        ways(client, topic, start)[number]()


def test_a_read_begins_at_an_id_a_time_or_an_end(
    client: tuff.Client, topic: tuff.TopicId, three: list[tuff.MessageId]
) -> None:
    at_ms = three[0].publish_timestamp_ms

    assert payloads(client.poll(topic, "earliest")) == [b"a", b"b", b"c"]
    assert payloads(client.poll(topic, three[1])) == [b"b", b"c"]
    assert payloads(client.poll(topic, three[1].hex(), inclusive=False)) == [b"c"]
    assert payloads(client.poll(topic, at_ms)) == [b"a", b"b", b"c"]
    assert payloads(client.poll(topic, datetime.fromtimestamp(at_ms / 1000, UTC))) == [
        b"a", b"b", b"c",
    ]  # fmt: skip


def test_a_read_from_the_latest_continues_behind_what_is_there(
    client: tuff.Client, topic: tuff.TopicId, three: list[tuff.MessageId]
) -> None:
    poll = client.poll(topic, "latest")
    client.publish(topic, "d")

    assert payloads(poll) == []
    assert payloads(client.poll(topic, poll.next_id, inclusive=False)) == [b"d"]


def test_a_read_from_the_latest_of_an_empty_topic_gets_the_first_message(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    poll = client.poll(topic, "latest")
    client.publish(topic, "a")

    assert payloads(client.poll(topic, poll.next_id, inclusive=False)) == [b"a"]


def test_a_transaction_reads_from_the_latest(
    client: tuff.Client, topic: tuff.TopicId, three: list[tuff.MessageId]
) -> None:
    with client.transaction() as tx:
        assert payloads(tx.poll(topic, "latest")) == []


@pytest.mark.parametrize(("start", "left"), [("earliest", 3), ("latest", 0), ("second", 2)])
def test_a_truncation_keeps_what_is_from_its_start_on(
    client: tuff.Client,
    topic: tuff.TopicId,
    three: list[tuff.MessageId],
    start: str,
    left: int,
) -> None:
    client.topics.truncate(topic, three[1] if start == "second" else start)

    assert len(client.poll(topic)) == left


def test_a_hold_begins_with_the_oldest_message_or_behind_all(
    client: tuff.Client, topic: tuff.TopicId, three: list[tuff.MessageId]
) -> None:
    oldest = client.holds.set(topic, "oldest", "earliest", max_age=60)
    newest = client.holds.set(topic, "newest", "latest", max_age=60)

    assert oldest.first <= three[0]
    assert newest.first > three[2]


@pytest.mark.parametrize(
    ("start", "inclusive", "after"),
    [("earliest", True, 0), ("latest", True, 3), ("second", True, 1), ("second", False, 2)],
)
def test_a_group_continues_at_its_start(
    client: tuff.Client,
    topic: tuff.TopicId,
    three: list[tuff.MessageId],
    start: str,
    inclusive: bool,
    after: int,
) -> None:
    with client.consumer(topic, group="starts") as consumer:
        assert consumer.poll(wait=10)
    at = three[1] if start == "second" else start

    client.groups.reset("client", "starts", {topic.partition(0): at}, inclusive=inclusive)

    with client.consumer(topic, group="starts") as consumer:
        batch = consumer.poll(wait=1) or []
    assert payloads(batch) == [b"a", b"b", b"c"][after:]
    client.groups.delete("client", "starts")


def test_a_share_group_begins_at_a_time(
    client: tuff.Client, topic: tuff.TopicId, three: list[tuff.MessageId]
) -> None:
    at = datetime.fromtimestamp(three[0].publish_timestamp_ms / 1000, UTC)
    client.share_groups.create(topic, "at-a-time", start=at)

    with client.share_consumer(topic, group="at-a-time") as consumer:
        assert payloads(consumer.poll(wait=5)) == [b"a", b"b", b"c"]
