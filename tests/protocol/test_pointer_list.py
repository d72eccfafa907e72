"""Pointer lists against the plainest model there is: a sorted list of a set (design §4)."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tuff.protocol.pointer_list import CHUNK_COUNT_MAX, POINTER_MAX, PointerList, holds, packed

# Few values, so that a run meets the same one again; and the ends of the range.
POINTERS = st.one_of(st.integers(0, 3000), st.sampled_from([POINTER_MAX, POINTER_MAX - 1]))


class PointerListMachine(RuleBasedStateMachine):
    """Lists grow and shrink; every version handed out stays what it was."""

    def __init__(self) -> None:
        super().__init__()
        self.list = PointerList()
        self.model: set[int] = set()
        self.kept: list[tuple[PointerList, list[int]]] = []

    @rule(pointer=POINTERS)
    def add(self, pointer: int) -> None:
        self.list = self.list.with_added(pointer)
        self.model.add(pointer)

    @rule(first=st.integers(0, 3000), count=st.integers(1, 2 * CHUNK_COUNT_MAX))
    def add_a_run_in_order(self, first: int, count: int) -> None:
        for pointer in range(first, first + count):
            self.list = self.list.with_added(pointer)
        self.model.update(range(first, first + count))

    @rule(pointers=st.lists(POINTERS, max_size=20))
    def remove(self, pointers: list[int]) -> None:
        self.list = self.list.without(pointers)
        self.model.difference_update(pointers)

    @rule(first=st.integers(0, 3000), step=st.integers(1, 5))
    def remove_a_run(self, first: int, step: int) -> None:
        gone = range(first, first + 1500, step)
        self.list = self.list.without(gone)
        self.model.difference_update(gone)

    @rule()
    def keep_this_version(self) -> None:
        self.kept.append((self.list, sorted(self.model)))
        del self.kept[:-5]

    @rule()
    def ask_for_its_wire_form(self) -> None:
        assert len(self.list.packed()) == 8 * len(self.model)

    @invariant()
    def it_is_the_sorted_set(self) -> None:
        expected = sorted(self.model)
        assert list(self.list) == expected
        assert len(self.list) == len(expected)
        assert self.list == PointerList(expected)
        assert self.list.packed() == struct.pack(f">{len(expected)}q", *expected)

    @invariant()
    def it_holds_what_the_set_holds(self) -> None:
        for pointer in [0, 1, 511, 512, 513, 1500, 3000, POINTER_MAX - 1, POINTER_MAX]:
            assert (pointer in self.list) == (pointer in self.model)
            assert holds(self.list, pointer) == (pointer in self.model)

    @invariant()
    def no_chunk_is_empty_or_too_large(self) -> None:
        assert all(0 < len(chunk.values) <= CHUNK_COUNT_MAX for chunk in self.list._chunks)

    @invariant()
    def versions_handed_out_before_never_change(self) -> None:
        for version, expected in self.kept:
            assert list(version) == expected
            assert version.packed() == struct.pack(f">{len(expected)}q", *expected)


class TestPointerList(PointerListMachine.TestCase):
    settings = settings(max_examples=20, stateful_step_count=20)


@pytest.mark.slow
class TestPointerListAtLength(PointerListMachine.TestCase):
    settings = settings(max_examples=400, stateful_step_count=20)


@given(st.lists(POINTERS, max_size=1500), st.integers(-1600, 1600), st.integers(-1600, 1600))
def test_an_index_and_a_slice_give_what_a_tuple_gives(
    pointers: list[int], index: int, stop: int
) -> None:
    found = PointerList(pointers)
    expected = tuple(sorted(set(pointers)))

    assert found[index:stop] == expected[index:stop]
    try:
        value: int | None = expected[index]
    except IndexError:
        value = None
    try:
        assert found[index] == value
    except IndexError:
        assert value is None


def test_a_list_that_grows_at_its_end_keeps_its_chunks_full() -> None:
    found = PointerList()
    for pointer in range(4 * CHUNK_COUNT_MAX):
        found = found.with_added(pointer)

    assert [len(chunk.values) for chunk in found._chunks] == [CHUNK_COUNT_MAX] * 4


def test_a_new_version_shares_every_chunk_but_the_one_that_changed() -> None:
    before = PointerList(range(0, 20 * CHUNK_COUNT_MAX, 2))
    added = before.with_added(5)
    removed = before.without([4])

    for after in (added, removed):
        shared = {id(chunk) for chunk in before._chunks} & {id(chunk) for chunk in after._chunks}
        assert len(shared) == len(before._chunks) - 1


def test_adding_what_is_there_and_removing_what_is_not_give_the_very_same_list() -> None:
    pointers = PointerList([1, 2])

    assert pointers.with_added(2) is pointers
    assert pointers.without([3]) is pointers


def test_a_list_equals_any_sequence_of_the_same_pointers_and_hashes_as_a_tuple() -> None:
    pointers = PointerList([3, 1, 2])

    assert pointers == (1, 2, 3)
    assert len({pointers, (1, 2, 3)}) == 1
    assert pointers != (1, 2)
    assert pointers != b"\x01\x02\x03"
    assert hash(pointers) == hash((1, 2, 3))
    assert repr(pointers) == "PointerList([1, 2, 3])"


def test_a_plain_tuple_is_searched_and_packed_alike() -> None:
    assert holds((1, 5), 5)
    assert not holds((1, 5), 4)
    assert not holds((), 4)
    assert packed((1, 5)) == bytes.fromhex("00000000000000010000000000000005")
    assert packed(PointerList([5, 1])) == bytes.fromhex("00000000000000010000000000000005")
