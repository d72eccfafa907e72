"""Features that programs use together, against a real server: each test is one such program."""

import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from itertools import count
from pathlib import Path

import pytest

import tuff
from kernel.archive_manifest import Hour
from tests.http.client import Client, ok, until
from tests.http.process import serve
from tests.messaging.archives import ArchiveJob
from tuff.protocol.ids import MessageId, TopicId
from tuff.sql.dialects import SQLITE
from tuff.sql.sqlite import SqliteDatabase

NAMESPACE = "mixed"
SOON_S = 10.0
_numbers = count(1)


def texts(messages: Iterable[tuff.Message]) -> list[str]:
    return [message.payload.decode() for message in messages]


def all_texts(client: tuff.Client, topic: str) -> list[str]:
    """What the partitions of a topic have."""
    return sorted(message.payload.decode() for _, message in client.merged(topic, follow=False))


def new_topic(client: tuff.Client, *, partitions: int = 1, ttl: float | None = None) -> str:
    name = f"{NAMESPACE}:topic-{next(_numbers)}"
    client.topics.create(name, partitions=partitions, ttl=ttl)
    return name


class Shop:
    """A SQLite database with rows, and its name for the server."""

    def __init__(self, directory: Path, name: str) -> None:
        path = directory / f"{name}.sqlite"
        self.connection = sqlite3.connect(path)
        self.connection.execute(SQLITE.create_table)
        self.connection.execute("CREATE TABLE sales (item TEXT)")
        self.connection.commit()
        self.database = SqliteDatabase(str(path), name)

    def sell(self, item: str) -> None:
        self.connection.execute("INSERT INTO sales VALUES (?)", (item,))

    def sold(self) -> list[str]:
        return [item for (item,) in self.connection.execute("SELECT item FROM sales")]

    def close(self) -> None:
        self.connection.close()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with closing(Shop(tmp_path, "shop")) as made:
        yield made


def test_delayed_messages_follow_the_database(client: tuff.Client, shop: Shop) -> None:
    topic = new_topic(client)

    with client.sql_transaction(shop.database, shop.connection) as tx:
        shop.sell("apple")
        tx.publish(topic, "now")
        tx.publish(topic, "later", delay=0.3)
    with suppress(RuntimeError), client.sql_transaction(shop.database, shop.connection) as tx:
        tx.publish(topic, "never", delay=0.1)
        raise RuntimeError

    assert texts(client.poll(topic)) == ["now"]
    until(lambda: texts(client.poll(topic)) == ["now", "later"])
    assert client.delayed.list(topic) == []
    assert shop.sold() == ["apple"]


def test_a_database_decides_over_partitions_that_are_added_and_messages_that_expire(
    client: tuff.Client, shop: Shop
) -> None:
    topic = new_topic(client, partitions=3, ttl=100)

    with client.sql_transaction(shop.database, shop.connection) as tx:
        for number in range(9):
            tx.publish(topic, f"{number}", key=f"{number}")
        tx.publish(topic, "short", key="x", ttl=1)
        client.topics.update(topic, partitions=5)

    assert all_texts(client, topic) == [*map(str, range(9)), "short"]
    until(lambda: all_texts(client, topic) == [*map(str, range(9))])


def test_a_topic_that_is_deleted_before_the_commit_rolls_the_database_back(
    client: tuff.Client, shop: Shop
) -> None:
    topic = new_topic(client)

    def sell_and_delete() -> None:
        with client.sql_transaction(shop.database, shop.connection) as tx:
            shop.sell("apple")
            tx.publish(topic, "gone")
            client.topics.delete(topic)

    with pytest.raises(tuff.errors.TopicNotFoundError):
        sell_and_delete()

    assert shop.sold() == []
    assert list(client.transactions.prepared()) == []


