"""The recorded attempts of clients let the checker find each kind of loss."""

from itertools import count

import pytest

from tests.faults.history import BEGINNING, Attempt, Outcome, Poll, Recorder, View
from tests.faults.workload_messages import require_no_violation

OK, FAIL, UNKNOWN = Outcome.OK, Outcome.FAIL, Outcome.UNKNOWN
BOTH = ("a", "b")
Found = list[tuple[str, str]]
A, B, C = ("01", "a"), ("02", "b"), ("03", "c")


def published(outcome: Outcome, *sent: str, began: int = 0, **topics: tuple[str, ...]) -> Attempt:
    """An attempt with a transaction that publishes to the topic t and to others."""
    requests = (("t", sent), *topics.items())
    return Recorder("c", count(began).__next__).ended(outcome, requests, pointer="7")


def shown(
    found: Found, view: View = View.COMMITTED, *, began: int = 50, **topics: Found
) -> Attempt:
    """A later reader that read this of the topic t, and of others, to their ends."""
    polls = (
        Poll(
            topic=topic, view=view, at_end=True, until="~",
            found=tuple((message_id.rjust(40, "0"), value) for message_id, value in each),
        )
        for topic, each in {"t": found, **topics}.items()
    )  # fmt: skip
    reader = Recorder("r", count(began).__next__)
    reader.add(*polls)
    return reader.ended(OK)


@pytest.mark.parametrize(
    ("outcome", "found"), [(OK, [A, B]), (UNKNOWN, [A, B]), (UNKNOWN, []), (FAIL, [])]
)
def test_a_correct_history_passes(outcome: Outcome, found: Found) -> None:
    require_no_violation([published(outcome, *BOTH), shown(found)])


@pytest.mark.parametrize(
    ("outcome", "found"),
    [
        (OK, []), (OK, [A]), (OK, [B]), (OK, [A, B, ("04", "a")]), (OK, [A, C, B]),
        (OK, [("01", "b"), ("02", "a")]), (OK, [("02", "b"), ("01", "a")]), (OK, [A, B, C]),
        (FAIL, [A]), (FAIL, [A, B]), (UNKNOWN, [A]),
    ],
)  # fmt: skip
def test_each_kind_of_loss_is_found(outcome: Outcome, found: Found) -> None:
    with pytest.raises(AssertionError):
        require_no_violation([published(outcome, *BOTH), shown(found)])


def test_publishes_are_in_the_order_of_their_replies() -> None:
    attempts = [published(OK, "a"), published(OK, "c", began=5)]

    require_no_violation([*attempts, shown([A, C])])
    with pytest.raises(AssertionError, match="REORDERED"):
        require_no_violation([*attempts, shown([("01", "c"), ("02", "a")])])


def test_a_publish_without_a_reply_may_be_after_a_later_one() -> None:
    attempts = [published(UNKNOWN, "a"), published(OK, "c", began=5)]

    require_no_violation([*attempts, shown([("01", "c"), ("02", "a")])])


def test_a_transaction_is_on_all_of_its_topics_or_on_none() -> None:
    attempt = published(UNKNOWN, *BOTH, s=("c",))

    require_no_violation([attempt, shown([A, B], s=[C])])
    require_no_violation([attempt, shown([], s=[])])
    for torn in ({"found": [A, B], "s": []}, {"found": [], "s": [C]}):
        # The second reader came later than the commit that the first one was shown.
        with pytest.raises(AssertionError, match="TORN"):
            require_no_violation([attempt, shown(**torn), shown(**torn, view=View.ALL, began=60)])


def test_an_interrupted_run_may_leave_rows_and_its_repetition_is_there_once() -> None:
    run = Recorder("c", count().__next__).ended(UNKNOWN, (("t", ("a",)),), body={"requestId": "1"})
    place = "02".rjust(40, "0")
    repeated = run.ended(OK, completed=9, ids=[(place, place)])

    require_no_violation([repeated, shown([("01", "a"), ("02", "a")], View.ALL)])
    with pytest.raises(AssertionError, match="DUPLICATED"):
        require_no_violation([repeated, shown([("01", "a"), ("02", "a")])])


def test_no_message_has_the_id_of_the_beginning_of_a_topic() -> None:
    with pytest.raises(AssertionError):
        require_no_violation([published(OK, "a"), shown([(BEGINNING, "a")])])
