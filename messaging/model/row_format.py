"""Row keys of every table, big-endian, so that byte order is the order of reading (design §5).

    store key   := table(1) row key
    prefix      := UTF8("ns:topic:") generation(4)
    message row := prefix publish_ts(8) seq(2)
    payload row := prefix write_pointer(8) write_ts(8) seq(2)
    delayed row := prefix due_ms(8) publish_ts(8) seq(2)
    undecided   := prefix ffffffffffffffff publish_ts(8) seq(2)    in the table of delayed rows
    topic row   := UTF8("ns:topic:")
    index row   := write_pointer(8) kind(1) prefix first_ts(8) first_seq(2)
    metadata    := its name
    hold row    := prefix UTF8(name)            a position row likewise
    producer row := prefix producer(8)          messaging/model/producer_rows.py has its value

One physical store contains all tables, each under a one-byte tag, since one batch must span them.
A name has no `:`, and `topic` may be followed by parts (`tuff/protocol/ids.py`). A generation is
below 0x2d000000, so its first byte is no character of a name, and no prefix begins another.

Stored values, with a checksum over key and value (design §5).

    value       := flags(1) crc(4) [pointer(8)] [ttl_s(4)] [size(4) attributes(size)] rest
    flags       := 1 pointer | 2 ttl | 4 attributes | 8 reference, or 16: packed rows, as
                   messaging/model/packed_rows.py has it
    message row := inline: rest is the payload · reference: rest is range(10+10) count(4)
    payload row := no pointer (it is in the key), rest is the payload
    delayed row := the message row that is written at the due time; no pointer, no reference
    undecided   := a message row with a pointer; its payload is due_ms(8) value: the value of the
                   delayed row with this due time and this offset, which a commit writes
    range       := first_ts(8) first_seq(2) last_ts(8) last_seq(2)     both included

The CRC-32 covers the store key, the flags and all that follows the CRC, so that a whole value under
the wrong key is damage too. Attributes are bytes here (messaging/model/attributes.py). The topic,
index and metadata rows frame their bodies the same way, with no flags or with their own.

A value with a correct checksum and unknown flags was written by a newer version. It is refused like
damage, but with another advice: to start the newer server, and not to use `tuff salvage`.

Holds and positions.

    hold row     := flags(1) crc(4) first(20) set_at_ms(8) expires_at_ms(8)
    position row := flags(1) crc(4) position(20) updated_at_ms(8)

Metadata of the store, under two keys.

    last batch := flags(1) crc(4) batch_number(8) last_ts(8) last_seq(2) clock_ms(8) [seen_lsn(8)]
    metadata   := flags(1) crc(4) JSON object

Every batch writes the last-batch row. It says whether that batch is on the disk, which offsets are
assigned, and when the server last ran. The first batch writes the metadata row, which is therefore
older than any other row; later batches write it when a member changed.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import repeat
from typing import Any

from messaging.model.attributes import encode_attributes
from tuff.protocol.attributes import Attributes
from tuff.protocol.errors import InvalidNameError
from tuff.protocol.ids import (
    DELAYED_ID_SIZE,
    MESSAGE_ID_SIZE,
    NEVER_MS,
    SEQ_ID_LIMIT,
    DelayedId,
    MessageId,
    Offset,
    TopicId,
    check_name,
)
from tuff.protocol.values import value
from tuff_storage.checksum import crc32

Row = tuple[bytes, bytes]  # a store key and a stored value

MESSAGES = b"m"
PAYLOADS = b"p"
TOPICS = b"t"
INDEX = b"i"
METADATA = b"s"
DELAYED = b"d"
HOLDS = b"h"
POSITIONS = b"r"
PRODUCERS = b"k"
ALL_TABLES = (METADATA, DELAYED, HOLDS, INDEX, PRODUCERS, MESSAGES, PAYLOADS, POSITIONS, TOPICS)
# The keys of messages and payloads are adjacent, so that one scan reads both.
ROWS_STOP = b"q"

LAST_BATCH_KEY = METADATA + b"mark"
METADATA_KEY = METADATA + b"facts"

# The first byte of a generation is no character of a name: 0x2d000000 would take 755 million
# creations of one topic.
_PREFIX = re.compile(rb"[^:]*:(?:[0-9A-Za-z._-]+:)+[\x00-\x2c].{3}", re.DOTALL)
_GENERATION = struct.Struct(">I")
_OFFSET = struct.Struct(">QH")
_WRITE_POINTER = struct.Struct(">Q")
_DUE = struct.Struct(">Q")
assert (_GENERATION.size, _OFFSET.size, _WRITE_POINTER.size) == (4, 10, 8)

OFFSET_SIZE = _OFFSET.size
_TAIL_SIZES = {
    MESSAGES: OFFSET_SIZE,
    PAYLOADS: _WRITE_POINTER.size + OFFSET_SIZE,
    DELAYED: DELAYED_ID_SIZE,
}  # bytes behind the prefix of a key
_BEHIND_IDS = b"\xff" * (DELAYED_ID_SIZE + 1)
SEQ_SIZE = 2  # bytes; the end of an offset: the number of a row in its millisecond
pack_offset = _OFFSET.pack
unpack_offset = _OFFSET.unpack


def topic_bytes(topic: TopicId) -> bytes:
    """The first bytes of all keys of the topic, after the table's tag."""
    return f"{topic.namespace}:{topic.name}:".encode()


