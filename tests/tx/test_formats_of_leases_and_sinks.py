"""The bytes of leases and sinks in edits and snapshots."""

import json
from pathlib import Path

import pytest

from admin.inspect_files import snapshot_lines
from tests.formats.transaction_files import read_edit
from tests.formats.transaction_files import read_snapshot as stranger_reads_snapshot
from tests.tx.service import NOW_MS, STORE_ID
from tuff.protocol.transaction import TransactionType
from tx.file_headers import (
    DamagedFilesError,
    FileHeader,
    FileKind,
    NewerFilesError,
    pack_header,
    read_header,
)
from tx.log_records import (
    BlockReserved,
    Committed,
    Edit,
    EpochBegun,
    Invalidated,
    InvalidReason,
    PointerRange,
    SinkForgotten,
    Started,
    decode_edit,
    encode_edit,
)
from tx.snapshot_file import pack_snapshot, read_snapshot
from tx.state import StateImage, TransactionState, fresh_image

GOLDEN = Path(__file__).with_name("golden-jobs.json")
P = NOW_MS * 1_000_000
LONG, DAY_MS = TransactionType.LONG, 86_400_000

EDITS: list[Edit] = [
    BlockReserved(NOW_MS, PointerRange(P + 1, P + 65)),
    Started(NOW_MS, P + 1, LONG, DAY_MS, NOW_MS + DAY_MS, "étl", 1, 60_000),
    Started(NOW_MS, P + 2, LONG, DAY_MS, NOW_MS + DAY_MS, "job", 1, 1),
    Invalidated(NOW_MS + 1, P + 2, InvalidReason.LEASE_EXPIRED, ("ns:t",)),
    EpochBegun(NOW_MS, P + 3, DAY_MS, NOW_MS + DAY_MS, "job", 1, None, "a/b", 6, "run-1"),
    Committed(NOW_MS + 2, P + 3, frozenset(), False, (), ("ns:t",), None),
    EpochBegun(NOW_MS + 2, P + 4, DAY_MS, NOW_MS + DAY_MS, "job", 6, 60_000, "a/b", 7, "rün-2"),
    EpochBegun(NOW_MS + 2, P + 5, DAY_MS, NOW_MS + DAY_MS, "job", 6, 1, "lost", 0, "r"),
    Invalidated(NOW_MS + 3, P + 5, InvalidReason.LEASE_EXPIRED, ()),
    EpochBegun(NOW_MS + 3, P + 6, DAY_MS, NOW_MS + DAY_MS, "job", 6, None, "gone", 1, "r"),
    Committed(NOW_MS + 3, P + 6, frozenset(), False, (), (), None),
    SinkForgotten(NOW_MS + 4, "gone"),
]
HEADER = FileHeader(sequence=3, store_id=STORE_ID, created_ms=NOW_MS, lsn=len(EDITS))


def image(edits: list[Edit] = EDITS) -> StateImage:
    state = TransactionState(fresh_image(now_ms=NOW_MS))
    for lsn, edit in enumerate(edits, 1):
        state.apply(lsn, edit)
    return state.image()


def golden() -> dict[str, object]:
    return {
        "edits": [encode_edit(lsn, edit).hex() for lsn, edit in enumerate(EDITS, 1)],
        "snapshot": pack_snapshot(HEADER, image()).hex(),
    }


def test_every_format_has_the_bytes_it_was_published_with() -> None:
    assert golden() == json.loads(GOLDEN.read_text("utf-8"))


def test_what_is_read_is_what_was_written() -> None:
    assert [decode_edit(encode_edit(7, edit)) for edit in EDITS] == [(7, edit) for edit in EDITS]
    assert read_snapshot("snapshot.1", pack_snapshot(HEADER, image())) == (HEADER, image())


def test_a_stranger_reads_the_golden_bytes() -> None:
    told = json.loads(GOLDEN.read_text("utf-8"))

    edits = [read_edit(bytes.fromhex(each)) for each in told["edits"]]
    snapshot = stranger_reads_snapshot(bytes.fromhex(told["snapshot"]))

    leased = [each["lease_ms"] for each in edits if "lease_ms" in each]
    assert leased == [60_000, 1, None, 60_000, 1, None]
    assert [(each["client"], each.get("lease_ms")) for each in snapshot["open"]] == [
        ("étl", 60_000), ("job", 60_000),
    ]  # fmt: skip
    assert snapshot["outcomes"][0]["reason"] == "lease_expired"
    told_sinks = [
        (each["name"], each["epoch"], each["run_id"], each["state"], each["fenced"])
        for each in snapshot["sinks"]
    ]
    assert told_sinks == [
        ("a/b", 7, "rün-2", None, ["run-1"]), ("lost", 0, "r", "invalid", []),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", FileKind)
@pytest.mark.parametrize("version", [0, 6])
def test_a_file_of_another_version_is_refused(kind: FileKind, version: int) -> None:
    data = bytearray(pack_header(kind, HEADER))
    data[8:10] = version.to_bytes(2, "big")

    error = NewerFilesError if version > 1 else DamagedFilesError
    with pytest.raises(error, match=f"format {version}"):
        read_header("a file", kind, bytes(data))


def test_people_are_shown_leases_and_sinks(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.1"
    path.write_bytes(pack_snapshot(HEADER, image()))

    rows = list(snapshot_lines(path))

    assert [row["lease_ms"] for row in rows if row["kind"] == "open"] == [60_000, 60_000]
    (first, _) = [row for row in rows if row["kind"] == "sink"]
    assert (first["name"], first["epoch"], first["fenced"]) == ("a/b", 7, ["run-1"])
    assert first["transaction_id"] == str(P + 4)
