"""A position is of one subscriber in one topic."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import tuff


@pytest.fixture
def table(tmp_path: Path) -> Iterator[tuff.TransactionalTable]:
    with tuff.TransactionalTable(tmp_path / "table") as opened:
        yield opened


@pytest.fixture
def topics(client: tuff.Client, topic: tuff.TopicId) -> list[tuff.TopicId]:
    other = tuff.TopicId(topic.namespace, f"{topic.name}-other")
    client.topics.create(other)
    return [topic, other]


def test_subscribers_of_two_topics_under_one_name_skip_nothing(
    client: tuff.Client, topics: list[tuff.TopicId], table: tuff.TransactionalTable
) -> None:
    """They shared a row: the second one went on behind where the first was in the other topic."""
    seen: list[bytes] = []

    def process(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        seen.extend(message.payload for message in messages)

    client.publish(topics[1], "older")
    client.publish(topics[0], "newer")
    for topic in topics:
        positions = tuff.TablePositions(table, "billing")
        client.subscriber(topic, process, positions=positions, wait=0).step()

    assert seen == [b"newer", b"older"]


def test_positions_of_one_topic_are_none_of_another(
    client: tuff.Client, topics: list[tuff.TopicId], table: tuff.TransactionalTable
) -> None:
    positions = tuff.TablePositions(table, "billing")
    client.subscriber(topics[0], lambda *_: None, positions=positions)
    client.subscriber(topics[0], lambda *_: None, positions=positions)

    with pytest.raises(ValueError, match="is kept for client:"):
        client.subscriber(topics[1], lambda *_: None, positions=positions)


def test_a_position_can_be_looked_at_once_its_topic_is_told(
    client: tuff.Client, topics: list[tuff.TopicId], table: tuff.TransactionalTable
) -> None:
    published = client.publish(topics[0], "one")
    client.subscriber(
        topics[0], lambda *_: None, positions=tuff.TablePositions(table, "billing"), wait=0
    ).step()
    looking = tuff.TablePositions(table, "billing")

    with client.transaction(table):
        with pytest.raises(RuntimeError, match="for no topic yet"):
            looking.load()
        looking.keep_for(topics[0])
        assert looking.load() == published.last_id
