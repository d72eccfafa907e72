"""A subscriber's batches that conflict, are aborted, or keep failing: attempts, dead letters."""

import json
from base64 import b64decode
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

import tuff
from tests.client.recording import replace_pauses
from tuff import topic_calls
from tuff.dead_letters import dead_letter_topic_of
from tuff.flows_and_repeated_calls import Call

MIB = 1 << 20


Process = Callable[[Sequence[tuff.Message], tuff.TransactionContext], None]


@dataclass(frozen=True)
class Bench:
    """Subscribers of one topic, whose position is in one table."""

    client: tuff.Client
    topic: tuff.TopicId
    table: tuff.TransactionalTable

    def publish(self, *messages: str | bytes) -> None:
        self.client.publish(self.topic, *messages)

    def subscriber(self, process: Process, **more: Any) -> tuff.Subscriber:
        """One that waits for nothing."""
        positions = tuff.TablePositions(self.table, "me")
        settings = {"positions": positions, "wait": 0, **more}
        return self.client.subscriber(self.topic, process, **settings)

    def other(self, **more: Any) -> tuff.Subscriber:
        """Another subscriber of the same name, which processes every message."""
        return self.subscriber(lambda *_: None, **more)

    def letters(self) -> list[dict[str, object]]:
        dead = tuff.TopicId(self.topic.namespace, f"{self.topic.name}.dlq")
        if dead.name not in self.client.topics.list(dead.namespace):
            return []
        read = self.client.poll(dead, isolation="committed")
        return [json.loads(found.payload) for found in read]


@pytest.fixture
def bench(client: tuff.Client, topic: tuff.TopicId, table: tuff.TransactionalTable) -> Bench:
    replace_pauses(client, lambda _seconds, _stop: None)
    return Bench(client, topic, table)


def payloads(messages: Sequence[tuff.Message]) -> list[bytes]:
    return [message.payload for message in messages]


class Overtaken(tuff.TablePositions):
    """Lets another subscriber of this name take the batch when this one is about to commit it."""

    other: tuff.Subscriber | None = None

    def save(self, partition: Any, id: tuff.MessageId, tx: object) -> None:
        super().save(partition, id, tx)
        if self.other is not None:
            other, self.other = self.other, None
            other.step()


