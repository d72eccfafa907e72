"""Places only rise (design §5, Who holds the pen)."""

from hypothesis import given
from hypothesis import strategies as st

from messaging.keys import count_between, place_after
from messaging.sequence import Sequencer
from tuff.protocol.ids import SEQ_ID_LIMIT, Place


def test_a_full_millisecond_borrows_the_next_one() -> None:
    sequencer = Sequencer()
    places = [sequencer.next(now_ms=7) for _ in range(SEQ_ID_LIMIT + 1)]
    assert places[-2:] == [Place(7, SEQ_ID_LIMIT - 1), Place(8, 0)]


def test_a_clock_that_goes_back_keeps_the_last_timestamp() -> None:
    sequencer = Sequencer()
    assert [sequencer.next(now_ms=now) for now in (7, 5, 6, 8)] == [
        Place(7, 0),
        Place(7, 1),
        Place(7, 2),
        Place(8, 0),
    ]


def test_nothing_is_given_out_up_to_a_place_that_was_found() -> None:
    sequencer = Sequencer()
    sequencer.raise_above(Place(9, 3))
    sequencer.raise_above(Place(8, 9))
    assert sequencer.next(now_ms=7) == Place(9, 4)


def test_no_row_ever_stands_at_the_id_of_all_zeros() -> None:
    assert Sequencer().next(now_ms=0) == Place(1, 0)


@given(clocks=st.lists(st.integers(min_value=0, max_value=5), max_size=50))
def test_places_rise_whatever_the_clock_does(clocks: list[int]) -> None:
    sequencer = Sequencer(Place(2, SEQ_ID_LIMIT - 3))
    places = [sequencer.next(now_ms=now) for now in clocks]
    assert places == sorted(set(places))


@given(seq_id=st.integers(0, SEQ_ID_LIMIT - 1), count=st.integers(1, 3 * SEQ_ID_LIMIT))
def test_neighbours_can_be_counted_across_milliseconds(seq_id: int, count: int) -> None:
    first = Place(7, seq_id)
    assert count_between(first, place_after(first, count - 1)) == count
