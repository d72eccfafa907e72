"""The judge of the program that kills everything around a transaction of PostgreSQL."""

from collections import Counter

from tests.faults.sql import judge


def test_one_message_for_each_row_is_right() -> None:
    assert judge(Counter(["a", "b"]), Counter(["b", "a"])) == []


def test_a_lost_an_orphaned_and_a_repeated_message_are_named() -> None:
    rows, messages = Counter(["lost", "twice"]), Counter(["orphan", "twice", "twice"])

    assert judge(rows, messages) == [
        "row lost has no message",
        "message orphan has no row, or is there twice",
        "message twice has no row, or is there twice",
    ]
