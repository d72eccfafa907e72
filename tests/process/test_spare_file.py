"""The spare file: when it is made, and what removes it (decision 0053)."""

from pathlib import Path

import pytest

from process.disk_space import SPARE_FILE, Space, keep_spare_file, release_spare_file

MIB = 1 << 20
GIB = 1 << 30


def keep(directory: Path, free_mib: int) -> bool:
    return keep_spare_file(directory, Space(free_mib * MIB, 100 * GIB))


def test_a_disk_that_fills_up_gets_a_file_whose_space_is_taken(tmp_path: Path) -> None:
    assert keep(tmp_path, 300)

    found = (tmp_path / SPARE_FILE).stat()
    assert (found.st_size, found.st_blocks * 512 >= 32 * MIB) == (32 * MIB, True)
    assert not keep(tmp_path, 300)
    assert release_spare_file(tmp_path)
    assert not release_spare_file(tmp_path)


@pytest.mark.parametrize("free_mib", [2_000, 95, 10, 0])
def test_a_disk_with_much_space_or_none_to_spare_gets_no_file(
    tmp_path: Path, free_mib: int
) -> None:
    assert not keep(tmp_path, free_mib)
    assert not (tmp_path / SPARE_FILE).exists()


def test_the_file_goes_when_there_is_room_and_stays_while_the_disk_is_full(tmp_path: Path) -> None:
    assert keep(tmp_path, 300)

    assert not keep(tmp_path, 0)
    assert (tmp_path / SPARE_FILE).exists()
    assert keep(tmp_path, 1_500)
    assert not (tmp_path / SPARE_FILE).exists()


def test_a_directory_that_does_not_exist_gets_no_file(tmp_path: Path) -> None:
    assert not keep(tmp_path / "not-there", 300)


def test_a_small_disk_spares_a_quarter() -> None:
    sizes = [Space(0, size * MIB).needed_spare_bytes for size in (0, 96, 128, 4_000)]

    assert sizes == [0, 24 * MIB, 32 * MIB, 32 * MIB]
