"""What is sent again, when, and what is known when it has failed for good."""

from functools import partial

import pytest

from tuff import publish_calls, read_calls, topic_calls, transaction_calls
from tuff.errors import ClientClosedError, ConnectionLostError
from tuff.flows_and_repeated_calls import Call, Flow, Numbers, Pause, Retries, Step
from tuff.protocol.errors import (
    BadRequestError,
    ForbiddenError,
    OverloadedError,
    OwnershipMovingError,
    RequestForgottenError,
    ShuttingDownError,
    StorageOutcomeUnknownError,
    StorageUnavailableError,
    TransactionConflictError,
    TransactionUnknownError,
    TuffError,
    UnauthenticatedError,
)
from tuff.protocol.ids import TopicId
from tuff.protocol.requests import PublishEntry, PublishRequest
from tuff.read_calls import PollQuestion
from tuff.requests_and_responses import Query
from tuff.server_outages import Outages

TOPIC = TopicId("shop", "orders")
PUBLISH = publish_calls.publish(TOPIC, PublishRequest(None, [b"x"]))
COMMIT = transaction_calls.commit(5, [], [], read_only=False)
POLL = read_calls.poll(TOPIC, PollQuestion())

LOST = ConnectionLostError("lost", outcome_unknown=True)
REFUSED = ConnectionLostError("refused", outcome_unknown=False)
MOVING = OwnershipMovingError("topic orders is moving to another server")
STORAGE = StorageOutcomeUnknownError("the store failed")
FULL = StorageUnavailableError("nothing was written: the disk is full")


def waits(call: Call[object], *answers: TuffError | str, retries: int = 5) -> list[float]:
    """How long it waited between its attempts, of which these are the answers, one by one."""
    flow = Retries(retries, chance=lambda: 1.0).ask(call)
    found: list[float] = []
    left = list(answers)
    step: Step = flow.send(None)
    try:
        while True:
            if isinstance(step, Pause):
                found.append(step.seconds)
                step = flow.send(None)
                continue
            answer = left.pop(0)
            step = flow.throw(answer) if isinstance(answer, TuffError) else flow.send(answer)
    except StopIteration:
        assert left == []
        return found


def test_waits_double_up_to_a_bound() -> None:
    busy = OverloadedError("busy")

    assert waits(PUBLISH, *[busy] * 7, "done", retries=7) == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_chance_takes_up_to_half_of_a_wait() -> None:
    flow = Retries(1, chance=lambda: 0.0).ask(POLL)
    flow.send(None)

    assert flow.throw(LOST) == Pause(0.05)


def test_retry_after_is_honoured_up_to_a_bound() -> None:
    soon, late = OverloadedError("busy"), OverloadedError("busy")
    soon.retry_after_s, late.retry_after_s = 1.0, 3600.0

    assert waits(PUBLISH, soon, late, "done") == [1.0, 5.0]


@pytest.mark.parametrize("error", [LOST, REFUSED, STORAGE, MOVING, ShuttingDownError("stopping")])
@pytest.mark.parametrize("call", [COMMIT, POLL])
def test_a_call_without_a_second_effect_is_sent_again(call: Call[object], error: TuffError) -> None:
    assert len(waits(call, error, error, "done")) == 2


@pytest.mark.parametrize(
    "error", [REFUSED, FULL, MOVING, OverloadedError("busy"), ShuttingDownError("stop")]
)
def test_a_publish_that_was_not_done_is_sent_again(error: TuffError) -> None:
    assert len(waits(PUBLISH, error, "done")) == 1


@pytest.mark.parametrize("error", [LOST, STORAGE])
def test_without_an_id_a_publish_that_may_have_been_done_is_not_repeated(
    error: TuffError,
) -> None:
    with pytest.raises(type(error)):
        waits(PUBLISH, error, "never asked for")


def published(*answers: TuffError | str, retries: int = 5) -> list[Query]:
    """The queries of the attempts of a publish with an id, of which these are the answers."""
    flow = Retries(retries).publish(
        partial(publish_calls.publish, TOPIC, PublishRequest(None, [b"x"]))
    )
    found: list[Query] = []
    left = list(answers)
    step: Step = flow.send(None)
    try:
        while True:
            if isinstance(step, Pause):
                step = flow.send(None)
                continue
            assert isinstance(step, Call)
            found.append(step.request.sent_query)
            answer = left.pop(0)
            step = flow.throw(answer) if isinstance(answer, TuffError) else flow.send(answer)
    except StopIteration:
        assert left == []
        return found


@pytest.mark.parametrize("error", [LOST, STORAGE])
def test_a_publish_with_an_id_that_may_have_been_done_is_sent_again_with_its_age(
    error: TuffError,
) -> None:
    first, second, third = published(error, error, "done")

    assert set(first) == {"requestId"}
    assert {each["requestId"] for each in (second, third)} == {first["requestId"]}
    assert 0 < int(second["age"]) <= int(third["age"]) < 60_000


@pytest.mark.parametrize(
    "last", [RequestForgottenError("?"), UnauthenticatedError("?"), ForbiddenError("?"), REFUSED]
)
def test_a_lost_publish_that_the_server_does_not_know_stays_unknown(last: TuffError) -> None:
    with pytest.raises(ConnectionLostError) as caught:
        published(LOST, last, retries=1)

    assert caught.value.outcome_unknown


