"""Which messages go out together, and when: decided without a clock."""

import pytest

import tuff
from tuff.batching import MESSAGE_BYTES, Accumulator

Box = Accumulator[str]


def box(*, batch_count: int = 3, linger_s: float = 5.0, unwanted: str = "") -> Box:
    """Of messages with one byte each, so many fill a batch."""
    size_bytes = batch_count * (1 + MESSAGE_BYTES)
    return Accumulator(
        batch_bytes=size_bytes, linger_s=linger_s, claim=lambda name: name not in unwanted
    )


def add(into: Box, names: str, *, now_s: float = 0.0) -> None:
    for name in names:
        into.add(name.encode(), name, now_s=now_s)


def test_one_who_is_alone_waits_for_company_so_long_and_no_longer() -> None:
    waiting = box()
    assert waiting.due_in_s(now_s=0) is None

    add(waiting, "a", now_s=10)
    add(waiting, "b", now_s=12)

    assert [waiting.due_in_s(now_s=now_s) for now_s in (12, 15, 99)] == [3, 0, 0]


def test_a_full_batch_waits_for_nobody() -> None:
    waiting = box()

    add(waiting, "abc")

    assert waiting.is_full
    assert waiting.due_in_s(now_s=0) == 0


def test_batches_keep_the_order_and_their_bound() -> None:
    waiting = box()
    add(waiting, "abcdefg")

    batches = [waiting.take() for _ in range(3)]

    assert [batch.receipts for batch in batches] == [["a", "b", "c"], ["d", "e", "f"], ["g"]]
    assert batches[0].payloads == [b"a", b"b", b"c"]
    assert waiting.is_empty


def test_a_message_larger_than_a_batch_goes_alone() -> None:
    waiting = box()
    add(waiting, "a")
    waiting.add(b"x" * 1000, "large", now_s=0)
    add(waiting, "b")

    assert [waiting.take().receipts for _ in range(3)] == [["a"], ["large"], ["b"]]


def test_a_flush_is_for_those_that_were_there() -> None:
    waiting = box()
    add(waiting, "a")
    waiting.flush()
    assert waiting.due_in_s(now_s=0) == 0
    waiting.take()

    add(waiting, "b", now_s=1)

    assert waiting.due_in_s(now_s=1) == 5


def test_what_is_not_wanted_any_more_is_left_out_and_is_settled() -> None:
    waiting = box(unwanted="bd")
    add(waiting, "abcd")

    batch = waiting.take()
    waiting.settled(batch)

    assert batch.receipts == ["a", "c"]
    assert (waiting.added_count, waiting.settled_count) == (4, 4)


def test_there_is_room_for_eight_batches_until_one_is_settled() -> None:
    waiting = box()
    add(waiting, "abc" * 8)
    assert not waiting.has_room(b"x")

    batch = waiting.take()
    assert not waiting.has_room(b"x"), "it is still in memory while it is on its way"
    waiting.settled(batch)

    assert waiting.has_room(b"x")


def test_nothing_is_too_large_where_nothing_else_is_held() -> None:
    waiting = box()

    assert waiting.has_room(b"x" * 100_000)
    add(waiting, "a")
    assert not waiting.has_room(b"x" * 100_000)


@pytest.mark.parametrize(
    ("numbers", "named"),
    [
        ({"batch_bytes": 0}, "batch_bytes"),
        ({"batch_bytes": (1 << 20) + 1}, "batch_bytes"),
        ({"linger": -1}, "linger"),
        ({"linger": 60.1}, "linger"),
    ],
)
def test_numbers_out_of_their_range_are_refused(numbers: dict[str, int], named: str) -> None:
    with tuff.Client() as client, pytest.raises(ValueError, match=named):
        client.publisher(tuff.TopicId("a", "b"), **numbers)
