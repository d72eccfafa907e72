"""A LevelDB file whose last write a power cut tore is in doubt, and is not damaged."""

from pathlib import Path

import plyvel
import pytest

from messaging.rows import frame
from messaging.runs import whole_rows
from messaging.storage.leveldb_files import Survey, survey

SECTOR = 512  # bytes


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


def looked_at(directory: Path) -> Survey:
    return survey(directory, whole_rows=whole_rows)


def manifest_of(directory: Path) -> Path:
    return directory / (directory / "CURRENT").read_text().strip()


def test_a_manifest_that_ends_at_the_border_of_a_sector_is_in_doubt(directory: Path) -> None:
    manifest = manifest_of(directory)
    data = manifest.read_bytes()
    manifest.write_bytes(data[: len(data) // SECTOR * SECTOR])

    [hole] = [each for each in looked_at(directory).holes if each.file == manifest.name]

    assert hole.is_tail


def test_a_manifest_that_ends_elsewhere_is_damaged(directory: Path) -> None:
    manifest = manifest_of(directory)
    data = manifest.read_bytes()
    manifest.write_bytes(data[: len(data) // SECTOR * SECTOR - 3])

    [hole] = [each for each in looked_at(directory).holes if each.file == manifest.name]

    assert not hole.is_tail
