"""LevelDB directories begin durably, and a torn end of a log keeps none from being opened."""

from functools import partial
from pathlib import Path

import pytest

from tuff_storage.leveldb.engine import plyvel
from tuff_storage.leveldb.log import SECTOR_SIZE, torn_from
from tuff_storage.leveldb.opening import holds_database, open_or_create

FILL = 500  # bytes; so that each batch touches two sectors or more


def database_of(directory: Path) -> plyvel.DB:
    open_database = partial(
        plyvel.DB, str(directory), create_if_missing=False, paranoid_checks=True
    )
    return open_or_create(directory, open_database, damaged=plyvel.CorruptionError)


def written(directory: Path) -> tuple[Path, int]:
    """A directory with three batches; its log, and where the last one begins."""
    directory.mkdir()
    database = database_of(directory)
    [log] = directory.glob("*.log")
    for number in range(2):
        database.put(b"%d" % number, b"x" * FILL, sync=True)
    last_start = log.stat().st_size
    database.put(b"last", b"y" * 3 * FILL, sync=True)
    database.close()
    return log, last_start


def keys_in(directory: Path) -> list[bytes]:
    database = database_of(directory)
    found = list(database.iterator(include_value=False))
    database.close()
    return found


def test_a_new_directory_is_one_that_leveldb_could_have_begun(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    database_of(tmp_path / "ours").close()
    plyvel.DB(str(tmp_path / "theirs"), create_if_missing=True).close()

    def contents(directory: Path) -> dict[str, bytes]:
        paths = (path for path in directory.iterdir() if not path.name.startswith("LO"))
        return {path.name: path.read_bytes() for path in paths}

    assert contents(tmp_path / "ours") == contents(tmp_path / "theirs")


def test_a_beginning_that_was_cut_off_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "MANIFEST-000001").write_bytes(b"half")
    (tmp_path / "CURRENT.tmp").write_bytes(b"MAN")

    assert keys_in(tmp_path) == []


def test_the_temporary_file_of_the_first_manifest_is_no_database(tmp_path: Path) -> None:
    """A power cut in the first start left it alone, and no later start began the store."""
    (tmp_path / "MANIFEST-000001.tmp").write_bytes(b"half")

    assert not holds_database(tmp_path)
    assert keys_in(tmp_path) == []


def test_a_directory_with_only_the_first_manifest_is_no_database(tmp_path: Path) -> None:
    """The server called a directory empty that held a later manifest, and `tuff fsck` called one a
    message store in which nothing was ever written."""
    (tmp_path / "MANIFEST-000001").write_bytes(b"")
    assert not holds_database(tmp_path)
    assert not holds_database(tmp_path / "nowhere")

    (tmp_path / "MANIFEST-000007").write_bytes(b"")
    assert holds_database(tmp_path)
    with pytest.raises(FileNotFoundError, match="CURRENT is missing, and MANIFEST-000007 is there"):
        database_of(tmp_path)


def test_the_log_of_another_program_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "app.log").touch()
    assert not holds_database(tmp_path)
    (tmp_path / "000003.log").touch()
    assert holds_database(tmp_path)


def test_tables_without_current_are_not_replaced_by_an_empty_database(tmp_path: Path) -> None:
    log, _ = written(tmp_path / "data")
    (tmp_path / "data" / "CURRENT").unlink()
    before = log.read_bytes()

    with pytest.raises(FileNotFoundError, match=r"CURRENT is missing, and 0.* is there"):
        keys_in(tmp_path / "data")

    assert log.read_bytes() == before


@pytest.mark.parametrize("is_running", [True, False])
def test_a_log_that_is_gone_is_not_taken_for_empty(tmp_path: Path, *, is_running: bool) -> None:
    """LevelDB opened it without the writes of the log, and no file named the log any more."""
    log, _ = written(tmp_path / "data")
    if is_running:
        database = database_of(tmp_path / "data")
        [log] = log.parent.glob("*.log")
        database.put(b"acknowledged", b"", sync=True)
        log.unlink()
        database.put(b"and so on", b"", sync=True)
        database.close()
    else:
        log.unlink()
    before = {path: path.read_bytes() for path in log.parent.iterdir()}

    with pytest.raises(FileNotFoundError, match=f"{log.name} is missing, which the manifest names"):
        keys_in(tmp_path / "data")

    assert {path: path.read_bytes() for path in log.parent.iterdir()} == before


def test_a_last_write_of_which_any_sectors_are_missing_is_cut_off(tmp_path: Path) -> None:
    log, last_start = written(tmp_path / "data")
    whole = log.read_bytes()
    borders = [last_start, *range(-(-last_start // SECTOR_SIZE) * SECTOR_SIZE, len(whole), 512)]
    parts = [
        whole[start:stop] for start, stop in zip(borders, [*borders[1:], len(whole)], strict=True)
    ]
    for lost in range(1, 2 ** len(parts)):
        kept = (bytes(len(p)) if lost >> at & 1 else p for at, p in enumerate(parts))
        log.write_bytes(whole[:last_start] + b"".join(kept))
        copy = tmp_path / f"lost-{lost}"
        copy.mkdir()
        (copy / "000009.log").touch()  # of an opening that was cut off too
        for path in log.parent.iterdir():
            (copy / path.name).write_bytes(path.read_bytes())

        assert keys_in(copy) == [b"0", b"1"], f"without the sectors {lost:b}"


@pytest.mark.parametrize("at", [-1, -FILL, -3 * FILL])
def test_a_flipped_bit_is_damage_and_nothing_is_cut(tmp_path: Path, at: int) -> None:
    log, _ = written(tmp_path / "data")
    data = bytearray(log.read_bytes())
    data[at] ^= 1
    log.write_bytes(data)

    with pytest.raises(plyvel.CorruptionError):
        keys_in(tmp_path / "data")

    assert log.read_bytes() == data


def test_zeros_before_a_whole_write_are_damage(tmp_path: Path) -> None:
    log, last_start = written(tmp_path / "data")
    data = log.read_bytes()

    assert torn_from(data) is None
    assert torn_from(bytes(100) + data[100:]) is None
    assert torn_from(data[:last_start] + bytes(len(data) - last_start)) == last_start
