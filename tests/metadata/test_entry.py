"""The stored form of an entry, and the decisions of all stores."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.store_interface import (
    BadVersionError,
    Condition,
    DamagedEntryError,
    EntryExistsError,
    Expected,
    NoEntryError,
)
from metadata.stored_entry import (
    Entry,
    Write,
    live,
    require_entry,
    require_timeout,
)

KEY = ("topics", "a b")
NONCE = bytes(range(16))
ENTRY = Entry(value=b"owner", version=258, nonce=NONCE, session="s-1", is_deleted=False)
TOMBSTONE = Entry(value=b"", version=3, nonce=NONCE, session=None, is_deleted=True)
ENTRY_BYTES = bytes.fromhex(
    "01 00 0000000000000102 000102030405060708090a0b0c0d0e0f 03 732d31 6f776e6572"
)
TOMBSTONE_BYTES = bytes.fromhex("01 01 0000000000000003 000102030405060708090a0b0c0d0e0f 00")


@pytest.mark.parametrize(("entry", "data"), [(ENTRY, ENTRY_BYTES), (TOMBSTONE, TOMBSTONE_BYTES)])
def test_an_entry_has_these_bytes(entry: Entry, data: bytes) -> None:
    assert entry.to_bytes() == data
    assert Entry.from_bytes(data, KEY) == entry


@given(
    st.builds(
        Entry,
        value=st.binary(max_size=64),
        version=st.integers(1, 2**64 - 1),
        nonce=st.binary(min_size=16, max_size=16),
        session=st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=60),
        is_deleted=st.just(False),
    )
)
def test_an_entry_round_trips(entry: Entry) -> None:
    assert Entry.from_bytes(entry.to_bytes(), KEY) == entry


@given(st.binary(max_size=64) | st.binary(max_size=64).map(lambda rest: ENTRY_BYTES[:27] + rest))
def test_any_bytes_are_an_entry_or_damaged(data: bytes) -> None:
    try:
        entry = Entry.from_bytes(data, KEY)
    except DamagedEntryError:
        return
    assert entry.to_bytes() == data


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "0 bytes"),
        (ENTRY_BYTES[:26], "26 bytes"),
        (ENTRY_BYTES[:29], "ends within the id of its session"),
        (ENTRY_BYTES.replace(b"s-1", b"s-\xff"), "not UTF-8"),
        (TOMBSTONE_BYTES.replace(b"\x03", b"\x00", 1), "the version 0"),
        (TOMBSTONE_BYTES + b"x", "a tombstone with a session or a value"),
    ],
)
def test_damaged_bytes_are_named_with_their_key(data: bytes, reason: str) -> None:
    with pytest.raises(DamagedEntryError, match=f"^the stored bytes of topics/a%20b .*{reason}"):
        Entry.from_bytes(data, KEY)


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"\x02", "the format 2"), (b"\x01\x02" + TOMBSTONE_BYTES[2:], "the flags 0x02")],
)
def test_an_entry_of_a_newer_version_is_named_as_such(data: bytes, reason: str) -> None:
    with pytest.raises(DamagedEntryError, match=f"{reason}, so a newer version of Tuff wrote it"):
        Entry.from_bytes(data, KEY)


def test_a_tombstone_is_not_live() -> None:
    assert live(None, _is_never_asked) is None
    assert live(TOMBSTONE, _is_never_asked) is None


def test_an_entry_without_a_session_is_live() -> None:
    persistent = replace(ENTRY, session=None)

    assert live(persistent, _is_never_asked) == persistent


def test_an_ephemeral_entry_is_live_while_its_session_is() -> None:
    assert live(ENTRY, lambda session: session == "s-1") == ENTRY
    assert live(ENTRY, lambda session: session != "s-1") is None


@pytest.mark.parametrize(
    ("found", "is_live", "expected", "version"),
    [
        (None, False, Expected.NEW, 1),
        (TOMBSTONE, False, Expected.NEW, 4),
        (ENTRY, False, Expected.NEW, 259),
        (ENTRY, True, Expected.ANY, 259),
        (ENTRY, True, 258, 259),
    ],
)
def test_a_write_raises_the_version_of_the_stored_entry(
    found: Entry | None, is_live: bool, expected: Condition, version: int
) -> None:
    written = Write(KEY, b"v", expected, "s-2", b"n" * 16).next(found, is_live=is_live)

    assert written == Entry(
        value=b"v", version=version, nonce=b"n" * 16, session="s-2", is_deleted=False
    )


@pytest.mark.parametrize(
    ("found", "is_live", "expected", "error"),
    [
        (ENTRY, True, Expected.NEW, EntryExistsError),
        (ENTRY, True, 257, BadVersionError),
        (ENTRY, True, 259, BadVersionError),
        (ENTRY, True, 0, BadVersionError),
        (ENTRY, False, 258, NoEntryError),
        (ENTRY, False, Expected.ANY, NoEntryError),
        (TOMBSTONE, False, 3, NoEntryError),
        (None, False, 0, NoEntryError),
        (None, False, Expected.ANY, NoEntryError),
    ],
)
def test_a_write_whose_condition_does_not_hold_is_refused(
    found: Entry | None, is_live: bool, expected: Condition, error: type[Exception]
) -> None:
    with pytest.raises(error, match="topics/a%20b"):
        Write(KEY, b"", expected).next(found, is_live=is_live)


@pytest.mark.parametrize("expected", [258, Expected.ANY])
def test_a_deletion_leaves_a_tombstone_with_the_next_version(expected: Condition) -> None:
    written = Write(KEY, None, expected, nonce=b"n" * 16).next(ENTRY, is_live=True)

    assert written == Entry(value=b"", version=259, nonce=b"n" * 16, session=None, is_deleted=True)


@pytest.mark.parametrize(
    ("found", "is_live", "expected", "error"),
    [
        (ENTRY, True, Expected.NEW, BadVersionError),
        (ENTRY, True, 257, BadVersionError),
        (ENTRY, False, 258, NoEntryError),
        (TOMBSTONE, False, Expected.ANY, NoEntryError),
        (None, False, Expected.NEW, NoEntryError),
    ],
)
def test_a_deletion_whose_condition_does_not_hold_is_refused(
    found: Entry | None, is_live: bool, expected: Condition, error: type[Exception]
) -> None:
    with pytest.raises(error, match="topics/a%20b"):
        Write(KEY, None, expected).next(found, is_live=is_live)


def test_a_refusal_names_the_version_that_the_entry_has() -> None:
    with pytest.raises(EntryExistsError) as exists:
        Write(KEY, b"", Expected.NEW).next(ENTRY, is_live=True)
    with pytest.raises(BadVersionError) as not_new:
        Write(KEY, None, Expected.NEW).next(ENTRY, is_live=True)

    assert str(exists.value) == "the entry topics/a%20b exists, with version 258"
    assert str(not_new.value) == "the entry topics/a%20b has version 258, and none was expected"


def test_a_required_version_is_that_of_the_live_entry() -> None:
    require_entry(KEY, ENTRY, is_live=True, expected=258)

    with pytest.raises(BadVersionError, match="has version 258, not 257"):
        require_entry(KEY, ENTRY, is_live=True, expected=257)
    with pytest.raises(NoEntryError):
        require_entry(KEY, ENTRY, is_live=False, expected=258)


def test_a_value_and_a_timeout_out_of_range_are_refused() -> None:
    Write(KEY, b"v" * 524_288, Expected.ANY)
    require_timeout(0.2)
    require_timeout(3_600.0)

    with pytest.raises(ValueError, match="524289 bytes"):
        Write(KEY, b"v" * 524_289, Expected.ANY)
    for timeout_s in (0.19, 3_600.1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            require_timeout(timeout_s)


def _is_never_asked(session: str) -> bool:
    raise AssertionError(f"asked for session {session}")
