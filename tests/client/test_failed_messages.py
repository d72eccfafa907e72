"""What people see of a function that fails: log lines, dead letters, outages and pauses."""

import logging
from collections.abc import Callable
from traceback import extract_tb

import pytest

import tuff
from tuff.dead_letters import DeadLetter
from tuff.errors import OutcomeUnknownError
from tuff.flows_and_repeated_calls import Flow, Hook, Pause, Unless
from tuff.protocol.group_preferences import RetryPolicy
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.requests import Message
from tuff.retry_or_dead_letter import (
    ROW_COUNT,
    Attempt,
    Failure,
    Failures,
    check_signature,
    failure_of,
    given_up,
)

TOPIC = TopicId("shop", "orders")
QUICK = RetryPolicy(delays=(0,))
Run = Callable[..., None]


class AwayError(Exception):
    """The database of the program is away."""


def by_consumer(
    client: tuff.Client, topic: tuff.TopicId, work: Callable[[bytes], bool], policy: RetryPolicy
) -> None:
    with client.consumer(topic, group="g", retry=policy, batch=10) as consumer:

        def process(batch: tuff.Batch) -> None:
            for message in batch:
                if work(message.payload):
                    consumer.stop()

        consumer.run(process)


def by_worker(
    client: tuff.Client, topic: tuff.TopicId, work: Callable[[bytes], bool], policy: RetryPolicy
) -> None:
    with client.share_consumer(topic, group="g", retry=policy) as worker:

        def process(message: tuff.Message) -> None:
            if work(message.payload):
                worker.stop()

        worker.run(process)


