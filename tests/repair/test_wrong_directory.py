"""Who names another directory than the data, or data without its messages, is told so, and is not
left with a copy that has none (promise 8)."""

import shutil
from pathlib import Path

import pytest

from tests.cli.command import tuff_command as tuff


def assert_refused(command: str, directory: Path, tmp_path: Path, *, naming: str) -> None:
    before = {path.name for path in tmp_path.iterdir()}
    new = () if command == "fsck" else (tmp_path / "new",)

    done = tuff(command, directory, *new)

    assert (done.returncode, done.stdout) == (2, "")
    assert naming in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("command", ["fsck", "backup", "salvage"])
def test_one_of_the_two_stores_is_not_all_of_the_data(
    data: Path, tmp_path: Path, command: str
) -> None:
    assert_refused(command, data / "messages", tmp_path, naming="name the directory that it is in")
    assert_refused(command, data / "snapshots", tmp_path, naming="name the data directory they")


def test_what_lies_beside_the_snapshots_is_not_the_data_for_that(
    data: Path, tmp_path: Path
) -> None:
    (data / "snapshots").rename(tmp_path / "snapshots")
    (tmp_path / "conf").mkdir()

    assert_refused("backup", tmp_path / "conf", tmp_path, naming="there is no data in")


@pytest.mark.parametrize(
    ("command", "left"),
    [
        ("backup", "nothing"), ("backup", "an empty directory"), ("fsck", "a link to nothing"),
        ("salvage", "a lock"),
    ],
)  # fmt: skip
def test_data_whose_messages_are_somewhere_else_is_refused(
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


def test_who_says_that_there_are_no_messages_keeps_the_transactions(
    data: Path, tmp_path: Path
) -> None:
    """As with HBase, which has the messages; the account says what is not there."""
    shutil.rmtree(data / "messages")
    flag = "--without-messages"

    assert tuff("fsck", data, flag).returncode == 0
    assert tuff("backup", data, tmp_path / "backup", flag).returncode == 0
    assert tuff("restore", tmp_path / "backup", tmp_path / "again").returncode == 2
    assert tuff("restore", tmp_path / "backup", tmp_path / "again", flag).returncode == 0
    done = tuff("salvage", data, tmp_path / "new", flag)

    assert done.returncode == 0
    assert "that the message store does not have" in " ".join(done.stdout.split())
    assert done.stderr.endswith("lost 1\n")
