"""Messages that wait in memory: the batches of a publisher, decided without a clock, and the buffer
of a transaction (protocol §3.2, §5.2)."""

from contextlib import suppress
from typing import Any

import pytest

import tuff
from tests.client.recording import PlayedService, Record
from tuff.blocking.context import TransactionContext
from tuff.errors import ConnectionLostError
from tuff.protocol.ids import TopicId
from tuff.protocol.requests import Delay
from tuff.publish_calls import BUFFER_BYTES_MAX, MESSAGE_BYTES, Addition
from tuff.publisher_batches import Accumulator, Limits

Strings = Accumulator[str]
ORDERS = TopicId("shop", "orders")
MAILS = TopicId("shop", "mails")


def accumulator(*, batch_count: int = 3, linger_s: float = 5.0, unwanted: str = "") -> Strings:
    """Of messages with one byte each, so many fill a batch."""
    size_bytes = batch_count * (1 + MESSAGE_BYTES)
    limits = Limits(batch_bytes=size_bytes, linger_s=linger_s)
    return Accumulator(limits, claim=lambda name: name not in unwanted)


def add(into: Strings, names: str, *, to: TopicId = ORDERS, now_s: float = 0.0) -> list[bool]:
    return [into.add(Addition(to, [name.encode()]), name, now_s=now_s) for name in names]


def room(of: Strings, *payloads: bytes) -> bool:
    return of.has_room(Addition(ORDERS, list(payloads)))


def taken(of: Strings, *, now_s: float = 99.0) -> str:
    return "".join(of.take(now_s=now_s).receipts)


def test_a_lone_message_lingers_so_long_and_no_longer() -> None:
    waiting = accumulator()
    assert waiting.due_in_s(now_s=0) is None

    add(waiting, "a", now_s=10)
    add(waiting, "b", now_s=12)

    assert [waiting.due_in_s(now_s=now_s) for now_s in (12, 15, 99)] == [3, 0, 0]


def test_a_full_batch_does_not_linger() -> None:
    waiting = accumulator()

    may_be_sooner = add(waiting, "abc")

    assert waiting.due_in_s(now_s=0) == 0
    assert may_be_sooner == [True, False, True]


def test_batches_keep_the_order_and_their_bound() -> None:
    waiting = accumulator()
    add(waiting, "abcdefg")

    batches = [waiting.take(now_s=99) for _ in range(3)]

    assert [batch.receipts for batch in batches] == [["a", "b", "c"], ["d", "e", "f"], ["g"]]
    assert batches[0].messages == [b"a", b"b", b"c"]
    assert waiting.due_in_s(now_s=0.0) is None


def test_what_is_larger_than_a_batch_goes_alone() -> None:
    waiting = accumulator()
    add(waiting, "a")
    waiting.add(Addition(ORDERS, [b"x" * 1000]), "large", now_s=0)
    add(waiting, "b")
    waiting.add(Addition(ORDERS, [b"x"] * 4), "many", now_s=0)

    assert [taken(waiting) for _ in range(4)] == ["a", "large", "b", "many"]


def test_the_messages_of_one_call_are_in_one_batch() -> None:
    waiting = accumulator()
    add(waiting, "ab")
    waiting.add(Addition(ORDERS, [b"c", b"d"]), "cd", now_s=0)

    assert [taken(waiting) for _ in range(2)] == ["ab", "cd"]


def test_a_batch_is_of_one_topic_and_the_one_with_the_oldest_message_comes_first() -> None:
    waiting = accumulator(batch_count=2)
    add(waiting, "a")
    add(waiting, "12", to=MAILS)
    add(waiting, "bc")
    add(waiting, "345", to=MAILS)

    assert [taken(waiting) for _ in range(5)] == ["ab", "12", "c", "34", "5"]
    assert waiting.due_in_s(now_s=0.0) is None


def test_a_topic_that_lingers_does_not_delay_one_with_a_full_batch() -> None:
    waiting = accumulator(batch_count=2)
    add(waiting, "a", now_s=0)
    add(waiting, "12", to=MAILS, now_s=1)

    assert taken(waiting, now_s=1) == "12"
    assert waiting.due_in_s(now_s=1) == 4


