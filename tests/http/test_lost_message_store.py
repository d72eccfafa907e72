"""A server whose message store is lost says so, and begins no new one."""

import shutil
import subprocess
from pathlib import Path

import pytest

from messaging.engines.leveldb import LevelDbStore
from tests.cli.command import tuff_command
from tests.http.calls import Topic, begin, created
from tests.http.client import ok, until
from tests.http.process import serve

ACCEPT = "server.accept_lost_messages=true"


def fsck(data: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return tuff_command("fsck", data, *flags)


def make_messages(home: Path, *settings: str) -> Path:
    """Published without transactions, by a server that was stopped; the data directory."""
    with serve(home, *settings) as server:
        topic = created(server.client(), "default", "t1")
        ok(topic.publish("kept"))
    return server.data


@pytest.mark.parametrize("settings", [(), ("tx.enabled=false",)])
def test_a_server_without_its_message_store_takes_no_messages_until_it_is_back(
    tmp_path: Path, settings: tuple[str, ...]
) -> None:
    data = make_messages(tmp_path, *settings)
    (data / "messages").rename(tmp_path / "not mounted")

    with serve(tmp_path, *settings) as server:
        client = server.client()
        topic = Topic(client, "default", "t1")
        ready = client.get("/health/ready")
        refused = topic.create()
        assert not (data / "messages").exists()
        (tmp_path / "not mounted").rename(data / "messages")
        until(lambda: client.get("/health/ready").status == 200, what="the messages")
        assert topic.read() == ["kept"]

    storage = ready.json["checks"]["storage"]
    assert (ready.status, storage["status"], refused.status) == (503, "down", 503)
    assert f"{data}/messages holds no message store" in storage["detail"]
    lines = [line for line in server.stderr().splitlines() if "holds no message store" in line]
    assert "level=error" in lines[0]


@pytest.mark.parametrize("settings", [(), ("tx.enabled=false",)])
def test_an_empty_message_store_beside_transaction_files_is_refused(
    tmp_path: Path, settings: tuple[str, ...]
) -> None:
    data = make_messages(tmp_path, *settings)
    shutil.rmtree(data / "messages")
    LevelDbStore(data / "messages").close()

    with serve(tmp_path, *settings) as server:
        assert server.client().get("/health/ready").status == 503
    found = fsck(data)

    assert found.returncode == 1
    assert "the message store is empty" in " ".join(found.stdout.split())
    assert "damages 1" in found.stderr


def test_transactions_continue_after_the_loss_of_messages_is_accepted(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        client = server.client()
        topic = created(client, "default", "t1")
        published, opened = begin(client), begin(client)
        ok(topic.publish("in it", tx=published.id))
        ok(published.commit())
    shutil.rmtree(server.data / "messages")

    with serve(tmp_path, ACCEPT) as server:
        client = server.client()
        topic = Topic(client, "default", "t1")
        assert client.get("/health/ready").json["status"] == "ok"
        ok(topic.create())
        ok(topic.publish("after"))
        ok(client.post(f"{opened.path}/commit"))
    with serve(tmp_path) as server:
        topic = Topic(server.client(), "default", "t1")
        assert topic.read() == ["after"]


def test_a_backup_without_transactions_is_restored(tmp_path: Path) -> None:
    with serve(tmp_path / "one", "tx.enabled=false") as server:
        topic = created(server.client(), "default", "t1")
        ok(topic.publish("kept"))
        archive = tmp_path / "archive"
        done = tuff_command("backup", archive, url=server.url)
        assert done.returncode == 0, done.stderr
    (tmp_path / "two").mkdir()
    assert tuff_command("restore", archive, tmp_path / "two" / "data").returncode == 0

    with serve(tmp_path / "two") as server:
        client = server.client()
        assert client.get("/health/ready").json["status"] == "ok"
        assert Topic(client, "default", "t1").read() == ["kept"]
        ok(begin(client).commit())
    assert fsck(tmp_path / "two" / "data").returncode == 0
