"""The Arrow form of a page (protocol §3.4): a stream with one schema and one record batch.

    columns := id: binary(20 bytes) value: binary timestamp: timestamp[us, UTC] generation: int32
               write_pointer: int64, null for a message without a transaction

Columns are made of all ids, all payloads and stretches of pointers at once, so that no object is
made of a message. Nothing else of the server imports pyarrow, and this module is loaded when a
reader first asks for the form.
"""

import sys
from array import array
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from messaging.page import Under

_TIME_SIZE = 8  # bytes; an id begins with the publish time
_NO_POINTER = 0  # no transaction has it
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


def encode(
    ids: Sequence[bytes], payloads: Sequence[bytes], under: Sequence[Under], *, generation: int
) -> bytes:
    """The stream of these messages; `under` says which of them have a write pointer."""
    id_column = pa.array(ids, pa.binary())
    columns = [
        id_column,
        pa.array(payloads, pa.binary()),
        _times(id_column),
        pa.repeat(pa.scalar(generation, pa.int32()), len(ids)),
        _pointers(len(ids), under),
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    body: bytes = sink.getvalue().to_pybytes()
    return body


def _times(ids: pa.BinaryArray) -> pa.TimestampArray:
    times = pc.binary_slice(ids, 0, _TIME_SIZE)
    numbers = array("q")
    assert numbers.itemsize == _TIME_SIZE
    numbers.frombytes(memoryview(times.buffers()[2] or b"")[: _TIME_SIZE * len(times)])
    if sys.byteorder == "little":
        numbers.byteswap()
    in_ms = pa.timestamp("ms", tz="UTC")
    return pa.Array.from_buffers(in_ms, len(times), [None, pa.py_buffer(numbers)]).cast(_TIME)


def _pointers(count: int, under: Sequence[Under]) -> pa.Int64Array:
    if not under:
        return pa.nulls(count, pa.int64())
    numbers = array("q", [_NO_POINTER]) * count
    for first, stop, pointer in under:
        numbers[first:stop] = array("q", [pointer]) * (stop - first)
    column = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(numbers)])
    return pc.if_else(pc.equal(column, _NO_POINTER), pa.scalar(None, pa.int64()), column)
