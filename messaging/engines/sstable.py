"""The format of LevelDB's table files, parsed block by block, without LevelDB (design §5).

    table   := block* footer(48)                data blocks, filters, metaindex, index
    footer  := handle handle zero* magic(8)     of the metaindex, and of the index
    handle  := varint offset varint size
    block   := content(size) type(1) crc(4)     crc over content and type
    type    := 0 as it is | 1 Snappy
    content := entry* restart(4)* count(4)
    entry   := varint shared varint unshared varint size key(unshared) value(size)
    key     := user key, then sequence(7) kind(1)         little-endian; kind 1 value, 0 deletion

With a damaged index, LevelDB can't read any row of the table. This parser finds the blocks without
the index: each block ends with its restart points, whose count and checksum show the end.
"""

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise

from tuff_storage.leveldb.log import (
    Change,
    MalformedError,
    Readable,
    masked_crc32c,
    read_varint,
)

FOOTER_SIZE = 48  # bytes
UNPACKED_BYTES_MAX = 64 << 20  # bytes; the largest row, which is a block of its own
RESTARTS_MAX = 65_536  # restart points of a block; one of 4 KiB has some twenty

_MAGIC = bytes.fromhex("57fb808b247547db")
_TRAILER = struct.Struct("<BI")
_NUMBER = struct.Struct("<I")
_TAG = struct.Struct("<Q")
assert (_TRAILER.size, _TAG.size) == (5, 8)
_NOT_COMPRESSED, _SNAPPY = 0, 1
_KINDS = {0: False, 1: True}
# The server compresses nothing. Another tool that opened the store may have compressed blocks.
HAS_SNAPPY = find_spec("cramjam") is not None
_WITHOUT_SNAPPY = "the block is compressed; pip install 'tuff-messaging[snappy]' to read it"


@dataclass(frozen=True, slots=True)
class Block:
    """The offset and size of a block's content; `damage` says why the block is not whole."""

    offset: int
    size: int
    damage: str | None = None


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The data blocks of a table in order, and the damages outside of them: offset and reason.
    `is_cut`: further blocks may have followed the last one."""

    blocks: list[Block]
    damages: list[tuple[int, str]]
    is_cut: bool = False


def read_layout(data: Readable) -> TableLayout:
    """The data blocks of a table, found with its index, or one after the other if it is damaged."""
    try:
        blocks = [block for _, block in read_ranges(data)]
    except MalformedError as error:
        damages = [(max(len(data) - FOOTER_SIZE, 0), f"the index can't be read: {error}")]
        blocks, stop = _walk(data)
        if stop is not None:
            damages.append((stop, "no further block can be found from here on"))
        return TableLayout(blocks, damages, is_cut=stop is not None or not blocks)
    return TableLayout(blocks, _outer_damage(data, blocks))


def read_ranges(data: Readable) -> list[tuple[bytes, Block]]:
    """The data blocks of a table in order, each with a key at or behind its last key and before the
    first key of the next block. Raises: MalformedError: the index is damaged."""
    _, index = _footer(data)
    return [
        (key[: -_TAG.size], _checked(data, Block(*_handle(value, 0)[0])))
        for key, value in _whole_entries(data, index)
    ]


def _footer(data: Readable) -> tuple[Block, Block]:
    if len(data) < FOOTER_SIZE:
        raise MalformedError(f"the file has {len(data)} bytes, which is too short for a table")
    footer = data[-FOOTER_SIZE:]
    if footer[-len(_MAGIC) :] != _MAGIC:
        raise MalformedError("the footer is damaged, or cut off")
    metaindex, at = _handle(footer, 0)
    index, at = _handle(footer, at)
    if any(footer[at : -len(_MAGIC)]):
        raise MalformedError("the padding of the footer is not zero")
    return Block(*metaindex), Block(*index)


def _handle(data: Readable, at: int) -> tuple[tuple[int, int], int]:
    offset, at = read_varint(data, at)
    size, at = read_varint(data, at)
    return (offset, size), at


def _whole_entries(data: Readable, block: Block) -> list[tuple[bytes, bytes]]:
    checked = _checked(data, block)
    if checked.damage is not None:
        raise MalformedError(checked.damage)
    return list(_entries(_content(data, block)))


def _outer_damage(data: Readable, blocks: Sequence[Block]) -> list[tuple[int, str]]:
    """The damages outside of data blocks, and bytes that belong to no block."""
    metaindex, index = _footer(data)
    damages = []
    at = 0
    try:
        filters = [Block(*_handle(value, 0)[0]) for _, value in _whole_entries(data, metaindex)]
    except MalformedError as error:
        damages.append((metaindex.offset, f"the metaindex is damaged: {error}"))
        filters = []
    for block in sorted([*blocks, *filters, metaindex, index], key=lambda block: block.offset):
        if block.offset != at:
            damages.append((at, "bytes that belong to no block"))
        at = block.offset + block.size + _TRAILER.size
    if at != len(data) - FOOTER_SIZE:
        damages.append((at, "bytes that belong to no block"))
    return damages


def _content(data: Readable, block: Block) -> bytes:
    stop = block.offset + block.size
    content = data[block.offset : stop]
    if data[stop : stop + 1] != bytes((_SNAPPY,)):
        return content
    try:
        if read_varint(content, 0)[0] > UNPACKED_BYTES_MAX:
            return content
    except MalformedError:
        return content  # the type byte may be damaged
    if not HAS_SNAPPY:
        return content
    import cramjam

    try:
        return bytes(cramjam.snappy.decompress_raw(content))
    except cramjam.DecompressionError:
        return content  # the type byte may be damaged


def _checked(data: Readable, block: Block) -> Block:
    stop = block.offset + block.size
    if stop + _TRAILER.size > len(data):
        return Block(block.offset, block.size, "the block is cut off")
    kind, crc = _TRAILER.unpack_from(data, stop)
    if masked_crc32c(data[block.offset : stop + 1]) != crc:
        return Block(block.offset, block.size, "the block's checksum does not match")
    if kind not in (_NOT_COMPRESSED, _SNAPPY):
        return Block(block.offset, block.size, f"the block is compressed, by method {kind}")
    if kind == _SNAPPY and not HAS_SNAPPY:
        return Block(block.offset, block.size, _WITHOUT_SNAPPY)
    return block


def _walk(data: Readable) -> tuple[list[Block], int | None]:
    """The data blocks, one behind the other, and the offset where the end of one can't be found."""
    blocks: list[Block] = []
    at = 0
    while at < len(data) - FOOTER_SIZE:
        stop = _end_of(data, at)
        if stop is None:
            return blocks, at
        block = Block(at, stop - at)
        # The filters and the index follow the data blocks; they hold no rows.
        if not _is_data(data, block):
            break
        blocks.append(block)
        at = stop + _TRAILER.size
    return blocks, None


