"""The pointer index in memory, compared with the ranges that it was given (design §5)."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from messaging.index import MESSAGE_ROWS, PAYLOAD_ROWS, IndexedRange, PointerIndex
from tuff.protocol.ids import Place
from tuff.protocol.names import TopicId

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
) -> IndexedRange:
    place = Place(1000, number)
    return made(
        pointer=pointer, kind=kind, topic=TOPIC, generation=1,
        first=place, last=place, final=False, written_ms=written_ms,
    )  # fmt: skip


def first_publishes(entries: Iterable[IndexedRange]) -> dict[int, int]:
    found: dict[int, int] = {}
    for entry in entries:
        if entry.kind == MESSAGE_ROWS:
            earlier = found.get(entry.pointer, entry.written_ms)
            found[entry.pointer] = min(earlier, entry.written_ms)
    return found


def test_asking_for_first_publishes_looks_at_no_range() -> None:
    """It is asked several times a second: with a million stored payloads it took all of one."""
    index = PointerIndex()
    for number in range(50):
        kind = MESSAGE_ROWS if number % 2 else PAYLOAD_ROWS
        index.add(range_of(number // 10, kind, number, made=WatchedRange))
    looks_before = WatchedRange.looks

    assert dict(index.first_publishes()) == dict.fromkeys(range(5), 5)

    assert WatchedRange.looks == looks_before


changes = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add again", "lose the last", "settle", "mark"]),
        st.integers(1, 3),
        st.sampled_from([MESSAGE_ROWS, PAYLOAD_ROWS]),
    ),
    max_size=40,
)


@given(changes=changes)
def test_first_publishes_are_those_of_the_ranges_that_are_there(
    changes: list[tuple[str, int, bytes]],
) -> None:
    index = PointerIndex()
    there: list[IndexedRange] = []
    for number, (change, pointer, kind) in enumerate(changes):
        if change == "add":
            there.append(range_of(pointer, kind, number, written_ms=100 + number))
            index.add(there[-1])
        elif change == "add again" and there:
            index.add(there[0])
        elif change == "lose the last" and there:
            index.discard(there.pop())
            index.discard(range_of(pointer, kind, number))
        elif change in ("settle", "mark"):
            ended = [entry for entry in there if entry.pointer == pointer]
            there = [entry for entry in there if entry.pointer != pointer]
            if change == "settle":
                index.settle([pointer])
            else:
                index.marked(ended)

        assert dict(index.first_publishes()) == first_publishes(there)
        assert set(index.pointers()) == {entry.pointer for entry in there}
