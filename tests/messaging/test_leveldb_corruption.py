"""A flipped bit anywhere in LevelDB's table files: readers get all other rows, in order and once,
and an error where rows may be missing (promise 8)."""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from messaging.engines import leveldb_corruption
from messaging.engines.engine_interface import Corruption, StoreDamagedError, StoreError
from messaging.engines.leveldb import LevelDbStore
from messaging.engines.leveldb_corruption import CorruptRange, corrupt_ranges_in
from messaging.engines.memory import MemoryStore
from messaging.engines.row_store import Store
from messaging.engines.sstable import Entry
from messaging.log.scan import next_after_block
from messaging.model.row_format import HEAD, frame, message_key, payload_key, topic_key
from messaging.model.visibility import before_row
from messaging.read.offsets_and_splits import splits_of
from tests.messaging.packed_stores import packed_store
from tests.messaging.scan_model import (
    COMMITTED_POINTER,
    PREFIX,
    ModelRow,
    build,
    query,
    read,
    start_number,
)
from tests.messaging.world import leveldb, rows_of
from tuff.protocol.errors import DamagedRecordError
from tuff.protocol.ids import MessageId, Offset, TopicId
from tuff_storage.leveldb.manifest import read_manifest

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
    found = corrupt_ranges_in(entries, WHOLE, LAST_SEQUENCE)
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
def test_a_damaged_block_is_corrupt_unless_damaged_rows_explain_its_checksum(name: str) -> None:
    entries, expected = CASES[name]

    assert holes(*entries) == expected


GAPS_MAX = 100  # there are fewer messages
BIT_STEP = 1_597  # bits; each bit in turn is the slow test
LARGE = b"x" * 1500  # of three such rows LevelDB makes a block

Messages = list[tuple[bytes, bytes]]


def plain(timestamp_ms: int, *payloads: bytes) -> list[ModelRow]:
    return [
        ModelRow(timestamp_ms, None, ((payload, None),), is_reference=False) for payload in payloads
    ]


ROWS = [
    *plain(950_000, b"p0"),
    *plain(950_007, b"p1"),
    *plain(950_014, b"run 0", b"run 1", b"run 2"),
    ModelRow(
        950_100, COMMITTED_POINTER, ((b"g0", None), (b"g1", None), (b"g2", None)), is_reference=True
    ),
    ModelRow(950_200, COMMITTED_POINTER, ((b"direct", None),), is_reference=False),
    *[row for number in range(4) for row in plain(950_300 + number, b"large %d" % number + LARGE)],
    *plain(950_400, b"last"),
]
DELETED = message_key(PREFIX, Offset(950_150, 0)), payload_key(PREFIX, 7, Offset(950_150, 0))


@dataclass(slots=True)
class Reading:
    """The messages that a reader received, and the gaps of its errors: first and last id."""

    found: Messages = field(default_factory=list)
    gaps: list[tuple[bytes, bytes]] = field(default_factory=list)


