"""The HBase engine without an HBase: rows and cells, the journal, and the plans of tables."""

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from messaging.engines.hbase import journal
from messaging.engines.hbase.layout import (
    BODY,
    HEAD,
    METADATA,
    Layout,
    RowRange,
    cells_of,
    key_of,
    value_of,
)
from messaging.engines.hbase.settings import HBaseSettings
from messaging.engines.hbase.table_admin import plans
from messaging.model.row_format import (
    LAST_BATCH_KEY,
    MESSAGES,
    PAYLOADS,
    MessageRow,
    PayloadRange,
    message_key,
    payload_key,
    prefix_of,
    prefix_stop,
)
from tuff.protocol.ids import Offset, TopicId
from tuff_storage.checksum import crc32

AUDIT = TopicId("default", "t1")
PREFIX = prefix_of(AUDIT, 1)
LAYOUT = Layout(16)
keys = st.binary(min_size=1, max_size=4) | st.builds(
    lambda tag, name: tag + b"ns:" + name, st.sampled_from([b"m", b"p"]), st.binary(max_size=6)
)


def test_a_row_begins_with_the_salt_of_its_topic() -> None:
    key = message_key(PREFIX, Offset(1_480_000_000_000, 5))

    table, row = LAYOUT.place(key)

    assert (table, row.hex()) == (
        "message",
        "0264656661756c743a74313a" + "00000001" + "0000015896dfd000" + "0005",
    )
    assert LAYOUT.place(payload_key(PREFIX, 7, Offset(1, 2)))[1][:1] == row[:1]


@pytest.mark.parametrize(
    ("row", "head_size"),
    [
        (MessageRow(payload=b"payload"), 5),
        (MessageRow(payload=b""), 5),
        (MessageRow(tx_pointer=-7, payload=b"payload"), 13),
        (MessageRow(tx_pointer=7, ttl_s=3, attributes=b"abc", payload=b"payload"), 24),
        (MessageRow(payload=b"payload", ttl_s=9), 9),
    ],
)
def test_a_payload_has_a_cell_of_its_own(row: MessageRow, head_size: int) -> None:
    value = row.to_bytes(b"mkey")

    cells = cells_of("message", value)

    assert cells == {HEAD: value[:head_size], BODY: row.payload}
    assert value_of(cells) == value


def test_a_reference_has_no_payload_cell() -> None:
    brings = PayloadRange(Offset(1, 2), Offset(3, 4), 5)
    value = MessageRow(tx_pointer=7, reference=brings).to_bytes(b"mkey")

    assert cells_of("message", value) == {HEAD: value}


@given(st.binary(max_size=40), st.sampled_from(["message", "payload", METADATA]))
def test_the_cells_of_a_value_are_joined_again(value: bytes, table: str) -> None:
    assert value_of(cells_of(table, value)) == value


@settings(max_examples=50)
@given(st.lists(keys, max_size=12), keys, keys)
@example([b"pns:\x00"], b"pns:", b"pns:\x01")  # the prefix of a namespace is not that of a topic
def test_segments_hold_every_key_of_a_range_once_and_in_order(
    stored: list[bytes], start: bytes, stop: bytes
) -> None:
    rows = [LAYOUT.place(key) for key in set(stored)]

    found = []
    for segment in LAYOUT.segments(start, stop):
        inside = [
            key_of(table, row) for each in segment for table, row in rows if holds(each, table, row)
        ]
        found += sorted(inside)

    assert found == sorted(key for key in set(stored) if start <= key < stop)


def holds(rows: RowRange, table: str, row: bytes) -> bool:
    return table == rows.table and rows.start <= row and (not rows.stop or row < rows.stop)


def test_a_topic_is_one_range() -> None:
    start = message_key(PREFIX, Offset(5, 0))

    (segment,) = LAYOUT.segments(start, MESSAGES + prefix_of(AUDIT, 2))

    assert len(segment) == 1
    assert sum(map(len, LAYOUT.segments(MESSAGES, prefix_stop(PAYLOADS)))) == 2 * 16 + 1


def test_regions_begin_at_salts() -> None:
    assert LAYOUT.splits(4) == [b"\x04", b"\x08", b"\x0c"]
    assert len(LAYOUT.splits(16)) == 15
    assert LAYOUT.splits(1) == []


commits = st.builds(
    journal.Commit,
    token=st.binary(min_size=16, max_size=16),
    timestamp_ms=st.integers(0, 2**63),
    first=st.integers(0, 2**63),
    holder=st.sampled_from(["", "process 7 on über"]),
    rows=st.dictionaries(st.binary(max_size=9), st.none() | st.binary(max_size=40), max_size=6),
)


