"""The LevelDB database of a table: damaged blocks, pages of a scan, options, and forks."""

import random
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

from tests.table.test_corruption import flip, key_of
from tuff.errors import WrongStateError
from tuff.protocol.errors import StorageUnavailableError
from tuff.tables.leveldb_database import DatabaseDamagedError, TableDatabase
from tuff_storage.leveldb.database import _leave_inherited, error_text
from tuff_storage.leveldb.engine import plyvel
from tuff_storage.leveldb.scan import Rows
from tuff_storage.leveldb.scan import scan as scan_database


def table_file_with(home: Path, rows: list[tuple[bytes, bytes]]) -> Path:
    """Write these rows to a new database. Returns its only table file."""
    with closing(TableDatabase(home)) as database:
        database.write(rows)
    TableDatabase(home).close()  # opening again moves the log into a table file
    [file] = home.glob("*.ldb")
    return file


def test_a_damaged_last_block_is_not_the_end_of_the_rows(tmp_path: Path) -> None:
    """plyvel's iterator ends without an error at a damaged last block of a database."""
    home = tmp_path / "table"
    # Random values, since LevelDB compresses blocks.
    rows = [(key_of(number), random.Random(number).randbytes(1500)) for number in range(10)]
    file = table_file_with(home, rows)
    flip(file, 8 * file.read_bytes().index(rows[-1][1]))

    with closing(TableDatabase(home)) as database:
        scan = database.scan(b"r", b"s")
        assert list(islice(scan, 8)) == rows[:8]
        with pytest.raises(DatabaseDamagedError):
            list(scan)


def test_a_missing_table_file_is_reported(tmp_path: Path) -> None:
    """LevelDB's Get answers "not found" for a row of that file."""
    home = tmp_path / "table"
    file = table_file_with(home, [(b"r", b"1")])

    with closing(TableDatabase(home)) as database:
        file.unlink()
        with pytest.raises(StorageUnavailableError, match="can't be read"):
            list(database.scan(b"r", b"s"))
        with pytest.raises(StorageUnavailableError, match="can't be read"):
            database.get(b"r")


def test_a_forked_child_refuses_calls(tmp_path: Path) -> None:
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

    with closing(TableDatabase(tmp_path / "table")) as database:
        small = [len(taken) for _ in database._paged(rows(1))]
        taken.clear()
        large = [len(taken) for _ in database._paged(rows(19))]
        taken.clear()
        largest = [len(taken) for _ in database._paged(rows(20))]

    assert small == [1, 3, 3, 7, 7, 7, 7, 11, 11, 11, 11, 13, 13]
    assert large == [1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13]
    assert largest == list(range(1, 14))


def test_a_closed_scan_releases_its_iterator(tmp_path: Path) -> None:
    with closing(TableDatabase(tmp_path / "table")) as database:
        database.write([(b"ra", b"1"), (b"rb", b"2")])
        rows = scan_database(database._database.db, b"r", b"s")
        pages = database._paged(rows)
        next(pages)

        pages.close()

        assert next(rows, None) is None


def test_readable_from_skips_several_damaged_blocks(tmp_path: Path) -> None:
    home = tmp_path / "table"
    # Random values, since LevelDB compresses blocks; a block of 4 KiB has some three of them.
    rows = [(b"r%02d" % number, random.Random(number).randbytes(1500)) for number in range(20)]
    file = table_file_with(home, rows)
    data = file.read_bytes()
    for _, value in rows[3:10]:
        flip(file, 8 * data.index(value))

    with closing(TableDatabase(home)) as database:
        found = database.readable_from(rows[3][0], b"s", row_start=lambda key: key)
        assert found is not None
        assert rows[9][0] < found <= rows[12][0]
        assert list(database.scan(found, b"s")) == rows[int(found[1:]) :]


def test_leveldb_syncs_verifies_and_creates_nothing(
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
        patched.setattr("tuff_storage.leveldb.database.plyvel.DB", note)
        database = TableDatabase(tmp_path / "table")
    with closing(database):
        database._database.db = Noting(database._database.db)
        database.write([(b"r", b"1")])
        assert database.get(b"r") == b"1"

    expected = {"create_if_missing": False, "paranoid_checks": True}
    expected |= {"verify_checksums": True, "sync": True}
    assert expected.items() <= asked.items()


def test_errors_of_leveldb_are_shown_as_text() -> None:
    assert error_text(plyvel.Error(b"Corruption: \xff")) == "Corruption: \ufffd"
    assert error_text(OSError(28, "No space left")) == "No space left"
    assert error_text(PermissionError(13, "Permission denied", "d/x")) == "d/x: Permission denied"
    assert error_text(plyvel.Error()) == ""
