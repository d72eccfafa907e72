"""docs/formats.md is what the server writes: each worked example, both ways."""

import json
import os
import re
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from messaging.log.store_end import StoreEnd
from tests.formats import examples
from tests.formats.examples import PAGE, Example, plain, read_examples
from tests.formats.message_rows import read_row
from tests.formats.metadata_entries import read_entry
from tests.formats.observer_files import read_region, read_state
from tests.formats.transaction_files import (
    DamagedError,
    read_archive,
    read_beginning,
    read_edit,
    read_frame,
    read_lock,
    read_log,
    read_proof,
    read_snapshot,
)
from tuff.protocol.ids import Offset
from tuff_storage.disk.backup_archive import ArchiveError, read_parts
from tuff_storage.disk.locks import LOCK_FILE, DirectoryLock
from tuff_storage.disk.records import pack_frame
from tx.file_headers import DamagedFilesError
from tx.log_records import encode_edit
from tx.snapshot_file import pack_snapshot
from tx.snapshot_file import read_snapshot as server_read_snapshot
from tx.wal import pack_proof
from tx.wal import read_log as server_read_log

GOLDEN = Path(__file__).parent.parent / "golden"
FRAME_HEAD_SIZE = 8  # bytes of length and CRC
EXAMPLES = read_examples(PAGE.read_text("utf-8"))


def named(pattern: str) -> list[Any]:
    found = [pytest.param(each, id=each.name) for each in EXAMPLES if re.match(pattern, each.name)]
    assert found, f"the page has no example like {pattern}"
    return found


def decode(example: Example) -> Any:
    """What the independent reader makes of an example's bytes."""
    if "value" in example.parts:
        return read_row(example.parts["key"], example.parts["value"])
    if "body" in example.parts:
        read = read_proof if example.name == "proof" else read_edit
        return read(example.parts["body"])
    readers: Mapping[str, Callable[[bytes], Any]] = {
        "lock-file": read_lock,
        "frame": lambda data: {"body": (read_frame(data, 0) or (b"",))[0]},
        "file-header": lambda data: read_beginning(data)[0],
        "messages-end": lambda data: json.loads((read_frame(data, 0) or (b"",))[0]),
        "log": read_log,
        "snapshot": read_snapshot,
        "snapshot-of-jobs": read_snapshot,
        "snapshot-of-prepared": read_snapshot,
        "snapshot-of-principals": read_snapshot,
        "snapshot-of-requests": read_snapshot,
        "snapshot-in-doubt": read_snapshot,
        "archive": read_archive,
        "retention-state": read_state,
        "region-record": read_region,
        "metadata-entry": read_entry,
        "metadata-tombstone": read_entry,
    }
    return readers[example.name](example.parts["bytes"])


@pytest.mark.parametrize("example", named(""))
def test_the_independent_reader_decodes_the_examples_of_the_page(example: Example) -> None:
    assert plain(decode(example)) == example.means


def encode(example: Example) -> Mapping[str, bytes]:
    """The bytes that the server's own code makes of what an example means."""
    means = example.means
    if "value" in example.parts:
        key, value = (examples.packed if means["table"] == "packed" else examples.row)(means)
        return {"key": key, "value": value}
    if example.name.startswith("edit-"):
        return {"body": encode_edit(means["lsn"], examples.edit(means))}
    writers: Mapping[str, Callable[[], bytes]] = {
        "proof": lambda: pack_proof(**means),
        "frame": lambda: pack_frame(means["body"].encode()),
        "messages-end": lambda: StoreEnd(**means | {"last": Offset(*means["last"])}).to_bytes(),
        "file-header": lambda: examples.file_header(means),
        "archive": lambda: examples.archive(means),
        "metadata-entry": lambda: examples.metadata_entry(means),
        "metadata-tombstone": lambda: examples.metadata_entry(means),
    }
    data = writers[example.name]()
    return {"bytes": data} if example.name != "proof" else {"body": data[FRAME_HEAD_SIZE:]}


