"""Retries and dead letters of consumer groups, against a real server (decision 0043 §6)."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tuff
from tests.http.client import until
from tests.http.process import ServerProcess, serve
from tuff.dead_letters import dead_letter_topic_of, retry_topic_of

WITHIN_S = 60.0
PROMPT = "groups.heartbeat_interval=0.1"
QUICK = tuff.RetryPolicy(delays=(0.05, 0.05))

pytestmark = pytest.mark.parametrize("mode", ["at_least_once", "exactly_once"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose members hear of changes at once, and with small requests."""
    with serve(
        tmp_path_factory.mktemp("server"),
        PROMPT,
        "server.max_request_bytes=100000",
    ) as running:
        yield running


class Handler:
    """Processes messages, in `run`, until there were so many calls. A message fails as often as
    `failures` says; `calls` are the payloads of each call."""

    def __init__(self, failures: dict[str, int], *, calls: int) -> None:
        self.failures = failures
        self.calls: list[list[str]] = []
        self.letters: list[tuff.DeadLetter | None] = []
        self._left = calls
        self.stop: Callable[[], None] = lambda: None

    def __call__(self, batch: tuff.Batch, tx: tuff.TransactionContext | None = None) -> None:
        payloads = [message.payload.decode() for message in batch]
        self.calls.append(payloads)
        self.letters.append(batch.letter)
        self._left -= 1
        if not self._left:
            self.stop()
        for payload in payloads:
            if self.failures.get(payload, 0):
                if len(payloads) == 1:
                    self.failures[payload] -= 1
                raise ValueError(f"no {payload}")


def run(client: tuff.Client, topic: tuff.TopicId, handler: Handler, **options: object) -> None:
    """Let a member of the group `workers` run until the handler stops it."""
    with client.consumer(topic, group="workers", **options) as consumer:  # type: ignore[arg-type]  # any
        handler.stop = consumer.stop
        consumer.run(handler)


def letters(client: tuff.Client, topic: tuff.TopicId) -> list[tuff.DeadLetter]:
    found = client.poll(dead_letter_topic_of(topic), isolation="committed")
    return [tuff.read_dead_letter(each) for each in found]


def committed(client: tuff.Client, topic: tuff.TopicId) -> bool:
    """Whether the group is through all partitions, retries included."""
    group = client.groups.get(topic.namespace, "workers")
    return all(each.after == each.end for each in group.partitions)


def test_a_message_that_fails_is_tried_again_and_blocks_no_other(
    client: tuff.Client, topic: tuff.TopicId, mode: str
) -> None:
    sent = tuff.NewMessage("bad", key="k", tags=["t"], headers={"h": "v"})
    client.publish(topic, "a", sent, "b")
    handler = Handler({"bad": 2}, calls=6)

    run(client, topic, handler, mode=mode, retry=QUICK)

    assert handler.calls == [["a", "bad", "b"], ["a"], ["bad"], ["b"], ["bad"], ["bad"]]
    told = handler.letters[-1]
    assert told is not None
    assert (told.attempts, told.reason, told.group) == (2, "ValueError: no bad", "workers")
    assert (told.message.key, told.message.tags) == (b"k", ("t",))
    assert told.message.header("h") == b"v"
    assert told.topic == topic.partition(0)
    assert committed(client, topic)


def test_all_members_of_a_group_share_the_retries(
    client: tuff.Client, topic: tuff.TopicId, mode: str
) -> None:
    """One member had all of them, as the retry topic had one partition."""
    client.topics.create(retry_topic_of(topic))
    client.topics.update(topic, partitions=4)
    options = {"group": "sharers", "mode": mode, "retry": QUICK}

    with (
        client.consumer(topic, **options) as one,  # type: ignore[arg-type]  # any
        client.consumer(topic, **options) as other,  # type: ignore[arg-type]  # any
    ):
        members = (one, other)

        def shared() -> bool:
            for each in members:
                each.poll(wait=0.05)
            return [retries_of(each) for each in members] == [2, 2]

        until(shared)


def retries_of(member: tuff.Consumer) -> int:
    return sum(each.base.name.endswith(".retry") for each in member.assignment)


def test_a_message_is_given_up_after_its_last_attempt(
    client: tuff.Client, topic: tuff.TopicId, mode: str
) -> None:
    client.publish(topic, "bad")
    (original,) = client.poll(topic)
    handler = Handler({"bad": 3, "good": 0}, calls=4)

    client.publish(topic, "good")
    run(client, topic, handler, mode=mode, batch=1, retry=QUICK)
    assert sorted(handler.calls) == [["bad"]] * 3 + [["good"]]

    (letter,) = letters(client, topic)
    assert (letter.attempts, letter.reason, letter.group) == (3, "ValueError: no bad", "workers")
    assert (letter.message.id, letter.message.payload) == (original.id, b"bad")
    assert committed(client, topic)


