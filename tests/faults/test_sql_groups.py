"""The judge of the program that kills members of a group with its positions in PostgreSQL."""

from tests.faults.sql_groups import judge


def test_one_row_and_one_copy_of_each_message_in_order_are_right() -> None:
    assert judge(["0-0", "0-1", "1-0"], ["0-0", "1-0", "0-1"], ["1-0", "0-1", "0-0"]) == []


def test_what_is_missing_repeated_or_out_of_order_is_named() -> None:
    published = ["0-0", "0-1", "0-2"]

    assert judge(published, ["0-1", "0-0", "0-0"], ["0-0", "0-1"]) == [
        "0-2 has no row",
        "0-0 has 2 of its row",
        "0-2 has no copy",
        "0-0 came after a later one of its partition",
        "0-0 came after a later one of its partition",
    ]