@pytest.mark.parametrize(
    "example", named(".*-row|edit-|proof|frame|file-header|archive|metadata-|messages-end")
)
def test_the_server_writes_the_bytes_of_the_page(example: Example) -> None:
    assert encode(example) == example.parts


def test_the_page_has_an_example_of_every_edit() -> None:
    tags = [example.parts["body"][2] for example in EXAMPLES if example.name.startswith("edit-")]

    assert tags == list(range(1, 22))


@pytest.mark.parametrize("example", named("log"))
def test_the_server_writes_and_reads_the_log_of_the_page(example: Example) -> None:
    data, means = example.parts["bytes"], example.means

    read = server_read_log("txlog.1", data)

    assert examples.log(means, torn=data[means["length"] :]) == data
    assert (read.length, read.cut_bytes) == (means["length"], means["torn_bytes"])


@pytest.mark.parametrize("example", named("snapshot"))
def test_the_server_reads_and_writes_the_snapshot_of_the_page(example: Example) -> None:
    data, means = example.parts["bytes"], example.means

    header, image = server_read_snapshot("snapshot.1", data)

    assert pack_snapshot(header, image) == data
    assert [list(opened.transaction.in_progress) for opened in image.open] == [
        opened["in_progress"] for opened in means["open"]
    ]
    assert list(image.view.invalid) == means["view"]["invalid"]


@pytest.mark.parametrize("example", named("archive"))
def test_a_corrupt_archive_is_refused_by_the_page_and_by_the_server(example: Example) -> None:
    data = example.parts["bytes"]
    spoilt = [data[:length] for length in range(len(data))]
    spoilt += [data[:at] + bytes((data[at] ^ 4,)) + data[at + 1 :] for at in range(len(data))]

    for each in (*spoilt, data + b"\x00"):
        with pytest.raises(DamagedError):
            read_archive(each)
        with pytest.raises(ArchiveError):
            list(read_parts(BytesIO(each)))


@pytest.mark.parametrize(
    ("name", "file"),
    [("retention-state", "retention-state.hex"), ("region-record", "region-record.hex")],
)
def test_the_state_and_the_record_of_observers_are_those_of_the_page(name: str, file: str) -> None:
    """Tests of the server write the one, tests of the observer the other; both read both."""
    example = next(each for each in EXAMPLES if each.name == name)

    assert example.parts["bytes"].hex() == (GOLDEN / file).read_text().strip()


def test_the_lock_file_contains_the_example_of_the_page(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    held = (tmp_path / LOCK_FILE).read_bytes()
    lock.close()

    assert read_lock(held) == {"pid": os.getpid()}
    assert held == f"{os.getpid()}\n".encode()


def verdicts(data: bytes) -> tuple[object, object]:
    """How the independent reader and the server judge the bytes of a newest log."""
    try:
        means = read_log(data)
        mine: object = (means["length"], means["torn_bytes"], [e["lsn"] for e in means["edits"]])
    except DamagedError:
        mine = "damage"
    try:
        read = server_read_log("txlog.1", data)
        theirs: object = (read.length, read.cut_bytes, [lsn for lsn, _ in read.edits])
    except DamagedFilesError:
        theirs = "damage"
    return mine, theirs


@pytest.mark.parametrize("example", named("log"))
def test_the_page_and_the_server_agree_on_a_log_cut_at_any_byte(
    example: Example,
) -> None:
    data = example.parts["bytes"]

    judged = [verdicts(data[:length]) for length in range(len(data))]

    assert [mine for mine, _ in judged] == [theirs for _, theirs in judged]
    assert {type(mine) for mine, _ in judged} == {str, tuple}


@pytest.mark.parametrize("example", named("log"))
def test_the_page_and_the_server_agree_on_a_log_with_any_flipped_bit(
    example: Example,
) -> None:
    data = example.parts["bytes"]
    judged = []
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        judged.append(verdicts(bytes(flipped)))

    assert [mine for mine, _ in judged] == [theirs for _, theirs in judged]
    assert {type(mine) for mine, _ in judged} == {str, tuple}
