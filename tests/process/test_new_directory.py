"""A directory that is made is there whole or not at all, and a killed process is no hindrance."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from process.new_directory import NotNewError, new_directory
from process.places import DirectoryNameError
from tests.cli.command import tuff_command as tuff
from tuff.disk.lock import LOCK_FILE, DirectoryLockedError

DIE = """
import os, signal, sys
from pathlib import Path
from process.new_directory import new_directory
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
def test_it_is_there_once_all_of_it_is(tmp_path: Path, *, is_there: bool) -> None:
    if is_there:
        (tmp_path / "new").mkdir()

    with new_directory(tmp_path / "new") as part:
        (part / "whole").touch()
        assert made(tmp_path / "new") == []

    assert made(tmp_path / "new") == ["whole"]
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_who_fails_leaves_nothing(tmp_path: Path) -> None:
    with suppress(KeyboardInterrupt), new_directory(tmp_path / "new") as part:
        (part / "half").touch()
        raise KeyboardInterrupt

    assert list(tmp_path.iterdir()) == []


def test_who_was_killed_is_no_hindrance(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", DIE, str(tmp_path / "new")]
    done = subprocess.run(arguments, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == -signal.SIGKILL
    assert "half" in made(tmp_path / "new.part")

    make(tmp_path / "new")

    assert made(tmp_path / "new") == ["messages/whole"]
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_two_do_not_make_one_directory_at_once(tmp_path: Path) -> None:
    with new_directory(tmp_path / "new") as part:
        (part / "whole").touch()
        with pytest.raises(DirectoryLockedError):
            make(tmp_path / "new")

    assert made(tmp_path / "new") == ["whole"]


def test_what_somebody_else_has_in_its_way_is_left_alone(tmp_path: Path) -> None:
    """As the data of a server that is called so."""
    (tmp_path / "new.part").mkdir()
    for name in (LOCK_FILE, "mine"):
        (tmp_path / "new.part" / name).touch()

    with pytest.raises(NotNewError, match=r"new\.part holds something already.*; remove it"):
        make(tmp_path / "new")

    assert made(tmp_path / "new.part") == ["mine"]


@pytest.mark.parametrize("name", ["", ".", "..", "/", "mine", "new/.."])
def test_what_holds_something_is_refused_under_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mine").touch()
    monkeypatch.chdir(tmp_path)

    with pytest.raises(NotNewError, match="holds something already"):
        make(Path(name))


def test_the_command_refuses_where_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "archive").touch()
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")

    done = tuff("restore", tmp_path / "archive", ".")

    assert done.returncode == 2
    assert f"{tmp_path / 'empty'} is where this command runs" in done.stderr
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.mark.parametrize("is_there", [False, True])
def test_a_link_leads_to_the_directory_that_is_made(tmp_path: Path, *, is_there: bool) -> None:
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

    with pytest.raises(NotNewError, match="mounted is a mount point"):
        make(tmp_path / "mounted")

    assert [path.name for path in tmp_path.iterdir()] == ["mounted"]


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DirectoryNameError, match=r"odd\\udcff' is not UTF-8"):
        make(tmp_path / "odd\udcff")

    assert list(tmp_path.iterdir()) == []


def test_the_names_in_it_are_durable_before_its_own_is(
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
