"""Every row of a store, decoded for people: what `tuff table show` prints (design §5).

For a directory that no server has open. Damage is a row of its own (`kind` is `damage`, with
`table`, `place`, which is the key in hex, and `reason`), and keeps no other row from being read.
Pointers are decimal strings, since `jq` rounds larger numbers.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from messaging.bookmarks import Hold, Position
from messaging.facts import Facts, Mark
from messaging.index import IndexedRange
from messaging.keys import (
    FACTS,
    HOLDS,
    INDEX,
    MARK_KEY,
    MESSAGES,
    PAYLOADS,
    POSITIONS,
    TOPICS,
    place_in,
    pointer_in,
    row_prefix,
    split_bookmark,
    split_prefix,
    split_topic,
)
from messaging.rows import DamagedRowError, MessageRow, PayloadRow
from messaging.run_table import RunTable
from messaging.runs import first_whole
from messaging.storage.leveldb import LevelDbTable
from messaging.storage.seam import Store, StoreError
from messaging.topics import TopicRecord
from tuff.disk.lock import DirectoryLockedError
from tuff.protocol.forms import payload_to_json
from tuff.protocol.ids import Place

Row = Mapping[str, object]

_TABLES = {
    MESSAGES: "message",
    PAYLOADS: "payload",
    TOPICS: "topic",
    INDEX: "index",
    FACTS: "fact",
    HOLDS: "hold",
    POSITIONS: "position",
}


def table_rows(directory: Path) -> Iterator[Row]:
    """Every row of the store in a directory, and last, if not all could be read, the damage.

    Raises:
        OSError: the directory can't be read, or a server has it open.
    """
    if not (directory / "CURRENT").is_file():
        below = directory / "messages"
        reason = f"it is in {below}" if below.is_dir() else "there is no LevelDB table in it"
        raise FileNotFoundError(2, reason, str(directory))
    try:
        store = RunTable(LevelDbTable(directory, first_whole=first_whole))
    except DirectoryLockedError as error:
        raise BlockingIOError(11, str(error), str(directory)) from None
    except StoreError as error:
        yield _damage(None, None, str(error))
        return
    with closing(store):
        yield from store_rows(store)


def store_rows(store: Store) -> Iterator[Row]:
    """Every row of an open store."""
    for tag in sorted(_TABLES):
        try:
            with closing(store.scan(tag, bytes((tag[0] + 1,)))) as rows:
                for key, value in rows:
                    yield _row(tag, key, value)
        except StoreError as error:
            yield _damage(_TABLES[tag], None, str(error))


def decoded(key: bytes, value: bytes) -> Row:
    """One row; one that can't be read is damage."""
    if key[:1] not in _TABLES:
        return {**_damage(None, key.hex(), "no table has such a key"), "value": value.hex()}
    return _row(key[:1], key, value)


def _row(tag: bytes, key: bytes, value: bytes) -> Row:
    place = key[1:].hex()
    try:
        return {"kind": _TABLES[tag], "key": place, **_DECODERS[tag](key, value)}
    except (DamagedRowError, ValueError, IndexError, struct.error) as error:
        return {**_damage(_TABLES[tag], place, str(error)), "value": value.hex()}


def _damage(table: str | None, place: str | None, reason: str) -> Row:
    """`table` is None where the whole store can't be read, `place` where a whole table can't."""
    return {"kind": "damage", "table": table, "place": place, "reason": reason}


def _message(key: bytes, value: bytes) -> Row:
    row = MessageRow.from_bytes(key, value)
    brings = row.reference
    return {
        **_place(key),
        "tx_pointer": _pointer(row.tx_pointer),
        "ttl_s": row.ttl_s,
        **(
            {"payload": payload_to_json(row.payload)}
            if brings is None
            else {"brings": brings.count, "first": list(brings.first), "last": list(brings.last)}
        ),
    }


def _stored(key: bytes, value: bytes) -> Row:
    row = PayloadRow.from_bytes(key, value)
    pointer = {"write_pointer": _pointer(pointer_in(key))}
    return {**_place(key), **pointer, "ttl_s": row.ttl_s, "payload": payload_to_json(row.payload)}


def _topic(key: bytes, value: bytes) -> Row:
    record = TopicRecord.from_bytes(key, value)
    return {
        "topic": str(split_topic(key[1:])),
        "generation": record.generation,
        "floor": record.floor.hex(),
        "properties": dict(record.properties),
    }


def _indexed(key: bytes, value: bytes) -> Row:
    entry = IndexedRange.from_bytes(key, value)
    return {
        "write_pointer": _pointer(entry.pointer),
        "rows": "messages" if entry.kind == MESSAGES else "payloads",
        "topic": str(entry.topic),
        "generation": entry.generation,
        "first": list(entry.first),
        "last": list(entry.last),
        "final": entry.final,
        "written_at_ms": entry.written_ms,
    }


def _fact(key: bytes, value: bytes) -> Row:
    name = {"name": key[1:].decode("ascii", "replace")}
    if key == MARK_KEY:
        mark = Mark.from_bytes(key, value)
        last = list(mark.last)
        seen = {} if mark.seen_lsn is None else {"seen_lsn": mark.seen_lsn}
        told = {"batch_number": mark.batch_number, "last": last, "clock_ms": mark.clock_ms}
        return {**name, **told, **seen}
    facts = asdict(Facts.from_bytes(key, value))
    return {**name, **facts, "highest_pointer": _pointer(facts["highest_pointer"])}


def _hold(key: bytes, value: bytes) -> Row:
    hold = Hold.from_bytes(key, value)
    return {
        **_bookmark(key),
        "from": hold.first.hex(),
        "set_at_ms": hold.set_at_ms,
        "expires_at_ms": hold.expires_at_ms,
    }


def _position(key: bytes, value: bytes) -> Row:
    found = Position.from_bytes(key, value)
    told = {"position": found.position.hex(), "updated_at_ms": found.updated_at_ms}
    return {**_bookmark(key), **told}


def _bookmark(key: bytes) -> Row:
    topic, generation, name = split_bookmark(key)
    return {"topic": str(topic), "generation": generation, "name": name}


def _place(key: bytes) -> Row:
    topic, generation = split_prefix(row_prefix(key))
    place: Place = place_in(key)
    return {
        "topic": str(topic),
        "generation": generation,
        "timestamp_ms": place.timestamp_ms,
        "seq_id": place.seq_id,
    }


def _pointer(pointer: int | None) -> str | None:
    return None if pointer is None else str(pointer)


_DECODERS: Mapping[bytes, Callable[[bytes, bytes], Row]] = {
    MESSAGES: _message,
    PAYLOADS: _stored,
    TOPICS: _topic,
    INDEX: _indexed,
    FACTS: _fact,
    HOLDS: _hold,
    POSITIONS: _position,
}
