"""The pointer index in memory, compared with a list of its ranges (design §5)."""

from collections.abc import Collection, Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messaging.log.rows_by_transaction import (
    DELAYED_ROWS,
    MESSAGE_ROWS,
    PAYLOAD_ROWS,
    IndexedRange,
    PointerIndex,
)
from messaging.model.row_format import DamagedRowError, frame
from tuff.protocol.ids import Offset, TopicId

TOPIC = TopicId("default", "t")


class WatchedRange(IndexedRange):
    """A range that notes each look at it."""

    __slots__ = ()
    looks = 0

    def __getattribute__(self, name: str) -> object:
        WatchedRange.looks += 1
        return super().__getattribute__(name)


def range_of(
    pointer: int,
    kind: bytes,
    number: int,
    *,
    written_ms: int = 5,
    made: type[IndexedRange] = IndexedRange,
    topic: TopicId = TOPIC,
    final: bool = False,
) -> IndexedRange:
    place = Offset(1000, number)
    return made(
        pointer=pointer, kind=kind, topic=topic, generation=1,
        first=place, last=place, final=final, written_ms=written_ms,
    )  # fmt: skip


def first_publishes(entries: Iterable[IndexedRange]) -> dict[int, int]:
    found: dict[int, int] = {}
    for entry in entries:
        if entry.kind == MESSAGE_ROWS:
            earlier = found.get(entry.pointer, entry.written_ms)
            found[entry.pointer] = min(earlier, entry.written_ms)
    return found


def test_what_is_stored_for_a_topic_is_found_without_a_look_at_others() -> None:
    """A reference asks for each of a thousand partitions; a scan of all ranges took ten seconds."""
    index = PointerIndex()
    for number in range(50):
        other = TopicId("default", f"t:{number + 1}")
        index.add(range_of(7, PAYLOAD_ROWS, number, made=WatchedRange, topic=other))
    index.add(range_of(7, PAYLOAD_ROWS, 51))
    looks_before = WatchedRange.looks

    assert len(index.stored(7, TOPIC)) == 1
    assert len(index.stored_in(7, TOPIC)) == 51
    assert WatchedRange.looks == looks_before


