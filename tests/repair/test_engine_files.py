"""LevelDB's files, read without it, say what LevelDB says."""

import random
import shutil
from pathlib import Path

import plyvel
import pytest

from messaging.rows import frame
from messaging.runs import whole_rows
from messaging.storage.leveldb_files import survey

KEYS = [b"m%06d" % number for number in range(400)]


def by_the_files(directory: Path) -> dict[bytes, bytes]:
    found = survey(directory, whole_rows=whole_rows)
    assert found.holes == []
    newest = (versions[0] for versions in found.versions())
    return {one.key: one.value for one in newest if one.value is not None}


def by_the_engine(directory: Path, scratch: Path) -> dict[bytes, bytes]:
    database = plyvel.DB(str(shutil.copytree(directory, scratch)))
    found = dict(database)
    database.close()
    return found


@pytest.mark.parametrize("compression", [None, "snappy"])
def test_writes_and_deletions_over_many_tables_and_a_log(tmp_path: Path, compression: str) -> None:
    chance = random.Random(7)
    for number in range(3):
        database = plyvel.DB(
            str(tmp_path / "db"), create_if_missing=True, compression=compression,
            write_buffer_size=65_536, max_file_size=1 << 20,
        )  # fmt: skip
        for _ in range(200):
            with database.write_batch() as batch:
                for key in chance.sample(KEYS, 3):
                    if chance.random() < 0.3:
                        batch.delete(key)
                    else:
                        size = chance.choice((10, 500, 40_000 if number else 5_000))
                        batch.put(key, frame(key, 0, chance.randbytes(size // 2) + bytes(size)))
        if number == 1:
            database.compact_range()
        database.close()

    found = by_the_files(tmp_path / "db")

    assert len(list((tmp_path / "db").glob("*.ldb"))) > 3
    assert found == by_the_engine(tmp_path / "db", tmp_path / "scratch")
    assert found


def test_a_store_that_was_made_and_never_written_is_whole(tmp_path: Path) -> None:
    plyvel.DB(str(tmp_path), create_if_missing=True).close()

    assert by_the_files(tmp_path) == {}


@pytest.mark.parametrize("size", [32_768 - 7 - 12 - 12, 32_768, 100_000, 65_536 - 14 - 24])
def test_records_that_fill_blocks_of_the_log(tmp_path: Path, size: int) -> None:
    database = plyvel.DB(str(tmp_path), create_if_missing=True)
    for fill in range(24):
        database.put(b"m%d" % fill, frame(b"m%d" % fill, 0, bytes(size - fill)))
    database.close()

    assert len(by_the_files(tmp_path)) == 24
