"""Mistakes of a program: a wrong value is a ValueError, a wrong type a TypeError, and a call at the
wrong moment a WrongStateError."""

from collections.abc import Callable

import pytest

import tuff

Misuse = Callable[[tuff.Client, tuff.TopicId], object]


@pytest.mark.parametrize(
    "misuse",
    [
        lambda client, topic: client.poll(topic, isolation="nope"),
        lambda client, topic: client.poll(topic, undecided="nope"),
        lambda client, topic: client.poll(topic, limit=-1),
        lambda client, topic: client.poll(topic, wait=-1),
        lambda client, topic: client.publish(topic),
        lambda client, topic: client.publish(topic, "x", ttl=-1),
        lambda client, topic: client.publish(topic, "half a pair \ud800"),
        lambda client, topic: client.transaction(type="nope").__enter__(),
        lambda client, topic: client.transactions.truncate(),
        lambda client, topic: client.publisher(topic, batch_bytes=0),
        lambda client, topic: tuff.Client("nope"),
        lambda client, topic: tuff.Client(retries=-1),
        lambda client, topic: tuff.TopicId("no spaces", "here"),
        lambda client, topic: tuff.MessageId.from_hex("nope"),
    ],
)
def test_a_wrong_value_is_a_value_error(
    client: tuff.Client, topic: tuff.TopicId, misuse: Misuse
) -> None:
    with pytest.raises(ValueError):
        misuse(client, topic)


@pytest.mark.parametrize(
    "misuse",
    [
        lambda client, topic: client.poll("shop:orders"),
        lambda client, topic: client.publish(topic, 5),
        lambda client, topic: client.publish(topic, "x", transaction="5"),
        lambda client, topic: client.publish(topic, "x", ttl="5"),
        lambda client, topic: client.transactions.can_commit(5, ["a string"]),
    ],
)
def test_a_wrong_type_is_a_type_error(
    client: tuff.Client, topic: tuff.TopicId, misuse: Misuse
) -> None:
    with pytest.raises(TypeError):
        misuse(client, topic)


def test_a_client_that_is_closed_is_in_the_wrong_state(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    client.close()

    with pytest.raises(tuff.WrongStateError) as caught:
        client.poll(topic)
    assert isinstance(caught.value, tuff.ClientClosedError)
    assert isinstance(caught.value, RuntimeError)
