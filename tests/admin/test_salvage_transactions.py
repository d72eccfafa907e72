"""Edits after corruption in a transaction log are still used."""

from dataclasses import replace
from pathlib import Path

from admin.salvage_transactions import (
    complete_state,
    prove_state,
)
from admin.transaction_files import write_transaction_files
from tuff.protocol.transaction import TransactionType
from tx.file_headers import FileHeader, FileKind, pack_header
from tx.log_records import (
    BlockReserved,
    Committed,
    Edit,
    EpochBegun,
    InvalidReason,
    PointerRange,
    SinkForgotten,
    Started,
    StoreJoined,
)
from tx.outcomes import EndedState
from tx.recovery import recover
from tx.snapshot_file import write_snapshot
from tx.state import TransactionState, fresh_image
from tx.wal import pack_edits, pack_proof

STORE_ID = "0f" * 16
CUT_OFF, PROVEN = 1_000_001, 1_000_002


def started(pointer: int) -> Started:
    return Started(1, pointer, TransactionType.SHORT, 30_000, 30_001, "c", 1)


def committed(pointer: int) -> Committed:
    return Committed(2, pointer, frozenset({b"k%d" % pointer}), False, (), (), None)


BATCHES: list[list[Edit]] = [
    [BlockReserved(1, PointerRange(1_000_001, 1_000_065)), started(CUT_OFF), started(PROVEN)],
    [committed(CUT_OFF)],
    [committed(PROVEN)],
]


def log_with_a_corrupt_length(directory: Path, batches: list[list[Edit]] = BATCHES) -> None:
    """Three batches; the length of the second one's edit is corrupt."""
    first = FileHeader(sequence=1, store_id=STORE_ID, created_ms=1, lsn=0)
    write_snapshot(directory, first, fresh_image(now_ms=1))
    header = FileHeader(sequence=2, store_id=STORE_ID, created_ms=1, lsn=1)
    data, lsn = bytearray(pack_header(FileKind.LOG, header)), 1
    starts = []
    for batch in batches:
        data += pack_proof(STORE_ID, offset=len(data), length=len(data))
        starts.append(len(data))
        data += pack_edits(enumerate(batch, lsn))
        lsn += len(batch)
    data[starts[1] + 3] ^= 0x40
    (directory / "txlog.1").write_bytes(data)


def test_a_commit_after_the_corruption_counts_and_one_inside_does_not(tmp_path: Path) -> None:
    log_with_a_corrupt_length(tmp_path)

    proven = prove_state(tmp_path, None)
    image = complete_state(proven, now_ms=5)

    assert not proven.is_complete
    outcomes = {each.transaction_id: (each.state, each.reason) for each in image.outcomes}
    assert outcomes == {
        CUT_OFF: (EndedState.INVALID, InvalidReason.LOST_IN_CRASH),
        PROVEN: (EndedState.COMMITTED, None),
    }
    assert CUT_OFF in image.view.invalid
    assert PROVEN not in image.view.invalid


def test_rows_that_prove_a_commit_decide_what_was_cut_off(tmp_path: Path) -> None:
    log_with_a_corrupt_length(tmp_path)

    proven = prove_state(tmp_path, None)
    image = complete_state(proven, committed={CUT_OFF}, now_ms=5)

    assert {each.state for each in image.outcomes} == {EndedState.COMMITTED}


def test_a_server_recovers_from_what_is_written(tmp_path: Path) -> None:
    log_with_a_corrupt_length(tmp_path)
    image = complete_state(
        prove_state(tmp_path, None), hidden={77}, highest_pointer=2_000_000, now_ms=5
    )

    write_transaction_files(tmp_path / "new", image, store_id=STORE_ID, now_ms=5)

    recovered = recover(tmp_path / "new", None)
    assert recovered is not None
    assert recovered.state.image() == TransactionState(image).image()
    assert recovered.state.last_pointer > 2_000_000
    assert recovered.state.view.read_pointer == recovered.state.last_pointer
    assert 77 in recovered.state.view.invalid


def begun(pointer: int, sink: str, epoch: int) -> EpochBegun:
    return EpochBegun(1, pointer, 30_000, 30_001, "c", 1, 60_000, sink, epoch, f"run-{epoch}")


def test_a_sink_keeps_its_proven_epoch_and_the_doubt_is_reported(tmp_path: Path) -> None:
    batches: list[list[Edit]] = [
        [
            BlockReserved(1, PointerRange(1_000_001, 1_000_065)),
            begun(CUT_OFF, "cut-off", 4), begun(PROVEN, "proven", 7),
        ],
        [committed(CUT_OFF)],
        [committed(PROVEN), begun(1_000_003, "behind", 1), SinkForgotten(2, "lost")],
    ]  # fmt: skip
    log_with_a_corrupt_length(tmp_path, batches)

    proven = prove_state(tmp_path, None)
    image = complete_state(proven, now_ms=5)

    assert {(sink.name, sink.epoch, sink.state, sink.reason) for sink in image.sinks} == {
        ("cut-off", 4, EndedState.INVALID, InvalidReason.LOST_IN_CRASH),
        ("proven", 7, EndedState.COMMITTED, None),
        ("behind", 1, EndedState.INVALID, InvalidReason.LOST_IN_CRASH),
    }
    told = {each.location for each in proven.decided if each.location.startswith("sink ")}
    assert told == {"sink cut-off", "sink proven", "sink behind"}
    assert not image.open


def test_rows_that_prove_the_commit_of_an_epoch_keep_it_from_being_written_twice(
    tmp_path: Path,
) -> None:
    batches: list[list[Edit]] = [
        [BlockReserved(1, PointerRange(1_000_001, 1_000_065)), begun(CUT_OFF, "s", 4)],
        [committed(CUT_OFF)],
        [SinkForgotten(2, "lost")],
    ]
    log_with_a_corrupt_length(tmp_path, batches)

    image = complete_state(prove_state(tmp_path, None), committed={CUT_OFF}, now_ms=5)

    assert [(sink.epoch, sink.state) for sink in image.sinks] == [(4, EndedState.COMMITTED)]


def test_a_transaction_whose_join_may_be_lost_is_not_one_of_messages_only(tmp_path: Path) -> None:
    """It would be pruned, and what the other store keeps under its pointer would be visible."""
    batches: list[list[Edit]] = [
        [
            BlockReserved(1, PointerRange(1_000_001, 1_000_065)),
            replace(started(CUT_OFF), is_messages_only=True),
        ],
        [StoreJoined(2, CUT_OFF)],
        [replace(started(PROVEN), is_messages_only=True)],
    ]
    log_with_a_corrupt_length(tmp_path, batches)

    image = complete_state(prove_state(tmp_path, None), now_ms=3)

    assert image.prunable == ()
    assert {CUT_OFF, PROVEN} <= set(image.view.invalid)
