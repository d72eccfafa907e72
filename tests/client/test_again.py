"""A subscriber that was stopped, or whose run raised, can be used again (design §7)."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import tuff
from tests.client.proxy import losing
from tests.http.process import ServerProcess


@pytest.fixture
def positions(tmp_path: Path) -> Iterator[tuff.TablePositions]:
    with tuff.TransactionalTable(tmp_path / "table") as table:
        yield tuff.TablePositions(table, "again")


def payloads(messages: list[tuff.Message]) -> list[bytes]:
    return [message.payload for message in messages]


def test_a_step_takes_one_stop_and_the_next_one_works(
    client: tuff.Client, topic: tuff.TopicId, positions: tuff.TablePositions
) -> None:
    """Every later one did nothing, and said that nothing was there."""
    client.publish(topic, "a", "b")
    heard: list[bytes] = []

    def process(messages: list[tuff.Message], tx: tuff.TransactionContext) -> None:
        heard.extend(payloads(messages))
        subscriber.stop()

    subscriber = client.subscriber(topic, process, positions=positions, wait=60, batch=1)

    assert [subscriber.step() for _ in range(4)] == [1, 0, 1, 0]
    assert heard == [b"a", b"b"]


def test_a_stop_ends_the_next_run_which_says_so_and_the_one_after_it_works(
    client: tuff.Client,
    topic: tuff.TopicId,
    positions: tuff.TablePositions,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client.publish(topic, "a")
    heard: list[bytes] = []

    def process(messages: list[tuff.Message], tx: tuff.TransactionContext) -> None:
        heard.extend(payloads(messages))
        subscriber.stop()
        if len(heard) == 1:
            raise KeyboardInterrupt

    subscriber = client.subscriber(topic, process, positions=positions, wait=60)
    with pytest.raises(KeyboardInterrupt):
        subscriber.run()

    with caplog.at_level(logging.WARNING, "tuff.subscriber"):
        subscriber.run()
    assert heard == [b"a"]
    assert "stopped before this run began" in caplog.text

    subscriber.run()
    assert heard == [b"a", b"a"]


def test_one_whose_run_raised_runs_again(
    client: tuff.Client, topic: tuff.TopicId, positions: tuff.TablePositions
) -> None:
    heard: list[bytes] = []

    def process(messages: list[tuff.Message], tx: tuff.TransactionContext) -> None:
        heard.extend(payloads(messages))
        subscriber.stop()

    subscriber = client.subscriber(topic, process, positions=positions, wait=60)
    client.topics.delete(topic)
    with pytest.raises(tuff.TopicNotFoundError):
        subscriber.run()

    client.topics.create(topic)
    client.publish(topic, "a")
    subscriber.run()
    assert heard == [b"a"]


def test_one_that_does_not_know_its_last_commit_goes_on_with_what_is_true(
    server: ServerProcess, topic: tuff.TopicId, tmp_path: Path
) -> None:
    heard: list[bytes] = []
    with (
        losing(server.url) as (url, losses),
        tuff.Client(url, retries=0) as client,
        tuff.TransactionalTable(tmp_path / "rows") as rows,
    ):
        client.publish(topic, "a", "b")

        def process(messages: list[tuff.Message], tx: tuff.TransactionContext) -> None:
            heard.extend(payloads(messages))
            rows.put(b"count", b"%d" % (int(rows.get(b"count") or b"0") + 1))

        place = tuff.TablePositions(rows, "unknown")
        subscriber = client.subscriber(topic, process, positions=place, wait=0, batch=1)
        losses.lose_reply("commit", times=1)
        losses.lose_request("invalidate", times=1)
        with pytest.raises(tuff.OutcomeUnknownError):
            subscriber.step()

        while subscriber.step() or len(heard) < 2:
            pass
        with client.transaction(rows):
            counted = rows.get(b"count")

    assert (heard, counted) == ([b"a", b"b"], b"2")
