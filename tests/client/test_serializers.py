"""Serializers, and topics whose payloads are values of one type."""

import dataclasses
import pickle
import sys
from collections.abc import Sequence
from typing import Any

import pytest

import tuff

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "item", "type": "string"},
        {"name": "count", "type": "int", "default": 1},
    ],
}


@dataclasses.dataclass(frozen=True)
class Order:
    item: str
    count: int


class Decimals:
    """A serializer of a user."""

    def to_bytes(self, value: int, /) -> bytes:
        return b"%d" % value

    def from_bytes(self, data: bytes, /) -> int:
        return int(data)


ORDERS = tuff.json_serializer(dataclasses.asdict, lambda form: Order(**form))


@pytest.mark.parametrize(
    ("serializer", "value", "payload"),
    [
        (tuff.BYTES, b"\xff", b"\xff"),
        (tuff.STR, "grüße", "grüße".encode()),
        (tuff.json_serializer(), {"a": [1, None, "é"]}, '{"a":[1,null,"é"]}'.encode()),
        (ORDERS, Order("apple", 3), b'{"item":"apple","count":3}'),
        (tuff.avro_serializer(ORDER), {"item": "apple", "count": 3}, b"\x0aapple\x06"),
        (tuff.avro_serializer("string"), "apple", b"\x0aapple"),
        (Decimals(), 42, b"42"),
    ],
)
def test_a_value_comes_back_as_it_was(
    client: tuff.Client,
    topic: tuff.TopicId,
    serializer: tuff.Serializer[object],
    value: object,
    payload: bytes,
) -> None:
    values = client.topic(topic, serializer)

    published = values.publish(
        value, tuff.NewMessage(value, key="k", tags=["t"], headers={"h": "1"})
    )

    assert [message.payload for message in client.poll(topic)] == [payload, payload]
    plain, rich = values.poll()
    assert (plain.value, rich.value) == (value, value)
    assert (plain.key, plain.tags, plain.header("h")) == (None, (), None)
    assert (rich.key, rich.tags, rich.header("h")) == (b"k", ("t",), b"1")
    assert [plain.id, rich.id] == [published.ids[0], published.ids[-1]]
    assert plain.timestamp_ms == published.ids[0].publish_timestamp_ms
    assert [message.value for message in values.poll(tags="t")] == [value]


def test_a_default_of_an_avro_schema_counts() -> None:
    assert tuff.avro_serializer(ORDER).to_bytes({"item": "apple"}) == b"\x0aapple\x02"


@pytest.mark.parametrize(
    ("serializer", "value"),
    [
        (tuff.BYTES, "text"),
        (tuff.STR, b"bytes"),
        (tuff.STR, "\ud800"),
        (tuff.json_serializer(), float("nan")),
        (tuff.json_serializer(), {1, 2}),
        (ORDERS, {"item": "apple"}),
        (tuff.avro_serializer(ORDER), {"item": 5}),
        (tuff.avro_serializer(ORDER), {"count": 5}),
        (tuff.avro_serializer(ORDER), {"item": "apple", "colour": "red"}),
        (Decimals(), "42"),
    ],
)
def test_a_value_that_can_not_be_serialized_is_refused_before_anything_is_sent(
    client: tuff.Client, topic: tuff.TopicId, serializer: tuff.Serializer[object], value: object
) -> None:
    values = client.topic(topic, serializer)

    with pytest.raises((TypeError, ValueError)):
        values.publish(value)

    assert not client.poll(topic)


@pytest.mark.parametrize(
    ("serializer", "payload", "reason"),
    [
        (tuff.STR, b"\xff", "UnicodeDecodeError"),
        (tuff.json_serializer(), b"{", "JSONDecodeError"),
        (ORDERS, b'{"item":"apple"}', "TypeError"),
        (tuff.avro_serializer(ORDER), b"\x0aapp", "cut off|EOFError|IndexError"),
        (tuff.avro_serializer(ORDER), b"\x0aapple\x06more", "4 bytes follow the datum"),
        (Decimals(), b"x", "invalid literal for int"),
    ],
)
def test_a_payload_that_can_not_be_read_is_named_and_nothing_else_is_lost(
    client: tuff.Client,
    topic: tuff.TopicId,
    serializer: tuff.Serializer[object],
    payload: bytes,
    reason: str,
) -> None:
    client.publish(topic, "before", payload, "after")
    values = client.topic(topic, serializer)
    _, broken, after = values.poll()

    with pytest.raises(tuff.errors.DeserializationError, match=reason) as caught:
        _ = broken.value

    error = caught.value
    assert f"the payload of message {broken.id.hex()} of {topic} can't be" in str(error)
    assert (error.topic, error.message.id, error.message.payload) == (topic, broken.id, payload)
    assert pickle.loads(pickle.dumps(error)).message == error.message
    assert after.message.payload == b"after"


