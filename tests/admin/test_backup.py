"""A backup contains both stores, and is made only of data without corruption."""

import os
from errno import ENOSPC
from pathlib import Path

import pytest

from admin import commands
from messaging.model.row_format import frame, prefix_of
from tests.admin.files import found_in, now_ms, stored_files
from tests.admin.judge import look
from tests.cli.command import tuff_command as tuff
from tuff.protocol.ids import TopicId
from tuff_storage.disk.backup_archive import MAGIC, VERSION
from tuff_storage.leveldb.engine import plyvel
from tx.file_headers import NEWER


def contents(directory: Path) -> dict[str, bytes]:
    paths = stored_files(directory)
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in paths}


def test_what_is_restored_is_what_was_backed_up(data: Path, tmp_path: Path) -> None:
    assert tuff("backup", data, tmp_path / "backup").returncode == 0
    assert tuff("restore", tmp_path / "backup", tmp_path / "again").returncode == 0

    assert contents(tmp_path / "again") == contents(data)
    assert found_in(tmp_path / "again") == []
    assert look(tmp_path / "again").visible == look(data).visible


def test_snapshots_in_another_directory_are_backed_up_too(data: Path, tmp_path: Path) -> None:
    before = contents(data)
    (data / "snapshots").rename(tmp_path / "elsewhere")

    done = tuff("backup", data, tmp_path / "backup", "--snapshots", tmp_path / "elsewhere")

    assert done.returncode == 0
    assert contents(tmp_path / "backup") == before


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_corrupt_data_is_not_copied(data: Path, tmp_path: Path, command: str) -> None:
    [table] = (data / "messages").glob("*.ldb")
    table.write_bytes(table.read_bytes()[:-1])

    done = tuff(command, data, tmp_path / "copy")

    assert done.returncode == 1
    assert table.name in done.stderr
    assert "`tuff salvage`" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_the_error_for_a_full_disk_names_the_target(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    def fail(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").resolve().is_file():
            raise OSError(ENOSPC, os.strerror(ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    code = commands.main(
        [command, str(data), str(tmp_path / "copy")],
        now_ms=now_ms(),
        elapsed_s=float,
        new_store_id=str,
    )

    assert code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"tuff: {tmp_path}/copy.part/messages/")
    assert said.endswith(" can't be used: No space left on device\n")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_backup_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "newer.backup"
    archive.write_bytes(MAGIC + (VERSION + 1).to_bytes(2, "big"))

    done = tuff("restore", archive, tmp_path / "data")

    assert done.returncode == 2
    assert "it is of version 2, and version 1 can be read here" in done.stderr
    assert f"; {NEWER}\n" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["newer.backup"]


def test_rows_of_a_newer_version_are_not_copied_and_not_called_corrupt(
    data: Path, tmp_path: Path
) -> None:
    database = plyvel.DB(str(data / "messages"), compression=None)
    key = b"m" + prefix_of(TopicId("one", "main"), 1) + bytes(10)
    database.put(key, frame(key, 0x80, b"unheard of"))
    database.close()

    done = tuff("backup", data, tmp_path / "backup")

    assert done.returncode == 2
    assert f"a newer version wrote it, with the flags 0x80; {NEWER}\n" in done.stderr
