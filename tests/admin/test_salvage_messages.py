"""When the transaction of a row counts as committed although some of the proof can't be read."""

from dataclasses import replace
from pathlib import Path

from admin.readable_rows import ReadableRows
from admin.salvage_messages import MessageSalvage, SalvageReport
from admin.salvage_transactions import ProvenOutcome
from messaging.engines.leveldb import LevelDbStore
from messaging.engines.memory import MemoryStore
from messaging.log.rows_by_transaction import ASIDE_ROWS, MESSAGE_ROWS, IndexedRange
from messaging.log.topics import TopicRecord
from messaging.model.row_format import INDEX, MessageRow, message_key, prefix_of, topic_key
from tuff.protocol.ids import Offset, TopicId
from tuff_storage.leveldb.engine import plyvel

TOPIC = TopicId("default", "t1")
PREFIX = prefix_of(TOPIC, 1)
POINTER = 1_480_000_000_000_000_007
PLACE = Offset(1_480_000_000_000, 5)
KEY = message_key(PREFIX, PLACE)
PUBLISHED = MessageRow(tx_pointer=POINTER, payload=b"undecided").to_bytes(KEY)
MARKED = MessageRow(tx_pointer=-POINTER, payload=b"undecided").to_bytes(KEY)
RECORD = TopicRecord(generation=1, properties={"ttl": "60"})
INDEX_ENTRY = IndexedRange(
    pointer=POINTER, kind=MESSAGE_ROWS, topic=TOPIC, generation=1, first=PLACE, last=PLACE,
    final=False, written_ms=0,
)  # fmt: skip
INDEXED = {INDEX_ENTRY.key: INDEX_ENTRY.to_bytes(INDEX_ENTRY.key)}
TOPICS = {topic_key(TOPIC): RECORD.to_bytes(topic_key(TOPIC))}


def write(directory: Path, rows: dict[bytes, bytes]) -> None:
    """Each call writes a log of its own; the next one, or `settle`, makes a table of it."""
    store = LevelDbStore(directory)
    store.write(list(rows.items()))
    store.close()


def settle(directory: Path) -> None:
    LevelDbStore(directory).close()


def damage(path: Path, needle: bytes) -> None:
    data = path.read_bytes()
    assert data.count(needle) == 1
    at = data.index(needle)
    path.write_bytes(data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :])


def newest_table(directory: Path) -> Path:
    return max(directory.glob("*.ldb"))


def salvaged(directory: Path, outcome: ProvenOutcome) -> tuple[SalvageReport, int | None]:
    """The report, and the pointer that the row has now."""
    new = MemoryStore()
    salvage = MessageSalvage(
        ReadableRows(directory),
        new,
        outcome=lambda _: outcome,
        remembers_commit=lambda _: outcome is ProvenOutcome.COMMITTED,
    )
    account = salvage.copy_rows()
    salvage.write_metadata(account.metadata, PLACE)
    return account, MessageRow.from_bytes(KEY, new.rows[KEY]).tx_pointer


def test_a_row_without_an_index_row_is_committed_if_nothing_is_corrupt(tmp_path: Path) -> None:
    write(tmp_path, {KEY: PUBLISHED, **TOPICS})

    account, pointer = salvaged(tmp_path, ProvenOutcome.UNKNOWN)

    assert (pointer, account.committed, account.lost) == (POINTER, {POINTER}, [])


def test_a_row_with_an_index_row_is_hidden_unless_its_commit_is_known(tmp_path: Path) -> None:
    write(tmp_path, {KEY: PUBLISHED, **TOPICS, **INDEXED})

    assert salvaged(tmp_path, ProvenOutcome.UNKNOWN)[1] == -POINTER
    assert salvaged(tmp_path, ProvenOutcome.NOT_COMMITTED)[1] == -POINTER
    assert salvaged(tmp_path, ProvenOutcome.COMMITTED)[1] == POINTER