@settings(max_examples=30)
@given(commits)
def test_a_commit_is_read_as_it_was_written(commit: journal.Commit) -> None:
    cell, chunks = journal.pack(commit)

    assert journal.unpack(cell, chunks) == commit
    assert journal.token_of(cell) == commit.token


@settings(max_examples=30)
@given(commits, st.data())
def test_a_flipped_bit_in_a_commit_is_detected(commit: journal.Commit, data: st.DataObject) -> None:
    cell = bytearray(journal.pack(commit)[0])
    cell[data.draw(st.integers(0, len(cell) - 1))] ^= 1 << data.draw(st.integers(0, 7))

    with pytest.raises(journal.DamagedJournalError):
        journal.unpack(bytes(cell))


def test_a_body_larger_than_a_cell_is_split_into_chunks() -> None:
    rows = {b"key": bytes(journal.CHUNK_BYTES + 1)}
    commit = journal.Commit(token=bytes(16), timestamp_ms=1, first=1, holder="me", rows=rows)

    cell, chunks = journal.pack(commit)

    assert len(chunks) == journal.chunk_count(cell) == 2
    assert journal.unpack(cell, chunks).rows == rows
    with pytest.raises(journal.DamagedJournalError, match="checksum"):
        journal.unpack(cell, chunks[:1])


def test_slots_are_ordered_by_their_numbers() -> None:
    numbers = [1, 255, 256, 2**40]

    rows = [journal.slot_row(b"name", number) for number in numbers]

    assert rows == sorted(rows)
    assert [journal.slot_number(row) for row in rows] == numbers


@pytest.mark.parametrize("layout", [journal.StoredLayout(16), journal.StoredLayout(2, "c1")])
def test_a_layout_is_read_as_it_was_written(layout: journal.StoredLayout) -> None:
    assert journal.StoredLayout.from_bytes(layout.to_bytes()) == layout


def test_each_incarnation_of_a_server_has_its_own_journal_and_store_rows() -> None:
    layouts = [Layout(16, name=journal.journal_name("s1", number)) for number in (1, 2)]

    own = [layout.place(LAST_BATCH_KEY) for layout in layouts]

    assert own == [
        ("metadata", b"smark@is1:" + bytes(7) + b"\x01"),
        ("metadata", b"smark@is1:" + bytes(7) + b"\x02"),
    ]
    assert layouts[0].place(b"tdefault:t1:") == LAYOUT.place(b"tdefault:t1:")


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b'{"format": 1}',
        b'{"format": 1, "salts": null}',
        b'{"format": 1, "salts": "x"}',
        b'{"format": 1, "salts": 1e999}',
        b'{"format": 1, "salts": 2.5}',
        b'{"format": 1, "salts": true}',
        b'{"format": 1, "salts": 0}',
        b'{"format": 1, "salts": -3}',
        b'{"format": 2, "salts": 1}',
        b'{"format": 2, "salts": 1, "cluster": 7}',
        b'{"format": 3, "salts": 1, "cluster": "c1"}',
        b"[" * 100_000,
    ],
)
def test_a_malformed_layout_is_damage(value: bytes) -> None:
    """The layout has no checksum, since people read it. Some of these raised other errors."""
    with pytest.raises(journal.DamagedJournalError):
        journal.StoredLayout.from_bytes(value)


@pytest.mark.parametrize("cut", range(1, 13))
def test_a_truncated_commit_with_a_correct_checksum_is_damage(cut: int) -> None:
    """A key or a value was returned truncated, without an error."""
    rows = {b"keys": b"value"}
    commit = journal.Commit(token=bytes(16), timestamp_ms=1, first=1, holder="me", rows=rows)
    cell = journal.pack(commit)[0][:-cut]
    head = struct.Struct(">BI")
    forged = head.pack(cell[0], crc32(cell[head.size :])) + cell[head.size :]

    with pytest.raises(journal.DamagedJournalError, match="cut off"):
        journal.unpack(forged)


def test_plans_name_the_observer_of_message_and_payload_tables() -> None:
    settings = HBaseSettings(
        prefix="p_", observer_jar="file:///a.jar", observer_directory="file:///d"
    )

    found = {plan.name: plan.attributes.get(b"coprocessor$1") for plan in plans(settings)}

    what = (
        b"file:///a.jar|tuff.observer.RetentionObserver|1001|tuff.table=%s,tuff.directory=file:///d"
    )
    assert found == {
        "p_message": what % b"message",
        "p_payload": what % b"payload",
        "p_metadata": None,
        "p_journal": None,
    }
