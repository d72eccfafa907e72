"""A subscriber's batches that conflict, are aborted, or keep failing: attempts, dead letters."""

import json
from base64 import b64decode
from collections.abc import Collection, Mapping, Sequence

import pytest

import tuff
from tuff import calls
from tuff.protocol.requests import Message
from tuff.subscriber import dead_letter

MIB = 1 << 20


@pytest.fixture(autouse=True)
def no_pauses(client: tuff.Client) -> None:
    client._driver._pause = lambda _seconds, _stop: None


def letters(client: tuff.Client, topic: tuff.TopicId) -> list[dict[str, object]]:
    dead = tuff.TopicId(topic.namespace, f"{topic.name}.dlq")
    if dead.name not in client.topics.list(dead.namespace):
        return []
    return [json.loads(found.payload) for found in client.poll(dead, isolation="committed")]


class Overtaken(tuff.TablePositions):
    """Lets another subscriber of this name take the batch when this one is about to commit it."""

    other: tuff.Subscriber | None = None

    def save(self, id: tuff.MessageId, tx: object) -> None:
        super().save(id, tx)
        if self.other is not None:
            other, self.other = self.other, None
            other.step()


def test_a_conflict_while_a_letter_is_written_ends_no_subscriber(
    client: tuff.Client, topic: tuff.TopicId, table: tuff.TransactionalTable
) -> None:
    client.publish(topic, "poison", "good")
    positions = Overtaken(table, "me")
    seen: list[bytes] = []

    def fail(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        if messages[0].payload == b"poison":
            raise ValueError("no")
        seen.extend(message.payload for message in messages)

    positions.other = client.subscriber(
        topic, lambda *_: None, positions=tuff.TablePositions(table, "me"), batch=1, wait=0
    )
    subscriber = client.subscriber(topic, fail, positions=positions, batch=1, wait=0, attempts=1)

    assert subscriber.step() == 1
    assert seen == [b"good"]
    assert letters(client, topic) == []


def test_a_message_that_another_took_while_it_failed_here_gets_no_letter(
    client: tuff.Client, topic: tuff.TopicId, table: tuff.TransactionalTable
) -> None:
    client.publish(topic, "a", "b", "c")
    positions = tuff.TablePositions(table, "me")
    seen: list[bytes] = []
    other = client.subscriber(topic, lambda *_: None, positions=positions, batch=2, wait=0)

    def process(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        seen.extend(message.payload for message in messages)
        if seen == [b"a"]:
            other.step()
            raise ValueError("no")

    subscriber = client.subscriber(topic, process, positions=positions, batch=1, wait=0, attempts=1)

    # Its letter would have moved the position back, and "b" would have been processed twice.
    assert [subscriber.step(), subscriber.step()] == [1, 0]
    assert seen == [b"a", b"c"]
    assert letters(client, topic) == []


def test_who_lost_a_batch_that_failed_takes_the_next_one_whole(
    client: tuff.Client, topic: tuff.TopicId, table: tuff.TransactionalTable
) -> None:
    client.publish(topic, "a", "b")
    positions = tuff.TablePositions(table, "me")
    batches: list[list[bytes]] = []
    other = client.subscriber(topic, lambda *_: None, positions=positions, wait=0)

    def process(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        batches.append([message.payload for message in messages])
        if len(batches) == 1:
            raise ValueError("no")
        if len(batches) == 2:
            other.step()
            client.publish(topic, "c", "d")
            raise ValueError("no")

    subscriber = client.subscriber(topic, process, positions=positions, wait=0, attempts=5)

    assert subscriber.step() == 2
    assert batches == [[b"a", b"b"], [b"a"], [b"c", b"d"]]


def test_two_that_make_the_topic_of_dead_letters_at_once_both_write_to_it(
    client: tuff.Client,
    topic: tuff.TopicId,
    table: tuff.TransactionalTable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.publish(topic, "poison")
    create = calls.create_topic

    def too_late(dead: tuff.TopicId, properties: Mapping[str, str]) -> calls.Call[None]:
        monkeypatch.undo()
        client.topics.create(dead)
        return create(dead, properties)

    def fail(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        raise ValueError("no")

    monkeypatch.setattr(calls, "create_topic", too_late)
    positions = tuff.TablePositions(table, "me")

    assert client.subscriber(topic, fail, positions=positions, wait=0, attempts=1).step() == 1
    assert [each["payload"] for each in letters(client, topic)] == ["poison"]


def test_a_batch_that_failed_charges_none_that_comes_after_it(
    client: tuff.Client, topic: tuff.TopicId, table: tuff.TransactionalTable
) -> None:
    client.publish(topic, "a", "b")
    tried: list[bytes] = []

    def process(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        tried.extend(message.payload for message in messages)
        if tried in ([b"a", b"b"], [b"a", b"b", b"a", b"b", b"c"]):
            raise ValueError("not yet")

    positions = tuff.TablePositions(table, "me")
    subscriber = client.subscriber(topic, process, positions=positions, wait=0, attempts=2)

    assert [subscriber.step(), subscriber.step()] == [1, 1]
    client.publish(topic, "c")
    assert subscriber.step() == 1
    assert tried == [b"a", b"b", b"a", b"b", b"c", b"c"]
    assert letters(client, topic) == []


def test_no_message_is_charged_with_the_attempts_of_another(
    client: tuff.Client, topic: tuff.TopicId, table: tuff.TransactionalTable
) -> None:
    """Four attempts of a message that another one then took, and the next went to the dead letters
    after its first."""
    client.publish(topic, "one", "two")
    positions = Overtaken(table, "me")
    tried: list[bytes] = []

    def process(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        tried.extend(message.payload for message in messages)
        if tried.count(b"one") < 5 or tried.count(b"two") == 1:
            raise ValueError("not yet")

    positions.other = client.subscriber(
        topic, lambda *_: None, positions=tuff.TablePositions(table, "me"), batch=1, wait=0
    )
    subscriber = client.subscriber(topic, process, positions=positions, batch=1, wait=0, attempts=5)

    assert subscriber.step() == 1
    assert tried == [b"one"] * 5 + [b"two"] * 2
    assert letters(client, topic) == []


def test_a_conflict_does_not_forget_the_attempts_that_were(
    client: tuff.Client, topic: tuff.TopicId, table: tuff.TransactionalTable
) -> None:
    """One that fails and conflicts by turns would block its topic."""
    client.publish(topic, "poison")
    tried: list[str] = []

    def process(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        tried.append("")
        if len(tried) % 2:
            raise ValueError("no")
        raise tuff.TransactionConflictError("others were faster")

    positions = tuff.TablePositions(table, "me")
    subscriber = client.subscriber(topic, process, positions=positions, wait=0, attempts=3)

    assert subscriber.step() == 1
    assert len(tried) == 5
    assert [told["attempts"] for told in letters(client, topic)] == [3]


def test_a_transaction_that_somebody_ended_counts_for_no_message(
    client: tuff.Client, topic: tuff.TopicId, table: tuff.TransactionalTable
) -> None:
    """A good message was in the dead letters, as an operator had invalidated two transactions."""
    client.publish(topic, "good", "too slow")
    tried: list[bytes] = []

    def process(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        tried.append(messages[0].payload)
        if messages[0].payload == b"good" and len(tried) < 4:
            client.transactions.invalidate(tx.transaction)
        if messages[0].payload == b"too slow":
            raise tuff.TransactionInvalidatedError("", members={"reason": "blocked_readers"})

    positions = tuff.TablePositions(table, "me")
    subscriber = client.subscriber(topic, process, positions=positions, batch=1, wait=0, attempts=2)

    assert [subscriber.step(), subscriber.step()] == [1, 1]
    assert tried == [b"good"] * 4 + [b"too slow"] * 2
    assert [told["payload"] for told in letters(client, topic)] == ["too slow"]


class LostStart(tuff.TablePositions):
    """Finds, once, that its transaction was lost in a crash of the server."""

    is_lost = True

    def load(self) -> tuff.MessageId | None:
        if self.is_lost:
            self.is_lost = False
            raise tuff.TransactionInvalidatedError("", members={"reason": "lost_in_crash"})
        return super().load()


def test_a_crash_while_the_place_is_read_ends_no_subscriber(
    client: tuff.Client, topic: tuff.TopicId, table: tuff.TransactionalTable
) -> None:
    client.publish(topic, "one")

    def process(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        subscriber.stop()

    subscriber = client.subscriber(topic, process, positions=LostStart(table, "me"))

    subscriber.run()

    assert letters(client, topic) == []


class Notebook:
    """Positions of a user's own, that keep what they are told outside of a transaction too."""

    name = "notebook"

    def __init__(self) -> None:
        self.kept: tuff.MessageId | None = None
        self._next: tuff.MessageId | None = None

    def load(self) -> tuff.MessageId | None:
        return self.kept

    def save(self, id: tuff.MessageId, tx: object) -> None:
        self._next = id

    def start_tx(self, transaction: tuff.Transaction) -> None: ...
    def update_tx(self, transaction: tuff.Transaction) -> None: ...
    def tx_changes(self) -> Collection[bytes]:
        return [b"notebook"]

    def commit_tx(self) -> None: ...
    def post_commit(self) -> None:
        self.kept = self._next or self.kept

    def rollback_tx(self) -> None:
        self._next = None


def test_a_batch_that_process_aborts_is_not_done(client: tuff.Client, topic: tuff.TopicId) -> None:
    """Positions that take an id outside of a transaction had it skipped, and those of a table put
    it into the dead letters with a riddle for a reason."""
    client.publish(topic, "one", "two")
    seen: list[bytes] = []

    def process(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        seen.extend(message.payload for message in messages)
        if seen.count(b"one") == 1 or b"two" in seen:
            tx.abort()

    subscriber = client.subscriber(
        topic, process, positions=Notebook(), batch=1, wait=0, attempts=2
    )

    assert [subscriber.step() for _ in range(3)] == [1, 1, 0]
    assert seen == [b"one", b"one", b"two", b"two"]
    (told,) = letters(client, topic)
    assert told["payload"] == "two"
    assert told["reason"] == "RuntimeError: process ended its transaction, by tx.abort()"


def buried(
    client: tuff.Client, topic: tuff.TopicId, table: tuff.TransactionalTable, payload: bytes
) -> dict[str, object]:
    """The letter of a message that can't be processed; one after it can."""
    with client.transaction() as tx:
        tx.publish(topic, payload)
    client.publish(topic, "after")
    seen: list[bytes] = []

    def process(messages: Sequence[tuff.Message], tx: tuff.TransactionContext) -> None:
        if messages[0].payload == payload:
            raise ValueError("no")
        seen.extend(message.payload for message in messages)

    positions = tuff.TablePositions(table, "me")
    subscriber = client.subscriber(topic, process, positions=positions, batch=1, wait=0, attempts=1)
    assert [subscriber.step(), subscriber.step()] == [1, 1]
    assert seen == [b"after"]
    (told,) = letters(client, topic)
    return told


def test_a_message_of_control_characters_fits_into_its_letter(
    client: tuff.Client, topic: tuff.TopicId, table: tuff.TransactionalTable
) -> None:
    """Each took six bytes there, so that the letter was more than the server takes, for ever."""
    payload = b"\0" * (3 * MIB)

    told = buried(client, topic, table, payload)

    assert isinstance(told["payload"], dict)
    assert b64decode(told["payload"]["base64"]) == payload


def test_a_message_that_fits_into_no_letter_is_named_in_one(
    client: tuff.Client, topic: tuff.TopicId, table: tuff.TransactionalTable
) -> None:
    """It blocked its topic."""
    payload = b"\xff" * (13 * MIB)

    told = buried(client, topic, table, payload)

    assert (told["size"], told["reason"]) == (13 * MIB, "ValueError: no")
    assert "payload" not in told
    (message,) = client.poll(topic, str(told["id"]), limit=1)
    assert message.payload == payload


def test_a_letter_is_utf_8_whatever_the_reason_has() -> None:
    message = Message(tuff.MessageId(1, 2), "café".encode())

    text = dead_letter(tuff.TopicId("a", "b"), message, reason="no file \udcff", attempts=1)

    assert "café" in text.decode("utf-8")
    assert json.loads(text)["reason"] == "no file \\udcff"