def topic_key(topic: TopicId) -> bytes:
    """The key of the topic's metadata row."""
    return TOPICS + topic_bytes(topic)


def prefix_of(topic: TopicId, generation: int) -> bytes:
    """The first bytes of all row keys of one generation, after the table's tag."""
    return topic_bytes(topic) + _GENERATION.pack(generation)


def message_key(prefix: bytes, offset: Offset) -> bytes:
    """The key of the message row at an offset."""
    return MESSAGES + prefix + _OFFSET.pack(*offset)


def message_keys(prefix: bytes, first: Offset, count: int) -> list[bytes]:
    """The keys of `count` neighbouring message rows."""
    return _neighbours(MESSAGES + prefix, first, count)


def pointer_prefix(prefix: bytes, pointer: int) -> bytes:
    """The first bytes of the keys of all payload rows stored under one write pointer."""
    return PAYLOADS + prefix + _WRITE_POINTER.pack(pointer)


def payload_key(prefix: bytes, pointer: int, offset: Offset) -> bytes:
    """The key of the payload row written at an offset."""
    return pointer_prefix(prefix, pointer) + _OFFSET.pack(*offset)


def payload_keys(prefix: bytes, pointer: int, first: Offset, count: int) -> list[bytes]:
    """The keys of `count` payload rows that were written at neighbouring offsets."""
    return _neighbours(pointer_prefix(prefix, pointer), first, count)


def delayed_key(prefix: bytes, delayed_id: DelayedId) -> bytes:
    """The key of a message that waits until it is due."""
    return DELAYED + prefix + delayed_id.to_bytes()


def undecided_key(prefix: bytes, offset: Offset) -> bytes:
    """The key of the undecided row of a delayed message: its transaction has not ended."""
    return delayed_key(prefix, DelayedId(NEVER_MS, offset))


def undecided_row(pointer: int, delayed_id: DelayedId, value: bytes) -> MessageRow:
    """The undecided row from which a commit makes the delayed row with this id and value."""
    return MessageRow(tx_pointer=pointer, payload=_DUE.pack(delayed_id.due_ms) + value)


def split_undecided(key: bytes, value: bytes) -> tuple[int, DelayedId, bytes]:
    """The pointer in an undecided row, and the id and the value of its delayed row. Raises:
    DamagedRowError."""
    row = MessageRow.from_bytes(key, value)
    if row.tx_pointer is None or len(row.payload) < _DUE.size:
        raise DamagedRowError(
            f"an undecided row has a pointer, and a payload of {_DUE.size} bytes or more"
        )
    (due_ms,) = _DUE.unpack_from(row.payload)
    return row.tx_pointer, DelayedId(due_ms, offset_in(key)), row.payload[_DUE.size :]


def is_undecided(key: bytes) -> bool:
    """Whether the key of a delayed row is that of an undecided one."""
    return DelayedId.from_bytes(key).due_ms == NEVER_MS


def undecided_start(prefix: bytes) -> bytes:
    """The first key behind all messages of a prefix that wait until they are due, before the
    undecided ones."""
    return undecided_key(prefix, Offset(0, 0))


def delayed_stop(prefix: bytes) -> bytes:
    """The first key behind all delayed and undecided rows of a prefix."""
    return DELAYED + prefix + _BEHIND_IDS


