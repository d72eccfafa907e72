"""`tuff fsck` finds every provable corruption, and nothing in intact data."""

import subprocess
from mmap import ACCESS_READ, mmap
from pathlib import Path

import pytest

from admin.data_directory import DataDirectory
from tests.admin.files import Past, flipped, found_in, sample, stored_files
from tests.cli.command import tuff_command
from tests.http.calls import begin, created
from tests.http.client import ok
from tests.http.process import serve
from tuff_storage.leveldb.crc32c import crc32c
from tuff_storage.leveldb.engine import plyvel
from tuff_storage.leveldb.log import masked_crc32c
from tx.file_headers import FileKind, known_file, list_files


def fsck(directory: Path) -> subprocess.CompletedProcess[str]:
    return tuff_command("fsck", directory)


def vouched_lengths(directory: Path) -> dict[str, int]:
    """The length of each log that a later log vouches for; bytes after it are in no record."""
    files = [known_file(path, kind) for path, kind in list_files(directory)]
    names = {known.header.sequence: known.path.name for known in files}
    return {
        names[known.header.previous_sequence]: known.header.previous_length
        for known in files
        if known.kind is FileKind.LOG and known.header.previous_sequence in names
    }


def test_the_checksum_of_a_memory_map_is_that_of_its_bytes(tmp_path: Path) -> None:
    data = bytes(range(256)) * 10_000
    (tmp_path / "file").write_bytes(data)

    with (
        (tmp_path / "file").open("rb") as file,
        mmap(file.fileno(), 0, access=ACCESS_READ) as mapped,
    ):
        assert crc32c(mapped) == crc32c(data)


def test_the_checksum_of_leveldb_is_crc32c() -> None:
    # RFC 3720 gives CRC-32C of these as e3069283; LevelDB turns it by 15 bits and adds a number.
    assert masked_crc32c(b"123456789") == 0xC78AB0E5


def test_a_stopped_server_leaves_no_findings(data: Path) -> None:
    done = fsck(data)

    assert found_in(data) == []
    assert (done.returncode, done.stdout) == (0, "")
    assert "damages 0" in done.stderr


def test_a_killed_server_leaves_no_corruption(tmp_path: Path) -> None:
    server = serve(tmp_path)
    client = server.client()
    topic = created(client, "default", "t1")
    tx = begin(client)
    for payload in ("a", "b" * 100_000, "c"):
        ok(topic.publish(payload))
        ok(topic.publish(payload, tx=tx.id))
    server.kill()

    assert [finding for finding in found_in(server.data) if finding.is_corruption] == []


def test_fsck_changes_nothing(data: Path) -> None:
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
            assert any(path.name in f.location for f in findings), f"{path.name} {at}: {findings}"


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
        # No other file refers to an older snapshot, to the oldest log, or to the end of messages.
        is_unnamed = path == needless or path.name.startswith(("snapshot.", "messages-end"))
        assert found_in(data) or is_unnamed, path.name
        path.write_bytes(whole)


def test_a_corrupt_row_in_an_intact_block_is_found(data: Path) -> None:
    database = plyvel.DB(str(data / "messages"), compression=None)
    [key] = [key for key, value in database if value.endswith(b"behind it") and b"one" in key]
    database.put(key, database.get(key)[:-1] + b"?")
    database.close()

    [finding] = found_in(data)

    assert finding.location == f"message row {key[1:].hex()}"
    assert finding.reason == "the checksum does not match"


@pytest.mark.parametrize("table", ["t", "p", "i", "s"])
def test_missing_rows_are_found_by_the_rows_that_refer_to_them(data: Path, table: str) -> None:
    database = plyvel.DB(str(data / "messages"), compression=None)
    for key in database.iterator(prefix=table.encode(), include_value=False):
        database.delete(key)
    database.close()

    reasons = " ".join(finding.reason for finding in found_in(data))

    expected = {
        "t": "no topic row",
        "p": "stored messages, and 0 of them exist",
        "i": "",  # rows without index rows are those of settled transactions
        "s": "it is missing",
    }
    assert expected[table] in reasons


def test_snapshots_beside_the_data_are_located_and_named(data: Path, tmp_path: Path) -> None:
    (data / "snapshots").rename(tmp_path / "snapshots")

    done = fsck(data)

    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.endswith(f"damages 0, snapshots {tmp_path / 'snapshots'}\n")


def test_snapshots_beside_data_that_has_its_own_are_ignored(past: Past, data: Path) -> None:
    (data.parent / "snapshots").mkdir()
    (data.parent / "snapshots" / "txlog.1").write_text("of another server")

    assert (fsck(data).returncode, DataDirectory.locate(data, None)) == (0, DataDirectory.of(data))


def test_missing_snapshots_advise_the_flag_that_names_them(data: Path, tmp_path: Path) -> None:
    (data / "snapshots").rename(tmp_path / "elsewhere")

    [finding] = found_in(data)

    assert "name it with --snapshots" in finding.reason
