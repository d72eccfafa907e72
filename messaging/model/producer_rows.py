"""Rows of the table of producers: the publishes that a client may repeat (design §5, decision
0056).

    producer row := flags(1) crc(4) answered(8) entry*           under prefix producer(8)
    entry        := number(8) payloads_crc(4) kind(1) first(10) count(4) [due_ms(8) due_ms(8)]
                    [size(2) partition(2)*size]
    kind         := 1 delayed: the due times of the first and the last message follow
                  | 2 several partitions: their numbers follow
    gap row      := flags(1) crc(4) until_ms(8)                   under prefix

An entry is one publish: its number, what identifies its messages, and its reply. `count` is the
number of rows, which have consecutive offsets. Each batch that publishes for a producer writes its
row again, without the entries below `answered`, to which the producer has the replies.

A gap row says that the memory of this topic has lost a producer before its time.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from messaging.model.row_format import (
    PRODUCERS,
    DamagedRowError,
    count_between,
    frame,
    offset_after,
    split_at_prefix,
    split_prefix,
    unframe_plain,
)
from tuff.protocol.ids import Offset, TopicId

PRODUCER_SIZE = 8  # bytes of the id of a producer

_DELAYED, _HAS_PARTITIONS = 1, 2
_ANSWERED = struct.Struct(">Q")
_UNTIL = struct.Struct(">Q")
_ENTRY = struct.Struct(">QIBQHI")
_DUE = struct.Struct(">QQ")
_SIZE = struct.Struct(">H")
assert (_ANSWERED.size, _ENTRY.size, _DUE.size, _SIZE.size) == (8, 27, 16, 2)


class Written(NamedTuple):
    """The reply to a publish: the offsets of its first and last row, the due times in ms of its
    first and last message if these are delayed, and the numbers of the partitions that have the
    rows, for a topic with several."""

    first: Offset
    last: Offset
    due_ms: tuple[int, int] | None = None
    partitions: Sequence[int] = ()


def producer_key(prefix: bytes, producer: bytes) -> bytes:
    """The key of the row of a producer."""
    return PRODUCERS + prefix + producer


def gap_key(prefix: bytes) -> bytes:
    """The key of the gap row of a topic."""
    return PRODUCERS + prefix


def split_producer_key(key: bytes) -> tuple[TopicId, int, bytes]:
    """The topic, the generation and the producer in the key of a producer row; the producer of a
    gap row is empty.

    Raises:
        ValueError: no such key has these bytes.
    """
    prefix, producer = split_at_prefix(key)
    if len(producer) not in (0, PRODUCER_SIZE):
        raise ValueError(f"{producer!r} behind a prefix is no producer")
    return *split_prefix(prefix), producer


def pack_entry(number: int, payloads_crc: int, written: Written) -> bytes:
    """The entry of a publish."""
    first, last, due_ms, partitions = written
    kind = (_DELAYED if due_ms else 0) | (_HAS_PARTITIONS if partitions else 0)
    count = 1 if first is last else count_between(first, last)
    entry = _ENTRY.pack(number, payloads_crc, kind, *first, count)
    if due_ms:
        entry += _DUE.pack(*due_ms)
    if partitions:
        entry += struct.pack(f">H{len(partitions)}H", len(partitions), *partitions)
    return entry


def unpack_entry(entry: bytes) -> tuple[int, Written]:
    """The checksum of the messages of a publish, and its reply."""
    number, payloads_crc, written, stop = _read_entry(entry, 0)
    assert stop == len(entry), f"entry {number} of a producer has other bytes behind it"
    return payloads_crc, written


def _read_entry(body: bytes, at: int) -> tuple[int, int, Written, int]:
    """Number, checksum and reply of the entry at this index, and where it stops. Raises:
    struct.error: it is cut off."""
    number, payloads_crc, kind, first_ms, first_seq, count = _ENTRY.unpack_from(body, at)
    first = Offset(first_ms, first_seq)
    at += _ENTRY.size
    due_ms = None
    if kind & _DELAYED:
        due_ms = _DUE.unpack_from(body, at)
        at += _DUE.size
    partitions: Sequence[int] = ()
    if kind & _HAS_PARTITIONS:
        (size,) = _SIZE.unpack_from(body, at)
        at += _SIZE.size
        partitions = struct.unpack_from(f">{size}H", body, at)
        at += _SIZE.size * size
    if kind & ~(_DELAYED | _HAS_PARTITIONS) or not count:
        raise struct.error(f"no publish has the kind {kind} and {count} rows")
    return (
        number,
        payloads_crc,
        Written(first, offset_after(first, count - 1), due_ms, partitions),
        at,
    )


@dataclass(frozen=True, slots=True)
class ProducerRow:
    """The publishes of a producer that it may repeat, by number; it has the replies to all below
    `answered`."""

    answered: int
    entries: dict[int, bytes]

    def to_bytes(self, key: bytes) -> bytes:
        """The stored value under this key."""
        return frame(key, 0, _ANSWERED.pack(self.answered) + b"".join(self.entries.values()))

    @classmethod
    def from_bytes(cls, key: bytes, value: bytes) -> "ProducerRow":
        """Raises: DamagedRowError."""
        body = unframe_plain(key, value)
        entries: dict[int, bytes] = {}
        try:
            (answered,) = _ANSWERED.unpack_from(body)
            at = _ANSWERED.size
            while at < len(body):
                number, _, _, stop = _read_entry(body, at)
                entries[number] = body[at:stop]
                at = stop
        except (struct.error, OverflowError, ValueError) as error:
            raise DamagedRowError(f"no producer row has this body: {error}") from None
        return cls(answered, entries)


@dataclass(frozen=True, slots=True)
class GapRow:
    """Of publishes up to `until_ms`, the memory of a topic may lack some."""

    until_ms: int

    def to_bytes(self, key: bytes) -> bytes:
        """The stored value under this key."""
        return frame(key, 0, _UNTIL.pack(self.until_ms))

    @classmethod
    def from_bytes(cls, key: bytes, value: bytes) -> "GapRow":
        """Raises: DamagedRowError."""
        body = unframe_plain(key, value)
        if len(body) != _UNTIL.size:
            raise DamagedRowError(f"a gap row has {_UNTIL.size} bytes, not {len(body)}")
        return cls(*_UNTIL.unpack(body))
