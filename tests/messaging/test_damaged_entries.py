"""What the entries of a damaged block say of it: where LevelDB may hide rows (promise 8)."""

import pytest

from messaging.storage.leveldb_corruption import CorruptRange, corrupt_ranges_in
from messaging.storage.packed_rows import first_whole
from messaging.storage.rows import frame
from tuff.leveldb.sstable import Entry

LAST_SEQUENCE = 100
HIGH = LAST_SEQUENCE + (1 << 40)  # what a flipped bit makes of a number
WHOLE = CorruptRange(b"a", b"z", "the block's checksum does not match")


def row(key: bytes, *, sequence: int = 10, is_value: bool | None = True) -> Entry:
    return Entry(key, frame(key, 0, b"value"), sequence, is_value)


def damaged(key: bytes, *, sequence: int = 10) -> Entry:
    return Entry(key, frame(b"another", 0, b"value"), sequence, True)


def deletion(key: bytes, *, sequence: int = 20) -> Entry:
    return Entry(key, b"", sequence, False)


def holes(*entries: Entry) -> list[tuple[bytes, bytes, bool]]:
    found = corrupt_ranges_in(entries, WHOLE, LAST_SEQUENCE, first_whole=first_whole)
    return [(hole.low, hole.high, hole.has_rows_only) for hole in found]


ALL = [(b"a", b"z", False)]
CASES = {
    "nothing shows what is damaged": ([row(b"b"), row(b"c")], ALL),
    "there is nothing": ([], ALL),
    "a damaged row": ([row(b"b"), damaged(b"c"), row(b"d")], [(b"b", b"d", True)]),
    "two in a row, and the last": (
        [damaged(b"b"), damaged(b"c"), row(b"d"), damaged(b"e")],
        [(b"a", b"d", True), (b"d", b"z", True)],
    ),
    "a number that no row has": (
        [row(b"b"), row(b"cc", sequence=HIGH), row(b"d")],
        [(b"c", b"cc\x00", False)],
    ),
    "a value as a deletion": (
        [row(b"b"), row(b"cc", is_value=False), row(b"d")],
        [(b"c", b"cc\x00", False)],
    ),
    "a kind that there is not": (
        [row(b"bb"), row(b"bc", is_value=None)],
        [(b"bb", b"bc\x00", False)],
    ),
    "a deletion behind a damaged row, which may be another one's": (
        [row(b"b"), damaged(b"c"), deletion(b"d"), row(b"e")],
        [(b"b", b"e", False)],
    ),
    "a deletion before a damaged row": (
        [row(b"b"), deletion(b"c"), row(b"d"), damaged(b"e")],
        [(b"d", b"z", True)],
    ),
    "a deletion with a number that none has, and what it had deleted": (
        [row(b"b"), deletion(b"c", sequence=HIGH), row(b"c", sequence=5), row(b"d")],
        [(b"b", b"d", False)],
    ),
    "a damaged row before an older one of its key": (
        [damaged(b"b", sequence=20), row(b"b", sequence=10), row(b"c")],
        [(b"a", b"c", True)],
    ),
    "a key out of order": ([row(b"c"), damaged(b"b"), row(b"d")], ALL),
    "a number out of order": (
        [deletion(b"b", sequence=5), row(b"b", sequence=20), damaged(b"c")],
        ALL,
    ),
    "a key that is not of the block": ([row(b"b"), damaged(b"zz")], ALL),
}


@pytest.mark.parametrize("name", CASES)
def test_a_block_accounts_for_its_damage_or_is_a_hole(name: str) -> None:
    entries, expected = CASES[name]

    assert holes(*entries) == expected