def test_a_batch_has_one_time_to_live_and_one_delay() -> None:
    waiting = accumulator(batch_count=9)
    for name, ttl_s, delay in (
        ("a", None, None), ("b", None, None), ("c", 60, None), ("d", None, None),
        ("e", None, Delay(5, is_time=False)), ("f", None, Delay(5, is_time=True)),
    ):  # fmt: skip
        waiting.add(Addition(ORDERS, [name.encode()], ttl_s, delay), name, now_s=0)

    assert [taken(waiting) for _ in range(5)] == ["ab", "c", "d", "e", "f"]


def test_a_flush_is_for_the_messages_of_all_topics_that_waited_then() -> None:
    waiting = accumulator()
    add(waiting, "a")
    add(waiting, "1", to=MAILS)
    waiting.flush()
    assert [taken(waiting, now_s=0) for _ in range(2)] == ["a", "1"]

    add(waiting, "b", now_s=1)

    assert waiting.due_in_s(now_s=1) == 5


def test_a_flush_is_settled_with_its_own_messages_and_not_with_as_many_others() -> None:
    waiting = accumulator(batch_count=2)
    add(waiting, "a")
    add(waiting, "1", to=MAILS)
    first = waiting.take(now_s=99)
    number = waiting.flush()
    add(waiting, "2", to=MAILS)
    mails = waiting.take(now_s=0)
    waiting.settled(mails)
    assert mails.receipts == ["1", "2"]
    assert not waiting.is_settled(number), "that of the first batch is under way"

    waiting.settled(first)

    assert waiting.is_settled(number)


def test_a_cancelled_message_is_left_out_and_counts_as_settled() -> None:
    waiting = accumulator(unwanted="bd")
    add(waiting, "abcd")
    number = waiting.flush()

    batch = waiting.take(now_s=0)
    waiting.settled(batch)

    assert batch.receipts == ["a", "c"]
    assert waiting.due_in_s(now_s=0.0) is None
    assert waiting.is_settled(number)
    assert room(waiting, b"x" * 100_000)


def test_there_is_room_for_eight_batches_of_all_topics_until_one_is_settled() -> None:
    waiting = accumulator()
    add(waiting, "abc" * 4)
    add(waiting, "abc" * 4, to=MAILS)
    assert not room(waiting, b"x")

    batch = waiting.take(now_s=0)
    assert not room(waiting, b"x"), "it is still in memory while it is on its way"
    waiting.settled(batch)

    assert room(waiting, b"x")


def test_no_message_is_too_large_for_an_empty_accumulator() -> None:
    waiting = accumulator()

    assert room(waiting, b"x" * 100_000)
    add(waiting, "a")
    assert not room(waiting, b"x" * 100_000)


def test_the_buffer_is_bounded_by_bytes_and_by_messages() -> None:
    cost_bytes = 1 + MESSAGE_BYTES
    few_bytes = Limits(batch_bytes=cost_bytes, buffer_bytes=3 * cost_bytes)
    few_messages = Limits(buffer_count=3, max_block_s=0.5, linger_s=0)
    for limits in (few_bytes, few_messages):
        waiting: Strings = Accumulator(limits, claim=lambda _: True)
        add(waiting, "ab")
        assert room(waiting, b"c")
        assert not room(waiting, b"c", b"d"), "the messages of a call wait together"
        add(waiting, "c")
        assert not room(waiting, b"d")

        batch = waiting.take(now_s=0)
        assert not room(waiting, b"d"), "it is still in memory while it is on its way"
        waiting.settled(batch)
        assert room(waiting, b"d")

    add(waiting, "ab")
    assert "held 2 messages of 130 bytes" in str(waiting.full())
    assert "within 0.5 s" in str(waiting.full())


@pytest.mark.parametrize(
    ("numbers", "named"),
    [
        ({"buffer_bytes": (256 << 10) - 1}, "buffer_bytes is at least batch_bytes"),
        ({"buffer_messages": 0}, "buffer_messages"),
        ({"max_block": -1}, "max_block"),
        ({"ack": "all"}, "ack is none, received or durable"),
        ({"batch_bytes": 0}, "batch_bytes"),
        ({"batch_bytes": (1 << 20) + 1}, "batch_bytes"),
        ({"linger": -1}, "linger"),
        ({"linger": 60.1}, "linger"),
    ],
)
def test_values_out_of_their_range_are_refused(numbers: dict[str, Any], named: str) -> None:
    with tuff.Client() as client, pytest.raises(ValueError, match=named):
        client.publisher(**numbers)


