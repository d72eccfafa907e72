"""A server whose message store is lost says so, and begins no new one."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from messaging.engines.leveldb import LevelDbStore
from tests.cli.command import tuff_command
from tests.http.calls import Topic, begin, created, entry
from tests.http.client import Client, ok, until
from tests.http.process import serve
from tuff_storage.leveldb.log import Record, read_records

LOSS = re.compile(r"server\.accept_lost_messages=[0-9a-f]{32}:[0-9]+")


def loss_shown(client: Client) -> str:
    """The setting that accepts the loss, as the health of the storage names it."""
    check = client.get("/health/ready").json["checks"]["storage"]
    found = LOSS.search(check["detail"])
    assert found is not None, check
    return found[0]


def line_with(log: str, words: str) -> str:
    return next(line for line in log.splitlines() if words in line)


def cut_to(data: Path, payload: bytes) -> None:
    """Cut LevelDB's log off within the write that has this payload."""
    (log,) = (data / "messages").glob("*.log")
    content = log.read_bytes()
    records = [each for each in read_records(content) if isinstance(each, Record)]
    at = next(each.offset for each in records if payload in each.data)
    log.write_bytes(content[: at + 20])


def cut_last_write(data: Path) -> None:
    """As a file system does that returns an older state of LevelDB's log."""
    (log,) = (data / "messages").glob("*.log")
    content = log.read_bytes()
    whole = [each.offset for each in read_records(content) if isinstance(each, Record)]
    log.write_bytes(content[: whole[-1] + 20])


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
    with serve(tmp_path) as server:
        accept = loss_shown(server.client())

    with serve(tmp_path, accept) as server:
        client = server.client()
        topic = Topic(client, "default", "t1")
        ready = client.get("/health/ready").json
        ok(topic.create())
        ok(topic.publish("after"))
        ok(client.post(f"{opened.path}/commit"))
    assert ready["checks"]["storage"]["status"] == "degraded"
    assert f"{accept} is set" in ready["checks"]["storage"]["detail"]
    assert "level=warning" in line_with(server.stderr(), " code=loss_accepted")
    with serve(tmp_path) as server:
        topic = Topic(server.client(), "default", "t1")
        assert server.client().get("/health/ready").json["status"] == "ok"
        assert topic.read() == ["after"]


@pytest.mark.parametrize("settings", [(), ("tx.enabled=false",)])
@pytest.mark.parametrize("lose", ["its end", "all", "all, after a kill"])
def test_a_loss_that_was_accepted_accepts_no_later_one(
    tmp_path: Path, settings: tuple[str, ...], lose: str
) -> None:
    data = make_messages(tmp_path, *settings)
    record = data / "snapshots" / "messages-end"
    if lose == "all, after a kill":
        record.unlink()  # as if it never stopped cleanly
    cut_last_write(data) if lose == "its end" else shutil.rmtree(data / "messages")
    with serve(tmp_path, *settings) as server:
        accept = loss_shown(server.client())
    before = record.read_bytes() if record.exists() else None
    with serve(tmp_path, *settings, accept) as server:
        ok(created(server.client(), "default", "t2").publish("after the first loss"))
        until(
            lambda: record.exists() and record.read_bytes() != before,
            what="the loss to be recorded as accepted",
        )
        server.kill()
    shutil.rmtree(data / "messages")

    with serve(tmp_path, *settings, accept) as server:
        assert server.client().get("/health/ready").status == 503
        assert loss_shown(server.client()) != accept


def test_messages_that_are_gone_after_a_clean_stop_keep_the_store_down(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        topic = created(server.client(), "default", "t1")
        for payload in ("kept", "lost"):
            ok(topic.publish(payload))
    cut_last_write(server.data)

    before = fsck(server.data)
    with serve(tmp_path) as server:
        client = server.client()
        topic = Topic(client, "default", "t1")
        assert client.get("/health/ready").status == 503
        assert topic.publish("not taken").status == topic.poll().status == 503
        accept = loss_shown(client)
    line = line_with(server.stderr(), "health of storage changed")
    # The start has written the store again, and a second one says the same.
    after = fsck(server.data)

    for found in (before, after):
        assert found.returncode == 1
        assert "acknowledged messages are missing" in " ".join(found.stdout.split())
    assert "level=error" in line
    with serve(tmp_path, accept) as server:
        topic = Topic(server.client(), "default", "t1")
        ok(topic.publish("after"))
        assert topic.read() == ["kept", "after"]
    with serve(tmp_path) as server:
        assert server.client().get("/health/ready").json["status"] == "ok"
    assert fsck(server.data).returncode == 0


def test_committed_messages_that_are_gone_after_a_kill_keep_the_store_down(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        client = server.client()
        topic = created(client, "default", "t1")
        ok(topic.publish("kept"))
        tx = begin(client)
        ok(client.post(f"{tx.path}/commit", {"publish": [entry(topic, "lost")]}))
        ok(begin(client).commit(changes=["k"]))  # synced, and the confirmation with it
        server.kill()
    cut_to(server.data, b"lost")

    with serve(tmp_path) as server:
        client = server.client()
        assert client.get("/health/ready").status == 503
        assert Topic(client, "default", "t1").publish("not taken").status == 503
        accept = loss_shown(client)
    with serve(tmp_path, accept) as server:
        client = server.client()
        topic = Topic(client, "default", "t1")
        assert topic.read() == ["kept"]
        ok(topic.publish("after"))
        ok(begin(client).commit())
    with serve(tmp_path) as server:
        assert server.client().get("/health/ready").json["status"] == "ok"
        assert Topic(server.client(), "default", "t1").read() == ["kept", "after"]


def test_an_older_copy_of_the_messages_is_not_continued(tmp_path: Path) -> None:
    data = make_messages(tmp_path)
    shutil.copytree(data / "messages", tmp_path / "older")
    with serve(tmp_path) as server:
        ok(Topic(server.client(), "default", "t1").publish("in the newer one"))
    (data / "messages").rename(tmp_path / "newer")
    shutil.copytree(tmp_path / "older", data / "messages")

    with serve(tmp_path) as server:
        assert server.client().get("/health/ready").status == 503
    shutil.rmtree(data / "messages")
    (tmp_path / "newer").rename(data / "messages")
    with serve(tmp_path) as server:
        assert Topic(server.client(), "default", "t1").read() == ["kept", "in the newer one"]


def test_a_damaged_record_of_the_end_is_reported_and_stops_nothing(tmp_path: Path) -> None:
    data = make_messages(tmp_path)
    file = data / "snapshots" / "messages-end"
    file.write_bytes(file.read_bytes()[:-1])

    found = fsck(data)
    with serve(tmp_path) as server:
        assert Topic(server.client(), "default", "t1").read() == ["kept"]

    assert found.returncode == 1
    assert "messages-end" in found.stdout
    assert "level=warning" in line_with(server.stderr(), "lost messages go unnoticed")
    assert fsck(data).returncode == 0


def test_a_stop_that_cannot_record_the_end_says_so(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        ok(created(server.client(), "default", "t1").publish("kept"))
        (server.data / "snapshots" / "messages-end.tmp").mkdir()

    assert "level=warning" in line_with(server.stderr(), " code=store_end_not_written")
    with serve(tmp_path) as server:
        assert Topic(server.client(), "default", "t1").read() == ["kept"]


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
