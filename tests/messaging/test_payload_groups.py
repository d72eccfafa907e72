"""Payload groups with missing rows: readers get all messages of a publish, or none and an error
(promises 4 and 8)."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messaging.engines.engine_interface import Chunks
from messaging.engines.memory import MemoryStore
from messaging.engines.row_store import Store
from messaging.log.scan import first_message
from messaging.model.row_format import PAYLOADS, message_key, payload_key
from messaging.model.visibility import Query, Undecided
from messaging.read.offsets_and_splits import decided_end
from tests.messaging.scan_model import (
    COMMITTED_POINTER,
    PREFIX,
    ModelRow,
    build,
    model,
    query,
    read,
    start_number,
    topics,
)
from tests.messaging.world import CountingStore, DamagedStore
from tuff.protocol.errors import DamagedRecordError
from tuff.protocol.ids import MessageId, Offset

PLAIN = ModelRow(950_000, None, ((b"plain", None),), is_reference=False)
LATER = ModelRow(950_002, None, ((b"later", None),), is_reference=False)


def group_of(*payloads: bytes, ttl_s: int | None = None) -> ModelRow:
    each = tuple((payload, ttl_s) for payload in payloads)
    return ModelRow(950_001, COMMITTED_POINTER, each, is_reference=True)


def lose(table: MemoryStore, *places: Offset) -> None:
    table.write([(payload_key(PREFIX, COMMITTED_POINTER, place), None) for place in places])


def texts(items: list[tuple[bytes, bytes]]) -> list[bytes]:
    return [payload for _, payload in items]


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
@pytest.mark.parametrize("missing", [0, 1, 2])
def test_no_message_of_an_incomplete_group_is_delivered(limit: int, missing: int) -> None:
    """After a wrong restore, a publish was silently shortened."""
    table, _, places = build([PLAIN, group_of(b"a", b"b", b"c"), LATER])
    place, stored = places[1]
    lose(table, stored[missing])

    page = read(table, query(limit=limit))
    assert (texts(page.items), page.caught_up) == ([b"plain"], False)
    behind = start_number(MessageId.from_bytes(page.next_id), inclusive=False)
    with pytest.raises(DamagedRecordError, match="brings 3 stored messages, and 2 are") as raised:
        read(table, query(limit=limit, start=behind))

    assert raised.value.members["id"] == MessageId(*place).hex()


def test_a_reader_that_continues_in_an_incomplete_group_receives_the_rest() -> None:
    table, _, places = build([group_of(b"a", b"b", b"c"), LATER])
    lose(table, places[0][1][1])
    with pytest.raises(DamagedRecordError) as raised:
        read(table, query())
    go_on = MessageId.from_hex(str(raised.value.members["next"]))

    everything = read(table, query(start=start_number(go_on, inclusive=False)))
    assert texts(everything.items) == [b"a", b"c", b"later"]

    paged: list[bytes] = []
    while page := read(table, query(limit=1, start=start_number(go_on, inclusive=False))).items:
        paged += texts(page)
        go_on = MessageId.from_bytes(page[-1][0])
    assert paged == [b"a", b"c", b"later"]


@pytest.mark.parametrize("inclusive", [False, True])
def test_a_start_at_the_first_message_of_a_group_is_its_beginning(*, inclusive: bool) -> None:
    table, _, places = build([group_of(b"a", b"b", b"c")])
    place, stored = places[0]
    lose(table, stored[2])
    start = MessageId(*place, *stored[0]) if inclusive else MessageId(*place)

    with pytest.raises(DamagedRecordError):
        read(table, query(limit=1, start=start_number(start, inclusive=inclusive)))


def test_rows_of_a_group_behind_the_end_of_the_read_are_counted() -> None:
    table, _, places = build([group_of(b"a", b"b", b"c")])
    place, stored = places[0]
    lose(table, stored[2])

    with pytest.raises(DamagedRecordError):
        read(table, query(through=MessageId(*place, *stored[0])))
    before = read(table, query(through=MessageId(*place)))
    assert (before.items, before.caught_up) == ([], True)


def test_a_page_that_ends_before_an_incomplete_group_is_not_caught_up() -> None:
    table, _, places = build([PLAIN, group_of(b"a", b"b", b"c")])
    place, stored = places[1]
    lose(table, stored[2])

    page = read(table, query(through=MessageId(*place, *stored[0])))

    assert (texts(page.items), page.caught_up) == ([b"plain"], False)


def test_a_group_without_any_row_is_damaged() -> None:
    table, _, places = build([group_of(b"a", b"b")])
    lose(table, *places[0][1])

    with pytest.raises(DamagedRecordError):
        read(table, query())


def test_messages_that_expired_by_their_own_ttl_count_as_present() -> None:
    table, _, places = build([group_of(b"a", b"b", ttl_s=1), LATER])

    assert texts(read(table, query()).items) == [b"later"]
    lose(table, places[0][1][0])
    with pytest.raises(DamagedRecordError):
        read(table, query())


def test_a_page_that_ends_behind_expired_rows_of_a_group_has_not_begun_the_group() -> None:
    """The next page began inside the group, and delivered the rest of it."""
    payloads = ((b"gone", 1), (b"a", None), (b"lost", None))
    group = ModelRow(950_001, COMMITTED_POINTER, payloads, is_reference=True)
    table, _, places = build([PLAIN, group])
    lose(table, places[1][1][2])

    page = read(table, query(limit=1))

    assert page.next_id == MessageId(*places[0][0]).to_bytes()
    behind = start_number(MessageId.from_bytes(page.next_id), inclusive=False)
    with pytest.raises(DamagedRecordError):
        read(table, query(limit=1, start=behind))


def test_missing_rows_of_a_group_are_reported_before_a_damaged_one() -> None:
    """With an error for the damaged one only, a reader continued behind it, where rows are not
    counted."""
    table, _, places = build([group_of(b"a", b"b", b"c")])
    place, stored = places[0]
    table.write([(payload_key(PREFIX, COMMITTED_POINTER, stored[0]), b"rubbish")])
    lose(table, stored[1])

    with pytest.raises(DamagedRecordError) as raised:
        read(table, query())

    assert raised.value.members["id"] == MessageId(*place).hex()


def test_a_group_is_counted_once_and_not_with_every_page() -> None:
    built, _, places = build([group_of(*[b"x"] * 1000)])
    place, stored = places[0]
    table = CountingStore(built.rows)

    assert len(read(table, query(limit=5)).items) == 5
    assert table.read_count == 1 + 1000

    table.read_count = 0
    behind = MessageId(*place, *stored[4])
    assert len(read(table, query(limit=5, start=behind.to_int() + 1)).items) == 5
    assert table.read_count < 1 + 30


def test_a_group_that_does_not_fit_in_the_page_is_not_counted() -> None:
    built, _, _ = build([PLAIN, group_of(*[b"x"] * 1000)])
    table = CountingStore(built.rows)

    assert texts(read(table, query(limit=1)).items) == [b"plain"]

    assert table.read_count == 2 + 1


def test_offsets_of_a_topic_count_no_group() -> None:
    """Whoever asks for offsets every second would have read the first group every second."""
    built, _, places = build([group_of(*[b"x"] * 1000)])
    place, stored = places[0]
    table = CountingStore(built.rows)

    begins = MessageId.from_bytes(first_message(Store(table), query()).messages.last_id)
    end, _ = decided_end(Store(table), query(), undecided_from=place)

    assert (begins, end) == (MessageId(*place, *stored[0]), MessageId(*place, *stored[-1]))
    assert table.read_count < 10


class SweptTable(MemoryStore):
    """Retention takes a whole group away between the look at its row and at its payloads."""

    def scan(self, start: bytes, stop: bytes, **how: Any) -> Chunks:
        if start.startswith(PAYLOADS):
            place = build([PLAIN, group_of(b"a", b"b")])[2][1][0]
            gone = [key for key in self.rows if key.startswith(PAYLOADS)]
            self.write([(key, None) for key in [*gone[:1], message_key(PREFIX, place)]])
        return super().scan(start, stop, **how)


def test_a_group_that_was_deleted_during_the_read_is_skipped() -> None:
    built, _, _ = build([PLAIN, group_of(b"a", b"b"), LATER])

    found = read(SweptTable(built.rows), query(bytes_max=len(b"plain" + b"later")))

    assert (texts(found.items), found.caught_up) == ([b"plain", b"later"], True)


def test_a_group_with_an_unreadable_end_is_not_begun() -> None:
    built, _, places = build([PLAIN, group_of(b"a", b"b", b"c"), LATER])
    place, stored = places[1]
    table = DamagedStore(built.rows)
    table.is_damaged = lambda key: key == payload_key(PREFIX, COMMITTED_POINTER, stored[2])

    assert texts(read(table, query()).items) == [b"plain"]
    with pytest.raises(DamagedRecordError, match="a damaged block") as raised:
        read(table, query(start=MessageId(*place).to_int()))
    go_on = MessageId.from_hex(str(raised.value.members["next"]))
    found = read(table, query(start=go_on.to_int() + 1))

    assert [each for each, _ in found.items] == [
        MessageId(*place, *at).to_bytes() for at in stored[:2]
    ]


@given(rows=topics, limit=st.integers(1, 5), bytes_max=st.integers(1, 12), data=st.data())
def test_a_reader_that_continues_after_each_error_receives_every_other_message(
    rows: list[ModelRow], limit: int, bytes_max: int, data: st.DataObject
) -> None:
    table, _, places = build(rows)
    expected = model(rows, places, snapshot=None, undecided=Undecided.HOLD).items
    lost: dict[Offset, set[bytes]] = {}
    for row, (place, stored) in zip(rows, places, strict=True):
        for at in stored:
            if data.draw(st.integers(0, 3)) == 0:
                assert row.pointer is not None
                table.write([(payload_key(PREFIX, abs(row.pointer), at), None)])
                lost.setdefault(place, set()).add(MessageId(*place, *at).to_bytes())

    items, told = _read_on(table, query(limit=limit, bytes_max=bytes_max))

    gone = set[bytes]().union(*lost.values())
    assert items == [item for item in expected if item[0] not in gone]
    assert set(told) == {MessageId(*place).hex() for place in lost if place[0] > 900_000}
    for damaged, delivered_count in told.items():
        assert not any(each.hex()[:20] == damaged[:20] for each, _ in items[:delivered_count])


def _read_on(table: MemoryStore, asked: Query) -> tuple[list[tuple[bytes, bytes]], dict[str, int]]:
    """Everything, page by page, and of each damage how much had been delivered before it."""
    items: list[tuple[bytes, bytes]] = []
    told: dict[str, int] = {}
    while True:
        try:
            page = read(table, asked)
            next_id = page.next_id
        except DamagedRecordError as damaged:
            told[str(damaged.members["id"])] = len(items)
            next_id = bytes.fromhex(str(damaged.members["next"]))
        else:
            items += page.items
            if page.caught_up:
                return items, told
        asked = replace(asked, after=next_id)