def _neighbours(start: bytes, first: Offset, count: int) -> list[bytes]:
    if count == 1:
        return [start + _OFFSET.pack(*first)]
    numbers = range(first.to_int(), first.to_int() + count)
    return [start + each.to_bytes(OFFSET_SIZE, "big") for each in numbers]


def index_key(pointer: int, kind: bytes, prefix: bytes, first: Offset) -> bytes:
    """The key of an index row, for the rows of one write under a pointer."""
    return INDEX + _WRITE_POINTER.pack(pointer) + kind + prefix + _OFFSET.pack(*first)


def named_row_key(table: bytes, prefix: bytes, name: str) -> bytes:
    """The key of a hold or a named position."""
    return table + prefix + name.encode("ascii")


def split_named_row_key(key: bytes) -> tuple[TopicId, int, str]:
    """The topic, the generation and the name in the key of a hold or a named position.

    Raises:
        ValueError: no such key has these bytes.
    """
    prefix, name = split_at_prefix(key)
    topic, generation = split_prefix(prefix)
    try:
        return topic, generation, check_name(name.decode("ascii"), what="name")
    except (UnicodeDecodeError, InvalidNameError) as error:
        raise ValueError(f"{key!r} has no name at its end") from error


def split_at_prefix(key: bytes) -> tuple[bytes, bytes]:
    """The prefix in the key of a row that something else than an offset ends, and the rest."""
    found = _PREFIX.match(key, 1)
    return (found[0], key[found.end() :]) if found else (key[1:], b"")


def offset_in(key: bytes) -> Offset:
    """The offset that ends the key of a message, payload or index row."""
    return Offset(*_OFFSET.unpack_from(key, len(key) - _OFFSET.size))


def offset_number(key: bytes) -> int:
    """The offset that ends a key, as a number; those of neighbours differ by one."""
    return int.from_bytes(key[-OFFSET_SIZE:], "big")


def pointer_in(key: bytes) -> int:
    """The write pointer in the key of a payload row."""
    (pointer,) = _WRITE_POINTER.unpack_from(key, len(key) - _OFFSET.size - _WRITE_POINTER.size)
    return int(pointer)


def first_offset(front: bytes, key: bytes) -> Offset | None:
    """The first offset for which `front` and the offset are a key that is not before `key`; None if
    there is none."""
    if key <= front:
        return Offset(0, 0)
    rest = key[len(front) :]
    number = int.from_bytes(rest[:OFFSET_SIZE].ljust(OFFSET_SIZE, b"\x00"), "big")
    number += len(rest) > OFFSET_SIZE
    if not key.startswith(front) or number >> (8 * OFFSET_SIZE):
        return None
    return Offset.from_int(number)


def split_prefix(prefix: bytes) -> tuple[TopicId, int]:
    """The topic and the generation of a prefix.

    Raises:
        ValueError: no prefix has these bytes.
    """
    names, generation = prefix[: -_GENERATION.size], prefix[-_GENERATION.size :]
    if len(generation) != _GENERATION.size:
        raise ValueError(f"{prefix!r} is too short for a topic and a generation")
    return split_topic(names), int(_GENERATION.unpack(generation)[0])


def split_topic(names: bytes) -> TopicId:
    """The topic whose keys begin with these bytes.

    Raises:
        ValueError: there can be no such topic.
    """
    try:
        namespace, colon, name = names.decode("ascii").partition(":")
        if not (colon and name.endswith(":")):
            raise ValueError(f"{names!r} does not end with a colon")
        topic = TopicId(namespace, name[:-1])
    except (UnicodeDecodeError, InvalidNameError) as error:
        raise ValueError(f"{names!r} names no topic") from error
    if topic.number == 0:
        raise ValueError(f"{names!r} names no topic: partition 0 is stored without its number")
    return topic


def row_prefix(key: bytes) -> bytes:
    """The prefix in the store key of a message, payload or delayed row."""
    return key[1 : -_TAIL_SIZES[key[:1]]]


def prefix_stop(start: bytes) -> bytes:
    """The first key behind all keys that begin with these bytes."""
    start = start.rstrip(b"\xff")  # the last byte of a generation, for example
    assert start
    return start[:-1] + bytes((start[-1] + 1,))