@pytest.mark.parametrize("run", [by_consumer, by_worker])
def test_each_failed_attempt_is_a_warning_with_a_traceback_and_a_dead_letter_an_error(
    client: tuff.Client, topic: tuff.TopicId, caplog: pytest.LogCaptureFixture, run: Run
) -> None:
    """Failures of the function left no line at any level, and no traceback anywhere."""
    client.publish(topic, "bad", "good")

    def work(payload: bytes) -> bool:
        if payload == b"bad":
            raise LookupError("no such article")
        return payload == b"end"

    client.publish(topic, "end", delay=1)
    run(client, topic, work, QUICK)

    bad = client.poll(topic)[0]
    attempts = [each for each in caplog.records if "of message" in each.message]
    assert len(attempts) == 2
    for number, each in enumerate(attempts, start=1):
        assert each.levelno == logging.WARNING
        assert f"attempt {number} of message {bad.id.hex()}" in each.message
        assert each.exc_info is not None
        shown = extract_tb(each.exc_info[2])
        assert shown[0].filename == __file__, "no frames of the library above the program's"
    (given_up,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert bad.id.hex() in given_up.message
    assert f"`tuff dlq ls {topic}`" in given_up.message
    (letter,) = client.poll(tuff.TopicId(topic.namespace, f"{topic.name}.dlq"))
    traceback = tuff.read_dead_letter(letter).traceback or ""
    assert 'raise LookupError("no such article")' in traceback
    assert traceback.splitlines()[1].startswith(f'  File "{__file__}"')
    assert tuff.read_dead_letter(letter).reason == "LookupError: no such article"


@pytest.mark.parametrize("run", [by_consumer, by_worker])
def test_an_outage_waits_and_counts_no_attempt(
    client: tuff.Client, topic: tuff.TopicId, caplog: pytest.LogCaptureFixture, run: Run
) -> None:
    client.publish(topic, "a")
    answers = iter([AwayError("no route"), AwayError("no route"), None])

    def work(_: bytes) -> bool:
        if (error := next(answers)) is not None:
            raise error
        return True

    run(client, topic, work, RetryPolicy(delays=(), outage=(AwayError,)))

    assert f"{topic.name}.dlq" not in client.topics.list(topic.namespace)
    assert "waits for what its function works with: AwayError: no route" in caplog.text


@pytest.mark.parametrize("name", ["consumer", "share_consumer"])
def test_a_function_that_takes_other_arguments_is_refused_before_it_runs(
    client: tuff.Client, topic: tuff.TopicId, name: str
) -> None:
    """A wrong signature sent every good message to the dead letters."""
    client.publish(topic, "a")

    with (
        getattr(client, name)(topic, group="g", retry=QUICK) as consumer,
        pytest.raises(TypeError, match="is called with"),
    ):
        consumer.run(lambda one, two: None)

    assert f"{topic.name}.dlq" not in client.topics.list(topic.namespace)


def test_messages_that_fail_in_a_row_pause_the_consumer(caplog: pytest.LogCaptureFixture) -> None:
    """An outage that the policy does not know emptied a topic into the dead letters."""
    failures = Failures("a consumer", chance=lambda: 1.0)

    def failed(number: int) -> list[float]:
        failures.failed(TOPIC, MessageId(number, 0), 1, ValueError("no"))
        steps = list(failures.pause())
        assert all(isinstance(each, Unless) for each in steps)
        return [each.step.seconds for each in steps if isinstance(each.step, Pause)]  # type: ignore[union-attr]  # asserted

    pauses = [failed(number) for number in range(ROW_COUNT + 2)]

    assert pauses == [[]] * (ROW_COUNT - 1) + [[1.0], [2.0], [4.0]]
    assert failed(ROW_COUNT + 1) == [4.0]  # the same message again
    failures.succeeded()
    assert failed(100) == []
    assert caplog.text.count("pauses between messages") == 1


def test_a_dead_letter_in_a_topic_of_the_program_is_shown_by_tail(
    caplog: pytest.LogCaptureFixture,
) -> None:
    message = Message(MessageId(1, 0), b"a")
    letter = DeadLetter(topic=TOPIC.partition(3), message=message, reason="no", attempts=2)

    Failures("a consumer").gave_up(letter, TopicId("shop", "orders.dlq"))
    Failures("a consumer").gave_up(letter, TopicId("shop", "mine"))

    assert "`tuff dlq ls shop:orders` lists it" in caplog.messages[0]
    assert "`tuff tail shop:mine` shows it" in caplog.messages[1]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (None, True),
        (ValueError("no"), True),
        (AwayError("no route"), False),
        (tuff.TransactionConflictError("another was faster"), False),
        (tuff.TuffError("refused"), True),
    ],
)
def test_an_attempt_counts_unless_its_error_is_outside_of_the_messages(
    error: Exception | None, *, expected: bool
) -> None:
    failures = Failures("a consumer", (AwayError,))

    def work() -> Flow[None]:
        yield Hook(lambda: None)
        if error is not None:
            raise error

    flow = failures.attempt(work(), lambda one: isinstance(one, tuff.TransactionConflictError))
    assert isinstance(next(flow), Hook)
    with pytest.raises(StopIteration) as ended:
        flow.send(None)

    assert ended.value.value == Attempt(error, counts=expected)


def test_an_unknown_outcome_is_no_attempt_but_for_the_program() -> None:
    def work() -> Flow[None]:
        yield Hook(lambda: None)
        raise OutcomeUnknownError("no reply")

    flow = Failures("a consumer").attempt(work(), lambda _: True)
    next(flow)
    with pytest.raises(OutcomeUnknownError):
        flow.send(None)


def test_the_policy_decides_between_another_attempt_and_a_dead_letter() -> None:
    policy = RetryPolicy(delays=(1, 60))
    retry, dead, mine = (TopicId("shop", name) for name in ("orders.retry", "orders.dlq", "mine"))

    def letter(attempts: int) -> DeadLetter:
        message = Message(MessageId(1, 0), b"a")
        return DeadLetter(topic=TOPIC.partition(3), message=message, reason="", attempts=attempts)

    assert failure_of(policy, letter(1)) == Failure(letter(1), 1.0, retry)
    assert failure_of(policy, letter(2), delay_s=5.0) == Failure(letter(2), 5.0, retry)
    assert failure_of(policy, letter(3), delay_s=5.0) == Failure(letter(3), None, dead)
    assert failure_of(policy, letter(3), mine) == given_up(letter(3), mine)


def test_a_signature_that_is_unknown_is_accepted() -> None:
    check_signature(print, "batch", "tx")
    with pytest.raises(TypeError, match="missing a required argument"):
        check_signature(lambda batch, tx: None, "batch")
