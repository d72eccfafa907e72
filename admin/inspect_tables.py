"""Decode every row of a message store: `tuff table show` (design §5).

For a directory that no server has open. A corrupt row is shown as an object of the kind `damage`,
with `table`, `place` (the key in hex) and `reason`; the other rows are read all the same. Pointers
are decimal strings, since `jq` rounds larger numbers.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from admin.findings import RefusedError
from admin.readable_rows import TABLE_NAMES
from messaging.engines.engine_interface import StoreError
from messaging.engines.leveldb import LevelDbStore
from messaging.engines.row_store import Store
from messaging.log.rows_by_transaction import (
    ASIDE_ROWS,
    DELAYED_ROWS,
    MESSAGE_ROWS,
    PAYLOAD_ROWS,
    IndexedRange,
)
from messaging.log.topics import TopicRecord
from messaging.model.attributes import decode_attributes
from messaging.model.producer_rows import GapRow, ProducerRow, split_producer_key
from messaging.model.row_format import (
    DELAYED,
    HOLDS,
    INDEX,
    LAST_BATCH_KEY,
    MESSAGES,
    METADATA,
    PAYLOADS,
    POSITIONS,
    PRODUCERS,
    TOPICS,
    DamagedRowError,
    Hold,
    LastBatch,
    MessageRow,
    Position,
    StoreMetadata,
    delayed_key,
    is_undecided,
    offset_in,
    pointer_in,
    row_prefix,
    split_named_row_key,
    split_prefix,
    split_topic,
    split_undecided,
)
from tuff.protocol.attributes import NO_ATTRIBUTES
from tuff.protocol.ids import DelayedId, Offset
from tuff.protocol.json_bodies import attributes_to_json, payload_to_json

Line = Mapping[str, object]


def table_rows(directory: Path) -> Iterator[Line]:
    """Every row of the store in a directory; corruption that hides rows comes last.

    Raises:
        RefusedError: the directory contains no message store.
        DirectoryLockedError: a server has it open.
        OSError: the directory can't be read.
    """
    if not (directory / "CURRENT").is_file():
        below = directory / "messages"
        advice = below if below.is_dir() else "the directory messages/ of a server's data directory"
        raise RefusedError(f"{directory} is not a message store; name {advice}")
    try:
        store = Store(LevelDbStore(directory))
    except StoreError as error:
        yield _damage(None, None, str(error))
        return
    with closing(store):
        yield from store_rows(store)


def store_rows(store: Store) -> Iterator[Line]:
    """Every row of an open store."""
    for tag in sorted(TABLE_NAMES):
        try:
            with closing(store.scan(tag, bytes((tag[0] + 1,)))) as rows:
                for key, value in rows:
                    yield _row(tag, key, value)
        except StoreError as error:
            yield _damage(TABLE_NAMES[tag], None, str(error))


def decoded(key: bytes, value: bytes) -> Line:
    """One row; an object of the kind `damage` if it can't be read."""
    if key[:1] not in TABLE_NAMES:
        return {**_damage(None, key.hex(), "it belongs to no known table"), "value": value.hex()}
    return _row(key[:1], key, value)


def _row(tag: bytes, key: bytes, value: bytes) -> Line:
    row_key = key[1:].hex()
    try:
        return {"kind": TABLE_NAMES[tag], "key": row_key, **_DECODERS[tag](key, value)}
    except (DamagedRowError, ValueError, IndexError, struct.error) as error:
        return {**_damage(TABLE_NAMES[tag], row_key, str(error)), "value": value.hex()}


def _damage(table: str | None, place: str | None, reason: str) -> Line:
    """`table` is None if the whole store can't be read, `place` if a whole table can't."""
    return {"kind": "damage", "table": table, "place": place, "reason": reason}


def _message(key: bytes, value: bytes) -> Line:
    row = MessageRow.from_bytes(key, value)
    payloads = row.reference
    return {
        **_offset(key),
        "tx_pointer": _pointer(row.tx_pointer),
        "ttl_s": row.ttl_s,
        **_attributes(row.attributes),
        **(
            {"payload": payload_to_json(row.payload)}
            if payloads is None
            else {
                "brings": payloads.count,
                "first": list(payloads.first),
                "last": list(payloads.last),
            }
        ),
    }


def _payload(key: bytes, value: bytes) -> Line:
    row = MessageRow.from_bytes(key, value)
    return {
        **_offset(key),
        "write_pointer": _pointer(pointer_in(key)),
        "ttl_s": row.ttl_s,
        **_attributes(row.attributes),
        "payload": payload_to_json(row.payload),
    }


