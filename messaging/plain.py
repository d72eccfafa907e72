"""The fast way from rows to a reply: rows that are nothing but a payload.

Most rows, of messages and of stored payloads, have no pointer, no time to live of their own and no
attributes, so that nothing has to be decided about them. They are taken in chunks or in runs, as
they are stored, and become ids and payloads in a few loops over each. Whatever else a row is,
damaged included, the general way says what it means (messaging/reader.py). The tests hold the two
ways together.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from messaging.ahead import Ahead
from messaging.columns import NO_PAYLOAD, Columns, IdParts, Stretch
from messaging.keys import PLACE_SIZE, place_number
from messaging.rows import HEAD, PLAIN, PLAIN_MARK
from messaging.runs import Row, is_run, open_run
from tuff.checksum import crc32
from tuff.protocol import avro

_HEAD_SIZE = HEAD.size
assert PLAIN == 0


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

    __slots__ = ("bytes_max", "columns", "is_behind", "is_full", "limit", "size_bytes")

    def __init__(self, *, limit: int, bytes_max: int) -> None:
        self.limit = limit
        self.bytes_max = bytes_max
        self.columns = Columns()
        self.size_bytes = 0
        self.is_full = False  # of a run, no more than its beginning did fit
        self.is_behind = False  # a run went on behind the last place that was asked for

    def __len__(self) -> int:
        return len(self.columns)

    def add(self, message_id: bytes, payload: bytes) -> bool:
        """Take one message, unless the page is full; a page has room for one, however large."""
        size_bytes, count = self.size_bytes + len(payload), len(self.columns)
        if count and (count >= self.limit or size_bytes > self.bytes_max):
            return False
        self.columns.add((message_id,), (payload,))
        self.size_bytes = size_bytes
        return True

    def take_back(self, count: int) -> None:
        """Keep no more than the first messages."""
        self.is_full = self.is_behind = False
        self.columns.cut(count)
        self.size_bytes = self.columns.size_bytes()

    def add_plain(
        self, rows: Ahead, parts: IdParts, *, first: int, through: bytes | None
    ) -> Row | None:
        """Take plain rows and runs of them, up to the first record that is something else or not
        whole, or a row that does not fit any more, or whose key ends with a place behind `through`;
        that record, or None after the last, and when the page `is_full` or the rows go on
        `is_behind`. Of a run that begins earlier, rows are taken from the number `first` on.

        Raises: StoreError.
        """
        while True:
            room = self.limit - len(self.columns)
            if room <= 0:
                return rows.next()
            chunk = rows.chunk(room)
            if not chunk:
                return None
            if is_run(chunk[0][1]):
                count = self._add_runs(chunk, parts, first, through)
            else:
                count = self._add_chunk(chunk, parts, through)
            if self.is_full or self.is_behind:
                return None
            if count < len(chunk):
                rows.give_back(chunk[count + 1 :])
                return chunk[count]

    def add_run(
        self, key: bytes, value: bytes, parts: IdParts, *, first: int, through: bytes | None
    ) -> bool:
        """Take what fits of the rows of a run, from the place with the number `first` on, up to
        `through` another; False, and nothing, if the run is not whole."""
        run = open_run(key, value)
        if run is None:
            return False
        start, stop = max(0, first - run.number), run.length
        if through is not None:
            stop = min(stop, place_number(through) - run.number + 1)
        self.is_behind = stop < run.length
        if stop <= start:
            return True
        fits = min(stop, start + self.limit - len(self.columns))
        stretch = Stretch.of(run, start, fits, parts)
        room = self.bytes_max - self.size_bytes
        if stretch.size_bytes > room:
            fits = bisect_right(run.bounds(), stretch.start_byte + room, lo=start) - 1
            fits = max(fits, start + (not self.columns))
            stretch = Stretch.of(run, start, fits, parts)
        self.is_full = fits < stop
        if fits > start:
            self.columns.add_stretch(stretch)
            self.size_bytes += stretch.size_bytes
        return True

    def _add_runs(self, chunk: list[Row], parts: IdParts, first: int, through: bytes | None) -> int:
        """How many records from the beginning of the chunk were taken."""
        for at, (key, value) in enumerate(chunk):
            if not is_run(value):
                return at
            is_whole = self.add_run(key, value, parts, first=first, through=through)
            if not is_whole or self.is_full or self.is_behind:
                return at
        return len(chunk)

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
        ids = (
            [front + place + back for place in places]
            if front
            else [place + back for place in places]
        )
        self.columns.add(ids, payloads[:count])
        self.size_bytes = size_bytes
        return count
