"""The bytes of edits, logs and snapshots; a golden file that changes needs a new format version."""

import json
from contextlib import suppress
from pathlib import Path

import pytest

from tests.tx.service import NOW_MS, STORE_ID
from tuff.protocol.ids import Offset
from tuff.protocol.requests import RollbackDetail
from tuff.protocol.transaction import TransactionType
from tx.conflicts import CommittedChanges
from tx.file_headers import DamagedFilesError, FileHeader, FileKind, pack_header, read_header
from tx.log_records import (
    Aborted,
    BlockReserved,
    BlockReturned,
    Checkpointed,
    Committed,
    Committing,
    Conflict,
    Edit,
    Invalidated,
    InvalidReason,
    MalformedError,
    PointerRange,
    Refused,
    Restarted,
    Started,
    Truncated,
    decode_edit,
    encode_edit,
    to_bytes,
)
from tx.snapshot_file import pack_snapshot, read_snapshot
from tx.state import StateImage, TransactionState, fresh_image
from tx.wal import DiskFile, create_log, pack_edits, pack_proof, proofs_behind, read_log

GOLDEN = Path(__file__).with_name("golden.json")
P = NOW_MS * 1_000_000

EDITS: list[Edit] = [
    BlockReserved(NOW_MS, PointerRange(P + 1, P + 65)),
    Started(NOW_MS, P + 1, TransactionType.SHORT, 30_000, NOW_MS + 30_000, "billing-7", 1),
    Started(NOW_MS, P + 2, TransactionType.LONG, 86_400_000, NOW_MS + 86_400_000, "é", 1),
    Checkpointed(NOW_MS, P + 1, P + 3),
    Committing(NOW_MS, P + 1, frozenset({b"b", b"a\xff"})),
    Committed(
        NOW_MS, P + 1, frozenset({b"c"}), False,
        (RollbackDetail(P + 3, Offset(NOW_MS, 5), Offset(NOW_MS, 6)),), ("ns:t",), "request",
    ),
    Invalidated(NOW_MS, P + 2, InvalidReason.BLOCKED_READERS, ("ns:t",)),
    Started(NOW_MS, P + 4, TransactionType.SHORT, 30_000, NOW_MS + 30_000, "c", 5),
    Refused(NOW_MS, P + 4, Conflict(b"a\xff", P + 1, "billing-7", 6)),
    Aborted(NOW_MS, P + 4, ()),
    Truncated(NOW_MS, (P + 2,)),
    Started(NOW_MS, P + 5, TransactionType.SHORT, 30_000, NOW_MS + 30_000, "c", 5),
    Restarted(NOW_MS, True, (PointerRange(P + 6, P + 8),)),
    BlockReturned(NOW_MS),
]  # fmt: skip
LOG_HEADER = FileHeader(
    sequence=2, store_id=STORE_ID, created_ms=NOW_MS, lsn=1, previous_sequence=0, previous_length=0
)


def log_bytes() -> bytes:
    """Two batches, and the proof of an idle log."""
    data = pack_header(FileKind.LOG, LOG_HEADER)
    numbered = list(enumerate(EDITS, 1))
    for batch in (numbered[:8], numbered[8:], []):
        data += pack_proof(STORE_ID, offset=len(data), length=len(data)) + pack_edits(batch)
    return data


def image() -> StateImage:
    state = TransactionState(fresh_image(now_ms=NOW_MS))
    for lsn, edit in enumerate(EDITS, 1):
        state.apply(lsn, edit)
    return state.image()


def snapshot_bytes() -> bytes:
    header = FileHeader(sequence=3, store_id=STORE_ID, created_ms=NOW_MS, lsn=len(EDITS))
    return pack_snapshot(header, image())


def golden() -> dict[str, object]:
    return {
        "edits": [encode_edit(lsn, edit).hex() for lsn, edit in enumerate(EDITS, 1)],
        "log": log_bytes().hex(),
        "snapshot": snapshot_bytes().hex(),
    }


def test_every_format_has_the_bytes_it_was_published_with() -> None:
    assert golden() == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: type(edit).__name__)
def test_an_edit_comes_back_as_it_was(edit: Edit) -> None:
    assert decode_edit(encode_edit(7, edit)) == (7, edit)


