"""Stored values, with a checksum over key and value (design §5).

    value       := flags(1) crc(4) [pointer(8)] [ttl_s(4)] [size(4) attributes(size)] rest
    flags       := 1 pointer | 2 ttl | 4 attributes | 8 reference, or 16: a run of rows, as
                   messaging/runs.py has it
    message row := inline: rest is the payload · reference: rest is range(10+10) count(4)
    payload row := no pointer (it is in the key), rest is the payload
    range       := first_ts(8) first_seq(2) last_ts(8) last_seq(2)     both included

The CRC-32 covers the store key, the flags and all that follows the CRC, so that a whole value under
the wrong key is damage too. Attributes are room for later: they are kept and not looked into. The
topic, index and fact rows frame their own bodies the same way, with flags 0.

A value whose checksum is right and that has flags which this version does not know there was
written by a newer one. It is refused like damage and never misread, but told apart from it: for the
one there is `tuff salvage`, for the other the newer server.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tuff.checksum import crc32
from tuff.protocol.ids import Place
from tuff.protocol.values import value

PLAIN = 0  # the flags of a message row that is nothing but its payload
PLAIN_MARK = bytes((PLAIN,))  # the same as they stand in the value
HAS_POINTER, HAS_TTL, HAS_ATTRIBUTES, IS_REFERENCE, IS_RUN = 1, 2, 4, 8, 16
HEAD = struct.Struct(">BI")  # flags and checksum

_KNOWN_FLAGS = HAS_POINTER | HAS_TTL | HAS_ATTRIBUTES | IS_REFERENCE | IS_RUN
_POINTER = struct.Struct(">q")
_TTL = struct.Struct(">I")
_SIZE = struct.Struct(">I")
_RANGE = struct.Struct(">QHQHI")
assert (HEAD.size, _POINTER.size, _TTL.size, _SIZE.size, _RANGE.size) == (5, 8, 4, 4, 24)


class DamagedRowError(Exception):
    """The bytes under a key are not what was written there; the sentence says how that shows."""

    advice = "stop the server and use `tuff salvage`"

    @property
    def finding(self) -> str:
        """What to say of the row, behind its name."""
        return f"is damaged ({self})"


class NewerRowError(DamagedRowError):
    """The row is whole, and of a version whose rows this one can't read; kept, and not served."""

    advice = "stop this server and start the newer one again"

    @property
    def finding(self) -> str:
        return f"can't be read by this server ({self})"


@dataclass(frozen=True, slots=True)
class PayloadRange:
    """The payload rows that a reference row brings: first and last place, both included."""

    first: Place
    last: Place
    count: int


NO_PAYLOADS = PayloadRange(Place(0, 0), Place(0, 0), 0)


