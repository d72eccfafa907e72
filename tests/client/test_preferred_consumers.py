"""Consumers that name only their group: the preferences of the group say how they consume."""

import time
from collections.abc import Callable, Iterator

import pytest

import tuff
from tests.http.process import ServerProcess, serve

WITHIN_S = 60.0
TWICE = tuff.RetryPolicy(delays=(0.01,))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose members hear of changes at once."""
    with serve(tmp_path_factory.mktemp("server"), "groups.heartbeat_interval=0.1") as running:
        yield running


def payloads(consumer: tuff.Consumer, number: int) -> list[bytes]:
    """So many messages, or what came of them."""
    found: list[bytes] = []
    until_s = time.monotonic() + WITHIN_S
    while len(found) < number and time.monotonic() < until_s:
        found += [message.payload for message in consumer.poll(wait=0.1) or ()]
    return found


def prefer(client: tuff.Client, topic: tuff.TopicId, **preferences: object) -> None:
    client.groups.update_preferences(topic.namespace, topic.name, **preferences)  # type: ignore[misc]  # any


def failing(consumer: tuff.Consumer, *, attempts: int) -> Callable[[tuff.Batch], None]:
    """A function that fails so often, and ends its run then."""
    left = attempts

    def process(batch: tuff.Batch) -> None:
        nonlocal left
        left -= 1
        if not left:
            consumer.stop()
        raise ValueError("it never works")

    return process


def letters(client: tuff.Client, topic: str) -> list[bytes]:
    return [tuff.read_dead_letter(each).message.payload for each in client.poll(topic)]


def test_a_consumer_begins_and_selects_as_its_group_prefers(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    client.publish(topic, "old", tags=["urgent"])
    prefer(client, topic, start="latest", tags="urgent")

    with client.consumer(topic, group=topic.name) as consumer:
        until_s = time.monotonic() + WITHIN_S
        while not consumer.assignment:  # from here on the end is where it begins
            assert time.monotonic() < until_s
            assert consumer.poll(wait=0.1) is None
        assert consumer.poll(wait=0.1) is None
        client.publish(topic, "late")
        client.publish(topic, "urgent", tags=["urgent"])
        assert payloads(consumer, 1) == [b"urgent"]


def test_a_consumer_reads_uncommitted_messages_if_its_group_prefers(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    prefer(client, topic, isolation="all")

    with client.consumer(topic, group=topic.name) as consumer, client.transaction() as tx:
        client.publish(topic, "undecided", transaction=tx.transaction)
        assert payloads(consumer, 1) == [b"undecided"]


def test_a_message_goes_to_the_dead_letters_that_the_group_prefers(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    failed = f"{topic.name}-failed"
    prefer(client, topic, retry=TWICE, dead_letters=failed)
    client.publish(topic, "bad")

    with client.consumer(topic, group=topic.name) as consumer:
        consumer.run(failing(consumer, attempts=2))

    assert letters(client, f"{topic.namespace}:{failed}") == [b"bad"]


def test_what_the_program_names_counts_and_a_contradiction_is_a_warning(
    client: tuff.Client, topic: tuff.TopicId, caplog: pytest.LogCaptureFixture
) -> None:
    client.publish(topic, "one", "two", tags=["b"])
    prefer(client, topic, start="latest", tags="a", retry=TWICE)
    named = tuff.RetryPolicy(delays=(), outage=(OSError,))

    with client.consumer(
        topic, group=topic.name, start="earliest", tags="b", retry=named
    ) as consumer:
        consumer.run(failing(consumer, attempts=1))

    assert letters(client, f"{topic}.dlq")[:1] == [b"one"]
    warned = [each for each in caplog.messages if "names another" in each]
    assert [each.partition("another ")[2].partition(" ")[0] for each in warned] == [
        "start",
        "tags",
        "retry",
    ]


def test_a_member_follows_a_change_while_it_runs(client: tuff.Client, topic: tuff.TopicId) -> None:
    prefer(client, topic, tags="a")
    seen: list[str] = []

    def note(what: str) -> Callable[[list[tuff.PartitionId]], None]:
        return lambda partitions: seen.append(f"{what} {len(partitions)}")

    with client.consumer(
        topic,
        group=topic.name,
        on_assigned=note("assigned"),
        on_revoked=note("revoked"),
        on_lost=note("lost"),
    ) as consumer:
        client.publish(topic, "one", tags=["a"])
        assert payloads(consumer, 1) == [b"one"]
        prefer(client, topic, tags=None, retry=TWICE)
        while seen[-1:] != ["assigned 2"]:  # with the retry topic
            assert consumer.poll(wait=0.1) is None
        client.publish(topic, "two", tags=["b"])
        consumer.run(failing(consumer, attempts=2))

    assert seen[:3] == ["assigned 1", "revoked 1", "assigned 2"]
    assert letters(client, f"{topic}.dlq") == [b"two"]


def test_a_consumer_that_processes_at_most_once_tries_nothing_again(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    prefer(client, topic, retry=TWICE)
    client.publish(topic, "bad")

    with (
        client.consumer(topic, group=topic.name, mode="at_most_once") as consumer,
        pytest.raises(ValueError, match="never works"),
    ):
        consumer.run(failing(consumer, attempts=9))
