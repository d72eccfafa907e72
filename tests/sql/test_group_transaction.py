"""A block within a group's transaction: two commits, of which the second one can fail."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

import tuff
from tests.http.process import ServerProcess, serve
from tests.sql.libraries import sqlite_file
from tests.sql.test_sqlite import items
from tuff.errors import WrongStateError
from tuff.sql.sqlite import SqliteDatabase

_numbers = count(1)
REFUSED = "can't be a part of a group's transaction"


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serve(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def topic(process: ServerProcess) -> tuff.TopicId:
    made = tuff.TopicId("shop", f"topic-{next(_numbers)}")
    with tuff.Client(process.url) as client:
        client.topics.create(made)
        client.publish(made, "apple")
    return made


def test_a_block_in_the_transaction_of_a_consumer_group_is_refused(
    process: ServerProcess, topic: tuff.TopicId, path: Path
) -> None:
    shop = SqliteDatabase(path, "shop")
    with (
        tuff.Client(process.url) as client,
        closing(sqlite3.connect(path)) as connection,
        client.consumer(topic, group="billing", mode="exactly_once", start="earliest") as consumer,
    ):
        batch = consumer.poll()
        assert batch is not None

        with consumer.transaction(batch):
            with (
                pytest.raises(WrongStateError, match=REFUSED),
                client.sql_transaction(shop, connection),
            ):
                raise AssertionError("the block must not run")
            with client.transaction():
                pass  # one that is none of a group's
        with client.sql_transaction(shop, connection):
            connection.execute("INSERT INTO orders VALUES ('apple')")

    assert items(path) == ["apple"]


def test_a_block_in_a_function_that_runs_exactly_once_is_refused(
    process: ServerProcess, topic: tuff.TopicId, path: Path
) -> None:
    shop = SqliteDatabase(path, "shop")
    with (
        tuff.Client(process.url) as client,
        closing(sqlite3.connect(path)) as connection,
        client.consumer(topic, group="running", mode="exactly_once", start="earliest") as consumer,
    ):

        def process_batch(_batch: object, _tx: object) -> None:
            with client.sql_transaction(shop, connection):
                raise AssertionError("the block must not run")

        with pytest.raises(WrongStateError, match=REFUSED):
            consumer.run(process_batch)


def test_a_block_in_a_task_that_the_transaction_of_a_group_started_is_refused(
    process: ServerProcess, topic: tuff.TopicId, tmp_path: Path
) -> None:
    path = sqlite_file(tmp_path / "loop.sqlite")
    shop = SqliteDatabase(path, "shop")

    async def main() -> None:
        async with (
            tuff.AsyncClient(process.url) as client,
            client.consumer(
                topic, group="on-a-loop", mode="exactly_once", start="earliest"
            ) as consumer,
        ):
            batch = await consumer.poll()
            assert batch is not None
            with closing(sqlite3.connect(path)) as connection:

                async def insert() -> None:
                    async with client.sql_transaction(shop, connection):
                        connection.execute("INSERT INTO orders VALUES ('apple')")

                async with consumer.transaction(batch):
                    with pytest.raises(WrongStateError, match=REFUSED):
                        await asyncio.create_task(insert())
                await insert()

    asyncio.run(main())

    assert items(path) == ["apple"]
