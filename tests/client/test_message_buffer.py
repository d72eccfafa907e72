"""Messages of a transaction that do not fit into memory (protocol §3.2, §5.2)."""

from contextlib import suppress

import pytest

import tuff
from tests.client.recording import Record, Service
from tuff.batching import BUFFER_BYTES_MAX
from tuff.blocking.context import TransactionContext
from tuff.client_errors import ConnectionLostError
from tuff.protocol.ids import TopicId

ORDERS = TopicId("shop", "orders")


@pytest.fixture
def record() -> Record:
    return Record()


@pytest.fixture
def service(record: Record) -> Service:
    return Service(record)


@pytest.fixture
def context(service: Service) -> TransactionContext:
    return tuff.Client(transport=service, client_id="tests", retries=0).transaction()


def test_what_does_not_fit_into_memory_is_stored_and_referred_to_behind_the_rest(
    context: TransactionContext, record: Record, service: Service
) -> None:
    big = "x" * (BUFFER_BYTES_MAX - 200)

    with context as tx:
        tx.publish(ORDERS, "first")
        tx.publish(ORDERS, big, "stored")
        tx.publish(ORDERS, "stored as well")
        tx.publish(TopicId("shop", "audit"), "y" * 200)

    assert record.steps == ["start", "store", "store", "store", "commit"]
    assert [tuple(request.payloads) for request in service.stored] == [
        (b"stored",), (b"stored as well",), (b"y" * 200,),
    ]  # fmt: skip
    assert [(entry["topic"], len(entry["messages"])) for entry in service.entries] == [
        ("orders", 2), ("orders", 0), ("audit", 0),
    ]  # fmt: skip


def test_a_commit_refers_to_every_pointer_that_was_stored_under(
    context: TransactionContext, service: Service
) -> None:
    with context as tx:
        tx.publish(ORDERS, "x" * BUFFER_BYTES_MAX)
        tx.checkpoint()
        tx.publish(ORDERS, "x" * BUFFER_BYTES_MAX)

    assert [(entry["pointer"], entry["messages"]) for entry in service.entries] == [
        ("10", []), ("11", []),
    ]  # fmt: skip


def test_messages_that_could_not_be_stored_can_not_be_committed(
    context: TransactionContext, record: Record
) -> None:
    """A store whose reply was lost may be there: published again, it would come twice."""
    record.fail["store"] = ConnectionLostError("lost", outcome_unknown=True)

    def go_on_as_if_nothing_had_happened() -> None:
        with context as tx, suppress(ConnectionLostError):
            tx.publish(ORDERS, "x" * BUFFER_BYTES_MAX)

    with pytest.raises(RuntimeError, match="could not be stored"):
        go_on_as_if_nothing_had_happened()

    assert record.steps == ["start", "store", "abort"]


def test_a_real_server_hands_a_large_transaction_out_in_its_order(
    client: tuff.Client, topic: TopicId
) -> None:
    """Beyond the buffer, across a checkpoint, and of a second topic between."""
    big = b"x" * (BUFFER_BYTES_MAX // 2)
    published = [b"first", big, b"\xff" + big, big, b"after", b"checkpointed"]
    other = TopicId(topic.namespace, f"{topic.name}-other")
    client.topics.create(other)

    with client.transaction() as tx:
        tx.publish(topic, *published[:3])
        tx.publish(other, "late")
        tx.publish(topic, *published[3:5])
        tx.checkpoint()
        tx.publish(topic, published[5])
        assert list(client.poll(topic)) == []

    read = list(client.poll(topic, isolation="committed", limit=100))
    assert [message.payload for message in read] == published
    assert [message.payload for message in client.poll(other, isolation="committed")] == [b"late"]


def test_what_was_stored_by_a_transaction_that_rolls_back_never_appears(
    client: tuff.Client, topic: TopicId
) -> None:
    with client.transaction() as tx:
        tx.publish(topic, b"x" * (2 * BUFFER_BYTES_MAX))
        tx.abort()

    assert list(client.poll(topic)) == []
