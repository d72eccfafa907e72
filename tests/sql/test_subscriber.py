"""The consumer side: the rows and the position commit in one database transaction."""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import asyncpg
import psycopg
import pytest

import tuff
from tests.http.process import ServerProcess, serve
from tests.sql.test_psycopg import items
from tuff.client_errors import WrongStateError
from tuff.sql.asyncpg import AsyncpgDatabase
from tuff.sql.dialects import CREATE_POSITIONS
from tuff.sql.psycopg import PsycopgDatabase

_numbers = count(1)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serve(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def client(process: ServerProcess) -> Iterator[tuff.Client]:
    with tuff.Client(process.url, retries=0) as made:
        yield made


@pytest.fixture
def topic(client: tuff.Client) -> tuff.TopicId:
    made = tuff.TopicId("shop", f"topic-{next(_numbers)}")
    client.topics.create(made)
    client.publish(made, "apple", "pear", "plum")
    return made


@pytest.fixture
def positions_dsn(dsn: str) -> str:
    with psycopg.connect(dsn) as connection:
        connection.execute(CREATE_POSITIONS)
    return dsn


class Billing:
    """A subscriber that inserts each message as an order. The key of an order is unique, so a
    message that was processed twice would fail."""

    def __init__(self, client: tuff.Client, topic: tuff.TopicId, dsn: str, **more: Any) -> None:
        self.connection = psycopg.connect(dsn)
        self.fails = 0
        self.subscriber = client.sql_subscriber(
            topic, self.process, database=PsycopgDatabase(dsn, "shop"),
            connection=self.connection, name="billing", wait=0, **more,
        )  # fmt: skip

    def process(self, messages: Sequence[tuff.Message], _tx: object) -> None:
        for message in messages:
            self.connection.execute("INSERT INTO orders VALUES (%s)", [message.payload.decode()])
        if self.fails:
            self.fails -= 1
            raise RuntimeError("the first attempt fails")


def test_each_message_is_one_row_over_restarts(
    client: tuff.Client, topic: tuff.TopicId, positions_dsn: str
) -> None:
    for _ in range(3):
        billing = Billing(client, topic, positions_dsn, batch=1)
        assert billing.subscriber.step() == 1
        billing.connection.close()
    done = Billing(client, topic, positions_dsn)

    assert done.subscriber.step() == 0
    assert items(positions_dsn) == ["apple", "pear", "plum"]
    done.connection.close()


def test_a_batch_that_failed_leaves_nothing_and_is_tried_again(
    client: tuff.Client, topic: tuff.TopicId, positions_dsn: str
) -> None:
    billing = Billing(client, topic, positions_dsn)
    billing.fails = 1

    while billing.subscriber.step():
        pass

    assert items(positions_dsn) == ["apple", "pear", "plum"]
    billing.connection.close()


def test_of_two_consumers_with_one_name_each_message_goes_to_one(
    client: tuff.Client, topic: tuff.TopicId, positions_dsn: str
) -> None:
    one = Billing(client, topic, positions_dsn, batch=1)
    two = Billing(client, topic, positions_dsn, batch=1)

    counts = [each.subscriber.step() for each in (one, two, two, one)]

    assert counts == [1, 1, 1, 0]
    assert items(positions_dsn) == ["apple", "pear", "plum"]
    one.connection.close()
    two.connection.close()


def test_a_missing_table_of_positions_is_named_with_its_statement(
    client: tuff.Client, topic: tuff.TopicId, dsn: str
) -> None:
    billing = Billing(client, topic, dsn)

    with pytest.raises(WrongStateError, match="CREATE TABLE tuff_positions"):
        billing.subscriber.step()
    billing.connection.close()


def test_each_message_is_one_row_on_a_loop(
    process: ServerProcess, topic: tuff.TopicId, positions_dsn: str
) -> None:
    async def main() -> None:
        connection = await asyncpg.connect(positions_dsn)

        async def insert(messages: Sequence[tuff.Message], _tx: object) -> None:
            rows = [(message.payload.decode(),) for message in messages]
            await connection.executemany("INSERT INTO orders VALUES ($1)", rows)

        try:
            async with tuff.AsyncClient(process.url) as client:
                subscriber = client.sql_subscriber(
                    topic, insert, database=AsyncpgDatabase(positions_dsn, "shop"),
                    connection=connection, name="billing", wait=0,
                )  # fmt: skip
                while await subscriber.step():
                    pass
        finally:
            await connection.close()

    asyncio.run(main())

    assert items(positions_dsn) == ["apple", "pear", "plum"]
