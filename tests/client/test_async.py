"""The asyncio client against a real server: the same calls, as coroutines (protocol §2, §3, §5)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import tuff
from tests.client.recording import AsyncShelf, Record
from tuff.launch import ServerProcess


@pytest.fixture
async def loop_client(server: ServerProcess) -> AsyncIterator[tuff.AsyncClient]:
    async with tuff.connect_async(server.url, client="tasks") as made:
        yield made


async def test_a_client_can_be_awaited_and_closed(server: ServerProcess) -> None:
    client = await tuff.connect_async(server.url)

    await client.topics.namespaces()
    await client.close()
    await client.close()

    with pytest.raises(tuff.ClientClosedError):
        await client.topics.namespaces()


async def test_topics_and_messages_are_as_those_of_the_blocking_client(
    loop_client: tuff.AsyncClient, client: tuff.Client
) -> None:
    topic = tuff.TopicId("tasks", "one")

    await loop_client.topics.create(topic, ttl=60)
    published = await loop_client.publish(topic, ["one", b"\xff"])

    assert await loop_client.topics.get(topic) == client.topics.get(topic)
    assert await loop_client.topics.list("tasks") == ["one"]
    assert list(await loop_client.poll(topic)) == list(client.poll(topic))
    assert (await loop_client.offsets(topic)).end == published.last_id
    await loop_client.topics.update(topic, ttl=5)
    await loop_client.topics.delete(topic)
    with pytest.raises(tuff.TopicNotFoundError):
        await loop_client.poll(topic)


async def test_a_commit_makes_rows_and_messages_visible_at_once(
    loop_client: tuff.AsyncClient, topic: tuff.TopicId
) -> None:
    record = Record()

    async with loop_client.transaction(AsyncShelf("a", record, changes=[b"row"])) as tx:
        await tx.publish(topic, "one", "two")
        await tx.checkpoint()
        assert list(await tx.poll(topic)) == []

    read = await loop_client.poll(topic, isolation="committed")
    assert [message.payload for message in read] == [b"one", b"two"]
    assert record.steps[-1] == "a.post_commit"
    assert (await loop_client.transactions.outcome(record.pointer)).client == "tasks"


async def test_the_transaction_calls_answer_what_they_answer_a_thread(
    loop_client: tuff.AsyncClient, topic: tuff.TopicId
) -> None:
    transactions = loop_client.transactions
    transaction = await transactions.start(timeout=20)
    await loop_client.store(topic, "aside", transaction=transaction)
    published = await loop_client.publish(topic, [], transaction=transaction)
    assert published.rollback is not None
    await loop_client.rollback(topic, published.rollback)
    await transactions.can_commit(transaction, [b"async"])
    await transactions.checkpoint(transaction)
    assert (await transactions.overview()).in_progress[-1].client == "tasks"

    await transactions.commit(transaction)

    assert (await transactions.outcome(transaction)).state == "committed"
    assert list(await loop_client.poll(topic, isolation="committed")) == []
    lost = await transactions.start()
    await transactions.invalidate(lost)
    assert lost.transaction_id in (await transactions.invalids()).invalids
    assert (await transactions.truncate(ids=[lost.transaction_id])).removed_count == 1
    assert (await transactions.take_snapshot()).size_bytes > 0
    entry = tuff.PublishEntry(topic=topic, payloads=[b"all or nothing"])
    assert len(await transactions.run([entry])) == 1


async def test_run_again_after_a_conflict(loop_client: tuff.AsyncClient) -> None:
    rounds: list[int] = []

    async def work(tx: tuff.AsyncTransactionContext) -> int:
        rounds.append(tx.transaction.transaction_id)
        if len(rounds) == 1:
            other = await loop_client.transactions.start()
            await loop_client.transactions.commit(other, changes=[b"contended"])
        return len(rounds)

    shelf = AsyncShelf("a", Record(), changes=[b"contended"])
    assert await loop_client.run(work, shelf) == 2


async def test_cancelling_a_task_in_a_transaction_rolls_back(
    loop_client: tuff.AsyncClient,
) -> None:
    record = Record()
    begun = asyncio.Event()

    async def wait_in_a_transaction() -> None:
        async with loop_client.transaction(AsyncShelf("a", record)):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(wait_in_a_transaction())
    await begun.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert record.steps == ["a.start_tx", "a.rollback_tx"]
    assert (await loop_client.transactions.outcome(record.pointer)).state == "aborted"


async def test_more_tasks_wait_for_messages_than_a_pool_of_connections_has(
    loop_client: tuff.AsyncClient, topic: tuff.TopicId
) -> None:
    waiting = [asyncio.create_task(loop_client.poll(topic, wait=20)) for _ in range(120)]

    await loop_client.publish(topic, "for all")

    read = await asyncio.gather(*waiting)
    assert {message.payload for poll in read for message in poll} == {b"for all"}


async def test_a_kept_connection_whose_server_went_away_costs_no_call(tmp_path: Path) -> None:
    """The loop had not heard of it while the program computed, and a publish was lost on it."""
    topic = tuff.TopicId("default", "restarts")
    log = tmp_path / "log.txt"
    with ServerProcess(tmp_path / "data", log=log) as first:
        client = await tuff.connect_async(first.url, retries=0)
        await client.topics.create(topic)
        port = first.url.rpartition(":")[2]

    with ServerProcess(tmp_path / "data", log=log, arguments=["--port", port]):
        await client.publish(topic, "still here")
        assert len(await client.poll(topic)) == 1
        await client.close()


async def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    async with tuff.connect_async("http://127.0.0.1:1", retries=0) as client:
        with pytest.raises(tuff.ConnectionLostError, match=r"127\.0\.0\.1:1") as caught:
            await client.topics.namespaces()

    assert not caught.value.outcome_unknown


async def test_a_loop_that_is_gone_leaves_no_flow_behind(loop_client: tuff.AsyncClient) -> None:
    """A coroutine that is closed half-way can't await its clean-up: it must not try to."""
    context = loop_client.transaction(AsyncShelf("a", Record()))
    beginning = context.__aenter__()
    beginning.send(None)

    beginning.close()
