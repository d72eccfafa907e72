"""Consumers of a group against a real server (protocol §3.11)."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

import tuff
from tests.client.proxy import losing
from tests.http.client import until
from tests.http.process import ServerProcess, serve
from tuff import group_calls
from tuff.dead_letters import retry_topic_of

_numbers = count(1)
WITHIN_S = 60.0  # on a busy machine
Make = Callable[..., tuff.Consumer]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose members hear of changes at once."""
    with serve(tmp_path_factory.mktemp("server"), "groups.heartbeat_interval=0.1") as running:
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
            consumer = client.consumer(topic, group=topic.name, **options)  # type: ignore[arg-type]  # any
            return stack.enter_context(consumer)

        yield make_one


def publish(client: tuff.Client, topic: tuff.TopicId, *payloads: str) -> None:
    for payload in payloads:
        client.publish(topic, tuff.NewMessage(payload, key=payload))


def read(consumer: tuff.Consumer, number: int, *, within_s: float = WITHIN_S) -> list[str]:
    """The payloads of so many messages, sorted."""
    found: list[str] = []
    until_s = time.monotonic() + within_s
    while len(found) < number and time.monotonic() < until_s:
        batch = consumer.poll(0.2)
        found += [message.payload.decode() for message in batch or ()]
    return sorted(found)


def read_to_the_end(consumer: tuff.Consumer | tuff.ShareConsumer) -> None:
    """The loop of docs/howto/consumer-groups.md."""
    while consumer.poll(wait=0.5):
        pass


def settle(*consumers: tuff.Consumer, sizes: list[int]) -> None:
    """Poll until the members have so many partitions."""
    until_s = time.monotonic() + WITHIN_S
    while [len(each.assignment) for each in consumers] != sizes:
        assert time.monotonic() < until_s, [each.assignment for each in consumers]
        for each in consumers:
            assert each.poll(0.02) is None


def after(client: tuff.Client, topic: tuff.TopicId) -> dict[int, tuff.MessageId | None]:
    group = client.groups.get(topic.namespace, topic.name)
    return {each.partition.number: each.after for each in group.partitions if each.after}  # type: ignore[misc]  # a partition has a number


