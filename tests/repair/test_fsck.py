"""`tuff fsck` finds every damage that can be proven, and finds none where there is none."""

import subprocess
from pathlib import Path

import plyvel
import pytest

from process.checks import Data
from tests.cli.command import tuff_command
from tests.http.calls import Topic, begin
from tests.http.client import ok
from tests.http.process import serve
from tests.repair.files import Past, flipped, found_in, sample, stored_files
from tuff.disk.leveldb_log import masked_crc32c
from tuff.disk.lock import DirectoryLock
from tx.files import FileKind, known_file, list_files


def fsck(directory: Path) -> subprocess.CompletedProcess[str]:
    return tuff_command("fsck", directory)


def vouched_lengths(directory: Path) -> dict[str, int]:
    """How many bytes of each log count, where a later one says it: the rest is in no record."""
    files = [known_file(path, kind) for path, kind in list_files(directory)]
    names = {known.header.sequence: known.path.name for known in files}
    return {
        names[known.header.previous_sequence]: known.header.previous_length
        for known in files
        if known.kind is FileKind.LOG and known.header.previous_sequence in names
    }


def test_the_checksum_is_the_one_of_the_standard() -> None:
    # RFC 3720 gives CRC-32C of these as e3069283; LevelDB turns it by 15 bits and adds a number.
    assert masked_crc32c(b"123456789") == 0xC78AB0E5


def test_nothing_is_found_in_what_a_server_left_behind(data: Path) -> None:
    done = fsck(data)

    assert found_in(data) == []
    assert (done.returncode, done.stdout) == (0, "")
    assert "damages 0" in done.stderr


def test_nothing_is_found_in_what_a_killed_server_left_behind(tmp_path: Path) -> None:
    server = serve(tmp_path)
    client = server.client()
    topic = Topic(client, "default", "t1")
    ok(topic.create())
    tx = begin(client)
    for payload in ("a", "b" * 100_000, "c"):
        ok(topic.publish(payload))
        ok(topic.publish(payload, tx=tx.id))
    server.kill()

    assert [finding for finding in found_in(server.data) if finding.is_damage] == []


def test_it_changes_nothing(data: Path) -> None:
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}

    fsck(data)

    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before


def assert_found(data: Path, count: int) -> None:
    lengths = vouched_lengths(data / "snapshots")
    for path in stored_files(data):
        length = lengths.get(path.name, path.stat().st_size)
        for at in sample(length, count=count):
            with flipped(path, at):
                findings = found_in(data)
            assert findings, f"{path.name} at byte {at}"
            assert any(path.name in f.place for f in findings), f"{path.name} {at}: {findings}"


def test_a_flipped_byte_is_found_with_its_file(data: Path) -> None:
    assert_found(data, count=6)


@pytest.mark.slow
def test_every_flipped_byte_is_found(data: Path) -> None:
    assert_found(data, count=150)


@pytest.mark.slow
def test_a_cut_file_is_found(data: Path) -> None:
    lengths = vouched_lengths(data / "snapshots")
    for path in stored_files(data):
        whole = path.read_bytes()
        for length in (0, len(whole) // 2, lengths.get(path.name, len(whole)) - 1):
            path.write_bytes(whole[:length])

            assert found_in(data), f"{path.name} cut to {length} bytes"
        path.write_bytes(whole)


def test_a_removed_file_is_found(data: Path) -> None:
    needless = min(list_files(data / "snapshots"), key=lambda f: known_file(*f).header.sequence)[0]
    for path in stored_files(data):
        whole = path.read_bytes()
        path.unlink()
        # Who restores one snapshot of many can't know of an older one.
        assert found_in(data) or path.name.startswith("snapshot.") or path == needless, path.name
        path.write_bytes(whole)


def test_a_damaged_row_is_found_behind_a_whole_block(data: Path) -> None:
    database = plyvel.DB(str(data / "messages"), compression=None)
    [key] = [key for key, value in database if value.endswith(b"behind it") and b"one" in key]
    database.put(key, database.get(key)[:-1] + b"?")
    database.close()

    [finding] = found_in(data)

    assert finding.place == f"message row {key[1:].hex()}"
    assert finding.reason == "the checksum does not match"


@pytest.mark.parametrize("table", ["t", "p", "i", "s"])
def test_rows_that_others_speak_of_are_missed(data: Path, table: str) -> None:
    database = plyvel.DB(str(data / "messages"), compression=None)
    for key in database.iterator(prefix=table.encode(), include_value=False):
        database.delete(key)
    database.close()

    reasons = " ".join(finding.reason for finding in found_in(data))

    expected = {
        "t": "no topic row",
        "p": "stored messages, and 0 are there",
        "i": "",  # rows without index rows are those of settled transactions
        "s": "it is missing",
    }
    assert expected[table] in reasons


def test_snapshots_beside_the_data_are_found_and_named(data: Path, tmp_path: Path) -> None:
    (data / "snapshots").rename(tmp_path / "snapshots")

    done = fsck(data)

    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.endswith(f"damages 0, snapshots {tmp_path / 'snapshots'}\n")


def test_what_lies_beside_data_that_has_its_own_is_not_looked_at(past: Past, data: Path) -> None:
    (data.parent / "snapshots").mkdir()
    (data.parent / "snapshots" / "txlog.1").write_text("of somebody else")

    assert (fsck(data).returncode, Data.found(data, None)) == (0, Data.below(data, None))


def test_who_forgot_where_the_snapshots_are_is_reminded(data: Path, tmp_path: Path) -> None:
    (data / "snapshots").rename(tmp_path / "elsewhere")

    [finding] = found_in(data)

    assert "name it with --snapshots" in finding.reason


def test_files_of_two_ages_are_found(past: Past, data: Path, tmp_path: Path) -> None:
    old = past.copy(tmp_path / "old")
    server = serve(tmp_path)
    server.end()
    for path, _ in list_files(data / "snapshots"):
        path.unlink()
    for path, _ in list_files(old / "snapshots"):
        path.rename(data / "snapshots" / path.name)

    [finding] = found_in(data)

    assert "are older" in finding.reason


def test_a_directory_in_use_is_refused(data: Path) -> None:
    lock = DirectoryLock(data)

    done = fsck(data)

    lock.close()
    assert done.returncode == 2
    assert "is in use by process" in done.stderr


def test_a_directory_without_data_is_refused(tmp_path: Path) -> None:
    done = fsck(tmp_path)

    assert done.returncode == 2
    assert "there is no data in" in done.stderr
