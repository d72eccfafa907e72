"""A consumer group whose positions are in the user's database: each message becomes one row."""

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from threading import Thread

import psycopg
import pytest
from django.db import connections

import tuff
from tests.http.client import until
from tests.http.process import ServerProcess, serve
from tests.sql.libraries import ASYNCIO, BLOCKING, Blocking, OnLoop
from tests.sql.libraries import items as items_of_both
from tests.sql.test_psycopg import items
from tuff import group_calls
from tuff.errors import PartitionNotAssignedError, WrongStateError
from tuff.sql.dialects import CREATE_POSITIONS
from tuff.sql.django import DjangoDatabase
from tuff.sql.psycopg import PsycopgDatabase

_numbers = count(1)
WITHIN_S = 60.0  # on a busy machine


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serve(tmp_path_factory.mktemp("server"), "groups.heartbeat_interval=0.2") as running:
        yield running


@pytest.fixture
def client(process: ServerProcess) -> Iterator[tuff.Client]:
    with tuff.Client(process.url, retries=0) as made:
        yield made


@pytest.fixture
def topic(client: tuff.Client) -> tuff.TopicId:
    made = tuff.TopicId("shop", f"topic-{next(_numbers)}")
    client.topics.create(made, partitions=2)
    client.publish(made.partition(0), "apple", "pear")
    client.publish(made.partition(1), "plum")
    return made


FRUITS = ["apple", "pear", "plum"]


@pytest.fixture
def tables(dsn: str, path: Path) -> str:
    """The table of positions, in both databases."""
    with psycopg.connect(dsn) as connection:
        connection.execute(CREATE_POSITIONS)
    with sqlite3.connect(path) as other:
        other.execute(CREATE_POSITIONS)
    other.close()
    return dsn


def join(consumer: tuff.Consumer) -> None:
    """Poll, which finds no message, until the consumer has a partition."""
    until_s = time.monotonic() + WITHIN_S
    while not consumer.assignment:
        assert time.monotonic() < until_s
        assert consumer.poll(wait=0.1) is None


def statement(payload: bytes) -> str:
    return f"INSERT INTO orders VALUES ('{payload.decode()}')"


@BLOCKING
def test_each_message_becomes_one_row(
    client: tuff.Client, topic: tuff.TopicId, tables: str, path: Path, library: Blocking
) -> None:
    with library(tables, path) as one:
        with client.consumer(topic, group="billing", database=one.shop, batch=1) as consumer:
            for _ in FRUITS:
                batch = consumer.poll(wait=WITHIN_S)
                assert batch is not None
                with consumer.transaction(batch, one.connection) as tx:
                    one.execute(statement(batch[0].payload))
                assert tx.transaction is None  # nothing was published
        with client.consumer(topic, group="billing", database=one.shop) as another:
            join(another)
            assert another.poll(wait=0.5) is None

    assert sorted(items_of_both(tables, path)) == FRUITS


@ASYNCIO
def test_each_message_becomes_one_row_on_a_loop(
    process: ServerProcess, topic: tuff.TopicId, tables: str, library: OnLoop
) -> None:
    async def main() -> None:
        seen: list[tuff.Message] = []

        async def work(batch: tuff.Batch, tx: object) -> None:
            for message in batch:
                await one.execute(statement(message.payload))
            seen.extend(batch)
            if len(seen) == 3:
                consumer.stop()

        async with (
            tuff.AsyncClient(process.url) as client,
            library(tables) as one,
            client.consumer(topic, group="loop", database=one.shop) as consumer,
        ):
            await consumer.run(work, one.connection)

    asyncio.run(main())

    assert sorted(items(tables)) == FRUITS


def test_django_uses_the_connection_of_the_thread(
    client: tuff.Client, topic: tuff.TopicId, tables: str, alias: str
) -> None:
    shop = DjangoDatabase("shop", alias)
    with client.consumer(topic, group="django", database=shop) as consumer:
        for number, (batch, _) in enumerate(consumer.transactions(None), 1):
            with connections[alias].cursor() as cursor:
                for message in batch:
                    cursor.execute(statement(message.payload))
            if number == 2:
                break

    assert sorted(items(tables)) == FRUITS


