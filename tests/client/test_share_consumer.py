"""Workers of share groups in Python, against a real server (protocol §3.12)."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import count, islice
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
            made = client.share_consumer(topic, group=GROUP, **options)  # type: ignore[arg-type]  # any
            return stack.enter_context(made)

        yield make_one


def polled(consumer: tuff.ShareConsumer, wait: float = 60.0) -> list[str]:
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
    assert one.partition(first[0]) == topic.partition(0)
    assert polled(two) == ["c"]

    assert one.poll(0) == ()
    assert two.poll(0) == ()
    shown = client.share_groups.get(topic, GROUP)
    assert (shown.leased, shown.available, shown.oldest) == (0, 0, None)
    assert client.share_groups.list(topic) == [GROUP]


@pytest.mark.filterwarnings("ignore::tuff.errors.OutsideTransactionWarning")
@pytest.mark.parametrize("mode", ["at_least_once", "exactly_once"])
def test_a_worker_reads_all_partitions_also_those_that_are_added_while_it_runs(
    client: tuff.Client, topic: tuff.TopicId, make: Make, mode: str
) -> None:
    client.topics.update(topic, partitions=3)
    worker = make(mode=mode, order="key", tags="a|b", retry=tuff.RetryPolicy(delays=(0.01,)))
    seen: list[tuple[bytes, int]] = []

    def publish(prefix: str) -> None:
        for number in range(12):
            client.publish(topic, f"{prefix}{number}", key=str(number), tags=["b"])
        client.publish(topic, "not selected", key="0")

    def process(message: tuff.Message, _: object = None) -> None:
        seen.append((message.payload, worker.attempt(message)))
        if len(seen) == 13:
            client.topics.update(topic, partitions=6)
            publish("new")
        if message.payload in (b"old3", b"new3") and worker.attempt(message) == 1:
            raise ValueError("try again")
        if len(seen) == 26:
            worker.stop()

    publish("old")
    worker.run(process)

    expected = [
        (b"%s%d" % (prefix, number), 1) for prefix in (b"old", b"new") for number in range(12)
    ]
    assert sorted(seen) == sorted([*expected, (b"old3", 2), (b"new3", 2)])
    shown = client.share_groups.get(topic, GROUP)
    assert (shown.oldest, shown.leased, shown.tags) == (None, 0, "a|b")
    with pytest.raises(tuff.errors.GroupExistsError, match=r"tags a\|b"):
        make(tags="c").poll(0)


def test_a_message_of_a_later_partition_becomes_a_dead_letter(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    client.topics.update(topic, partitions=2)
    client.publish(topic.partition(1), "bad")
    worker = make(retry=tuff.RetryPolicy(delays=()))

    def process(_: tuff.Message) -> None:
        worker.stop()
        raise ValueError("it never works")

    worker.run(process)

    (letter,) = map(tuff.read_dead_letter, client.poll(f"{topic}.dlq"))
    assert (letter.topic, letter.message.payload) == (topic.partition(1), b"bad")


def test_a_lease_is_renewed_as_long_as_the_worker_is_open(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    client.publish(topic, "a")
    slow, other = make(lease=1.5), make(lease=1.5)
    batch = slow.poll()

    assert other.poll(3) == ()
    assert slow.ack(*batch)


def test_what_a_closed_worker_had_goes_to_another_at_once(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    client.publish(topic, "a")
    with client.share_consumer(topic, group=GROUP) as first:
        assert polled(first) == ["a"]

    assert polled(make()) == ["a"]


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
    assert client.share_groups.get(topic, GROUP).oldest is None


def test_a_worker_that_closes_spends_no_attempt_of_what_it_has_not_begun(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    """After four deploys, messages that failed once were dead letters."""
    client.publish(topic, *"abc")
    for _ in range(2):
        with client.share_consumer(topic, group=GROUP) as polling:
            assert polled(polling) == ["a", "b", "c"]
        with client.share_consumer(topic, group=GROUP, mode="exactly_once") as polling:
            assert polled(polling) == ["a", "b", "c"]
    with client.share_consumer(topic, group=GROUP) as running:
        running.run(lambda _message: running.stop())

    last = make()
    assert [(each.payload, last.attempt(each)) for each in last.poll()] == [(b"b", 1), (b"c", 1)]


def test_an_attempt_that_failed_for_a_reason_outside_of_the_message_does_not_count(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    client.publish(topic, "a")
    consumer = make(mode="exactly_once", retry=tuff.RetryPolicy(delays=[]))
    attempts: list[int] = []

    def process(message: tuff.Message, tx: tuff.TransactionContext) -> None:
        attempts.append(consumer.attempt(message))
        if len(attempts) < 3:
            client.transactions.invalidate(tx.transaction.transaction_id)
        else:
            consumer.stop()

    consumer.run(process)

    assert attempts == [1, 1, 1]
    assert client.share_groups.get(topic, GROUP).oldest is None


def test_a_program_that_polls_and_fails_gets_each_message_of_the_batch_alone(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    client.publish(topic, *"ab")
    seen = []
    for _ in range(3):
        with suppress(ValueError), client.share_consumer(topic, group=GROUP) as consumer:
            batch = consumer.poll()
            seen.append([(each.payload, consumer.attempt(each)) for each in batch])
            raise ValueError("one of them can't be processed")

    assert seen == [[(b"a", 1), (b"b", 1)], [(b"a", 1)], [(b"a", 2)]]


@pytest.mark.parametrize("mode", ["at_least_once", "exactly_once"])
def test_a_message_that_expires_before_its_retry_becomes_a_dead_letter(
    client: tuff.Client, topic: tuff.TopicId, make: Make, mode: str
) -> None:
    """It was dropped without a word."""
    client.publish(topic, "short", ttl=30)
    consumer = make(mode=mode, retry=tuff.RetryPolicy(delays=[0.01, 60]))
    attempts: list[int] = []

    def process(message: tuff.Message, tx: object = None) -> None:
        attempts.append(consumer.attempt(message))
        if len(attempts) == 2:
            consumer.stop()
        raise ValueError("no")

    consumer.run(process)

    dead = tuff.TopicId(topic.namespace, f"{topic.name}.dlq")
    (letter,) = map(tuff.read_dead_letter, client.poll(dead))
    assert (letter.message.payload, letter.attempts) == (b"short", 2)
    assert letter.reason == "ValueError: no (it expires before its retry in 60 s)"
    assert client.share_groups.get(topic, GROUP).oldest is None


def test_without_a_policy_a_message_that_expires_before_its_delay_is_logged(
    client: tuff.Client, topic: tuff.TopicId, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    client.publish(topic, "short", ttl=30)
    consumer = make()
    consumer.nack(*consumer.poll(), delay=60)

    (line,) = [each.getMessage() for each in caplog.records]
    assert line.endswith("again: it expires before its retry in 60 s")


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

    for batch in consumer.batches():
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


def test_a_batch_without_a_transaction_of_the_worker_is_refused(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    """Its results were published again and again, without a word."""
    client.publish(topic, *"abc")
    consumer = make(mode="exactly_once", batch=2)

    batches = consumer.batches()
    first, second = next(batches)
    with client.transaction():
        pass
    with pytest.raises(tuff.WrongStateError, match="in no transaction of this consumer"):
        next(batches)
    consumer.nack(first, delay=60)
    with consumer.transaction(second):
        pass

    assert polled(consumer) == ["c"]


def test_a_worker_that_closes_behind_its_transactions_releases_none_of_their_messages(
    client: tuff.Client, topic: tuff.TopicId, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """It released them, and warned that other workers have them."""
    client.publish(topic, *"ab")
    with client.share_consumer(topic, group=GROUP, mode="exactly_once", batch=2) as consumer:
        (first, _) = consumer.poll()
        with consumer.transaction(first):
            pass

    assert [each.getMessage() for each in caplog.records] == []
    assert polled(make()) == ["b"]


def test_a_transaction_whose_lease_is_lost_is_rolled_back(
    client: tuff.Client, topic: tuff.TopicId, make: Make
) -> None:
    client.publish(topic, "a")
    late = client.share_consumer(topic, group=GROUP, mode="exactly_once", lease=0.1)
    batch = late.poll()
    context = late.transaction(*batch)
    late._flows.close()  # it renews no more
    assert polled(make(mode="exactly_once", lease=30)) == ["a"]

    with pytest.raises(tuff.errors.LeaseLostError), context as tx:
        tx.publish(topic, "result")

    assert [each.payload for each in client.poll(topic)] == [b"a"]
    late.close()


def test_order_by_key(client: tuff.Client, topic: tuff.TopicId, make: Make) -> None:
    for payload in ("a1", "a2", "b1"):
        client.publish(topic, tuff.NewMessage(payload, key=payload[0]))
    one, two = make(order="key"), make(order="key")

    assert polled(one) == ["a1", "b1"]
    assert polled(two, 0) == []
    assert polled(one) == ["a2"]

    with pytest.raises(tuff.errors.GroupExistsError, match="order key"):
        make(order="none").poll(0)


def test_run_can_be_stopped_by_another_thread(make: Make) -> None:
    consumer = make()
    thread = threading.Thread(target=consumer.run, args=(print,))
    thread.start()
    consumer.stop()
    thread.join(60)
    assert not thread.is_alive()


def test_the_worker_goes_on_when_the_server_was_killed(tmp_path: Path) -> None:
    server = serve(tmp_path)
    with tuff.Client(server.url) as client:
        topic = tuff.TopicId("shared", "killed")
        client.topics.create(topic)
        client.publish(topic, "a", "b")
        with client.share_consumer(topic, group=GROUP, batch=1) as consumer:
            assert polled(consumer) == ["a"]
            server.kill()
            server = serve(tmp_path, port=server.port)

            assert polled(consumer) == ["b"]
            until(lambda: not consumer.poll(0))
            assert client.share_groups.get(topic, GROUP).oldest is None
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
    shown = client.share_groups.get(topic, GROUP)
    assert (shown.start, shown.order, shown.lease_s) == ("earliest", "key", 5.0)
    with pytest.raises(tuff.errors.GroupExistsError):
        client.share_groups.create(topic, GROUP)
    client.share_groups.delete(topic, GROUP)
    with pytest.raises(tuff.errors.GroupNotFoundError):
        client.share_groups.get(topic, GROUP)


async def test_a_worker_of_the_asyncio_client(server: ServerProcess) -> None:
    async with tuff.AsyncClient(server.url) as client:
        topic = tuff.TopicId("shared", f"topic-{next(_numbers)}")
        await client.topics.create(topic)
        await client.publish(topic, "a", "b")
        seen: list[bytes] = []
        async with client.share_consumer(topic, group=GROUP, mode="exactly_once") as consumer:

            async def process(message: tuff.Message, tx: tuff.AsyncTransactionContext) -> None:
                await tx.publish(topic, b"")
                seen.append(message.payload)
                if len(seen) == 2:
                    consumer.stop()

            await consumer.run(process)

        assert seen == [b"a", b"b"]


def test_leaving_a_block_without_an_error_accepts_what_was_handed_out(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    client.publish(topic, "a", "b", "c", "d", "e")

    def taken(count: int) -> list[bytes]:
        with client.share_consumer(topic, group=GROUP, batch=2) as consumer:
            return [message.payload for message in islice(consumer, count)]

    assert taken(3) == [b"a", b"b", b"c"]
    with suppress(ValueError), client.share_consumer(topic, group=GROUP) as consumer:
        for message in consumer:
            assert message.payload == b"d"
            raise ValueError
    with client.share_consumer(topic, group=GROUP) as consumer:
        batch = next(consumer.batches())
        assert [consumer.attempt(each) for each in batch] == [2, 1]
    shown = client.share_groups.get(topic, GROUP)
    assert (shown.available, shown.leased, shown.waiting) == (0, 0, 0)
