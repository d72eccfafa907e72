"""Splits cover a topic exactly and evenly, and are found without reading it (protocol §3.7)."""

from contextlib import closing
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from messaging.engines.engine_interface import Chunks, Engine
from messaging.engines.leveldb import LevelDbStore
from messaging.engines.memory import MemoryStore
from messaging.engines.row_store import Store
from messaging.model.row_format import MessageRow, PayloadRange, message_key, payload_key
from messaging.read.offsets_and_splits import SCANNED_BYTES_MAX, Split, splits_of
from tests.messaging.scan_model import (
    NOW_MS,
    PREFIX,
    ModelRow,
    build,
    query,
    read,
    start_number,
    topics,
)
from tests.messaging.world import DamagedStore
from tuff.protocol.ids import LAST_ID, MessageId, Offset

PAYLOAD = bytes(200)


def parts(
    store: Engine, *, start: MessageId | None = None, end: MessageId | None = None, count: int
) -> list[Split]:
    asked = query(start=start_number(start, inclusive=False), through=end or LAST_ID)
    return splits_of(Store(store), asked, start=start, end=end, count=count)


def ids_between(store: Engine, start: MessageId | None, end: MessageId) -> list[bytes]:
    asked = query(start=start_number(start, inclusive=False), through=end)
    return [message_id for message_id, _ in read(store, asked).items]


def table_of(count: int, *, first: int = 0, into: Engine | None = None) -> Engine:
    """One row a millisecond, and all of one size."""
    table = MemoryStore() if into is None else into
    batch: list[tuple[bytes, bytes | None]] = []
    for number in range(first, first + count):
        key = message_key(PREFIX, Offset(NOW_MS - 99_000 + number, 0))
        batch.append((key, MessageRow(payload=PAYLOAD).to_bytes(key)))
    table.write(batch)
    return table


bounds = st.none() | st.builds(
    MessageId,
    st.sampled_from([899_000, 900_001, 950_000, 950_001, 999_500, NOW_MS]),
    st.integers(0, 20),
    st.sampled_from([0, 0, 950_000]),
    st.integers(0, 5),
)


@given(rows=topics, start=bounds, end=bounds, count=st.integers(1, 12))
def test_splits_are_adjacent_and_contain_every_message_once(
    rows: list[ModelRow], start: MessageId | None, end: MessageId | None, count: int
) -> None:
    table, _, _ = build(rows)

    found = parts(table, start=start, end=end, count=count)

    assert len(found) <= count
    whole = ids_between(table, start, end or LAST_ID)
    assert [each for part in found for each in ids_between(table, part.start, part.end)] == whole
    if found:
        assert found[0].start == start
        assert end in (None, found[-1].end)
        assert [part.start for part in found[1:]] == [part.end for part in found[:-1]]
        cuts = [part.end for part in found[:-1]]
        assert cuts == sorted(set(cuts))


@given(rows=topics, count=st.integers(2, 12))
def test_no_split_ends_inside_a_payload_group(rows: list[ModelRow], count: int) -> None:
    table, _, _ = build(rows)

    for part in parts(table, count=count)[:-1]:
        assert (part.end.write_timestamp_ms, part.end.payload_seq_id) == (2**64 - 1, 2**16 - 1)


@given(row_count=st.integers(1, 300), count=st.integers(1, 20))
def test_splits_of_scanned_rows_are_even(row_count: int, count: int) -> None:
    table = table_of(row_count)

    sizes = [len(ids_between(table, part.start, part.end)) for part in parts(table, count=count)]

    assert len(sizes) == min(count, row_count)
    assert max(sizes) - min(sizes) <= 1


def test_a_range_without_a_row_has_no_splits() -> None:
    table = table_of(10)
    last = MessageId(NOW_MS - 99_000 + 9, 0)

    assert parts(MemoryStore(), count=3) == []
    assert parts(table, start=last, count=3) == []
    assert parts(table, end=MessageId(5, 0), count=3) == []


def test_there_are_no_splits_behind_the_last_payload_of_a_group() -> None:
    table, place = MemoryStore(), Offset(NOW_MS, 0)
    key = message_key(PREFIX, place)
    brings = PayloadRange(Offset(NOW_MS - 5, 0), Offset(NOW_MS - 5, 2), 3)
    table.write([(key, MessageRow(tx_pointer=7, reference=brings).to_bytes(key))])
    for seq_id in range(3):
        stored = payload_key(PREFIX, 7, Offset(NOW_MS - 5, seq_id))
        table.write([(stored, b"")])

    assert len(parts(table, start=MessageId(*place, NOW_MS - 5, 1), count=3)) == 1
    assert parts(table, start=MessageId(*place, NOW_MS - 5, 2), count=3) == []


def test_a_reference_counts_in_splits_with_its_stored_messages() -> None:
    table = table_of(100)
    key = message_key(PREFIX, Offset(NOW_MS, 0))
    brings = PayloadRange(Offset(NOW_MS - 5, 0), Offset(NOW_MS - 5, 99), 100)
    table.write([(key, MessageRow(tx_pointer=7, reference=brings).to_bytes(key))])

    _, second = parts(table, count=2)

    assert second.start == MessageId(NOW_MS - 1, 2**16 - 1, 2**64 - 1, 2**16 - 1)


class CountingLevelDb(LevelDbStore):
    """Counts the rows that are read."""

    read_count = 0

    def scan(self, start: bytes, stop: bytes, **how: Any) -> Chunks:
        for chunk in super().scan(start, stop, **how):
            self.read_count += len(chunk)
            yield chunk


def test_splits_of_a_large_topic_are_even_by_file_sizes(tmp_path: Path) -> None:
    filed, fresh = 20_000, 2_000
    with closing(CountingLevelDb(tmp_path)) as table:
        table_of(filed, into=table)
    with closing(CountingLevelDb(tmp_path)) as table:
        table_of(fresh, first=filed, into=table)  # stays in memory
        keys = (message_key(PREFIX, Offset(at, 0)) for at in (0, NOW_MS))
        assert table.approximate_size(*keys) > SCANNED_BYTES_MAX

        found = parts(table, count=11)
        read_count = table.read_count

        sizes = [len(ids_between_all(table, part)) for part in found]
        assert sum(sizes) == filed + fresh
        assert len(sizes) == 11
        assert all(1_700 <= size <= 2_300 for size in sizes), sizes
        assert read_count < 2 * fresh


def ids_between_all(store: Engine, part: Split) -> list[bytes]:
    asked = query(
        start=start_number(part.start, inclusive=False),
        through=part.end,
        limit=100_000,
        bytes_max=1 << 30,
    )
    return [message_id for message_id, _ in read(store, asked).items]


def test_rows_behind_a_damaged_one_are_in_the_last_split() -> None:
    table = DamagedStore()
    table_of(100, into=table)
    damaged = message_key(PREFIX, Offset(NOW_MS - 99_000 + 50, 0))
    table.is_damaged = lambda key: key >= damaged

    found = parts(table, count=5)

    assert found[-1].start is not None
    assert found[-1].start < MessageId(NOW_MS - 99_000 + 50, 0) < found[-1].end
    table.is_damaged = lambda _key: False
    assert [part.end for part in parts(table, count=1)] == [found[-1].end]