def offset_after(offset: Offset, count: int = 1) -> Offset:
    """The offset `count` rows later; a full millisecond is followed by the next one."""
    return Offset.from_int(offset.to_int() + count)


def count_between(first: Offset, last: Offset) -> int:
    """The number of offsets from the first to the last, both included."""
    return last.to_int() - first.to_int() + 1


PLAIN = 0  # the flags of a message row that contains only its payload
PLAIN_BYTE = bytes((PLAIN,))  # the first byte of its value
HAS_POINTER, HAS_TTL, HAS_ATTRIBUTES, IS_REFERENCE, IS_PACKED = 1, 2, 4, 8, 16
ATTRIBUTES_BYTE = bytes((HAS_ATTRIBUTES,))  # of a row with attributes and a payload, and no more
PACKED_BYTE = bytes((IS_PACKED,))  # of packed rows
HEAD = struct.Struct(">BI")  # flags and checksum

_KNOWN_FLAGS = HAS_POINTER | HAS_TTL | HAS_ATTRIBUTES | IS_REFERENCE | IS_PACKED
_NOT_OF_PAYLOADS = HAS_POINTER | IS_REFERENCE | IS_PACKED
_SIGNED_POINTER = struct.Struct(">q")
_TRANSACTION_HEAD = struct.Struct(">Bq")  # flags and pointer
_TTL = struct.Struct(">I")
_SIZE = struct.Struct(">I")
_RANGE = struct.Struct(">QHQHI")
assert (HEAD.size, _SIGNED_POINTER.size, _TTL.size, _SIZE.size, _RANGE.size) == (5, 8, 4, 4, 24)


class DamagedRowError(Exception):
    """The bytes under a key are not those that were written; the sentence says what is wrong."""

    advice = "stop the server and use `tuff salvage`"

    @property
    def finding(self) -> str:
        """The rest of a sentence that begins with the name of the row."""
        return f"is damaged ({self})"


class NewerRowError(DamagedRowError):
    """The row is whole, but a newer version wrote it. It is kept, and not returned to readers."""

    advice = "stop this server and start the newer one again"

    @property
    def finding(self) -> str:
        return f"can't be read by this server ({self})"


@dataclass(frozen=True, slots=True)
class PayloadRange:
    """The payload rows that a reference row publishes, from the first to the last offset, both
    included."""

    first: Offset
    last: Offset
    count: int


NO_PAYLOADS = PayloadRange(Offset(0, 0), Offset(0, 0), 0)


@value(kw_only=True)
class MessageRow:
    """One row of the Message Table: an inline payload, or a reference to stored ones; or one of the
    Payload Table, which has neither a pointer nor a reference.

    `tx_pointer` is negative once the row was rolled back; `ttl_s` is the message's own.
    """

    tx_pointer: int | None = None
    ttl_s: int | None = None
    payload: bytes = b""
    reference: PayloadRange | None = None
    attributes: bytes | None = None

    def to_bytes(self, key: bytes) -> bytes:
        """The stored value under this key."""
        flags, optional = _optional(self.tx_pointer, self.ttl_s, self.attributes)
        brings = self.reference
        if brings is None:
            return frame(key, flags, optional + self.payload)
        rest = _RANGE.pack(*brings.first, *brings.last, brings.count)
        return frame(key, flags | IS_REFERENCE, optional + rest)

    @classmethod
    def from_bytes(cls, key: bytes, value: bytes) -> MessageRow:
        """Raises: DamagedRowError."""
        flags, body = unframe(key, value)
        if not flags:
            return cls(payload=body)
        refused = _NOT_OF_PAYLOADS if key[:1] == PAYLOADS else IS_PACKED
        if flags & refused:
            raise newer_flags(flags)  # packed ones are whole, but can't be separated
        pointer, ttl_s, attributes, rest = _take_optional(flags, body)
        if not flags & IS_REFERENCE:
            return cls(tx_pointer=pointer, ttl_s=ttl_s, payload=rest, attributes=attributes)
        if len(rest) != _RANGE.size or pointer is None:
            raise DamagedRowError("a reference row has a pointer and a range of 24 bytes")
        first_ts, first_seq, last_ts, last_seq, count = _RANGE.unpack(rest)
        brings = PayloadRange(Offset(first_ts, first_seq), Offset(last_ts, last_seq), count)
        return cls(tx_pointer=pointer, ttl_s=ttl_s, reference=brings, attributes=attributes)


