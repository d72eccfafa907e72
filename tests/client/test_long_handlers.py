"""Handlers that take longer than the default time-out of a transaction, exactly once."""

import threading
from collections.abc import Callable, Iterator
from tempfile import TemporaryDirectory

import pytest

import tuff
from tests.http.process import ServerProcess, serve


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serve(tmp_path_factory.mktemp("server"), "tx.default_timeout=0.2") as running:
        yield running


def outlast_the_default(client: tuff.Client) -> None:
    """Return once a transaction has timed out that is younger than that of the handler."""
    younger = client.transactions.start()
    while client.transactions.get(younger).state == "in_progress":
        threading.Event().wait(0.05)


def consume(client: tuff.Client, topic: tuff.TopicId, handle: Callable[[], None]) -> None:
    with client.consumer(topic, group="slow", mode="exactly_once") as consumer:

        def process(_batch: tuff.Batch, _tx: object) -> None:
            handle()
            consumer.stop()

        consumer.run(process)


def share(client: tuff.Client, topic: tuff.TopicId, handle: Callable[[], None]) -> None:
    with client.share_consumer(topic, group="slow", mode="exactly_once") as consumer:

        def process(_message: tuff.Message, _tx: object) -> None:
            handle()
            consumer.stop()

        consumer.run(process)


def subscribe(client: tuff.Client, topic: tuff.TopicId, handle: Callable[[], None]) -> None:
    with TemporaryDirectory() as directory, tuff.TransactionalTable(directory) as table:
        positions = tuff.TablePositions(table, "slow")
        client.subscriber(topic, lambda *_: handle(), positions=positions).step()


@pytest.mark.parametrize("work", [consume, share, subscribe])
def test_a_handler_may_take_longer_than_the_default_time_out(
    work: Callable[[tuff.Client, tuff.TopicId, Callable[[], None]], None],
    server: ServerProcess,
) -> None:
    """`run` ended, or a message whose handler succeeded five times became a dead letter."""
    calls: list[str] = []
    with tuff.Client(server.url) as client, tuff.Client(server.url) as other:
        topic = tuff.TopicId("shop", f"orders-{work.__name__}")
        client.topics.create(topic)
        client.publish(topic, "one")

        def handle() -> None:
            calls.append("handled")
            outlast_the_default(other)

        work(client, topic, handle)

    assert calls == ["handled"]
