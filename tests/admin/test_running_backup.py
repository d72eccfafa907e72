"""A backup of a running server is of one moment, complete or refused, and blocks no client."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from io import BytesIO
from pathlib import Path

import pytest

from admin.backup_and_restore import restore_archive
from admin.data_directory import DataDirectory
from admin.findings import CorruptDataError
from admin.fsck import check
from messaging.engines.leveldb import LevelDbStore
from messaging.model.row_format import MESSAGES, ROWS_STOP
from tests.admin.files import PATIENT, now_ms
from tests.cli.command import tuff_command as tuff
from tests.client.proxy import losing
from tests.formats.history import History
from tests.http.calls import TRANSACTIONS, Topic, begin, created
from tests.http.client import Client, ok, refused, until
from tests.http.conftest import NewServer
from tests.http.process import ServerProcess, serve
from tuff.errors import ConnectionLostError
from tuff.protocol.errors import DamagedRecordError, TuffError
from tuff_cli import main
from tuff_cli.fsck_and_backup import check_backup, download
from tuff_storage.disk.backup_archive import (
    ArchiveError,
    pack_end,
    pack_head,
    pack_part,
    read_parts,
)

LARGE = "x" * 500_000  # characters; thirty of them are more than sockets hold between two processes
LARGE_COUNT = 30


def restored(archive: Path) -> Path:
    """A directory in which a server starts on the restored archive."""
    home = archive.with_suffix(".home")
    home.mkdir()
    restore_archive(archive, home / "data", now_ms=now_ms())
    assert check(DataDirectory.of(home / "data"), now_ms=now_ms()).findings == []
    return home


def test_a_restore_counts_the_rows_as_a_check_does(tmp_path: Path, new_server: NewServer) -> None:
    """It counted packed rows as one, and the check of the same data counted each of them."""
    server = new_server()
    ok(created(server.client(), "one", "packed").publish(*["small"] * 1_000))
    download(server.url, tmp_path / "backup")

    row_count = restore_archive(tmp_path / "backup", tmp_path / "data", now_ms=now_ms())

    assert row_count == check(DataDirectory.of(tmp_path / "data"), now_ms=now_ms()).row_count
    assert row_count > 1_000


def fsck(archive: Path, *options: str) -> tuple[int, str, str]:
    done = tuff("fsck", archive, *options)
    return done.returncode, done.stdout, done.stderr


def test_a_check_of_a_backup_finds_a_flipped_bit_in_each_byte(
    tmp_path: Path, new_server: NewServer
) -> None:
    """The only way was to restore it."""
    server = new_server()
    ok(created(server.client(), "one", "main").publish("a", "b"))
    whole, flipped = tmp_path / "whole", tmp_path / "flipped"
    download(server.url, whole)
    data = whole.read_bytes()

    assert fsck(whole) == (0, "", f"tuff: checked: parts 2, bytes {len(data)}, damages 0\n")
    missed = []
    for at in range(len(data)):
        flipped.write_bytes(data[:at] + bytes((data[at] ^ 1 << at % 8,)) + data[at + 1 :])
        with pytest.raises(TuffError) as found:
            check_backup(flipped, as_json=False)
        if found.value.code not in ("damaged_backup", "command_refused"):
            missed.append(at)
    assert not missed


def test_a_damaged_backup_is_named_with_its_place_and_what_to_do(tmp_path: Path) -> None:
    archive = tmp_path / "monday.backup"
    archive.write_bytes(pack_head() + pack_part(1, b"content")[:-1] + b"?" + pack_end(1))
    code, stdout, stderr = fsck(archive)
    assert (code, stdout) == (1, "")
    assert "is not a whole backup: it is damaged at byte 10: " in stderr
    assert f"`tuff salvage {archive} NEW`" in stderr

    archive.write_bytes(pack_head() + pack_part(1, b"content") + pack_end(1))
    assert json.loads(fsck(archive, "--json")[1]) == {
        "kind": "checked", "parts": 1, "bytes": archive.stat().st_size, "damages": 0,
    }  # fmt: skip
    assert fsck(archive, "--without-messages")[0] == 2


@contextmanager
def slow_reader(server: ServerProcess) -> Iterator[socket.socket]:
    """A connection that requested a backup, and reads only the head of the answer."""
    with closing(socket.create_connection(("127.0.0.1", server.port), timeout=30)) as reader:
        reader.sendall(b"GET /v1/backup HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert reader.recv(12) == b"HTTP/1.1 200"
        yield reader


def rest_of(reader: socket.socket) -> bytes:
    """The body without the framing of HTTP chunks."""
    received = b"".join(iter(lambda: reader.recv(1 << 20), b""))
    _, _, chunks = received.partition(b"\r\n\r\n")
    body, at = [], 0
    while at < len(chunks):
        stop = chunks.index(b"\r\n", at)
        size = int(chunks[at:stop], 16)
        body.append(chunks[stop + 2 : stop + 2 + size])
        at = stop + 4 + size
    return b"".join(body)


def fill(client: Client) -> None:
    large = created(client, "one", "large")
    for _ in range(LARGE_COUNT):
        ok(large.publish(LARGE))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server for all tests that only read."""
    running = serve(tmp_path_factory.mktemp("filled"))
    fill(running.client())
    yield running
    running.end()


