"""The sequencer: offsets only rise (design §5)."""

from hypothesis import given
from hypothesis import strategies as st

from messaging.log.sequencer import Sequencer
from messaging.model.row_format import count_between, offset_after
from tuff.protocol.ids import SEQ_ID_LIMIT, Offset


def next_of(sequencer: Sequencer, now_ms: int) -> Offset:
    first, last = sequencer.next_run(1, now_ms=now_ms)
    assert first == last
    return first


def test_a_full_millisecond_borrows_the_next_one() -> None:
    sequencer = Sequencer()
    places = [next_of(sequencer, 7) for _ in range(SEQ_ID_LIMIT + 1)]
    assert places[-2:] == [Offset(7, SEQ_ID_LIMIT - 1), Offset(8, 0)]


def test_a_clock_that_goes_back_keeps_the_last_timestamp() -> None:
    sequencer = Sequencer()
    assert [next_of(sequencer, now) for now in (7, 5, 6, 8)] == [
        Offset(7, 0),
        Offset(7, 1),
        Offset(7, 2),
        Offset(8, 0),
    ]


def test_offsets_are_assigned_above_those_found_in_the_store() -> None:
    sequencer = Sequencer()
    sequencer.raise_above(Offset(9, 3))
    sequencer.raise_above(Offset(8, 9))
    assert next_of(sequencer, 7) == Offset(9, 4)


def test_no_row_has_the_id_of_all_zeros() -> None:
    assert next_of(Sequencer(), 0) == Offset(1, 0)


@given(clocks=st.lists(st.integers(min_value=0, max_value=5), max_size=50))
def test_offsets_rise_whatever_the_clock_does(clocks: list[int]) -> None:
    sequencer = Sequencer(Offset(2, SEQ_ID_LIMIT - 3))
    places = [next_of(sequencer, now) for now in clocks]
    assert places == sorted(set(places))


@given(seq_id=st.integers(0, SEQ_ID_LIMIT - 1), count=st.integers(1, 3 * SEQ_ID_LIMIT))
def test_offsets_are_counted_across_milliseconds(seq_id: int, count: int) -> None:
    first = Offset(7, seq_id)
    assert count_between(first, offset_after(first, count - 1)) == count
