"""Keys, tags and headers of messages in the client, and reads that select by tags."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import tuff
from tuff import publish_calls
from tuff.protocol.attributes import Attributes
from tuff.protocol.errors import BadRequestError
from tuff.publish_calls import BUFFER_BYTES_MAX, Addition, all_checked, checked

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SOLD = tuff.NewMessage(
    "sold", key="apple", tags=["retail", "new"], headers={"traceparent": TRACE, "raw": b"\xff"}
)
ATTRIBUTES = (b"apple", ("retail", "new"), (("traceparent", TRACE.encode()), ("raw", b"\xff")))
Publish = Callable[[tuff.Client, tuff.TopicId, list[object]], None]


def attributes(message: tuff.Message) -> tuple[object, ...]:
    return message.key, message.tags, message.headers


def _by_publish(client: tuff.Client, topic: tuff.TopicId, messages: list[object]) -> None:
    client.publish(topic, *messages)  # type: ignore[arg-type]  # they are


def _by_commit(client: tuff.Client, topic: tuff.TopicId, messages: list[object]) -> None:
    with client.transaction() as tx:
        tx.publish(topic, *messages)  # type: ignore[arg-type]  # they are


def _by_spilled_commit(client: tuff.Client, topic: tuff.TopicId, messages: list[object]) -> None:
    other = tuff.TopicId(topic.namespace, f"{topic.name}-full")
    client.topics.create(other)
    with client.transaction() as tx:
        tx.publish(other, "x" * (BUFFER_BYTES_MAX - 64))
        tx.publish(topic, *messages)  # type: ignore[arg-type]  # they are


def _by_store(client: tuff.Client, topic: tuff.TopicId, messages: list[object]) -> None:
    tx = client.transactions.start()
    client.store(topic, *messages, transaction=tx)  # type: ignore[arg-type]  # they are
    client.publish_stored(topic, transaction=tx)
    client.transactions.commit(tx)


def _by_publisher(client: tuff.Client, topic: tuff.TopicId, messages: list[object]) -> None:
    with client.publisher() as publisher:
        for message in messages:
            publisher.publish(topic, message)  # type: ignore[arg-type]  # they are


WAYS = [_by_publish, _by_commit, _by_spilled_commit, _by_store, _by_publisher]


@pytest.mark.parametrize("publish", WAYS, ids=lambda way: way.__name__)
def test_attributes_arrive_in_whatever_way_a_message_is_published(
    client: tuff.Client, topic: tuff.TopicId, publish: Publish
) -> None:
    publish(client, topic, ["plain", SOLD, b"\x00", tuff.NewMessage(b"keyed", key=b"")])

    found = client.poll(topic)
    assert [message.payload for message in found] == [b"plain", b"sold", b"\x00", b"keyed"]
    assert [attributes(message) for message in found] == [
        (None, (), ()), ATTRIBUTES, (None, (), ()), (b"", (), ()),
    ]  # fmt: skip
    assert found[1].header("traceparent") == TRACE.encode()
    assert found[1].header("Traceparent") is None
    assert found == client.poll(topic, isolation="all")
    assert [*zip(range(4), client.subscribe(topic), strict=False)] == [*enumerate(found)]


async def test_the_asyncio_client_publishes_and_reads_attributes(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    async with tuff.AsyncClient(client.url) as on_a_loop:
        await on_a_loop.publish(topic, SOLD)
        async with on_a_loop.transaction() as tx:
            await tx.publish(topic, SOLD)
        async with on_a_loop.publisher() as publisher:
            await publisher.publish(topic, SOLD)

        found = await on_a_loop.poll(topic, tags="retail")

    assert [attributes(message) for message in found] == [ATTRIBUTES] * 3


def test_a_messages_own_time_to_live_takes_precedence_over_that_of_the_call(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    long, plain = tuff.NewMessage("own", ttl=3_000), "of the call"

    request = Addition(topic, all_checked(topic, [long, plain]), 60).request(None)
    assert (request.ttl_s, request.ttls_s) == (60, [3_000, None])

    client.publish(topic, long, plain, ttl=60)
    with client.transaction() as tx:
        tx.publish(topic, long, plain, ttl=60)
    assert len(client.poll(topic)) == 4
    with pytest.raises(tuff.errors.InvalidTtlError):
        client.publish(topic, tuff.NewMessage("too long", ttl=2_000_000_000), ttl=60)


def test_messages_without_attributes_are_sent_as_before(topic: tuff.TopicId) -> None:
    """An older server reads no other form."""
    for plain in ("text", tuff.NewMessage("text"), tuff.NewMessage(b"text", tags=(), headers={})):
        call = publish_calls.publish(
            topic, Addition(topic, [checked(plain)], 5).request(None), ack=tuff.Ack.DURABLE
        )
        assert call.request.body == b"\x02\x02\x08text\x00"
        assert call.request.content_type == "avro/binary"
        assert call.request.path.endswith("/publish?ttl=5")


def test_headers_may_repeat_and_the_last_one_counts() -> None:
    message = checked(tuff.NewMessage("x", headers=[("a", "1"), ("b", b"2"), ("a", "é")]))

    assert not isinstance(message, bytes)
    assert message.attributes == Attributes(headers=(("a", b"1"), ("b", b"2"), ("a", "é".encode())))
    received = tuff.Message(tuff.MessageId(1, 2), b"x", headers=message.attributes.headers)
    assert received.header("a") == "é".encode()


@pytest.mark.parametrize(
    ("message", "kind", "reason"),
    [
        (tuff.NewMessage("x", key=5), TypeError, "a key is str or bytes, not int"),
        (tuff.NewMessage("x", key="\ud800"), ValueError, "a key has half a surrogate pair"),
        (tuff.NewMessage("x", key=b"k" * 65_536), BadRequestError, "65535 bytes, not 65536"),
        (tuff.NewMessage("x", tags="retail"), TypeError, r"as tags=\['retail'\], and not 'retail'"),
        (tuff.NewMessage("x", tags=[5]), TypeError, "a tag is a str, not int"),
        (tuff.NewMessage("x", tags=["a b"]), BadRequestError, '"a b" has not'),
        (tuff.NewMessage("x", tags=["a", "a"]), BadRequestError, '"a" more than once'),
        (tuff.NewMessage("x", headers="a=1"), TypeError, "headers are a mapping"),
        (tuff.NewMessage("x", headers={"a": 1}), TypeError, "value of the header a is str or"),
        (tuff.NewMessage("x", headers=["a"]), TypeError, r"a header is a name \(str\) and a value"),
        (tuff.NewMessage("x", headers={"a,b": "1"}), BadRequestError, "without a comma"),
        (tuff.NewMessage(5), TypeError, "a payload is str or bytes, not int"),
        (tuff.NewMessage(["a"]), TypeError, r"publish several messages with publish\(topic,"),
        (tuff.NewMessage("x", ttl="5"), TypeError, "ttl is a number of seconds"),
    ],
)
def test_a_wrong_attribute_is_refused_before_anything_is_sent(
    client: tuff.Client, message: object, kind: type[Exception], reason: str
) -> None:
    with pytest.raises(kind, match=reason):
        checked(message)
    nowhere = tuff.TopicId("client", "nowhere")
    with client.publisher() as publisher, pytest.raises(kind, match=reason):
        publisher.publish(nowhere, message)  # type: ignore[arg-type]  # that is the mistake


def test_a_reader_selects_by_tags(client: tuff.Client, topic: tuff.TopicId) -> None:
    tagged = [[], ["retail"], ["retail", "new"], ["urgent"], ["new"]]
    for number, tags in enumerate(tagged):
        client.publish(topic, tuff.NewMessage(f"{number}", tags=tags))

    def payloads(expression: str) -> list[int]:
        return [int(message.payload) for message in client.poll(topic, tags=expression)]

    assert payloads("retail") == [1, 2]
    assert payloads("retail,new|urgent") == [2, 3]
    nothing = client.poll(topic, tags="none")
    assert (len(nothing), nothing.caught_up) == (0, True)
    assert not client.poll(topic, nothing.next_id, inclusive=False)
    with client.transaction() as tx:
        assert [message.payload for message in tx.poll(topic, tags="urgent")] == [b"3"]
    subscription = client.subscribe(topic, tags="new")
    assert [next(subscription).payload, next(subscription).payload] == [b"2", b"4"]


@pytest.mark.parametrize("expression", ["", "a,", "a b", "a||b", "a" * 65])
def test_a_malformed_selection_is_refused(
    client: tuff.Client, topic: tuff.TopicId, expression: str
) -> None:
    with pytest.raises(ValueError, match="a tag has 1 to 64 characters"):
        client.poll(topic, tags=expression)


def test_a_subscriber_processes_what_it_selects(
    client: tuff.Client, topic: tuff.TopicId, table: tuff.TransactionalTable
) -> None:
    seen: list[bytes] = []
    for number in range(6):
        client.publish(
            topic, tuff.NewMessage(f"{number}", tags=["even"] if number % 2 == 0 else [])
        )

    subscriber = client.subscriber(
        topic,
        lambda messages, tx: seen.extend(message.payload for message in messages),
        positions=tuff.TablePositions(table, "me"),
        tags="even",
        batch=2,
        wait=0,
    )
    while subscriber.step():
        pass

    assert seen == [b"0", b"2", b"4"]


def test_a_dead_letter_has_the_attributes_of_its_message(
    client: tuff.Client, topic: tuff.TopicId, table: tuff.TransactionalTable
) -> None:
    def fail(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        raise ZeroDivisionError

    client.publish(topic, SOLD)
    positions = tuff.TablePositions(table, "me")
    client.subscriber(topic, fail, positions=positions, attempts=1, wait=0).step()

    (letter,) = client.poll(tuff.TopicId(topic.namespace, f"{topic.name}.dlq"))
    assert attributes(letter) == ATTRIBUTES
    assert b'"payload": "sold"' in letter.payload


def test_a_publish_gives_its_attributes_to_every_payload(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    attributes: Any = {"key": "k", "tags": ["new", "eu"], "headers": [("a", "1"), ("a", b"2")]}
    client.publish(topic, "one", b"two", **attributes)
    transaction = client.transactions.start()
    client.store(topic, "three", transaction=transaction, **attributes)
    client.publish_stored(topic, transaction=transaction)
    client.transactions.commit(transaction)
    with client.transaction() as tx:
        tx.publish(topic, "four", **attributes)
    client.topic(topic, tuff.STR).publish("five", **attributes)

    found = list(client.poll(topic))

    assert [each.payload for each in found] == [b"one", b"two", b"three", b"four", b"five"]
    assert {each.key for each in found} == {b"k"}
    assert {each.tags for each in found} == {("new", "eu")}
    assert {each.headers for each in found} == {(("a", b"1"), ("a", b"2"))}


def test_a_message_with_attributes_of_its_own_takes_none_of_the_publish(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    message = tuff.NewMessage("x", key="own")

    with pytest.raises(TypeError, match=r"a tuff\.NewMessage has attributes of its own"):
        client.publish(topic, message, key="other")
    with pytest.raises(TypeError, match=r"a tuff\.NewMessage has attributes of its own"):
        client.topic(topic, tuff.STR).publish(message, tags=["a"])
    with pytest.raises(TypeError, match="tags are strings in a list"):
        client.publish(topic, "x", tags=0)  # type: ignore[arg-type]  # the mistake

    assert not client.poll(topic, isolation="all")


def test_a_publish_returns_the_id_of_each_message(client: tuff.Client) -> None:
    client.topics.create("attributes:ids", partitions=3)
    messages = [tuff.NewMessage(f"{n}", key=f"{n}") for n in range(20)]

    published = client.publish("attributes:ids", *messages)
    delayed = client.publish("attributes:ids", *messages, delay=3600)

    at = {each.id: each.payload for n in range(3) for each in client.poll(f"attributes:ids/{n}")}
    assert [at[id] for id in published.ids] == [f"{n}".encode() for n in range(20)]
    waiting = {
        each.id: each.payload
        for n in range(3)
        for each in client.delayed.list(f"attributes:ids/{n}", payloads=True)
    }
    assert [waiting[id] for id in delayed.delayed_ids] == [f"{n}".encode() for n in range(20)]
    assert (len(delayed.ids), len(published.delayed_ids)) == (0, 0)


def test_a_publish_of_a_transaction_has_ids_as_well(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    transaction = client.transactions.start()
    published = client.publish(topic, "a", "b", transaction=transaction)
    client.transactions.commit(transaction)

    assert [each.id for each in client.poll(topic)] == list(published.ids)