def test_in_order_a_message_waits_in_its_place(
    client: tuff.Client, topic: tuff.TopicId, mode: str
) -> None:
    client.publish(topic, "a", "bad", "b", "worse", "c")
    handler = Handler({"bad": 2, "worse": 99}, calls=11)
    policy = tuff.RetryPolicy(delays=(0.01, 0.01), in_order=True)

    run(client, topic, handler, mode=mode, retry=policy)

    alone = [each[0] for each in handler.calls if len(each) == 1]
    assert alone == ["a", "bad", "bad", "bad", "b", "worse", "worse", "worse", "c"]
    (letter,) = letters(client, topic)
    assert (letter.message.payload, letter.attempts) == (b"worse", 3)
    assert client.offsets(retry_topic_of(topic)).end is None


def test_letters_of_another_group_are_passed_over(
    client: tuff.Client, topic: tuff.TopicId, mode: str
) -> None:
    client.publish(topic, "bad")
    with client.consumer(topic, group="others", mode="at_least_once", retry=QUICK) as other:
        batch = other.poll(WITHIN_S)
        assert batch is not None
        other.nack(batch[0], "no", delay=0)
        other.commit()
    client.publish(retry_topic_of(topic), "no dead letter")
    handler = Handler({"bad": 1}, calls=2)

    run(client, topic, handler, mode=mode, retry=QUICK)

    assert handler.calls == [["bad"], ["bad"]]
    assert [each and each.group for each in handler.letters] == [None, "workers"]


def test_a_message_that_is_too_large_for_a_letter_is_given_up_at_once(
    server: ServerProcess, client: tuff.Client, topic: tuff.TopicId, mode: str
) -> None:
    payload = "m" * 99_900  # the letter has some 300 bytes more
    client.publish(topic, payload.encode(), "good")
    handler = Handler({payload: 9}, calls=3)

    with tuff.Client(server.url, transport="http") as over_http:
        run(over_http, topic, handler, mode=mode, retry=QUICK)

    (letter,) = letters(client, topic)
    assert (letter.size_bytes, letter.message.payload, letter.attempts) == (99_900, b"", 1)
    assert handler.calls[-1] == ["good"]


def test_a_program_gives_messages_back_itself(
    client: tuff.Client, topic: tuff.TopicId, mode: str
) -> None:
    client.publish(topic, "a", "bad", "b")
    seen = []
    with client.consumer(topic, group="workers", mode=mode, retry=QUICK) as consumer:  # type: ignore[arg-type]  # a mode
        while len(seen) < 4:
            batch = consumer.poll(WITHIN_S)
            assert batch is not None
            seen += [(message.payload.decode(), batch.attempt) for message in batch]
            bad = [message for message in batch if message.payload == b"bad"]
            if mode == "exactly_once":
                with consumer.transaction(batch):
                    consumer.nack(
                        bad[0], ValueError("no"), delay=0.01
                    ) if batch.attempt < 2 else None
            elif batch.attempt < 2:
                consumer.nack(bad[0], ValueError("no"), delay=0.01)
        with pytest.raises(tuff.WrongStateError, match="polled last"):
            consumer.nack(tuff.Message(tuff.MessageId(1, 1), b""))
    assert seen == [("a", 1), ("bad", 1), ("b", 1), ("bad", 2)]
    with pytest.raises(tuff.WrongStateError, match="closed"):
        consumer.nack(tuff.Message(tuff.MessageId(1, 1), b""))


def test_a_policy_of_another_type_and_a_name_that_is_too_long_are_refused(
    client: tuff.Client, mode: str
) -> None:
    with pytest.raises(TypeError, match="RetryPolicy"):
        client.consumer(tuff.TopicId("shop", "a"), group="g", mode=mode, retry="yes")  # type: ignore[arg-type]  # the point
    with pytest.raises(tuff.errors.InvalidNameError):
        client.consumer(tuff.TopicId("shop", "x" * 126), group="g", mode=mode, retry=QUICK)  # type: ignore[arg-type]  # a mode


def test_retries_wait_while_the_server_restarts(tmp_path: Path, mode: str) -> None:
    """A letter that waits for its time is on the disk."""
    topic = tuff.TopicId("retries", "restart")
    with serve(tmp_path, PROMPT) as running:
        with tuff.Client(running.url) as client:
            client.topics.create(topic)
            client.publish(topic, "bad", "good")
            policy = tuff.RetryPolicy(delays=(1.0,))
            first = Handler({"bad": 1}, calls=3)
            run(client, topic, first, mode=mode, retry=policy)
        running.kill()
    with serve(tmp_path, PROMPT) as running, tuff.Client(running.url) as client:
        second = Handler({}, calls=1)
        run(client, topic, second, mode=mode, retry=policy)
        assert second.calls == [["bad"]]
        assert committed(client, topic)