def opened(directory: Path) -> Store:
    return Store(leveldb(directory))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of one table file with a few blocks, in which rows were deleted and written anew."""
    directory = tmp_path_factory.mktemp("whole") / "messages"
    rows = dict(build(ROWS)[0].rows)
    topic = topic_key(TopicId("default", "t"))
    with closing(leveldb(directory)) as table:
        for key in DELETED:
            table.write([(key, frame(key, 0, b"deleted"))])
        table.write([(topic, frame(topic, 0, b"old"))])
        with closing(packed_store(rows).records(b"", b"\xff")) as records:
            table.write([*records, *((key, None) for key in DELETED)])
        table.write([(topic, frame(topic, 0, b"new"))])
    opened(directory).close()  # opening again moves the log into a table file
    return directory


def read_past_damage(store: Store, *, limit: int) -> Reading:
    """A read of everything, which continues after each gap as the error says."""
    reading = Reading()
    start, is_caught_up = 0, False
    while not is_caught_up:
        try:
            page = read(store, query(start=start, limit=limit))
        except DamagedRecordError as error:
            first, behind = (bytes.fromhex(str(error.members[name])) for name in ("id", "next"))
            reading.gaps.append((first, behind))
        else:
            reading.found += page.items
            behind, is_caught_up = page.next_id, page.caught_up
        go_on = start_number(MessageId.from_bytes(behind), inclusive=False)
        assert go_on > start or is_caught_up, f"sent from {start:x} to {behind.hex()}"
        assert len(reading.gaps) < GAPS_MAX
        start = go_on
    return reading


def wrong_in(expected: Messages, reading: Reading) -> str | None:
    """What is wrong with a reading, in a sentence, or None."""
    if reading.found != [message for message in expected if message in reading.found]:
        return f"handed out {reading.found}"
    silent = [
        (message_id, payload)
        for message_id, payload in expected
        if (message_id, payload) not in reading.found
        and not any(first <= message_id <= last for first, last in reading.gaps)
    ]
    return f"passed over {silent} in silence" if silent else None


def flipped(whole: Path, scratch: Path, *, step: int) -> Iterator[tuple[int, Path]]:
    """The store with one bit flipped in its table file, and which one."""
    [file] = whole.glob("*.ldb")
    data = file.read_bytes()
    for bit in range(0, 8 * len(data), step):
        copy = scratch / f"bit-{bit}"
        shutil.copytree(whole, copy)
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        (copy / file.name).write_bytes(damaged)
        yield bit, copy
        shutil.rmtree(copy)


def check_flips(whole: Path, scratch: Path, *, step: int) -> None:
    with closing(opened(shutil.copytree(whole, scratch / "as-it-was"))) as store:
        expected = read_past_damage(store, limit=100).found
    assert len(expected) == sum(len(row.payloads) for row in ROWS)
    counts: list[int] = []
    for bit, copy in flipped(whole, scratch, step=step):
        with suppress(StoreError), closing(opened(copy)) as store:
            for limit in (100, 1):
                reading = read_past_damage(store, limit=limit)
                assert wrong_in(expected, reading) is None, f"bit {bit}, by {limit}"
                counts.append(len(expected) - len(reading.found))
    # In a store that can be opened as a rule no more is lost than a message or a group.
    assert sorted(counts)[len(counts) // 2] <= 3


def test_a_flipped_bit_is_reported_and_hides_no_other_row(whole: Path, tmp_path: Path) -> None:
    """Flipped bits beside a key silently hid rows from every reader; others sent readers back."""
    check_flips(whole, tmp_path, step=BIT_STEP)


@pytest.mark.slow
def test_each_flipped_bit_is_reported_and_hides_no_other_row(whole: Path, tmp_path: Path) -> None:
    check_flips(whole, tmp_path, step=1)


@pytest.fixture
def damaged_end(tmp_path: Path) -> Path:
    """A store whose last block is damaged, and nothing else."""
    with closing(leveldb(tmp_path)) as table:
        for number in range(10):
            key = b"k%d" % number
            table.write([(key, frame(key, 0, LARGE))])
    opened(tmp_path).close()
    [file] = tmp_path.glob("*.ldb")
    data = bytearray(file.read_bytes())
    data[data.rindex(LARGE) - 1] ^= 1  # in the row's own checksum
    file.write_bytes(data)
    return tmp_path


def scan_reporting_corruption(
    table: LevelDbStore, start: bytes, stop: bytes = b"l"
) -> tuple[list[bytes], StoreDamagedError | None]:
    """The keys up to the first corrupt range, and the error of that range."""
    keys: list[bytes] = []
    try:
        for chunk in table.scan(start, stop, corruption=Corruption.RAISE_AT_ROWS):
            keys += [key for key, _ in chunk]
    except StoreDamagedError as error:
        return keys, error
    return keys, None


def test_a_damaged_end_of_the_store_is_not_the_end_of_the_rows(damaged_end: Path) -> None:
    """plyvel's iterator ends there without an error."""
    with closing(leveldb(damaged_end)) as table:
        assert len(rows_of(table.scan(b"k", b"l"))) == 10
        keys, error = scan_reporting_corruption(table, b"k")
        as_rows = rows_of(table.scan(b"k", b"l", corruption=Corruption.RAISE))
    assert keys == [b"k%d" % number for number in range(9)]
    assert error is not None
    assert re.search(r"ldb, byte \d+: .* `tuff salvage`", str(error))
    assert [key for key, _ in as_rows] == [*keys, b"k9"]


