"""The rows of a table as bytes: their order, golden bytes, and the detection of changed bytes."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuff.protocol.errors import BadRequestError, DamagedRecordError
from tuff.protocol.pointer_list import POINTER_MAX
from tuff.tables.compaction import Compacted
from tuff.tables.row_format import (
    COMPACTED,
    FORMAT,
    TABLE_ID,
    MalformedKeyError,
    Version,
    check_format,
    metadata_keys,
    pack_format,
    pack_metadata,
    pack_undo,
    pack_undone,
    pack_value,
    read_metadata,
    read_undo,
    read_undo_key,
    read_value,
    read_version,
    row_prefix,
    row_stop,
    undo_key,
    undo_range,
)

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = json.loads((ROOT / "tests/golden/table-rows.json").read_text("utf-8"))
P = 1_480_000_000_000_000_007

# Few bytes, which the format itself uses, so that keys are likely to be ambiguous.
tricky_keys = st.lists(st.sampled_from([0, 1, 2, 0x61, 0xFF]), max_size=6).map(bytes)
pointers = st.integers(0, POINTER_MAX)
versions = st.builds(Version, tricky_keys, pointers)


def rows() -> dict[str, tuple[bytes, bytes]]:
    """A record of each kind, by its name in the golden file and in docs/formats.md."""
    apple, zero = Version(b"apple", P), Version(b"a\x00", P)
    undo = undo_key(P, 0)
    compacted = Compacted(bound=P - 4, started=P, open=(P - 3, P - 1))
    form, table_id, how_far = (metadata_keys(name)[0] for name in (FORMAT, TABLE_ID, COMPACTED))
    return {
        "version": (apple.stored_key, pack_value(apple.stored_key, b"41")),
        "version-with-a-zero": (zero.stored_key, pack_value(zero.stored_key, b"")),
        "delete-marker": (apple.stored_key, pack_value(apple.stored_key, None)),
        "undo": (undo, pack_undo(undo, [apple, zero])),
        "metadata-format": (form, pack_metadata(form, pack_format())),
        "metadata-id": (table_id, pack_metadata(table_id, bytes(range(16)))),
        "metadata-compacted": (how_far, pack_metadata(how_far, compacted.to_bytes())),
    }


def test_records_match_the_golden_bytes() -> None:
    made = {name: [key.hex(), value.hex()] for name, (key, value) in rows().items()}

    assert made == GOLDEN


def test_formats_md_shows_the_golden_records() -> None:
    page = (ROOT / "docs/formats.md").read_text("utf-8")
    section = page[page.index(". TransactionalTable") :]
    shown = {
        name: [key.replace(" ", ""), value.replace(" ", "")]
        for name, key, value in re.findall(r"^table (\S+)\nkey +(.*)\nvalue (.*)$", section, re.M)
    }

    assert shown == GOLDEN


def test_every_record_is_read_back() -> None:
    made = rows()

    assert read_version(made["version"][0]) == Version(b"apple", P)
    assert read_version(made["version-with-a-zero"][0]) == Version(b"a\x00", P)
    assert read_value(*made["version"]) == b"41"
    assert read_value(*made["version-with-a-zero"]) == b""
    assert read_value(*made["delete-marker"]) is None
    assert read_undo_key(made["undo"][0]) == (P, 0)
    assert list(read_undo(*made["undo"])) == [Version(b"apple", P), Version(b"a\x00", P)]
    check_format(read_metadata(*made["metadata-format"]))
    assert Compacted.from_bytes(read_metadata(*made["metadata-compacted"])) == Compacted(
        bound=P - 4, started=P, open=(P - 3, P - 1)
    )


@given(st.lists(versions, unique=True))
def test_rows_sort_by_key_and_the_versions_of_one_newest_first(found: list[Version]) -> None:
    expected = sorted(found, key=lambda one: (one.key, -one.pointer))

    assert sorted(found, key=lambda one: one.stored_key) == expected


@given(versions)
def test_a_stored_key_is_read_back(version: Version) -> None:
    assert read_version(version.stored_key) == version


@given(versions, tricky_keys)
def test_no_version_lies_within_another_row(version: Version, key: bytes) -> None:
    is_within = row_prefix(key) <= version.stored_key < row_stop(key)

    assert is_within == (version.key == key)


@given(st.binary(max_size=24))
def test_any_bytes_are_the_key_of_one_version_or_malformed(tail: bytes) -> None:
    stored_key = b"r" + tail
    try:
        version = read_version(stored_key)
    except MalformedKeyError:
        return
    assert version.stored_key == stored_key


@pytest.mark.parametrize(
    "tail", [b"a\x00b\x00\x00" + bytes(8), b"a\x00\x00" + b"\xff" * 8], ids=["row", "pointer"]
)
def test_malformed_keys_are_refused(tail: bytes) -> None:
    with pytest.raises(MalformedKeyError, match="no row is stored"):
        read_version(b"r" + tail)


@given(pointers.filter(lambda pointer: pointer < POINTER_MAX), st.integers(0, 2**32 - 1), pointers)
def test_the_undo_rows_of_a_transaction_are_its_own(
    transaction_id: int, number: int, other: int
) -> None:
    start, stop = undo_range(transaction_id)

    assert start <= undo_key(transaction_id, number) < stop
    assert (start <= undo_key(other, number) < stop) == (other == transaction_id)


@pytest.mark.parametrize("name", GOLDEN)
def test_any_flipped_bit_and_any_truncation_is_detected(name: str) -> None:
    key, value = (bytes.fromhex(digits) for digits in GOLDEN[name])
    read = (
        read_undo
        if name == "undo"
        else read_metadata
        if name.startswith("metadata")
        else read_value
    )
    record = key + value

    def spoilt(bit: int) -> tuple[bytes, bytes]:
        changed = bytearray(record)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed[: len(key)]), bytes(changed[len(key) :])

    for bit in range(8 * len(record)):
        with pytest.raises(DamagedRecordError):
            list(read(*spoilt(bit)) or ())
    for length in range(len(value)):
        with pytest.raises(DamagedRecordError):
            list(read(key, value[:length]) or ())


def test_a_malformed_body_is_damage() -> None:
    undo = undo_key(P, 0)

    for body in (b"\x00" * 5, b"\x00" * 8 + b"\x00\x00\x00\x09abc"):
        with pytest.raises(DamagedRecordError, match="cut off"):
            list(read_undo(undo, pack_metadata(undo, body)))
    for body in (b"\x00" * 5, Compacted(open=(1, 2)).to_bytes()[:-1]):
        with pytest.raises(DamagedRecordError, match="cut off"):
            Compacted.from_bytes(body)
    with pytest.raises(DamagedRecordError):
        read_undo_key(b"u123")


def test_damage_names_its_key_and_the_next_one() -> None:
    key, value = rows()["version"]

    with pytest.raises(DamagedRecordError) as caught:
        read_value(key, value[:-1] + b"2")

    assert caught.value.members == {"key": "apple", "next": "apple\x00"}
    assert "b'apple'" in caught.value.detail


def test_unknown_flags_are_refused() -> None:
    key = Version(b"apple", P).stored_key

    with pytest.raises(DamagedRecordError, match="flags 0x02"):
        read_value(key, pack_undone(key))


def test_another_version_of_the_format_is_refused() -> None:
    with pytest.raises(BadRequestError, match="0002"):
        check_format(b"\x00\x02")


def test_has_ended() -> None:
    compacted = Compacted(bound=5, started=10, open=(7,))

    assert [one for one in range(5, 12) if not compacted.has_ended(one)] == [7, 10, 11]
