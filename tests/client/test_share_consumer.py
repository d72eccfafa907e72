"""Workers of share groups in Python, against a real server (protocol §3.12)."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path

import pytest

import tuff
from tests.http.client import until
from tests.http.process import ServerProcess, serve

_numbers = count(1)
Make = Callable[..., tuff.ShareConsumer]
GROUP = "billing"


@pytest.fixture
def make(client: tuff.Client, topic: tuff.TopicId) -> Iterator[Make]:
    """Workers of a group of the topic; they are closed at the end."""
    with ExitStack() as stack:

        def make_one(**options: object) -> tuff.ShareConsumer:
            made = client.share_consumer(topic, GROUP, **options)  # type: ignore[arg-type]  # any
            return stack.enter_context(made)

        yield make_one


def polled(consumer: tuff.ShareConsumer, wait: float = 10.0) -> list[str]:
    return [message.payload.decode() for message in consumer.poll(wait)]


def test_workers_share_the_messages_and_accept_them(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    client.publish(topic, "a", tuff.NewMessage("b", key="k", tags=["t"], headers={"h": "1"}), "c")
    one, two = make(batch=2), make(batch=2)

    first = one.poll()
    assert [(each.payload, each.key, each.tags) for each in first] == [
        (b"a", None, ()),
        (b"b", b"k", ("t",)),
    ]
    assert first[1].headers == (("h", b"1"),)
    assert one.attempt(first[0]) == 1
    assert polled(two) == ["c"]

    assert one.poll(0) == ()
    assert two.poll(0) == ()
    shown = client.share_groups.show(topic, GROUP)
    assert (shown.leased, shown.available, shown.oldest) == (0, 0, None)
    assert client.share_groups.list(topic) == [GROUP]


def test_a_lease_is_renewed_as_long_as_the_worker_is_open(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    client.publish(topic, "a")
    slow, other = make(lease=0.3), make(lease=0.3)
    batch = slow.poll()

    assert other.poll(1) == ()
    assert slow.ack(*batch)


def test_what_a_closed_worker_had_goes_to_another_at_once(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    client.publish(topic, "a")
    with client.share_consumer(topic, GROUP) as first:
        assert polled(first) == ["a"]

    assert polled(make(), 5) == ["a"]


def test_a_message_that_was_given_back_comes_again(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    client.publish(topic, "a", "b")
    consumer = make()
    batch = consumer.poll()
    consumer.nack(batch[0], delay=0.1)
    with pytest.raises(tuff.WrongStateError, match="already"):
        consumer.ack(batch[0])

    again = consumer.poll()

    assert [each.payload for each in again] == [b"a"]
    assert consumer.attempt(again[0]) == 2


def test_a_message_becomes_a_dead_letter_after_its_last_attempt(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    client.publish(topic, tuff.NewMessage("bad", key="k"), "good")
    consumer = make(retry=tuff.RetryPolicy(delays=[0.01]))
    seen: list[bytes] = []

    def process(message: tuff.Message) -> None:
        seen.append(message.payload)
        if message.payload == b"bad":
            if seen.count(b"bad") == 2:
                consumer.stop()
            raise ValueError("no")

    consumer.run(process)

    assert sorted(seen) == [b"bad", b"bad", b"good"]
    dead = tuff.TopicId(topic.namespace, f"{topic.name}.dlq")
    (message,) = client.poll(dead)
    letter = tuff.read_dead_letter(message)
    assert (letter.message.payload, letter.message.key) == (b"bad", b"k")
    assert (letter.group, letter.attempts) == ("share:billing", 2)
    assert letter.reason == "ValueError: no"
    assert client.share_groups.show(topic, GROUP).oldest is None


def test_without_a_policy_run_raises_and_releases_what_was_not_processed(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    client.publish(topic, "a", "b", "c")

    def process(message: tuff.Message) -> None:
        if message.payload == b"b":
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        make().run(process)

    assert polled(make(), 0) == ["b", "c"]


def test_exactly_once_a_message_counts_with_its_transaction(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    copies = tuff.TopicId(topic.namespace, f"{topic.name}-copies")
    client.topics.create(copies)
    client.publish(topic, *"abc")
    consumer = make(mode="exactly_once", batch=1)
    failed: list[bytes] = []

    for batch in consumer:
        (message,) = batch
        with suppress(tuff.WrongStateError), consumer.transaction(message) as tx:
            tx.publish(copies, message.payload)
            if message.payload == b"b" and not failed:
                failed.append(message.payload)
                consumer.ack()  # refused, and so the transaction is rolled back
        if message.payload == b"c":
            break

    assert consumer.poll(0) == ()
    assert sorted(each.payload for each in client.poll(copies)) == [b"a", b"b", b"c"]


def test_a_worker_that_closes_behind_its_transactions_releases_none_of_their_messages(
    client: tuff.Client, topic: tuff.TopicId, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """It released them, and warned that other workers have them."""
    client.publish(topic, *"ab")
    with client.share_consumer(topic, GROUP, mode="exactly_once", batch=2) as consumer:
        (first, _) = consumer.poll()
        with consumer.transaction(first):
            pass

    assert [each.getMessage() for each in caplog.records] == []
    assert polled(make()) == ["b"]


def test_a_transaction_whose_lease_is_lost_is_rolled_back(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    client.publish(topic, "a")
    late = client.share_consumer(topic, GROUP, mode="exactly_once", lease=0.1)
    batch = late.poll()
    context = late.transaction(*batch)
    late._flows.close()  # it renews no more
    assert polled(make(mode="exactly_once", lease=30)) == ["a"]

    with pytest.raises(tuff.LeaseLostError), context as tx:
        tx.publish(topic, "result")

    assert [each.payload for each in client.poll(topic)] == [b"a"]
    late.close()


def test_order_by_key(client: tuff.Client, topic: tuff.TopicId, make: Make) -> None:
    for payload in ("a1", "a2", "b1"):
        client.publish(topic, tuff.NewMessage(payload, key=payload[0]))
    one, two = make(order="key"), make(order="key")

    assert polled(one) == ["a1", "b1"]
    assert polled(two, 0) == []
    assert polled(one, 5) == ["a2"]

    with pytest.raises(tuff.GroupExistsError, match="order key"):
        make(order="none").poll(0)


def test_run_can_be_stopped_by_another_thread(make: Make) -> None:
    consumer = make()
    thread = threading.Thread(target=consumer.run, args=(print,))
    thread.start()
    consumer.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_the_worker_goes_on_when_the_server_was_killed(tmp_path: Path) -> None:
    server = serve(tmp_path)
    with tuff.Client(server.url) as client:
        topic = tuff.TopicId("shared", "killed")
        client.topics.create(topic)
        client.publish(topic, "a", "b")
        with client.share_consumer(topic, GROUP, batch=1) as consumer:
            assert polled(consumer) == ["a"]
            server.kill()
            server = serve(tmp_path, port=server.port)

            assert polled(consumer, 20) == ["b"]
            until(lambda: not consumer.poll(0))
            assert client.share_groups.show(topic, GROUP).oldest is None
    server.end()


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "at_most_once"},
        {"order": "time"},
        {"batch": 0},
        {"batch": 1_001},
        {"retry": tuff.RetryPolicy(in_order=True)},
    ],
)
def test_a_worker_with_wrong_options_is_refused(make: Make, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"not|in_order"):
        make(**options)


def test_groups_can_be_made_and_deleted(client: tuff.Client, topic: tuff.TopicId) -> None:
    client.share_groups.create(topic, GROUP, start="earliest", order="key", lease=5)
    shown = client.share_groups.show(topic, GROUP)
    assert (shown.start, shown.order, shown.lease) == ("earliest", "key", 5.0)
    with pytest.raises(tuff.GroupExistsError):
        client.share_groups.create(topic, GROUP)
    client.share_groups.delete(topic, GROUP)
    with pytest.raises(tuff.GroupNotFoundError):
        client.share_groups.show(topic, GROUP)


async def test_a_worker_of_the_asyncio_client(server: ServerProcess) -> None:
    async with tuff.AsyncClient(server.url) as client:
        topic = tuff.TopicId("shared", f"topic-{next(_numbers)}")
        await client.topics.create(topic)
        await client.publish(topic, "a", "b")
        seen: list[bytes] = []
        async with client.share_consumer(topic, GROUP, mode="exactly_once") as consumer:

            async def process(message: tuff.Message, tx: tuff.AsyncTransactionContext) -> None:
                await tx.publish(topic, b"")
                seen.append(message.payload)
                if len(seen) == 2:
                    consumer.stop()

            await consumer.run(process)

        assert seen == [b"a", b"b"]
