"""Snappy's raw format, unpacked: how LevelDB's default packs a block.

    packed  := varint size, then (literal | copy)*
    literal := tag(1) size(0-4) bytes     the low bits of the tag are 0
    copy    := tag(1) offset(1, 2 or 4)   bytes that stand that far back in what is unpacked

The server packs nothing; a store that another tool opened may have packed blocks all the same.
"""

from messaging.storage.leveldb_log import MalformedError, read_varint

UNPACKED_BYTES_MAX = 64 << 20  # bytes; a block holds one row at least, and no row is larger

_LITERAL = 0
_LONG_LITERAL = 60  # from here on the size stands in the bytes behind the tag


def unpack(data: bytes) -> bytes:
    """Raises: MalformedError: these bytes are not Snappy's."""
    size, at = read_varint(data, 0)
    if size > UNPACKED_BYTES_MAX:
        raise MalformedError(f"{size} bytes can't be the size of a block")
    out = bytearray()
    while at < len(data):
        take = _literal if data[at] & 3 == _LITERAL else _copy
        at = take(data, at, out)
    if len(out) != size:
        raise MalformedError(f"{len(out)} bytes are in it, and it says {size}")
    return bytes(out)


def _literal(data: bytes, at: int, out: bytearray) -> int:
    length = data[at] >> 2
    at += 1
    if length >= _LONG_LITERAL:
        width = length - _LONG_LITERAL + 1
        length = int.from_bytes(data[at : at + width], "little")
        at += width
    stop = at + length + 1
    if stop > len(data):
        raise MalformedError("a literal goes beyond the end")
    out += data[at:stop]
    return stop


def _copy(data: bytes, at: int, out: bytearray) -> int:
    tag = data[at]
    if tag & 3 == 1:
        length, width = (tag >> 2 & 7) + 4, 1
        high = (tag >> 5) << 8
    else:
        length, width = (tag >> 2) + 1, 2 if tag & 3 == 2 else 4
        high = 0
    at += 1
    offset = high | int.from_bytes(data[at : at + width], "little")
    if not 0 < offset <= len(out) or at + width > len(data):
        raise MalformedError("a copy refers to nothing")
    for _ in range(length):
        out.append(out[-offset])
    return at + width
