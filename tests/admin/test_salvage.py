"""`tuff salvage` keeps what is intact, invents nothing, and reveals nothing undecided."""

import shutil
import subprocess
from pathlib import Path

import pytest

from admin.data_directory import DataDirectory
from admin.salvage import salvage
from admin.salvage_messages import SalvageReport
from messaging.model.row_format import frame, prefix_of
from tests.admin.files import Past, flipped, found_in, now_ms, sample, stored_files
from tests.admin.judge import Seen, look, lost_count_max
from tests.cli.command import tuff_command
from tests.formats.history import History
from tests.http.calls import TRANSACTIONS, Topic, begin, entry, payloads
from tests.http.client import ok, until
from tests.http.process import serve
from tuff.protocol.ids import TopicId
from tuff_cli.fsck_and_backup import download
from tuff_storage.disk.records import pack_frame
from tuff_storage.leveldb.engine import plyvel
from tx.file_headers import NEWER, FileKind, list_files
from tx.log_records import to_bytes

STORE_ID = "ab" * 16
VERSION = (8, 9)  # bytes of a transaction file that say its format


def salvaged(data: Path, new: Path) -> tuple[SalvageReport, Seen]:
    account = salvage(DataDirectory.of(data), new, now_ms=now_ms(), new_store_id=lambda: STORE_ID)
    return account, look(new)


def backed_up(tmp_path: Path) -> Path:
    """A backup of a running server, in several parts; an open transaction is in it."""
    archive = tmp_path / "monday.backup"
    with serve(tmp_path / "home") as server:
        topic = Topic(server.client(), "default", "t")
        ok(topic.create())
        for number in range(40):
            ok(topic.publish(*(f"{number}.{each} {'x' * 1_000}" for each in range(25))))
        ok(topic.publish("open", tx=begin(server.client()).id))
        download(server.url, archive)
    return archive