def test_the_query_for_early_publishes_reads_no_range() -> None:
    """It runs several times a second; with a million stored payloads it once took a second."""
    index = PointerIndex()
    for number in range(50):
        kind = MESSAGE_ROWS if number % 2 else PAYLOAD_ROWS
        index.add(range_of(number // 10, kind, number, made=WatchedRange))
    looks_before = WatchedRange.looks

    assert list(index.published_by(5)) == list(range(5))

    assert WatchedRange.looks == looks_before


@pytest.mark.parametrize(
    ("kind", "topic"),
    [
        (DELAYED_ROWS, TOPIC),
        (MESSAGE_ROWS, TopicId("default", "g:group")),
        (MESSAGE_ROWS, TopicId("default", "t:g:share")),
    ],
)
def test_what_holds_no_reader_back_does_not_count_for_max_block(
    kind: bytes, topic: TopicId
) -> None:
    """A transaction with a long timeout was ended for one offset or delayed message."""
    index = PointerIndex()
    entry = range_of(7, kind, 1, topic=topic)
    index.add(entry)
    assert (list(index.published_by(1 << 60)), index.first_publish_ms(7)) == ([], None)

    index.add(range_of(7, MESSAGE_ROWS, 2))
    index.discard(entry)
    assert list(index.published_by(5)) == [7]


def test_the_query_for_early_publishes_stops_at_the_first_later_one() -> None:
    index = PointerIndex()
    for pointer in range(5):
        index.add(range_of(pointer, MESSAGE_ROWS, pointer, written_ms=pointer))
    index.end_committed([0])
    late = index.published_by(2)

    assert (next(late), next(late), next(late, None)) == (1, 2, None)


def test_a_publish_time_in_the_future_counts_as_the_time_of_loading() -> None:
    index = PointerIndex()
    index.load(
        [
            range_of(pointer, MESSAGE_ROWS, number, written_ms=written_ms)
            for number, (pointer, written_ms) in enumerate([(1, 900), (2, 50), (3, 40), (2, 30)])
        ],
        now_ms=100,
    )
    index.add(range_of(4, MESSAGE_ROWS, 9, written_ms=100))

    assert [list(index.published_by(at_ms)) for at_ms in (29, 30, 99, 100)] == [
        [], [2], [2, 3], [2, 3, 1, 4],
    ]  # fmt: skip


def test_enough_pointers_are_settled_at_once_to_reach_the_row_count() -> None:
    index = PointerIndex()
    for pointer in (1, 2, 3):
        index.add(range_of(pointer, MESSAGE_ROWS, pointer))
        index.add(range_of(pointer, PAYLOAD_ROWS, pointer))
    index.end_committed([1, 2, 3])

    pointers, keys = index.next_ending(count_max=3)

    assert (pointers, len(keys)) == ([1, 2], 4)


def test_the_oldest_ended_pointers_are_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("messaging.log.rows_by_transaction.ENDED_COUNT_MAX", 2)
    index = PointerIndex()
    for pointer in (1, 2, 3):
        index.add(range_of(pointer, MESSAGE_ROWS, pointer))

    index.end_committed([1, 2, 3])
    index.forget_ended([1, 2, 3])

    assert [index.ended_topics([pointer]) for pointer in (1, 2, 3)] == [set(), {TOPIC}, {TOPIC}]


changes = st.lists(
    st.tuples(
        st.sampled_from(
            ["add", "add", "add final", "add again", "lose the last", "settle", "mark"]
        ),
        st.integers(1, 3),
        st.sampled_from([MESSAGE_ROWS, PAYLOAD_ROWS]),
    ),
    max_size=40,
)


@given(changes=changes)
def test_the_index_answers_as_its_ranges(
    changes: list[tuple[str, int, bytes]],
) -> None:
    index = PointerIndex()
    there: list[IndexedRange] = []
    for number, (change, pointer, kind) in enumerate(changes):
        if change == "add":
            is_final = number % 3 == 0
            there.append(range_of(pointer, kind, number, written_ms=100 + number, final=is_final))
            index.add(there[-1])
        elif change == "add final":
            there += added_finals(index, sorted({pointer, 3}), number)
        elif change == "add again" and there:
            index.add(there[0])
        elif change == "lose the last" and there:
            index.discard(there.pop())
            index.discard(range_of(pointer, kind, number))
        elif change in ("settle", "mark"):
            ended = [entry for entry in there if entry.pointer == pointer]
            there = [entry for entry in there if entry.pointer != pointer]
            end(index, pointer, ended, is_commit=change == "settle")

        first = first_publishes(there)
        for bound in (99, 100 + number // 2, 100 + number):
            assert set(index.published_by(bound)) == {
                pointer for pointer, at_ms in first.items() if at_ms <= bound
            }
        assert_ranges_are(index, there)


def added_finals(index: PointerIndex, pointers: Sequence[int], number: int) -> list[IndexedRange]:
    """The ranges that a batch of commits adds."""
    finals = [
        range_of(each, MESSAGE_ROWS, 1000 + 4 * number + each, written_ms=100 + number, final=True)
        for each in pointers
    ]
    keys = [each.key for each in finals]
    values = [each.to_bytes(each.key) for each in finals]
    index.add_final(pointers, keys, values, topic=TOPIC, written_ms=100 + number)
    return finals


def end(
    index: PointerIndex, pointer: int, ended: Sequence[IndexedRange], *, is_commit: bool
) -> None:
    if is_commit:
        index.end_committed([pointer])
    else:
        index.rolled_back(ended)


def assert_ranges_are(index: PointerIndex, there: Collection[IndexedRange]) -> None:
    assert set(index.pointers()) == {entry.pointer for entry in there}
    assert index.final_pointers() == {entry.pointer for entry in there if entry.final}
    for pointer in (1, 2, 3):
        of_kind = {
            kind: [entry for entry in there if (entry.pointer, entry.kind) == (pointer, kind)]
            for kind in (MESSAGE_ROWS, PAYLOAD_ROWS)
        }
        assert index.message_ranges(pointer) == of_kind[MESSAGE_ROWS]
        assert index.stored(pointer, TOPIC) == of_kind[PAYLOAD_ROWS]
        assert [*index.stored_in(pointer, TOPIC)] == ([TOPIC] if of_kind[PAYLOAD_ROWS] else [])


def test_an_index_row_with_another_body_is_damaged() -> None:
    entry = IndexedRange(
        pointer=7, kind=MESSAGE_ROWS, topic=TOPIC, generation=1, first=Offset(1, 0),
        last=Offset(1, 0), final=False, written_ms=1,
    )  # fmt: skip

    with pytest.raises(DamagedRowError, match="no index row looks like this"):
        IndexedRange.from_bytes(entry.key, frame(entry.key, 0, b"short"))


def test_a_committed_pointer_has_its_topics_until_its_index_rows_are_deleted() -> None:
    index = PointerIndex()
    entry = range_of(7, MESSAGE_ROWS, 1)
    index.add(entry)

    index.end_committed([7])

    assert index.topics([7]) == {TOPIC}
    assert index.may_be_on_disk(7)
    assert index.next_ending(count_max=10) == ([7], [entry.key])
    index.forget_ended([7])
    assert index.topics([7]) == set()
    assert not index.may_be_on_disk(7)


def test_readers_of_each_topic_that_was_marked_are_woken() -> None:
    index, other = PointerIndex(), TopicId("default", "other")
    entries = [range_of(7, MESSAGE_ROWS, 1), range_of(7, MESSAGE_ROWS, 2, topic=other)]
    for entry in entries:
        index.add(entry)
        index.rolled_back([entry])

    assert index.ended_topics([7]) == {TOPIC, other}
    assert index.ended_topics([7]) == set()