def test_a_scan_behind_a_damaged_end_reports_nothing(damaged_end: Path) -> None:
    """LevelDB reads the last block for every key behind it, until there is another block."""
    with closing(leveldb(damaged_end)) as table:
        table.write([(b"kk", frame(b"kk", 0, b"later"))])
        _, error = scan_reporting_corruption(table, b"k")
        assert error is not None
        assert error.readable_from is not None

        for _ in range(2):
            assert scan_reporting_corruption(table, error.readable_from) == ([b"kk"], None)


def test_each_later_table_with_corruption_is_reported(tmp_path: Path) -> None:
    """One error for each, and none for a table before the start."""
    with closing(leveldb(tmp_path)) as table:
        for letter in b"abc":
            keys = [bytes((letter,)) + b"%d" % number for number in range(6)]
            table.write([(key, frame(key, 0, LARGE)) for key in keys])
            table._database.db.compact_range(start=bytes((letter,)), stop=bytes((letter + 1,)))
    files = sorted(tmp_path.glob("*.ldb"))
    assert len(files) == 3
    for file in (files[0], files[2]):
        data = bytearray(file.read_bytes())
        data[data.index(LARGE) - 1] ^= 1
        file.write_bytes(data)

    told: list[bytes] = []
    with closing(leveldb(tmp_path)) as table:
        rows, error = scan_reporting_corruption(table, b"a", b"d")
        while error is not None and error.readable_from is not None:
            told.append(error.readable_from)
            more, error = scan_reporting_corruption(table, told[-1], b"d")
            rows += more

    assert rows == [b"%c%d" % (letter, number) for letter in b"abc" for number in range(6)
                    if not (number == 0 and letter in b"ac")]  # fmt: skip
    assert told == [b"a1", b"c1"]


def test_corruption_that_appears_while_the_store_is_open_is_reported(damaged_end: Path) -> None:
    """A table with known corruption was not examined again: rows that later corruption hid were
    skipped silently."""
    [file] = damaged_end.glob("*.ldb")
    values = [found.start() for found in re.finditer(LARGE, file.read_bytes())]
    with closing(leveldb(damaged_end)) as table:
        _, first = scan_reporting_corruption(table, b"k8")

        with file.open("r+b") as disk:
            at = values[1] - HEAD.size - 3  # in the number of k1, which is then newer than all
            disk.seek(at)
            [byte] = disk.read(1)
            disk.seek(at)
            disk.write(bytes((byte ^ 1,)))
        keys, second = scan_reporting_corruption(table, b"k")

    assert first is not None
    assert second is not None
    assert keys == [b"k0"]
    assert second.readable_from is not None
    assert second.readable_from <= b"k2"


def test_a_table_that_was_compacted_meanwhile_is_not_corrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows, which are whole, were reported as missing, and readers continued behind them."""
    keys = [b"%c%d" % (letter, number) for letter in b"ab" for number in range(6)]
    with closing(leveldb(tmp_path)) as table:
        table.write([(key, frame(key, 0, LARGE)) for key in keys[:6]])
        table._database.db.compact_range(start=b"a", stop=b"b")
        table.write([(key, frame(key, 0, LARGE)) for key in keys[6:-1]])
    damaged_file = min(tmp_path.glob("*.ldb"))
    data = bytearray(damaged_file.read_bytes())
    data[data.index(LARGE) - 1] ^= 1  # in the checksum of a0, before where the scan begins
    damaged_file.write_bytes(data)

    with closing(leveldb(tmp_path)) as table:
        table.write([(keys[-1], frame(keys[-1], 0, LARGE))])
        before = set(tmp_path.glob("*.ldb"))

        def compacted_since(directory: Path) -> object:
            found = read_manifest(directory)
            table._database.db.compact_range(start=b"b", stop=b"c")
            return found

        monkeypatch.setattr(leveldb_corruption, "read_manifest", compacted_since)
        assert scan_reporting_corruption(table, b"a1", b"c") == (keys[1:], None)
        after = set(tmp_path.glob("*.ldb"))

    assert len(before) == 2
    assert before & after == {damaged_file}


def test_a_whole_row_of_a_damaged_block_is_read_by_key(damaged_end: Path) -> None:
    """The server's metadata was in such a block, and the server could not start."""
    with closing(leveldb(damaged_end)) as table:
        assert table.get(b"k8") == frame(b"k8", 0, LARGE)
        assert table.get(b"k7x") is None


