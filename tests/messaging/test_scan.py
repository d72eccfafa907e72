"""The scan compared with a model: which messages a read returns, in pages of any size (protocol
§3.4)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messaging.engines.memory import MemoryStore
from messaging.model.row_format import message_key, payload_key
from messaging.model.visibility import Undecided
from tests.messaging.scan_model import (
    COMMITTED_POINTER,
    PREFIX,
    SNAPSHOT,
    UNDECIDED_POINTER,
    ModelRow,
    build,
    model,
    query,
    read,
    snapshots,
    start_number,
    topics,
)
from tuff.protocol.errors import DamagedRecordError
from tuff.protocol.ids import FIRST_ID, LAST_ID, MessageId, past_group
from tuff.protocol.transaction import Transaction


@given(rows=topics, reader=snapshots, limit=st.integers(1, 5), bytes_max=st.integers(1, 12))
def test_pages_together_contain_the_same_as_one_read(
    rows: list[ModelRow],
    reader: tuple[Transaction | None, Undecided],
    limit: int,
    bytes_max: int,
) -> None:
    table, _, places = build(rows)
    snapshot, undecided = reader
    expected = model(rows, places, snapshot=snapshot, undecided=undecided)

    paged: list[tuple[bytes, bytes]] = []
    asked = query(limit=limit, bytes_max=bytes_max, snapshot=snapshot, undecided=undecided)
    while True:
        page = read(table, asked)
        paged += page.items
        assert len(page.items) <= limit
        assert sum(len(payload) for _, payload in page.items[1:]) <= bytes_max
        asked = replace(asked, after=page.next_id)
        if not page.items:
            break

    assert paged == expected.items
    assert page.caught_up is not expected.is_held
    assert (page.blocking_pointer == UNDECIDED_POINTER) is expected.is_held


def test_an_exclusive_start_includes_the_very_next_id() -> None:
    behind = start_number(MessageId(7, 3), inclusive=False)

    assert MessageId(7, 3).to_int() < behind <= MessageId(7, 3, 0, 1).to_int()


@given(rows=topics, reader=snapshots, data=st.data())
def test_a_read_after_any_id_skips_no_message(
    rows: list[ModelRow], reader: tuple[Transaction | None, Undecided], data: st.DataObject
) -> None:
    """CDAP's message store dropped the first row of an exclusive read, whichever it was."""
    table, _, places = build(rows)
    snapshot, undecided = reader
    known = [MessageId(*place, *at) for place, stored in places for at in [(0, 0), *stored]]
    start = data.draw(st.sampled_from([FIRST_ID, LAST_ID, *known, *map(_behind, known)]))
    through = data.draw(st.sampled_from([LAST_ID, *known]))
    inclusive = data.draw(st.booleans())
    # An undecided row holds only who would come past it; an exclusive start behind all that a row
    # could bring begins at the next row.
    first_number = start.to_int() if inclusive else start.to_int() + 1
    begin = MessageId.from_int(min(first_number, LAST_ID.to_int())).offset
    ahead = [(row, at) for row, at in zip(rows, places, strict=True) if at[0] >= begin]
    expected = model(
        [row for row, _ in ahead],
        [at for _, at in ahead],
        snapshot=snapshot,
        undecided=undecided,
    ).items

    found = read(
        table,
        query(
            start=start_number(start, inclusive=inclusive), through=through,
            snapshot=snapshot, undecided=undecided,
        ),
    )  # fmt: skip

    first = start.to_bytes()
    assert found.items == [
        (each, payload)
        for each, payload in expected
        if (each >= first if inclusive else each > first) and each <= through.to_bytes()
    ]


def _behind(message_id: MessageId) -> MessageId:
    return past_group(message_id.offset)


@given(rows=topics, start_ms=st.sampled_from([0, 899_000, 900_001, 949_999, 950_000, 999_501]))
def test_a_start_time_is_the_first_message_of_its_millisecond(
    rows: list[ModelRow], start_ms: int
) -> None:
    table, _, places = build(rows)
    everything = model(rows, places, snapshot=None, undecided=Undecided.HOLD).items

    for inclusive in (True, False):
        found = read(table, query(start=start_number(start_ms, inclusive=inclusive)))
        first_ms = start_ms if inclusive else start_ms + 1
        assert found.items == [
            item for item in everything if int.from_bytes(item[0][:8], "big") >= first_ms
        ]


