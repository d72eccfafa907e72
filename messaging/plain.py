"""The fast way from rows to a reply: rows that are nothing but a payload.

Most rows, of messages and of stored payloads, have no pointer, no time to live of their own and no
attributes, so that nothing has to be decided about them. They are taken in chunks, and become ids
and payloads in a few loops over each. Whatever else a row is, damaged included, the general way
says what it means (messaging/reader.py). The tests hold the two ways together.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple
from zlib import crc32

from messaging.ahead import Ahead, Row
from messaging.keys import PLACE_SIZE
from messaging.rows import HEAD, PLAIN, PLAIN_MARK
from tuff.protocol import avro

NO_PAYLOAD = bytes(PLACE_SIZE)  # the second half of the id of an inline message

_HEAD_SIZE = HEAD.size
assert PLAIN == 0


class IdParts(NamedTuple):
    """What stands in ids before and behind the place at the end of a row's key."""

    front: bytes
    back: bytes


OF_MESSAGES = IdParts(b"", NO_PAYLOAD)


@lru_cache(avro.LENGTHS_COUNT_MAX)
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


class Taken:
    """The messages of a page that is being read, as ids and payloads."""

    __slots__ = ("bytes_max", "ids", "limit", "payloads", "size_bytes")

    def __init__(self, *, limit: int, bytes_max: int) -> None:
        self.limit = limit
        self.bytes_max = bytes_max
        self.ids: list[bytes] = []
        self.payloads: list[bytes] = []
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, message_id: bytes, payload: bytes) -> bool:
        """Take one message, unless the page is full; a page has room for one, however large."""
        size_bytes = self.size_bytes + len(payload)
        if self.ids and (len(self.ids) >= self.limit or size_bytes > self.bytes_max):
            return False
        self.ids.append(message_id)
        self.payloads.append(payload)
        self.size_bytes = size_bytes
        return True

    def take_back(self, count: int) -> None:
        """Keep no more than the first messages."""
        self.size_bytes -= sum(map(len, self.payloads[count:]))
        del self.ids[count:], self.payloads[count:]

    def add_plain(self, rows: Ahead, parts: IdParts, *, through: bytes | None = None) -> Row | None:
        """Take plain rows, up to the first that is not plain and whole, or does not fit any more,
        or whose key ends with a place behind `through`; that row, or None after the last.

        Raises: StoreError.
        """
        while True:
            room = self.limit - len(self.ids)
            if room <= 0:
                return rows.next()
            chunk = rows.chunk(room)
            if not chunk:
                return None
            count = self._add_chunk(chunk, parts, through)
            if count < len(chunk):
                rows.give_back(chunk[count + 1 :])
                return chunk[count]

    def _add_chunk(self, chunk: list[Row], parts: IdParts, through: bytes | None) -> int:
        """How many rows from the beginning of the chunk were taken."""
        keys, values = zip(*chunk, strict=True)
        payloads = [value[_HEAD_SIZE:] for value in values]
        checksums = map(crc32, map(PLAIN_MARK.join, zip(keys, payloads, strict=True)))
        # No flags, and the checksum.
        heads = [checksum.to_bytes(_HEAD_SIZE, "big") for checksum in checksums]
        is_whole = [*map(bytes.startswith, values, heads)]
        count = len(chunk) if all(is_whole) else is_whole.index(False)
        if through is not None and keys[-1][-PLACE_SIZE:] > through:
            count = min(count, bisect_right(keys, through, key=lambda key: key[-PLACE_SIZE:]))
        size_bytes = self.size_bytes + sum(map(len, payloads[:count]))
        if size_bytes > self.bytes_max:
            sums = [*accumulate(map(len, payloads), initial=self.size_bytes)]
            count = bisect_right(sums, self.bytes_max, lo=1) - 1
            size_bytes = sums[count]
        front, back = parts
        places = [key[-PLACE_SIZE:] for key in keys[:count]]
        self.ids += (
            [front + place + back for place in places]
            if front
            else [place + back for place in places]
        )
        self.payloads += payloads[:count]
        self.size_bytes = size_bytes
        return count