def maybe_row(key: bytes, value: bytes) -> MessageRow | None:
    """The row of a stored value; None if it is damaged, or of a newer version."""
    try:
        return MessageRow.from_bytes(key, value)
    except DamagedRowError:
        return None


def frame(key: bytes, flags: int, body: bytes) -> bytes:
    """The stored value: flags, checksum and body."""
    first_byte = bytes((flags,))
    return HEAD.pack(flags, crc32(body, crc32(first_byte, crc32(key)))) + body


def inline_values(
    keys: Sequence[bytes],
    payloads: Sequence[bytes],
    *,
    pointer: int | None,
    ttls_s: Sequence[int | None] | None = None,
    attributes: Sequence[Attributes | None] | None = None,
) -> list[bytes]:
    """The stored values of rows of one publish or, without a pointer, of one store. Without
    attributes it does what `frame` does for each row, in a third of the time."""
    if attributes is not None:
        columns = keys, payloads, ttls_s or repeat(None, len(keys)), attributes
        return [
            MessageRow(
                tx_pointer=pointer,
                ttl_s=ttl_s,
                payload=payload,
                attributes=None if each is None else encode_attributes(each),
            ).to_bytes(key)
            for key, payload, ttl_s, each in zip(*columns, strict=True)
        ]
    ttl_s = ttls_s[0] if ttls_s else None
    if ttls_s and len(set(ttls_s)) > 1:
        return _mixed_values(keys, payloads, pointer, ttls_s)
    if pointer is None and ttl_s is None:
        flags, between = PLAIN, b""  # the usual case
    else:
        flags, between = _optional(pointer, ttl_s, None)
    known = bytes((flags,)) + between
    return [
        HEAD.pack(flags, crc32(payload, crc32(key + known))) + between + payload
        for key, payload in zip(keys, payloads, strict=True)
    ]


def transaction_values(
    keys: Sequence[bytes], payloads: Sequence[bytes], pointers: Iterable[int]
) -> list[bytes]:
    """The stored values of rows of several publishes, which have a pointer each and nothing else
    besides their payloads."""
    heads = map(_TRANSACTION_HEAD.pack, repeat(HAS_POINTER), pointers)
    return [
        HEAD.pack(HAS_POINTER, crc32(payload, crc32(key + head))) + head[1:] + payload
        for key, payload, head in zip(keys, payloads, heads, strict=True)
    ]


def _mixed_values(
    keys: Sequence[bytes],
    payloads: Sequence[bytes],
    pointer: int | None,
    ttls_s: Sequence[int | None],
) -> list[bytes]:
    heads: dict[int | None, tuple[int, bytes, bytes]] = {}
    for ttl_s in set(ttls_s):
        flags, between = _optional(pointer, ttl_s, None)
        heads[ttl_s] = flags, between, bytes((flags,)) + between
    return [
        HEAD.pack(flags, crc32(payload, crc32(key + known))) + between + payload
        for key, payload, (flags, between, known) in zip(
            keys, payloads, map(heads.__getitem__, ttls_s), strict=True
        )
    ]


def unframe(key: bytes, value: bytes) -> tuple[int, bytes]:
    """The flags and the body of a stored value.

    Raises:
        NewerRowError: it has flags that this version does not know.
        DamagedRowError: too short, or the checksum does not match.
    """
    if len(value) < HEAD.size:
        raise DamagedRowError(f"the value has {len(value)} bytes, which is too short for any")
    flags, expected = HEAD.unpack_from(value)
    body = value[HEAD.size :]
    if crc32(body, crc32(value[:1], crc32(key))) != expected:
        raise DamagedRowError("the checksum does not match")
    if flags & ~_KNOWN_FLAGS:
        raise newer_flags(flags)
    return flags, body


def payload_start(value: bytes) -> int:
    """The index at which the payload begins in a stored value, which need not be whole; its length
    for a reference, which has no payload."""
    if len(value) < HEAD.size or is_reference(value):
        return len(value)
    flags, start = value[0], HEAD.size
    start += _SIGNED_POINTER.size * bool(flags & HAS_POINTER) + _TTL.size * bool(flags & HAS_TTL)
    if flags & HAS_ATTRIBUTES:
        size = value[start : start + _SIZE.size]
        start += _SIZE.size + int.from_bytes(size, "big")
    return min(start, len(value))