def test_a_subscription_continues_behind_a_payload_that_can_not_be_read(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    client.publish(topic, "1", "two", "3")
    found: list[int | str] = []

    for message in client.topic(topic, Decimals()).subscribe():
        try:
            found.append(message.value)
        except tuff.errors.DeserializationError as error:
            found.append(error.message.payload.decode())
        if len(found) == 3:
            break

    assert found == [1, "two", 3]


def test_a_subscriber_sends_only_the_message_that_can_not_be_read_to_the_dead_letters(
    client: tuff.Client, topic: tuff.TopicId, table: tuff.TransactionalTable
) -> None:
    numbers = client.topic(topic, Decimals())
    numbers.publish(1)
    client.publish(topic, "two")
    numbers.publish(3)
    sums: list[int] = []

    def process(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        sums.append(sum(numbers.read(message).value for message in messages))

    positions = tuff.TablePositions(table, "me")
    subscriber = client.subscriber(topic, process, positions=positions, attempts=1, wait=0)
    while subscriber.step():
        pass

    assert sums == [1, 3]
    (letter,) = client.poll(tuff.TopicId(topic.namespace, f"{topic.name}.dlq"))
    assert b"can't be deserialized (ValueError: invalid literal" in letter.payload


def test_values_take_part_in_a_transaction_and_in_a_publisher(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    orders = client.topic(topic, ORDERS)

    with client.transaction() as tx:
        tx.publish(orders.id, orders.message(Order("apple", 1)))
    with client.publisher() as publisher:
        publisher.publish(topic, orders.message(tuff.NewMessage(Order("pear", 2), key="pear")))

    assert [(each.value, each.key) for each in orders.poll()] == [
        (Order("apple", 1), None), (Order("pear", 2), b"pear"),
    ]  # fmt: skip


async def test_the_asyncio_client_has_typed_topics(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    async with tuff.AsyncClient(client.url) as on_a_loop:
        numbers = on_a_loop.topic(topic, Decimals())
        await numbers.publish(1, 2, ack="received")

        async for first in numbers.subscribe():
            assert first.value == 1
            break
        assert [message.value for message in await numbers.poll()] == [1, 2]


def test_what_is_no_schema_is_refused() -> None:
    for wrong in ({"type": "nothing"}, "nothing", {"name": "x"}, {"type": "enum", "name": "x"}):
        with pytest.raises(ValueError, match="this is no Avro schema"):
            tuff.avro_serializer(wrong)


def test_avro_says_what_has_to_be_installed_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)

    with pytest.raises(ModuleNotFoundError, match=r"pip install 'tuff-messaging\[avro\]'"):
        tuff.avro_serializer("string")


@pytest.mark.parametrize("serializer", [len, Decimals, None])
def test_something_else_than_a_serializer_is_refused(
    client: tuff.Client, topic: tuff.TopicId, serializer: Any
) -> None:
    with pytest.raises(TypeError, match="a serializer is an object with the methods to_bytes"):
        client.topic(topic, serializer)


@pytest.mark.parametrize(
    ("serializer", "value", "says"),
    [
        (
            tuff.BYTES,
            "text",
            "tuff.BYTES takes bytes, and not str; ",
        ),
        (tuff.STR, 3, "tuff.STR takes a str, and not int; "),
        (tuff.json_serializer(), Order("apple", 3), "give tuff.json_serializer the functions"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(
    client: tuff.Client,
    topic: tuff.TopicId,
    serializer: tuff.Serializer[object],
    value: object,
    says: str,
) -> None:
    with pytest.raises(TypeError, match=says):
        client.topic(topic, serializer).publish(value)