@pytest.mark.slow
def test_a_restored_server_answers_as_the_server_did_at_that_moment(
    new_server: NewServer, tmp_path: Path
) -> None:
    server = new_server(*PATIENT)
    history = History(server.client(), "one").make()
    before = history.expected()
    download(server.url, tmp_path / "monday.backup")
    ok(history.main.publish("after it"))
    server.end()

    again = new_server(*PATIENT, home=restored(tmp_path / "monday.backup"))
    after = history.with_client(again.client()).expected()

    assert after.topics == before.topics
    assert after.all_messages == before.all_messages
    assert after.committed_messages == before.committed_messages
    assert after.transactions == before.transactions
    assert after.in_progress == before.in_progress
    assert after.invalids >= before.invalids
    assert min(after.read_pointer, after.write_pointer) >= before.read_pointer


def test_a_transaction_that_commits_during_the_backup_is_not_in_it(
    new_server: NewServer, tmp_path: Path
) -> None:
    """Its first publish is in it, its second is not: the outcome must be of the same moment."""
    server = new_server(*PATIENT)
    client = server.client()
    topic = created(client, "one", "main")
    fill(client)
    committed, half, untouched = begin(client), begin(client), begin(client)
    ok(topic.publish("committed before", tx=committed.id))
    ok(committed.commit())
    ok(topic.publish("half", tx=half.id))

    with slow_reader(server) as reader:
        ok(topic.publish("the other half", tx=half.id))
        ok(half.commit())
        ok(topic.publish("late", tx=untouched.id))
        ok(untouched.commit())
        late = begin(client)
        ok(topic.publish("later", tx=late.id))
        ok(late.commit())
        (tmp_path / "slow.backup").write_bytes(rest_of(reader))
    server.end()

    again = new_server(*PATIENT, home=restored(tmp_path / "slow.backup")).client()
    topic = Topic(again, "one", "main")
    open_now = ok(again.get(TRANSACTIONS)).json["inProgress"]
    assert {each["transactionId"] for each in open_now} == {half.id, untouched.id}
    for tx in (half.id, untouched.id):
        ok(again.post(f"{TRANSACTIONS}/{tx}/abort"))
    assert topic.committed() == ["committed before"]
    assert topic.read() == ["committed before", "half"]


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (None, "application/vnd.tuff.backup"),
        ("*/*", "application/vnd.tuff.backup"),
        ("application/octet-stream", "application/octet-stream"),
        ("application/octet-stream;q=0.1, application/vnd.tuff.backup",
         "application/vnd.tuff.backup"),
    ],
)  # fmt: skip
def test_a_backup_has_its_own_type_unless_plain_bytes_are_asked_for(
    new_server: NewServer, accept: str | None, kind: str
) -> None:
    headers = None if accept is None else {"Accept": accept}

    reply = new_server().client().send("GET", "/v1/backup", headers=headers)

    assert (reply.status, reply.header("Content-Type")) == (200, kind)
    assert reply.body


