"""The subscriber: positions in a participant, attempts, dead letters (design §7)."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Timer
from time import perf_counter
from typing import Any, TypeVar

import pytest

import tuff
from tests.client.proxy import losing
from tests.client.recording import PlayedService, Record, replace_pauses
from tests.http.process import ServerProcess
from tuff.flows_and_repeated_calls import Call
from tuff.requests_and_responses import Response

T = TypeVar("T")


@pytest.fixture
def positions(table: tuff.TransactionalTable) -> tuff.TablePositions:
    return tuff.TablePositions(table, "counter")


@pytest.fixture
def pauses(client: tuff.Client) -> list[float]:
    """The pauses of the client, which does not really wait."""
    waited: list[float] = []
    replace_pauses(client, lambda seconds, _stop: waited.append(seconds))
    return waited


class Counter:
    """Counts, in a table, how often each message came through; fails where a test says so."""

    def __init__(self, table: tuff.TransactionalTable) -> None:
        self._table = table
        self.batches: list[list[bytes]] = []
        self.poison: dict[bytes, Exception] = {}

    def process(self, messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        self.batches.append([message.payload for message in messages])
        for message in messages:
            before = int(self._table.get(message.payload) or b"0")
            self._table.put(message.payload, b"%d" % (before + 1))
            if message.payload in self.poison:
                raise self.poison[message.payload]


@dataclass(frozen=True)
class Bench:
    """A counter of a topic's messages in a table, with its position there."""

    client: tuff.Client
    topic: tuff.TopicId
    table: tuff.TransactionalTable
    positions: tuff.TablePositions
    counter: Counter

    def publish(self, *messages: str | bytes) -> tuff.Published:
        return self.client.publish(self.topic, *messages)

    def subscriber(self, **more: Any) -> tuff.Subscriber:
        """One that waits for nothing, unless it says so."""
        settings = {"positions": self.positions, "wait": 0, **more}
        return self.client.subscriber(self.topic, self.counter.process, **settings)

    def counted(self) -> dict[bytes, bytes]:
        with self.client.transaction(self.table):
            return dict(self.table.scan())

    def dead_letters(self) -> list[dict[str, object]]:
        dlq = tuff.TopicId(self.topic.namespace, f"{self.topic.name}.dlq")
        read = self.client.poll(dlq, isolation="committed")
        return [json.loads(message.payload) for message in read]


@pytest.fixture
def bench(
    client: tuff.Client,
    topic: tuff.TopicId,
    table: tuff.TransactionalTable,
    positions: tuff.TablePositions,
) -> Bench:
    return Bench(client, topic, table, positions, Counter(table))


def test_batches_are_processed_in_order_and_each_message_once(bench: Bench) -> None:
    bench.publish("a", "b", "c")
    subscriber = bench.subscriber(batch=2)

    assert [subscriber.step(), subscriber.step(), subscriber.step()] == [2, 1, 0]

    assert bench.counter.batches == [[b"a", b"b"], [b"c"]]
    assert bench.counted() == {b"a": b"1", b"b": b"1", b"c": b"1"}