def test_rows_messages_and_the_position_commit_together(
    client: tuff.Client, topic: tuff.TopicId, tables: str
) -> None:
    copies = tuff.TopicId(topic.namespace, f"{topic.name}-copies")
    client.topics.create(copies)
    shop = PsycopgDatabase(tables, "shop")

    for error in (ZeroDivisionError, ZeroDivisionError, None):
        with (
            psycopg.connect(tables) as connection,
            suppress(ZeroDivisionError),
            client.consumer(topic, group="copying", database=shop, batch=1) as consumer,
        ):
            for number, (batch, tx) in enumerate(consumer.transactions(connection), 1):
                connection.execute(statement(batch[0].payload))
                tx.publish(copies, batch[0].payload)
                if error is not None and number == 2:
                    raise error  # rolls the second one back
                if error is None:
                    break

    copied = [message.payload.decode() for message in client.poll(copies)]
    assert sorted(copied) == sorted(items(tables)) == FRUITS


def test_a_batch_is_committed_by_one_transaction(
    client: tuff.Client, topic: tuff.TopicId, tables: str
) -> None:
    shop = PsycopgDatabase(tables, "shop")
    with (
        psycopg.connect(tables) as connection,
        client.consumer(topic, group="billing", database=shop, batch=1) as consumer,
    ):
        batch = consumer.poll(wait=WITHIN_S)
        assert batch is not None
        opened_before = consumer.transaction(batch, connection)
        with consumer.transaction(batch, connection):
            connection.execute(statement(batch[0].payload))

        def insert_again() -> None:
            with opened_before:
                connection.execute(statement(b"again"))

        for again in (lambda: consumer.transaction(batch, connection), insert_again):
            with pytest.raises(WrongStateError, match="of this batch"):
                again()

    assert items(tables) == [batch[0].payload.decode()]


def fence(client: tuff.Client, topic: tuff.TopicId, group: str) -> None:
    """Let the only member leave behind its back, as if its session was over."""
    (member,) = client.groups.get(topic.namespace, group).members
    of = group_calls.GroupId(namespace=topic.namespace, name=group)
    client._send(group_calls.leave(of, member.member_id, is_static=False))


@pytest.mark.parametrize("isolation", [None, psycopg.IsolationLevel.REPEATABLE_READ])
def test_a_member_that_lost_its_partition_can_not_commit_even_if_its_successor_did_nothing(
    client: tuff.Client,
    topic: tuff.TopicId,
    tables: str,
    isolation: psycopg.IsolationLevel | None,
) -> None:
    """The positions agree, so only the owner of the row tells that the member is not the one."""
    shop = PsycopgDatabase(tables, "shop")
    with (
        psycopg.connect(tables) as connection,
        psycopg.connect(tables) as other,
        client.consumer(topic, group="fenced", database=shop) as lost,
        client.consumer(topic, group="fenced", database=shop) as successor,
        ExitStack() as stack,
    ):
        connection.isolation_level = isolation
        batch = lost.poll(wait=WITHIN_S)
        assert batch is not None
        stack.enter_context(lost.transaction(batch, connection))
        connection.execute(statement(batch[0].payload))
        fence(client, topic, "fenced")
        again = [successor.poll(wait=WITHIN_S)]
        assert again[0] is not None
        successor.transaction(again[0], other)  # it never begins
        again.append(successor.poll(wait=WITHIN_S))
        assert batch.messages in [each.messages for each in again if each is not None]

        with pytest.raises(PartitionNotAssignedError, match="another member of the group has"):
            stack.close()
        assert items(tables) == []


def test_a_batch_that_the_member_has_lost_is_read_again_by_its_successor(
    client: tuff.Client, topic: tuff.TopicId, tables: str
) -> None:
    shop = PsycopgDatabase(tables, "shop")

    was_fenced = False
    with (
        psycopg.connect(tables) as connection,
        client.consumer(topic, group="again", database=shop, batch=1) as consumer,
    ):
        for batch, _ in consumer.transactions(connection):
            connection.execute(statement(batch[0].payload))
            if not was_fenced:
                was_fenced = True
                fence(client, topic, "again")
                client.groups.get("shop", "again")
            elif len(items(tables)) == 2:
                break

    assert sorted(items(tables)) == FRUITS


def test_members_share_the_partitions_also_those_that_are_added(
    client: tuff.Client, topic: tuff.TopicId, tables: str
) -> None:
    shop = PsycopgDatabase(tables, "shop")
    with (
        psycopg.connect(tables) as connection,
        client.consumer(topic, group="shared", database=shop, batch=1) as one,
        client.consumer(topic, group="shared", database=shop, batch=1) as two,
    ):
        until_s, done = time.monotonic() + WITHIN_S, 0
        while time.monotonic() < until_s and done < 4:
            for member in (one, two):
                if (batch := member.poll(wait=0.1)) is not None:
                    with member.transaction(batch, connection):
                        connection.execute(statement(batch[0].payload))
                    done += 1
            if len(client.topics.get(topic).partitions) == 2 and one.assignment and two.assignment:
                client.topics.update(topic, partitions=3)
                client.publish(topic.partition(2), "cherry")

        assert len(one.assignment) + len(two.assignment) == 3
    assert sorted(items(tables)) == ["apple", "cherry", "pear", "plum"]


