"""An interrupt that comes while an error is cleaned up after ends whatever would go on after it.

In a block of the program's own it is a note on the error, which the program sees. `client.run` and
a subscriber answer errors themselves, and took the next attempt as if nobody had interrupted them.
"""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

import tuff
from tests.client.conftest import client as client
from tests.client.conftest import server as server
from tests.client.recording import Record, Service, Shelf
from tests.http.process import ServerProcess
from tuff.client_errors import ConnectionLostError
from tuff.protocol.errors import TransactionConflictError

CONFLICT = TransactionConflictError("somebody was faster")


def test_run_takes_no_other_attempt_after_an_interrupt() -> None:
    record = Record()
    record.fail = {"can_commit": CONFLICT, "a.rollback_tx": KeyboardInterrupt()}
    played = tuff.Client(transport=Service(record), client_id="tests", retries=0)

    with pytest.raises(KeyboardInterrupt) as caught:
        played.run(lambda tx: record.note("work"), Shelf("a", record, changes=[b"x"]))

    assert caught.value.__cause__ is CONFLICT
    assert record.steps.count("work") == 1
    assert record.steps[-1] == "invalidate"


def test_run_ends_for_an_interrupt_that_comes_while_it_asks_for_the_outcome() -> None:
    lost = ConnectionLostError("the reply was lost", outcome_unknown=True)
    record = Record()
    record.fail = {"commit": lost, "invalidate": KeyboardInterrupt()}
    played = tuff.Client(transport=Service(record), client_id="tests", retries=0)

    with pytest.raises(KeyboardInterrupt):
        played.run(lambda tx: record.note("work"), Shelf("a", record, changes=[b"x"]))


def test_run_takes_no_other_attempt_after_it_has_committed() -> None:
    """A conflict that a `post_commit` meets in a transaction of its own sold the apple twice."""
    record = Record()
    record.fail = {"a.post_commit": CONFLICT}
    played = tuff.Client(transport=Service(record), client_id="tests", retries=0)

    with pytest.raises(TransactionConflictError):
        played.run(lambda tx: record.note("work"), Shelf("a", record, changes=[b"x"]))

    assert record.steps.count("work") == 1
    assert record.steps[-2:] == ["commit", "a.post_commit"]


class Place:
    """Positions in memory, whose roll-back takes as long as somebody says."""

    name = "place"

    def __init__(self) -> None:
        self.is_rolling_back = asyncio.Event()
        self._is_done = asyncio.Event()

    def start_tx(self, transaction: tuff.Transaction) -> None: ...
    def update_tx(self, transaction: tuff.Transaction) -> None: ...
    def tx_changes(self) -> list[bytes]:
        return []

    def commit_tx(self) -> None: ...
    def post_commit(self) -> None: ...
    async def rollback_tx(self) -> None:
        self.is_rolling_back.set()
        await self._is_done.wait()

    def load(self) -> None: ...
    def save(self, place: tuff.MessageId, tx: object) -> None: ...


async def test_a_subscriber_that_is_cancelled_while_it_rolls_back_ends(
    server: ServerProcess, client: tuff.Client
) -> None:
    topic = tuff.TopicId("interrupted", "poison")
    client.topics.create(topic)
    client.publish(topic, "poison")
    place = Place()
    calls: list[int] = []

    def process(messages: Sequence[tuff.Message], tx: object) -> None:
        calls.append(len(messages))
        raise ZeroDivisionError

    async with tuff.AsyncClient(server.url) as loop_client:
        subscriber = loop_client.subscriber(
            topic, process, positions=cast(tuff.AsyncPositions, place), wait=0, attempts=3
        )
        task = asyncio.create_task(subscriber.run())
        await place.is_rolling_back.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert calls == [1]
