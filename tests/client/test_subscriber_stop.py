"""`stop` ends a subscriber at once, whatever it waits for, from any thread or signal handler. It
can run again, even if its run raised (design §7)."""

import asyncio
import logging
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

import tuff
from tests.client.proxy import losing
from tests.client.recording import replace_pauses
from tests.http.process import ServerProcess
from tuff.commit_protocol import RENEW_S
from tuff.stop_signals import Stop, StoppedError

ANSWER_WITHIN_S = 60.0  # seconds; a stop that has no effect fails the test after this
HOUR_S = 3600.0
NO_SERVER = "http://127.0.0.1:9"  # no HTTP server listens on the discard port


@pytest.fixture
def positions(tmp_path: Path) -> Iterator[tuff.TablePositions]:
    with tuff.TransactionalTable(tmp_path / "table") as table:
        yield tuff.TablePositions(table, "stopped")


def never(messages: object, tx: object) -> None:
    raise AssertionError(messages)


@pytest.fixture
def on_signal() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("is_signal", [False, True], ids=["another thread", "a signal handler"])
@pytest.mark.usefixtures("on_signal")
def test_a_stop_ends_a_poll_that_waits(
    server: ServerProcess, topic: tuff.TopicId, positions: tuff.TablePositions, is_signal: bool
) -> None:
    pauses: list[float] = []
    with losing(server.url) as (url, losses):
        with tuff.Client(url, timeout=ANSWER_WITHIN_S, retries=0) as client:
            replace_pauses(client, lambda seconds, _stop: pauses.append(seconds))
            subscriber = client.subscriber(topic, never, positions=positions, wait=1)
            signal.signal(signal.SIGUSR1, lambda *_: subscriber.stop())
            stop = (lambda: os.kill(os.getpid(), signal.SIGUSR1)) if is_signal else subscriber.stop
            losses.hold("poll", stop)

            subscriber.run()

        assert losses.seen.count("poll") == 1
    assert pauses == []


@pytest.mark.parametrize("is_first", [True, False], ids=["for the position", "for the batch"])
def test_a_stop_ends_the_start_of_a_transaction(
    server: ServerProcess, topic: tuff.TopicId, positions: tuff.TablePositions, is_first: bool
) -> None:
    pauses: list[float] = []
    load = positions.load

    def hold_and_load(partition: str) -> tuff.MessageId | None:
        losses.hold("transactions", subscriber.stop)
        return load(partition)

    with losing(server.url) as (url, losses):
        with tuff.Client(url, timeout=ANSWER_WITHIN_S, retries=0) as client:
            replace_pauses(client, lambda seconds, _stop: pauses.append(seconds))
            client.publish(topic, "not processed")
            if not is_first:
                positions.load = hold_and_load  # type: ignore[method-assign]  # of this one alone
            subscriber = client.subscriber(topic, never, positions=positions)
            if is_first:
                losses.hold("transactions", subscriber.stop)

            subscriber.run()

        assert losses.seen.count("transactions") == (1 if is_first else 2)
    assert pauses == []


def test_a_stop_ends_the_lookup_of_latest(
    server: ServerProcess, topic: tuff.TopicId, positions: tuff.TablePositions
) -> None:
    with losing(server.url) as (url, losses):
        with tuff.Client(url, timeout=ANSWER_WITHIN_S, retries=0) as client:
            subscriber = client.subscriber(topic, never, positions=positions, start="latest")
            losses.hold("offsets", subscriber.stop)

            assert subscriber.step() == 0

        assert losses.seen[-1] != "poll"


async def test_a_stop_ends_a_poll_that_waits_on_an_event_loop(
    server: ServerProcess, topic: tuff.TopicId, positions: tuff.TablePositions
) -> None:
    with losing(server.url) as (url, losses):
        async with tuff.AsyncClient(url, timeout=HOUR_S, retries=0) as client:
            subscriber = client.subscriber(topic, never, positions=positions, wait=1)
            losses.hold("poll", subscriber.stop)

            async with asyncio.timeout(ANSWER_WITHIN_S):
                await subscriber.run()

        assert losses.seen.count("poll") == 1


def test_a_stop_ends_the_wait_for_the_server(
    topic: tuff.TopicId, positions: tuff.TablePositions
) -> None:
    with tuff.Client(NO_SERVER, retries=0) as client:
        subscriber = client.subscriber(topic, never, positions=positions)

        def stop_meanwhile(_seconds: float, stop: Stop | None) -> None:
            Thread(target=subscriber.stop).start()
            stop.wait(HOUR_S)

        replace_pauses(client, stop_meanwhile)

        subscriber.run()


async def test_a_stop_ends_the_wait_for_the_server_on_an_event_loop(
    topic: tuff.TopicId, positions: tuff.TablePositions, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tuff.AsyncClient(NO_SERVER, retries=0) as client:
        subscriber = client.subscriber(topic, never, positions=positions)

        async def stop_meanwhile(seconds: float) -> None:
            if seconds != RENEW_S:  # of the task beside it
                Thread(target=subscriber.stop).start()
            await asyncio.Event().wait()

        monkeypatch.setattr("tuff.aio.driver.asyncio.sleep", stop_meanwhile)

        await subscriber.run()


def test_a_stop_that_is_set_ends_every_wait_until_it_is_cleared() -> None:
    stop = Stop()
    stop.set()

    for _ in range(2):
        with pytest.raises(StoppedError):
            stop.wait(HOUR_S)
    stop.clear()
    stop.wait(0)


def test_a_stop_that_was_set_often_is_cleared_at_once() -> None:
    stop = Stop()
    for _ in range(100_000):  # more than a pipe holds
        stop.set()

    stop.clear()

    assert not stop.is_set
    assert select.select([stop], [], [], 0) == ([], [], [])


def test_a_stop_that_is_seen_set_can_be_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was called set before it was, and a subscriber that ended just then raised an error."""
    stop = Stop()
    write = os.write

    def clear_and_write(descriptor: int, data: bytes) -> int:
        if stop.is_set:
            stop.clear()
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", clear_and_write)
    stop.set()

    assert stop.is_set


def test_the_pipe_of_a_stop_is_closed_when_it_is_garbage() -> None:
    stop = Stop()
    descriptor = stop.fileno()

    del stop

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


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


def test_a_stop_without_a_run_ends_the_next_run_with_a_warning_and_the_one_after_it_works(
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

    with caplog.at_level(logging.WARNING, "tuff.exactly_once_subscriber"):
        subscriber.run()
    assert heard == [b"a"]
    assert "stopped before this run began" in caplog.text

    subscriber.run()
    assert heard == [b"a", b"a"]


def test_a_subscriber_can_run_again_after_a_run_that_raised(
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


def test_after_an_unknown_outcome_a_subscriber_continues_at_the_stored_position(
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
