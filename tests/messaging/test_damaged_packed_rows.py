"""Packed rows in a damaged value are never skipped silently, wherever a range begins and ends.

The value is stored under the key of its last row. A range that ended between its first row and its
last did not reach that key, and a reader `through` there was told that it had caught up.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from messaging.engines.memory import MemoryStore
from messaging.engines.row_store import Store
from messaging.log.scan import possible_loss
from messaging.model.packed_rows import pack_rows, rows_in
from messaging.model.row_format import (
    IS_PACKED,
    MessageRow,
    PayloadRange,
    frame,
    inline_values,
    is_whole,
    message_key,
    offset_after,
    pack_offset,
    payload_key,
    unframe,
)
from messaging.model.visibility import Query
from messaging.read.offsets_and_splits import decided_end, splits_of
from tests.messaging.packed_stores import without_flags, without_sizes
from tests.messaging.scan_model import COMMITTED_POINTER, NOW_MS, PREFIX, query, read
from tests.messaging.world import leveldb
from tuff.protocol.errors import DamagedRecordError
from tuff.protocol.ids import MessageId, Offset, past_group

FIRST = Offset(NOW_MS - 2_000, 40)
COUNT = 12  # rows, of which those from PACKED_FIRST to PACKED_LAST are packed
PACKED_FIRST, PACKED_LAST = 3, 9

Damage = Callable[[bytes], bytes]


def without_all(value: bytes) -> bytes:
    return bytes(len(value))


@pytest.fixture(params=["memory", "leveldb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    in_memory = request.param == "memory"
    engine = MemoryStore() if in_memory else leveldb(tmp_path / "table")
    with closing(Store(engine)) as opened:
        yield opened


def place(number: int) -> Offset:
    return offset_after(FIRST, number)


def key(number: int) -> bytes:
    return message_key(PREFIX, place(number))


def payload(number: int) -> bytes:
    return f"payload {number}".encode()


def fill(store: Store, damage: Damage) -> None:
    """Rows of one millisecond, of which some are packed in a value that is damaged."""
    keys = [key(number) for number in range(COUNT)]
    values = inline_values(keys, [payload(each) for each in range(COUNT)], pointer=None)
    rows = [*zip(keys, values, strict=True)]
    ((at, packed),) = pack_rows(
        keys[PACKED_FIRST : PACKED_LAST + 1], values[PACKED_FIRST : PACKED_LAST + 1]
    )
    store.write([*rows[:PACKED_FIRST], (at, damage(packed)), *rows[PACKED_LAST + 1 :]])


def ranges() -> Iterator[tuple[int, int]]:
    return ((start, stop) for start in range(COUNT) for stop in range(start + 1, COUNT + 1))


@pytest.mark.parametrize("damage", [without_sizes, without_all])
def test_a_range_returns_every_row_or_the_damaged_record_that_had_it(
    store: Store, damage: Damage
) -> None:
    fill(store, damage)

    for start, stop in ranges():
        inside = range(start, stop)
        is_lost = any(PACKED_FIRST <= number <= PACKED_LAST for number in inside)
        expected = [key(each) for each in inside if not PACKED_FIRST <= each <= PACKED_LAST]
        expected += [key(PACKED_LAST)] if is_lost else []

        found = [at for at, _ in store.scan(key(start), key(stop))]
        backwards = [at for at, _ in store.scan(key(start), key(stop), reverse=True)]
        records = [at for at, _ in store.records(key(start), key(stop))]

        assert found == sorted(expected), (start, stop)
        assert backwards == found[::-1]
        assert records == found


@pytest.mark.parametrize("bit", range(8))
def test_a_packed_value_with_damaged_flags_still_has_its_rows(store: Store, bit: int) -> None:
    fill(store, lambda packed: without_flags(packed, bit=bit))

    for each in range(COUNT):
        found = store.get(key(each))
        assert found is not None
        assert is_whole(key(each), found)
    for start, stop in ranges():
        rows = [*store.scan(key(start), key(stop))]

        assert [at for at, _ in rows] == [key(each) for each in range(start, stop)]
        assert all(is_whole(*row) for row in rows)
        assert [*store.scan(key(start), key(stop), reverse=True)] == rows[::-1]


def test_a_payload_that_looks_like_packed_rows_is_one_row() -> None:
    at, at_before = key(1), key(0)
    value = MessageRow(payload=b"made up").to_bytes(at_before)
    ((_, packed),) = pack_rows([at_before, at], [value, MessageRow(payload=b"x").to_bytes(at)])
    whole = frame(at, 0, packed[5:])
    newer = frame(at, 64, packed[5:])

    assert rows_in(at, whole) == [(at, whole)]
    assert rows_in(at, newer) == [(at, newer)]
    assert unframe(at, frame(at, IS_PACKED, packed[5:]))


def ask(**asked: object) -> Query:
    served = {"high_water_mark": place(COUNT - 1), "live_from": Offset(0, 0)}
    return query(**(served | asked))


def read_all(store: Store, *, first: int, through: int) -> tuple[list[bytes], list[str]]:
    """All payloads that a reader receives that continues after each error, and the errors."""
    number, payloads, told = MessageId(*place(first)).to_int(), [], []
    for _ in range(2 * COUNT):
        try:
            reading = read(store, ask(start=number, through=MessageId(*place(through)), limit=2))
        except DamagedRecordError as error:
            told.append(str(error))
            number = int(str(error.members["next"]), 16) + 1
            continue
        payloads += [each for _, each in reading.items]
        if reading.caught_up:
            return payloads, told
        number = int.from_bytes(reading.next_id, "big") + 1
    raise AssertionError("the read comes to no end")


@pytest.mark.parametrize("damage", [without_sizes, without_all])
def test_a_reader_gets_one_error_and_all_other_rows(store: Store, damage: Damage) -> None:
    fill(store, damage)

    for first, stop in ranges():
        payloads, told = read_all(store, first=first, through=stop - 1)

        inside = range(first, stop)
        assert payloads == [
            payload(each) for each in inside if not PACKED_FIRST <= each <= PACKED_LAST
        ]
        lost = [each for each in inside if PACKED_FIRST <= each <= PACKED_LAST]
        assert len(told) == bool(lost), (first, stop)


def test_the_error_says_how_many_messages_may_be_lost(store: Store) -> None:
    fill(store, without_sizes)

    _, (told,) = read_all(store, first=0, through=PACKED_FIRST)
    assert MessageId(*place(PACKED_LAST)).hex() in told
    _, (last,) = read_all(store, first=PACKED_LAST, through=PACKED_LAST)

    assert "may have been up to 7 messages, of which this was the last" in told
    assert "may have been" not in last


def test_rows_that_the_reader_knows_do_not_count_as_lost(store: Store) -> None:
    fill(store, without_sizes)
    ((at, packed),) = store.records(key(PACKED_LAST), key(PACKED_LAST + 1))
    after = place(PACKED_FIRST - 1).to_int()

    def told(last_passed: int) -> str:
        passed = pack_offset(*place(last_passed))
        return possible_loss(store, at, packed, after=after, skipped_to=passed)

    assert "up to 7 messages" in told(0)
    assert "up to 3 messages" in told(PACKED_LAST - 3)
    assert told(PACKED_LAST - 1) == ""


def test_a_reader_receives_all_packed_rows_of_a_value_with_damaged_flags(
    store: Store,
) -> None:
    fill(store, without_flags)

    for first, stop in ranges():
        expected = [payload(each) for each in range(first, stop)]
        assert read_all(store, first=first, through=stop - 1) == (expected, [])


def test_a_read_of_damaged_packed_rows_is_not_cacheable(store: Store) -> None:
    fill(store, without_flags)
    inside = MessageId(*place(PACKED_FIRST + 1)).to_int() + 1

    reading = read(store, ask(start=inside))

    assert reading.items[0][1] == payload(PACKED_FIRST + 2)
    assert reading.cacheable_after is None


def test_a_topic_ends_before_a_damaged_record_that_may_be_undecided(store: Store) -> None:
    fill(store, without_sizes)
    live = {"live_from": place(0)}

    end, _ = decided_end(store, ask(**live), undecided_from=FIRST)
    cut, _ = decided_end(
        store, ask(high_water_mark=place(PACKED_FIRST), **live), undecided_from=FIRST
    )

    assert end == cut == MessageId(*place(PACKED_FIRST - 1))


def test_a_damaged_last_record_is_the_end_for_a_reader_without_a_snapshot(
    store: Store,
) -> None:
    fill(store, without_sizes)

    end, _ = decided_end(
        store,
        ask(high_water_mark=place(PACKED_LAST), live_from=place(0)),
        undecided_from=Offset(NOW_MS, 0),
    )

    assert end == past_group(place(PACKED_LAST))


def test_splits_beside_a_damaged_record_stay_inside_the_range(store: Store) -> None:
    fill(store, without_sizes)
    end = MessageId(*place(PACKED_FIRST + 1))

    for start in (None, MessageId(*place(PACKED_FIRST))):
        number = 0 if start is None else start.to_int() + 1
        parts = splits_of(store, ask(start=number, through=end), start=start, end=end, count=9)

        assert (parts[0].start, parts[-1].end) == (start, end)
        ends = [part.end for part in parts]
        assert ends == sorted(ends)


@pytest.mark.parametrize("damage", [without_sizes, without_all, without_flags])
def test_a_group_with_damaged_payloads_is_reported_and_the_read_continues(
    store: Store, damage: Damage
) -> None:
    stored = [payload_key(PREFIX, COMMITTED_POINTER, place(number)) for number in range(4)]
    values = inline_values(stored, [payload(each) for each in range(4)], pointer=None)
    ((at, packed),) = pack_rows(stored, values)
    brings = PayloadRange(place(0), place(3), 4)
    row = MessageRow(tx_pointer=COMMITTED_POINTER, reference=brings).to_bytes(key(0))
    store.write([(at, damage(packed)), (key(0), row)])

    for last in range(4):
        number, handed, told = 0, [], [""]
        through = MessageId(*place(0), *place(last))
        for _ in range(9):
            try:
                reading = read(store, ask(start=number, through=through))
            except DamagedRecordError as error:
                told.append(str(error))
                number = int(str(error.members["next"]), 16) + 1
                continue
            handed += [each for _, each in reading.items]
            number = int.from_bytes(reading.next_id, "big") + 1
            if reading.caught_up:
                break

        is_apart = damage is without_flags
        expected = "brings 4 stored messages" if is_apart else "may have been up to 4 messages"
        assert expected in told[-1]
        assert handed == [payload(each) for each in range(last + 1 if is_apart else 0)]
