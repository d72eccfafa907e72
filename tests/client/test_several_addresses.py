"""Clients that know several addresses: one real server behind proxies, of which some are lost.

What a lost reply leaves behind is in `test_lost_replies`, also for a first server that dies.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest

import tuff
from tests.client.proxy import Losses, losing
from tests.client.test_transport import BOTH, Namespaces, answering
from tests.http.process import ServerProcess

NOWHERE = "http://127.0.0.1:1"  # nothing listens there
ELSEWHERE = "http://127.0.0.1:2"


def publish_blocking(url: str, topic: tuff.TopicId, **settings: Any) -> None:
    with tuff.Client(url, **settings) as client:
        client.publish(topic, "once")


def publish_on_a_loop(url: str, topic: tuff.TopicId, **settings: Any) -> None:
    async def main() -> None:
        async with tuff.AsyncClient(url, **settings) as client:
            await client.publish(topic, "once")

    asyncio.run(main())


Publish = Callable[..., None]
BOTH_PUBLISH = pytest.mark.parametrize("publish", [publish_blocking, publish_on_a_loop])


def payloads(client: tuff.Client, topic: tuff.TopicId) -> list[bytes]:
    return [message.payload for message in client.poll(topic)]


@BOTH_PUBLISH
@pytest.mark.parametrize("separator", [",", ", "])
def test_a_call_that_reaches_no_server_goes_to_the_next_address_at_once(
    client: tuff.Client,
    server: ServerProcess,
    topic: tuff.TopicId,
    publish: Publish,
    separator: str,
) -> None:
    publish(separator.join([NOWHERE, ELSEWHERE, server.url]), topic, retries=0)

    assert payloads(client, topic) == [b"once"]


@BOTH
def test_servers_of_which_none_can_be_reached_are_all_named(namespaces: Namespaces) -> None:
    with pytest.raises(
        tuff.errors.ServerUnreachableError,
        match=r"127\.0\.0\.1:1 \(.*\) or http://127\.0\.0\.1:2 \(",
    ) as caught:
        namespaces(f"{NOWHERE},{ELSEWHERE}")

    assert not caught.value.outcome_unknown


@pytest.mark.parametrize("connect", [tuff.Client, tuff.AsyncClient])
@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("http://a:1,b:2", "'http://a:1,b:2'"),
        ("http://a,b", "'http://a,b'"),
        ("http://a:1,", "'http://a:1,'"),
        ("http://a:1,http://b:port", "'http://b:port'"),
        ("http://a:1 , http://b:2", "'http://a:1 '"),
        ("", "''"),
    ],
)
def test_the_address_of_several_that_is_not_valid_is_named(
    connect: Callable[..., object], url: str, named: str
) -> None:
    with pytest.raises(ValueError, match=f"^{named} is no address") as caught:
        connect(url)

    assert "separated by commas" in str(caught.value)


def test_a_path_may_contain_a_comma() -> None:
    assert tuff.Client("http://a/tuff,1").url == "http://a/tuff,1"


def test_the_address_of_a_client_is_that_of_the_server_in_use(server: ServerProcess) -> None:
    with tuff.Client(f"{NOWHERE},{server.url}", retries=0) as client:
        assert client.url == NOWHERE
        client.topics.namespaces()

        assert client.url == server.url


@BOTH_PUBLISH
def test_a_publish_whose_server_dies_is_sent_to_another_and_published_once(
    client: tuff.Client, server: ServerProcess, topic: tuff.TopicId, publish: Publish
) -> None:
    with losing(server.url, dies=True) as (first, sent_to_first):
        sent_to_first.lose_reply("publish")
        with losing(server.url) as (second, sent_to_second):
            publish(f"{first},{second}", topic, retries=1)

    assert (sent_to_first.seen, sent_to_second.seen) == (["publish"], ["publish"])
    assert payloads(client, topic) == [b"once"]


def test_a_publish_without_an_id_whose_server_dies_is_not_sent_to_another(
    client: tuff.Client, server: ServerProcess, topic: tuff.TopicId
) -> None:
    with (
        losing(server.url, dies=True) as (first, sent_to_first),
        losing(server.url) as (second, sent_to_second),
        tuff.Client(f"{first},{second}") as through,
    ):
        sent_to_first.lose_reply("publish")
        with pytest.raises(tuff.ConnectionLostError) as caught:
            through.publish(topic, "once", ack="none")

    assert caught.value.outcome_unknown
    assert (sent_to_first.seen, sent_to_second.seen) == (["publish"], [])
    client.publish(topic, "behind it")
    assert payloads(client, topic) == [b"once", b"behind it"]


def problem(status: int, code: str) -> bytes:
    body = json.dumps({"status": status, "code": code, "detail": "so it is"}).encode()
    head = b"HTTP/1.1 %d No\r\nRetry-After: 0\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(body)) + body


@BOTH_PUBLISH
@pytest.mark.parametrize("code", ["shutting_down", "starting"])
def test_a_publish_that_a_starting_or_stopping_server_refuses_goes_to_the_next_address(
    client: tuff.Client, server: ServerProcess, topic: tuff.TopicId, publish: Publish, code: str
) -> None:
    with answering(problem(503, code), problem(503, code)) as (url, heard):
        publish(f"{url},{server.url}", topic, retries=1)

    assert [each.partition(" ")[0] for each in heard] == ["GET", "POST"]  # GET: for a session
    assert payloads(client, topic) == [b"once"]


@BOTH_PUBLISH
def test_a_publish_to_a_topic_that_moves_is_sent_again(publish: Publish) -> None:
    id = b"0" * 40
    published = b"HTTP/1.1 200 OK\r\nTuff-First-Id: %s\r\nTuff-Last-Id: %s\r\n" % (id, id)
    said = [problem(503, "ownership_moving"), published + b"Content-Length: 0\r\n\r\n"]

    with answering(*said) as (url, heard):
        publish(url, tuff.TopicId("shop", "orders"), retries=1)

    assert len(heard) == 2


def test_a_moving_topic_is_refused_with_an_error_of_its_own() -> None:
    with (
        answering(problem(503, "ownership_moving")) as (url, _),
        tuff.Client(url, retries=0, transport="http") as client,
        pytest.raises(tuff.errors.OwnershipMovingError, match="so it is") as caught,
    ):
        client.publish(tuff.TopicId("shop", "orders"), "x")

    assert caught.value.retry_safe


@contextmanager
def forwarding(server: ServerProcess) -> Iterator[tuple[str, Losses, Losses]]:
    """Two addresses, and what is sent to each: the first one names the second one as the owner."""
    with (
        losing(server.url) as (owner, sent_to_owner),
        losing(server.url, owner=owner) as (first, sent_to_first),
    ):
        yield f"{first},{owner}", sent_to_first, sent_to_owner


def test_calls_about_a_topic_go_to_its_owner_once_that_is_known(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    with forwarding(server) as (url, first, owner), tuff.Client(url) as client:
        client.publish(topic, "one")
        client.publish(topic, "two")
        client.topics.get(topic)
        client.topics.namespaces()
        with client.transaction() as tx:
            tx.publish(topic, "three")

        assert payloads(client, topic) == [b"one", b"two", b"three"]

    assert first.seen == ["publish", "namespaces", "transactions"]
    assert owner.seen == ["publish", topic.name, "commit", "poll"]


async def test_the_asyncio_client_learns_the_owner_too(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    with forwarding(server) as (url, first, owner):
        async with tuff.AsyncClient(url) as client:
            await client.publish(topic, "one")
            await client.publish(topic, "two")

    assert (first.seen, owner.seen) == (["publish"], ["publish"])


@pytest.mark.parametrize("lose", [Losses.lose_reply, Losses.lose_request])
def test_an_owner_that_dies_is_replaced_by_the_other_servers(
    server: ServerProcess, topic: tuff.TopicId, lose: Callable[[Losses, str], None]
) -> None:
    with (
        losing(server.url, dies=True) as (owner, sent_to_owner),
        losing(server.url, owner=owner) as (first, sent_to_first),
        tuff.Client(f"{first},{owner}", retries=1) as client,
    ):
        client.publish(topic, "one")
        lose(sent_to_owner, "poll")

        assert payloads(client, topic) == [b"one"]

    assert sent_to_owner.seen == ["poll"]
    assert sent_to_first.seen == ["publish", "poll"]


@BOTH
def test_an_owner_that_is_no_address_of_the_client_is_sent_nothing(
    server: ServerProcess, topic: tuff.TopicId, namespaces: Namespaces
) -> None:
    """Every request has the token."""
    with (
        losing(server.url) as (foreign, sent_to_foreign),
        losing(server.url, owner=foreign) as (first, sent_to_first),
        tuff.Client(f"{first},{NOWHERE}", token="secret") as client,
    ):
        client.publish(topic, "one")
        client.publish(topic, "two")
        namespaces(f"{first},{NOWHERE}", token="secret")

    assert sent_to_foreign.seen == []
    assert sent_to_first.seen == ["publish", "publish", "namespaces"]


def test_a_redirect_to_an_owner_is_not_followed() -> None:
    """The client asks for none; a request that followed one would give the token to its target."""
    said = b"HTTP/1.1 307 No\r\nLocation: %s/x\r\nContent-Length: 0\r\n\r\n"
    with (
        answering() as (target, heard),
        answering(said % target.encode()) as (url, _),
        tuff.Client(f"{url},{target}", retries=0, token="secret") as client,
        pytest.raises(tuff.errors.InternalError, match="answered 307 and sent to"),
    ):
        client.topics.namespaces()

    assert heard == []


def test_a_subscription_whose_server_dies_in_a_long_poll_continues_at_the_next_address(
    client: tuff.Client, server: ServerProcess, topic: tuff.TopicId
) -> None:
    client.publish(topic, "one")

    with (
        losing(server.url, dies=True) as (url, losses),
        tuff.Client(f"{url},{server.url}") as through,
    ):
        messages = through.subscribe(topic, wait=60)
        received = [next(messages).payload]
        losses.lose_reply("poll", meanwhile=lambda: client.publish(topic, "three"))
        publishing = Thread(target=client.publish, args=(topic, "two"))
        publishing.start()
        received += [next(messages).payload, next(messages).payload]
        publishing.join()
        messages.close()

    assert received == [b"one", b"two", b"three"]
    assert losses.seen == ["poll", "poll"]


def test_a_publisher_whose_server_dies_continues_at_the_next_address(
    client: tuff.Client, server: ServerProcess, topic: tuff.TopicId
) -> None:
    with (
        losing(server.url, dies=True) as (url, losses),
        tuff.Client(f"{url},{server.url}") as through,
        through.publisher() as publisher,
    ):
        publisher.publish(topic, "one").result()
        # Another client ends that server; the connection of the publisher is open still.
        losses.lose_request("namespaces")
        with tuff.Client(url, retries=0) as other, pytest.raises(tuff.ConnectionLostError):
            other.topics.namespaces()
        repeated = publisher.publish(topic, "two").result()
        assert publisher.publish(topic, "three").result()
        publisher.flush()

    found = list(client.poll(topic))
    assert [message.payload for message in found] == [b"one", b"two", b"three"]
    assert repeated.ids == (found[1].id,)


def test_an_exactly_once_subscriber_continues_at_the_next_address(
    client: tuff.Client,
    server: ServerProcess,
    topic: tuff.TopicId,
    table: tuff.TransactionalTable,
) -> None:
    client.publish(topic, "one")

    def count(messages: list[tuff.Message], tx: tuff.TransactionContext) -> None:
        table.put(b"count", b"%d" % (int(table.get(b"count") or b"0") + len(messages)))

    with (
        losing(server.url, dies=True) as (url, losses),
        tuff.Client(f"{url},{server.url}") as through,
    ):
        losses.lose_reply("commit")
        subscriber = through.subscriber(
            topic, count, positions=tuff.TablePositions(table, "counter"), wait=0
        )
        assert (subscriber.step(), subscriber.step()) == (1, 0)

    with client.transaction(table):
        assert table.get(b"count") == b"1"


def test_threads_share_a_client_whose_server_dies(
    client: tuff.Client, server: ServerProcess, topic: tuff.TopicId
) -> None:
    """Every transaction commits once: those in flight are repeated at the next address."""

    def transact(through: tuff.Client, number: int) -> None:
        for step in range(5):
            with through.transaction() as tx:
                tx.publish(topic, f"{number}.{step}")

    with (
        losing(server.url, dies=True) as (url, losses),
        tuff.Client(f"{url},{server.url}") as through,
    ):
        losses.lose_reply("commit")
        threads = [Thread(target=transact, args=(through, number)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    found = sorted(message.payload.decode() for message in client.poll(topic))
    assert found == [f"{number}.{step}" for number in range(4) for step in range(5)]
