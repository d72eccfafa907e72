"""Mistakes of a program: a wrong value is a ValueError, a wrong type a TypeError, and a call at the
wrong moment a WrongStateError; and what the client logs."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import tuff
from tests.client.recording import Record, Service, Shelf
from tuff.calls import PollQuestion
from tuff.flows import Pause
from tuff.subscriber import Subscription

Misuse = Callable[[tuff.Client, tuff.TopicId], object]


@pytest.mark.parametrize(
    "misuse",
    [
        lambda client, topic: client.poll(topic, isolation="nope"),
        lambda client, topic: client.poll(topic, undecided="nope"),
        lambda client, topic: client.poll(topic, limit=-1),
        lambda client, topic: client.poll(topic, wait=-1),
        lambda client, topic: client.publish(topic),
        lambda client, topic: client.publish(topic, "x", ttl=-1),
        lambda client, topic: client.publish(topic, "half a pair \ud800"),
        lambda client, topic: client.transaction(type="nope").__enter__(),
        lambda client, topic: client.transactions.truncate(),
        lambda client, topic: client.publisher(topic, batch_bytes=0),
        lambda client, topic: tuff.Client("nope"),
        lambda client, topic: tuff.Client(retries=-1),
        lambda client, topic: tuff.TopicId("no spaces", "here"),
        lambda client, topic: tuff.MessageId.from_hex("nope"),
    ],
)
def test_a_wrong_value_is_a_value_error(
    client: tuff.Client, topic: tuff.TopicId, misuse: Misuse
) -> None:
    with pytest.raises(ValueError):
        misuse(client, topic)


@pytest.mark.parametrize(
    "misuse",
    [
        lambda client, topic: client.poll("shop:orders"),
        lambda client, topic: client.publish(topic, 5),
        lambda client, topic: client.publish(topic, "x", transaction="5"),
        lambda client, topic: client.publish(topic, "x", ttl="5"),
        lambda client, topic: client.transactions.can_commit(5, ["a string"]),
    ],
)
def test_a_wrong_type_is_a_type_error(
    client: tuff.Client, topic: tuff.TopicId, misuse: Misuse
) -> None:
    with pytest.raises(TypeError):
        misuse(client, topic)


def test_a_client_that_is_closed_is_in_the_wrong_state(
    client: tuff.Client, topic: tuff.TopicId
) -> None:
    client.close()

    with pytest.raises(tuff.WrongStateError) as caught:
        client.poll(topic)
    assert isinstance(caught.value, tuff.ClientClosedError)
    assert isinstance(caught.value, RuntimeError)


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


def test_a_reader_logs_once_that_it_waits_for_the_server_and_once_that_it_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    subscription = Subscription(tuff.TopicId("shop", "orders"), PollQuestion())
    end = tuff.MessageId(1, 0)
    poll = tuff.Poll(messages=(), next_id=end, caught_up=True, blocked_by=None, expired=False)
    lost = tuff.ConnectionLostError("nobody answers", outcome_unknown=False)
    caplog.set_level(logging.INFO, "tuff")

    for _ in range(2):
        flow = subscription.poll()
        next(flow)
        for _ in range(3):
            assert isinstance(flow.throw(lost), Pause)
            next(flow)
        with pytest.raises(StopIteration):
            flow.send(poll)

    away, back = (
        "the subscription of shop:orders waits for the server: nobody answers",
        "the subscription of shop:orders continues: the server answers again",
    )
    assert [(one.levelname, one.message) for one in caplog.records] == [
        ("WARNING", away), ("INFO", back), ("WARNING", away), ("INFO", back),
    ]  # fmt: skip
    assert all(one.name.startswith("tuff.") for one in caplog.records)


@pytest.mark.parametrize("step", ["can_commit", "commit"])
def test_a_conflict_within_a_block_does_not_advise_to_abort(step: str) -> None:
    record = Record()
    record.fail[step] = tuff.TransactionConflictError(
        "transaction 10 conflicts with transaction 9; undo its writes, abort it, and run it again"
    )
    client = tuff.Client(transport=Service(record), retries=0)

    context = client.transaction(Shelf("a", record, changes=[b"x"]))
    with pytest.raises(tuff.TransactionConflictError) as caught, context:
        pass

    assert str(caught.value) == caught.value.detail
    assert caught.value.detail == (
        "transaction 10 conflicts with transaction 9; run the block again, as `client.run` does"
    )
