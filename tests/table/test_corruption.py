"""Corruption is reported and never returned, and the rows that are whole can be read."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.table.service_model import Service
from tuff.protocol.errors import BadRequestError, DamagedRecordError, StorageUnavailableError
from tuff.protocol.transaction import Transaction
from tuff.tables.leveldb_table import TransactionalTable
from tuff.tables.row_format import COMPACTED, FORMAT, TABLE_ID, Version, metadata_keys
from tuff_storage.leveldb.engine import plyvel

ROW_COUNT = 150
BIT_STEP = 61 * 8 + 3  # bits; each byte in turn would take minutes

VersionedValue = list[tuple[bytes, bytes]]


def key_of(number: int) -> bytes:
    return b"row-%03d" % number


ROWS = [(key_of(number), b"%03d" % number * 30) for number in range(ROW_COUNT)]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A table with rows in a few blocks of one file, and an older version of each."""
    service, home = Service(), tmp_path / "table"
    with TransactionalTable(home) as table:
        for old in (b"old", b""):
            transaction = service.start()
            table.start_tx(transaction)
            for key, value in ROWS:
                table.put(key, old or value)
            table.commit_tx(transaction)
            service.commit(transaction)
            table.post_commit(transaction)
        table._store._database._database.db.compact_range()
    return home


def reader() -> Transaction:
    return Transaction(transaction_id=5000, read_pointer=4999, write_pointer=5000)


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def set_record(home: Path, key: bytes, value: bytes | None) -> None:
    """Store a record without the table, so that LevelDB has a correct checksum of a wrong value."""
    database = plyvel.DB(str(home), create_if_missing=True)
    if value is None:
        database.delete(key)
    else:
        database.put(key, value)
    database.close()


def read_all(table: TransactionalTable) -> tuple[VersionedValue, list[DamagedRecordError]]:
    """Every row that scans return, continuing behind each damage."""
    rows: VersionedValue = []
    errors: list[DamagedRecordError] = []
    start: bytes | None = b""
    while start is not None:
        try:
            for row in table.scan(start):
                rows.append(row)
            start = None
        except DamagedRecordError as error:
            errors.append(error)
            found = error.members["next"]
            assert found is None or isinstance(found, str)
            start = None if found is None else found.encode()
    return rows, errors


def damaged_files(home: Path, tmp_path: Path) -> Iterator[Path]:
    for file in home.glob("*.ldb"):
        for bit in range(0, 8 * file.stat().st_size, BIT_STEP):
            copy = tmp_path / f"bit-{bit}"
            shutil.copytree(home, copy)
            flip(copy / file.name, bit)
            yield copy
            shutil.rmtree(copy)