def test_a_corrupt_range_is_a_split_whose_reader_gets_an_error(whole: Path, tmp_path: Path) -> None:
    """A job got no split for it, and finished without an error."""
    store_path = shutil.copytree(whole, tmp_path / "messages")
    [file] = store_path.glob("*.ldb")
    data = bytearray(file.read_bytes())
    # In the number that LevelDB gave the row, so that it is newer than all readers.
    data[data.index(b"p0") - HEAD.size - 3] ^= 1
    file.write_bytes(data)
    first_only = MessageId(*Offset(950_006, 0))

    with closing(opened(store_path)) as store:
        asked = query(through=first_only)
        assert splits_of(store, asked, start=None, end=first_only, count=1)
        with pytest.raises(DamagedRecordError):
            read(store, asked)


def test_a_reader_behind_a_damaged_block_receives_the_newest_row() -> None:
    newest = Offset(950_000, 3)
    error = StoreDamagedError("damaged", readable_from=message_key(PREFIX, newest))
    asked = query(high_water_mark=newest)

    behind = next_after_block(Store(MemoryStore()), asked, Offset(950_000, 1), error)

    assert behind == before_row(newest)


@pytest.fixture
def without_file(tmp_path: Path) -> Iterator[LevelDbStore]:
    """An open store with the rows a and b in files of their own, of which that of b was removed."""
    with closing(leveldb(tmp_path)) as table:
        table.write([(b"a", frame(b"a", 0, LARGE))])
        table._database.db.compact_range(start=b"a", stop=b"a")
    with closing(leveldb(tmp_path)) as table:
        table.write([(b"b", frame(b"b", 0, LARGE))])
        table._database.db.compact_range(start=b"b", stop=b"b")
    with closing(leveldb(tmp_path)) as table:
        max(tmp_path.glob("*.ldb")).unlink()
        yield table


@pytest.mark.parametrize(
    "look",
    [
        lambda table: table.get(b"b"),
        lambda table: [*table.scan(b"b", b"c")],
        lambda table: [*table.scan(b"b", b"c", reverse=True)],
        lambda table: [*table.scan(b"a", b"c", reverse=True)],
        lambda table: [*table.scan(b"a", b"c", corruption=Corruption.RAISE)],
    ],
    ids=["get", "scan", "backward", "backward and on", "scan told"],
)
def test_a_row_whose_file_is_gone_is_an_error_and_not_a_missing_row(
    without_file: LevelDbStore, look: Callable[[LevelDbStore], object]
) -> None:
    """LevelDB's Get answers NotFound, as for a key that was never written; plyvel's iterator ends
    without an error."""
    with pytest.raises(StoreError, match="No such file"):
        look(without_file)


def test_another_row_is_read_where_a_file_is_gone(without_file: LevelDbStore) -> None:
    assert without_file.get(b"a") == frame(b"a", 0, LARGE)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_store_whose_only_file_is_gone_is_not_empty(tmp_path: Path, *, reverse: bool) -> None:
    with closing(leveldb(tmp_path)) as table:
        table.write([(b"a", b"1"), (b"b", b"2")])
        # To a level whose files LevelDB opens when a scan comes to them.
        table._database.db.compact_range()
    with closing(leveldb(tmp_path)) as table:
        next(tmp_path.glob("*.ldb")).unlink()
        with pytest.raises(StoreError, match="No such file"):
            list(table.scan(b"a", b"c", reverse=reverse))


def test_a_table_that_was_cut_leads_to_fsck_and_salvage(whole: Path, tmp_path: Path) -> None:
    """LevelDB calls it an invalid argument, and the sentence said to try again later."""
    home = tmp_path / "store"
    shutil.copytree(whole, home)
    for table in home.glob("*.ldb"):
        table.write_bytes(table.read_bytes()[: table.stat().st_size // 2])

    advice = "A file is damaged: stop the server; `tuff fsck` names"
    with closing(leveldb(home)) as store, pytest.raises(StoreError, match=advice):
        list(store.scan(b"", b"\xff"))