def test_publishing_continues_during_a_slow_backup_until_its_reader_is_cut_off(
    filled: ServerProcess,
) -> None:
    client = filled.client()

    with slow_reader(filled):
        ok(Topic(client, "one", "large").publish("meanwhile"))
        second = client.get("/v1/backup")

    refused(second, 429, "overloaded", naming="another backup is under way")
    until(lambda: client.get("/v1/backup").status == 200, what="the first one to be given up")


@pytest.mark.slow
def test_a_server_that_is_stopped_ends_its_backup_with_a_reason(new_server: NewServer) -> None:
    server = new_server()
    fill(server.client())

    with slow_reader(server) as reader:
        os.kill(server.pid, signal.SIGTERM)
        until(lambda: "stopping" in server.stderr(), what="the stop to begin")
        body = rest_of(reader)

    assert server.wait_exit() == 0
    with pytest.raises(ArchiveError, match="gave up: the server is stopping"):
        list(read_parts(BytesIO(body)))


@pytest.mark.slow
def test_an_incomplete_backup_of_a_killed_server_is_refused(
    new_server: NewServer, tmp_path: Path
) -> None:
    server = new_server()
    fill(server.client())
    archive = tmp_path / "cut.backup"

    with slow_reader(server) as reader:
        server.kill()
        archive.write_bytes(rest_of(reader))

    with pytest.raises(
        CorruptDataError, match=r"is not a complete backup: .*; restore another one$"
    ):
        restore_archive(archive, tmp_path / "data", now_ms=now_ms())
    assert [path.name for path in tmp_path.iterdir() if "data" in path.name] == []


def test_a_backup_whose_server_is_gone_leaves_no_file(
    filled: ServerProcess, tmp_path: Path
) -> None:
    with losing(filled.url) as (url, losses):
        losses.lose_reply("backup")

        with pytest.raises(ConnectionLostError):
            download(url, tmp_path / "lost.backup")

        assert list(tmp_path.glob("lost*")) == []
        assert download(url, tmp_path / "lost.backup").part_count > 1


def test_a_backup_replaces_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "mine"
    target.write_text("mine")

    with pytest.raises(SystemExit, match=r"^2$"):
        main(["backup", str(target), "--url", "http://127.0.0.1:1"])

    assert f"{target} exists already; name a new file" in capsys.readouterr().err
    assert target.read_text() == "mine"


@pytest.mark.slow
def test_a_damaged_row_is_named_and_ends_the_backup(new_server: NewServer, tmp_path: Path) -> None:
    server = new_server()
    client = server.client()
    topic = created(client, "one", "main")
    ok(topic.publish("soon damaged"))
    server.end()
    with closing(LevelDbStore(server.data / "messages")) as store:
        [[(key, value)]] = store.scan(MESSAGES, ROWS_STOP)
        store.write([(key, value[:-1] + b"D")])
    server = new_server(home=server.home)

    with pytest.raises(DamagedRecordError, match=r"gave up: the row .* is damaged"):
        download(server.url, tmp_path / "damaged.backup")

    assert list(tmp_path.glob("damaged*")) == []


@pytest.mark.slow
def test_messages_that_belong_to_transactions_are_not_backed_up_without_them(
    new_server: NewServer,
) -> None:
    server = new_server()
    server.end()
    without = new_server("tx.enabled=false", home=server.home)

    refused(without.client().get("/v1/backup"), 503, "transactions_unavailable")


@pytest.mark.slow
def test_a_stopped_transaction_service_is_backed_up_with_its_open_transactions(
    new_server: NewServer, tmp_path: Path
) -> None:
    server = new_server(*PATIENT)
    client = server.client()
    tx = begin(client)
    ok(client.post(f"{TRANSACTIONS}/service/stop"))

    download(server.url, tmp_path / "stopped.backup")

    again = new_server(*PATIENT, home=restored(tmp_path / "stopped.backup")).client()
    assert ok(again.get(f"{TRANSACTIONS}/{tx.id}")).json["state"] == "in_progress"
