"""Subscriptions: endless, and through whatever happens to the server (protocol §3.4)."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http.client import HTTPConnection
from itertools import islice
from pathlib import Path

import pytest

import tuff
from tests.client.proxy import Losses, losing
from tests.http.process import ServerProcess, serve
from tuff.flows_and_repeated_calls import Pause, unless
from tuff.read_calls import PollQuestion
from tuff.server_outages import Outages
from tuff.stop_signals import Stop
from tuff.subscriptions import Subscription, TopicSubscription


def payloads(messages: Iterator[tuff.Message], count: int) -> list[bytes]:
    return [message.payload for message in islice(messages, count)]


async def taken(messages: AsyncIterator[tuff.Message], count: int) -> list[bytes]:
    return [(await anext(messages)).payload for _ in range(count)]


def test_existing_and_later_messages_are_received_in_order(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    client.publish(topic, "one", "two", "three")
    messages = client.subscribe(topic, batch=2)
    assert payloads(messages, 3) == [b"one", b"two", b"three"]

    client.publish(topic, "four")

    assert payloads(messages, 1) == [b"four"]


def test_a_subscription_starts_at_a_message_id(client: tuff.Client, topic: tuff.TopicId) -> None:
    published = client.publish(topic, "one", "two")

    assert payloads(client.subscribe(topic, published.ids[-1]), 1) == [b"two"]
    assert payloads(client.subscribe(topic, published.ids[-1].hex()), 1) == [b"two"]


def test_a_subscription_can_start_at_either_end(client: tuff.Client, topic: tuff.TopicId) -> None:
    """Both words were refused, though the command takes them."""
    empty = Subscription(topic, PollQuestion(start="latest", isolation="committed"))
    assert list(client._driver.run(empty.poll())) == []
    client.publish(topic, "one")
    assert payloads(client.subscribe(topic, "earliest"), 1) == [b"one"]
    latest = Subscription(topic, PollQuestion(start="latest", isolation="committed"))
    assert list(client._driver.run(latest.poll())) == []

    client.publish(topic, "two")

    for subscription, expected in ((empty, [b"one", b"two"]), (latest, [b"two"])):
        poll = client._driver.run(subscription.poll())
        assert [message.payload for message in poll] == expected


def test_latest_skips_nothing_that_is_decided_later(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    client.publish(topic, "before")
    transaction = client.transactions.start()
    client.publish(topic, "decided later", transaction=transaction)
    committed = Subscription(topic, PollQuestion(start="latest", isolation="committed"))
    every = Subscription(topic, PollQuestion(start="latest", isolation="all"))
    for subscription in (committed, every):
        assert list(client._driver.run(subscription.poll())) == []

    client.transactions.commit(transaction)

    (message,) = client._driver.run(committed.poll())
    assert message.payload == b"decided later"
    assert list(client._driver.run(every.poll())) == []


def test_an_empty_reply_moves_the_position_forward(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    """The place of the last message is not enough: what was skipped behind it came up again, and
    where there was no message yet, everything did."""
    subscription = Subscription(topic, PollQuestion(isolation="committed"))

    def read() -> list[bytes]:
        return [message.payload for message in client._driver.run(subscription.poll())]

    client.publish(topic, "one")
    assert [read(), read()] == [[b"one"], []]
    undone = client.transactions.start()
    client.publish(topic, "undone", transaction=undone)
    client.transactions.abort(undone)
    assert read() == []
    client.publish(topic, "two")
    assert [read(), read()] == [[b"two"], []]


async def test_a_task_receives_messages_that_are_published_while_it_waits(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    async with tuff.AsyncClient(server.url) as client:
        messages = client.subscribe(topic)
        waiting = asyncio.create_task(taken(messages, 2))
        await client.publish(topic, "one", "two")

        assert await waiting == [b"one", b"two"]
        await messages.aclose()


async def test_a_task_starts_at_the_end(
    server: ServerProcess, client: tuff.Client, topic: tuff.TopicId
) -> None:
    client.publish(topic, "before")
    async with tuff.AsyncClient(server.url) as on_loop:
        messages = on_loop.subscribe(topic, "latest")
        waiting = asyncio.create_task(taken(messages, 1))
        while not waiting.done():  # until it has begun
            client.publish(topic, "after")
            await asyncio.sleep(0)

        assert await waiting == [b"after"]
        await messages.aclose()


@pytest.mark.parametrize("says", [None, 502])
def test_lost_replies_neither_skip_nor_repeat_messages(
    server: ServerProcess, client: tuff.Client, topic: tuff.TopicId, says: int | None
) -> None:
    client.publish(topic, *[str(number) for number in range(6)])
    losses = Losses(says=says)
    with losing(server.url, losses=losses) as (url, _), tuff.Client(url) as through:
        losses.lose_reply("poll", times=2)
        messages = through.subscribe(topic, batch=2)
        first = payloads(messages, 2)
        losses.lose_request("poll", times=1)

        assert first + payloads(messages, 4) == [b"0", b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("end", [ServerProcess.terminate, ServerProcess.kill])
def test_a_subscription_survives_the_restart_of_its_server(
    tmp_path: Path, end: Callable[[ServerProcess], object]
) -> None:
    topic = tuff.TopicId("default", "restarts")
    first = serve(tmp_path)
    with tuff.Client(first.url) as client:
        client.topics.create(topic)
        client.publish(topic, "one", "two")
        messages = client.subscribe(topic, batch=1)
        assert payloads(messages, 1) == [b"one"]

        end(first)

        with serve(tmp_path, port=first.port):
            client.publish(topic, "three")
            assert payloads(messages, 2) == [b"two", b"three"]


def test_a_subscription_waits_while_the_transaction_service_is_down(
    server: ServerProcess, client: tuff.Client, topic: tuff.TopicId
) -> None:
    pointer = client.transactions.start().write_pointer
    client.publish(topic, "patience", transaction=pointer)
    waits: list[float] = []

    def start_again(seconds: float, _stop: object) -> None:
        waits.append(seconds)
        service(client, "start")
        client.transactions.commit(pointer)

    client._driver._pause = start_again
    service(client, "stop")

    assert payloads(client.subscribe(topic), 1) == [b"patience"]
    assert len(waits) == 1
    assert waits[0] >= 1.0  # as the server asked


def test_a_subscription_to_a_topic_that_is_deleted_ends_with_that(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    client.publish(topic, "last")
    messages = client.subscribe(topic)
    assert payloads(messages, 1) == [b"last"]

    client.topics.delete(topic)

    with pytest.raises(tuff.TopicNotFoundError):
        next(messages)


def test_closing_the_client_ends_its_subscriptions(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    client = tuff.Client(server.url)
    messages = client.subscribe(topic)
    client.close()

    with pytest.raises(tuff.errors.ClientClosedError):
        next(messages)


def service(client: tuff.Client, action: str) -> None:
    connection = HTTPConnection(client.url.removeprefix("http://"))
    connection.request("POST", f"/v1/transactions/service/{action}")
    assert connection.getresponse().read()
    connection.close()


def test_a_server_that_stays_away_is_asked_at_growing_intervals(topic: tuff.TopicId) -> None:
    flow = Subscription(
        topic, PollQuestion(), outages=Outages("a reader", chance=lambda: 1.0)
    ).poll()
    next(flow)
    pauses = []
    for _ in range(4):
        pauses.append(flow.throw(tuff.ConnectionLostError("away", outcome_unknown=False)))
        flow.send(None)

    assert [each.seconds for each in pauses] == [0.1, 0.2, 0.4, 0.8]


def test_a_reader_logs_once_that_it_waits_for_the_server_and_once_that_it_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    subscription = Subscription(tuff.TopicId("shop", "orders"), PollQuestion())
    end = tuff.MessageId(1, 0)
    poll = tuff.Poll(messages=(), next_id=end, caught_up=True, blocked_by=None, expired=False)
    lost = tuff.ConnectionLostError("nobody answers", outcome_unknown=False)
    caplog.set_level(logging.INFO, "tuff")

    for _ in range(2):
        flow = subscription.poll()
        next(flow)
        for _ in range(3):
            assert isinstance(flow.throw(lost), Pause)
            next(flow)
        with pytest.raises(StopIteration):
            flow.send(poll)

    away, back = (
        "the subscription of shop:orders waits for the server: nobody answers",
        "the subscription of shop:orders continues: the server answers again",
    )
    assert [(one.levelname, one.message) for one in caplog.records] == [
        ("WARNING", away), ("WARNING", back), ("WARNING", away), ("WARNING", back),
    ]  # fmt: skip
    assert all(one.name.startswith("tuff.") for one in caplog.records)


def test_a_subscription_goes_on_with_partitions_that_are_added(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    """A second partition ended every subscription of its topic."""
    client.publish(topic, "a", "b")
    messages = client.subscribe(topic, wait=1)
    assert payloads(messages, 1) == [b"a"]
    client.topics.update(topic, partitions=2)
    client.publish(topic.partition(1), "c")
    client.publish(topic.partition(0), "d")

    assert payloads(messages, 3) == [b"b", b"c", b"d"]
    last = client.publish(topic.partition(1), "e").ids[-1]
    client.topics.update(topic, partitions=3)
    client.publish(topic.partition(2), "f")
    assert payloads(messages, 2) == [b"e", b"f"]
    assert payloads(client.subscribe(topic, last), 2) == [b"e", b"f"]


def test_a_subscription_of_several_partitions_can_begin_at_their_ends(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    client.topics.update(topic, partitions=2)
    client.publish(topic.partition(0), "old")
    client.publish(topic.partition(1), "old")
    subscription = TopicSubscription(topic, PollQuestion(start="latest", isolation="committed"))
    stop = Stop()
    threading.Timer(0.2, stop.set).start()
    assert client._driver.run(unless(stop, subscription.poll())) is None

    client.publish(topic.partition(1), "new")

    found = client._driver.run(subscription.poll())
    assert [message.payload for message in found] == [b"new"]
