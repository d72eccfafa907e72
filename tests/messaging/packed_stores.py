"""Stores with the same rows packed, and damage of packed rows."""

from collections.abc import Collection, Iterator

from messaging.engines.memory import MemoryStore
from messaging.engines.row_store import Store
from messaging.model.packed_rows import is_packed, open_packed, pack_rows, rows_in
from messaging.model.row_format import HEAD, MESSAGES, OFFSET_SIZE, PAYLOADS, PLAIN


def packed_store(rows: dict[bytes, bytes], *, flipped: Collection[bytes] = ()) -> Store:
    """A store of these rows, all of them whole, packed into as few values as possible. Then a bit
    is flipped in the checksum of each row under the keys `flipped`."""
    records = dict(record for group in _neighbours(rows) for record in pack_rows(*group))
    for key in flipped:
        (at,) = (
            at for at, value in records.items() if key in [row for row, _ in rows_in(at, value)]
        )
        records[at] = flip(at, records[at], key)
    return Store(MemoryStore(records))


def flip(record_key: bytes, value: bytes, key: bytes) -> bytes:
    """The stored value with a bit flipped in the checksum of its row under this key."""
    at = HEAD.size - 1
    if is_packed(value):
        packed = open_packed(record_key, value)
        assert packed is not None
        number = int.from_bytes(key[-OFFSET_SIZE:], "big") - packed.number
        at = packed.payloads_at - 4 * (packed.length - number)
    return value[:at] + bytes((value[at] ^ 1,)) + value[at + 1 :]


def without_sizes(value: bytes) -> bytes:
    """Packed rows whose bounds can't be found: two of the sizes are damaged."""
    count = int.from_bytes(value[HEAD.size : HEAD.size + 2], "big")
    assert is_packed(value)
    assert count > 1
    damaged = bytearray(value)
    damaged[HEAD.size + 2 + 3] ^= 2
    damaged[HEAD.size + 2 + 4 * count - 1] ^= 4
    return bytes(damaged)


def without_flags(value: bytes, *, bit: int = 4) -> bytes:
    """Packed rows whose flags are damaged: they look like a single row."""
    assert is_packed(value)
    return bytes((value[0] ^ 1 << bit,)) + value[1:]


def _neighbours(rows: dict[bytes, bytes]) -> Iterator[tuple[list[bytes], list[bytes]]]:
    keys: list[bytes] = []
    for key in sorted(rows):
        is_plain = key[:1] in (MESSAGES, PAYLOADS) and rows[key][0] == PLAIN
        if keys and not (is_plain and _follows(key, keys[-1]) and rows[keys[-1]][0] == PLAIN):
            yield keys, [rows[each] for each in keys]
            keys = []
        keys.append(key)
    if keys:
        yield keys, [rows[each] for each in keys]


def _follows(key: bytes, before: bytes) -> bool:
    number = int.from_bytes(before[-OFFSET_SIZE:], "big") + 1
    return key == before[:-OFFSET_SIZE] + number.to_bytes(OFFSET_SIZE, "big")