def test_a_block_of_one_database_within_that_of_another_one(
    client: tuff.Client, tmp_path: Path
) -> None:
    topic = new_topic(client)
    with closing(Shop(tmp_path, "east")) as east, closing(Shop(tmp_path, "west")) as west:
        with client.sql_transaction(east.database, east.connection) as outer:
            east.sell("fig")
            outer.publish(topic, "fig")
            with client.sql_transaction(west.database, west.connection) as inner:
                west.sell("date")
                inner.publish(topic, "date")
            with (
                suppress(RuntimeError),
                client.sql_transaction(west.database, west.connection) as inner,
            ):
                west.sell("pear")
                inner.publish(topic, "pear")
                raise RuntimeError

        assert sorted(texts(client.poll(topic))) == ["date", "fig"]
        assert (east.sold(), west.sold()) == (["fig"], ["date"])


def test_a_prepared_transaction_that_was_set_aside_outlives_kills_with_its_delayed_message(
    tmp_path: Path,
) -> None:
    quick = "messaging.max_block=0.3"
    with serve(tmp_path, quick) as server, tuff.Client(server.url) as client:
        topic = new_topic(client)
        prepared = client.transactions.start(timeout=100)
        first = client.publish(topic, "prepared", transaction=prepared).ids[0]
        client.publish(topic, "delayed", delay=0.2, transaction=prepared)
        client.transactions.prepare(prepared, database="shop")
        client.publish(topic, "free")
        until(lambda: client.explain(topic, first).reason == "set_aside")
        server.kill()

    with serve(tmp_path, quick) as server, tuff.Client(server.url) as client:
        until(lambda: texts(client.poll(topic)) == ["free"])
        assert client.delayed.list(topic) == []
        client.transactions.resolve(prepared, "commit")
        until(lambda: sorted(texts(client.poll(topic))) == ["delayed", "free", "prepared"])
        server.kill()

    with serve(tmp_path, quick) as server, tuff.Client(server.url) as client:
        assert sorted(texts(client.poll(topic))) == ["delayed", "free", "prepared"]
        assert client.delayed.list(topic) == []


def test_a_publish_is_repeated_where_its_partitions_were_before_others_were_added(
    tmp_path: Path,
) -> None:
    path = "/v1/namespaces/mixed/topics/many"
    messages = [{"payload": f"{number}", "key": f"{number}"} for number in range(8)]

    def publish(port: int) -> tuple[str | None, str | None]:
        with closing(Client(port)) as http:
            query = "requestId=8f3a61c2d5e7b904.1&age=9000"
            reply = ok(http.post(f"{path}/publish?{query}", {"messages": messages}))
            return reply.header("Tuff-Partitions"), reply.header("Tuff-Repeated")

    with serve(tmp_path) as server, tuff.Client(server.url) as client:
        client.topics.create("mixed:many", partitions=2)
        assert publish(server.port) == ("0,1", None)
        client.topics.update("mixed:many", partitions=5)
        assert publish(server.port) == ("0,1", "true")
        server.kill()
    with serve(tmp_path) as server, tuff.Client(server.url) as client:
        assert publish(server.port) == ("0,1", "true")
        assert all_texts(client, "mixed:many") == [*map(str, range(8))]


def test_a_truncation_while_a_group_reads_leaves_it_without_lag(client: tuff.Client) -> None:
    topic = new_topic(client, partitions=2)
    numbered = [tuff.NewMessage(f"{number}", key=f"{number}") for number in range(20)]
    ids = client.publish(topic, *numbered).ids
    snapshot = client.transactions.start(timeout=60)
    seen: list[str] = []
    with client.consumer(topic, group="truncated", batch=3) as consumer:
        seen += texts(consumer.poll(wait=SOON_S) or ())
        client.transactions.take_snapshot()
        client.topics.truncate(topic, ids[10])
        with client.transaction() as tx:
            tx.publish(topic, "after", key="after")
        while "after" not in seen:
            seen += texts(consumer.poll(wait=SOON_S) or pytest.fail("no message came"))

    left = [*map(str, range(10, 20))]
    assert {*left, "after"} <= {*seen}
    found = [
        text
        for number in range(2)
        for text in texts(client.poll(f"{topic}/{number}", transaction=snapshot))
    ]
    assert sorted(found) == left
    client.transactions.abort(snapshot)
    assert [lag.unread for lag in client.groups.get(NAMESPACE, "truncated").partitions] == [0, 0]