def _attributes(stored: bytes | None) -> Line:
    """The attributes of a row that has any; the bytes in hex, if they are of another form."""
    if stored is None:
        return {}
    found = decode_attributes(stored)
    return {"attributes": stored.hex() if found == NO_ATTRIBUTES else attributes_to_json(found)}


def _delayed(key: bytes, value: bytes) -> Line:
    pointer = None
    if is_undecided(key):
        pointer, delayed_id, value = split_undecided(key, value)
        key = delayed_key(row_prefix(key), delayed_id)
    row = MessageRow.from_bytes(key, value)
    return {
        **_offset(key),
        "tx_pointer": _pointer(pointer),
        "due_ms": DelayedId.from_bytes(key).due_ms,
        "ttl_s": row.ttl_s,
        **_attributes(row.attributes),
        "payload": payload_to_json(row.payload),
    }


def _topic(key: bytes, value: bytes) -> Line:
    record = TopicRecord.from_bytes(key, value)
    return {
        "topic": str(split_topic(key[1:])),
        "generation": record.generation,
        "floor": record.log_start.hex(),
        "properties": dict(record.properties),
        "partitions": list(record.partitions.active),
        "retired_partitions": list(record.partitions.retired),
        "is_retired": record.is_retired,
    }


_ROWS = {
    MESSAGE_ROWS: "messages",
    PAYLOAD_ROWS: "payloads",
    ASIDE_ROWS: "set aside",
    DELAYED_ROWS: "delayed",
}


def _index(key: bytes, value: bytes) -> Line:
    entry = IndexedRange.from_bytes(key, value)
    return {
        "write_pointer": _pointer(entry.pointer),
        "rows": _ROWS[entry.kind],
        "topic": str(entry.topic),
        "generation": entry.generation,
        "first": list(entry.first),
        "last": list(entry.last),
        "final": entry.final,
        "written_at_ms": entry.written_ms,
    }


def _fact(key: bytes, value: bytes) -> Line:
    name = {"name": key[1:].decode("ascii", "replace")}
    if key == LAST_BATCH_KEY:
        newest = LastBatch.from_bytes(key, value)
        last = list(newest.last)
        seen = {} if newest.seen_lsn is None else {"seen_lsn": newest.seen_lsn}
        batch = {"batch_number": newest.batch_number, "last": last, "clock_ms": newest.clock_ms}
        return {**name, **batch, **seen}
    facts = asdict(StoreMetadata.from_bytes(key, value))
    return {**name, **facts, "highest_pointer": _pointer(facts["highest_pointer"])}


def _hold(key: bytes, value: bytes) -> Line:
    hold = Hold.from_bytes(key, value)
    return {
        **_name(key),
        "from": hold.first.hex(),
        "set_at_ms": hold.set_at_ms,
        "expires_at_ms": hold.expires_at_ms,
    }


def _position(key: bytes, value: bytes) -> Line:
    found = Position.from_bytes(key, value)
    return {
        **_name(key),
        "position": found.position.hex(),
        "updated_at_ms": found.updated_at_ms,
    }


def _producer(key: bytes, value: bytes) -> Line:
    topic, generation, producer = split_producer_key(key)
    found: Line = {"topic": str(topic), "generation": generation}
    if not producer:
        return {**found, "gap_until_ms": GapRow.from_bytes(key, value).until_ms}
    row = ProducerRow.from_bytes(key, value)
    numbers = list(row.entries)
    return {**found, "producer": producer.hex(), "answered": row.answered, "numbers": numbers}


def _name(key: bytes) -> Line:
    topic, generation, name = split_named_row_key(key)
    return {"topic": str(topic), "generation": generation, "name": name}


def _offset(key: bytes) -> Line:
    topic, generation = split_prefix(row_prefix(key))
    offset: Offset = offset_in(key)
    return {
        "topic": str(topic),
        "generation": generation,
        "timestamp_ms": offset.timestamp_ms,
        "seq_id": offset.seq_id,
    }


def _pointer(pointer: int | None) -> str | None:
    return None if pointer is None else str(pointer)


_DECODERS: Mapping[bytes, Callable[[bytes, bytes], Line]] = {
    MESSAGES: _message,
    PAYLOADS: _payload,
    DELAYED: _delayed,
    TOPICS: _topic,
    INDEX: _index,
    METADATA: _fact,
    HOLDS: _hold,
    POSITIONS: _position,
    PRODUCERS: _producer,
}