def test_a_lost_rollback_mark_reveals_no_aborted_row(tmp_path: Path) -> None:
    """The row was written, and rolled back later in another file, which is corrupt."""
    write(tmp_path, {KEY: PUBLISHED, **TOPICS})
    write(tmp_path, {KEY: MARKED})
    settle(tmp_path)
    damage(newest_table(tmp_path), MARKED[-8:])

    account, pointer = salvaged(tmp_path, ProvenOutcome.FORGOTTEN)

    assert pointer == -POINTER
    assert account.hidden == {POINTER}
    assert account.lost != []


def test_a_lost_index_row_reveals_no_undecided_row(tmp_path: Path) -> None:
    # The row is not beside the hole: only what the index may have said casts doubt on it.
    between = message_key(PREFIX, Offset(PLACE.timestamp_ms, 4))
    plain = {between: MessageRow(payload=b"plain").to_bytes(between)}
    write(tmp_path, {KEY: PUBLISHED, **TOPICS, **INDEXED, **plain})
    settle(tmp_path)
    damage(newest_table(tmp_path), INDEXED[INDEX_ENTRY.key][-19:])

    account, pointer = salvaged(tmp_path, ProvenOutcome.UNKNOWN)

    assert pointer == -POINTER
    assert account.lost != []


def test_only_the_messages_that_are_left_return(tmp_path: Path) -> None:
    places = [Offset(PLACE.timestamp_ms, seq) for seq in range(5)]
    keys = [message_key(PREFIX, place) for place in places]
    rows = {
        key: MessageRow(tx_pointer=-POINTER, payload=b"aside").to_bytes(key)
        for key in keys
        if key != keys[2]  # it is lost
    }
    entry = replace(INDEX_ENTRY, kind=ASIDE_ROWS, first=places[0], last=places[4])
    store = {**TOPICS, **rows, entry.key: entry.to_bytes(entry.key)}
    write(tmp_path, store)
    new = MemoryStore()
    salvage = MessageSalvage(
        ReadableRows(tmp_path),
        new,
        outcome=lambda _: ProvenOutcome.COMMITTED,
        remembers_commit=lambda _: True,
    )

    account = salvage.copy_rows()
    salvage.write_metadata(account.metadata, PLACE)

    kept = [IndexedRange.from_bytes(*row) for row in new.rows.items() if row[0][:1] == INDEX]
    assert [(each.kind, each.first, each.last) for each in kept] == [
        (ASIDE_ROWS, places[0], places[1]),
        (ASIDE_ROWS, places[3], places[4]),
    ]


def test_messages_that_are_aside_without_a_proven_commit_stay_hidden(tmp_path: Path) -> None:
    entry = replace(INDEX_ENTRY, kind=ASIDE_ROWS)
    write(tmp_path, {**TOPICS, KEY: MARKED, entry.key: entry.to_bytes(entry.key)})

    account, pointer = salvaged(tmp_path, ProvenOutcome.UNKNOWN)

    assert (pointer, account.hidden) == (-POINTER, {POINTER})
    assert account.kept["index"] == 0


def test_a_block_that_another_tool_compressed_is_read(tmp_path: Path) -> None:
    rows = {message_key(PREFIX, Offset(PLACE.timestamp_ms, seq)): seq for seq in range(200)}
    packed = {key: MessageRow(payload=b"again and " * 20).to_bytes(key) for key in rows}
    with_compression = plyvel.DB(str(tmp_path), create_if_missing=True)
    for key, value in packed.items():
        with_compression.put(key, value)
    with_compression.close()
    plyvel.DB(str(tmp_path)).close()
    assert newest_table(tmp_path).stat().st_size < 200 * 100

    new = MemoryStore()
    account = MessageSalvage(
        ReadableRows(tmp_path),
        new,
        outcome=lambda _: ProvenOutcome.UNKNOWN,
        remembers_commit=lambda _: False,
    ).copy_rows()
    assert account.lost == []
    assert account.kept["message"] == 200