@pytest.mark.parametrize(
    "data",
    [
        [], [1], [1, 99, NOW_MS], [1, "2", NOW_MS], [1, 2], [1, 2, NOW_MS, 0], [1, 2, -1],
        [1, 2, True], [-1, 2, NOW_MS], [1, 4, NOW_MS, 1 << 63, 1], [1, 9, NOW_MS, 1, "why", []],
        [1, 5, NOW_MS, 1, ["text"]], [1, 5, NOW_MS, 1, [b"a", b"a"]], [1, 10, NOW_MS, [None]], {},
        [1, 3, NOW_MS, 1, "middle", 1, 1, "c", 1], None,
    ],
)  # fmt: skip
def test_what_is_no_edit_is_malformed(data: object) -> None:
    with pytest.raises(MalformedError):
        decode_edit(to_bytes(data))


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x91", b"\x90\x90", b"\xff" * 9])
def test_what_is_no_messagepack_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedError):
        decode_edit(body)


def test_a_log_comes_back_as_it_was() -> None:
    contents = read_log("txlog.1", log_bytes())

    assert contents.header == LOG_HEADER
    assert contents.edits == list(enumerate(EDITS, 1))
    assert (contents.length, contents.cut_bytes) == (len(log_bytes()), 0)


def unproven_log() -> tuple[bytes, int]:
    """A log whose second batch nothing vouches for, and where that batch starts."""
    data = pack_header(FileKind.LOG, LOG_HEADER)
    data += pack_proof(STORE_ID, offset=len(data), length=len(data))
    data += pack_edits(list(enumerate(EDITS, 1))[:8])
    proven = len(data)
    data += pack_proof(STORE_ID, offset=proven, length=proven)
    return data + pack_edits(list(enumerate(EDITS, 1))[8:]), proven


def test_a_tail_torn_at_any_byte_is_cut_and_loses_nothing_that_was_proven() -> None:
    data, proven = unproven_log()
    for size in range(proven, len(data)):
        contents = read_log("txlog.1", data[:size])

        assert contents.edits == list(enumerate(EDITS, 1))[: len(contents.edits)]
        assert len(contents.edits) >= 8
        assert contents.length + contents.cut_bytes == size


def test_a_tail_of_zeros_or_rubbish_is_cut() -> None:
    data, _ = unproven_log()
    for tail in (
        b"\0" * 4096,
        b"\xff" * 100,
        b"TUFFMARK" * 10,
        pack_proof(STORE_ID, offset=1, length=1)[:-1],
    ):
        contents = read_log("txlog.1", data + tail)

        assert (len(contents.edits), contents.cut_bytes) == (len(EDITS), len(tail))


def test_a_bit_flipped_anywhere_in_what_was_proven_is_damage() -> None:
    data = log_bytes()
    last_proof = len(data) - 48
    for at in range(last_proof):
        flipped = bytearray(data)
        flipped[at] ^= 0x10

        with pytest.raises(DamagedFilesError, match=r"txlog\.1"):
            read_log("txlog.1", bytes(flipped))


def test_a_proof_inside_a_change_key_proves_nothing() -> None:
    data, _ = unproven_log()
    forged = pack_proof("ff" * 16, offset=len(data) + 100, length=len(data) + 100)
    edit = Committing(NOW_MS, P + 1, frozenset({forged}))
    torn = data + pack_edits([(len(EDITS) + 1, edit)])[:-1]

    assert read_log("txlog.1", torn).edits == list(enumerate(EDITS, 1))


@pytest.mark.parametrize(
    ("stored_id", "moved", "beyond"), [("ff" * 16, 0, 0), (STORE_ID, 1, 0), (STORE_ID, 0, 1)]
)
def test_a_proof_that_is_not_of_its_place_is_damage(
    stored_id: str, moved: int, beyond: int
) -> None:
    data, _ = unproven_log()
    offset = len(data) + moved
    data += pack_proof(stored_id, offset=offset, length=offset + beyond)

    with pytest.raises(DamagedFilesError, match=rf"damaged at byte {offset - moved}: "):
        read_log("txlog.1", data)


@pytest.mark.parametrize("size", [0, 5, 100, 300])
def test_a_log_that_ends_before_its_proven_length_is_damage(size: int) -> None:
    with pytest.raises(DamagedFilesError, match=f"at byte {size}: it ends before"):
        read_log("txlog.1", log_bytes()[:size], proven_length=len(log_bytes()))


