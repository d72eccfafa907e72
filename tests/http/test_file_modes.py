"""Data and backups are for their owner alone, whatever the umask of the shell is."""

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import tuff_command
from tests.http.calls import begin, created, entry
from tests.http.client import ok
from tests.http.process import serve
from tuff_storage.disk.file_modes import rights_within


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that every user may enter; pytest's own are private."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory


def exposed_in(place: Path) -> list[str]:
    """The files and directories that others than their owner have any right on."""
    found = [place, *place.rglob("*")] if place.is_dir() else [place]
    assert found
    return [str(each) for each in found if stat.S_IMODE(each.lstat().st_mode) & 0o077]


def test_what_a_server_writes_is_for_its_owner(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        client = server.client()
        topic = created(client, "default", "t")
        ok(client.post(f"{begin(client).path}/commit", {"publish": [entry(topic, "a")]}))
        ok(client.post("/v1/transactions/snapshot"))

    assert exposed_in(server.data) == []
    names = {path.name.split(".")[0] for path in server.data.rglob("*")}
    assert {"messages", "snapshots", "CURRENT", "snapshot", "txlog", "messages-end"} <= names


def test_what_the_tools_write_is_for_its_owner(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    with serve(tmp_path / "home") as server:
        ok(created(server.client(), "default", "t").publish("a"))
        assert tuff_command("backup", archive, url=server.url).returncode == 0
    copies = [tmp_path / name for name in ("restored", "copied", "salvaged")]
    for command, source, target in (
        ("restore", archive, copies[0]),
        ("backup", copies[0], copies[1]),
        ("salvage", copies[0], copies[2]),
    ):
        done = tuff_command(command, source, target)
        assert done.returncode == 0, done.stderr

    assert [exposed_in(place) for place in (archive, *copies)] == [[], [], [], []]


def test_data_that_every_user_may_read_is_named(public: Path) -> None:
    with serve(public) as server:
        pass
    for directory in (server.data, server.data / "messages"):
        directory.chmod(0o755)

    with serve(public) as server:
        log = server.stderr()
    told = tuff_command("doctor", "--data", server.data)

    assert "code=data_exposed " in log
    assert f"every user of this machine may read what is in {server.data}/messages; chmod" in log
    assert f"{server.data}/snapshots; chmod" not in log
    assert f"data in {server.data}/messages" in told.stdout
    assert "take the rights away" in told.stdout


def test_a_private_directory_above_keeps_other_users_out(public: Path) -> None:
    inner = public / "private" / "data"
    inner.mkdir(parents=True)
    for directory in (inner.parent, inner):
        directory.chmod(0o755)
    assert rights_within(inner) == "read"

    inner.parent.chmod(0o700)

    assert rights_within(inner) is None
