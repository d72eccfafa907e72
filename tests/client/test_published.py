"""The ids of the messages that a transaction publishes: known after its commit."""

import pytest

import tuff
from tests.client.proxy import losing
from tests.http.client import until
from tests.http.process import ServerProcess
from tuff.connectors import publish_entry
from tuff.publish_calls import BUFFER_BYTES_MAX


def ids(client: tuff.Client, topic: tuff.TopicId) -> list[tuff.MessageId]:
    return [message.id for _, message in client.merged(topic, follow=False)]


def test_each_publish_has_the_ids_of_its_messages_in_the_order_of_the_program(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    other = tuff.TopicId(topic.namespace, f"{topic.name}-other")
    client.topics.create(other, partitions=3)

    with client.transaction() as tx:
        assert tx.publish(topic, "a", "b") == tuff.Published()
        tx.publish(other, "x")
        tx.checkpoint()
        tx.publish(topic, "c")
        for number in range(5):
            tx.publish(other, f"{number}", key=f"{number}")

    a, x, c, *others = tx.published
    assert [*a.ids, *c.ids] == ids(client, topic)
    assert [*x.ids, *(each.ids[0] for each in others)] == ids(client, other)


def test_ids_of_delayed_messages_are_known_at_once(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    with client.transaction() as tx:
        tx.publish(topic, "now")
        delayed = tx.publish(topic, "later", "and this", delay=3_600)

    # They are in the list once the end of the transaction has reached them.
    waiting = until(lambda: [each.id for each in client.delayed.list(topic)])
    assert list(delayed.delayed_ids) == waiting
    now, later = tx.published
    assert (list(now.ids), later) == (ids(client, topic), delayed)


def test_of_messages_beyond_the_buffer_no_id_is_known(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    with client.transaction() as tx:
        tx.publish(topic, "first")
        tx.publish(topic, "x" * BUFFER_BYTES_MAX)
        tx.publish(topic, "behind it")

    first, *rest = tx.published
    assert list(first.ids) == ids(client, topic)[:1]
    assert rest == [tuff.Published(), tuff.Published()]


def test_there_are_none_before_the_commit_and_after_an_abort(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    with client.transaction() as tx:
        tx.publish(topic, "a")
        with pytest.raises(tuff.errors.WrongStateError, match="once it has committed"):
            _ = tx.published
        tx.abort()

    with pytest.raises(tuff.errors.WrongStateError, match="once it has committed"):
        _ = tx.published


def test_each_block_of_a_chain_has_its_own(client: tuff.Client, topic: tuff.TopicId) -> None:
    found: list[tuff.MessageId] = []
    chained = client.transaction(chain=True)

    for number in range(3):
        with chained as tx:
            tx.publish(topic, f"{number}")
        found += [id for each in tx.published for id in each.ids]
    chained.end_chain()

    assert found == ids(client, topic)


def test_after_a_lost_reply_the_ids_are_not_known(
    server: ServerProcess, client: tuff.Client, topic: tuff.TopicId
) -> None:
    with losing(server.url) as (url, losses), tuff.Client(url, retries=0) as through:
        losses.lose_reply("commit")
        with through.transaction() as tx:
            tx.publish(topic, "a")

    assert tx.published == [tuff.Published()]
    assert len(ids(client, topic)) == 1


async def test_the_asyncio_client_has_the_same(
    server: ServerProcess, client: tuff.Client, topic: tuff.TopicId
) -> None:
    async with tuff.AsyncClient(server.url) as on_a_loop, on_a_loop.transaction() as tx:
        await tx.publish(topic, "a")

    assert list(tx.published[0].ids) == ids(client, topic)


def test_an_entry_of_a_commit_has_the_parameters_of_a_publish(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    text = f"{topic.namespace}:{topic.name}"
    stored = client.transactions.start()
    client.store(text, "stored", transaction=stored)

    client.transactions.run([publish_entry(text, "a", b"b", key="k", tags=["t"], ttl=60)])
    client.transactions.commit(stored, publish=[publish_entry(text)])

    found = client.poll(topic)
    assert [(each.payload, each.key, each.tags) for each in found] == [
        (b"a", b"k", ("t",)), (b"b", b"k", ("t",)), (b"stored", None, ()),
    ]  # fmt: skip
