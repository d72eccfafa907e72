"""Delayed messages through fsck, inspection, salvage and a backup (promise 8)."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from admin.data_directory import DataDirectory
from admin.salvage import salvage
from messaging.model.row_format import DELAYED, prefix_stop
from tests.admin.files import found_in, now_ms
from tests.cli.command import tuff_command
from tests.http.calls import Topic, begin, created
from tests.http.client import ok, until
from tests.http.process import ServerProcess, serve
from tuff_storage.leveldb.engine import plyvel

LATER = 300  # seconds; no test lasts so long


def told(server: ServerProcess) -> object:
    with closing(server.client()) as client:
        path = f"{Topic(client, 'default', 't1').path}/delayed"
        return ok(client.get(path, payloads="true")).json["delayed"]


def server_with_some(home: Path) -> ServerProcess:
    """A server with two messages that wait, and one of an open transaction."""
    server = serve(home)
    with closing(server.client()) as client:
        topic = created(client, "default", "t1")
        ok(topic.publish("a", delay=LATER))
        done = begin(client)
        ok(topic.publish("b", tx=done.id, delay=LATER, ttl=60))
        ok(done.commit())
        until(lambda: len(told(server)) == 2)  # type: ignore[arg-type] # a list
        ok(topic.publish("c", tx=begin(client).id, delay=LATER))
    return server


@pytest.fixture
def left(tmp_path: Path) -> tuple[Path, object]:
    """What a killed server left behind, and what it had told."""
    server = server_with_some(tmp_path / "first")
    before = told(server)
    server.kill()
    return server.data, before


def salvaged(data: Path, tmp_path: Path) -> Path:
    new = tmp_path / "second" / "data"
    new.parent.mkdir()
    salvage(DataDirectory.of(data), new, now_ms=now_ms(), new_store_id=lambda: "ab" * 16)
    return new


def test_salvage_keeps_what_waits(left: tuple[Path, object], tmp_path: Path) -> None:
    data, before = left
    assert [each for each in found_in(data) if each.is_corruption] == []

    new = salvaged(data, tmp_path)

    assert found_in(new) == []
    with serve(new.parent) as again:
        assert told(again) == before


def test_a_corrupt_row_is_found_and_told_by_salvage(
    left: tuple[Path, object], tmp_path: Path
) -> None:
    data, before = left
    with closing(plyvel.DB(str(data / "messages"))) as database:
        key, value = next(database.iterator(start=DELAYED, stop=prefix_stop(DELAYED)))
        database.put(key, value[:-1] + bytes((value[-1] ^ 1,)), sync=True)

    (found,) = [each for each in found_in(data) if each.is_corruption]
    new = tmp_path / "second" / "data"
    new.parent.mkdir()
    account = salvage(DataDirectory.of(data), new, now_ms=now_ms(), new_store_id=lambda: "ab" * 16)

    assert found.location == f"delayed row {key[1:].hex()}"
    assert f"delayed row {key[1:].hex()}" in str(account)
    assert found_in(new) == []
    with serve(new.parent) as again:  # the version of the row before the corrupt one is there
        assert told(again) == before


def test_the_rows_are_shown(left: tuple[Path, object]) -> None:
    data, before = left
    shown = tuff_command("table", "show", data / "messages", "--json").stdout
    rows = [each for each in map(json.loads, shown.splitlines()) if each["kind"] == "delayed"]
    assert [(row["topic"], row["payload"], row["ttl_s"]) for row in rows] == [
        ("default:t1", "a", None),
        ("default:t1", "b", 60),
        ("default:t1", "c", None),
    ]
    assert [row["tx_pointer"] is None for row in rows] == [True, True, False]
    dues = [row["due_ms"] for row in rows]
    assert dues[:2] == [each["due"] for each in before]  # type: ignore[attr-defined] # a list
    assert dues[1] <= dues[2] < dues[1] + 60_000


def test_a_backup_of_a_running_server_has_what_waits(tmp_path: Path) -> None:
    with server_with_some(tmp_path / "first") as server:
        file = tmp_path / "backup"
        assert tuff_command("backup", file, url=server.url).returncode == 0
        before = told(server)

    restored = tmp_path / "second" / "data"
    restored.parent.mkdir()
    assert tuff_command("restore", file, restored).returncode == 0

    with serve(restored.parent) as again:
        assert told(again) == before
