"""The rows of a table in HBase as bytes, and which versions of a row a compaction removes."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tuff
from tuff.protocol.errors import DamagedRecordError
from tuff.tables.compaction import Compacted
from tuff.tables.hbase_row_format import (
    UNDO_BODY_BYTES,
    Cell,
    Removal,
    StoredVersion,
    metadata_row,
    read_cell,
    removal,
    undo_range,
    undo_row,
    undo_rows,
    version_row,
)
from tuff.tables.row_format import (
    COMPACTED,
    Version,
    pack_metadata,
    pack_undo,
    pack_undone,
    pack_value,
    read_undo,
)

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = json.loads((ROOT / "tests/golden/hbase-table-rows.json").read_text("utf-8"))
P = 1_480_000_000_000_000_007
WRITER = bytes(range(8))
BOUND = 6

pointers = st.integers(1, 12)


def rows() -> dict[str, tuple[bytes, bytes]]:
    """A row of each kind, by its name in the golden file and in docs/formats.md."""
    apple = Version(b"apple", P)
    undo, compacted = undo_row(P, WRITER, 1), metadata_row(COMPACTED)
    how_far = Compacted(bound=P - 4, started=P, open=(P - 3, P - 1))
    return {
        "version": (version_row(b"apple"), pack_value(apple.stored_key, b"41")),
        "delete-marker": (version_row(b"apple"), pack_value(apple.stored_key, None)),
        "undone": (version_row(b"apple"), pack_undone(apple.stored_key)),
        "undo": (undo, pack_undo(undo, [apple])),
        "metadata-compacted": (compacted, pack_metadata(compacted, how_far.to_bytes())),
    }


def test_rows_match_the_golden_bytes() -> None:
    made = {name: [row.hex(), value.hex()] for name, (row, value) in rows().items()}

    assert made == GOLDEN


def test_formats_md_shows_the_golden_rows() -> None:
    page = (ROOT / "docs/formats.md").read_text("utf-8")
    section = page[page.index(". HBaseTransactionalTable") :]
    shown = {
        name: [row, value]
        for name, row, value in re.findall(r"^table (\S+)\nrow +(.*)\nvalue (.*)$", section, re.M)
    }

    assert shown == GOLDEN


def test_a_cell_is_a_value_a_delete_marker_or_an_undone_version() -> None:
    kinds = {name: rows()[name][1] for name in ("version", "delete-marker", "undone")}

    held = {name: read_cell(b"apple", Cell(P, data)) for name, data in kinds.items()}

    assert {name: (one.value, one.is_undone) for name, one in held.items()} == {
        "version": (b"41", False),
        "delete-marker": (None, False),
        "undone": (None, True),
    }


@pytest.mark.parametrize("name", ["version", "delete-marker", "undone"])
def test_a_cell_that_was_changed_or_moved_is_damaged(name: str) -> None:
    _, data = rows()[name]
    wrong = [(b"apple", Cell(P + 1, data)), (b"pear", Cell(P, data)), (b"apple", Cell(P, b""))]
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        wrong.append((b"apple", Cell(P, bytes(changed))))

    for key, cell in wrong:
        with pytest.raises(DamagedRecordError):
            read_cell(key, cell)


def test_undo_rows_are_bounded_and_list_all_versions() -> None:
    versions = [Version(b"%d" % number + b"k" * 30_000, P) for number in range(80)]

    made = dict(undo_rows(P, WRITER, 5, versions))

    assert [one for row, data in made.items() for one in read_undo(row, data)] == versions
    assert max(map(len, made.values())) < 2 * UNDO_BODY_BYTES
    start, stop = undo_range(P)
    assert all(start <= row < stop for row in made)
    assert not any(start <= row < stop for row in (undo_row(P - 1, WRITER, 9), stop))


def stored(pointer: int, kind: str) -> StoredVersion:
    value = None if kind in {"marker", "undone"} else b"v"
    return StoredVersion(Version(b"k", pointer), value, is_undone=kind == "undone")


@pytest.mark.parametrize(
    ("versions", "invalids", "goes"),
    [
        ([], [], Removal(None, ())),
        ([(5, "value")], [], Removal(None, ())),
        ([(5, "value"), (4, "value"), (3, "undone")], [], Removal(4, ())),
        ([(5, "marker"), (4, "value")], [], Removal(5, ())),
        ([(8, "value"), (5, "undone")], [], Removal(5, ())),
        # An undone version hides nothing, wherever it is.
        ([(6, "undone"), (5, "value"), (4, "value")], [], Removal(4, ())),
        # A tombstone above the bound would hide later writes of transactions in progress below it.
        ([(8, "value")], [8], Removal(None, (8,))),
        ([(8, "value"), (5, "value"), (4, "value")], [8], Removal(4, (8,))),
        ([(6, "value"), (5, "value")], [6], Removal(None, (6,))),
    ],
)
def test_a_tombstone_removes_old_versions_and_newer_ones_are_overwritten(
    versions: list[tuple[int, str]], invalids: Sequence[int], goes: Removal
) -> None:
    assert removal([stored(*one) for one in versions], bound=BOUND, invalids=invalids) == goes


kinds = st.sampled_from(["value", "marker", "undone"])


@given(
    versions=st.dictionaries(pointers, kinds),
    invalids=st.sets(pointers),
    read_pointer=st.integers(BOUND, 12),
    others=st.sets(st.integers(BOUND + 1, 12)),
)
def test_a_removal_changes_no_read(
    versions: dict[int, str], invalids: set[int], read_pointer: int, others: set[int]
) -> None:
    """For a reader that sees all commits up to the bound, as every transaction in progress does."""
    every = [stored(pointer, versions[pointer]) for pointer in sorted(versions, reverse=True)]

    goes = removal(every, bound=BOUND, invalids=sorted(invalids))

    def read(rows: Sequence[StoredVersion]) -> bytes | None:
        for one in rows:
            pointer = one.version.pointer
            if pointer <= read_pointer and pointer not in invalids | others and not one.is_undone:
                return one.value and b"%d" % pointer
        return None

    left = [
        stored(one.version.pointer, "undone") if one.version.pointer in goes.undone else one
        for one in every
        if goes.through is None or one.version.pointer > goes.through
    ]
    assert read(left) == read(every)
    assert goes.through is None or goes.through <= BOUND
    assert not [one for one in left if one.version.pointer in invalids and not one.is_undone]


@pytest.mark.parametrize(("grace", "error"), [("1 h", TypeError), (-1, ValueError)])
def test_a_grace_period_is_a_duration(grace: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="grace is a number of seconds"):
        tuff.HBaseTransactionalTable("127.0.0.1:9", "stock", grace=grace)