def test_a_request_id_has_the_lowest_number_that_may_be_repeated() -> None:
    numbers = Numbers()
    begun = [numbers.begin() for _ in range(3)]
    numbers.end(2)
    begun.append(numbers.begin())
    numbers.end(1)
    begun.append(numbers.begin())
    for number in (3, 4, 5):
        numbers.end(number)
    begun.append(numbers.begin())

    producers, *parts = zip(*(text.split(".") for _, text in begun), strict=True)
    assert [number for number, _ in begun] == [1, 2, 3, 4, 5, 6]
    assert len(set(producers)) == 1
    assert parts == [("1", "2", "3", "4", "5", "6"), ("1", "1", "1", "1", "3", "6")]


def test_a_forked_process_is_another_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = Numbers()
    _, of_parent = numbers.begin()

    monkeypatch.setattr("os.getpid", lambda: -1)
    number, of_child = numbers.begin()

    assert number == 1
    assert of_child.split(".")[0] != of_parent.split(".")[0]


@pytest.mark.parametrize(
    "error", [BadRequestError("no"), TransactionConflictError("no"), ClientClosedError()]
)
def test_an_error_that_a_retry_does_not_cure_is_raised_at_once(error: TuffError) -> None:
    with pytest.raises(type(error)):
        waits(COMMIT, error, "never asked for")


def test_the_last_error_is_raised_when_the_attempts_are_over() -> None:
    with pytest.raises(ConnectionLostError, match="refused"):
        waits(POLL, LOST, LOST, REFUSED, retries=2)


@pytest.mark.parametrize("first", [LOST, STORAGE])
@pytest.mark.parametrize(
    "last", [REFUSED, MOVING, OverloadedError("busy"), TransactionUnknownError("?")]
)
def test_an_unknown_outcome_of_one_attempt_stays_unknown_after_a_refusal_of_the_next(
    first: TuffError, last: TuffError
) -> None:
    """A commit was lost, its repetition was refused as the server was gone by then, and the rows of
    a transaction that had committed were rolled back."""
    with pytest.raises(ConnectionLostError) as caught:
        waits(COMMIT, first, last, retries=1)

    assert caught.value.outcome_unknown
    assert not caught.value.retry_safe


def test_an_answer_of_the_server_settles_a_doubt() -> None:
    with pytest.raises(TransactionConflictError):
        waits(COMMIT, LOST, TransactionConflictError("no"))


@pytest.mark.parametrize(
    ("call", "is_repeatable"),
    [
        (transaction_calls.start(type="long", timeout_s=None, client=None, request_id="r"), True),
        (transaction_calls.can_commit(5, []), True),
        (transaction_calls.abort(5), True),
        (transaction_calls.invalidate(5), True),
        (transaction_calls.checkpoint(5), True),
        (transaction_calls.renew(5), True),
        (transaction_calls.begin_epoch("s", 7, "r", lease_s=None, client="c"), True),
        (transaction_calls.delete_sink("s"), False),
        (transaction_calls.truncate(ids=[5], before_ms=None), True),
        (transaction_calls.truncate(ids=None, before_ms=5), False),
        (transaction_calls.run([PublishEntry(topic=TOPIC, payloads=[b"x"])], client=None,
                               request_id="1"), True),
        (publish_calls.store(TOPIC, PublishRequest(5, [b"x"])), False),
        (publish_calls.publish(TOPIC, PublishRequest(5, [])), False),
        (topic_calls.create_topic(TOPIC, {}), False),
        (topic_calls.update_topic(TOPIC, {}, dry_run=False), True),
        (topic_calls.delete_topic(TOPIC), False),
    ],
    ids=lambda value: value.request.path if isinstance(value, Call) else "",
)  # fmt: skip
def test_which_calls_have_no_second_effect(call: Call[object], *, is_repeatable: bool) -> None:
    assert call.request.is_repeatable == is_repeatable


def outlasted(outages: Outages, *answers: TuffError | str) -> tuple[object, list[float]]:
    """The result of a flow whose attempts have these answers, and the waits between them."""
    left, found = list(answers), []

    def attempt() -> Flow[str]:
        answer = left.pop(0)
        if isinstance(answer, TuffError):
            raise answer
        return answer
        yield

    flow = outages.outlasting(attempt)
    try:
        while True:
            step = flow.send(None)
            assert isinstance(step, Pause)
            found.append(step.seconds)
    except StopIteration as end:
        return end.value, found


def test_a_reader_waits_for_its_server_with_growing_pauses() -> None:
    busy = OverloadedError("busy")
    busy.retry_after_s = 3.0
    outages = Outages("a reader", chance=lambda: 1.0)

    assert outlasted(outages, REFUSED, LOST, busy, "done") == ("done", [0.1, 0.2, 3.0])
    assert outlasted(outages, *[REFUSED] * 7, "done")[1] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_a_reader_with_a_bound_raises_after_so_many_attempts_and_counts_anew() -> None:
    outages = Outages("a reader", count_max=2)

    for _ in range(2):
        assert outlasted(outages, REFUSED, REFUSED, "done")[0] == "done"
    with pytest.raises(ConnectionLostError):
        outlasted(outages, REFUSED, REFUSED, REFUSED, "never asked for")
    assert not outages.is_away
    with pytest.raises(BadRequestError):
        outlasted(outages, BadRequestError("no"), "never asked for")
