"""Damage is loud: never a wrong value, and what is whole can be read."""

import random
import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path

import plyvel
import pytest

from tests.table.service_model import Service
from tuff.client_errors import WrongStateError
from tuff.leveldb.database import _leave_inherited, error_text
from tuff.leveldb.scan import Rows
from tuff.leveldb.scan import scan as store_scan
from tuff.protocol.errors import BadRequestError, DamagedRecordError, StorageUnavailableError
from tuff.protocol.transaction import Transaction
from tuff.tables.leveldb_database import DatabaseDamagedError, TableDatabase
from tuff.tables.leveldb_table import TransactionalTable
from tuff.tables.row_format import COMPACTED, FORMAT, TABLE_ID, Version, metadata_keys

ROW_COUNT = 150
BIT_STEP = 61 * 8 + 3  # bits; every byte in turn would take minutes, and this meets each kind

VersionedValue = list[tuple[bytes, bytes]]


def key_of(number: int) -> bytes:
    return b"row-%03d" % number


ROWS = [(key_of(number), b"%03d" % number * 30) for number in range(ROW_COUNT)]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A table whose rows lie in a few blocks of one file, with an older version of each."""
    service, home = Service(), tmp_path / "table"
    with TransactionalTable(home) as table:
        for old in (b"old", b""):
            transaction = service.start()
            table.start_tx(transaction)
            for key, value in ROWS:
                table.put(key, old or value)
            table.commit_tx()
            service.commit(transaction)
            table.post_commit()
        table._store._database._database.db.compact_range()
    return home


def reader() -> Transaction:
    return Transaction(transaction_id=5000, read_pointer=4999, write_pointer=5000)


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def set_record(home: Path, key: bytes, value: bytes | None) -> None:
    """Behind the table's back, so that LevelDB has a good checksum of a bad value."""
    database = plyvel.DB(str(home), create_if_missing=True)
    if value is None:
        database.delete(key)
    else:
        database.put(key, value)
    database.close()


def read_all(table: TransactionalTable) -> tuple[VersionedValue, list[DamagedRecordError]]:
    """Every row that a scan gives, going on behind each damage."""
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