def test_a_conflict_while_a_dead_letter_is_written_does_not_end_the_subscriber(
    bench: Bench,
) -> None:
    bench.publish("poison", "good")
    positions = Overtaken(bench.table, "me")
    seen: list[bytes] = []

    def fail(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        if messages[0].payload == b"poison":
            raise ValueError("no")
        seen.extend(payloads(messages))

    positions.other = bench.other(batch=1)
    subscriber = bench.subscriber(fail, positions=positions, batch=1, attempts=1)

    assert subscriber.step() == 1
    assert seen == [b"good"]
    assert bench.letters() == []


def test_a_message_that_another_subscriber_took_gets_no_dead_letter(bench: Bench) -> None:
    bench.publish("a", "b", "c")
    seen: list[bytes] = []
    other = bench.other(batch=2)

    def process(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        seen.extend(payloads(messages))
        if seen == [b"a"]:
            other.step()
            raise ValueError("no")

    subscriber = bench.subscriber(process, batch=1, attempts=1)

    # Its letter would have moved the position back, and "b" would have been processed twice.
    assert [subscriber.step(), subscriber.step()] == [1, 0]
    assert seen == [b"a", b"c"]
    assert bench.letters() == []


@pytest.mark.filterwarnings("ignore::tuff.errors.OutsideTransactionWarning")
def test_after_another_subscriber_took_a_failed_batch_the_next_batch_is_whole(bench: Bench) -> None:
    bench.publish("a", "b")
    batches: list[list[bytes]] = []
    other = bench.other()

    def process(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        batches.append(payloads(messages))
        if len(batches) == 1:
            raise ValueError("no")
        if len(batches) == 2:
            other.step()
            bench.publish("c", "d")
            raise ValueError("no")

    subscriber = bench.subscriber(process, attempts=5)

    assert subscriber.step() == 2
    assert batches == [[b"a", b"b"], [b"a"], [b"c", b"d"]]


def test_two_that_create_the_topic_of_dead_letters_at_once_both_write_to_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.publish("poison")
    create = topic_calls.create_topic

    def too_late(dead: tuff.TopicId, properties: Mapping[str, str]) -> Call[None]:
        monkeypatch.undo()
        bench.client.topics.create(dead)
        return create(dead, properties)

    def fail(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        raise ValueError("no")

    monkeypatch.setattr(topic_calls, "create_topic", too_late)

    assert bench.subscriber(fail, attempts=1).step() == 1
    assert [each["payload"] for each in bench.letters()] == ["poison"]


def test_a_failed_batch_does_not_count_as_an_attempt_of_later_messages(bench: Bench) -> None:
    bench.publish("a", "b")
    tried: list[bytes] = []

    def process(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        tried.extend(payloads(messages))
        if tried in ([b"a", b"b"], [b"a", b"b", b"a", b"b", b"c"]):
            raise ValueError("not yet")

    subscriber = bench.subscriber(process, attempts=2)

    assert [subscriber.step(), subscriber.step()] == [1, 1]
    bench.publish("c")
    assert subscriber.step() == 1
    assert tried == [b"a", b"b", b"a", b"b", b"c", b"c"]
    assert bench.letters() == []


def test_attempts_of_one_message_do_not_count_for_the_next(bench: Bench) -> None:
    """Another subscriber took a message after its fourth attempt, and the next message went to the
    dead letters after its first."""
    bench.publish("one", "two")
    positions = Overtaken(bench.table, "me")
    tried: list[bytes] = []

    def process(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        tried.extend(payloads(messages))
        if tried.count(b"one") < 5 or tried.count(b"two") == 1:
            raise ValueError("not yet")

    positions.other = bench.other(batch=1)
    subscriber = bench.subscriber(process, positions=positions, batch=1, attempts=5)

    assert subscriber.step() == 1
    assert tried == [b"one"] * 5 + [b"two"] * 2
    assert bench.letters() == []


def test_a_conflict_does_not_reset_the_count_of_attempts(bench: Bench) -> None:
    """One that fails and conflicts by turns would block its topic."""
    bench.publish("poison")
    tried: list[str] = []

    def process(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        tried.append("")
        if len(tried) % 2:
            raise ValueError("no")
        raise tuff.TransactionConflictError("others were faster")

    subscriber = bench.subscriber(process, attempts=3)

    assert subscriber.step() == 1
    assert len(tried) == 5
    assert [told["attempts"] for told in bench.letters()] == [3]


def test_a_transaction_that_an_operator_ended_does_not_count_as_an_attempt(bench: Bench) -> None:
    """A good message was in the dead letters, as an operator had invalidated two transactions."""
    bench.publish("good", "too slow")
    tried: list[bytes] = []

    def process(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        tried.append(messages[0].payload)
        if messages[0].payload == b"good" and len(tried) < 4:
            bench.client.transactions.invalidate(tx.transaction)
        if messages[0].payload == b"too slow":
            raise tuff.errors.TransactionInvalidatedError("", members={"reason": "blocked_readers"})

    subscriber = bench.subscriber(process, batch=1, attempts=2)

    assert [subscriber.step(), subscriber.step()] == [1, 1]
    assert tried == [b"good"] * 4 + [b"too slow"] * 2
    assert [told["payload"] for told in bench.letters()] == ["too slow"]


class LostStart(tuff.TablePositions):
    """Finds, once, that its transaction was lost in a crash of the server."""

    is_lost = True

    def load(self, partition: Any) -> tuff.MessageId | None:
        if self.is_lost:
            self.is_lost = False
            raise tuff.errors.TransactionInvalidatedError("", members={"reason": "lost_in_crash"})
        return super().load(partition)


def test_a_server_crash_while_the_position_is_read_does_not_end_the_subscriber(
    bench: Bench,
) -> None:
    bench.publish("one")

    def process(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        subscriber.stop()

    subscriber = bench.subscriber(process, positions=LostStart(bench.table, "me"), wait=30)

    subscriber.run()

    assert bench.letters() == []


class Notebook(tuff.TransactionAware):
    """Positions of a program's own, which accept `save` outside of a transaction too."""

    name = "notebook"

    def __init__(self) -> None:
        self.kept: tuff.MessageId | None = None
        self._next: tuff.MessageId | None = None

    def load(self, partition: tuff.PartitionId) -> tuff.MessageId | None:
        return self.kept

    def save(self, partition: tuff.PartitionId, id: tuff.MessageId, tx: object) -> None:
        self._next = id

    def tx_changes(self, transaction: tuff.Transaction) -> Collection[bytes]:
        return [b"notebook"]

    def commit_tx(self, transaction: tuff.Transaction) -> None: ...
    def post_commit(self, transaction: tuff.Transaction) -> None:
        self.kept = self._next or self.kept

    def rollback_tx(self, transaction: tuff.Transaction) -> None:
        self._next = None


def test_a_batch_that_process_aborts_counts_as_failed(bench: Bench) -> None:
    """Positions that take an id outside of a transaction had it skipped, and those of a table put
    it into the dead letters with a riddle for a reason."""
    bench.publish("one", "two")
    seen: list[bytes] = []

    def process(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        seen.extend(payloads(messages))
        if seen.count(b"one") == 1 or b"two" in seen:
            tx.abort()

    subscriber = bench.subscriber(process, positions=Notebook(), batch=1, attempts=2)

    assert [subscriber.step() for _ in range(3)] == [1, 1, 0]
    assert seen == [b"one", b"one", b"two", b"two"]
    (told,) = bench.letters()
    assert told["payload"] == "two"
    assert told["reason"] == "RuntimeError: process ended its transaction, by tx.abort()"


def buried(bench: Bench, payload: bytes) -> tuff.Message:
    """The dead letter of a message that can't be processed; one after it can."""
    with bench.client.transaction() as tx:
        tx.publish(bench.topic, payload)
    bench.publish("after")
    seen: list[bytes] = []

    def process(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        if messages[0].payload == payload:
            raise ValueError("no")
        seen.extend(payloads(messages))

    subscriber = bench.subscriber(process, batch=1, attempts=1)
    assert [subscriber.step(), subscriber.step()] == [1, 1]
    assert seen == [b"after"]
    (carrier,) = bench.client.poll(dead_letter_topic_of(bench.topic))
    return carrier


def test_a_message_of_control_characters_fits_into_its_dead_letter(bench: Bench) -> None:
    """Each took six bytes there, so that the letter was more than the server takes, for ever."""
    payload = b"\0" * (3 * MIB)

    told = json.loads(buried(bench, payload).payload)

    assert isinstance(told["payload"], dict)
    assert b64decode(told["payload"]["base64"]) == payload


def test_a_large_payload_is_behind_its_dead_letter_as_it_is(bench: Bench) -> None:
    """It was left out, as base64 takes a third more, and so the message was never tried again."""
    payload = b"\xff" * (13 * MIB)

    letter = tuff.read_dead_letter(buried(bench, payload))

    assert (letter.message.payload, letter.reason) == (payload, "ValueError: no")


def test_the_dead_letter_of_a_message_that_is_too_large_for_it_names_the_message(
    bench: Bench,
) -> None:
    """It blocked its topic."""
    payload = b"\xff" * (16 * MIB + 65_350)  # a frame of a session may have 64 KiB more

    told = json.loads(buried(bench, payload).payload)

    assert (told["size"], told["reason"]) == (len(payload), "ValueError: no")
    assert "payload" not in told
    (message,) = bench.client.poll(bench.topic, str(told["id"]), limit=1)
    assert message.payload == payload
