"""A reader of the files that the server and region observers exchange, from docs/formats.md §13."""

import struct
from zlib import crc32

from tests.formats.transaction_files import VERSION, DamagedError, Value


def read_state(data: bytes) -> Value:
    """The state that the server writes for region observers."""
    body = _checked(b"TUFFRTST", data)
    now_ms, longest_ms, count = struct.unpack_from(">QQI", body)
    at, topics = 20, []
    for _ in range(count):
        (size,) = struct.unpack_from(">H", body, at)
        name, at = body[at + 2 : at + 2 + size].decode(), at + 2 + size
        generation, ttl_s, start_ms, start_seq = struct.unpack_from(">iIQH", body, at)
        log_start, at = [start_ms, start_seq], at + 18
        topics.append(
            {"name": name, "generation": generation, "ttl_s": ttl_s, "log_start": log_start}
        )
    in_progress, at = _pointers(body, at)
    invalid, at = _pointers(body, at)
    if at != len(body):
        raise DamagedError("something follows the end")
    return {
        "now_ms": now_ms,
        "longest_transaction_ms": longest_ms,
        "topics": topics,
        "in_progress": in_progress,
        "invalid": invalid,
    }


def read_region(data: bytes) -> Value:
    """The record that a region server writes of a pass."""
    body = _checked(b"TUFFRGRC", data)
    (size,) = struct.unpack_from(">H", body)
    state_ms, ended_ms, dropped, inverted = struct.unpack_from(">QQQQ", body, 2 + size)
    cleared, at = _pointers(body, 2 + size + 32)
    if at != len(body):
        raise DamagedError("something follows the end")
    return {
        "region": body[2 : 2 + size].decode(),
        "state_ms": state_ms,
        "ended_ms": ended_ms,
        "dropped": dropped,
        "inverted": inverted,
        "cleared": cleared,
    }


def _checked(magic: bytes, data: bytes) -> bytes:
    if data[:10] != magic + struct.pack(">H", VERSION):
        raise DamagedError("it does not begin as such a file does")
    if struct.pack(">I", crc32(data[14:])) != data[10:14]:
        raise DamagedError("its checksum does not match")
    return data[14:]


def _pointers(body: bytes, at: int) -> tuple[list[int], int]:
    (count,) = struct.unpack_from(">I", body, at)
    found = list(struct.unpack_from(f">{count}Q", body, at + 4))
    return found, at + 4 + 8 * count