@value(kw_only=True)
class MessageRow:
    """One row of the Message Table: an inline payload, or a reference to stored ones.

    `tx_pointer` is negative once the row was rolled back; `ttl_s` is the message's own.
    """

    tx_pointer: int | None = None
    ttl_s: int | None = None
    payload: bytes = b""
    reference: PayloadRange | None = None
    attributes: bytes | None = None

    def to_bytes(self, key: bytes) -> bytes:
        """The stored value under this key."""
        rest = self.payload
        if self.reference is not None:
            brings = self.reference
            rest = _RANGE.pack(*brings.first, *brings.last, brings.count)
        return frame(
            key,
            _flags(self.tx_pointer, self.ttl_s, self.attributes, self.reference),
            _optional(self.tx_pointer, self.ttl_s, self.attributes) + rest,
        )

    @classmethod
    def from_bytes(cls, key: bytes, value: bytes) -> "MessageRow":
        """Raises: DamagedRowError."""
        flags, body = unframe(key, value)
        if not flags:
            return cls(payload=body)
        if flags & IS_RUN:
            raise newer_flags(flags)  # whole, and yet its rows could not be told apart
        pointer, ttl_s, attributes, rest = _take_optional(flags, body)
        if not flags & IS_REFERENCE:
            return cls(tx_pointer=pointer, ttl_s=ttl_s, payload=rest, attributes=attributes)
        if len(rest) != _RANGE.size or pointer is None:
            raise DamagedRowError("a reference row has a pointer and a range of 24 bytes")
        first_ts, first_seq, last_ts, last_seq, count = _RANGE.unpack(rest)
        brings = PayloadRange(Place(first_ts, first_seq), Place(last_ts, last_seq), count)
        return cls(tx_pointer=pointer, ttl_s=ttl_s, reference=brings, attributes=attributes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadRow:
    """One row of the Payload Table."""

    payload: bytes
    ttl_s: int | None = None
    attributes: bytes | None = None

    def to_bytes(self, key: bytes) -> bytes:
        """The stored value under this key."""
        flags = _flags(None, self.ttl_s, self.attributes, None)
        return frame(key, flags, _optional(None, self.ttl_s, self.attributes) + self.payload)

    @classmethod
    def from_bytes(cls, key: bytes, value: bytes) -> "PayloadRow":
        """Raises: DamagedRowError."""
        flags, body = unframe(key, value)
        if flags & (HAS_POINTER | IS_REFERENCE | IS_RUN):
            raise newer_flags(flags)
        _, ttl_s, attributes, rest = _take_optional(flags, body)
        return cls(payload=rest, ttl_s=ttl_s, attributes=attributes)


def frame(key: bytes, flags: int, body: bytes) -> bytes:
    """A body under its flags and the checksum of it all."""
    mark = bytes((flags,))
    return HEAD.pack(flags, crc32(body, crc32(mark, crc32(key)))) + body


def inline_values(
    keys: Sequence[bytes],
    payloads: Sequence[bytes],
    *,
    pointer: int | None,
    ttls_s: Sequence[int | None] | None = None,
) -> list[bytes]:
    """The stored values of rows of one publish or, without a pointer, of one store: what `frame`
    makes of each, in a third of the time."""
    ttl_s = ttls_s[0] if ttls_s else None
    if ttls_s and len(set(ttls_s)) > 1:
        return _mixed_values(keys, payloads, pointer, ttls_s)
    if pointer is None and ttl_s is None:
        flags, between = PLAIN, b""  # as nearly always
    else:
        flags, between = _flags(pointer, ttl_s, None, None), _optional(pointer, ttl_s, None)
    known = bytes((flags,)) + between
    return [
        HEAD.pack(flags, crc32(payload, crc32(key + known))) + between + payload
        for key, payload in zip(keys, payloads, strict=True)
    ]


def _mixed_values(
    keys: Sequence[bytes],
    payloads: Sequence[bytes],
    pointer: int | None,
    ttls_s: Sequence[int | None],
) -> list[bytes]:
    heads: dict[int | None, tuple[int, bytes, bytes]] = {}
    for ttl_s in set(ttls_s):
        flags, between = _flags(pointer, ttl_s, None, None), _optional(pointer, ttl_s, None)
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
    """Where the payload stands in a stored value, which need not be whole: at most behind it.

    A reference has no payload: all of its value comes before.
    """
    if len(value) < HEAD.size or is_reference(value):
        return len(value)
    flags, start = value[0], HEAD.size
    start += _POINTER.size * bool(flags & HAS_POINTER) + _TTL.size * bool(flags & HAS_TTL)
    if flags & HAS_ATTRIBUTES:
        size = value[start : start + _SIZE.size]
        start += _SIZE.size + int.from_bytes(size, "big")
    return min(start, len(value))


def is_reference(value: bytes) -> bool:
    """Whether a stored value, which need not be whole, is that of a reference row."""
    return bool(value) and bool(value[0] & IS_REFERENCE)


def unframe_plain(key: bytes, value: bytes) -> bytes:
    """The body of a topic, index or fact row, none of which has flags. Raises: DamagedRowError."""
    flags, body = unframe(key, value)
    if flags:
        # Dropped, what a flag announces was taken for the beginning of the body.
        raise newer_flags(flags)
    return body


def newer_flags(flags: int) -> NewerRowError:
    """The refusal of a whole value with flags that no row of its table has."""
    return NewerRowError(f"a newer version wrote it, with the flags {flags:#04x}")


def is_whole(key: bytes, value: bytes) -> bool:
    """Whether these bytes were written under this key, in whatever table."""
    try:
        unframe(key, value)
    except DamagedRowError:
        return False
    return True


def _flags(
    pointer: int | None, ttl_s: int | None, attributes: bytes | None, reference: object
) -> int:
    return (
        (HAS_POINTER if pointer is not None else 0)
        | (HAS_TTL if ttl_s is not None else 0)
        | (HAS_ATTRIBUTES if attributes is not None else 0)
        | (IS_REFERENCE if reference is not None else 0)
    )


def _optional(pointer: int | None, ttl_s: int | None, attributes: bytes | None) -> bytes:
    return b"".join(
        (
            b"" if pointer is None else _POINTER.pack(pointer),
            b"" if ttl_s is None else _TTL.pack(ttl_s),
            b"" if attributes is None else _SIZE.pack(len(attributes)) + attributes,
        )
    )


def _take_optional(flags: int, body: bytes) -> tuple[int | None, int | None, bytes | None, bytes]:
    pointer = ttl_s = attributes = None
    at = 0
    try:
        if flags & HAS_POINTER:
            (pointer,) = _POINTER.unpack_from(body, at)
            at += _POINTER.size
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
