"""The judge of cluster histories finds each planted violation, and accepts correct histories."""

from dataclasses import replace

import pytest

from tests.faults.cluster_judge import (
    Counted,
    Did,
    Final,
    Outage,
    Pair,
    Publish,
    Read,
    outages,
    torn,
    violations,
)

FIRST = Publish(
    topic="t", publisher="p", payload="a", began_s=1.0, ended_s=2.0, did=Did.IT, message_id="01"
)
SECOND = Publish(
    topic="t", publisher="p", payload="b", began_s=3.0, ended_s=4.0, did=Did.IT, message_id="02"
)
THIRD = replace(SECOND, payload="c", began_s=5.0, ended_s=6.0, message_id="03")
ROWS = (("01", "a"), ("02", "b"), ("03", "c"))
READ = Read(topic="t", consumer="reader", after="", began_s=20.0, ids=("01",), caught_up=False)
COUNTED = Counted(
    pointer=7, key="k", started_s=1.0, commit_s=2.0, ended_s=3.0, did=Did.IT, final="committed"
)


def of(
    *publishes: Publish, rows: tuple[tuple[str, str], ...] = ROWS, reads: tuple[Read, ...] = ()
) -> list[str]:
    return violations(publishes, reads, [], {"t": rows})


def test_a_correct_history_has_no_violation() -> None:
    assert of(FIRST, SECOND, THIRD, reads=(READ,)) == []


def test_an_acknowledged_message_that_is_lost_is_found() -> None:
    assert of(FIRST, SECOND, rows=ROWS[:1]) == [
        "topic t: b was acknowledged as 02, and is lost",
    ]


def test_a_message_that_is_there_twice_is_found() -> None:
    assert of(FIRST, rows=(("01", "a"), ("02", "a"))) == ["topic t: a is there 2 times"]


def test_a_message_with_another_id_than_acknowledged_is_found() -> None:
    assert of(FIRST, rows=(("05", "a"),)) == ["topic t: a was acknowledged as 01, is 05"]


def test_a_refused_message_that_is_there_is_found() -> None:
    refused = replace(FIRST, did=Did.NOTHING, message_id="")

    assert of(refused, rows=ROWS[:1]) == ["topic t: a was refused as not executed, and is there"]


def test_a_message_of_nobody_is_found() -> None:
    assert of(rows=ROWS[:1]) == ["topic t: it has a message that nobody published: a"]


@pytest.mark.parametrize("rows", [ROWS[:1], ()])
def test_a_message_with_an_unknown_outcome_may_be_there_once_or_not_at_all(
    rows: tuple[tuple[str, str], ...],
) -> None:
    assert of(replace(FIRST, did=Did.PERHAPS, message_id=""), rows=rows) == []


def test_a_poll_out_of_order_is_found() -> None:
    assert of(FIRST, SECOND, rows=(ROWS[1], ROWS[0])) == ["topic t: a poll gave 01 behind 02"]


def test_an_id_below_one_that_was_acknowledged_before_is_found() -> None:
    """Two owners acknowledged at once, or a new owner began below the floor of the old one."""
    late = replace(THIRD, message_id="015")
    rows = (ROWS[0], ("015", "c"), ROWS[1])

    assert of(FIRST, SECOND, late, rows=rows) == [
        "topic t: c got 015, although b had been acknowledged before as 02",
    ]


def test_concurrent_publishes_may_have_any_order() -> None:
    late = replace(THIRD, began_s=3.5, message_id="015")

    assert of(FIRST, SECOND, late, rows=(ROWS[0], ("015", "c"), ROWS[1])) == []


def test_a_message_that_appears_behind_a_reader_is_found() -> None:
    """The reader has passed 02 without it."""
    passed = replace(READ, ids=("02", "03"))

    assert of(FIRST, SECOND, THIRD, reads=(passed,)) == [
        "topic t: reader read 02 behind nothing, not 01",
    ]


def test_a_message_that_was_read_and_is_not_there_is_found() -> None:
    further = replace(READ, after="03", ids=("04",))

    assert of(FIRST, SECOND, THIRD, reads=(further,)) == [
        "topic t: reader read 04 behind 03, not nothing",
    ]


def test_a_read_that_lacks_what_was_acknowledged_long_before_is_found() -> None:
    old = replace(READ, caught_up=True)

    assert of(FIRST, SECOND, THIRD, reads=(old,)) == [
        "topic t: reader was caught up at 01, more than 5 s after 03 had been acknowledged",
    ]


def test_a_read_may_lack_what_was_acknowledged_within_the_lease() -> None:
    old = replace(READ, began_s=8.0, caught_up=True)

    assert of(FIRST, SECOND, THIRD, reads=(old,)) == []


def test_two_commits_of_one_key_that_were_open_at_once_are_found() -> None:
    other = replace(COUNTED, pointer=8, started_s=1.5, commit_s=4.0, ended_s=5.0)

    assert violations([], [], [COUNTED, other], {}) == [
        "transactions: 7 and 8 were open at once, and both committed changes of k",
    ]


def test_commits_of_one_key_one_after_the_other_are_correct() -> None:
    other = replace(COUNTED, pointer=8, started_s=3.5, commit_s=4.0, ended_s=5.0)

    assert violations([], [], [COUNTED, other], {}) == []


def test_a_lost_commit_is_found() -> None:
    lost = replace(COUNTED, final="invalid")

    assert violations([], [], [lost], {}) == [
        "transactions: 7 was acknowledged as committed, and is invalid",
    ]


def test_a_pointer_of_two_leaders_is_found() -> None:
    other = replace(COUNTED, started_s=5.0, commit_s=6.0)

    assert violations([], [], [COUNTED, other], {}) == [
        "transactions: the pointer 7 was given out 2 times",
    ]


PAIR = Pair(topics=("t", "u"), payload="a", did=Did.IT)
WHOLE = {"t": [("01", "a")], "u": [("01", "a")]}


@pytest.mark.parametrize(
    ("pair", "committed", "found"),
    [
        (PAIR, WHOLE, []),
        (replace(PAIR, did=Did.PERHAPS), {}, []),
        (PAIR, {}, ["the transaction of a was acknowledged as committed, and is lost"]),
        (PAIR, {"t": WHOLE["t"]}, ["the transaction of a is torn: 1 in t and 0 in u"]),
        (
            replace(PAIR, did=Did.NOTHING),
            WHOLE,
            ["the transaction of a did not commit, and its messages are there"],
        ),
    ],
)
def test_a_transaction_is_in_both_topics_or_in_neither(
    pair: Pair, committed: Final, found: list[str]
) -> None:
    assert torn([pair], committed) == found


def test_an_outage_lasts_from_the_first_failure_to_the_next_acknowledgement() -> None:
    attempts = [("t", 1.0, 2.0, True), ("t", 3.0, 4.0, False), ("t", 4.0, 5.0, False),
                ("t", 5.0, 6.0, True), ("u", 7.0, 8.0, False)]  # fmt: skip

    assert outages(attempts) == [Outage("t", 3.0, 6.0), Outage("u", 7.0, float("inf"))]