def test_a_batch_may_have_a_checkpoint(bench: Bench) -> None:
    bench.publish("a")

    def process(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        bench.table.put(b"before", b"1")
        tx.checkpoint()
        bench.table.put(b"after", b"1")

    count = bench.client.subscriber(bench.topic, process, positions=bench.positions, wait=0).step()

    assert count == 1
    assert bench.counted() == {b"before": b"1", b"after": b"1"}


def test_the_next_subscriber_of_that_name_continues_at_the_stored_position(bench: Bench) -> None:
    bench.publish("a", "b")
    bench.subscriber(batch=1).step()

    bench.subscriber().step()

    assert bench.counter.batches == [[b"a"], [b"b"]]


def test_it_begins_at_start_while_no_position_is_stored(bench: Bench) -> None:
    published = bench.publish("a", "b")
    subscriber = bench.subscriber(start=published.ids[-1])

    subscriber.step()

    assert bench.counter.batches == [[b"b"]]


def test_a_subscriber_that_begins_at_the_end_does_not_skip_a_batch_that_failed(
    bench: Bench,
) -> None:
    """As nothing is stored yet, it looks anew where to begin; and the end has moved meanwhile."""
    bench.publish("before")
    subscriber = bench.subscriber(start="latest")
    assert subscriber.step() == 0
    bench.publish("a")
    bench.counter.poison[b"a"] = tuff.TransactionConflictError("another was faster")
    replace_pauses(bench.client, lambda *_: bench.counter.poison.clear())

    assert [subscriber.step(), subscriber.step()] == [1, 0]
    assert bench.counter.batches == [[b"a"], [b"a"]]


@pytest.mark.parametrize("before", [(), ("before",)])
def test_a_restart_before_the_first_batch_skips_nothing_behind_the_end_it_began_at(
    bench: Bench, before: tuple[str, ...]
) -> None:
    """It looked the end up again, and what came while no program ran was behind it."""
    if before:
        bench.publish(*before)
    assert bench.subscriber(start="latest").step() == 0
    bench.publish("a")

    again = bench.subscriber(start="latest")

    assert [again.step(), again.step()] == [1, 0]
    assert bench.counter.batches == [[b"a"]]


class Overtaken(tuff.TablePositions):
    """Lets `act` run when it saves for the first time."""

    act: Callable[[], None] | None = None

    def save(self, partition: Any, id: tuff.MessageId, tx: object) -> None:
        act, self.act = self.act, None
        if act is not None:
            act()
        super().save(partition, id, tx)


@pytest.mark.filterwarnings("ignore::tuff.errors.OutsideTransactionWarning")
def test_of_two_subscribers_that_begin_at_the_end_the_first_one_decides(bench: Bench) -> None:
    bench.publish("before")
    positions = Overtaken(bench.table, "counter")

    def begin_first() -> None:
        bench.subscriber(start="latest").step()
        bench.publish("a")

    positions.act = begin_first
    second = bench.subscriber(start="latest", positions=positions)

    assert [second.step(), second.step()] == [1, 0]
    assert bench.counter.batches == [[b"a"]]


def publish_to(bench: Bench, number: int, *payloads: str) -> None:
    bench.client.publish(bench.topic.partition(number), *payloads)


def all_steps(subscriber: tuff.Subscriber) -> None:
    while subscriber.step():
        pass


def test_a_subscriber_reads_all_partitions_each_in_its_order(bench: Bench) -> None:
    bench.client.topics.update(bench.topic, partitions=3)
    publish_to(bench, 0, "a0", "a1", "a2")
    publish_to(bench, 2, "c0", "c1", "c2")  # partition 1 stays empty

    all_steps(bench.subscriber(batch=2))

    assert sorted(bench.counter.batches) == [[b"a0", b"a1"], [b"a2"], [b"c0", b"c1"], [b"c2"]]
    order = [each for batch in bench.counter.batches for each in batch]
    assert order[:2] in ([b"a0", b"a1"], [b"c0", b"c1"])
    for letter in b"ac":
        assert [each for each in order if each[0] == letter] == sorted(
            each for each in order if each[0] == letter
        )


def test_the_partitions_take_turns(bench: Bench) -> None:
    bench.client.topics.update(bench.topic, partitions=2)
    publish_to(bench, 0, "a0", "a1")
    publish_to(bench, 1, "b0", "b1")

    all_steps(bench.subscriber(batch=1))

    numbers = [batch[0][:1] for batch in bench.counter.batches]
    assert numbers in ([b"a", b"b", b"a", b"b"], [b"b", b"a", b"b", b"a"])


def test_the_next_subscriber_continues_in_each_partition(bench: Bench) -> None:
    bench.client.topics.update(bench.topic, partitions=2)
    publish_to(bench, 0, "a0", "a1")
    publish_to(bench, 1, "b0", "b1")

    for _ in range(4):
        assert bench.subscriber(batch=1).step() == 1

    assert bench.subscriber().step() == 0
    assert bench.counted() == {b"a0": b"1", b"a1": b"1", b"b0": b"1", b"b1": b"1"}


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_partitions_that_are_added_while_no_subscriber_runs_are_read_from_their_beginning(
    bench: Bench, start: str
) -> None:
    subscriber = bench.subscriber(start=start)
    assert subscriber.step() == 0
    bench.client.topics.update(bench.topic, partitions=3)
    publish_to(bench, 2, "c0")
    publish_to(bench, 0, "a0")

    all_steps(bench.subscriber(start=start))

    assert bench.counted() == {b"a0": b"1", b"c0": b"1"}


@pytest.mark.parametrize("before", [1, 2])
def test_partitions_that_are_added_while_a_subscriber_waits_are_read(
    bench: Bench, before: int
) -> None:
    bench.client.topics.update(bench.topic, partitions=before)
    subscriber = bench.subscriber(wait=60, start="latest")
    subscriber._flows._elapsed_s = count(step=10).__next__  # so the list of partitions is old

    def add() -> None:
        bench.client.topics.update(bench.topic, partitions=3)
        publish_to(bench, 2, "c0")
        if before == 1:
            publish_to(bench, 0, "a0")  # ends the wait for the only partition

    adding = Timer(0.3, add)
    adding.start()
    begin_s = perf_counter()

    while b"c0" not in bench.counted():
        subscriber.step()  # 0 if the partition is added later than it waits

    adding.join()
    assert perf_counter() - begin_s < 30  # of sixty that it may wait


def test_a_retired_partition_is_read_to_its_end_and_may_then_be_deleted(bench: Bench) -> None:
    bench.client.topics.update(bench.topic, partitions=2)
    publish_to(bench, 1, "b0")
    bench.client.topics.update(bench.topic, partitions=1)
    subscriber = bench.subscriber()

    all_steps(subscriber)

    assert bench.counted() == {b"b0": b"1"}
    bench.client.topics.delete(bench.topic)
    with pytest.raises(tuff.TopicNotFoundError):
        subscriber.step()


def test_a_partition_whose_message_fails_does_not_hold_back_the_others(
    bench: Bench, pauses: list[float]
) -> None:
    bench.client.topics.update(bench.topic, partitions=2)
    publish_to(bench, 0, "a0", "bad", "a2")
    publish_to(bench, 1, "b0", "b1", "b2", "b3")
    bench.counter.poison[b"bad"] = ValueError("no")
    subscriber = bench.subscriber(batch=2, attempts=3)

    all_steps(subscriber)

    assert bench.counted() == dict.fromkeys((b"a0", b"a2", b"b0", b"b1", b"b2", b"b3"), b"1")
    order = [payload for batch in bench.counter.batches for payload in batch]
    assert order.index(b"b1") < order.index(b"a2")
    (letter,) = bench.dead_letters()
    assert letter["topic"] == f"{bench.topic}:0"
    assert letter["attempts"] == 3


def test_a_subscriber_of_one_partition_reads_no_other(bench: Bench) -> None:
    bench.client.topics.update(bench.topic, partitions=2)
    publish_to(bench, 0, "a0")
    publish_to(bench, 1, "b0")
    subscriber = bench.client.subscriber(
        bench.topic.partition(1), bench.counter.process, positions=bench.positions, wait=0
    )

    assert [subscriber.step(), subscriber.step()] == [1, 0]
    assert bench.counted() == {b"b0": b"1"}


def test_a_temporary_error_rolls_the_batch_back_and_loses_nothing(
    bench: Bench, pauses: list[float]
) -> None:
    bench.publish("a", "b", "c")
    bench.counter.poison[b"b"] = ValueError("not yet")

    def heal(seconds: float, _stop: object) -> None:
        pauses.append(seconds)
        bench.counter.poison.clear()

    replace_pauses(bench.client, heal)
    subscriber = bench.subscriber()

    assert [subscriber.step() for _ in range(4)] == [1, 1, 1, 0]
    assert bench.counter.batches == [[b"a", b"b", b"c"], [b"a"], [b"b"], [b"c"]]
    assert bench.counted() == {b"a": b"1", b"b": b"1", b"c": b"1"}
    assert len(pauses) == 1
    with pytest.raises(tuff.TopicNotFoundError):
        bench.dead_letters()


def test_a_step_without_a_server_raises(bench: Bench) -> None:
    bench.publish("a")
    bench.counter.poison[b"a"] = tuff.errors.UnavailableError("away")
    replace_pauses(bench.client, lambda *_: bench.counter.poison.clear())
    subscriber = bench.subscriber()

    with pytest.raises(tuff.errors.UnavailableError, match="away"):
        subscriber.step()

    assert bench.counter.batches == [[b"a"]]


def test_only_the_message_that_keeps_failing_goes_to_the_dead_letters_with_the_reason(
    bench: Bench, pauses: list[float]
) -> None:
    bench.publish("a", b"\xff", "c", "d")
    bench.counter.poison[b"\xff"] = ValueError("no number")
    subscriber = bench.subscriber(batch=3)

    done = [subscriber.step() for _ in range(5)]

    assert done == [1, 1, 1, 1, 0]
    assert bench.counter.batches == [
        [b"a", b"\xff", b"c"], [b"a"], [b"\xff"], [b"\xff"], [b"\xff"], [b"\xff"], [b"c"], [b"d"],
    ]  # fmt: skip
    assert bench.counted() == {b"a": b"1", b"c": b"1", b"d": b"1"}
    (letter,) = bench.dead_letters()
    message = bench.client.poll(bench.topic)[1]
    assert "raise self.poison[message.payload]" in letter.pop("traceback")
    assert letter == {
        "topic": f"{bench.topic}:0",
        "id": message.id.hex(),
        "timestamp": message.timestamp_ms,
        "payload": {"base64": "/w=="},
        "reason": "ValueError: no number",
        "attempts": 5,
    }
    fulls = [0.5, 1, 2, 4]
    assert all(full / 2 <= pause <= full for pause, full in zip(pauses, fulls, strict=True))


def test_dead_letters_go_to_the_given_topic(bench: Bench, pauses: list[float]) -> None:
    grave = tuff.TopicId(bench.topic.namespace, f"{bench.topic.name}-grave")
    bench.client.topics.create(grave)
    bench.publish("a")
    bench.counter.poison[b"a"] = ValueError("no")
    subscriber = bench.subscriber(wait=0, attempts=1, dead_letters=grave)

    assert [subscriber.step(), subscriber.step()] == [1, 0]

    assert len(bench.client.poll(grave, isolation="committed")) == 1
    assert pauses == []


def test_two_subscribers_of_one_name_never_both_process_a_message(
    bench: Bench, pauses: list[float]
) -> None:
    """The second one still has the place of before in memory: it once took the batch again."""
    bench.publish("a")
    slow = bench.subscriber()
    slow.step()
    fast = bench.subscriber()
    bench.publish("b")

    assert (fast.step(), slow.step()) == (1, 0)
    assert bench.counter.batches == [[b"a"], [b"b"]]
    bench.publish("c")

    def be_overtaken(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        if not pauses:
            fast.step()
        bench.counter.process(messages, tx)

    overtaken = bench.client.subscriber(
        bench.topic, be_overtaken, positions=bench.positions, wait=0
    )
    assert overtaken.step() == 0
    assert len(pauses) == 1
    assert bench.counted() == {b"a": b"1", b"b": b"1", b"c": b"1"}


def test_a_lost_reply_of_a_commit_counts_no_message_twice(
    bench: Bench, server: ServerProcess
) -> None:
    bench.publish("a", "b", "c", "d")
    with losing(server.url) as (url, losses), tuff.Client(url, retries=1) as through:
        subscriber = through.subscriber(
            bench.topic, bench.counter.process, positions=bench.positions, batch=1, wait=0
        )
        losses.lose_reply("commit", times=3)
        losses.lose_request("poll", times=1)

        while subscriber.step():
            pass

    assert bench.counted() == {b"a": b"1", b"b": b"1", b"c": b"1", b"d": b"1"}


def test_messages_that_a_batch_publishes_commit_with_its_position(
    client: tuff.Client, topic: tuff.TopicId, positions: tuff.TablePositions
) -> None:
    echo = tuff.TopicId(topic.namespace, f"{topic.name}-echo")
    client.topics.create(echo)
    client.publish(topic, "a", "b")

    def process(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        tx.publish(echo, *(message.payload.upper() for message in messages))

    client.subscriber(topic, process, positions=positions, wait=0).step()

    read = client.poll(echo, isolation="committed")
    assert [message.payload for message in read] == [b"A", b"B"]


def test_run_continues_while_the_server_is_away_and_ends_when_it_is_stopped(
    bench: Bench, server: ServerProcess, pauses: list[float]
) -> None:
    bench.publish("a")
    with losing(server.url) as (url, losses), tuff.Client(url, retries=0) as through:
        through._driver._pause = bench.client._driver._pause
        losses.lose_request("poll", times=3)

        def process(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
            bench.counter.process(messages, tx)
            subscriber.stop()

        subscriber = through.subscriber(bench.topic, process, positions=bench.positions, wait=0)
        subscriber.run()

    assert bench.counter.batches == [[b"a"]]
    fulls = [0.1, 0.2, 0.4]
    assert all(full / 2 <= pause <= full for pause, full in zip(pauses, fulls, strict=True))


def test_a_subscriber_that_was_stopped_before_it_ran_does_nothing(bench: Bench) -> None:
    bench.publish("a")
    subscriber = bench.subscriber()
    subscriber.stop()

    subscriber.run()

    assert bench.counter.batches == []


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_rolls_back_and_counts_for_no_message(
    bench: Bench, kind: Callable[[], Exception]
) -> None:
    bench.publish("a")
    bench.counter.poison[b"a"] = kind()
    subscriber = bench.subscriber(attempts=1)

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        subscriber.run()

    bench.counter.poison.clear()
    assert subscriber.step() == 1
    assert bench.counted() == {b"a": b"1"}


async def test_with_asyncio_everything_may_be_a_coroutine(
    server: ServerProcess, client: tuff.Client, topic: tuff.TopicId, positions: tuff.TablePositions
) -> None:
    client.publish(topic, "a", "b", "c")
    seen: list[bytes] = []

    async def process(messages: Sequence[tuff.Message], tx: tuff.AsyncTransactionContext) -> None:
        await tx.poll(topic)
        seen.extend(message.payload for message in messages)

    async with tuff.AsyncClient(server.url) as on_loop:
        subscriber = on_loop.subscriber(topic, process, positions=positions, batch=2, wait=0)

        assert [await subscriber.step() for _ in range(3)] == [2, 1, 0]

    assert seen == [b"a", b"b", b"c"]


class Coroutines:
    async def process(self, messages: object, tx: object) -> None: ...
    async def __call__(self, messages: object, tx: object) -> None: ...


@pytest.mark.parametrize("process", [Coroutines().process, Coroutines()])
def test_a_blocking_subscriber_refuses_coroutine_functions(
    client: tuff.Client, topic: tuff.TopicId, positions: tuff.TablePositions, process: Any
) -> None:
    """Nobody ran them, and each message went to the dead letters."""
    with pytest.raises(TypeError, match="a coroutine function"):
        client.subscriber(topic, process, positions=positions)


def test_wrong_arguments_of_a_subscriber_are_refused_at_once(bench: Bench) -> None:
    name: Any = str(bench.topic).encode()
    with pytest.raises(TypeError, match="is no topic: a topic is its namespace and its name"):
        bench.client.subscriber(name, bench.counter.process, positions=bench.positions)
    with pytest.raises(TypeError, match="is no topic: a topic is its namespace and its name"):
        bench.subscriber(dead_letters=name)
    with pytest.raises(ValueError, match="attempts"):
        bench.subscriber(attempts=0)
    long = tuff.TopicId("client", "x" * 126)
    with pytest.raises(ValueError, match="legal name"):
        bench.client.subscriber(long, bench.counter.process, positions=bench.positions)


class Quiet(PlayedService):
    """The played service, with a topic in which nothing is left to read: each poll is answered at
    once, passes one more message that was rolled back, and is noted with its wait and its start.
    `unread_count`: how many polls end before all messages are read."""

    def __init__(self, *, unread_count: int = 0) -> None:
        super().__init__(Record())
        self._unread_count = unread_count
        self.polls: list[tuple[float, str | None, bool]] = []

    def send(self, call: Call[T], *, stop: object = None) -> T:
        if call.request.path.endswith("/topics/orders"):
            topic = {"name": "orders", "generation": 0, "properties": {}, "partitions": [0]}
            return call.answer(Response(200, {}, json.dumps(topic).encode()))
        if "/poll" not in call.request.path:
            return super().send(call, stop=stop)
        assert len(self.polls) < 3
        body = json.loads(call.request.content or b"")
        asked = call.request.wait_s, body.get("startFrom"), body["inclusive"]
        self.polls.append(asked)
        place = "00" * 19 + f"0{len(self.polls)}"
        is_read = "true" if len(self.polls) > self._unread_count else "false"
        form = "avro/binary; schema=2"
        headers = {"content-type": form, "tuff-next": place, "tuff-caught-up": is_read}
        return call.answer(Response(200, headers, b"\x00"))


def test_a_long_wait_is_cut_into_pieces_and_each_begins_where_the_one_before_ended(
    positions: tuff.TablePositions,
) -> None:
    service = Quiet()
    client = tuff.Client(transport=service, client_id="tests", retries=0)
    orders = tuff.TopicId("shop", "orders")
    subscriber = client.subscriber(orders, lambda *_: None, positions=positions, wait=70)

    count = subscriber.step()

    assert count == 0
    assert service.polls == [
        (30, None, True),
        (30, "00" * 19 + "01", False),
        (10, "00" * 19 + "02", False),
    ]


def test_a_step_reads_on_while_a_selection_passes_over_messages(
    positions: tuff.TablePositions,
) -> None:
    """It began again at the same message, and never reached one that was far away."""
    service = Quiet(unread_count=2)
    client = tuff.Client(transport=service, client_id="tests", retries=0)
    orders = tuff.TopicId("shop", "orders")
    subscriber = client.subscriber(orders, lambda *_: None, positions=positions, tags="a", wait=0)

    assert subscriber.step() == 0

    starts = [start for _, start, _ in service.polls]
    assert starts == [None, "00" * 19 + "01", "00" * 19 + "02"]


def run_with(positions: tuff.TablePositions, answers: Sequence[bool]) -> list[float]:
    """Have steps in which the server answers or does not; how long was waited between them."""
    client = tuff.Client(transport=Quiet(), client_id="tests", retries=0)
    pauses: list[float] = []
    replace_pauses(client, lambda seconds, _stop: pauses.append(seconds))
    orders = tuff.TopicId("shop", "orders")
    subscriber = client.subscriber(orders, lambda *_: None, positions=positions)
    left = list(answers)

    def step() -> Iterator[int]:
        if not left.pop(0):
            raise tuff.errors.UnavailableError("away")
        if not left:
            subscriber.stop()
        yield from ()

    subscriber._flows._one_step = step
    subscriber.run()
    return pauses


def test_pauses_begin_anew_once_the_server_has_answered(positions: tuff.TablePositions) -> None:
    pauses = run_with(positions, [False, False, True, False, True])

    fulls = [0.1, 0.2, 0.1]
    assert all(full / 2 <= pause <= full for pause, full in zip(pauses, fulls, strict=True))


def test_each_time_that_the_server_is_away_is_logged_once_with_its_end(
    positions: tuff.TablePositions, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tuff")

    run_with(positions, [False, False, True, False, True])

    who = "the subscriber of shop:orders"
    away, back = f"{who} waits for the server: away", f"{who} continues: the server answers again"
    assert caplog.messages == [away, back, away, back]


@pytest.fixture
def topics(client: tuff.Client, topic: tuff.TopicId) -> list[tuff.TopicId]:
    other = tuff.TopicId(topic.namespace, f"{topic.name}-other")
    client.topics.create(other)
    return [topic, other]


def test_subscribers_of_two_topics_under_one_name_skip_nothing(
    client: tuff.Client, topics: list[tuff.TopicId], table: tuff.TransactionalTable
) -> None:
    """They shared a row: the second one went on behind where the first was in the other topic."""
    seen: list[bytes] = []

    def process(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        seen.extend(message.payload for message in messages)

    client.publish(topics[1], "older")
    client.publish(topics[0], "newer")
    positions = tuff.TablePositions(table, "billing")
    for topic in topics:
        client.subscriber(topic, process, positions=positions, wait=0).step()

    assert seen == [b"newer", b"older"]


def test_positions_are_a_participant_that_keeps_them(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    nothing: Any = None
    with pytest.raises(TypeError, match=r"as tuff.TablePositions\(table, name\), and not None"):
        client.subscriber(topic, lambda *_: None, positions=nothing)


def test_a_program_loads_the_position_of_a_partition(
    client: tuff.Client, topic: tuff.TopicId, table: tuff.TransactionalTable
) -> None:
    published = client.publish(topic, "one")
    positions = tuff.TablePositions(table, "billing")
    client.subscriber(topic, lambda *_: None, positions=positions, wait=0).step()

    with client.transaction(table):
        assert positions.load(f"{topic}/0") == published.ids[-1]
        with pytest.raises(ValueError, match="is a topic; name one of its partitions"):
            positions.load(topic)


def test_a_subscriber_that_is_at_work_refuses_a_second_run_and_continues(
    client: tuff.Client, topic: tuff.TopicId, tmp_path: Path
) -> None:
    refused: list[tuff.WrongStateError] = []

    def process(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        for again in (subscriber.step, subscriber.run):
            with pytest.raises(tuff.WrongStateError, match="at work already") as caught:
                again()
            refused.append(caught.value)

    client.publish(topic, "one")
    with tuff.TransactionalTable(tmp_path / "table") as table:
        positions = tuff.TablePositions(table, "twice")
        subscriber = client.subscriber(topic, process, positions=positions, wait=0)

        assert [subscriber.step(), subscriber.step()] == [1, 0]
    assert len(refused) == 2


def test_a_subscriber_reports_its_position_for_the_lag(bench: Bench) -> None:
    bench.publish("a", "b")
    subscriber = bench.subscriber()
    assert subscriber.step() == 2
    bench.publish("c")

    (shown,) = bench.client.positions.list(bench.topic)

    read = bench.client.poll(bench.topic)
    assert (shown.name, shown.position) == ("counter", read[1].id)
    assert bench.client.topics.count(bench.topic, after=shown.position).count == 1


def test_a_report_that_is_refused_stops_no_subscriber(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    positions = tuff.TablePositions(bench.table, "no legal name")
    bench.publish("a")

    assert bench.subscriber(positions=positions).step() == 1

    assert bench.client.positions.list(bench.topic) == []
    assert "the lag of the subscriber no legal name" in caplog.text
