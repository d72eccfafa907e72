"""Every call that names a topic takes it as text, as `n:t`, and a partition as `n:t/1`."""

from collections.abc import Callable

import pytest

import tuff
from tuff.connectors import RollbackDetail, publish_entry

Work = Callable[[tuff.Client, str], object]


def _nothing(*_: object) -> None:
    pass


def _publish_in_transactions(client: tuff.Client, topic: str) -> list[RollbackDetail]:
    transaction = client.transactions.start()
    client.store(topic, "stored", transaction=transaction)
    client.publish_stored(topic, transaction=transaction)
    entry = publish_entry(topic, "entry")
    return client.transactions.commit(transaction, publish=[entry])


def _keep_names(client: tuff.Client, topic: str) -> object:
    client.publish(topic, "x")
    hold = client.holds.set(topic, "h", "earliest", max_age=60)
    client.positions.set(topic, "p", hold.first)
    client.positions.get(topic, "p")
    client.positions.delete(topic, "p")
    client.holds.delete(topic, "h")
    return client.holds.list(topic), client.positions.list(topic)


def _delay(client: tuff.Client, topic: str) -> object:
    client.publish(topic, "later", delay=3600)
    (found,) = client.delayed.list(topic)
    return client.delayed.delete(topic, found.id)


WORKS: list[Work] = [
    lambda client, topic: client.topics.update(topic, ttl=60),
    lambda client, topic: client.topics.get(topic).topic,
    lambda client, topic: client.topics.count(topic),
    lambda client, topic: client.topics.splits(topic, 2),
    lambda client, topic: client.topics.truncate(topic, 5),
    _keep_names,
    _delay,
    _publish_in_transactions,
    lambda client, topic: client.offsets(topic),
    lambda client, topic: client.rows(topic),
    lambda client, topic: client.explain(topic, "00" * 20).topic,
    lambda client, topic: client.share_groups.create(topic, "g"),
    lambda client, topic: client.share_groups.list(topic),
    lambda client, topic: client.subscriber(topic, _nothing, positions=_Positions(), wait=0).step(),
]


class _Positions(tuff.TransactionAware):
    """A participant that keeps no position."""

    name = "positions"

    commit_tx = rollback_tx = save = _nothing

    def tx_changes(self, _transaction: tuff.Transaction) -> list[bytes]:
        return []

    def load(self, *_: object) -> None:
        return None


@pytest.mark.parametrize("work", WORKS)
def test_a_call_takes_a_topic_as_text(client: tuff.Client, topic: tuff.TopicId, work: Work) -> None:
    assert not isinstance(work(client, str(topic)), Exception)


def test_text_and_value_are_the_same_topic(client: tuff.Client) -> None:
    topic = tuff.TopicId("as-text", "divided")
    client.topics.create("as-text:divided", partitions=2)

    with client.transaction() as tx:
        tx.publish("as-text:divided/1", "one")
        tx.publish(topic.partition(1), "two")
        tx.publish("as-text:divided:1", "three")

    expected = [b"one", b"two", b"three"]
    assert [each.payload for each in client.poll("as-text:divided/1")] == expected
    assert [each.payload for each in client.poll(topic.partition(1))] == expected
    assert client.topics.get("as-text:divided").topic == topic
    first = next(iter(client.merged("as-text:divided")))
    assert (first[0], first[1].payload) == (1, b"one")
    assert next(iter(client.subscribe("as-text:divided/1"))).payload == b"one"


def test_a_group_returns_partitions(client: tuff.Client) -> None:
    client.topics.create("as-text:grouped", partitions=2)
    client.publish("as-text:grouped/1", "one")

    with client.consumer("as-text:grouped", group="as-text") as consumer:
        batch = consumer.poll(wait=10)
        assert batch is not None
        assert [each.number for each in consumer.assignment] == [0, 1]
        consumer.commit()
    partitions = client.groups.get("as-text", "as-text").partitions
    client.groups.reset("as-text", "as-text", {"as-text:grouped/1": None})

    assert batch.partition == tuff.PartitionId("as-text", "grouped:1")
    assert all(isinstance(each.partition, tuff.PartitionId) for each in partitions)


def test_a_text_without_a_namespace_is_refused_with_the_form(client: tuff.Client) -> None:
    with pytest.raises(tuff.errors.InvalidNameError, match="as in 'shop:orders'"):
        client.publish("orders", "x")
