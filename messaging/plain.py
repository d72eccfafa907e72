"""The fast way from rows to a reply: rows that are nothing but a payload.

Most rows have no pointer, no time to live of their own and no attributes, so that nothing has to be
decided about them. Such a row becomes its item of the Avro reply by putting bytes together that are
there already; no object stands for it in between. Whatever else a row is, damaged included, the
general way says what it means (messaging/reader.py). The tests hold the two ways together.
"""

from collections.abc import Sequence
from functools import lru_cache
from zlib import crc32

from messaging.keys import PLACE_SIZE
from messaging.rows import HEAD, PLAIN, PLAIN_MARK
from messaging.storage.seam import Rows
from tuff.protocol import avro

LENGTHS_COUNT_MAX = 4_096  # kept beginnings of items; messages of one kind have few lengths
NO_PAYLOAD = bytes(PLACE_SIZE)  # the second half of the id of an inline message

_HEAD_SIZE = HEAD.size


@lru_cache(LENGTHS_COUNT_MAX)
def _between(size_bytes: int) -> bytes:
    """What stands in an item between the place and a payload of this size."""
    return NO_PAYLOAD + avro.encode_long(size_bytes)


def is_plain(value: bytes) -> bool:
    """Whether a stored value that is whole is nothing but a payload."""
    return value[0] == PLAIN


def plain_item(key: bytes, value: bytes) -> bytes | None:
    """The item of a row that was just written; None if the row is more than a payload."""
    if not is_plain(value):
        return None
    return plain_items((key,), (value,))[0]


def plain_items(keys: Sequence[bytes], values: Sequence[bytes]) -> list[bytes]:
    """The items of rows that are nothing but payloads."""
    return [
        avro.ID_HEAD + key[-PLACE_SIZE:] + _between(len(value) - _HEAD_SIZE) + value[_HEAD_SIZE:]
        for key, value in zip(keys, values, strict=True)
    ]


def take_plain(
    rows: Rows, items: list[bytes], *, size_bytes: int, limit: int, bytes_max: int
) -> tuple[tuple[bytes, bytes] | None, int]:
    """Add the items of plain rows, up to the first row that is not plain and whole or does not fit
    the page any more; that row, or None after the last, and the payload bytes of the page then."""
    append, unpack, id_head = items.append, HEAD.unpack_from, avro.ID_HEAD
    room = limit - len(items)
    for row in rows:
        key, value = row
        if len(value) < _HEAD_SIZE:
            return row, size_bytes
        flags, checksum = unpack(value)
        payload = value[_HEAD_SIZE:]
        grown = size_bytes + len(payload)
        is_whole = flags == PLAIN and crc32(payload, crc32(key + PLAIN_MARK)) == checksum
        if not is_whole or room <= 0 or grown > bytes_max:
            return row, size_bytes
        append(id_head + key[-PLACE_SIZE:] + _between(len(payload)) + payload)
        room -= 1
        size_bytes = grown
    return None, size_bytes