def test_a_member_reads_all_partitions(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    publish(client, topic, *"abcdefgh")

    consumer = make()

    assert read(consumer, 8) == list("abcdefgh")
    assert consumer.assignment == [topic.partition(number) for number in range(4)]


def test_a_consumer_names_the_partition_of_a_message_also_when_it_is_tried_again(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    consumer = make(retry=tuff.RetryPolicy(delays=[0]))
    client.publish(topic.partition(3), "a", "b")
    named: list[tuple[bytes, tuff.PartitionId]] = []

    for message in consumer:
        named.append((message.payload, consumer.partition(message)))
        if len(named) == 1:
            consumer.nack(message)
        if len(named) == 3:
            consumer.stop()

    third = topic.partition(3)
    assert named == [(b"a", third), (b"b", third), (b"a", third)]
    with pytest.raises(tuff.WrongStateError, match="not a message of the batch"):
        consumer.partition(message)


def test_members_share_the_partitions_and_take_over(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    first, second = make(), make()
    settle(first, second, sizes=[2, 2])
    publish(client, topic, *"abcdefgh")
    own_count = sum(len(client.poll(each)) for each in first.assignment)

    mine = read(first, own_count)
    first.commit()
    theirs = read(second, 8 - own_count)
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


def test_a_batch_without_a_transaction_of_the_consumer_is_refused(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    """Its results were published again and again, without a word."""
    copies = tuff.TopicId("groups", f"{topic.name}-copies")
    client.topics.create(copies)
    client.publish(topic, "a", "b", key="one partition")
    consumer = make(mode="exactly_once", batch=1)

    batches = consumer.batches()
    batch = next(batches)
    with client.transaction() as tx:
        tx.publish(copies, batch[0].payload)
    with pytest.raises(tuff.WrongStateError, match="in no transaction of this consumer"):
        next(batches)
    with pytest.raises(tuff.WrongStateError, match="an empty block of one passes over it"):
        consumer.poll(0)
    with consumer.transaction(batch):
        pass

    assert [each.payload for each in consumer.poll() or ()] == [b"b"]
    assert [message.payload for message in client.poll(copies)] == [b"a"]


def test_a_batch_is_committed_by_one_transaction(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    """A second transaction of the batch published all of it once more."""
    copies = tuff.TopicId("groups", f"{topic.name}-copies")
    client.topics.create(copies)
    publish(client, topic, "a")
    consumer = make(mode="exactly_once")
    batch = consumer.poll()
    assert batch is not None
    opened_before = consumer.transaction(batch)
    with consumer.transaction(batch) as tx:
        tx.publish(copies, "a")

    def publish_again() -> None:
        with opened_before as tx:
            tx.publish(copies, "again")

    for again in (lambda: consumer.transaction(batch), publish_again):
        with pytest.raises(tuff.WrongStateError, match="of this batch has committed"):
            again()

    assert [message.payload for message in client.poll(copies)] == [b"a"]


def test_a_batch_whose_commit_may_have_counted_is_not_committed_again(
    client: tuff.Client, server: ServerProcess, topic: tuff.TopicId
) -> None:
    copies = tuff.TopicId("groups", f"{topic.name}-copies")
    client.topics.create(copies)
    publish(client, topic, "a")
    with (
        losing(server.url, dies=True) as (url, losses),
        tuff.Client(url, retries=0) as through,
        through.consumer(topic, group=topic.name, mode="exactly_once") as consumer,
    ):
        batch = consumer.poll()
        assert batch is not None
        losses.lose_reply("commit")
        context = consumer.transaction(batch)
        with pytest.raises(tuff.errors.OutcomeUnknownError), context as tx:
            tx.publish(copies, "a")

        with pytest.raises(tuff.WrongStateError, match="or may have; poll again"):
            consumer.transaction(batch)

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
        with pytest.raises(tuff.errors.GroupError):
            stack.close()

    assert again.messages == batch.messages
    assert [message.payload for message in client.poll(copies)] == [b"from the successor"]
    assert after(client, topic) == {batch.partition.number: batch.next_id}


def fence(client: tuff.Client, topic: tuff.TopicId) -> None:
    """Let the member leave behind its back, as if its session was over."""
    (member,) = client.groups.get(topic.namespace, topic.name).members
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
    client._send(first._flows._end_of(batch)(transaction.transaction_id))
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


def test_a_group_begins_at_start(client: tuff.Client, topic: tuff.TopicId, make: Make) -> None:
    publish(client, topic, *"abcd")
    consumer = make(start="latest")
    settle(consumer, sizes=[4])
    publish(client, topic, "e")

    assert read(consumer, 1) == ["e"]


def test_a_group_at_latest_reads_what_came_while_no_member_ran(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    first = make(start="latest")
    settle(first, sizes=[4])
    first.close()
    publish(client, topic, *"abcdefgh")

    assert read(make(start="latest"), 8) == list("abcdefgh")


def test_a_group_at_latest_reads_all_of_a_partition_that_is_added(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    consumer = make(start="latest")
    settle(consumer, sizes=[4])

    client.topics.update(topic, partitions=6)
    publish(client, topic.partition(4), *"abc")
    publish(client, topic.partition(5), *"def")

    assert read(consumer, 6) == list("abcdef")


def test_a_group_at_latest_reads_what_came_before_a_partition_moved(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    first = make(start="latest")
    settle(first, sizes=[4])
    publish(client, topic, *"abcdefgh")

    second = make(start="latest")  # takes half of the partitions before the first commit
    found: list[str] = []
    until_s = time.monotonic() + WITHIN_S
    while len(set(found)) < 8 and time.monotonic() < until_s:
        found += [each for consumer in (first, second) for each in read(consumer, 1, within_s=0.1)]

    assert sorted(set(found)) == list("abcdefgh")


def test_a_group_at_latest_reads_retries_that_came_while_no_member_ran(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    policy = tuff.RetryPolicy(delays=(0.05,))
    consumer = make(start="latest", retry=policy)
    settle(consumer, sizes=[8])
    publish(client, topic, "a")
    batch = consumer.poll()
    assert batch is not None
    consumer.nack(batch[0])
    consumer.commit()
    consumer.close()
    retries = [retry_topic_of(topic).partition(number) for number in range(4)]
    until(lambda: any(client.poll(each) for each in retries))  # the delay is over

    assert read(make(start="latest", retry=policy), 1) == ["a"]


def test_what_a_selection_passes_over_counts_as_read(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    publish(client, topic, *"abcdefgh")
    consumer = make(tags="big")
    settle(consumer, sizes=[4])
    until_s = time.monotonic() + WITHIN_S

    while len(after(client, topic)) < 4 and time.monotonic() < until_s:
        assert consumer.poll(0.1) is None

    group = client.groups.get(topic.namespace, topic.name)
    assert [(each.unread, each.unread_age_ms) for each in group.partitions] == [(0, 0)] * 4


def test_messages_of_one_publish_that_nobody_reads_are_lag(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    consumer = make(start="latest")
    settle(consumer, sizes=[4])
    consumer.close()
    client.publish(topic.partition(0), "a", "b", "c", "d")
    began_s = time.monotonic()
    age_ms = 0

    while age_ms < 300:  # it rises while nothing is published
        assert time.monotonic() < began_s + WITHIN_S
        first, *others = client.groups.get(topic.namespace, topic.name).partitions
        age_ms = first.unread_age_ms or 0

    assert (first.unread, first.is_lower_bound, first.behind_ms) == (4, False, 0)
    assert [each.unread for each in others] == [0, 0, 0]
    assert client.topics.count(topic).count == 4


def test_a_member_that_closes_while_it_joins_is_no_member(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    client.groups.set_preferences("groups", topic.name, tuff.GroupPreferences())
    for number in range(20):
        consumer = make()
        consumer.poll(wait=number / 5_000)  # seconds; the join is sent beside the program
        consumer.close()

        assert list(client.groups.get("groups", topic.name).members) == []


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
        client.consumer(**given, group="billing")  # type: ignore[arg-type]  # wrong on purpose


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
        own.consumer(topic, group=topic.name, on_assigned=on_assigned) as consumer,
    ):
        async for batch in consumer.batches():
            found += [message.payload.decode() for message in batch]
            if len(found) == 3:
                break
        await consumer.commit()

    assert sorted(found) == list("abc")
    assert len(assigned) == 4
    assert sum(each is not None for each in after(client, topic).values()) >= 1


async def test_a_loop_of_polls_without_a_wait_lets_the_member_join(
    server: ServerProcess, client: tuff.Client, topic: tuff.TopicId
) -> None:
    """Its heartbeats never had their turn on the event loop, and each poll returned None."""
    publish(client, topic, "a")
    async with (
        tuff.AsyncClient(server.url) as own,
        own.consumer(topic, group=topic.name) as consumer,
        asyncio.timeout(20),
    ):
        while (batch := await consumer.poll(wait=0)) is None:
            pass

    assert batch[0].payload == b"a"


def test_a_consumer_refuses_another_event_loop_than_its_own(server: ServerProcess) -> None:
    """Its heartbeats had ended with the first loop, and each poll returned None."""
    client = tuff.AsyncClient(server.url)
    consumer = client.consumer("client:no-such-topic", group="loops")

    async def poll_once() -> None:
        await consumer.poll(wait=0)
        await client.close()

    asyncio.run(poll_once())

    with pytest.raises(tuff.WrongStateError, match="the event loop that used it first"):
        asyncio.run(poll_once())
    consumer._heartbeats.use.end()  # a close would need its event loop


def test_groups_are_listed_reset_and_deleted(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    publish(client, topic, "a")
    consumer = make()
    assert read(consumer, 1) == ["a"]
    consumer.commit()
    with pytest.raises(tuff.errors.GroupNotEmptyError):
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
    with serve(tmp_path, *settings) as first, tuff.Client(first.url) as client:
        client.topics.create(orders, partitions=4)
        with client.consumer(orders, group="billing") as consumer:
            settle(consumer, sizes=[4])
            client.publish(orders.partition(1), "a")
            assert read(consumer, 1) == ["a"]
            first.kill()

            with pytest.raises(tuff.errors.ServerUnreachableError):
                consumer.poll(0.3)
            with serve(tmp_path, *settings, port=first.port):
                client.publish(orders.partition(1), "b")
                assert read(consumer, 1) == ["b"]
                consumer.commit()
                assert len(consumer.assignment) == 4


def test_a_consumer_gives_up_when_the_server_is_away_for_a_session(tmp_path: Path) -> None:
    settings = ("groups.session_timeout=0.5", "groups.heartbeat_interval=0.1")
    orders = tuff.TopicId("groups", "orders")
    lost: list[tuff.TopicId] = []
    with serve(tmp_path, *settings) as first, tuff.Client(first.url) as client:
        client.topics.create(orders)
        with client.consumer(orders, group="billing", on_lost=lost.extend) as consumer:
            settle(consumer, sizes=[1])
            first.kill()
            until_s = time.monotonic() + WITHIN_S
            while not lost:
                assert time.monotonic() < until_s
                with pytest.raises(tuff.errors.ServerUnreachableError):
                    consumer.poll(1.0)
            assert lost == [orders.partition(0)]
            assert consumer.assignment == []

            with serve(tmp_path, *settings, port=first.port):
                client.publish(orders, "a")
                assert read(consumer, 1) == ["a"]
                consumer.commit()


def test_a_consumer_and_a_share_consumer_raise_an_outage_by_choice(tmp_path: Path) -> None:
    """A server that is away looked like an empty topic, whatever `retries` said."""
    orders = tuff.TopicId("groups", "orders")
    with serve(tmp_path) as server, tuff.Client(server.url, retries=2) as client:
        client.topics.create(orders)
        consumer = client.consumer(orders, group="billing", on_outage="raise")
        share = client.share_consumer(orders, group="billing", on_outage="raise")
        for each in (consumer, share):
            assert not each.poll(0)
        server.kill()

        new = client.consumer(orders, group="others", on_outage="raise")
        for each in (consumer, share, new):
            with pytest.raises(tuff.ConnectionLostError):
                each.poll(WITHIN_S)
            each.close()
        with pytest.raises(ValueError, match="on_outage is wait or raise"):
            client.consumer(orders, group="billing", on_outage="never")  # type: ignore[arg-type]  # wrong


def test_an_outage_is_raised_that_is_longer_than_the_session(tmp_path: Path) -> None:
    """The member gave its partitions up, and then a poll without a call counted as an answer."""
    settings = ("groups.session_timeout=0.5", "groups.heartbeat_interval=0.1")
    orders = tuff.TopicId("groups", "orders")
    with serve(tmp_path, *settings) as server, tuff.Client(server.url) as client:
        client.topics.create(orders)
        with client.consumer(orders, group="billing", on_outage="raise") as consumer:
            settle(consumer, sizes=[1])
            server.kill()

            with pytest.raises(tuff.ConnectionLostError):
                consumer.poll(WITHIN_S)


def test_a_loop_of_polls_does_not_take_an_outage_for_the_end_of_a_topic(tmp_path: Path) -> None:
    orders = tuff.TopicId("groups", "orders")
    with serve(tmp_path) as server, tuff.Client(server.url) as client:
        client.topics.create(orders)
        client.publish(orders, "a")
        consumer = client.consumer(orders, group="billing")
        share = client.share_consumer(orders, group="billing")
        assert read(consumer, 1) == ["a"]
        assert share.poll()
        server.kill()

        new = client.consumer(orders, group="others")
        for each in (consumer, share, new):
            with pytest.raises(tuff.ConnectionLostError):
                read_to_the_end(each)
            each.close()


def test_an_iteration_waits_for_the_server_and_ends_by_stop(tmp_path: Path) -> None:
    orders, copies = "groups:orders", "groups:copies"
    with serve(tmp_path) as first, tuff.Client(first.url, retries=0) as client:
        for topic in (orders, copies):
            client.topics.create(topic)
        client.publish(orders, "a", "b")
        seen: list[bytes] = []
        with ExitStack() as stack:
            consumer = stack.enter_context(client.consumer(orders, group="billing"))

            def restart() -> None:
                stack.enter_context(serve(tmp_path, port=first.port))
                client.publish(orders, "c")

            for message in consumer:
                seen.append(message.payload)
                if message.payload == b"b":
                    first.kill()
                    threading.Timer(0.5, restart).start()
                elif message.payload == b"c":
                    consumer.stop()
            assert seen == [b"a", b"b", b"c"]
            copying = client.consumer(orders, group="copying", mode="exactly_once")
            stack.enter_context(copying)
            for batch, tx in copying.transactions():
                tx.publish(copies, *(each.payload for each in batch))
                copying.stop()
            assert len(client.poll(copies)) == 3


def test_a_stopped_iteration_counts_what_it_has_handed_out(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    client.publish(topic.partition(0), "a", "b", "c")
    makers = (
        lambda: client.consumer(topic, group=topic.name),
        lambda: client.share_consumer(topic.partition(0), group=topic.name),
    )
    for make_one in makers:
        for expected in (b"a", b"b"):
            with make_one() as consumer:
                found = []
                for message in consumer:
                    found.append(message.payload)
                    consumer.stop()
                assert found == [expected]


@pytest.mark.parametrize("begins_again", [False, True])
def test_an_error_that_is_caught_in_the_block_of_a_consumer_is_none_for_it(
    client: tuff.Client, topic: tuff.TopicId, make: Make, *, begins_again: bool
) -> None:
    """As docs/howto/consumer-groups.md says."""
    copies = f"groups:{topic.name}-copies"
    client.topics.create(copies)
    client.publish(topic, "a", key="a")
    with make(mode="exactly_once") as consumer:
        with pytest.raises(ZeroDivisionError):
            copy_and_fail(consumer, copies)

        if begins_again:
            for _, tx in consumer.transactions():
                tx.publish(copies, "again")
                break
    expected = [b"again"] if begins_again else [b"half"]
    assert [each.payload for each in client.poll(copies)] == expected


def copy_and_fail(consumer: tuff.Consumer, copies: str) -> None:
    for _, tx in consumer.transactions():
        tx.publish(copies, "half")
        raise ZeroDivisionError


def test_a_consumer_that_is_garbage_sends_no_heartbeats(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    before = set(threading.enumerate())
    consumer = client.consumer(topic, group=topic.name)
    assert consumer.poll(0) is None
    (heartbeats,) = set(threading.enumerate()) - before

    held = [consumer]
    del consumer
    with pytest.warns(ResourceWarning, match="a consumer was not closed"):
        forget(held)

    heartbeats.join(WITHIN_S)
    assert not heartbeats.is_alive()


def forget(held: list[tuff.Consumer]) -> None:
    held.clear()
    gc.collect()


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
        own.consumer(topic, group=topic.name, mode="exactly_once") as consumer,
    ):
        await consumer.run(process)

    assert [message.payload for message in client.poll(copies)] == [b"a"]
    assert len(after(client, topic)) == 1


@pytest.mark.parametrize("retry", [None, tuff.RetryPolicy()])
def test_a_consumer_warns_of_a_missing_topic_and_creates_no_retry_topic_for_it(
    client: tuff.Client,
    topic: tuff.TopicId,
    caplog: pytest.LogCaptureFixture,
    retry: tuff.RetryPolicy | None,
) -> None:
    missing = tuff.TopicId(topic.namespace, f"{topic.name}-typo")
    with client.consumer([topic, missing], group=topic.name, retry=retry) as consumer:
        settle(consumer, sizes=[4 if retry is None else 8])
        names = [each for each in client.topics.list(topic.namespace) if topic.name in each]

        assert names == [topic.name, *([] if retry is None else [f"{topic.name}.retry"])]
        assert f"waits until {missing} is created, which does not exist" in caplog.text
        client.topics.create(missing)
        client.publish(missing, "late")
        assert read(consumer, 1) == ["late"]


def test_a_partition_is_read_only_after_its_callback_has_returned(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    """A callback that raised was not called again, and the partitions were read without it."""
    publish(client, topic, *"abc")
    calls: list[int] = []

    def on_assigned(partitions: list[tuff.TopicId]) -> None:
        calls.append(len(partitions))
        if len(calls) < 3:
            raise ValueError("not ready")

    consumer = make(on_assigned=on_assigned)
    for _ in range(2):
        with pytest.raises(ValueError, match="not ready"):
            consumer.poll(WITHIN_S)

    assert read(consumer, 3) == list("abc")
    assert calls == [4, 4, 4]


def test_what_was_not_announced_is_not_revoked(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    revoked: list[tuff.TopicId] = []
    is_ready = False

    def on_assigned(_partitions: list[tuff.TopicId]) -> None:
        if not is_ready:
            raise ValueError("not ready")

    first = make(on_assigned=on_assigned, on_revoked=revoked.extend)
    with pytest.raises(ValueError, match="not ready"):
        first.poll(WITHIN_S)
    make().poll(0.02)
    until_s = time.monotonic() + WITHIN_S
    while len(first.assignment) != 2:
        assert time.monotonic() < until_s
        with pytest.raises(ValueError, match="not ready"):
            first.poll(0.02)
    is_ready = True
    first.poll(0.02)

    assert revoked == []


def test_a_blocking_client_refuses_a_coroutine_function_as_callback(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    async def take(_partitions: list[tuff.TopicId]) -> None:
        pass

    with pytest.raises(TypeError, match="coroutine"):
        client.consumer(topic, group="billing", on_assigned=take)


def test_a_member_selects_by_tags_and_retries_what_it_selected(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    wanted = tuff.NewMessage("wanted", tags=["new"])
    client.publish(topic, "other", tuff.NewMessage("old", tags=["old"]), wanted)
    consumer = make(tags="new", retry=tuff.RetryPolicy(delays=(0.01,)))

    first = consumer.poll(WITHIN_S)
    assert first is not None
    consumer.nack(first[0], ValueError("no"))
    again = consumer.poll(WITHIN_S)

    assert again is not None
    assert [(each.attempt, each[0].payload) for each in (first, again)] == [
        (1, b"wanted"), (2, b"wanted"),
    ]  # fmt: skip


def iterated(client: tuff.Client, topic: tuff.TopicId, count: int) -> list[bytes]:
    """The payloads of so many messages of one iteration, whose block ends without an error."""
    found = []
    with client.consumer(topic, group=topic.name, batch=3) as consumer:
        for message in consumer:
            found.append(message.payload)
            if len(found) == count:
                break
    return found


def test_leaving_a_block_without_an_error_commits_what_was_handed_out(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    """The last batch came again after a block that ended well."""
    for payload in "abcde":
        client.publish(topic.partition(0), payload)

    assert iterated(client, topic, 2) == [b"a", b"b"]
    assert iterated(client, topic, 1) == [b"c"]
    with client.consumer(topic, group=topic.name) as consumer:
        assert [message.payload for message in next(consumer.batches())] == [b"d", b"e"]
    assert client.groups.get(topic.namespace, topic.name).partitions[0].unread == 0


def fail_at_the_first(client: tuff.Client, topic: tuff.TopicId, error: type[BaseException]) -> None:
    with client.consumer(topic, group=topic.name, batch=2) as consumer:
        for message in consumer:
            assert message.payload == b"a"
            raise error


def test_an_error_that_leaves_a_block_commits_nothing_of_its_batch(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    for payload in "abc":
        client.publish(topic.partition(0), payload)
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error):
            fail_at_the_first(client, topic, error)

    assert iterated(client, topic, 3) == [b"a", b"b", b"c"]


def test_a_second_iteration_continues_behind_what_the_first_has_handed_out(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    for payload in "abc":
        client.publish(topic.partition(0), payload)
    consumer = make()

    for expected in (b"a", b"b", b"c"):
        assert next(iter(consumer)).payload == expected
    consumer.commit()
    assert len(after(client, topic)) == 1


def test_each_batch_of_transactions_commits_when_the_next_one_is_asked_for(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    copies = tuff.TopicId("groups", f"{topic.name}-copies")
    client.topics.create(copies)
    for payload in "abc":
        client.publish(topic.partition(0), payload)

    def copy(count: int, error: type[Exception] | None = None) -> None:
        with client.consumer(topic, group="copying", mode="exactly_once", batch=1) as consumer:
            for number, (batch, tx) in enumerate(consumer.transactions(), start=1):
                tx.publish(copies, batch[0].payload)
                if number == count:
                    if error is not None:
                        raise error
                    break

    with pytest.raises(ValueError):
        copy(2, ValueError)
    assert [message.payload for message in client.poll(copies)] == [b"a"]
    copy(2)
    assert [message.payload for message in client.poll(copies)] == [b"a", b"b", b"c"]


def test_a_transaction_of_an_iteration_that_a_close_ends_is_rolled_back(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    client.publish(topic, "a")
    consumer = make(mode="exactly_once")
    next(consumer.transactions())
    with pytest.raises(tuff.errors.WrongStateError, match="transactions"):
        next(iter(consumer))

    assert len(next(consumer.transactions())[0]) == 1  # the batch is read again
    consumer.close()

    assert client.transactions.overview().in_progress == ()
    assert after(client, topic) == {}


def test_a_callback_that_raises_ends_the_iteration(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    client.publish(topic, "a")

    def refuse(_: list[tuff.PartitionId]) -> None:
        raise LookupError("no state for these partitions")

    consumer = client.consumer(topic, group=topic.name, on_assigned=refuse)
    messages = iter(consumer)
    with pytest.raises(LookupError):
        next(messages)
    assert list(messages) == []
    consumer.close()


def test_a_group_reads_topics_of_several_namespaces_and_its_retries_are_its_own(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    other = tuff.TopicId("groups-2", topic.name)
    client.topics.create(other)
    policy = tuff.RetryPolicy(delays=(0.05,))
    namesakes = f"groups:{topic.name}", f"groups-2:{topic.name}"
    seen: dict[str, list[bytes]] = {each: [] for each in namesakes}

    def process(name: str, consumer: tuff.Consumer) -> Callable[[tuff.Message], None]:
        def one(message: tuff.Message) -> None:
            seen[name].append(message.payload)
            if seen[name].count(message.payload) == 1:
                raise RuntimeError("once")
            if len(seen[name]) == 2 * len({b"a", b"b"} if "groups:" in name else {b"b"}):
                consumer.stop()

        return one

    publish(client, topic, "a")
    publish(client, other, "b")
    for name, topics in zip(namesakes, ((topic, other), (other,)), strict=True):
        with client.consumer(topics, group=name, retry=policy) as consumer:
            consumer.run(each_of(process(name, consumer)))

    assert [sorted(seen[each]) for each in namesakes] == [[b"a", b"a", b"b", b"b"], [b"b", b"b"]]


def test_a_large_binary_message_is_tried_again(client: tuff.Client, topic: tuff.TopicId) -> None:
    payload = b"\xff" * (13 << 20)
    seen: list[bytes] = []
    client.publish(topic, payload)
    with client.consumer(topic, group="large", retry=tuff.RetryPolicy(delays=(0.05,))) as consumer:

        def one(message: tuff.Message) -> None:
            seen.append(message.payload)
            if len(seen) < 2:
                raise RuntimeError("not yet")
            consumer.stop()

        consumer.run(each_of(one))

    assert [each == payload for each in seen] == [True] * 2


def each_of(one: Callable[[tuff.Message], None]) -> Callable[[tuff.Batch], None]:
    def process(batch: tuff.Batch) -> None:
        for message in batch:
            one(message)

    return process


def test_a_group_of_topics_of_several_namespaces_names_its_own(client: tuff.Client) -> None:
    with pytest.raises(ValueError, match="as in group='a:billing'"):
        client.consumer(["b:y", "a:x"], group="billing")
