"""Consumers of a group against a real server (protocol §3.11)."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

import tuff
from tests.http.process import ServerProcess, serve
from tuff import group_calls

_numbers = count(1)
Make = Callable[..., tuff.Consumer]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with short sessions."""
    with serve(
        tmp_path_factory.mktemp("server"),
        "groups.session_timeout=1",
        "groups.heartbeat_interval=0.1",
    ) as running:
        yield running


@pytest.fixture
def topic(client: tuff.Client) -> tuff.TopicId:
    """A topic with four partitions."""
    made = tuff.TopicId("groups", f"topic-{next(_numbers)}")
    client.topics.create(made, partitions=4)
    return made


@pytest.fixture
def make(client: tuff.Client, topic: tuff.TopicId) -> Iterator[Make]:
    """Consumers of a group of the topic's name; they are closed at the end."""
    with ExitStack() as stack:

        def make_one(**options: object) -> tuff.Consumer:
            consumer = client.consumer(topic.name, topic, **options)  # type: ignore[arg-type]  # any
            return stack.enter_context(consumer)

        yield make_one


def publish(client: tuff.Client, topic: tuff.TopicId, *payloads: str) -> None:
    for payload in payloads:
        client.publish(topic, tuff.NewMessage(payload, key=payload))


def read(consumer: tuff.Consumer, number: int, *, within_s: float = 10.0) -> list[str]:
    """The payloads of so many messages, sorted."""
    found: list[str] = []
    until_s = time.monotonic() + within_s
    while len(found) < number and time.monotonic() < until_s:
        batch = consumer.poll(0.2)
        found += [message.payload.decode() for message in batch or ()]
    return sorted(found)


def settle(*consumers: tuff.Consumer, sizes: list[int]) -> None:
    """Poll until the members have so many partitions."""
    until_s = time.monotonic() + 10.0
    while [len(each.assignment) for each in consumers] != sizes:
        assert time.monotonic() < until_s, [each.assignment for each in consumers]
        for each in consumers:
            assert each.poll(0.02) is None


def after(client: tuff.Client, topic: tuff.TopicId) -> dict[int, tuff.MessageId | None]:
    group = client.groups.show(topic.namespace, topic.name)
    return {each.partition.number: each.after for each in group.partitions if each.after}  # type: ignore[misc]  # a partition has a number


