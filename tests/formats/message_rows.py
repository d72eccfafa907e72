"""The independent reader's part for the message store (docs/formats.md §8)."""

import json
import struct
from contextlib import closing
from pathlib import Path
from zlib import crc32

import msgpack

from tests.formats.transaction_files import DamagedError, Value
from tuff_storage.leveldb.engine import plyvel

HAS_POINTER, HAS_TTL, HAS_ATTRIBUTES, IS_REFERENCE, IS_PACKED = 1, 2, 4, 8, 16
HAS_SEEN = 1  # of the row `mark`: the edit up to which transactions were durable


def read_row(key: bytes, value: bytes) -> Value:
    """§8: one key and its value."""
    table, rest = key[:1], key[1:]
    flags, body = _checked(key, value)
    if table in b"mp" and flags == IS_PACKED:
        return {"table": "packed", "rows": _packed_rows(key, body)}
    if table not in b"mptd" and flags and (key, flags) != (b"smark", HAS_SEEN):
        raise DamagedError(f"flags {flags} where there are none")
    readers = {
        b"m": _message_row, b"p": _payload_row, b"t": _topic_row, b"i": _index_row, b"s": _metadata,
        b"h": _hold_row, b"r": _position_row, b"d": _delayed_row,
        b"k": _producer_row,
    }  # fmt: skip
    return readers[table](rest, flags, body)


def _checked(key: bytes, value: bytes) -> tuple[int, bytes]:
    """§8.1"""
    flags, crc = struct.unpack_from(">BI", value)
    if crc32(key + value[:1] + value[5:]) != crc:
        raise DamagedError("the checksum does not match")
    if flags & ~(HAS_POINTER | HAS_TTL | HAS_ATTRIBUTES | IS_REFERENCE) and flags != IS_PACKED:
        raise DamagedError(f"unknown flags {flags}")
    return flags, value[5:]


def _packed_rows(key: bytes, body: bytes) -> list[Value]:
    """§8.8"""
    (count,) = struct.unpack_from(">H", body)
    sizes = struct.unpack_from(f">{count}I", body, 2)
    checksums = struct.unpack_from(f">{count}I", body, 2 + 4 * count)
    at, last_seq = 2 + 8 * count, int.from_bytes(key[-2:], "big")
    rows = []
    for number, (size, checksum) in enumerate(zip(sizes, checksums, strict=True)):
        own_key = key[:-2] + (last_seq + 1 - count + number).to_bytes(2, "big")
        rows.append(read_row(own_key, struct.pack(">BI", 0, checksum) + body[at : at + size]))
        at += size
    if at != len(body) or not rows:
        raise DamagedError("the sizes of packed rows are not those of their payloads")
    return rows


def _body(flags: int, body: bytes) -> tuple[Value, bytes]:
    found: Value = {"pointer": None, "ttl_s": None, "attributes": None}
    at = 0
    if flags & HAS_POINTER:
        (found["pointer"],) = struct.unpack_from(">q", body, at)
        at += 8
    if flags & HAS_TTL:
        (found["ttl_s"],) = struct.unpack_from(">I", body, at)
        at += 4
    if flags & HAS_ATTRIBUTES:
        (size,) = struct.unpack_from(">I", body, at)
        found["attributes"] = _attributes(body[at + 4 : at + 4 + size])
        at += 4 + size
    if at > len(body):
        raise DamagedError("the body is cut off")
    return found, body[at:]


def _attributes(data: bytes) -> Value | bytes:
    """§8.1; the bytes, if they have another form."""
    try:
        key, tags, headers = msgpack.unpackb(data)
        pairs = [[name.encode().decode(), bytes(value)] for name, value in headers]
        texts = [tag.encode().decode() for tag in tags]
    except (ValueError, TypeError, AttributeError):
        return data
    return {"key": key, "tags": texts, "headers": pairs}


def _offset(data: bytes) -> list[int]:
    return list(struct.unpack(">QH", data))


def _prefix(data: bytes) -> Value:
    return {
        "topic": data[:-5].decode("ascii"),
        "generation": int.from_bytes(data[-4:], "big"),
    }


def _message_row(rest: bytes, flags: int, body: bytes) -> Value:
    found, content = _body(flags, body)
    row = {"table": "message", **_prefix(rest[:-10]), "offset": _offset(rest[-10:]), **found}
    if not flags & IS_REFERENCE:
        return {**row, "payload": content, "reference": None}
    if len(content) != 24 or found["pointer"] is None:
        raise DamagedError("no reference row")
    count = int.from_bytes(content[20:], "big")
    first, last = _offset(content[:10]), _offset(content[10:20])
    return {**row, "payload": None, "reference": {"first": first, "last": last, "count": count}}


def _payload_row(rest: bytes, flags: int, body: bytes) -> Value:
    if flags & (HAS_POINTER | IS_REFERENCE):
        raise DamagedError(f"flags {flags} in a payload row")
    found, content = _body(flags, body)
    pointer = int.from_bytes(rest[-18:-10], "big")
    own = {**found, "pointer": pointer, "offset": _offset(rest[-10:]), "payload": content}
    return {"table": "payload", **_prefix(rest[:-18]), **own}