def _is_data(data: Readable, block: Block) -> bool:
    """Whether a block has rows. The metaindex is empty. The values of the index are handles
    of blocks, and the first one begins at offset 0."""
    entries = list(_readable_entries(_content(data, block)))
    if not entries:
        return False
    try:
        (offset, size), at = _handle(entries[0][1], 0)
    except MalformedError:
        return True
    return not (offset == 0 and at == len(entries[0][1]) and 0 < size < block.offset)


def _end_of(data: Readable, at: int) -> int | None:
    """Where the content of the block at this offset stops; None if that can't be found."""
    block_start = at
    while at + 4 <= len(data):
        # The first restart point has these bytes; no entry begins with them, since a key has at
        # least eight bytes.
        if data[at : at + 4] == b"\x00\x00\x00\x00":
            return _restarts_end(data, block_start, at)
        try:
            _, unshared, size, at = _entry_head(data, at)
        except MalformedError:
            return None
        at += unshared + size
    return None


def _restarts_end(data: Readable, block_start: int, at: int) -> int | None:
    last = -1
    for count in range(RESTARTS_MAX):
        if at + _NUMBER.size + _TRAILER.size > len(data):
            return None
        (number,) = _NUMBER.unpack_from(data, at)
        at += _NUMBER.size
        if number == count and count:
            block = Block(block_start, at - block_start)
            if _checked(data, block).damage is None:
                return at
        if number <= last:
            return None
        last = number
    return None


def _entry_head(data: Readable, at: int) -> tuple[int, int, int, int]:
    shared, at = read_varint(data, at)
    unshared, at = read_varint(data, at)
    size, at = read_varint(data, at)
    return shared, unshared, size, at


def _restarts(content: bytes) -> list[int]:
    """The offsets of entries with unshortened keys, ascending, and last the end of the entries."""
    if len(content) < _NUMBER.size:
        return [0]
    (count,) = _NUMBER.unpack_from(content, len(content) - _NUMBER.size)
    stop = len(content) - _NUMBER.size * (count + 1)
    if stop < 0:
        return [0, len(content) - _NUMBER.size]  # the count is damaged; the entries may not be
    numbers = [at for (at,) in _NUMBER.iter_unpack(content[stop : -_NUMBER.size])]
    # A damaged restart may point into the middle of an entry. Reading from the one before skips it.
    return sorted({0, *(at for at in numbers if at < stop), stop})


def _entries(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Internal keys and values. Raises: MalformedError: they can't be parsed."""
    yield from _entries_between(content, 0, _restarts(content)[-1])


def _entries_between(content: bytes, at: int, stop: int) -> Iterator[tuple[bytes, bytes]]:
    key = b""
    while at < stop:
        shared, unshared, size, at = _entry_head(content, at)
        if shared > len(key) or at + unshared + size > stop:
            raise MalformedError("an entry goes beyond the block")
        key = key[:shared] + content[at : at + unshared]
        yield key, content[at + unshared : at + unshared + size]
        at += unshared + size


def _readable_entries(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a damaged block; a damaged length hides those up to the next restart."""
    for start, stop in pairwise(_restarts(content)):
        with suppress(MalformedError):
            yield from _entries_between(content, start, stop)


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a data block; `is_value` is False for a deletion, and None for an unknown
    kind."""

    key: bytes
    value: bytes
    sequence: int
    is_value: bool | None


def read_entries(data: Readable, block: Block) -> Iterator[Entry]:
    """All entries of a data block. Raises: MalformedError: they can't be parsed."""
    for key, value in _entries(_content(data, block)):
        if len(key) < _TAG.size:
            raise MalformedError("a key is too short")
        (tag,) = _TAG.unpack_from(key, len(key) - _TAG.size)
        yield Entry(key[: -_TAG.size], value, tag >> 8, _KINDS.get(tag & 0xFF))


def read_changes(data: Readable, block: Block) -> Iterator[Change]:
    """The changes in a data block, as many as can be parsed. In a damaged block, keys and sequence
    numbers may differ from what was written."""
    content = _content(data, block)
    # Only a bug of LevelDB makes a whole block malformed; then it is read as far as possible.
    for key, value in _readable_entries(content):
        if len(key) >= _TAG.size:
            (tag,) = _TAG.unpack_from(key, len(key) - _TAG.size)
            # A deletion has no value, so a deletion with one is a value with a damaged kind.
            is_deletion = tag & 0xFF == 0 and not value
            yield Change(key[: -_TAG.size], None if is_deletion else value, tag >> 8)
