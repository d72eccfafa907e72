"""The golden bytes of a snapshot, and all golden files by the independent reader.

Logs and edits are held by tests/tx/test_formats.py, rows by tests/messaging/test_row_format.py.
"""

import json
from pathlib import Path

import msgpack
import pytest

from messaging.log.rows_by_transaction import IndexedRange
from messaging.log.topics import TopicRecord
from messaging.model.row_format import (
    Hold,
    LastBatch,
    MessageRow,
    Position,
    StoreMetadata,
)
from tests.formats.message_rows import read_row
from tests.formats.replay import State, read_state
from tests.formats.transaction_files import read_edit, read_log, read_snapshot
from tests.messaging.test_row_format import GOLDEN as ROW_GOLDEN
from tests.messaging.test_row_format import ROWS, key_of
from tests.tx.test_formats import GOLDEN as TRANSACTION_GOLDEN
from tuff.protocol.ids import Offset
from tuff.protocol.pointer_list import POINTER_MAX, PointerList
from tuff.protocol.requests import RollbackDetail
from tuff.protocol.transaction import Transaction, TransactionType
from tx.conflicts import CommittedChanges
from tx.file_headers import FileHeader, FileKind, pack_header
from tx.log_records import Conflict, InvalidReason, PointerRange
from tx.mixed_backups import RecordedFiles
from tx.outcomes import EndedState, OpenTransaction, Outcome, PackedOutcomes
from tx.recovery import Recovered, recover
from tx.snapshot_file import pack_snapshot
from tx.snapshot_file import read_snapshot as server_read_snapshot
from tx.state import StateImage, View, ViewChange, fresh_image
from tx.wal import pack_proof

SNAPSHOT = Path(__file__).resolve().parents[1] / "golden" / "snapshot.hex"
TABLES = {
    MessageRow: "message", TopicRecord: "topic", IndexedRange: "index",
    LastBatch: "metadata", StoreMetadata: "metadata", Hold: "hold", Position: "position",
}  # fmt: skip
STORE_ID = "00112233445566778899aabbccddeeff"
MS = 1_480_000_000_000
P = MS * 1_000_000
SHORT, LONG = TransactionType.SHORT, TransactionType.LONG

PUBLISHED = (
    RollbackDetail(P + 7, Offset(MS, 5), Offset(MS + 1, 0)),
    RollbackDetail(P + 8, Offset(MS + 1, 1), Offset(MS + 1, 65_535)),
)
CONFLICT = Conflict(b"\x00\xff", P + 7, "billing", 14)
SNAPSHOT_HEADER = FileHeader(sequence=5, store_id=STORE_ID, created_ms=MS, lsn=20)
LOG_HEADER = FileHeader(
    sequence=4,
    store_id=STORE_ID,
    created_ms=MS,
    lsn=21,
    previous_sequence=2,
    previous_length=70_000,
)


def outcome(
    number: int, state: EndedState, *, lsn: int, reason: InvalidReason | None = None
) -> Outcome:
    return Outcome(
        transaction_id=P + number, state=state, reason=reason, type=SHORT, client="etl",
        started_at_ms=MS, expires_at_ms=MS + 30_000, ended_at_ms=MS + 1, checkpoints=(),
        published=(), topics=(), request_id=None, lsn=lsn,
    )  # fmt: skip


OUTCOMES = (
    outcome(1, EndedState.INVALID, reason=InvalidReason.TIMED_OUT, lsn=9),
    outcome(2, EndedState.INVALID, reason=InvalidReason.INVALIDATED, lsn=10),
    outcome(3, EndedState.INVALID, reason=InvalidReason.BLOCKED_READERS, lsn=11),
    outcome(4, EndedState.INVALID, reason=InvalidReason.ABORT_OF_LONG, lsn=12),
    outcome(5, EndedState.INVALID, reason=InvalidReason.LOST_IN_CRASH, lsn=13),
    Outcome(
        transaction_id=P + 7, state=EndedState.COMMITTED, reason=None, type=LONG, client="billing",
        started_at_ms=MS, expires_at_ms=MS + 86_400_000, ended_at_ms=MS + 5,
        checkpoints=(P + 8,), published=PUBLISHED, topics=("default:t1", "default:t2"),
        request_id="once", lsn=14,
    ),
    outcome(6, EndedState.ABORTED, lsn=15),
    outcome(22, EndedState.COMMITTED, lsn=20),
)  # fmt: skip
OPEN = (
    OpenTransaction(
        transaction=Transaction(
            transaction_id=P + 10, read_pointer=P + 8, write_pointer=P + 10,
            invalids=PointerList([P + 1, P + 2, P + 3, P + 4, P + 5, P + 9]),
            in_progress=PointerList(), first_short_in_progress=POINTER_MAX,
        ),
        seen=15, client="etl", timeout_ms=30_000, started_at_ms=MS, expires_at_ms=MS + 30_000,
        survived_crash=True,
    ),
    OpenTransaction(
        transaction=Transaction(
            transaction_id=P + 20, read_pointer=P + 8, write_pointer=P + 21, type=LONG,
            invalids=PointerList([P + 1, P + 2, P + 3, P + 4, P + 5]),
            in_progress=PointerList([P + 10]), first_short_in_progress=P + 10,
            checkpoint_write_pointers=(P + 21,),
        ),
        seen=16, client="bïlling", timeout_ms=86_400_000, started_at_ms=MS,
        expires_at_ms=MS + 86_400_000, changes=frozenset({b"", b"b", b"a\x00"}),
        conflict=CONFLICT,
    ),
)  # fmt: skip
IMAGE = StateImage(
    lsn=20, seen=19, last_pointer=P + 22, highest_reserved=P + 63,
    blocks=(PointerRange(P + 23, P + 64),), is_clean=False,
    view=View(
        P + 8, PointerList([P + 10, P + 20, P + 21, P + 22]), PointerList([P + 10, P + 21, P + 22]),
        PointerList([P + 1, P + 2, P + 3, P + 4, P + 5]),
    ),
    pending=(
        (20, ViewChange(P + 22, EndedState.COMMITTED, ended=(P + 22,), read_pointer=P + 22)),
    ),
    open=OPEN, outcomes=PackedOutcomes(OUTCOMES),
    commits=(CommittedChanges(14, P + 7, "billing", frozenset({b"\x00\xff", b"k"})),),
)  # fmt: skip