def test_a_flipped_bit_anywhere_never_shows_a_wrong_value(home: Path, tmp_path: Path) -> None:
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
    # A block holds some 25 rows of these; the ends of the file hold what finds them.
    assert sorted(lost_counts)[len(lost_counts) // 2] < 60


def test_a_damaged_value_is_named_and_the_rest_is_read(home: Path) -> None:
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


def test_a_row_can_be_written_over_damage(home: Path) -> None:
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


def test_damage_in_what_undoes_a_transaction_fails_its_rollback(tmp_path: Path) -> None:
    transaction = Service().start()
    with TransactionalTable(tmp_path) as table:
        table.start_tx(transaction)
        table.put(b"a", b"1")
        table.commit_tx()
        [undo] = [key for key, _ in table._store._database.scan(b"u", b"v")]
    set_record(tmp_path, undo, b"wrong")

    with TransactionalTable(tmp_path) as table:
        table.start_tx(transaction)
        with pytest.raises(DamagedRecordError):
            table.rollback_tx()


@pytest.mark.parametrize("copy", [0, 1])
@pytest.mark.parametrize("name", [FORMAT, TABLE_ID, COMPACTED])
def test_a_fact_is_read_from_its_other_copy_when_one_is_damaged(
    home: Path, name: bytes, copy: int
) -> None:
    set_record(home, metadata_keys(name)[copy], b"wrong")

    with TransactionalTable(home) as table:
        table.start_tx(reader())
        assert list(table.scan()) == ROWS


@pytest.mark.parametrize("name", [FORMAT, TABLE_ID, COMPACTED])
def test_a_table_whose_facts_are_damaged_is_not_opened(home: Path, name: bytes) -> None:
    for key in metadata_keys(name):
        set_record(home, key, b"wrong")

    with pytest.raises(DamagedRecordError, match=name.decode()):
        TransactionalTable(home)


@pytest.mark.parametrize("name", [TABLE_ID, COMPACTED])
def test_a_table_that_lost_a_fact_is_not_given_another(home: Path, name: bytes) -> None:
    for key in metadata_keys(name):
        set_record(home, key, None)

    with pytest.raises(DamagedRecordError, match="missing"):
        TransactionalTable(home)


def test_a_record_with_a_key_of_no_row_is_named_and_passed(home: Path) -> None:
    set_record(home, b"r" + key_of(7) + b"\x01", b"wrong")

    with TransactionalTable(home) as table:
        table.start_tx(reader())
        rows, [error] = read_all(table)

    assert (error.members["key"], error.members["next"]) == ("row-007", "row-008")
    assert rows == ROWS


def test_damage_that_nothing_can_be_read_behind_says_so(home: Path) -> None:
    set_record(home, b"r" + key_of(999) + b"\x01", b"wrong")

    with TransactionalTable(home) as table:
        table.start_tx(reader())
        rows, [error] = read_all(table)

    assert error.members == {"key": "row-149", "next": None}
    assert "no row behind it can be read" in error.detail
    assert rows == ROWS


def test_another_database_is_left_alone(tmp_path: Path) -> None:
    set_record(tmp_path, b"m", b"somebody's")

    with pytest.raises(BadRequestError, match="not a table"):
        TransactionalTable(tmp_path)
    with plyvel.DB(str(tmp_path)) as database:
        assert list(database) == [(b"m", b"somebody's")]


def test_a_database_that_leveldb_can_not_open_is_named(home: Path) -> None:
    (home / "CURRENT").write_bytes(b"nonsense\n")

    with pytest.raises(StorageUnavailableError, match="LevelDB can't open"):
        TransactionalTable(home)


def test_a_damaged_end_of_the_table_is_not_the_end_of_its_rows(tmp_path: Path) -> None:
    """plyvel's iterator says nothing when it is the last block of all that is damaged."""
    home = tmp_path / "table"
    # LevelDB packs what can be packed.
    rows = [(key_of(number), random.Random(number).randbytes(1500)) for number in range(10)]
    with closing(TableDatabase(home)) as store:
        store.write(rows)
    TableDatabase(home).close()  # opening again moves the log into a table file
    [file] = home.glob("*.ldb")
    flip(file, 8 * file.read_bytes().index(rows[-1][1]))

    with closing(TableDatabase(home)) as store:
        scan = store.scan(b"r", b"s")
        assert list(islice(scan, 8)) == rows[:8]
        with pytest.raises(DatabaseDamagedError):
            list(scan)


def test_a_table_whose_file_is_gone_is_refused(tmp_path: Path) -> None:
    """LevelDB's Get calls a row of that file NotFound, as it calls one that was never written."""
    home = tmp_path / "table"
    with closing(TableDatabase(home)) as store:
        store.write([(b"r", b"1")])
    TableDatabase(home).close()  # opening again moves the log into a table file

    with closing(TableDatabase(home)) as store:
        next(home.glob("*.ldb")).unlink()
        with pytest.raises(StorageUnavailableError, match="can't be read"):
            list(store.scan(b"r", b"s"))
        with pytest.raises(StorageUnavailableError, match="can't be read"):
            store.get(b"r")


def test_a_table_that_leveldb_can_not_open_is_free_for_the_next_attempt(home: Path) -> None:
    current = (home / "CURRENT").read_bytes()
    (home / "CURRENT").write_bytes(b"nonsense\n")
    with pytest.raises(StorageUnavailableError, match="LevelDB can't open") as _kept:
        TableDatabase(home)
    (home / "CURRENT").write_bytes(current)

    TableDatabase(home).close()


def test_a_database_that_was_open_at_a_fork_is_left_to_the_parent(tmp_path: Path) -> None:
    inherited = TableDatabase(tmp_path / "table")
    calls_of_parent = inherited._database.calls
    _leave_inherited()

    for call in (
        lambda: inherited.get(b"r"),
        lambda: inherited.scan(b"r", b"s"),
        lambda: inherited.write([(b"r", b"1")]),
    ):
        with pytest.raises(WrongStateError, match="before this process was forked"):
            call()
    inherited.close()

    assert inherited._database.db.closed is False
    with pytest.raises(StorageUnavailableError, match="already open"):
        TableDatabase(tmp_path / "table")
    inherited._database.calls = calls_of_parent
    inherited.close()


def test_a_scan_reads_ahead_by_pages_that_grow_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuff.tables.leveldb_database.PAGE_ROWS_MAX", 4)
    monkeypatch.setattr("tuff.tables.leveldb_database.PAGE_BYTES_MAX", 20)
    taken: list[bytes] = []

    def rows(size_bytes: int) -> Rows:
        for number in range(13):
            taken.append(key_of(number))
            yield key_of(number), bytes(size_bytes)

    with closing(TableDatabase(tmp_path / "table")) as store:
        small = [len(taken) for _ in store._paged(rows(1))]
        taken.clear()
        large = [len(taken) for _ in store._paged(rows(19))]
        taken.clear()
        largest = [len(taken) for _ in store._paged(rows(20))]

    assert small == [1, 3, 3, 7, 7, 7, 7, 11, 11, 11, 11, 13, 13]
    assert large == [1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13]
    assert largest == list(range(1, 14))


def test_a_scan_that_is_left_releases_its_iterator(home: Path) -> None:
    with closing(TableDatabase(home)) as store:
        rows = store_scan(store._database.db, b"r", b"s")
        pages = store._paged(rows)
        next(pages)

        pages.close()

        assert next(rows, None) is None


def test_what_is_readable_again_behind_several_damaged_blocks(tmp_path: Path) -> None:
    home = tmp_path / "table"
    # LevelDB packs what can be packed; a block of 4 KiB holds some three of these.
    rows = [(b"r%02d" % number, random.Random(number).randbytes(1500)) for number in range(20)]
    with closing(TableDatabase(home)) as store:
        store.write(rows)
    TableDatabase(home).close()  # opening again moves the log into a table file
    [file] = home.glob("*.ldb")
    data = file.read_bytes()
    for _, value in rows[3:10]:
        flip(file, 8 * data.index(value))

    with closing(TableDatabase(home)) as store:
        found = store.readable_from(rows[3][0], b"s", row_start=lambda key: key)
        assert found is not None
        assert rows[9][0] < found <= rows[12][0]
        assert list(store.scan(found, b"s")) == rows[int(found[1:]) :]


def test_leveldb_is_asked_to_sync_to_verify_and_to_begin_nothing_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, object] = {}
    open_really = plyvel.DB

    def note(_name: str, **options: object) -> plyvel.DB:
        asked.update(options)
        return open_really(_name, **options)

    class Noting:
        def __init__(self, database: plyvel.DB) -> None:
            self._database = database
            self.raw_iterator, self.close = database.raw_iterator, database.close

        def get(self, key: bytes, **options: object) -> bytes | None:
            asked.update(options)
            return self._database.get(key, **options)

        def write_batch(self, **options: object) -> object:
            asked.update(options)
            return self._database.write_batch(**options)

    with monkeypatch.context() as patched:
        patched.setattr("tuff.leveldb.database.plyvel.DB", note)
        store = TableDatabase(tmp_path / "table")
    with closing(store):
        store._database.db = Noting(store._database.db)
        store.write([(b"r", b"1")])
        assert store.get(b"r") == b"1"

    expected = {"create_if_missing": False, "paranoid_checks": True}
    expected |= {"verify_checksums": True, "sync": True}
    assert expected.items() <= asked.items()


def test_errors_of_leveldb_are_shown_as_text() -> None:
    assert error_text(plyvel.Error(b"Corruption: \xff")) == "Corruption: \ufffd"
    assert error_text(OSError(28, "No space left")) == "No space left"
    assert error_text(plyvel.Error()) == ""