def is_reference(value: bytes) -> bool:
    """Whether a stored value, which need not be whole, is that of a reference row."""
    return bool(value) and bool(value[0] & IS_REFERENCE)


def unframe_plain(key: bytes, value: bytes) -> bytes:
    """The body of a row without flags: topic, index and metadata rows. Raises: DamagedRowError."""
    flags, body = unframe(key, value)
    if flags:
        # Without this check, the optional member of the flag was read as the beginning of the body.
        raise newer_flags(flags)
    return body


def newer_flags(flags: int) -> NewerRowError:
    """The error for a whole value with flags that no row of its table has."""
    return NewerRowError(f"a newer version wrote it, with the flags {flags:#04x}")


def is_whole(key: bytes, value: bytes) -> bool:
    """Whether these bytes were written under this key, in any table."""
    try:
        unframe(key, value)
    except DamagedRowError:
        return False
    return True


def inverted(key: bytes, value: bytes, pointer: int) -> bytes | None:
    """The stored value of a message row after its pointer was inverted; None unless the row has
    this pointer. Decodes nothing else: a transaction may have a million rows.

    Raises: DamagedRowError.
    """
    flags, body = unframe(key, value)
    if flags & (HAS_POINTER | IS_PACKED) != HAS_POINTER:
        return None
    if not body.startswith(_SIGNED_POINTER.pack(pointer)):
        return None
    return frame(key, flags, _SIGNED_POINTER.pack(-pointer) + body[_SIGNED_POINTER.size :])


def _optional(
    pointer: int | None, ttl_s: int | None, attributes: bytes | None
) -> tuple[int, bytes]:
    """The flags of what a row has beside its payload, and the bytes of it."""
    flags, packed = 0, b""
    if pointer is not None:
        flags, packed = HAS_POINTER, _SIGNED_POINTER.pack(pointer)
    if ttl_s is not None:
        flags, packed = flags | HAS_TTL, packed + _TTL.pack(ttl_s)
    if attributes is not None:
        flags, packed = flags | HAS_ATTRIBUTES, packed + _SIZE.pack(len(attributes)) + attributes
    return flags, packed


def _take_optional(flags: int, body: bytes) -> tuple[int | None, int | None, bytes | None, bytes]:
    pointer = ttl_s = attributes = None
    at = 0
    try:
        if flags & HAS_POINTER:
            (pointer,) = _SIGNED_POINTER.unpack_from(body, at)
            at += _SIGNED_POINTER.size
        if flags & HAS_TTL:
            (ttl_s,) = _TTL.unpack_from(body, at)
            at += _TTL.size
        if flags & HAS_ATTRIBUTES:
            (size,) = _SIZE.unpack_from(body, at)
            at += _SIZE.size + size
            attributes = body[at - size : at]
    except struct.error:
        raise DamagedRowError("the value ends in the middle of what its flags announce") from None
    if at > len(body):
        raise DamagedRowError("the attributes are cut off")
    return pointer, ttl_s, attributes, body[at:]


_HOLD = struct.Struct(f">{MESSAGE_ID_SIZE}sQQ")
_POSITION = struct.Struct(f">{MESSAGE_ID_SIZE}sQ")
assert (_HOLD.size, _POSITION.size) == (36, 28)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A retention hold: until `expires_at_ms` the topic's time to live deletes nothing from the
    offset of `first` on."""

    first: MessageId
    set_at_ms: int
    expires_at_ms: int

    def to_bytes(self, key: bytes) -> bytes:
        """The stored value under this key."""
        body = _HOLD.pack(self.first.to_bytes(), self.set_at_ms, self.expires_at_ms)
        return frame(key, 0, body)

    @classmethod
    def from_bytes(cls, key: bytes, value: bytes) -> Hold:
        """Raises: DamagedRowError."""
        first, set_at_ms, expires_at_ms = _unpack(_HOLD, key, value)
        first_id = MessageId.from_bytes(first)
        return cls(first=first_id, set_at_ms=set_at_ms, expires_at_ms=expires_at_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The position that a consumer reported."""

    position: MessageId
    updated_at_ms: int

    def to_bytes(self, key: bytes) -> bytes:
        """The stored value under this key."""
        return frame(key, 0, _POSITION.pack(self.position.to_bytes(), self.updated_at_ms))

    @classmethod
    def from_bytes(cls, key: bytes, value: bytes) -> Position:
        """Raises: DamagedRowError."""
        position, updated_at_ms = _unpack(_POSITION, key, value)
        return cls(position=MessageId.from_bytes(position), updated_at_ms=updated_at_ms)


