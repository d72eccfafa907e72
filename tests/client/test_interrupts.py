"""Interrupts and cancellation: at every line of the blocking driver and of the commit protocol, of
the code that closes a response, and during the clean-up after an error.

In a block of the program's own an interrupt during the clean-up is a note on the error.
`client.run` and a subscriber handle errors themselves, and must not continue after an interrupt.
"""

import asyncio
import sys
from collections.abc import Callable, Sequence
from http.client import HTTPResponse
from types import CodeType, FrameType

import pytest

import tuff
from tests.client.recording import Participant, PlayedService, Record
from tests.http.process import ServerProcess
from tuff import flows_and_repeated_calls
from tuff.commit_protocol import CommitProtocol
from tuff.errors import ConnectionLostError
from tuff.protocol.errors import TransactionCommittedError, TransactionConflictError

LINE_COUNT_MAX = 1_000  # lines in one transaction; it takes about a hundred
ENDING = ("_finish", "_write", "_commit")  # what runs until the commit's answer is there


def is_of_the_driver(code: CodeType) -> bool:
    return code.co_filename == flows_and_repeated_calls.__file__ and code.co_qualname.startswith(
        "Driver."
    )


def is_of_the_ending(code: CodeType) -> bool:
    return code in [getattr(CommitProtocol, name).__code__ for name in ENDING]


def is_of_closing_an_answer(code: CodeType) -> bool:
    return code in [getattr(HTTPResponse, name).__code__ for name in ("close", "flush")]


class Interrupter:
    """Raises KeyboardInterrupt before the n-th line that is run of some functions.

    Lines before a flow has moved do not count: an interrupt there is one that came before the
    `with` block was left. Python itself runs nothing of ours then, and the server ends the
    transaction when its time is over.
    """

    def __init__(self, line_number: int, is_watched: Callable[[CodeType], bool]) -> None:
        self.left = line_number
        self._is_watched = is_watched
        self._has_moved = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> "Interrupter | None":
        if not self._is_watched(frame.f_code):
            return None
        if event == "call":
            self._has_moved = frame.f_code.co_name != "run"
        if event == "line" and self._has_moved:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


class FencingService(PlayedService):
    """Refuses to invalidate what has committed, as the real one does."""

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        self._steps = record.steps
        self._fail = record.fail

    def send(self, call: object, *, stop: object = None) -> object:
        if any(step.startswith("commit") for step in self._steps):
            self._fail["invalidate"] = TransactionCommittedError("it did")
        return super().send(call)


def interrupted_at(line_number: int, is_watched: Callable[[CodeType], bool]) -> tuple[Record, bool]:
    """What had happened in the end, and whether the interrupt came at all."""
    record = Record()
    client = tuff.Client(transport=FencingService(record), client_id="tests", retries=0)
    interrupter = Interrupter(line_number, is_watched)
    sys.settrace(interrupter)
    try:
        with client.transaction(Participant("a", record, changes=[b"x"])):
            record.note("body")
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return record, interrupter.left <= 0


@pytest.mark.skipif(sys.gettrace() is not None, reason="a debugger or coverage traces already")
@pytest.mark.parametrize(
    ("is_watched", "count_min"), [(is_of_the_driver, 50), (is_of_the_ending, 15)]
)
def test_an_interrupt_at_any_line_leaves_no_transaction_half_done(
    is_watched: Callable[[CodeType], bool], count_min: int
) -> None:
    """One that came between two steps of the commit left the participant in a dead transaction."""
    for line_number in range(1, LINE_COUNT_MAX):
        record, was_interrupted = interrupted_at(line_number, is_watched)
        steps = record.steps
        is_committed = "commit" in steps
        is_ended = is_committed or not {"abort", "invalidate", "withdraw"}.isdisjoint(steps)
        assert is_ended or steps == [], (line_number, steps)
        # A hook that the interrupt came in place of counts as one that failed.
        assert not (is_committed and "a.rollback_tx" in steps), (line_number, steps)
        assert is_committed or "a.post_commit" not in steps, (line_number, steps)
        is_told = "a.rollback_tx" in steps or "invalidate" in steps
        assert is_committed or is_told or "body" not in steps, (line_number, steps)
        if not was_interrupted:
            assert line_number > count_min
            return
    raise AssertionError("it never came to an end")