@pytest.fixture
def record() -> Record:
    return Record()


@pytest.fixture
def service(record: Record) -> PlayedService:
    return PlayedService(record)


@pytest.fixture
def context(service: PlayedService) -> TransactionContext:
    return tuff.Client(transport=service, client_id="tests", retries=0).transaction()


def test_messages_that_do_not_fit_into_memory_are_stored_and_referred_to_behind_the_rest(
    context: TransactionContext, record: Record, service: PlayedService
) -> None:
    big = "x" * (BUFFER_BYTES_MAX - 200)

    with context as tx:
        tx.publish(ORDERS, "first")
        tx.publish(ORDERS, big, "stored")
        tx.publish(ORDERS, "stored as well")
        tx.publish(TopicId("shop", "audit"), "y" * 200)

    assert record.steps == ["start", "store", "store", "store", "commit"]
    assert [tuple(request.payloads) for request in service.stored] == [
        (b"stored",), (b"stored as well",), (b"y" * 200,),
    ]  # fmt: skip
    assert [(entry["topic"], len(entry["messages"])) for entry in service.entries] == [
        ("orders", 2), ("orders", 0), ("audit", 0),
    ]  # fmt: skip


def test_messages_that_fill_the_buffer_to_its_last_byte_wait_for_the_commit(
    context: TransactionContext, record: Record
) -> None:
    with context as tx:
        tx.publish(ORDERS, "x" * (BUFFER_BYTES_MAX - MESSAGE_BYTES))

    assert record.steps == ["start", "commit"]


def test_a_commit_refers_to_every_pointer_with_stored_messages(
    context: TransactionContext, service: PlayedService
) -> None:
    with context as tx:
        tx.publish(ORDERS, "x" * BUFFER_BYTES_MAX)
        tx.checkpoint()
        tx.publish(ORDERS, "x" * BUFFER_BYTES_MAX)

    assert [(entry["pointer"], entry["messages"]) for entry in service.entries] == [
        ("10", []), ("11", []),
    ]  # fmt: skip


def test_messages_that_could_not_be_stored_can_not_be_committed(
    context: TransactionContext, record: Record
) -> None:
    """A store whose reply was lost may be there: published again, it would come twice."""
    record.fail["store"] = ConnectionLostError("lost", outcome_unknown=True)

    def ignore_the_error() -> None:
        with context as tx, suppress(ConnectionLostError):
            tx.publish(ORDERS, "x" * BUFFER_BYTES_MAX)

    with pytest.raises(RuntimeError, match="could not be stored"):
        ignore_the_error()

    assert record.steps == ["start", "store", "abort"]


def test_a_real_server_returns_the_messages_of_a_large_transaction_in_order(
    client: tuff.Client, topic: TopicId
) -> None:
    """Beyond the buffer, across a checkpoint, and of a second topic between."""
    big = b"x" * (BUFFER_BYTES_MAX // 2)
    published = [b"first", big, b"\xff" + big, big, b"after", b"checkpointed"]
    other = TopicId(topic.namespace, f"{topic.name}-other")
    client.topics.create(other)

    with client.transaction() as tx:
        tx.publish(topic, *published[:3])
        tx.publish(other, "late")
        tx.publish(topic, *published[3:5])
        tx.checkpoint()
        tx.publish(topic, published[5])
        assert list(client.poll(topic)) == []

    read = list(client.poll(topic, isolation="committed", limit=100))
    assert [message.payload for message in read] == published
    assert [message.payload for message in client.poll(other, isolation="committed")] == [b"late"]


def test_stored_messages_of_a_transaction_that_rolls_back_never_appear(
    client: tuff.Client, topic: TopicId
) -> None:
    with client.transaction() as tx:
        tx.publish(topic, b"x" * (2 * BUFFER_BYTES_MAX))
        tx.abort()

    assert list(client.poll(topic)) == []
