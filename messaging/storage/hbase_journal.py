"""The journal: every batch, in one cell, before its rows are put. Pure (decision 0023).

    slot row   := "j" number(8)                      d:p is one commit, or the claim of a server
    chunk row  := "c" token(16) number(8) index(4)   d:p is a piece of a body that is no cell's size
    layout row := "layout"                           d:p is JSON: format, salts
    commit     := format(1) crc(4) token(16) timestamp(8) first(8) chunks(4) length(2) owner(length)
                  body
    body       := (key_length(4) value_length(4) key value)*      no value: a length of 2^32 - 1

Numbers rise by one. A slot is written once, by a compare-and-put that finds nothing there: who
writes it has committed, and whoever comes too late is told. `timestamp` rises, too, and cells have
that of their commit or of a later one: of whatever is written late, or twice, the higher one
counts. `first` is the slot before which all rows are in the tables, so the commits from there on,
this one included, have all that may be missing. The CRC covers all behind it,
and the body where that stands in chunks.
"""

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tuff.checksum import crc32

FORMAT = 2
CHUNK_BYTES = 4 << 20  # bytes; HBase takes no cell of more than 10 MB, as it comes
LAYOUT_ROW = b"layout"
SLOTS, CHUNKS = b"j", b"c"
TOKEN_SIZE = 16  # bytes
OWNER_BYTES_MAX = 89  # bytes

_HEAD = struct.Struct(">BI")
_FIELDS = struct.Struct(">16sQQIH")
_LENGTHS = struct.Struct(">II")
_NUMBER = struct.Struct(">Q")
_CHUNK = struct.Struct(">16sQI")
assert (_HEAD.size, _FIELDS.size, _LENGTHS.size, _CHUNK.size) == (5, 38, 8, 28)
_NO_VALUE = 0xFFFFFFFF
CLAIM_BYTES_MAX = _HEAD.size + _FIELDS.size + OWNER_BYTES_MAX  # bytes of a cell without a body

Rows = Mapping[bytes, bytes | None]


class DamagedJournalError(Exception):
    """A commit is not what was written; the sentence says how that shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What one slot says. `owner` names the server for people; without rows it is a claim."""

    token: bytes
    timestamp_ms: int
    first: int
    owner: str
    rows: Rows


def slot_row(number: int) -> bytes:
    return SLOTS + _NUMBER.pack(number)


def slot_number(row: bytes) -> int:
    (number,) = _NUMBER.unpack_from(row, len(SLOTS))
    return int(number)


def chunk_number(row: bytes) -> int:
    """The slot that a chunk was written for."""
    return int(_CHUNK.unpack_from(row, len(CHUNKS))[1])


def chunk_row(token: bytes, number: int, index: int) -> bytes:
    return CHUNKS + _CHUNK.pack(token, number, index)


def pack(commit: Commit) -> tuple[bytes, list[bytes]]:
    """The cell of the slot, and the chunks that must be there before it is."""
    body = b"".join(_pack_rows(commit.rows))
    chunks = []
    if len(body) > CHUNK_BYTES:
        chunks = [body[at : at + CHUNK_BYTES] for at in range(0, len(body), CHUNK_BYTES)]
    owner = commit.owner.encode()[:OWNER_BYTES_MAX]
    fields = _FIELDS.pack(commit.token, commit.timestamp_ms, commit.first, len(chunks), len(owner))
    rest = b"".join((fields, owner, b"" if chunks else body))
    crc = crc32(body, crc32(rest)) if chunks else crc32(rest)
    return _HEAD.pack(FORMAT, crc) + rest, chunks


def chunk_count(cell: bytes) -> int:
    """How many chunks a slot's cell rests on. Raises: DamagedJournalError."""
    return _fields(cell)[3]


def token_of(cell: bytes) -> bytes:
    """Who wrote a slot's cell. Raises: DamagedJournalError."""
    return _fields(cell)[0]


def unpack(cell: bytes, chunks: Iterable[bytes] = ()) -> Commit:
    """Raises: DamagedJournalError."""
    token, timestamp_ms, first, count, length = _fields(cell)
    pieces = b"".join(chunks)
    _, expected = _HEAD.unpack_from(cell)
    if crc32(pieces, crc32(cell[_HEAD.size :])) != expected:
        raise DamagedJournalError("its checksum does not match")
    start = _HEAD.size + _FIELDS.size
    owner, body = cell[start : start + length].decode(errors="replace"), cell[start + length :]
    rows = dict(_unpack_rows(pieces if count else body))
    return Commit(token=token, timestamp_ms=timestamp_ms, first=first, owner=owner, rows=rows)


def pack_layout(salt_count: int) -> bytes:
    """The value of the layout row."""
    return json.dumps({"format": FORMAT, "salts": salt_count}).encode()


def unpack_layout(value: bytes) -> int:
    """The number of salts. Raises: DamagedJournalError."""
    try:
        found = json.loads(value)
        written, salts = found["format"], found["salts"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DamagedJournalError(f"no layout looks like {value[:40]!r}") from None
    if written != FORMAT:
        raise DamagedJournalError(
            f"the tables are of format {written!r}, and this server reads format {FORMAT}"
        )
    if type(salts) is not int or salts < 1:
        raise DamagedJournalError(f"no tables have {salts!r} salts")
    return salts


def _fields(cell: bytes) -> tuple[bytes, int, int, int, int]:
    if len(cell) < _HEAD.size + _FIELDS.size:
        raise DamagedJournalError(f"{len(cell)} bytes are too short for any")
    if cell[0] != FORMAT:
        raise DamagedJournalError(f"format {cell[0]}, and this server reads format {FORMAT}")
    token, timestamp_ms, first, count, length = _FIELDS.unpack_from(cell, _HEAD.size)
    return token, timestamp_ms, first, count, length


def _pack_rows(rows: Rows) -> Iterator[bytes]:
    for key, value in rows.items():
        yield _LENGTHS.pack(len(key), _NO_VALUE if value is None else len(value))
        yield key
        yield value or b""


def _unpack_rows(body: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    at = 0
    while at < len(body):
        if len(body) - at < _LENGTHS.size:
            raise DamagedJournalError("its rows are cut off")
        key_length, value_length = _LENGTHS.unpack_from(body, at)
        at += _LENGTHS.size
        if len(body) - at < key_length + (0 if value_length == _NO_VALUE else value_length):
            raise DamagedJournalError("its rows are cut off")
        key, at = body[at : at + key_length], at + key_length
        if value_length == _NO_VALUE:
            yield key, None
        else:
            yield key, body[at : at + value_length]
            at += value_length
