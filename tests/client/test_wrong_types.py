"""Arguments of a wrong type are refused by their name, before anything is sent."""

from collections.abc import Callable

import pytest

import tuff

Misuse = Callable[[tuff.Client, tuff.TopicId], object]

MISUSES: list[tuple[Misuse, str]] = [
    (
        lambda client, topic: client.share_consumer(topic, group="g", retry=3),
        "retry has the type Re",
    ),
    (
        lambda client, topic: client.share_consumer(topic, group="g", batch="9"),
        "batch has the type",
    ),
    (lambda client, topic: client.share_consumer(topic, group=3), "is a string, not 3"),
    (lambda client, topic: client.consumer(3, group="g"), "topics is a collection"),
    (lambda client, topic: client.consumer("orders", group="g"), "'orders' is no topic"),
    (lambda client, topic: client.publish(3, "x"), "3 is no topic"),
    (lambda client, topic: client.topic("orders", tuff.STR), "'orders' is no topic"),
    (lambda client, topic: client.publisher().publish(b"n:t", "x"), "b'n:t' is no topic"),
    (lambda client, topic: client.consumer(topic, group=3), "is a string, not 3"),
    (
        lambda client, topic: client.consumer(topic, group="g", retry=3),
        "retry is a RetryPolicy",
    ),
    (
        lambda client, topic: client.publisher(batch_bytes="9"),
        "batch_bytes has the type",
    ),
    (lambda client, topic: client.publisher(buffer_messages="9"), "buffer_messages has"),
    (
        lambda client, topic: next(client.merged(topic, partitions=3)),
        "partitions is a collection",
    ),
    (lambda client, topic: client.poll_batch(topic, 3), "question has the type PollQuestion"),
    (lambda client, topic: client.rollback(topic, 3), "detail has the type RollbackDetail"),
    (lambda client, topic: client.explain(topic, "0", transaction="x"), "transaction has the type"),
    (lambda client, topic: client.transaction(chain="yes"), "chain has the type bool, and not"),
    (lambda client, topic: client.poll(topic, inclusive="no"), "inclusive has the type bool"),
    (
        lambda client, topic: client.poll_batch(
            topic, tuff.connectors.PollQuestion(), attributes="no"
        ),
        "attributes has the type bool",
    ),
    (lambda client, topic: client.delayed.list(topic, payloads="no"), "payloads has the type bool"),
    (
        lambda client, topic: client.transactions.commit(1, read_only="no"),
        "read_only has the type bool",
    ),
    (lambda client, topic: client.run(3), "the work is a function of the transaction, not 3"),
    (lambda client, topic: client.run(print, attempts="9"), "attempts has the type int"),
    (lambda client, topic: client.groups.reset("n", "g", 3), "starts is a mapping"),
    (
        lambda client, topic: client.groups.reset("n", "g", {"a": None}),
        "'a' is no topic",
    ),
    (lambda client, topic: client.sinks.begin("s", "1", "r"), "epoch has the type int"),
    (
        lambda client, topic: client.topics.create(topic, properties=3),
        "properties is a",
    ),
    (lambda client, topic: client.transactions.run("x"), "publish is a collection"),
    (lambda client, topic: client.transactions.run(["x"]), "an entry of publish has the type"),
    (lambda client, topic: client.transactions.truncate(ids=3), "ids is a collection"),
    (lambda client, topic: tuff.Client(timeout="9"), "timeout is a number of seconds"),
    (lambda client, topic: tuff.Client(retries="9"), "retries"),
    (lambda client, topic: tuff.Client(url=3), "url"),
    (lambda client, topic: tuff.Client(token=3), "token"),
    (lambda client, topic: tuff.Client(transport=3), "transport"),
    (lambda client, topic: tuff.Client(transport="grpc"), "transport"),
    (lambda client, topic: tuff.Client(client_id=3), "client_id"),
    (lambda client, topic: tuff.Client(ssl_context="x"), "ssl_context"),
    (lambda client, topic: tuff.AsyncClient(transport=3), "transport"),
    (lambda client, topic: tuff.AsyncClient(transport="grpc"), "transport"),
]


@pytest.mark.parametrize(("misuse", "naming"), MISUSES)
def test_an_argument_of_a_wrong_type_is_named(
    client: tuff.Client, topic: tuff.TopicId, misuse: Misuse, naming: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=naming):
        misuse(client, topic)