def test_a_group_that_begins_at_the_end_skips_nothing_that_comes_later(
    client: tuff.Client, topic: tuff.TopicId, tables: str
) -> None:
    shop = PsycopgDatabase(tables, "shop")
    options = {"group": "late", "database": shop, "start": "latest"}
    with client.consumer(topic, **options) as consumer:
        join(consumer)
        assert consumer.poll(wait=0.1) is None
    client.publish(topic.partition(1), "cherry")

    with psycopg.connect(tables) as connection, client.consumer(topic, **options) as consumer:
        for batch, _ in consumer.transactions(connection):
            connection.execute(statement(batch[0].payload))
            break

    assert items(tables) == ["cherry"]


def test_a_message_that_fails_becomes_a_dead_letter_with_the_position(
    client: tuff.Client, topic: tuff.TopicId, tables: str
) -> None:
    shop = PsycopgDatabase(tables, "shop")

    def work(batch: tuff.Batch, tx: object) -> None:
        for message in batch:
            if message.payload == b"pear":
                raise ValueError("no pears")
            connection.execute(statement(message.payload))

    def stop_when_done(consumer: tuff.Consumer) -> None:
        try:
            until(lambda: sorted(items(tables)) == ["apple", "plum"] and letters())
        finally:
            consumer.stop()

    def letters() -> list[tuff.Message]:
        dead = f"{topic.name}.dlq"
        return list(client.poll(f"shop:{dead}")) if dead in client.topics.list("shop") else []

    with (
        psycopg.connect(tables) as connection,
        client.consumer(
            topic, group="failing", database=shop, retry=tuff.RetryPolicy(delays=())
        ) as consumer,
    ):
        stopping = Thread(target=stop_when_done, args=(consumer,))
        stopping.start()
        consumer.run(work, connection)
        stopping.join()

    assert sorted(items(tables)) == ["apple", "plum"]
    (letter,) = client.poll(f"{topic}.dlq")
    assert tuff.read_dead_letter(letter).message.payload == b"pear"


def test_the_server_learns_the_positions_for_the_lag(
    client: tuff.Client, topic: tuff.TopicId, tables: str
) -> None:
    consume_all(client, topic, tables, "shown")

    shown = client.groups.get("shop", "shown")
    assert [lag.unread for lag in shown.partitions if ".retry" not in str(lag.partition)] == [0, 0]


def test_the_position_of_the_database_counts_and_not_that_of_the_server(
    client: tuff.Client, topic: tuff.TopicId, tables: str
) -> None:
    """As after a restore of the database, or a member that was killed before its report."""
    shop = PsycopgDatabase(tables, "shop")
    consume_all(client, topic, tables, "told")
    client.groups.reset("shop", "told", {topic.partition(each): None for each in (0, 1)})

    with client.consumer(topic, group="told", database=shop) as again:
        assert again.poll(wait=1.0) is None


def consume_all(client: tuff.Client, topic: tuff.TopicId, dsn: str, group: str) -> None:
    with (
        psycopg.connect(dsn) as connection,
        client.consumer(topic, group=group, database=PsycopgDatabase(dsn, "shop")) as consumer,
    ):
        for number, (batch, _) in enumerate(consumer.transactions(connection), 1):
            for message in batch:
                connection.execute(statement(message.payload))
            if number == 2:
                break


def test_wrong_uses_are_refused_with_what_to_do(
    client: tuff.Client, topic: tuff.TopicId, tables: str
) -> None:
    shop = PsycopgDatabase(tables, "shop")
    with pytest.raises(ValueError, match="the mode is exactly_once, not 'at_least_once'"):
        client.consumer(topic, group="wrong", database=shop, mode="at_least_once")
    with client.consumer(topic, group="wrong", database=shop) as consumer:
        batch = consumer.poll(wait=WITHIN_S)
        assert batch is not None
        with pytest.raises(WrongStateError, match="takes its connection"):
            consumer.transaction(batch)


def test_a_missing_table_of_positions_is_named_with_its_statement(
    client: tuff.Client, topic: tuff.TopicId, dsn: str
) -> None:
    with (
        client.consumer(topic, group="missing", database=PsycopgDatabase(dsn, "shop")) as consumer,
        pytest.raises(WrongStateError, match="CREATE TABLE tuff_positions"),
    ):
        consumer.poll(wait=WITHIN_S)
