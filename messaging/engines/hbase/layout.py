"""Maps the store's keys to rows of HBase's tables, and values to cells. Pure.

    message row  := salt(1) row key                 of the table PREFIXmessage
    payload row  := salt(1) row key                 of the table PREFIXpayload
    metadata row := store key                       of the table PREFIXmetadata, for all other keys
    own row      := store key "@" name              likewise, of the two rows that describe the
                                                    store of one server of a cluster, by the name
                                                    of its journal
    salt         := CRC-32 of UTF8("ns:topic:") modulo the number of salts
    cells        := d:t all of the value but the payload, d:p the payload
                    a reference row has no d:p; a metadata row has nothing but d:p

All rows of a topic have the same salt, so a topic is one range of rows, and topics are spread over
the regions. The number of salts is stored when the tables are made, and never changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from messaging.model.row_format import (
    LAST_BATCH_KEY,
    MESSAGES,
    METADATA_KEY,
    PAYLOADS,
    is_reference,
    payload_start,
    prefix_stop,
)
from tuff_storage.checksum import crc32

MESSAGE, PAYLOAD, METADATA, JOURNAL = "message", "payload", "metadata", "journal"
TABLES = (MESSAGE, PAYLOAD, METADATA, JOURNAL)
SALTED: Mapping[bytes, str] = {MESSAGES: MESSAGE, PAYLOADS: PAYLOAD}
FAMILY = b"d"
HEAD, BODY = b"d:t", b"d:p"
SALTS_MAX = 255  # a salt is one byte, and so is the stop behind the last one

_TAGS = sorted(SALTED)


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows of one table, `start <= row < stop`; an empty `stop` means the end of the table."""

    table: str
    start: bytes
    stop: bytes


Segment = list[RowRange]  # merged by key; all keys of a segment sort before those of the next


class Layout:
    """Maps keys to tables and rows, for a number of salts. `name`: of the journal of the server;
    empty for a single server."""

    def __init__(self, salt_count: int, *, name: bytes = b"") -> None:
        assert 1 <= salt_count <= SALTS_MAX
        self.salt_count = salt_count
        self._own_rows = {key: key + b"@" + name for key in (LAST_BATCH_KEY, METADATA_KEY) if name}

    def place(self, key: bytes) -> tuple[str, bytes]:
        """The table and the row of a key."""
        table = SALTED.get(key[:1])
        if table is None:
            return METADATA, self._own_rows.get(key, key)
        return table, bytes((self._salt(_topic_part(key)),)) + key[1:]

    def segments(self, start: bytes, stop: bytes) -> list[Segment]:
        """The row ranges that hold `start <= key < stop`, in key order."""
        found = []
        for tag in _TAGS:
            behind = prefix_stop(tag)
            found.append(_metadata(start, min(tag, stop)))
            found.append(self._salted(tag, max(start, tag), min(stop, behind)))
            start = max(start, behind)
        found.append(_metadata(start, stop))
        return [segment for segment in found if segment]

    def splits(self, region_count: int) -> list[bytes]:
        """The first rows of all regions but the first, for regions with equally many salts."""
        starts = {index * self.salt_count // region_count for index in range(1, region_count)}
        return [bytes((salt,)) for salt in sorted(starts - {0})]

    def _salt(self, topic: bytes) -> int:
        return crc32(topic) % self.salt_count

    def _salted(self, tag: bytes, start: bytes, stop: bytes) -> Segment:
        if start >= stop:
            return []
        topic = _topic_part(start)
        is_one_topic = topic.count(b":") == 2 and stop <= prefix_stop(tag + topic)
        salts = [self._salt(topic)] if is_one_topic else range(self.salt_count)
        return [_salted_range(SALTED[tag], salt, start[1:], stop, tag) for salt in salts]


def key_of(table: str, row: bytes) -> bytes:
    """The key of a row."""
    for tag, name in SALTED.items():
        if name == table:
            return tag + row[1:]
    return row


def cells_of(table: str, value: bytes) -> dict[bytes, bytes]:
    """The cells that hold a value."""
    if table == METADATA:
        return {BODY: value}
    start = payload_start(value)
    cells = {HEAD: value[:start]}
    if not is_reference(value):
        cells[BODY] = value[start:]
    return cells


def value_of(cells: Mapping[bytes, bytes]) -> bytes:
    """The value that these cells hold."""
    return cells.get(HEAD, b"") + cells.get(BODY, b"")


def encoded_name(region: bytes) -> str:
    """The hash at the end of a region's name, which has the form `TABLE,START,TIME.ENCODED.`."""
    return region.rstrip(b".").rpartition(b".")[2].decode()


def _topic_part(key: bytes) -> bytes:
    """The part of a key up to the second colon, which names the topic; or the whole key."""
    first = key.find(b":", 1)
    second = key.find(b":", first + 1) if first >= 0 else -1
    return key[1 : second + 1] if second >= 0 else key[1:]


def _salted_range(table: str, salt: int, start: bytes, stop: bytes, tag: bytes) -> RowRange:
    # A stop outside the tag's keys means all rows of the salt.
    behind = bytes((salt,)) + stop[1:] if stop.startswith(tag) else bytes((salt + 1,))
    return RowRange(table, bytes((salt,)) + start, behind)


def _metadata(start: bytes, stop: bytes) -> Segment:
    return [RowRange(METADATA, start, stop)] if start < stop else []
