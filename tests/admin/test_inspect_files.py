"""Transaction files are shown as rows; corruption is one of them."""

from pathlib import Path

from admin.inspect_files import directory_lines, log_lines, snapshot_lines
from tests.tx.test_formats import EDITS, P, log_bytes, snapshot_bytes


def test_a_log_is_shown_as_a_row_for_each_edit(tmp_path: Path) -> None:
    path = tmp_path / "txlog.1"
    path.write_bytes(log_bytes())

    rows = list(log_lines(path))

    assert [row["kind"] for row in rows] == ["header", *(type(edit).__name__ for edit in EDITS)]
    assert rows[5]["changes"] == [{"base64": "Yf8="}, "b"]
    assert rows[7]["reason"] == "blocked_readers"
    assert rows[2]["pointer"] == str(P + 1)


def test_a_corrupt_log_is_shown_up_to_the_corruption(tmp_path: Path) -> None:
    path = tmp_path / "txlog.1"
    data = bytearray(log_bytes())
    data[-60] ^= 1
    path.write_bytes(bytes(data))

    rows = list(log_lines(path))

    assert len(rows) == len(EDITS) + 1
    assert rows[-1]["kind"] == "damage"
    path.write_bytes(b"rubbish")
    assert [row["kind"] for row in log_lines(path)] == ["damage"]


def test_a_snapshot_is_shown_as_a_row_for_each_transaction(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.1"
    path.write_bytes(snapshot_bytes())

    rows = list(snapshot_lines(path))

    assert [row["kind"] for row in rows[:2]] == ["header", "numbers"]
    assert [row["transaction_id"] for row in rows if row["kind"] == "open"] == [str(P + 5)]
    assert [row["kind"] for row in rows].count("ended") == 3
    path.write_bytes(snapshot_bytes()[:-1])
    assert [row["kind"] for row in snapshot_lines(path)] == ["damage"]


def test_a_directory_lists_its_files_by_sequence_and_corrupt_ones_last(tmp_path: Path) -> None:
    (tmp_path / "snapshot.1").write_bytes(snapshot_bytes())
    (tmp_path / "txlog.9").write_bytes(log_bytes())
    (tmp_path / "snapshot.0").write_bytes(b"rubbish")
    (tmp_path / "README.md").write_bytes(b"")

    rows = list(directory_lines(tmp_path))

    assert [(row["kind"], row.get("name", row.get("place"))) for row in rows] == [
        ("txlog", "txlog.9"), ("snapshot", "snapshot.1"), ("damage", "snapshot.0"),
    ]  # fmt: skip
    assert rows[0]["sequence"] == 2
