"""The checker finds each anomaly, and nothing in correct histories."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults.checker import check, main, violations
from tests.faults.checker_anomalies import Anomaly
from tests.faults.history import (
    Append,
    Attempt,
    Publish,
    View,
    load,
    save,
)
from tests.faults.synthetic_histories import (
    FAIL,
    UNKNOWN,
    Flaw,
    add,
    at,
    found_in,
    overlapping,
    plain,
    poll,
    pub,
    read,
    serial,
    synthetic_history,
)

ROWS: list[tuple[Anomaly, list[Attempt], list[Attempt]]] = [
    (
        Anomaly.DIRTY_WRITE,
        overlapping(
            [Append("x", "a"), Append("y", "c")], [Append("x", "b"), Append("y", "d")],
            [read("x", "ab"), read("y", "dc")],
        ),
        overlapping(
            [Append("x", "a"), Append("y", "c")], [Append("x", "b"), Append("y", "d")],
            [read("x", "ab"), read("y", "cd")],
        ),
    ),
    (
        Anomaly.ABORTED_READ,
        [at(0, 9, *add("x", "a"), outcome=FAIL), at(0, 9, read("x", "a"))],
        [at(0, 9, *add("x", "a"), outcome=FAIL), at(0, 9, read("x", ""))],
    ),
    (
        Anomaly.INTERMEDIATE_READ,
        overlapping([*add("x", "a"), Append("x", "b")], [read("x", "a")], [read("x", "ab")]),
        overlapping([*add("x", "a"), Append("x", "b")], [read("x", "")], [read("x", "ab")]),
    ),
    (
        Anomaly.CIRCULAR_FLOW,
        overlapping([*add("x", "a"), read("y", "b")], [*add("y", "b"), read("x", "a")]),
        overlapping([*add("x", "a"), read("y", "b")], [*add("y", "b"), read("z", "")]),
    ),
    (
        Anomaly.LOST_UPDATE,
        overlapping(add("x", "a"), add("x", "b"), [read("x", "ab")]),
        overlapping(add("x", "a"), add("x", "b", base="a"), [read("x", "ab")]),
    ),
    (
        Anomaly.READ_SKEW,
        overlapping([*add("x", "a"), *add("y", "b")], [read("x", ""), read("y", "b")]),
        overlapping([*add("x", "a"), *add("y", "b")], [read("x", "a"), read("y", "b")]),
    ),
    (
        Anomaly.LONG_FORK,
        overlapping(
            add("x", "a"), add("y", "b"),
            [read("x", "a"), read("y", "")], [read("x", ""), read("y", "b")],
        ),
        overlapping(
            add("x", "a"), add("y", "b"),
            [read("x", "a"), read("y", "")], [read("x", "a"), read("y", "b")],
        ),
    ),
    (
        Anomaly.WRITE_SKEW,
        overlapping([read("x", ""), *add("y", "b")], [read("y", ""), *add("x", "a")]),
        overlapping([read("x", ""), *add("y", "b")], [read("y", "b"), *add("x", "a")]),
    ),
    (
        Anomaly.TORN,
        overlapping([*add("x", "a"), Append("x", "b")], [read("x", "b")], [read("x", "ab")]),
        overlapping([*add("x", "a"), Append("x", "b")], [read("x", "ab")], [read("x", "ab")]),
    ),
    (
        Anomaly.LOST,
        serial(add("x", "a"), [read("x", "")]),
        overlapping(add("x", "a"), [read("x", "")]),
    ),
    (
        Anomaly.DUPLICATED,
        serial(add("x", "a"), [read("x", "aa")]),
        serial(add("x", "a"), [read("x", "a")]),
    ),
    (
        Anomaly.REORDERED,
        overlapping([Append("x", "a")], [Append("x", "b")], [read("x", "ab")], [read("x", "ba")]),
        overlapping([Append("x", "a")], [Append("x", "b")], [read("x", "ab")], [read("x", "a")]),
    ),
    (
        Anomaly.PREFIX_CHANGED,
        overlapping([Append("x", "a")], [Append("x", "b")], [read("x", "ab")], [read("x", "b")]),
        overlapping([Append("x", "a")], [Append("x", "b")], [read("x", "ab")], [read("x", "a")]),
    ),
    (
        Anomaly.INVENTED,
        overlapping([read("x", "a")]),
        overlapping([Append("x", "a")], [read("x", "a")]),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("anomaly", "history", "harmless"), [pytest.param(*each, id=each[0].name) for each in ROWS]
)
def test_each_anomaly_of_rows_is_found_and_none_in_a_similar_correct_history(
    anomaly: Anomaly, history: list[Attempt], harmless: list[Attempt]
) -> None:
    assert anomaly in found_in(history)
    assert found_in(harmless) == set()


ALL, COMMITTED = View.ALL, View.COMMITTED
LATER = pub("b", start=2, stop=3)
TOPICS: list[tuple[Anomaly, list[Attempt], list[Attempt]]] = [
    (
        Anomaly.ABORTED_READ,
        [at(0, 1, pub("a"), outcome=FAIL), at(0, 9, poll("a", view=COMMITTED))],
        [at(0, 1, pub("a"), outcome=FAIL), at(0, 9, poll("a", view=ALL))],
    ),
    (
        Anomaly.TORN,
        overlapping([pub("ab")], [poll("a", at_end=True)], [poll("ab")]),
        overlapping([pub("ab")], [poll("a", until=1, at_end=False)], [poll("b", [2], after=1)]),
    ),
    (
        Anomaly.TORN,
        overlapping([pub("ab")], [pub("c")], [poll("acb", view=ALL)]),
        overlapping([pub("ab")], [pub("c")], [poll("abc", view=ALL)]),
    ),
    (
        Anomaly.TORN,
        [at(0, None, pub("a"), Publish(topic="s", values=("b",), invoked=0), outcome=UNKNOWN),
         *serial([poll("a")], [poll("", topic="s")])],
        [at(0, None, pub("a"), Publish(topic="s", values=("b",), invoked=0), outcome=UNKNOWN),
         *serial([poll("")], [poll("", topic="s")])],
    ),
    (
        Anomaly.READ_SKEW,
        overlapping([pub("a"), *add("x", "b")], [poll(""), read("x", "b")], [poll("a")]),
        overlapping([pub("a"), *add("x", "b")], [poll("a"), read("x", "b")], [poll("a")]),
    ),
    (
        Anomaly.LONG_FORK,
        overlapping([pub("a")], [pub("b")], [poll("a", [1])], [poll("b", [2])]),
        overlapping([pub("a")], [pub("b")], [poll("a", [1])], [poll("ab")]),
    ),
    (
        Anomaly.WRITE_SKEW,
        overlapping([poll(""), *add("x", "a")], [read("x", ""), pub("b")], [poll("b")]),
        overlapping([poll("b"), *add("x", "a")], [read("x", ""), pub("b")], [poll("b")]),
    ),
    (
        Anomaly.LOST,
        serial([pub("a")], [poll("", view=ALL)]),
        serial([pub("a")], [poll("", view=ALL, at_end=False)]),
    ),
    (
        Anomaly.LOST,
        [*serial([pub("a")], [poll("", until=0)]), at(0, 9, poll("a"))],
        [at(0, 9, poll("", until=0)), *serial([pub("a")], [poll("a")])],
    ),
    (
        Anomaly.DUPLICATED,
        serial([pub("a")], [poll("aa", view=ALL)]),
        serial([pub("a")], [poll("a", view=ALL)], [poll("a", view=ALL)]),
    ),
    (
        Anomaly.REORDERED,
        overlapping([pub("a")], [pub("b")], [poll("ab", [2, 1], view=ALL)]),
        overlapping([pub("a")], [pub("b")], [poll("ab", [1, 2], view=ALL)]),
    ),
    (
        Anomaly.REORDERED,
        overlapping([pub("ab")], [poll("ba")]),
        overlapping([pub("ab")], [poll("ab")]),
    ),
    (
        Anomaly.REORDERED,
        overlapping([pub("a")], [LATER], [poll("ba", view=ALL)]),
        overlapping([pub("a")], [LATER], [poll("ab", view=ALL)]),
    ),
    (
        Anomaly.REORDERED,
        overlapping([pub("a", ids=(5, 5))], [poll("a", [7 << 80])]),
        overlapping([pub("a", ids=(5, 5))], [poll("a", [5])]),
    ),
    (
        Anomaly.PREFIX_CHANGED,
        overlapping([pub("a")], [pub("b")], [poll("b", [2], view=ALL)], [poll("ab", view=ALL)]),
        overlapping(
            [pub("a")], [pub("b")], [poll("a", view=ALL, until=1)], [poll("ab", view=ALL)]
        ),
    ),
    (
        Anomaly.PREFIX_CHANGED,
        overlapping([pub("a")], [pub("b")], [poll("b", [2], view=COMMITTED)], [poll("ab")]),
        overlapping([pub("a")], [pub("b")], [poll("b", [2])], [poll("ab")]),
    ),
    (
        Anomaly.INVENTED,
        overlapping([poll("a", view=ALL)]),
        overlapping([pub("a")], [poll("a", view=ALL)]),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("anomaly", "history", "harmless"), [pytest.param(*each, id=each[0].name) for each in TOPICS]
)
def test_each_anomaly_of_topics_is_found_and_none_in_a_similar_correct_history(
    anomaly: Anomaly, history: list[Attempt], harmless: list[Attempt]
) -> None:
    assert anomaly in found_in(history)
    assert found_in(harmless) == set()


def test_write_skew_alone_is_permitted() -> None:
    permitted = [anomaly for anomaly in Anomaly if anomaly.is_permitted]

    assert permitted == [Anomaly.WRITE_SKEW]
    assert violations(ROWS[7][1]) == []


def test_messages_without_a_transaction_may_appear_between_two_reads_of_one_snapshot() -> None:
    reads = [poll("", until=0), poll("a")]

    assert found_in([plain(0, 9, pub("a")), at(0, 9, *reads)]) == set()
    assert found_in([at(0, 9, pub("a")), at(0, 9, *reads)]) == {Anomaly.READ_SKEW}


def test_a_finding_has_the_edges_of_its_cycle() -> None:
    history = overlapping([*add("x", "a"), *add("y", "b")], [read("x", ""), read("y", "b")])

    assert [one.what for one in check(history)] == ["1 -rw-> 0 -wr-> 1"]


@settings(max_examples=12)
@given(seed=st.integers(0, 10**9), clients=st.integers(1, 12))
def test_a_snapshot_isolated_history_has_no_violation(seed: int, clients: int) -> None:
    assert violations(synthetic_history(seed=seed, count=150, clients=clients)) == []


@pytest.mark.parametrize(
    ("flaw", "anomaly"),
    [
        (Flaw.FORGETS_CONFLICTS, Anomaly.LOST_UPDATE),
        (Flaw.READS_LATEST, Anomaly.READ_SKEW),
        (Flaw.READS_UNDECIDED, Anomaly.ABORTED_READ),
        (Flaw.STARTS_LATE, Anomaly.LOST),
        (Flaw.COMMITS_IN_PART, Anomaly.LOST),
        (Flaw.HIDES_OWN, Anomaly.LOST),
        (Flaw.HIDES_PLAIN, Anomaly.PREFIX_CHANGED),
        (Flaw.GOES_ON, Anomaly.PREFIX_CHANGED),
    ],
)
def test_each_flaw_of_the_model_database_is_found(flaw: Flaw, anomaly: Anomaly) -> None:
    history = synthetic_history(seed=2, count=400, clients=8, flaw=flaw)

    assert anomaly in {one.anomaly for one in violations(history)}


def test_one_client_alone_causes_not_even_write_skew() -> None:
    assert check(synthetic_history(seed=1, count=300, clients=1)) == []


def test_a_history_survives_its_file_and_the_program_checks_it(tmp_path: Path) -> None:
    kept = tmp_path / "history.jsonl"
    whole = synthetic_history(seed=7, count=50, clients=4)
    broken = overlapping(add("x", "a"), add("x", "b"), [read("x", "ab")])

    save(kept, whole)

    assert load(kept) == whole
    assert main([str(kept)]) == 0
    save(kept, broken)
    assert main([str(kept)]) == 1
