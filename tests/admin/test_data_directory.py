"""Which directories the tools accept; and a new directory exists completely or not at all.

A directory that is no data directory, or that lacks its messages, is refused with the reason: a
copy without messages must not look complete (promise 8).
"""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from admin.data_directory import new_directory
from admin.findings import RefusedError
from process.directory_locks import DirectoryNameError
from tests.cli.command import tuff_command as tuff
from tests.http.process import serve
from tuff_storage.disk.locks import LOCK_FILE, DirectoryLockedError

DIE = """
import os, signal, sys
from pathlib import Path
from admin.data_directory import new_directory
with new_directory(Path(sys.argv[1])) as part:
    (part / "messages").mkdir()
    (part / "messages" / "half").touch()
    (part / "half").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def make(target: Path) -> None:
    with new_directory(target) as part:
        (part / "messages").mkdir()
        (part / "messages" / "whole").touch()


def made(target: Path) -> list[str]:
    paths = (path for path in target.rglob("*") if path.is_file() and path.name != LOCK_FILE)
    return sorted(path.relative_to(target).as_posix() for path in paths)


@pytest.mark.parametrize("is_there", [False, True])
def test_the_new_directory_appears_when_it_is_complete(tmp_path: Path, *, is_there: bool) -> None:
    if is_there:
        (tmp_path / "new").mkdir()

    with new_directory(tmp_path / "new") as part:
        (part / "whole").touch()
        assert made(tmp_path / "new") == []

    assert made(tmp_path / "new") == ["whole"]
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_failure_leaves_no_directory(tmp_path: Path) -> None:
    with suppress(KeyboardInterrupt), new_directory(tmp_path / "new") as part:
        (part / "half").touch()
        raise KeyboardInterrupt

    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", DIE, str(tmp_path / "new")]
    done = subprocess.run(arguments, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == -signal.SIGKILL
    assert "half" in made(tmp_path / "new.part")

    make(tmp_path / "new")

    assert made(tmp_path / "new") == ["messages/whole"]
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_two_processes_can_not_make_one_directory(tmp_path: Path) -> None:
    with new_directory(tmp_path / "new") as part:
        (part / "whole").touch()
        with pytest.raises(DirectoryLockedError):
            make(tmp_path / "new")

    assert made(tmp_path / "new") == ["whole"]


def test_a_part_directory_of_another_program_is_not_touched(tmp_path: Path) -> None:
    """It may be the data of a server with this name."""
    (tmp_path / "new.part").mkdir()
    for name in (LOCK_FILE, "mine"):
        (tmp_path / "new.part" / name).touch()

    with pytest.raises(RefusedError, match=r"new\.part is not empty.*; remove it"):
        make(tmp_path / "new")

    assert made(tmp_path / "new.part") == ["mine"]


@pytest.mark.parametrize("name", ["", ".", "..", "/", "mine", "new/.."])
def test_a_directory_that_is_not_empty_is_refused_under_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mine").touch()
    monkeypatch.chdir(tmp_path)

    with pytest.raises(RefusedError, match="is not empty"):
        make(Path(name))


def test_the_current_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "archive").touch()
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")

    done = tuff("restore", tmp_path / "archive", ".")

    assert done.returncode == 2
    assert f"{tmp_path / 'empty'} is the current directory" in done.stderr
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.mark.parametrize("is_there", [False, True])
def test_a_symbolic_link_is_followed_to_the_new_directory(
    tmp_path: Path, *, is_there: bool
) -> None:
    if is_there:
        (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to("far")

    make(tmp_path / "link")

    assert (tmp_path / "link").is_symlink()
    assert made(tmp_path / "far") == ["messages/whole"]


def test_a_mount_point_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mounted").mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "mounted")

    with pytest.raises(RefusedError, match="mounted is a mount point"):
        make(tmp_path / "mounted")

    assert [path.name for path in tmp_path.iterdir()] == ["mounted"]


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DirectoryNameError, match=r"odd\\udcff' is not UTF-8"):
        make(tmp_path / "odd\udcff")

    assert list(tmp_path.iterdir()) == []


def test_directory_entries_are_synced_before_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def recorded_fsync(descriptor: int) -> None:
        steps.append(f"sync {Path(f'/proc/self/fd/{descriptor}').resolve().name}")
        fsync(descriptor)

    def recorded_replace(source: Path, target: Path) -> Path:
        steps.append(f"rename {source.name}")
        return replace(source, target)

    with new_directory(tmp_path / "new") as part:
        (part / "messages").mkdir()
        (part / "messages" / "000006.log").touch()
        monkeypatch.setattr(os, "fsync", recorded_fsync)
        monkeypatch.setattr(Path, "replace", recorded_replace)

    last = f"sync {tmp_path.name}"
    assert {"sync messages", "sync new.part"} <= set(steps[: steps.index("rename new.part")])
    assert steps[steps.index("rename new.part") + 1 :] == [last]


def assert_refused(command: str, directory: Path, tmp_path: Path, *, naming: str) -> None:
    before = {path.name for path in tmp_path.iterdir()}
    new = () if command == "fsck" else (tmp_path / "new",)

    done = tuff(command, directory, *new)

    assert (done.returncode, done.stdout) == (2, "")
    assert naming in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("command", ["fsck", "backup", "salvage"])
def test_one_of_the_two_stores_is_refused(data: Path, tmp_path: Path, command: str) -> None:
    assert_refused(
        command, data / "messages", tmp_path, naming="name the data directory that contains it"
    )
    assert_refused(command, data / "snapshots", tmp_path, naming="name the data directory they")


def test_an_empty_directory_beside_the_snapshots_is_refused(data: Path, tmp_path: Path) -> None:
    (data / "snapshots").rename(tmp_path / "snapshots")
    (tmp_path / "conf").mkdir()

    assert_refused("backup", tmp_path / "conf", tmp_path, naming="contains no data")


@pytest.mark.parametrize(
    ("command", "left"),
    [
        ("backup", "nothing"), ("backup", "an empty directory"), ("fsck", "a link to nothing"),
        ("salvage", "a lock"),
    ],
)  # fmt: skip
def test_data_without_its_message_store_is_refused(
    data: Path, tmp_path: Path, command: str, left: str
) -> None:
    (data / "messages").rename(tmp_path / "not mounted")
    if left == "a link to nothing":
        (data / "messages").symlink_to("nowhere")
    elif left != "nothing":
        (data / "messages").mkdir()
    if left == "a lock":
        (data / "messages" / "tuff.lock").write_text("1\n")

    assert_refused(command, data, tmp_path, naming="there is no message store in")


def test_without_messages_the_transactions_are_checked_and_copied(
    data: Path, tmp_path: Path
) -> None:
    """With HBase the messages are elsewhere; the report says that they are missing here."""
    shutil.rmtree(data / "messages")
    flag = "--without-messages"

    assert tuff("fsck", data, flag).returncode == 0
    assert tuff("backup", data, tmp_path / "backup", flag).returncode == 0
    assert tuff("restore", tmp_path / "backup", tmp_path / "again").returncode == 2
    assert tuff("restore", tmp_path / "backup", tmp_path / "again", flag).returncode == 0
    done = tuff("salvage", data, tmp_path / "new", flag)

    assert done.returncode == 0
    assert "that the message store does not have" in " ".join(done.stdout.split())
    assert "lost 1\n" in done.stderr


def test_the_data_of_a_running_server_is_refused_and_tuff_backup_is_advised(tmp_path: Path) -> None:
    server = serve(tmp_path)
    data, new = server.data, tmp_path / "new"

    for command in (
        ("fsck", data), ("salvage", data, new), ("backup", data, new),
        ("table", "show", data / "messages"),
    ):  # fmt: skip
        done = tuff(*command)

        assert (done.returncode, done.stdout) == (2, "")
        assert f" is in use by process {server.pid}; stop that server" in done.stderr
        assert "`tuff backup FILE` copies the data of a running server" in done.stderr
        assert "--help" not in done.stderr
    server.end()