@pytest.mark.parametrize("is_shared", [False, True])
def test_an_empty_message_fails_with_all_that_it_has(
    client: tuff.Client, *, is_shared: bool
) -> None:
    topic = new_topic(client)
    client.publish(topic, tuff.NewMessage(b"", key=b"", tags=["t"], headers={"h": b""}))
    client.publish(topic, "without the tag")
    policy = tuff.RetryPolicy(delays=(0.05,))
    attempts = count(1)

    def fail(_given: object) -> None:
        if next(attempts) == 2:
            consumer.stop()
        raise ValueError

    consumer: tuff.ShareConsumer | tuff.Consumer
    if is_shared:
        consumer = client.share_consumer(topic, group="empty", tags="t", retry=policy)
    else:
        consumer = client.consumer(topic, group="empty", tags="t", retry=policy)
    with consumer:
        consumer.run(fail)

    (found,) = client.poll(f"{topic}.dlq")
    message = tuff.read_dead_letter(found).message
    assert (message.payload, message.key, message.tags) == (b"", b"", ("t",))
    assert message.headers == found.headers == (("h", b""),)


def test_a_full_window_of_a_share_group_goes_on_with_what_is_tried_again(tmp_path: Path) -> None:
    with serve(tmp_path, "groups.share_window=10") as server, tuff.Client(server.url) as client:
        topic = new_topic(client)
        client.publish(topic, *map(str, range(40)))
        with (
            client.share_consumer(topic, group="small", batch=50) as one,
            client.share_consumer(topic, group="small", batch=50) as other,
        ):
            leased = one.poll(SOON_S)
            assert len(leased) == 10
            assert other.poll(0) == ()
            for message in leased:
                one.nack(message, ValueError("not yet"), delay=0.3)
            done: list[str] = []
            while len(done) < 40:
                done += texts(other.poll(SOON_S) or pytest.fail("no message came"))
        assert sorted(map(int, done)) == [*range(40)]


def test_delayed_messages_enter_retired_and_truncated_topics_and_no_later_generation(
    client: tuff.Client,
) -> None:
    retired, truncated, deleted = (
        new_topic(client, partitions=3),
        *(new_topic(client) for _ in range(2)),
    )
    client.publish(f"{retired}/2", "retired", delay=0.3)
    client.topics.update(retired, partitions=1)
    client.publish(truncated, "now")
    client.publish(truncated, "truncated", delay=0.3)
    client.topics.truncate(truncated, "latest")
    client.publish(deleted, "deleted", delay=0.1)
    client.topics.delete(deleted)
    client.topics.create(deleted)

    until(lambda: all_texts(client, retired) == ["retired"])
    until(lambda: all_texts(client, truncated) == ["truncated"])
    assert all_texts(client, deleted) == []
    assert client.delayed.list(deleted) == []


def test_a_group_reads_an_archive_if_it_is_reset_to_its_beginning(tmp_path: Path) -> None:
    """From `earliest` a group begins with the log, as every read does."""
    orders = TopicId(NAMESPACE, "orders")
    job = ArchiveJob(tmp_path / "archive", orders)
    hour = Hour(Hour.at(time.time_ns() // 1_000_000).number - 8)
    job.add_hour([(MessageId(hour.start_ms + n, 0), b"%d" % n) for n in range(2)])
    with (
        serve(tmp_path, f"messaging.archive_directory={job.archive.root}") as server,
        tuff.Client(server.url) as client,
    ):
        client.topics.create(orders, ttl=3600)
        client.publish(orders, "log")
        seen = []
        for start in (None, 0):
            if start is not None:
                client.groups.reset(NAMESPACE, "late", {f"{NAMESPACE}:orders/0": start})
            with client.consumer(orders, group="late", start="earliest") as consumer:
                while (batch := consumer.poll(wait=SOON_S)) is not None:
                    seen += texts(batch)
                    if "log" in seen[-1:]:
                        break
        assert seen == ["log", "0", "1", "log"]
