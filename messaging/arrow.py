"""The Arrow form of a reply (protocol §3.4): one IPC stream of a schema and one record batch.

    columns := id: binary(20 bytes) value: binary timestamp: timestamp[us, UTC] generation: int32
               write_pointer: int64, null for a message without a transaction

The columns are cut out of the items of the Avro reply by Arrow itself, so that no object is made of
a message. Nothing else of the server imports pyarrow, and this module is loaded when a reader first
asks for the form.
"""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tuff.protocol.avro import ID_HEAD
from tuff.protocol.ids import MESSAGE_ID_SIZE

_TIME_SIZE = 8  # bytes; an id begins with the publish time
_ID_AT = len(ID_HEAD)
_LENGTH_AT = _ID_AT + MESSAGE_ID_SIZE

# The size of the largest item whose payload's length takes one byte, two bytes, three: a zig-zag
# varint has room for 6 bits of a length in its first byte, and for 7 in each other.
_LARGEST = tuple(_LENGTH_AT + size + (1 << 7 * size - 1) - 1 for size in (1, 2, 3))
assert _LARGEST == (85, 8_214, 1_048_599)

_TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("id", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", _TIME),
        ("generation", pa.int32()),
        ("write_pointer", pa.int64()),
    ]
)


def encode(items: Sequence[bytes], pointers: Mapping[int, int], *, generation: int) -> bytes:
    """The stream of these items of an Avro reply; `pointers` has the write pointers of those that
    were published under one, by their index."""
    whole = pa.array(items, pa.binary())
    columns = [
        pc.binary_slice(whole, _ID_AT, _LENGTH_AT),
        _values(items, whole),
        _times(whole),
        pa.repeat(pa.scalar(generation, pa.int32()), len(items)),
        _pointers(len(items), pointers),
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    body: bytes = sink.getvalue().to_pybytes()
    return body


def _values(items: Sequence[bytes], whole: pa.BinaryArray) -> pa.BinaryArray:
    sizes = pc.min_max(pc.binary_length(whole)).as_py()
    smallest, largest = sizes["min"] or 0, sizes["max"] or 0
    if _payload_at(smallest) == _payload_at(largest):
        # Left to its default, the stop makes Arrow ask for a buffer of a negative size.
        return pc.binary_slice(whole, _payload_at(largest), largest)
    return pa.array([item[_payload_at(len(item)) :] for item in items], pa.binary())


def _payload_at(item_size: int) -> int:
    """Where the payload begins in an item of so many bytes."""
    return _LENGTH_AT + 1 + bisect_left(_LARGEST, item_size)


def _times(whole: pa.BinaryArray) -> pa.TimestampArray:
    times = pc.binary_slice(whole, _ID_AT, _ID_AT + _TIME_SIZE)
    numbers = array("q")
    assert numbers.itemsize == _TIME_SIZE
    numbers.frombytes(memoryview(times.buffers()[2] or b"")[: _TIME_SIZE * len(times)])
    if sys.byteorder == "little":
        numbers.byteswap()
    in_ms = pa.timestamp("ms", tz="UTC")
    return pa.Array.from_buffers(in_ms, len(times), [None, pa.py_buffer(numbers)]).cast(_TIME)


def _pointers(count: int, pointers: Mapping[int, int]) -> pa.Int64Array:
    if not pointers:
        return pa.nulls(count, pa.int64())
    return pa.array([pointers.get(index) for index in range(count)], pa.int64())