def _delayed_row(rest: bytes, flags: int, body: bytes) -> Value:
    if rest[-18:-10] == b"\xff" * 8:
        return _undecided_row(rest, flags, body)
    if flags & (HAS_POINTER | IS_REFERENCE):
        raise DamagedError(f"flags {flags} in a delayed row")
    found, content = _body(flags, body)
    del found["pointer"]
    times = {"due_ms": int.from_bytes(rest[-18:-10], "big"), "offset": _offset(rest[-10:])}
    return {"table": "delayed", **_prefix(rest[:-18]), **times, **found, "payload": content}


def _undecided_row(rest: bytes, flags: int, body: bytes) -> Value:
    """§8.9"""
    found, content = _body(flags, body)
    if flags != HAS_POINTER or len(content) < 8:
        raise DamagedError("no undecided row")
    key = b"d" + rest[:-18] + content[:8] + rest[-10:]
    delayed = _delayed_row(key[1:], *_checked(key, content[8:]))
    return {**delayed, "table": "undecided", "pointer": found["pointer"]}


def _topic_row(rest: bytes, flags: int, body: bytes) -> Value:
    if flags & ~3:
        raise DamagedError(f"flags {flags} in a topic row")
    form = json.loads(body[24:])
    partitions = None
    if flags & 1:
        partitions = [form["partitions"], form["retired"], form["next"]]
        form = form["properties"]
    return {
        "table": "topic",
        "topic": rest[:-1].decode("ascii"),
        "generation": int.from_bytes(body[:4], "big", signed=True),
        "log_start": list(struct.unpack(">QHQH", body[4:24])),
        "properties": form,
        "partitions": partitions,
        "retired": bool(flags & 2),
    }


def _index_row(rest: bytes, _flags: int, body: bytes) -> Value:
    final, written_ms = struct.unpack(">BQ", body[10:])
    if rest[8:9] not in {b"m", b"p", b"a"} or final > 1:
        raise DamagedError(f"an index row of the kind {rest[8:9]!r}, final {final}")
    return {
        "table": "index",
        "pointer": int.from_bytes(rest[:8], "big"),
        "kind": rest[8:9].decode("ascii"),
        **_prefix(rest[9:-10]),
        "first": _offset(rest[-10:]),
        "last": _offset(body[:10]),
        "final": bool(final),
        "written_ms": written_ms,
    }


def _hold_row(rest: bytes, _flags: int, body: bytes) -> Value:
    *first, set_at_ms, expires_at_ms = struct.unpack(">QHQHQQ", body)
    times = {"set_at_ms": set_at_ms, "expires_at_ms": expires_at_ms}
    return {"table": "hold", **_named(rest), "first": first, **times}


def _position_row(rest: bytes, _flags: int, body: bytes) -> Value:
    *position, updated_at_ms = struct.unpack(">QHQHQ", body)
    found = {"position": position, "updated_at_ms": updated_at_ms}
    return {"table": "position", **_named(rest), **found}


def _producer_row(rest: bytes, _flags: int, body: bytes) -> Value:
    """§8.10"""
    at = _behind_prefix(rest)
    if not rest[at:]:
        return {"table": "gap", **_prefix(rest), "until_ms": struct.unpack(">Q", body)[0]}
    found = {"producer": rest[at:].hex(), "answered": int.from_bytes(body[:8], "big")}
    entries, body = [], body[8:]
    while body:
        number, crc, kind, ms, seq, count = struct.unpack_from(">QIBQHI", body)
        body = body[27:]
        last = ms * 65_536 + seq + count - 1
        due_ms, partitions = None, ()
        if kind & 1:
            due_ms, body = list(struct.unpack_from(">QQ", body)), body[16:]
        if kind & 2:
            size = int.from_bytes(body[:2], "big")
            partitions, body = struct.unpack_from(f">{size}H", body, 2), body[2 + 2 * size :]
        entries.append(
            {"number": number, "crc": crc, "first": [ms, seq], "last": list(divmod(last, 65_536)),
             "due_ms": due_ms, "partitions": list(partitions)}
        )  # fmt: skip
    return {"table": "producer", **_prefix(rest[:at]), **found, "entries": entries}


def _behind_prefix(rest: bytes) -> int:
    return rest.index(b":", rest.index(b":") + 1) + 5  # behind both names, and the generation


def _named(rest: bytes) -> Value:
    at = _behind_prefix(rest)
    return {**_prefix(rest[:at]), "name": rest[at:].decode("ascii")}


def _metadata(rest: bytes, flags: int, body: bytes) -> Value:
    name = rest.decode("ascii")
    if name == "mark":
        has_seen = flags == HAS_SEEN
        batch_number, ms, seq, clock_ms, *seen = struct.unpack(">QQHQ" + "Q" * has_seen, body)
        found = {"batch_number": batch_number, "last": [ms, seq], "clock_ms": clock_ms}
        if seen:
            found["seen_lsn"] = seen[0]
    else:
        found = json.loads(body)
        if found["format"] != 1:
            raise DamagedError(f"a store of format {found['format']}")
    return {"table": "metadata", "name": name, **found}


def read_store(directory: Path) -> list[Value]:
    """Every row of the tables of §8, in key order."""
    with closing(plyvel.DB(str(directory), create_if_missing=False)) as database:
        found = [read_row(key, value) for key, value in database if key[:1] in b"mptishrd"]
    return [row for each in found for row in each.get("rows", [each])]
