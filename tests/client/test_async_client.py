"""The asyncio client against a real server: the same calls as coroutines (protocol §2, §3, §5), and
several clients and event loops."""

import asyncio
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from threading import Barrier, Thread
from typing import TypeVar

import pytest

import tuff
from tests.client.recording import AsyncParticipant, PlayedService, Record
from tests.http.process import ServerProcess, serve
from tuff.aio.transport import AsyncTransport
from tuff.flows_and_repeated_calls import Call

T = TypeVar("T")


@pytest.fixture(params=["http", "auto"])
async def loop_client(
    server: ServerProcess, request: pytest.FixtureRequest
) -> AsyncIterator[tuff.AsyncClient]:
    async with tuff.AsyncClient(server.url, client_id="tasks", transport=request.param) as made:
        yield made


async def test_a_client_can_be_closed_twice(server: ServerProcess) -> None:
    client = tuff.AsyncClient(server.url)

    await client.topics.namespaces()
    await client.close()
    await client.close()

    with pytest.raises(tuff.errors.ClientClosedError):
        await client.topics.namespaces()


async def test_topics_and_messages_are_as_those_of_the_blocking_client(
    loop_client: tuff.AsyncClient, client: tuff.Client
) -> None:
    topic = tuff.TopicId("tasks", "one")

    await loop_client.topics.create(topic, ttl=60)
    published = await loop_client.publish(topic, "one", b"\xff")

    assert await loop_client.topics.get(topic) == client.topics.get(topic)
    assert await loop_client.topics.list("tasks") == ["one"]
    assert list(await loop_client.poll(topic)) == list(client.poll(topic))
    assert (await loop_client.offsets(topic)).end == published.ids[-1]
    await loop_client.topics.update(topic, ttl=5)
    await loop_client.topics.delete(topic)
    with pytest.raises(tuff.TopicNotFoundError):
        await loop_client.poll(topic)


async def test_after_a_checkpoint_the_participants_write_under_a_new_pointer(
    loop_client: tuff.AsyncClient,
) -> None:
    record = Record()

    async with loop_client.transaction(AsyncParticipant("a", record)) as tx:
        first = tx.transaction.write_pointer
        await tx.checkpoint()
        second = tx.transaction.write_pointer

    assert first < second
    assert f"a.update_tx {second}" in record.steps


async def test_a_participant_leaves_a_context_once(loop_client: tuff.AsyncClient) -> None:
    participant = AsyncParticipant("a", Record())
    context = loop_client.transaction(participant)

    assert (context.remove(participant), context.remove(participant)) == (True, False)


async def test_the_transaction_calls_work_as_coroutines(
    loop_client: tuff.AsyncClient, topic: tuff.TopicId
) -> None:
    transactions = loop_client.transactions
    transaction = await transactions.start(timeout=20)
    await loop_client.store(topic, "aside", transaction=transaction)
    detail = await loop_client.publish_stored(topic, transaction=transaction)
    await loop_client.rollback(topic, detail)
    await transactions.can_commit(transaction, [b"async"])
    await transactions.checkpoint(transaction)
    assert (await transactions.overview()).in_progress[-1].client == "tasks"

    await transactions.commit(transaction)

    assert (await transactions.get(transaction)).state == "committed"
    assert list(await loop_client.poll(topic, isolation="committed")) == []
    lost = await transactions.start()
    await transactions.invalidate(lost)
    assert lost.transaction_id in (await transactions.invalids()).invalids
    assert (await transactions.truncate(ids=[lost.transaction_id])).removed_count == 1
    assert (await transactions.take_snapshot()).size_bytes > 0
    entry = tuff.connectors.PublishEntry(topic=topic, payloads=[b"all or nothing"])
    assert len(await transactions.run([entry])) == 1


async def test_run_again_after_a_conflict(loop_client: tuff.AsyncClient) -> None:
    rounds: list[int] = []

    async def work(tx: tuff.AsyncTransactionContext) -> int:
        rounds.append(tx.transaction.transaction_id)
        if len(rounds) == 1:
            other = await loop_client.transactions.start()
            await loop_client.transactions.commit(other, changes=[b"contended"])
        return len(rounds)

    participant = AsyncParticipant("a", Record(), changes=[b"contended"])
    assert await loop_client.run(work, participant) == 2


async def test_cancelling_a_task_in_a_transaction_rolls_back(
    loop_client: tuff.AsyncClient,
) -> None:
    record = Record()
    begun = asyncio.Event()

    async def wait_in_a_transaction() -> None:
        async with loop_client.transaction(AsyncParticipant("a", record)):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(wait_in_a_transaction())
    await begun.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert record.steps == ["a.start_tx", "a.rollback_tx"]
    assert (await loop_client.transactions.get(record.pointer)).state == "aborted"


async def test_more_tasks_wait_for_messages_than_a_pool_of_connections_has(
    loop_client: tuff.AsyncClient, topic: tuff.TopicId
) -> None:
    waiting = [asyncio.create_task(loop_client.poll(topic, wait=60)) for _ in range(120)]

    await loop_client.publish(topic, "for all")

    read = await asyncio.gather(*waiting)
    assert {message.payload for poll in read for message in poll} == {b"for all"}


