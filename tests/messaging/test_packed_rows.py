"""Packed rows: neighbouring rows in one stored value are read as single rows, whole or damaged."""

import asyncio
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from messaging.engines.memory import MemoryStore
from messaging.engines.row_store import Store
from messaging.model.packed_rows import (
    PACKED_BYTES_MAX,
    PACKED_COUNT_MAX,
    is_packed,
    open_packed,
    pack_rows,
    require_packed,
    row_count,
    rows_in,
    unpack_rows,
    whole_rows,
)
from messaging.model.row_format import (
    HEAD,
    IS_PACKED,
    MESSAGES,
    PAYLOADS,
    ROWS_STOP,
    DamagedRowError,
    MessageRow,
    NewerRowError,
    frame,
    inline_values,
    is_whole,
    message_key,
    offset_after,
    offset_in,
    prefix_of,
)
from messaging.service import MessagingService
from tests.messaging.packed_stores import without_flags, without_sizes
from tests.messaging.world import AUDIT, World, polled, publish, request
from tuff.protocol.ids import Offset, TopicId

PREFIX = prefix_of(TopicId("default", "t"), 1)
NOW_MS = 1_480_000_000_000
FIRST = Offset(NOW_MS, 0)

Row = tuple[bytes, bytes]


def rows_of(payloads: list[bytes], *, first: Offset = FIRST) -> list[Row]:
    keys = [message_key(PREFIX, offset_after(first, number)) for number in range(len(payloads))]
    return [*zip(keys, inline_values(keys, payloads, pointer=None), strict=True)]


def joined(rows: list[Row]) -> list[Row]:
    return [*pack_rows([key for key, _ in rows], [value for _, value in rows])]


def packed_row_of(*payloads: bytes) -> Row:
    (record,) = joined(rows_of(list(payloads)))
    return record


@given(
    payloads=st.lists(st.binary(max_size=40), min_size=1, max_size=600),
    first=st.sampled_from([0, 5, 65_400, 65_535]),
)
@example(payloads=[bytes(PACKED_BYTES_MAX), b"", b"x", bytes(PACKED_BYTES_MAX - 100)], first=0)
@example(payloads=[b"x"] * (PACKED_COUNT_MAX + 1), first=0)
def test_packed_rows_are_unpacked_unchanged(payloads: list[bytes], first: int) -> None:
    rows = rows_of(payloads, first=Offset(NOW_MS, first))

    records = joined(rows)

    assert [row for record in records for row in rows_in(*record)] == rows
    for key, value in records:
        assert len(rows_in(key, value)) <= PACKED_COUNT_MAX
        assert is_packed(value) == (len(rows_in(key, value)) > 1)
        assert {row[:-2] for row, _ in rows_in(key, value)} == {key[:-2]}
    sizes = [
        sum(len(row) for _, row in rows_in(*record)) for record in records if is_packed(record[1])
    ]
    assert all(size <= PACKED_BYTES_MAX for size in sizes)


def test_rows_with_flags_are_not_packed() -> None:
    key, value = rows_of([b"a"])[0]
    other = message_key(PREFIX, Offset(NOW_MS, 1))
    rows = [(key, value), (other, MessageRow(ttl_s=60, payload=b"b").to_bytes(other))]

    assert joined(rows) == rows


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_damages_one_packed_row_at_most(bit: int) -> None:
    rows = rows_of([b"first", b"", b"second", b"the third"])
    ((key, value),) = joined(rows)
    for at in range(len(value)):
        damaged = value[:at] + bytes((value[at] ^ 1 << bit,)) + value[at + 1 :]

        assert open_packed(key, damaged) is None
        whole = whole_rows(key, damaged)

        assert set(whole) <= set(rows), at
        assert len(whole) >= len(rows) - 1, at


@given(cut=st.integers(0, 60), key_end=st.integers(0, 4))
def test_a_packed_value_that_is_cut_or_under_another_key_has_no_invented_row(
    cut: int, key_end: int
) -> None:
    rows = rows_of([b"first", b"", b"second", b"the third"])
    ((key, value),) = joined(rows)
    key = key[:-1] + bytes((key_end,))

    found = [row for whole in whole_rows(key, value[:cut]) for row in rows_in(*whole)]

    assert set(found) <= set(rows)


