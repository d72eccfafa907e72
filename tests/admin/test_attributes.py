"""A crash and every offline command keep the attributes of messages."""

from contextlib import closing
from pathlib import Path
from typing import Any

from tests.admin.files import found_in
from tests.cli.command import tuff_command as tuff
from tests.http.calls import Topic, begin, created
from tests.http.client import Client, ok
from tests.http.process import serve

ATTRIBUTES = {"key": {"base64": "/w=="}, "tags": ["eu", "paid"], "headers": {"n": ["1", "2"]}}
SCHEMA_2 = {"Accept": "application/json; schema=2"}


def _publish(client: Client) -> None:
    topic = created(client, "default", "t1")
    stored, open_ = begin(client), begin(client)
    for payload in ("a", "b"):
        ok(topic.publish({"payload": payload, **ATTRIBUTES}, "plain"))
    ok(
        topic.store(
            {"payload": "stored", **ATTRIBUTES}, {"payload": "key", "key": "k"}, tx=stored.id
        )
    )
    ok(topic.publish(tx=stored.id))
    ok(stored.commit())
    ok(topic.publish({"payload": "undecided", **ATTRIBUTES}, tx=open_.id, ttl=1_000))


def _read(client: Client) -> Any:
    path = f"{Topic(client, 'default', 't1').path}/messages"
    everything = ok(client.send("GET", path, headers=SCHEMA_2)).json
    selected = ok(client.send("GET", path, headers=SCHEMA_2, query={"tags": "eu,paid"})).json
    assert selected == [one for one in everything if one["tags"]]
    return everything


def _served(home: Path) -> Any:
    server = serve(home)
    with closing(server.client()) as client:
        found = _read(client)
    server.end()
    return found


def test_attributes_survive_a_crash_a_backup_and_a_salvage(tmp_path: Path) -> None:
    server = serve(tmp_path / "first")
    with closing(server.client()) as client:
        _publish(client)
        before = _read(client)
    server.kill()
    assert [{name: one[name] for name in ATTRIBUTES} == ATTRIBUTES for one in before] == [
        True, False, True, False, True, False, True,
    ]  # fmt: skip

    assert _served(tmp_path / "first") == before
    assert found_in(server.data) == []
    for command, target in (("backup", "backup"), ("salvage", "salvaged/data")):
        (tmp_path / target).parent.mkdir(exist_ok=True)
        done = tuff(command, server.data, tmp_path / target)
        assert done.returncode == 0, done.stderr
    (tmp_path / "restored").mkdir()
    done = tuff("restore", tmp_path / "backup", tmp_path / "restored" / "data")
    assert done.returncode == 0, done.stderr

    assert _served(tmp_path / "restored") == before
    assert _served(tmp_path / "salvaged") == before


def test_a_backup_of_a_running_server_has_the_attributes(tmp_path: Path) -> None:
    server = serve(tmp_path / "first")
    with closing(server.client()) as client:
        _publish(client)
        before = _read(client)
        archive = ok(client.send("GET", "/v1/backup")).body
    server.end()
    (tmp_path / "archive").write_bytes(archive)
    (tmp_path / "restored").mkdir()

    done = tuff("restore", tmp_path / "archive", tmp_path / "restored" / "data")

    assert done.returncode == 0, done.stderr
    assert _served(tmp_path / "restored") == before