def _unpack(layout: struct.Struct, key: bytes, value: bytes) -> tuple[Any, ...]:
    body = unframe_plain(key, value)
    if len(body) != layout.size:
        raise DamagedRowError(f"its body has {layout.size} bytes, not {len(body)}")
    return layout.unpack(body)


# The first millisecond counts as full: no row has the offset (0, 0), so that an exclusive start at
# the id of all zeros skips no message.
BEFORE_ALL = Offset(0, SEQ_ID_LIMIT - 1)

FORMAT = 1  # of all rows of the store; raised for a change that an older server would misread

_LAST_BATCH = struct.Struct(">QQHQ")
_LSN = struct.Struct(">Q")
assert (_LAST_BATCH.size, _LSN.size) == (26, 8)

_HAS_LSN = 1  # flag of a last-batch row: the LSN follows


@dataclass(frozen=True, slots=True, kw_only=True)
class LastBatch:
    """How far the store was written. `clock_ms` is None before a trusted clock was recorded.
    `seen_lsn` is the last edit of the transaction log that was durable then, None if unknown."""

    batch_number: int = 0
    last: Offset = BEFORE_ALL
    clock_ms: int | None = None
    seen_lsn: int | None = None

    def to_bytes(self, key: bytes) -> bytes:
        """The stored value under this key."""
        body = _LAST_BATCH.pack(self.batch_number, *self.last, self.clock_ms or 0)
        if self.seen_lsn is None:
            return frame(key, 0, body)
        return frame(key, _HAS_LSN, body + _LSN.pack(self.seen_lsn))

    @classmethod
    def from_bytes(cls, key: bytes, value: bytes) -> LastBatch:
        """Raises: DamagedRowError."""
        flags, body = unframe(key, value)
        if flags & ~_HAS_LSN:
            raise newer_flags(flags)
        size = _LAST_BATCH.size + _LSN.size * bool(flags)
        if len(body) != size:
            raise DamagedRowError(f"a last-batch row has {size} bytes, not {len(body)}")
        number, last_ts, last_seq, clock_ms = _LAST_BATCH.unpack_from(body)
        return cls(
            batch_number=number,
            last=Offset(last_ts, last_seq),
            clock_ms=clock_ms or None,
            seen_lsn=_LSN.unpack_from(body, _LAST_BATCH.size)[0] if flags else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreMetadata:
    """What the store records of itself.

    `format` is that of all rows of the store. `store_id` identifies the store and the transaction
    files beside it, which are created later. `highest_pointer` is the highest write pointer that
    transactions may have used, 0 before the first. `longest_transaction_ms` is the longest life of
    a transaction that was ever configured, or observed. `swept_at_ms` and `swept_with` are the time
    of the last retention pass that knew the transactions, and the name of the transaction state
    that it used. Region observers may have removed messages that had expired by `handed_ms`.
    """

    format: int = FORMAT
    store_id: str | None = None
    highest_pointer: int = 0
    longest_transaction_ms: int = 0
    swept_at_ms: int | None = None
    swept_with: str | None = None
    handed_ms: int = 0

    def to_bytes(self, key: bytes) -> bytes:
        """The stored value under this key."""
        body = json.dumps(asdict(self), separators=(",", ":"))
        return frame(key, 0, body.encode())

    @classmethod
    def from_bytes(cls, key: bytes, value: bytes) -> StoreMetadata:
        """Raises: DamagedRowError."""
        try:
            found = json.loads(unframe_plain(key, value))
        except ValueError as error:
            raise DamagedRowError(f"no metadata row has this body: {error}") from None
        written = found.get("format") if isinstance(found, dict) else None
        if type(written) is not int or written < FORMAT:
            raise DamagedRowError(f"the format is {FORMAT} or higher, not {written!r}")
        if written > FORMAT:
            raise NewerRowError(
                f"a newer version wrote the store in format {written}, and this server reads "
                f"format {FORMAT}"
            )
        unknown = found.keys() - {each.name for each in fields(cls)}
        if unknown:
            raise NewerRowError(f"a newer version wrote it, with the member {min(unknown)!r}")
        return cls(**found)