def test_a_whole_packed_value_of_another_form_is_from_a_newer_version() -> None:
    key, value = packed_row_of(b"a", b"b")
    longer = frame(key, IS_PACKED, value[HEAD.size :] + b"more")

    with pytest.raises(NewerRowError):
        require_packed(key, longer)
    with pytest.raises(DamagedRowError):
        require_packed(key, value[:-1])
    require_packed(key, value)
    # One that is read row by row is refused in the same way.
    (row,) = rows_in(key, longer)
    with pytest.raises(NewerRowError):
        MessageRow.from_bytes(*row)


@given(value=st.binary(max_size=80), flags=st.sampled_from([0, 1, IS_PACKED]))
def test_arbitrary_bytes_are_no_packed_rows(value: bytes, flags: int) -> None:
    key = message_key(PREFIX, Offset(NOW_MS, 7))
    stored = bytes((flags,)) + value

    assert open_packed(key, stored) is None
    assert unpack_rows(key, stored) is None or is_packed(stored) or flags != IS_PACKED
    assert whole_rows(key, stored) == []


class TwoStores(RuleBasedStateMachine):
    """A store with packed rows answers as one with single rows, and returns the damaged record
    where packed rows are lost."""

    def __init__(self) -> None:
        super().__init__()
        self.new_rows, self.plain = Store(MemoryStore()), MemoryStore()
        self.lost: dict[bytes, list[bytes]] = {}  # the keys of the rows of each damaged record
        self.next = FIRST
        self.first = 0

    @rule(payloads=st.lists(st.binary(max_size=3), min_size=1, max_size=9), gap=st.integers(0, 2))
    def publish(self, payloads: list[bytes], gap: int) -> None:
        rows = rows_of(payloads, first=offset_after(self.next, gap))
        self.next = offset_after(self.next, gap + len(rows))
        keys, values = zip(*rows, strict=True)
        self.new_rows.write([*self.new_rows.packed(keys, values)])
        self.plain.write([*zip(keys, values, strict=True)])

    @rule()
    def publish_under_a_pointer(self) -> None:
        key = message_key(PREFIX, self.next)
        row = (key, MessageRow(tx_pointer=7, payload=b"under a pointer").to_bytes(key))
        self.next = offset_after(self.next)
        for store in (self.new_rows, self.plain):
            store.write([row])

    @rule(jump=st.sampled_from([1, 65_530]))
    def wait(self, jump: int) -> None:
        self.next = offset_after(self.next, jump)

    @rule(data=st.data())
    def drop_the_oldest(self, data: Any) -> None:
        """As retention does: single rows, or all rows of a packed value."""
        records = [*self.new_rows.records(MESSAGES, ROWS_STOP)]
        count = data.draw(st.integers(0, len(records)))
        for key, value in records[:count]:
            self.new_rows.write([(key, None)])
            self.plain.write([(row, None) for row, _ in rows_in(key, value)])
            self.lost.pop(key, None)

    @precondition(lambda self: self._whole_packed())
    @rule(data=st.data())
    def damage_packed_rows(self, data: Any) -> None:
        key, value = data.draw(st.sampled_from(self._whole_packed()))
        self.lost[key] = [row for row, _ in rows_in(key, value)]
        self.plain.write([(row, None) for row in self.lost[key]])
        self.new_rows.write([(key, without_sizes(value))])

    @precondition(lambda self: self._whole_packed())
    @rule(data=st.data(), bit=st.integers(0, 7))
    def damage_the_flags_of_packed_rows(self, data: Any, bit: int) -> None:
        key, value = data.draw(st.sampled_from(self._whole_packed()))
        self.new_rows.write([(key, without_flags(value, bit=bit))])

    @rule(data=st.data())
    def scan(self, data: Any) -> None:
        start, stop = self._key(data), self._key(data)

        found = [*self.new_rows.scan(start, stop)]
        self._compare(found, start, stop)
        assert [*self.new_rows.scan(start, stop, reverse=True)] == found[::-1]
        records = [*self.new_rows.records(start, stop)]
        rows = [row for record in records for row in rows_in(*record)]
        self._compare([row for row in rows if _is_in(row, start, stop)], start, stop)
        for key, value in records:
            assert key in self.lost or any(start <= row < stop for row, _ in rows_in(key, value))

    @rule(data=st.data())
    def get(self, data: Any) -> None:
        key = self._key(data)

        found = self.new_rows.get(key)
        is_lost = any(key in rows for rows in self.lost.values())
        if is_lost or (found is not None and not is_whole(key, found)):
            assert found is not None
            assert self.plain.get(key) is None
        else:
            assert found == self.plain.get(key)

    @invariant()
    def all_is_there(self) -> None:
        self._compare([*self.new_rows.scan(MESSAGES, ROWS_STOP)], MESSAGES, ROWS_STOP)

    def _compare(self, found: list[Row], start: bytes, stop: bytes) -> None:
        expected = [*Store(self.plain).scan(start, stop)]
        assert [row for row in found if row[0] not in self.lost] == expected
        assert found == sorted(found)
        shown = [key for key, _ in found if key in self.lost]
        for key, rows in self.lost.items():
            if any(start <= row < stop for row in rows):
                assert key in shown
            elif key in shown:
                # Nobody can tell any more that it begins behind the range.
                assert key >= stop
                assert all(row < message_key(PREFIX, _place_before(stop)) for row, _ in expected)

    def _whole_packed(self) -> list[Row]:
        records = [*self.new_rows.records(MESSAGES, ROWS_STOP)]
        return [record for record in records if open_packed(*record) is not None]

    def _key(self, data: Any) -> bytes:
        last = self.next.to_int()
        number = data.draw(st.integers(FIRST.to_int(), last + 2))
        return message_key(PREFIX, Offset.from_int(number))