def test_no_row_behind_the_high_water_mark_is_shown() -> None:
    rows = [ModelRow(950_000 + n, None, ((b"%d" % n, None),), is_reference=False) for n in range(3)]
    table, _, places = build(rows)

    found = read(table, query(high_water_mark=places[1][0]))

    assert [payload for _, payload in found.items] == [b"0", b"1"]
    assert found.caught_up


def test_no_message_before_the_log_start_is_shown() -> None:
    group = ((b"a", None), (b"b", None), (b"c", None))
    table, _, places = build([ModelRow(950_000, COMMITTED_POINTER, group, is_reference=True)])
    place, stored = places[0]

    found = read(table, query(log_start=MessageId(*place, *stored[1])))

    assert [payload for _, payload in found.items] == [b"b", b"c"]


def test_the_next_id_is_behind_skipped_rows() -> None:
    rows = [
        ModelRow(950_000, None, ((b"a", None),), is_reference=False),
        ModelRow(950_001, -COMMITTED_POINTER, ((b"gone", None),) * 2, is_reference=True),
    ]
    table, _, places = build(rows)

    found = read(table, query(limit=1, snapshot=SNAPSHOT))

    assert found.next_id == past_group(places[1][0]).to_bytes()
    assert found.caught_up


def test_the_next_id_is_behind_expired_payloads_of_a_group() -> None:
    group = ((b"a", None), (b"gone", 1), (b"too large", None))
    table, _, places = build([ModelRow(950_000, COMMITTED_POINTER, group, is_reference=True)])
    place, stored = places[0]

    found = read(table, query(bytes_max=5))

    assert [payload for _, payload in found.items] == [b"a"]
    assert found.next_id == MessageId(*place, *stored[1]).to_bytes()
    assert not found.caught_up


def test_an_incomplete_group_leaves_nothing_in_the_page() -> None:
    group = ((b"b", None), (b"c", None), (b"missing", None))
    rows = [
        ModelRow(950_000, None, ((b"a", None),), is_reference=False),
        ModelRow(950_001, COMMITTED_POINTER, group, is_reference=True),
    ]
    table, _, places = build(rows)
    _, stored = places[1]
    table.write([(payload_key(PREFIX, COMMITTED_POINTER, stored[2]), None)])

    found = read(table, query())

    assert [payload for _, payload in found.items] == [b"a"]
    assert list(found.messages.pointers) == []


def test_a_first_message_larger_than_the_reply_is_delivered_alone() -> None:
    rows = [ModelRow(950_000 + n, None, ((b"x" * 9, None),), is_reference=False) for n in range(2)]
    table, _, _ = build(rows)

    found = read(table, query(bytes_max=1))

    assert len(found.items) == 1
    assert not found.caught_up


@pytest.mark.parametrize("is_reference", [False, True])
def test_a_damaged_row_ends_the_read_before_it_and_its_error_names_the_next_id(
    is_reference: bool,
) -> None:
    rows = [
        ModelRow(950_000, None, ((b"a", None),), is_reference=False),
        ModelRow(950_001, COMMITTED_POINTER, ((b"b", None),), is_reference=is_reference),
        ModelRow(950_002, None, ((b"c", None),), is_reference=False),
    ]
    table, _, places = build(rows)
    _flip(table, message_key(PREFIX, places[1][0]))

    before = read(table, query())
    assert [payload for _, payload in before.items] == [b"a"]
    assert not before.caught_up

    behind = start_number(MessageId.from_bytes(before.next_id), inclusive=False)
    with pytest.raises(DamagedRecordError) as raised:
        read(table, query(start=behind))
    members = raised.value.members
    assert members["id"] == MessageId(*places[1][0]).hex()

    go_on = MessageId.from_hex(str(members["next"]))
    after = read(table, query(start=start_number(go_on, inclusive=False)))
    assert [payload for _, payload in after.items] == [b"c"]


def test_a_damaged_payload_hides_no_other_message() -> None:
    group = ((b"a", None), (b"b", None), (b"c", None))
    table, _, places = build([ModelRow(950_000, COMMITTED_POINTER, group, is_reference=True)])
    place, stored = places[0]
    _flip(table, payload_key(PREFIX, COMMITTED_POINTER, stored[0]))

    with pytest.raises(DamagedRecordError) as raised:
        read(table, query())

    go_on = MessageId.from_hex(str(raised.value.members["next"]))
    assert go_on == MessageId(*place, *stored[0])
    found = read(table, query(start=start_number(go_on, inclusive=False)))
    assert [payload for _, payload in found.items] == [b"b", b"c"]


def _flip(table: MemoryStore, key: bytes) -> None:
    value = bytearray(table.rows[key])
    value[-1] ^= 1
    table.write([(key, bytes(value))])
