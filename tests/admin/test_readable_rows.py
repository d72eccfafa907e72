"""LevelDB's files, read without it, contain what LevelDB returns; torn writes are no corruption."""

import random
import shutil
from pathlib import Path

import pytest

from admin.readable_rows import survey
from messaging.model.row_format import frame
from tuff_storage.leveldb.engine import plyvel

SECTOR = 512  # bytes
KEYS = [b"m%06d" % number for number in range(400)]


def by_the_files(directory: Path) -> dict[bytes, bytes]:
    found = survey(directory)
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


def test_a_new_store_without_writes_is_intact(tmp_path: Path) -> None:
    plyvel.DB(str(tmp_path), create_if_missing=True).close()

    assert by_the_files(tmp_path) == {}


@pytest.mark.parametrize("size", [32_768 - 7 - 12 - 12, 32_768, 100_000, 65_536 - 14 - 24])
def test_records_that_fill_blocks_of_the_log(tmp_path: Path, size: int) -> None:
    database = plyvel.DB(str(tmp_path), create_if_missing=True)
    for fill in range(24):
        database.put(b"m%d" % fill, frame(b"m%d" % fill, 0, bytes(size - fill)))
    database.close()

    assert len(by_the_files(tmp_path)) == 24


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Several openings of a database, so that its manifest is longer than a sector."""
    for number in range(2):
        database = plyvel.DB(str(tmp_path), create_if_missing=True, max_file_size=1 << 20)
        for each in range(8):
            key = b"m%d %d" % (number, each) + b"k" * 100
            database.put(key, frame(key, 0, b"v" * SECTOR), sync=True)
            database.compact_range()
        database.close()
    return tmp_path


def manifest_of(directory: Path) -> Path:
    return directory / (directory / "CURRENT").read_text().strip()


def test_a_manifest_that_ends_at_the_border_of_a_sector_is_in_doubt(directory: Path) -> None:
    manifest = manifest_of(directory)
    data = manifest.read_bytes()
    manifest.write_bytes(data[: len(data) // SECTOR * SECTOR])

    [hole] = [each for each in survey(directory).holes if each.file == manifest.name]

    assert hole.is_tail


def test_a_manifest_that_ends_elsewhere_is_corrupt(directory: Path) -> None:
    manifest = manifest_of(directory)
    data = manifest.read_bytes()
    manifest.write_bytes(data[: len(data) // SECTOR * SECTOR - 3])

    [hole] = [each for each in survey(directory).holes if each.file == manifest.name]

    assert not hole.is_tail