def _is_in(row: Row, start: bytes, stop: bytes) -> bool:
    return start <= row[0] < stop or not is_whole(*row)


def _place_before(key: bytes) -> Offset:
    return Offset.from_int(offset_in(key).to_int() - 1)


TestTwoStores = TwoStores.TestCase


OTHER = TopicId("default", "other")


def stored(world: World, table: bytes = MESSAGES) -> list[int]:
    """How many rows each stored value of a table stands for, in the order of the keys."""
    return [row_count(value) for key, value in sorted(world.rows.items()) if key[:1] == table]


async def test_messages_of_a_publish_are_packed(world: World, service: MessagingService) -> None:
    await publish(service, b"a", b"b", b"c")
    await publish(service, b"d")

    assert stored(world) == [3, 1]
    assert await polled(service) == [b"a", b"b", b"c", b"d"]


async def test_adjacent_publishes_of_one_batch_are_packed_together(
    world: World, service: MessagingService
) -> None:
    await service.topics.create(OTHER, {})

    await asyncio.gather(
        publish(service, b"a"),
        publish(service, b"b", b"c"),
        service.publisher.publish(OTHER, request(b"elsewhere", b"as well")),
        publish(service, b"d"),
        publish(service, b"e", ttl_s=60),
        publish(service, b"f"),
    )

    assert sorted(stored(world)) == [1, 1, 1, 2, 3]
    assert await polled(service) == [b"a", b"b", b"c", b"d", b"e", b"f"]


async def test_messages_with_a_pointer_are_not_packed(
    world: World, service: MessagingService
) -> None:
    """A rollback inverts each of them, and readers decide about each."""
    pointer = world.transactions.start(7)

    await publish(service, b"a", b"b", pointer=pointer)

    assert stored(world) == [1, 1]


async def test_stored_messages_are_packed_by_store_call(
    world: World, service: MessagingService
) -> None:
    pointer = world.transactions.start(7)

    await service.publisher.store(AUDIT, request(b"a", b"b", pointer=pointer))
    await service.publisher.store(AUDIT, request(b"c", pointer=pointer))
    await publish(service, pointer=pointer)

    assert stored(world, PAYLOADS) == [2, 1]
    assert await polled(service) == [b"a", b"b", b"c"]