@pytest.mark.skipif(sys.gettrace() is not None, reason="a debugger or coverage traces already")
def test_no_interrupt_is_lost_while_an_answer_is_closed(server: ServerProcess) -> None:
    """One that came while the finalizer of an answer closed it was dropped, and a follower that was
    told to end waited on."""
    for line_number in range(1, LINE_COUNT_MAX):
        interrupter = Interrupter(line_number, is_of_closing_an_answer)
        with tuff.Client(server.url) as client:
            client.topics.list(
                "default"
            )  # the connection is there, and the next call sends and reads
            sys.settrace(interrupter)
            try:
                client.topics.list("default")
            except KeyboardInterrupt:
                continue
            finally:
                sys.settrace(None)
        assert interrupter.left > 0, f"the interrupt at line {line_number} is lost"
        assert line_number > 3
        return
    raise AssertionError("it never came to an end")


CONFLICT = TransactionConflictError("somebody was faster")


def test_run_takes_no_other_attempt_after_an_interrupt() -> None:
    record = Record()
    record.fail = {"can_commit": CONFLICT, "a.rollback_tx": KeyboardInterrupt()}
    played = tuff.Client(transport=PlayedService(record), client_id="tests", retries=0)

    with pytest.raises(KeyboardInterrupt) as caught:
        played.run(lambda tx: record.note("work"), Participant("a", record, changes=[b"x"]))

    assert caught.value.__cause__ is CONFLICT
    assert record.steps.count("work") == 1
    assert record.steps[-1] == "invalidate"


def test_run_ends_for_an_interrupt_that_comes_while_it_asks_for_the_outcome() -> None:
    lost = ConnectionLostError("the reply was lost", outcome_unknown=True)
    record = Record()
    record.fail = {"commit": lost, "invalidate": KeyboardInterrupt()}
    played = tuff.Client(transport=PlayedService(record), client_id="tests", retries=0)

    with pytest.raises(KeyboardInterrupt):
        played.run(lambda tx: record.note("work"), Participant("a", record, changes=[b"x"]))


def test_run_takes_no_other_attempt_after_it_has_committed() -> None:
    """A conflict that a `post_commit` meets in a transaction of its own sold the apple twice."""
    record = Record()
    record.fail = {"a.post_commit": CONFLICT}
    played = tuff.Client(transport=PlayedService(record), client_id="tests", retries=0)

    with pytest.raises(TransactionConflictError):
        played.run(lambda tx: record.note("work"), Participant("a", record, changes=[b"x"]))

    assert record.steps.count("work") == 1
    assert record.steps[-2:] == ["commit", "a.post_commit"]


class Place(tuff.connectors.AsyncPositions):
    """Positions in memory, whose roll-back never ends."""

    name = "place"

    def __init__(self) -> None:
        self.is_rolling_back = asyncio.Event()
        self._is_done = asyncio.Event()

    def tx_changes(self, transaction: tuff.Transaction) -> list[bytes]:
        return []

    def commit_tx(self, transaction: tuff.Transaction) -> None: ...
    async def rollback_tx(self, transaction: tuff.Transaction) -> None:
        self.is_rolling_back.set()
        await self._is_done.wait()

    def load(self, partition: tuff.PartitionId) -> None: ...
    def save(self, partition: tuff.PartitionId, place: tuff.MessageId, tx: object) -> None: ...


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
            topic,
            process,
            positions=place,
            wait=0,
            attempts=3,
        )
        task = asyncio.create_task(subscriber.run())
        async with asyncio.timeout(60):
            await place.is_rolling_back.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert calls == [1]
