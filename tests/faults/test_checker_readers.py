"""The checker finds what a single reader lacks, wherever its range begins and ends, and nothing in
similar correct histories."""

import pytest

from tests.faults.checker_anomalies import Anomaly
from tests.faults.history import Attempt, View
from tests.faults.synthetic_histories import (
    FAIL,
    UNKNOWN,
    add,
    at,
    found_in,
    overlapping,
    plain,
    poll,
    pub,
    read,
)

Histories = list[list[Attempt]]
ALL, COMMITTED, HELD = View.ALL, View.COMMITTED, View.HELD
ROW = 4 << 80  # the id of a reference row, of which its payloads have parts


LATER, IN_ALL = at(10, 19, poll("a")), at(10, 19, poll("a", view=ALL))
OWN: tuple[Histories, Histories] = (
    [
        [at(0, 9, pub("a"), poll("")), LATER],
        [at(0, 9, pub("a"), poll("", view=HELD)), LATER],
        [at(0, 9, pub("a"), poll("", until=0)), LATER],
        [at(0, 9, pub("a", ids=(5, 5)), poll("", after=4)), at(10, 19, poll("a", [5], after=4))],
        [at(0, 9, pub("ab"), poll("b", [2])), at(10, 19, poll("ab"))],
        [at(0, 9, pub("a"), poll("", until=1, at_end=False)), LATER],
        [at(0, None, pub("a"), poll(""), outcome=UNKNOWN), LATER],
    ],
    [
        [at(0, 9, poll("", until=0), pub("a")), LATER],
        [at(0, 9, pub("a"), poll("a")), LATER],
        # It begins behind them, or it ends before: a limit, or what holds it.
        [at(0, 9, pub("a"), poll("", after=1)), LATER],
        [at(0, 9, pub("a"), poll("", view=HELD, until=0, at_end=False)), LATER],
        [at(0, 9, pub("ab"), poll("b", [2], after=1)), at(10, 19, poll("ab"))],
        # A fresh snapshot has them when they are committed.
        [at(0, 9, pub("a"), poll("", view=COMMITTED, until=0, at_end=False)), LATER],
        [at(0, 9, pub("a"), poll("", topic="s")), LATER],
        # They may have been rolled back before it read.
        [at(0, 9, pub("a"), poll(""), outcome=FAIL), IN_ALL],
        [at(0, None, pub("a"), poll(""), outcome=UNKNOWN), IN_ALL],
        # Behind a place in the middle of a reference's payloads.
        [at(0, 9, pub("ab", ids=(ROW, ROW)), poll("b", [ROW + 2], after=ROW + 1, until=9 << 80))],
    ],
)  # fmt: skip


@pytest.mark.parametrize("history", OWN[0])
def test_messages_that_their_own_transaction_does_not_see_are_lost(history: list[Attempt]) -> None:
    assert Anomaly.LOST in found_in(history)


@pytest.mark.parametrize("history", OWN[1])
def test_a_read_need_not_have_own_messages_outside_its_range_or_rolled_back(
    history: list[Attempt],
) -> None:
    assert found_in(history) == set()


PLACES: tuple[Histories, Histories] = (
    [
        [plain(0, 1, pub("a")), at(2, 9, poll("a"), poll("a", topic="s"))],
        [plain(0, 1, pub("a")), at(2, 9, poll("a"), poll("a", topic="s", view=ALL))],
        [at(0, 9, *add("x", "a")), at(10, 19, read("x", "a"), read("y", "a"))],
        [at(0, 9, pub("a")), at(10, 19, poll("a"), read("t", "a"))],
        [at(0, 9, *add("t", "a")), at(10, 19, read("t", "a"), poll("a"))],
    ],
    [
        [plain(0, 1, pub("a"), pub("b", topic="s")), at(2, 9, poll("a"), poll("b", topic="s"))],
        [at(0, 9, *add("x", "a"), *add("y", "b")), at(10, 19, read("x", "a"), read("y", "b"))],
        [at(0, 9, pub("a"), *add("t", "b")), at(10, 19, poll("a"), read("t", "b"))],
    ],
)


@pytest.mark.parametrize("history", PLACES[0])
def test_a_value_in_another_place_than_it_was_written_to_is_invented(
    history: list[Attempt],
) -> None:
    assert Anomaly.INVENTED in found_in(history)


@pytest.mark.parametrize("history", PLACES[1])
def test_rows_and_topics_of_one_name_are_different_places(history: list[Attempt]) -> None:
    assert found_in(history) == set()