@pytest.mark.parametrize("damage", ["one byte", "cut off"])
def test_what_is_whole_of_a_damaged_backup_is_kept(tmp_path: Path, damage: str) -> None:
    archive = backed_up(tmp_path)
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 1
    archive.write_bytes(content if damage == "one byte" else content[: len(content) // 2])

    refused = tuff_command("restore", archive, tmp_path / "restored")
    made = tuff_command("salvage", archive, tmp_path / "new" / "data")

    assert f"keep what is whole with `tuff salvage {archive} NEW`" in refused.stderr
    assert made.returncode == 0
    assert "it is damaged at byte" in made.stdout
    assert "lost counts places in files, and not messages" in made.stderr
    assert [each.name for each in (tmp_path / "new").iterdir()] == ["data"]
    with serve(tmp_path / "new") as server:
        topic = Topic(server.client(), "default", "t")
        kept = payloads(topic.poll({"limit": 2_000}, isolation="committed"))
    assert kept[0].startswith("0.0 ")
    assert 200 < len(kept) < 1_000
    assert ("39.24 " in {each[:6] for each in kept}) is (damage == "one byte")


def test_a_table_that_is_missing_is_named_with_the_rows_that_it_had(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        topic = Topic(server.client(), "shop", "orders")
        ok(topic.create())
        ok(topic.publish("a"))
    serve(tmp_path).end()  # makes a table of the log
    for table in (server.data / "messages").glob("*.ldb"):
        table.unlink()

    found = tuff_command("fsck", server.data).stdout

    assert "the file is missing; its rows were from " in found
    assert " rows of shop:orders" in found


def assert_nothing_new(truth: Seen, seen: Seen) -> None:
    assert seen.payloads.items() <= truth.payloads.items()
    assert seen.visible <= truth.visible


def assert_goes_on(truth: Seen, seen: Seen) -> None:
    assert seen.state is not None
    assert seen.state.open == {}
    assert seen.state.highest_reserved > max(truth.pointers)


def assert_kept(data: Path, tmp_path: Path, *, count: int) -> None:
    truth = look(data)
    number = 0
    for path in stored_files(data):
        for at in sample(path.stat().st_size, count=count):
            number += 1
            if at in VERSION and path.parent.name == "snapshots":
                continue  # it looks like a newer version's, and is refused
            try:
                with flipped(path, at):
                    _, seen = salvaged(data, tmp_path / f"new-{number}")
                assert_kept_beside(truth, seen, path)
            except AssertionError as error:
                error.add_note(f"{path.name} of {path.stat().st_size} bytes, flipped at byte {at}")
                raise


def assert_kept_beside(truth: Seen, seen: Seen, damaged: Path) -> None:
    """Little is lost and nothing is revealed where one byte of this file was flipped."""
    assert_nothing_new(truth, seen)
    assert_goes_on(truth, seen)
    lost = len(truth.payloads) - len(seen.payloads)
    assert lost <= lost_count_max(damaged)
    assert lost == 0 or damaged.parent.name == "messages"


def test_intact_data_is_kept_completely(data: Path, tmp_path: Path) -> None:
    truth = look(data)

    account, seen = salvaged(data, tmp_path / "new")

    assert account.lost == []
    assert seen.payloads == truth.payloads
    assert seen.visible == truth.visible
    assert max(seen.places) >= max(truth.places)
    assert_goes_on(truth, seen)
    assert found_in(tmp_path / "new") == []


@pytest.mark.slow
def test_a_flipped_byte_costs_few_rows_and_reveals_none(data: Path, tmp_path: Path) -> None:
    assert_kept(data, tmp_path, count=60)


@pytest.mark.slow
def test_a_file_that_is_cut_or_missing_reveals_nothing(data: Path, tmp_path: Path) -> None:
    truth = look(data)
    for number, path in enumerate(stored_files(data)):
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        _, seen = salvaged(data, tmp_path / f"cut-{number}")
        assert_nothing_new(truth, seen)

        path.unlink()
        _, seen = salvaged(data, tmp_path / f"removed-{number}")
        assert_nothing_new(truth, seen)
        path.write_bytes(whole)


def test_without_transaction_files_the_index_decides(data: Path, tmp_path: Path) -> None:
    """Rows without an index row are those of settled transactions (docs/formats.md, 8.5)."""
    truth = look(data)
    for path in (data / "snapshots").iterdir():
        path.unlink()

    account, seen = salvaged(data, tmp_path / "new")

    assert seen.payloads == truth.payloads
    assert seen.state is not None
    hidden = {each.location for each in account.decided if "rows are hidden" in each.reason}
    assert hidden <= {f"transaction {pointer}" for pointer in seen.state.invalid}
    assert len(hidden) >= 4
    assert_nothing_new(truth, seen)
    assert len(truth.visible - seen.visible) <= 4  # of commits whose index rows were still there
    assert_goes_on(truth, seen)


def test_a_lost_topic_row_is_written_again_and_reported(data: Path, tmp_path: Path) -> None:
    database = plyvel.DB(str(data / "messages"), compression=None)
    database.delete(b"tone:again:")
    database.close()

    account, _ = salvaged(data, tmp_path / "new")

    [told] = [each for each in account.decided if each.location == "topic one:again"]
    assert "created again with generation 2" in told.reason


def test_lost_metadata_is_restored_from_the_transaction_files(data: Path, tmp_path: Path) -> None:
    truth = look(data)
    database = plyvel.DB(str(data / "messages"), compression=None)
    database.delete(b"sfacts")
    database.delete(b"smark")
    database.close()

    _, seen = salvaged(data, tmp_path / "new")

    assert seen.visible == truth.visible
    assert max(seen.places) == max(truth.places)
    assert found_in(tmp_path / "new") == []


def test_a_server_starts_on_salvaged_data_and_serves_its_messages(
    past: Past, data: Path, tmp_path: Path
) -> None:
    truth = look(data)
    home = tmp_path / "home"
    salvaged(data, home / "data")

    server = serve(home)
    client = server.client()
    for name, expected in past.expected.all_messages.items():
        namespace, topic = name.split(":")
        reply = ok(Topic(client, namespace, topic).poll())
        assert [(m["id"], m["payload"]) for m in reply.json] == expected
    assert ok(client.get("/health/ready")).json["status"] == "ok"
    tx = begin(client)
    held = Topic(client, "one", "held")
    ok(held.publish("new", tx=tx.id))
    ok(tx.commit())

    assert int(tx.id) > max(truth.pointers)
    assert payloads(ok(held.poll(isolation="committed")))[-2:] == ["behind it", "new"]
    server.end()


def test_older_transaction_files_lose_no_commit_that_the_rows_prove(
    data: Path, tmp_path: Path
) -> None:
    """Commits that the older files do not have are proven by the rows."""
    old = {path.name: path.read_bytes() for path in (data / "snapshots").iterdir()}
    server = serve(tmp_path)
    client = server.client()
    history = History(client, "three").make()
    ok(Topic(client, "three", "main").publish("after"))
    assert history.transactions
    server.end()
    truth = look(data)
    for path in (data / "snapshots").iterdir():
        path.unlink()
    for name, content in old.items():
        (data / "snapshots" / name).write_bytes(content)

    _, seen = salvaged(data, tmp_path / "new")

    assert seen.payloads == truth.payloads
    assert_nothing_new(truth, seen)
    assert len(truth.visible - seen.visible) <= 4
    assert_goes_on(truth, seen)


def test_rows_of_a_newer_version_are_not_left_out(data: Path, tmp_path: Path) -> None:
    database = plyvel.DB(str(data / "messages"), compression=None)
    key = b"m" + prefix_of(TopicId("one", "main"), 1) + bytes(10)
    database.put(key, frame(key, 0x80, b"unheard of"))
    database.close()

    done = command(data, tmp_path / "new")

    assert done.returncode == 2
    assert "a newer version wrote it" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]
    assert [finding.advice for finding in found_in(data)] == [NEWER]


@pytest.mark.parametrize("kind", [FileKind.SNAPSHOT, FileKind.LOG])
def test_transaction_files_of_a_newer_version_are_not_left_out(
    data: Path, tmp_path: Path, kind: FileKind
) -> None:
    path = [path for path, its in list_files(data / "snapshots") if its is kind][-1]
    whole = path.read_bytes()
    path.write_bytes(whole[:8] + (9).to_bytes(2, "big") + whole[10:])

    assert_left_to_the_newer_one(data, tmp_path, reason="it has format 9")


def test_an_edit_that_only_a_newer_version_knows_is_not_left_out(
    data: Path, tmp_path: Path
) -> None:
    path = [path for path, its in list_files(data / "snapshots") if its is FileKind.LOG][-1]
    path.write_bytes(path.read_bytes() + pack_frame(to_bytes([10_000, 99, 1])))

    assert_left_to_the_newer_one(data, tmp_path, reason="there is no edit with the tag 99")


def assert_left_to_the_newer_one(data: Path, tmp_path: Path, *, reason: str) -> None:
    """Like rows: `fsck` advises the newer version, and no copy is made without them."""
    [finding] = [each for each in found_in(data) if reason in each.reason]
    assert finding.advice == NEWER

    for name in ("salvage", "backup"):
        done = tuff_command(name, data, tmp_path / "new")

        assert done.returncode == 2
        assert reason in done.stderr
        assert f"; {NEWER}\n" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return tuff_command("salvage", *arguments)


def test_the_command_leaves_the_old_directory_as_it_is(data: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}

    done = command(data, tmp_path / "new")

    assert done.returncode == 0
    assert "tuff: salvaged: " in done.stderr
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before


def test_committed_messages_that_were_aside_return_on_salvaged_data(tmp_path: Path) -> None:
    """The store is from before the commit, and the transaction files are from after it."""
    home, new = tmp_path / "home", tmp_path / "new"
    server = serve(home, "messaging.max_block=0.1")
    client = server.client()
    topic = Topic(client, "one", "orders")
    ok(topic.create())
    tx = begin(client)
    of_orders = [entry(topic, "first", "second")]
    ok(client.post(f"{tx.path}/prepare", {"publish": of_orders, "database": "shop"}))
    ok(topic.publish("behind"))
    listed = f"{TRANSACTIONS}/prepared"
    until(
        lambda: not ok(client.get(listed)).json["prepared"][0]["blocksReaders"],
        what="the messages to be set aside",
    )
    server.end()
    aside = shutil.copytree(home / "data" / "messages", tmp_path / "messages")
    server = serve(home)
    ok(server.client().post(f"{tx.path}/resolve", {"outcome": "commit"}))
    server.end()
    shutil.rmtree(home / "data" / "messages")
    aside.rename(home / "data" / "messages")

    account, _ = salvaged(home / "data", new / "data")

    assert f"transaction {tx.id}" in [each.location for each in account.decided]
    server = serve(new)
    orders = Topic(server.client(), "one", "orders")
    expected = ["behind", "first", "second"]
    until(lambda: orders.committed() == expected, what="the messages to return")
    server.end()
