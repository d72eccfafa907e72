"""The subscriber: positions in a participant, attempts, dead letters (design §7)."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

import tuff
from tests.client.proxy import losing
from tests.client.recording import PlayedService, Record
from tests.http.process import ServerProcess
from tuff.calls import Call, Response

T = TypeVar("T")


@pytest.fixture
def positions(table: tuff.TransactionalTable) -> tuff.TablePositions:
    return tuff.TablePositions(table, "counter")


@pytest.fixture
def pauses(client: tuff.Client) -> list[float]:
    """The pauses of the client, which does not really wait."""
    waited: list[float] = []
    client._driver._pause = lambda seconds, _stop: waited.append(seconds)
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
            rows = dict(self.table.scan())
        return {key: value for key, value in rows.items() if not key.startswith(b"\x00")}

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
    subscriber = bench.subscriber(start=published.last_id)

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
    bench.client._driver._pause = lambda *_: bench.counter.poison.clear()

    assert [subscriber.step(), subscriber.step()] == [1, 0]
    assert bench.counter.batches == [[b"a"], [b"a"]]


def test_a_temporary_error_rolls_the_batch_back_and_loses_nothing(
    bench: Bench, pauses: list[float]
) -> None:
    bench.publish("a", "b", "c")
    bench.counter.poison[b"b"] = ValueError("not yet")

    def heal(seconds: float, _stop: object) -> None:
        pauses.append(seconds)
        bench.counter.poison.clear()

    bench.client._driver._pause = heal
    subscriber = bench.subscriber()

    assert [subscriber.step() for _ in range(4)] == [1, 1, 1, 0]
    assert bench.counter.batches == [[b"a", b"b", b"c"], [b"a"], [b"b"], [b"c"]]
    assert bench.counted() == {b"a": b"1", b"b": b"1", b"c": b"1"}
    assert len(pauses) == 1
    with pytest.raises(tuff.TopicNotFoundError):
        bench.dead_letters()


def test_a_step_without_a_server_raises(bench: Bench) -> None:
    bench.publish("a")
    bench.counter.poison[b"a"] = tuff.UnavailableError("away")
    bench.client._driver._pause = lambda *_: bench.counter.poison.clear()
    subscriber = bench.subscriber()

    with pytest.raises(tuff.UnavailableError, match="away"):
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
    assert letter == {
        "topic": str(bench.topic),
        "id": message.id.hex(),
        "timestamp": message.timestamp,
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
    fulls = [0.5, 1, 2]
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
    name: Any = str(bench.topic)
    with pytest.raises(TypeError, match=r"a topic is a tuff\.TopicId"):
        bench.client.subscriber(name, bench.counter.process, positions=bench.positions)
    with pytest.raises(TypeError, match=r"a topic is a tuff\.TopicId"):
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
        if "/poll" not in call.request.path:
            return super().send(call, stop=stop)
        assert len(self.polls) < 3
        body = json.loads(call.request.content or b"")
        asked = call.request.wait_s, body.get("startFrom"), body["inclusive"]
        self.polls.append(asked)
        place = "00" * 19 + f"0{len(self.polls)}"
        is_read = "true" if len(self.polls) > self._unread_count else "false"
        headers = {"content-type": "avro/binary", "tuff-next": place, "tuff-caught-up": is_read}
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
    client._driver._pause = lambda seconds, _stop: pauses.append(seconds)
    orders = tuff.TopicId("shop", "orders")
    subscriber = client.subscriber(orders, lambda *_: None, positions=positions)
    left = list(answers)

    def step() -> Iterator[int]:
        if not left.pop(0):
            raise tuff.UnavailableError("away")
        if not left:
            subscriber.stop()
        yield from ()

    subscriber._flows._one_step = step
    subscriber.run()
    return pauses


def test_pauses_begin_anew_once_the_server_has_answered(positions: tuff.TablePositions) -> None:
    pauses = run_with(positions, [False, False, True, False, True])

    fulls = [0.5, 1, 0.5]
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
    for topic in topics:
        positions = tuff.TablePositions(table, "billing")
        client.subscriber(topic, process, positions=positions, wait=0).step()

    assert seen == [b"newer", b"older"]


def test_positions_of_one_topic_can_not_be_used_for_another(
    client: tuff.Client, topics: list[tuff.TopicId], table: tuff.TransactionalTable
) -> None:
    positions = tuff.TablePositions(table, "billing")
    client.subscriber(topics[0], lambda *_: None, positions=positions)
    client.subscriber(topics[0], lambda *_: None, positions=positions)

    with pytest.raises(ValueError, match="is kept for client:"):
        client.subscriber(topics[1], lambda *_: None, positions=positions)


def test_positions_are_a_participant_that_keeps_them(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    nothing: Any = None
    with pytest.raises(TypeError, match=r"as tuff.TablePositions\(table, name\), and not None"):
        client.subscriber(topic, lambda *_: None, positions=nothing)


def test_a_position_can_be_loaded_once_its_topic_is_set(
    client: tuff.Client, topics: list[tuff.TopicId], table: tuff.TransactionalTable
) -> None:
    published = client.publish(topics[0], "one")
    client.subscriber(
        topics[0], lambda *_: None, positions=tuff.TablePositions(table, "billing"), wait=0
    ).step()
    looking = tuff.TablePositions(table, "billing")

    with client.transaction(table):
        with pytest.raises(RuntimeError, match="for no topic yet"):
            looking.load()
        looking.keep_for(topics[0])
        assert looking.load() == published.last_id


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
