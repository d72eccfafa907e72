"""Asyncio clients of two event loops, and of one: each belongs to the loop that used it first."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from threading import Barrier, Thread

import pytest

import tuff
from tests.http.process import ServerProcess

ROUNDS = 5
COUNTER = b"counter"


@pytest.fixture
def table(tmp_path: Path) -> Iterator[tuff.TransactionalTable]:
    with tuff.TransactionalTable(tmp_path / "table") as made:
        yield made


async def add_one(
    client: tuff.AsyncClient, table: tuff.TransactionalTable, topic: tuff.TopicId, name: str
) -> None:
    async def add(tx: tuff.AsyncTransactionContext) -> None:
        count = int(table.get(COUNTER) or b"0")
        await asyncio.sleep(0)
        table.put(COUNTER, b"%d" % (count + 1))
        await tx.publish(topic, name)

    await client.run(add, table, attempts=1000)


def count_in(client: tuff.Client, table: tuff.TransactionalTable) -> int:
    with client.transaction(table):
        return int(table.get(COUNTER) or b"0")


def test_two_loops_in_two_threads_share_a_table_and_lose_no_update(
    server: ServerProcess,
    client: tuff.Client,
    topic: tuff.TopicId,
    table: tuff.TransactionalTable,
) -> None:
    together = Barrier(2)
    errors: list[BaseException] = []

    async def work(name: str) -> None:
        async with tuff.AsyncClient(server.url, client_id=name) as mine:
            together.wait()
            await asyncio.gather(
                *(add_one(mine, table, topic, f"{name}/{number}") for number in range(ROUNDS))
            )

    def in_thread(name: str) -> None:
        try:
            asyncio.run(work(name))
        except BaseException as error:  # noqa: BLE001 - the test raises it
            errors.append(error)

    threads = [Thread(target=in_thread, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert count_in(client, table) == 2 * ROUNDS
    read = client.poll(topic, isolation="committed")
    assert {message.payload.decode() for message in read} == {
        f"{name}/{number}" for name in ("one", "two") for number in range(ROUNDS)
    }


async def test_two_clients_of_one_loop_conflict_as_two_programs_do(
    server: ServerProcess, topic: tuff.TopicId, table: tuff.TransactionalTable
) -> None:
    async with (
        tuff.AsyncClient(server.url, client_id="one") as one,
        tuff.AsyncClient(server.url, client_id="two") as two,
    ):
        first = await one.transactions.start()
        second = await two.transactions.start()
        await one.transactions.commit(first, changes=[b"row"])

        with pytest.raises(tuff.TransactionConflictError) as caught:
            await two.transactions.commit(second, changes=[b"row"])

        assert caught.value.client == "one"


def test_a_client_of_another_loop_says_so(server: ServerProcess) -> None:
    client = tuff.AsyncClient(server.url)
    stays = asyncio.new_event_loop()
    stays.run_until_complete(client.topics.namespaces())

    with pytest.raises(RuntimeError, match="belongs to the event loop"):
        asyncio.run(client.topics.namespaces())

    stays.run_until_complete(client.close())
    stays.close()
