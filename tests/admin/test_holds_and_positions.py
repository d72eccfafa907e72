"""Holds and named positions through fsck, salvage and a backup (promise 8)."""

from contextlib import closing
from pathlib import Path

import pytest

from admin.data_directory import DataDirectory
from admin.salvage import salvage
from messaging.model.row_format import HOLDS, POSITIONS, prefix_stop
from tests.admin.files import found_in, now_ms
from tests.cli.command import tuff_command
from tests.http.calls import created
from tests.http.client import ok
from tests.http.process import ServerProcess, serve
from tuff_storage.leveldb.engine import plyvel

PLACE = "0000015896dfd00000050000000000000000ffff"
PATH = "/v1/namespaces/default/topics/t1"


def told(server: ServerProcess) -> tuple[object, object]:
    with closing(server.client()) as client:
        return tuple(ok(client.get(f"{PATH}/{kind}")).json[kind] for kind in ("holds", "positions"))  # type: ignore[return-value] # a pair


def server_with_both(home: Path) -> ServerProcess:
    server = serve(home)
    with closing(server.client()) as client:
        topic = created(client, "default", "t1")
        ok(topic.publish("a"))
        hold = {"from": 0, "maxAge": 600}
        for path, body in (
            ("holds/nightly", hold),
            ("holds/other", hold),
            ("positions/x", {"position": PLACE}),
        ):
            ok(client.put(f"{PATH}/{path}", body))
        ok(client.delete(f"{PATH}/holds/other"))
    return server


@pytest.fixture
def left(tmp_path: Path) -> tuple[Path, tuple[object, object]]:
    """What a killed server left behind, and what it had told."""
    server = server_with_both(tmp_path / "first")
    before = told(server)
    server.kill()
    return server.data, before


def test_salvage_keeps_holds_and_positions(
    left: tuple[Path, tuple[object, object]], tmp_path: Path
) -> None:
    data, before = left

    assert [each for each in found_in(data) if each.is_corruption] == []
    new = tmp_path / "second" / "data"
    new.parent.mkdir()
    salvage(DataDirectory.of(data), new, now_ms=now_ms(), new_store_id=lambda: "ab" * 16)

    assert found_in(new) == []
    with serve(new.parent) as again:
        assert again.data == new
        assert told(again) == before


@pytest.mark.parametrize(("table", "kind"), [(HOLDS, "hold"), (POSITIONS, "position")])
def test_a_corrupt_hold_or_position_is_found_and_left_out_by_salvage(
    left: tuple[Path, tuple[object, object]], tmp_path: Path, table: bytes, kind: str
) -> None:
    data, _ = left
    with closing(plyvel.DB(str(data / "messages"))) as database:
        ((key, value),) = list(database.iterator(start=table, stop=prefix_stop(table)))
        database.put(key, value[:-1] + bytes((value[-1] ^ 1,)), sync=True)

    (found,) = [each for each in found_in(data) if each.is_corruption]
    new = tmp_path / "new"
    account = salvage(DataDirectory.of(data), new, now_ms=now_ms(), new_store_id=lambda: "ab" * 16)

    assert found.location == f"{kind} row {key[1:].hex()}"
    assert "tuff salvage" in found.advice
    assert kind in str(account)
    assert found_in(new) == []


def test_a_backup_of_a_running_server_has_holds_and_positions(tmp_path: Path) -> None:
    with server_with_both(tmp_path / "first") as server:
        file = tmp_path / "backup"
        assert tuff_command("backup", file, url=server.url).returncode == 0
        before = told(server)

    restored = tmp_path / "second" / "data"
    restored.parent.mkdir()
    assert tuff_command("restore", file, restored).returncode == 0

    with serve(restored.parent) as again:
        assert told(again) == before