LATE_B = [
    plain(0, 1, pub("b")),
    at(10, 20, poll("b", [5], until=5)),
    at(50, 60, poll("ab", [2, 5])),
]
PREFIX: tuple[Histories, Histories] = (
    [
        # It was written without a transaction, so every snapshot has it.
        [*LATE_B, plain(0, 40, pub("a", stop=40))],
        [*LATE_B, plain(0, 40, pub("a", stop=40), outcome=UNKNOWN)],
        [*LATE_B[:2], plain(0, 40, pub("a", stop=40)), at(50, 60, poll("ab", [2, 5], view=ALL))],
        # A held reader stops before an undecided row, which may still commit.
        overlapping([pub("a")], [pub("b")], [poll("b", [2], view=HELD)], [poll("ab")]),
        [at(0, 50, pub("a")), at(1, 9, poll("", view=HELD)), LATER],
        [at(0, None, pub("a"), outcome=UNKNOWN), at(1, 9, poll("", view=HELD)), LATER],
        [at(0, 50, pub("a")), at(1, 9, poll("", view=HELD), outcome=FAIL), LATER],
    ],
    [
        [*LATE_B, at(0, 40, pub("a", stop=40))],
        [*LATE_B[:1], at(10, 20, poll("b", [5], after=2, until=5)), *LATE_B[2:],
         plain(0, 40, pub("a", stop=40))],
        [plain(0, 1, pub("a")), at(10, 20, poll("a", [5], until=5)),
         plain(0, 40, pub("b", stop=40)), at(50, 60, poll("ab", [5, 6]))],
        overlapping([pub("a")], [pub("b")], [poll("", view=HELD, until=0, at_end=False)],
                    [poll("ab")]),
        overlapping([pub("a")], [pub("b")], [poll("a", view=HELD, until=1, at_end=False)],
                    [poll("ab")]),
        overlapping([pub("a")], [pub("b")], [poll("b", [2], view=HELD, after=1)], [poll("ab")]),
        # It passes rolled-back rows, and its own rows before its end.
        [at(0, 5, pub("a"), outcome=FAIL), at(1, 9, pub("b"), poll("b", [2], view=HELD)),
         at(60, 69, poll("ab", view=ALL))],
        [at(0, None, pub("a"), outcome=UNKNOWN), at(1, 9, poll("", view=HELD)),
         at(60, 69, poll("a", view=ALL))],
    ],
)  # fmt: skip


@pytest.mark.parametrize("history", PREFIX[0])
def test_a_message_that_appears_before_a_place_that_was_read_changes_the_prefix(
    history: list[Attempt],
) -> None:
    assert Anomaly.PREFIX_CHANGED in found_in(history)


@pytest.mark.parametrize("history", PREFIX[1])
def test_a_read_may_skip_rows_that_are_undecided_in_its_snapshot_or_rolled_back(
    history: list[Attempt],
) -> None:
    assert found_in(history) == set()


AB = plain(0, 90, pub("ab", stop=90))
AT_4 = at(100, 109, poll("ab", [4, 5]))
TORN: tuple[Histories, Histories] = (
    [
        [AB, AT_4, at(2, 9, poll("b", [5], after=1))],
        [AB, AT_4, at(2, 9, poll("a", [4], until=5, at_end=False))],
        [AB, AT_4, at(2, 9, poll("b", [5], after=3, view=ALL))],
        [at(0, 1, pub("ab", ids=(4, 5))), at(2, 9, poll("b", [5], after=3))],
        [at(0, 1, pub("ab", ids=(4, 5))), at(2, 9, poll("a", [4], after=3, until=5 << 80,
                                                        at_end=False))],
    ],
    [
        [AB, AT_4, at(2, 9, poll("b", [5], after=4))],
        [AB, AT_4, at(2, 9, poll("a", [4], until=4, at_end=False))],
        [at(0, 1, pub("ab", ids=(ROW, ROW))),
         at(2, 9, poll("b", [ROW + 2], after=ROW + 1, until=9 << 80))],
        [at(0, 1, pub("ab", ids=(ROW, ROW))),
         at(2, 9, poll("a", [ROW + 1], until=ROW + 1, at_end=False))],
    ],
)  # fmt: skip


@pytest.mark.parametrize("history", TORN[0])
def test_a_missing_part_of_a_publish_in_the_range_of_a_poll_is_found(
    history: list[Attempt],
) -> None:
    assert Anomaly.TORN in found_in(history)


@pytest.mark.parametrize("history", TORN[1])
def test_a_publish_may_be_cut_where_a_poll_begins_or_ends(history: list[Attempt]) -> None:
    assert found_in(history) == set()


HALF_A, HALF_B = pub("a", start=2, stop=3), pub("b", topic="s", start=2, stop=3)
BOTH = at(2, None, HALF_A, HALF_B, outcome=UNKNOWN)
SHOWN = at(20, 29, poll("a", view=COMMITTED))


def of_s(start: int, stop: int, *, after: int, until: int, view: View = COMMITTED) -> Attempt:
    """A poll of s that found nothing; up to the end where that is behind 90."""
    return at(start, stop, poll("", topic="s", view=view, after=after, until=until,
                                at_end=until > 90))  # fmt: skip


