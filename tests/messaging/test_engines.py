"""The conformance suite of engines: each is a sorted, durable dictionary (design §5)."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messaging.engines.engine_interface import Engine, StoreError
from messaging.engines.memory import MemoryStore
from messaging.model.row_format import frame, is_whole
from tests.messaging.world import leveldb, rows_of
from tuff_storage.disk.locks import DirectoryLockedError

OpenStore = Callable[[], Engine]
Batches = list[list[tuple[bytes, bytes | None]]]


@pytest.fixture(params=["memory", "leveldb"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """Opens the same table again and again, as restarts do."""
    if request.param == "leveldb":
        return lambda: leveldb(tmp_path / "table")
    rows: dict[bytes, bytes] = {}
    return lambda: MemoryStore(rows)


@pytest.fixture
def store(open_store: OpenStore) -> Iterator[Engine]:
    with closing(open_store()) as opened:
        yield opened


def test_written_rows_are_there_after_a_reopen(open_store: OpenStore) -> None:
    with closing(open_store()) as first:
        first.write([(b"a", b"1"), (b"b", b"2")])
    with closing(open_store()) as second:
        assert second.get(b"a") == b"1"
        assert rows_of(second.scan(b"a", b"z")) == [(b"a", b"1"), (b"b", b"2")]


def test_a_scan_shows_the_rows_as_of_its_call(store: Engine) -> None:
    store.write([(b"a", b"1"), (b"b", b"2")])
    with closing(store.scan(b"a", b"z")) as rows:
        store.write([(b"a", None), (b"b", b"changed"), (b"c", b"3")])
        assert rows_of(rows) == [(b"a", b"1"), (b"b", b"2")]


def test_the_last_value_of_a_key_wins_within_a_batch(store: Engine) -> None:
    store.write([(b"a", b"1"), (b"a", None), (b"b", None), (b"b", b"2")])
    assert rows_of(store.scan(b"", b"z")) == [(b"b", b"2")]


def test_a_closed_store_refuses_everything_and_closes_again(store: Engine) -> None:
    store.write([(b"a", b"1")])
    store.close()
    store.close()
    for call in (
        lambda: store.get(b"a"),
        lambda: rows_of(store.scan(b"a", b"b")),
        lambda: store.write([(b"a", b"2")]),
    ):
        with pytest.raises(StoreError):
            call()


def test_the_size_of_a_range_is_about_that_of_its_rows(open_store: OpenStore) -> None:
    rows = [(b"k%05d" % number, bytes(994)) for number in range(2_000)]
    with closing(open_store()) as first:
        first.write(rows)
    with closing(open_store()) as second:  # LevelDB tells of files only, and has one now
        sizes = [
            second.approximate_size(b"k00500", b"k%05d" % stop) for stop in (500, 1_000, 1_500)
        ]
        nothing = second.approximate_size(b"a", b"b")

    assert sizes[0] == nothing == 0
    assert 450_000 <= sizes[1] <= 550_000
    assert 900_000 <= sizes[2] <= 1_100_000


keys = st.binary(min_size=1, max_size=3)
batches = st.lists(st.tuples(keys, st.none() | st.binary(max_size=4)), max_size=8)


@pytest.mark.parametrize("engine", ["memory", "leveldb"])
@settings(max_examples=30)
@given(written=st.lists(batches, max_size=6), start=keys, stop=keys)
def test_a_table_is_a_sorted_dictionary(
    engine: str, written: Batches, start: bytes, stop: bytes
) -> None:
    with TemporaryDirectory() as directory:
        table: Engine = MemoryStore() if engine == "memory" else leveldb(Path(directory))
        with closing(table):
            check_dictionary(table, written, start=start, stop=stop)


def check_dictionary(table: Engine, written: Batches, *, start: bytes, stop: bytes) -> None:
    """Write to an empty table, and read it all ways."""
    model: dict[bytes, bytes] = {}
    for batch in written:
        table.write(batch)
        for key, value in batch:
            if value is None:
                model.pop(key, None)
            else:
                model[key] = value

    expected = [(key, model[key]) for key in sorted(model) if start <= key < stop]
    assert rows_of(table.scan(start, stop)) == expected
    assert rows_of(table.scan(start, stop, reverse=True)) == expected[::-1]
    assert table.get(start) == model.get(start)


def test_a_directory_is_opened_once(tmp_path: Path) -> None:
    with closing(leveldb(tmp_path)), pytest.raises(DirectoryLockedError):
        leveldb(tmp_path)
    leveldb(tmp_path).close()


def test_a_flipped_bit_in_a_value_hides_no_other_row(tmp_path: Path) -> None:
    """LevelDB refuses the whole block; the rows' own checksums show which of them is damaged."""
    written = {b"k%04d" % n: frame(b"k%04d" % n, 0, b"payload %04d" % n) for n in range(2000)}
    with closing(leveldb(tmp_path)) as table:
        table.write(list(written.items()))
    leveldb(tmp_path).close()  # opening again moves the log into a table file
    _flip(tmp_path, at=b"payload 1000")

    with closing(leveldb(tmp_path)) as table:
        found = rows_of(table.scan(b"k", b"l"))

    assert [key for key, value in found if not is_whole(key, value)] == [b"k1000"]
    assert len(found) == 2000


def test_a_flipped_bit_in_a_key_is_never_taken_for_the_end_of_the_rows(tmp_path: Path) -> None:
    keys = [b"a/%04d" % n for n in range(1000)]
    with closing(leveldb(tmp_path)) as table:
        table.write([(key, frame(key, 0, b"x" * 50)) for key in keys])
    leveldb(tmp_path).close()
    _flip(tmp_path, at=b"a/0500", offset=0)

    with closing(leveldb(tmp_path)) as table:
        try:
            found = rows_of(table.scan(b"a/", b"a0"))
        except StoreError:
            return
    damaged = [key for key, value in found if not is_whole(key, value)]
    assert len(found) == 1000
    assert damaged


def _flip(directory: Path, *, at: bytes, offset: int | None = None) -> None:
    for path in directory.glob("*.ldb"):
        data = bytearray(path.read_bytes())
        place = data.find(at)
        if place >= 0:
            data[place + (len(at) - 1 if offset is None else offset)] ^= 0x10
            path.write_bytes(data)
            return
    # Keys share their beginnings with the one before and may not stand there in full: then any
    # byte in the middle of the file is as good.
    path = max(directory.glob("*.ldb"), key=lambda each: each.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def test_the_error_says_why_a_directory_can_t_be_opened(tmp_path: Path) -> None:
    leveldb(tmp_path).close()
    (tmp_path / "CURRENT").unlink()

    with pytest.raises(StoreError, match=r"CURRENT is missing, and .*; use `tuff salvage`"):
        leveldb(tmp_path)