def test_a_flipped_bit_never_returns_a_wrong_value(home: Path, tmp_path: Path) -> None:
    gets, lost_counts = [], []
    for copy in damaged_files(home, tmp_path):
        with suppress(StorageUnavailableError, DamagedRecordError), TransactionalTable(copy) as it:
            it.start_tx(reader())
            rows, errors = read_all(it)
            assert set(rows) <= set(ROWS)
            assert rows == sorted(rows)
            assert errors or rows == ROWS
            lost_counts.append(ROW_COUNT - len(rows))
            for key, value in ROWS[::10]:
                with suppress(DamagedRecordError):
                    gets.append(it.get(key) == value)

    assert all(gets)
    assert len(lost_counts) > 30
    # A block has some 25 of these rows; the end of the file has the index.
    assert sorted(lost_counts)[len(lost_counts) // 2] < 60


def test_a_damaged_value_is_reported_and_the_rest_is_read(home: Path) -> None:
    stored_key = Version(key_of(7), 1002).stored_key
    set_record(home, stored_key, b"\x00\x00\x00\x00\x00wrong")

    with TransactionalTable(home) as table:
        table.start_tx(reader())
        with pytest.raises(DamagedRecordError, match="row-007"):
            table.get(key_of(7))
        rows, [error] = read_all(table)

        assert error.members == {"key": "row-007", "next": "row-007\x00"}
        assert rows == [row for row in ROWS if row[0] != key_of(7)]
        assert table.get(key_of(8)) == ROWS[8][1]
        with pytest.raises(DamagedRecordError, match="row-007"):
            table.compact(Service())


def test_a_damaged_row_can_be_overwritten(home: Path) -> None:
    set_record(home, Version(key_of(7), 1002).stored_key, b"wrong")

    with TransactionalTable(home) as table:
        table.start_tx(reader())
        table.put(key_of(7), b"anew")
        assert table.get(key_of(7)) == b"anew"


def test_a_value_under_another_key_is_damage(home: Path) -> None:
    with TransactionalTable(home) as table:
        foreign = table._store._database.get(Version(key_of(8), 1002).stored_key)
    set_record(home, Version(key_of(7), 1002).stored_key, foreign)

    with TransactionalTable(home) as table:
        table.start_tx(reader())
        with pytest.raises(DamagedRecordError, match="row-007"):
            table.get(key_of(7))


def test_a_damaged_undo_row_fails_the_rollback(tmp_path: Path) -> None:
    transaction = Service().start()
    with TransactionalTable(tmp_path) as table:
        table.start_tx(transaction)
        table.put(b"a", b"1")
        table.commit_tx(transaction)
        [undo] = [key for key, _ in table._store._database.scan(b"u", b"v")]
    set_record(tmp_path, undo, b"wrong")

    with TransactionalTable(tmp_path) as table:
        table.start_tx(transaction)
        with pytest.raises(DamagedRecordError):
            table.rollback_tx(transaction)


@pytest.mark.parametrize("copy", [0, 1])
@pytest.mark.parametrize("name", [FORMAT, TABLE_ID, COMPACTED])
def test_a_damaged_metadata_row_is_read_from_its_other_copy(
    home: Path, name: bytes, copy: int
) -> None:
    set_record(home, metadata_keys(name)[copy], b"wrong")

    with TransactionalTable(home) as table:
        table.start_tx(reader())
        assert list(table.scan()) == ROWS


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        (FORMAT, b"wrong", "format"),
        (TABLE_ID, b"wrong", "id"),
        (COMPACTED, b"wrong", "compacted"),
        (TABLE_ID, None, "missing"),
        (COMPACTED, None, "missing"),
    ],
)
def test_a_table_without_whole_metadata_is_not_opened(
    home: Path, name: bytes, value: bytes | None, sentence: str
) -> None:
    for key in metadata_keys(name):
        set_record(home, key, value)

    with pytest.raises(DamagedRecordError, match=sentence):
        TransactionalTable(home)


@pytest.mark.parametrize(
    ("number", "found_key", "next_key", "hint"),
    [
        (7, "row-007", "row-008", "scan from b'row-008' on"),
        (999, "row-149", None, "no row behind it can be read"),
    ],
)
def test_a_malformed_key_is_reported_with_the_next_readable_one(
    home: Path, number: int, found_key: str, next_key: str | None, hint: str
) -> None:
    set_record(home, b"r" + key_of(number) + b"\x01", b"wrong")

    with TransactionalTable(home) as table:
        table.start_tx(reader())
        rows, [error] = read_all(table)

    assert error.members == {"key": found_key, "next": next_key}
    assert hint in error.detail
    assert rows == ROWS


def test_a_directory_that_leveldb_can_not_open_is_reported_and_not_kept_locked(home: Path) -> None:
    current = (home / "CURRENT").read_bytes()
    (home / "CURRENT").write_bytes(b"nonsense\n")
    with pytest.raises(StorageUnavailableError, match="LevelDB can't open") as _kept:
        TransactionalTable(home)
    (home / "CURRENT").write_bytes(current)

    TransactionalTable(home).close()


def test_another_database_is_refused_and_not_changed(tmp_path: Path) -> None:
    set_record(tmp_path, b"m", b"a value")

    with pytest.raises(BadRequestError, match="not a table"):
        TransactionalTable(tmp_path)
    with plyvel.DB(str(tmp_path)) as database:
        assert list(database) == [(b"m", b"a value")]
