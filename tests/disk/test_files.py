"""Files that are there whole or not at all."""

import os
from pathlib import Path

import pytest

from tuff_storage.disk.files import make_directory, remove_file, write_file


class Steps:
    """Keeps the order of the calls that make a change durable, and can die at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, die_at: str | None = None) -> None:
        self.names: list[str] = []
        fsync, replace = os.fsync, Path.replace

        def recorded_fsync(descriptor: int) -> None:
            is_directory = Path(f"/proc/self/fd/{descriptor}").is_dir()
            self._step("sync the directory" if is_directory else "sync the file", die_at)
            fsync(descriptor)

        def recorded_replace(source: Path, target: Path) -> Path:
            self._step("rename", die_at)
            return replace(source, target)

        monkeypatch.setattr(os, "fsync", recorded_fsync)
        monkeypatch.setattr(Path, "replace", recorded_replace)

    def _step(self, name: str, die_at: str | None) -> None:
        if name == die_at:
            raise OSError(f"no power at: {name}")
        self.names.append(name)


def test_a_file_is_synced_before_it_gets_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(monkeypatch)

    write_file(tmp_path / "state", b"new")

    assert steps.names == ["sync the file", "rename", "sync the directory"]
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    assert (tmp_path / "state").read_bytes() == b"new"


@pytest.mark.parametrize("step", ["sync the file", "rename"])
def test_a_write_that_dies_before_the_rename_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"old")
    Steps(monkeypatch, die_at=step)

    with pytest.raises(OSError, match="no power"):
        write_file(path, b"new")

    assert path.read_bytes() == b"old"


def test_the_temporary_file_of_an_interrupted_write_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "state.tmp").write_bytes(b"half of an ear")

    write_file(tmp_path / "state", b"new")

    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    assert (tmp_path / "state").read_bytes() == b"new"


def test_directories_are_made_down_to_the_last_each_durably(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(monkeypatch)

    make_directory(tmp_path / "a" / "b" / "c")
    make_directory(tmp_path / "a" / "b" / "c")

    assert (tmp_path / "a" / "b" / "c").is_dir()
    assert steps.names == ["sync the directory"] * 3


def test_a_directory_is_made_below_the_current_one_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    make_directory(Path("data/messages"))

    assert (tmp_path / "data" / "messages").is_dir()


def test_a_file_in_the_way_of_a_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"")

    with pytest.raises(FileExistsError):
        make_directory(tmp_path / "data")


def test_removing_is_durable_and_repeating_it_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "old"
    path.write_bytes(b"")
    steps = Steps(monkeypatch)

    remove_file(path)
    remove_file(path)

    assert list(tmp_path.iterdir()) == []
    assert steps.names == ["sync the directory"] * 2