def test_what_follows_the_proven_length_of_an_older_log_does_not_count() -> None:
    data, proven = unproven_log()

    contents = read_log("txlog.1", data, proven_length=proven)

    assert (len(contents.edits), contents.length) == (8, proven)


def test_an_edit_that_is_missing_is_damage() -> None:
    data = pack_header(FileKind.LOG, LOG_HEADER) + pack_edits([(1, EDITS[0]), (3, EDITS[2])])
    with pytest.raises(DamagedFilesError, match="edit 3 stands where edit 2 should"):
        read_log("txlog.1", data)


def test_a_snapshot_comes_back_as_it_was() -> None:
    header, found = read_snapshot("snapshot.1", snapshot_bytes())

    assert (header.sequence, header.lsn) == (3, len(EDITS))
    assert found == image()
    commit = CommittedChanges(6, P + 1, "billing-7", frozenset({b"a\xff", b"b", b"c"}))
    assert found.commits == (commit,)


def test_a_bit_flipped_or_a_cut_anywhere_in_a_snapshot_is_damage() -> None:
    data = snapshot_bytes()
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 0x10
        for bad in (bytes(flipped), data[:at]):
            with pytest.raises(DamagedFilesError, match=r"snapshot\.1"):
                read_snapshot("snapshot.1", bad)


def test_a_snapshot_has_the_format_of_its_content() -> None:
    """No checksum protects the format: a flipped bit made it another one that is known."""
    data = bytearray(snapshot_bytes())
    accepted = []
    for number in (1, 2, 3):
        data[9] = number
        with suppress(DamagedFilesError):
            read_snapshot("snapshot.1", bytes(data))
            accepted.append(number)

    assert accepted == [snapshot_bytes()[9]]


def test_a_file_of_another_format_or_kind_is_refused() -> None:
    data = bytearray(log_bytes())
    data[9] = 2
    with pytest.raises(DamagedFilesError, match="format 2"):
        read_header("txlog.1", FileKind.LOG, bytes(data))
    with pytest.raises(DamagedFilesError, match="does not start as a snapshot"):
        read_header("snapshot.1", FileKind.SNAPSHOT, log_bytes())


def test_a_log_says_up_to_where_it_is_proven(tmp_path: Path) -> None:
    data, proven = unproven_log()
    made = create_log(tmp_path / "txlog.1", LOG_HEADER, [(1, EDITS[0])], open_file=DiskFile)
    made.file.close()
    created = (tmp_path / "txlog.1").read_bytes()
    proof_size = len(pack_proof(STORE_ID, offset=0, length=0))

    assert read_log("txlog.1", data).proven_length == proven
    assert read_log("txlog.1", created).proven_length == len(created) - proof_size
    assert made.length == len(created)


def test_the_furthest_proof_behind_a_damage_counts() -> None:
    """An unsynced batch may follow: the next proof then vouches for less than the one after it."""
    data = pack_header(FileKind.LOG, LOG_HEADER)
    start = len(data)
    data += pack_edits([(1, EDITS[0])])
    data += pack_proof(STORE_ID, offset=len(data), length=start)
    data += pack_edits([(2, EDITS[1])])
    data += pack_proof(STORE_ID, offset=len(data), length=len(data))
    flipped = bytearray(data)
    flipped[start + 20] ^= 0x10

    with pytest.raises(DamagedFilesError, match=f"at byte {start}: the record's checksum"):
        read_log("txlog.1", bytes(flipped))


def test_a_mark_at_the_very_beginning_is_no_proof() -> None:
    proof = pack_proof(STORE_ID, offset=0, length=0)

    assert list(proofs_behind(proof[2:] + bytes(3), 0)) == []
    assert len(list(proofs_behind(proof, 0))) == 1


def test_a_proof_that_stands_elsewhere_than_it_says_proves_nothing() -> None:
    proof = pack_proof(STORE_ID, offset=0, length=0)

    in_its_place = [frame.start for frame in proofs_behind(proof, 0)]
    moved = [frame.start for frame in proofs_behind(bytes(4) + proof, 0)]

    assert (in_its_place, moved) == ([0], [])