def empty_log() -> bytes:
    """A log as the service makes it, to which nothing was added."""
    data = pack_header(FileKind.LOG, LOG_HEADER)
    return data + pack_proof(STORE_ID, offset=len(data), length=len(data))


def golden_of_transactions(name: str) -> bytes:
    """The golden log, or the snapshot of all its edits."""
    return bytes.fromhex(json.loads(TRANSACTION_GOLDEN.read_text("utf-8"))[name])


def beginning() -> bytes:
    """The snapshot that the golden log goes on from."""
    header = FileHeader(sequence=1, store_id=STORE_ID, created_ms=MS, lsn=0)
    return pack_snapshot(header, fresh_image(now_ms=MS))


def golden_snapshot() -> bytes:
    return bytes.fromhex(SNAPSHOT.read_text("ascii"))


def test_a_snapshot_is_written_as_the_golden_bytes() -> None:
    assert pack_snapshot(SNAPSHOT_HEADER, IMAGE).hex() == golden_snapshot().hex()


def test_the_golden_snapshot_is_read_as_the_same_values() -> None:
    assert server_read_snapshot("snapshot.1", golden_snapshot()) == (SNAPSHOT_HEADER, IMAGE)


def test_the_independent_reader_reads_the_golden_transaction_files() -> None:
    golden = json.loads(TRANSACTION_GOLDEN.read_text("utf-8"))

    read = read_log(bytes.fromhex(golden["log"]))

    assert [read_edit(bytes.fromhex(edit)) for edit in golden["edits"]] == read["edits"]
    assert len({edit["edit"] for edit in read["edits"]}) == 11
    assert read["torn_bytes"] == 0
    assert read_snapshot(bytes.fromhex(golden["snapshot"]))["numbers"]["lsn"] == len(read["edits"])


@pytest.mark.parametrize("name", ROWS)
def test_the_independent_reader_reads_the_golden_rows(name: str) -> None:
    row, golden = ROWS[name], json.loads(ROW_GOLDEN.read_text("utf-8"))

    found = read_row(key_of(name), bytes.fromhex(golden[name]))

    assert found["table"] == ("payload" if name.startswith("payload") else TABLES[type(row)])
    if isinstance(row, MessageRow):
        attributes = found["attributes"]
        if isinstance(attributes, dict):
            attributes = msgpack.packb([attributes[each] for each in ("key", "tags", "headers")])
        assert (found["ttl_s"], attributes) == (row.ttl_s, row.attributes)
        assert found["payload"] in {row.payload, None}


def test_the_independent_reader_replays_the_golden_log_to_the_state_of_the_server(
    tmp_path: Path,
) -> None:
    (tmp_path / "snapshot.1").write_bytes(beginning())
    (tmp_path / "txlog.1").write_bytes(golden_of_transactions("log"))

    mine = read_state(tmp_path)

    require_same(mine, recover(tmp_path, RecordedFiles(STORE_ID, P + 64)))
    assert mine.read_pointer == P + 4
    assert mine.in_progress == {P + 5}
    assert (mine.blocks, mine.highest_reserved, mine.is_clean) == ([], P + 64, True)


def test_the_independent_reader_reads_the_golden_snapshot_to_the_state_of_the_server(
    tmp_path: Path,
) -> None:
    (tmp_path / "snapshot.2").write_bytes(golden_snapshot())
    (tmp_path / "txlog.1").write_bytes(empty_log())

    mine = read_state(tmp_path)

    require_same(mine, recover(tmp_path, RecordedFiles(STORE_ID, P + 63)))
    assert mine.in_progress == {P + 10, P + 20, P + 21}
    assert (mine.highest_reserved, mine.is_clean) == (P + 63, False)


def require_same(mine: State, recovered: Recovered | None) -> None:
    assert recovered is not None
    state = recovered.state
    assert mine.read_pointer == state.view.read_pointer
    assert mine.invalid == set(state.view.invalid)
    assert mine.in_progress == set(state.view.in_progress)
    assert [tuple(block) for block in mine.blocks] == [(b.start, b.stop) for b in state.blocks]
    assert mine.highest_reserved == state.highest_reserved
    assert mine.is_clean == state.is_clean
    assert mine.ended == {
        each.transaction_id: (each.state.value, each.reason.value if each.reason else None)
        for each in state.outcomes
    }
    assert {each: opened["expires_at_ms"] for each, opened in mine.open.items()} == {
        each: opened.expires_at_ms for each, opened in state.open.items()
    }


def test_the_independent_reader_uses_the_snapshot_before_a_corrupt_one(tmp_path: Path) -> None:
    (tmp_path / "snapshot.1").write_bytes(beginning())
    (tmp_path / "txlog.1").write_bytes(golden_of_transactions("log"))
    (tmp_path / "snapshot.2").write_bytes(golden_of_transactions("snapshot")[:-1])

    assert read_state(tmp_path).in_progress == {P + 5}