@pytest.mark.slow
async def test_a_call_after_a_restart_of_the_server_is_not_lost_on_a_kept_connection(
    tmp_path: Path,
) -> None:
    """The loop had not heard of it while the program computed, and a publish was lost on it."""
    topic = tuff.TopicId("default", "restarts")
    with serve(tmp_path) as first:
        client = tuff.AsyncClient(first.url, retries=0)
        await client.topics.create(topic)

    with serve(tmp_path, port=first.port):
        await client.publish(topic, "still here")
        assert len(await client.poll(topic)) == 1
        await client.close()


@pytest.mark.slow
async def test_a_long_poll_may_take_its_wait_on_top_of_the_timeout(
    server: ServerProcess, topic: tuff.TopicId
) -> None:
    async with tuff.AsyncClient(server.url, timeout=2.0, retries=0) as client:
        assert len(await client.poll(topic, wait=2.2)) == 0


class Suspension:
    """Awaited, it gives the loop a turn that never comes back."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class SlowService(PlayedService):
    """The played service, which can only be awaited."""

    async def send(self, call: Call[T]) -> T:
        answer = super().send(call)
        await Suspension()
        return answer


class StuckParticipant(AsyncParticipant):
    """A participant that never gets beyond one of its hooks."""

    def __init__(self, record: Record, hook: str) -> None:
        super().__init__("a", record, changes=[b"x"])
        setattr(self, hook, self.be_stuck)

    async def be_stuck(self, *arguments: object) -> None:
        self._participant._record.note("stuck")
        await Suspension()


@pytest.mark.parametrize(
    "hook", ["start_tx", "tx_changes", "commit_tx", "post_commit", "rollback_tx"]
)
def test_a_coroutine_that_is_closed_half_way_cleans_nothing_up(hook: str) -> None:
    """The loop is gone, so nothing can be awaited any more: Python refuses one that tries."""
    record = Record()
    client = tuff.AsyncClient(transport=SlowService(record), client_id="tests", retries=0)

    async def transact() -> None:
        participants = [StuckParticipant(record, hook), AsyncParticipant("b", record)]
        async with client.transaction(*participants):
            if hook == "rollback_tx":
                raise ZeroDivisionError

    running = transact()
    while "stuck" not in record.steps:
        running.send(None)
    running.close()

    assert record.steps[-1] == "stuck"


class CancelledTransport:
    """Passes calls on, and is cancelled at the commit: before it is sent, or after its answer."""

    def __init__(self, transport: AsyncTransport, *, when: str) -> None:
        self._transport = transport
        self._when = when

    async def send(self, call: Call[T]) -> T:
        is_commit = call.request.path.endswith("/commit")
        if is_commit and self._when == "before":
            raise asyncio.CancelledError
        answer = await self._transport.send(call)
        if is_commit:
            raise asyncio.CancelledError
        return answer


@pytest.mark.parametrize(
    ("when", "last", "state"),
    [("before", "a.rollback_tx", "aborted"), ("after", "a.post_commit", "committed")],
)
async def test_cancelling_a_commit_leaves_no_doubt_about_it(
    loop_client: tuff.AsyncClient, when: str, last: str, state: str
) -> None:
    record = Record()
    transport = CancelledTransport(loop_client._transport, when=when)
    client = tuff.AsyncClient(transport=transport, client_id="tests", retries=0)

    with pytest.raises(asyncio.CancelledError):
        async with client.transaction(AsyncParticipant("a", record, changes=[b"row"])):
            pass

    assert record.steps[-1] == last
    assert (await loop_client.transactions.get(record.pointer)).state == state


async def test_a_task_that_is_cancelled_as_its_block_begins_leaves_no_transaction(
    loop_client: tuff.AsyncClient,
) -> None:
    record = Record()
    context = loop_client.transaction(AsyncParticipant("a", record))
    driver = context._driver

    class Cancelling:
        async def run(self, flow: object) -> None:
            context._driver = driver
            await driver.run(flow)
            raise asyncio.CancelledError

    context._driver = Cancelling()  # type: ignore[assignment] # it plays a cancellation just then
    with pytest.raises(asyncio.CancelledError):
        await context.__aenter__()

    assert record.steps == ["a.start_tx", "a.rollback_tx"]
    async with context:
        pass


ROUNDS = 5
COUNTER = b"counter"


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


async def test_two_clients_of_one_event_loop_conflict(
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


def test_a_client_of_another_event_loop_is_refused(server: ServerProcess) -> None:
    client = tuff.AsyncClient(server.url)
    stays = asyncio.new_event_loop()
    stays.run_until_complete(client.topics.namespaces())

    with pytest.raises(RuntimeError, match="belongs to the event loop"):
        asyncio.run(client.topics.namespaces())

    stays.run_until_complete(client.close())
    stays.close()