def test_a_member_reads_all_partitions(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    publish(client, topic, *"abcdefgh")

    consumer = make()

    assert read(consumer, 8) == list("abcdefgh")
    assert consumer.assignment == [topic.partition(number) for number in range(4)]


def test_members_share_the_partitions_and_take_over(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    first, second = make(), make()
    settle(first, second, sizes=[2, 2])
    publish(client, topic, *"abcdefgh")

    mine = read(first, 8, within_s=1.0)
    first.commit()
    theirs = read(second, 8 - len(mine))
    assert sorted(mine + theirs) == list("abcdefgh")
    assert mine
    assert theirs
    second.commit()
    first.close()
    settle(second, sizes=[4])
    publish(client, topic, *"xyz")

    assert read(second, 3) == list("xyz")


def test_a_batch_is_committed_by_the_next_poll_and_by_commit(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    consumer = make()
    publish(client, topic, "a")
    batch = consumer.poll()
    assert batch is not None
    number = batch.partition.number

    assert after(client, topic) == {}
    consumer.poll(0)
    assert after(client, topic) == {number: batch.next_id}
    client.publish(batch.partition, "b")
    again = consumer.poll()
    assert again is not None
    consumer.commit()
    assert after(client, topic) == {number: again.next_id}


def test_what_is_not_committed_is_read_again(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    publish(client, topic, "a")
    consumer = make()
    assert read(consumer, 1) == ["a"]
    consumer.close()

    assert read(make(), 1) == ["a"]


def test_at_most_once_commits_before_it_hands_out(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    publish(client, topic, "a")
    consumer = make(mode="at_most_once")
    assert read(consumer, 1) == ["a"]
    consumer.close()

    assert read(make(), 1, within_s=0.5) == []


def test_a_batch_and_its_offset_are_one_transaction(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    copies = tuff.TopicId("groups", f"{topic.name}-copies")
    client.topics.create(copies)
    publish(client, topic, "a")
    consumer = make(mode="exactly_once")

    batch = consumer.poll()
    assert batch is not None

    def fail() -> None:
        with consumer.transaction(batch) as tx:
            tx.publish(copies, "not committed")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert after(client, topic) == {}
    again = consumer.poll()
    assert again == batch
    with consumer.transaction(again) as tx:
        tx.publish(copies, again[0].payload)
        with pytest.raises(tuff.WrongStateError):
            consumer.poll(0)

    assert after(client, topic) == {batch.partition.number: batch.next_id}
    assert consumer.poll(0) is None
    assert [message.payload for message in client.poll(copies)] == [b"a"]


def test_a_fenced_member_commits_no_offset_and_nothing_else(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    copies = tuff.TopicId("groups", f"{topic.name}-copies")
    client.topics.create(copies)
    publish(client, topic, "a")
    fenced = make(mode="exactly_once")
    batch = fenced.poll()
    assert batch is not None

    with ExitStack() as stack:
        tx = stack.enter_context(fenced.transaction(batch))
        tx.publish(copies, "from the fenced member")
        fence(client, topic)
        successor = make(mode="exactly_once")
        again = successor.poll()
        assert again is not None
        with successor.transaction(again) as tx_2:
            tx_2.publish(copies, "from the successor")
        with pytest.raises(tuff.GroupError):
            stack.close()

    assert again.messages == batch.messages
    assert [message.payload for message in client.poll(copies)] == [b"from the successor"]
    assert after(client, topic) == {batch.partition.number: batch.next_id}


def fence(client: tuff.Client, topic: tuff.TopicId) -> None:
    """Let the member leave behind its back, as if its session was over."""
    (member,) = client.groups.show(topic.namespace, topic.name).members
    call = group_calls.leave(
        group_calls.GroupId(namespace=topic.namespace, name=topic.name),
        member.member_id,
        is_static=False,
    )
    client._send(call)


def test_a_fenced_member_joins_again(client: tuff.Client, topic: tuff.TopicId, make: Make) -> None:
    lost: list[tuff.TopicId] = []
    consumer = make(on_lost=lost.extend)
    settle(consumer, sizes=[4])
    fence(client, topic)
    publish(client, topic, *"abc")

    assert read(consumer, 3) == list("abc")
    consumer.commit()
    assert sorted(lost) == consumer.assignment == [topic.partition(each) for each in range(4)]


def test_callbacks_are_told_what_moves(topic: tuff.TopicId, make: Make) -> None:
    assigned: list[tuff.TopicId] = []
    revoked: list[tuff.TopicId] = []
    first = make(on_assigned=assigned.extend, on_revoked=revoked.extend)
    settle(first, sizes=[4])
    second = make()

    settle(first, second, sizes=[2, 2])

    assert assigned == [topic.partition(each) for each in range(4)]
    assert revoked == second.assignment
    first.close()
    assert sorted(revoked) == assigned


def test_an_offset_that_is_undecided_holds_the_partition_back(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    publish(client, topic, "a")
    first = make(mode="exactly_once")
    batch = first.poll()
    assert batch is not None
    transaction = client.transactions.start()
    client._send(first._flows.offsets_of(batch)(transaction.transaction_id))
    first.close()

    second = make(mode="exactly_once")
    assert read(second, 1, within_s=0.5) == []
    client.transactions.abort(transaction)
    assert read(second, 1) == ["a"]


def test_a_static_member_keeps_its_partitions_while_it_restarts(
    topic: tuff.TopicId, make: Make
) -> None:
    first, other = make(instance_id="worker-1"), make()
    settle(first, other, sizes=[2, 2])
    kept = first.assignment
    first.close()
    assert other.poll(0.3) is None
    assert len(other.assignment) == 2

    again = make(instance_id="worker-1")
    settle(again, other, sizes=[2, 2])

    assert again.assignment == kept


def test_a_run_reads_a_batch_again_whose_processing_failed(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    consumer = make()
    seen: list[str] = []

    def process(batch: tuff.Batch) -> None:
        seen.extend(message.payload.decode() for message in batch)
        if len(seen) == 1:
            raise ZeroDivisionError
        consumer.stop()

    publish(client, topic, "a")
    with pytest.raises(ZeroDivisionError):
        consumer.run(process)
    assert after(client, topic) == {}
    consumer.run(process)

    assert seen == ["a", "a"]
    assert len(after(client, topic)) == 1


def test_a_run_processes_in_transactions(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    copies = tuff.TopicId("groups", f"{topic.name}-copies")
    client.topics.create(copies)
    publish(client, topic, *"abcd")
    consumer = make(mode="exactly_once", batch=1)
    left = list(range(4))

    def process(batch: tuff.Batch, tx: tuff.TransactionContext) -> None:
        tx.publish(copies, *(message.payload for message in batch))
        left.pop()
        if not left:
            consumer.stop()

    consumer.run(process)

    assert sorted(message.payload for message in client.poll(copies)) == [b"a", b"b", b"c", b"d"]


def test_a_partition_without_an_offset_begins_at_start(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    publish(client, topic, *"abcd")
    consumer = make(start="latest")
    settle(consumer, sizes=[4])
    publish(client, topic, "e")

    assert read(consumer, 1) == ["e"]


def test_a_closed_consumer_is_refused(make: Make) -> None:
    consumer = make()
    consumer.close()

    with pytest.raises(tuff.WrongStateError):
        consumer.poll()


@pytest.mark.parametrize(
    "options",
    [{"mode": "twice"}, {"start": "middle"}, {"topics": []}, {"topics": "partition"}],
)
def test_an_impossible_consumer_is_refused(
    client: tuff.Client, topic: tuff.TopicId, options: dict[str, object]
) -> None:
    given: dict[str, object] = {"topics": topic, **options}
    if given["topics"] == "partition":
        given["topics"] = topic.partition(1)

    with pytest.raises(ValueError):
        client.consumer("billing", **given)  # type: ignore[arg-type]  # wrong on purpose


async def test_the_asyncio_client_consumes_and_awaits_callbacks(
    server: ServerProcess, client: tuff.Client, topic: tuff.TopicId
) -> None:
    publish(client, topic, *"abc")
    assigned: list[tuff.TopicId] = []

    async def on_assigned(partitions: list[tuff.TopicId]) -> None:
        assigned.extend(partitions)

    found: list[str] = []
    async with (
        tuff.AsyncClient(server.url) as own,
        own.consumer(topic.name, topic, on_assigned=on_assigned) as consumer,
    ):
        async for batch in consumer:
            found += [message.payload.decode() for message in batch]
            if len(found) == 3:
                break
        await consumer.commit()

    assert sorted(found) == list("abc")
    assert len(assigned) == 4
    assert sum(each is not None for each in after(client, topic).values()) >= 1


def test_groups_are_listed_reset_and_deleted(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    publish(client, topic, "a")
    consumer = make()
    assert read(consumer, 1) == ["a"]
    consumer.commit()
    with pytest.raises(tuff.GroupNotEmptyError):
        client.groups.delete(topic.namespace, topic.name)
    consumer.close()

    assert topic.name in client.groups.list(topic.namespace)
    (number,) = after(client, topic)
    client.groups.reset(topic.namespace, topic.name, {topic.partition(number): None})
    assert after(client, topic) == {}
    with pytest.raises(ValueError):
        client.groups.reset(topic.namespace, topic.name, {topic: None})
    client.groups.delete(topic.namespace, topic.name)
    assert topic.name not in client.groups.list(topic.namespace)


def test_a_consumer_outlasts_a_restart_of_the_server(tmp_path: Path) -> None:
    settings = ("groups.session_timeout=30", "groups.heartbeat_interval=0.1")
    orders = tuff.TopicId("groups", "orders")
    with serve(tmp_path, *settings) as first, tuff.Client(first.url, retries=0) as client:
        client.topics.create(orders, partitions=4)
        with client.consumer("billing", orders) as consumer:
            settle(consumer, sizes=[4])
            client.publish(orders.partition(1), "a")
            assert read(consumer, 1) == ["a"]
            first.kill()

            assert consumer.poll(0.3) is None
            with serve(tmp_path, *settings, port=first.port):
                client.publish(orders.partition(1), "b")
                assert read(consumer, 1) == ["b"]
                consumer.commit()
                assert len(consumer.assignment) == 4


def test_a_consumer_gives_up_when_the_server_is_away_for_a_session(tmp_path: Path) -> None:
    settings = ("groups.session_timeout=0.5", "groups.heartbeat_interval=0.1")
    orders = tuff.TopicId("groups", "orders")
    lost: list[tuff.TopicId] = []
    with serve(tmp_path, *settings) as first, tuff.Client(first.url, retries=0) as client:
        client.topics.create(orders)
        with client.consumer("billing", orders, on_lost=lost.extend) as consumer:
            settle(consumer, sizes=[1])
            first.kill()
            assert consumer.poll(1.0) is None
            assert lost == [orders.partition(0)]
            assert consumer.assignment == []

            with serve(tmp_path, *settings, port=first.port):
                client.publish(orders, "a")
                assert read(consumer, 1) == ["a"]


async def test_the_asyncio_client_processes_in_transactions(
    server: ServerProcess, client: tuff.Client, topic: tuff.TopicId
) -> None:
    copies = tuff.TopicId("groups", f"{topic.name}-copies")
    client.topics.create(copies)
    publish(client, topic, "a")

    async def process(batch: tuff.Batch, tx: tuff.AsyncTransactionContext) -> None:
        await tx.publish(copies, batch[0].payload)
        consumer.stop()

    async with (
        tuff.AsyncClient(server.url) as own,
        own.consumer(topic.name, topic, mode="exactly_once") as consumer,
    ):
        await consumer.run(process)

    assert [message.payload for message in client.poll(copies)] == [b"a"]
    assert len(after(client, topic)) == 1


def test_a_blocking_client_refuses_a_coroutine_function_as_callback(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    async def take(_partitions: list[tuff.TopicId]) -> None:
        pass

    with pytest.raises(TypeError, match="coroutine"):
        client.consumer("billing", topic, on_assigned=take)


def test_a_member_selects_by_tags_and_retries_what_it_selected(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    wanted = tuff.NewMessage("wanted", tags=["new"])
    client.publish(topic, "other", tuff.NewMessage("old", tags=["old"]), wanted)
    consumer = make(tags="new", retry=tuff.RetryPolicy(delays=(0.01,)))

    first = consumer.poll(10)
    assert first is not None
    consumer.nack(first[0], ValueError("no"))
    again = consumer.poll(10)

    assert again is not None
    assert [(each.attempt, each[0].payload) for each in (first, again)] == [
        (1, b"wanted"), (2, b"wanted"),
    ]  # fmt: skip