HALVES: tuple[Histories, Histories] = (
    [
        [BOTH, SHOWN, of_s(30, 39, after=0, until=7), of_s(40, 49, after=7, until=99)],
        [BOTH, SHOWN, of_s(0, 1, after=0, until=7), of_s(40, 49, after=7, until=99)],
        [BOTH, SHOWN, of_s(3, 9, after=0, until=7), of_s(40, 49, after=5, until=99)],
        [BOTH, SHOWN, of_s(3, 9, after=0, until=7, view=HELD), of_s(40, 49, after=7, until=99)],
        [BOTH, SHOWN, of_s(0, 1, after=0, until=7, view=View.SNAPSHOT),
         of_s(40, 49, after=7, until=99, view=View.SNAPSHOT)],
    ],
    [
        # It may be between the two ranges, or where a snapshot read skipped it.
        [BOTH, SHOWN, of_s(30, 39, after=0, until=7), of_s(40, 49, after=8, until=99)],
        [BOTH, SHOWN, of_s(40, 49, after=7, until=99)],
        [BOTH, SHOWN, of_s(3, 9, after=0, until=7, view=View.SNAPSHOT),
         of_s(40, 49, after=7, until=99)],
        # No read came later, or none reached the end.
        [BOTH, SHOWN, of_s(3, 28, after=0, until=99)],
        [BOTH, SHOWN, of_s(30, 39, after=0, until=7), of_s(40, 49, after=7, until=90)],
        # No read proves that it committed.
        [BOTH, of_s(30, 39, after=0, until=99), at(20, 29, poll("a", view=ALL))],
    ],
)  # fmt: skip


@pytest.mark.parametrize("history", HALVES[0])
def test_a_commit_without_messages_on_one_of_its_topics_is_torn(
    history: list[Attempt],
) -> None:
    assert found_in(history) == {Anomaly.TORN}


@pytest.mark.parametrize("history", HALVES[1])
def test_a_commit_may_have_messages_in_ranges_that_were_not_read(history: list[Attempt]) -> None:
    assert found_in(history) == set()


SHOWN_EARLY: tuple[Histories, Histories] = (
    [
        [at(0, 99, *add("x", "a")), at(1, 2, read("x", "a")), at(3, 4, read("x"))],
        [at(0, 99, pub("a")), at(1, 2, poll("a")), at(3, 4, poll(""))],
        [at(0, 99, pub("a")), at(1, 2, poll("a", view=COMMITTED), outcome=FAIL),
         at(3, 4, poll(""))],
        [plain(0, 99, pub("a", stop=99)), at(1, 2, poll("a", view=ALL)),
         at(3, 4, poll("", until=0))],
    ],
    [
        [at(0, 99, *add("x", "a")), at(1, 2, read("x", "a")), at(2, 4, read("x"))],
        [at(0, 99, pub("a")), at(1, 3, poll("a")), at(2, 4, poll(""))],
        # A read of all rows proves no commit, and neither does a read of own writes.
        [at(0, 99, pub("a")), at(1, 2, poll("a", view=ALL)), at(3, 4, poll(""))],
        [at(0, 99, *add("x", "a"), read("x", "a")), at(3, 4, read("x"))],
    ],
)  # fmt: skip


@pytest.mark.parametrize("history", SHOWN_EARLY[0])
def test_a_later_reader_has_all_that_an_earlier_one_got_even_before_the_reply_to_the_writer(
    history: list[Attempt],
) -> None:
    assert Anomaly.LOST in found_in(history)


@pytest.mark.parametrize("history", SHOWN_EARLY[1])
def test_readers_at_the_same_time_may_differ(history: list[Attempt]) -> None:
    assert found_in(history) == set()


WRITER = at(0, 9, *add("x", "a"), *add("y", "b"), pub("c", ids=(1, 1)))
SKEWED: tuple[Histories, Histories] = (
    [
        [WRITER, at(0, 9, read("x", "a"), read("y"), outcome=FAIL)],
        [WRITER, at(0, None, read("x", "a"), read("y"), outcome=UNKNOWN)],
        [WRITER, at(0, 9, poll("", until=0), read("y", "b"), outcome=FAIL)],
        [WRITER, at(0, 9, poll("c"), *add("x", "d"), outcome=FAIL)],
    ],
    [
        [WRITER, at(0, 9, read("x", "a"), read("y", "b"), poll("c"), outcome=FAIL)],
        [WRITER, at(0, 9, read("x"), read("y"), poll("", until=0), outcome=UNKNOWN)],
        # A write without a commit is no version that a reader could miss.
        [WRITER, at(0, 9, *add("x", "d"), read("y"), outcome=FAIL),
         at(20, 29, read("x", "a"), read("y", "b"), poll("c"))],
        [WRITER, at(0, 9, *add("y", "d"), outcome=UNKNOWN),
         at(20, 29, read("x", "a"), read("y", "b"), poll("c"))],
    ],
)  # fmt: skip


@pytest.mark.parametrize("history", SKEWED[0])
def test_a_transaction_that_does_not_commit_reads_in_one_snapshot_too(
    history: list[Attempt],
) -> None:
    assert Anomaly.READ_SKEW in found_in(history)


@pytest.mark.parametrize("history", SKEWED[1])
def test_a_transaction_that_does_not_commit_has_written_nothing(history: list[Attempt]) -> None:
    assert found_in(history) == set()
