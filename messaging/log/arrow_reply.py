"""Messages in Arrow (protocol §3.4): a stream with one schema and one record batch.

    columns := id: binary(20 bytes) value: binary timestamp: timestamp[us, UTC] generation: int32
               write_pointer: int64, null for a message without a transaction
    schema 2 adds key: binary tags: list<string> headers: list<struct<name: string, value: binary>>,
               each null for a message without

Columns are built from all ids, all payloads and ranges of pointers at once; no object is made for a
message. Only this module imports pyarrow. It is loaded when a reader first asks for Arrow.
"""

import sys
from array import array
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from messaging.log.read_result import Messages, PublishedRange
from tuff.protocol.attributes import NO_ATTRIBUTES
from tuff.protocol.ids import MESSAGE_ID_SIZE

_TIME_SIZE = 8  # bytes; an id begins with the publish time
_ID_SIZE = MESSAGE_ID_SIZE.to_bytes(4, "big")
_SIZE_OF_NOTHING = bytes(len(_ID_SIZE))
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
_HEADER = pa.struct([("name", pa.string()), ("value", pa.binary())])
_ATTRIBUTES = pa.schema(
    [("key", pa.binary()), ("tags", pa.list_(pa.string())), ("headers", pa.list_(_HEADER))]
)
SCHEMA_2 = pa.schema([*SCHEMA, *_ATTRIBUTES])
# What a stream has around its one batch; joined here, the batch is copied once and not three times.
_BEGINNING = SCHEMA.serialize().to_pybytes()
_BEGINNING_2 = SCHEMA_2.serialize().to_pybytes()
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"


def encode(messages: Messages, *, generation: int, schema: int) -> bytes:
    """The stream of these messages of one generation of a topic."""
    count, joined = len(messages), messages.joined()
    ids = _binary([_ID_SIZE * count], joined.ids)
    columns = [
        ids,
        _binary(joined.sizes, joined.payloads),
        _times(ids),
        pa.repeat(pa.scalar(generation, pa.int32()), count),
        _pointers(count, messages.pointers),
    ]
    if schema == 1:
        batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        return b"".join((_BEGINNING, batch.serialize(), _END))
    columns += _attributes(count, messages)
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA_2)
    return b"".join((_BEGINNING_2, batch.serialize(), _END))


def _attributes(count: int, messages: Messages) -> list[pa.Array]:
    if not messages.attributes:
        return [pa.nulls(count, field.type) for field in _ATTRIBUTES]
    decoded = messages.decoded_attributes()
    rows = [decoded.get(index, NO_ATTRIBUTES) for index in range(count)]
    headers = [
        [{"name": name, "value": value} for name, value in row.headers] or None for row in rows
    ]
    columns = [row.key for row in rows], [row.tags or None for row in rows], headers
    return [pa.array(*each) for each in zip(columns, _ATTRIBUTES.types, strict=True)]


def _binary(sizes: Sequence[bytes], values: Sequence[bytes | memoryview]) -> pa.BinaryArray:
    """The column of these values, whose sizes are numbers of four bytes."""
    # Where each value begins, and last where they end; a page is far from 2 GiB.
    numbers = _numbers("i", b"".join((_SIZE_OF_NOTHING, *sizes)))
    column = pa.Array.from_buffers(pa.int32(), len(numbers), [None, pa.py_buffer(numbers)])
    offsets = pc.cumulative_sum(column).buffers()[1]
    data = pa.py_buffer(b"".join(values))
    return pa.Array.from_buffers(pa.binary(), len(numbers) - 1, [None, offsets, data])


def _numbers(code: str, data: bytes | memoryview) -> "array[int]":
    """Big-endian numbers, as this machine has them."""
    numbers = array(code)
    numbers.frombytes(data)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


def _times(ids: pa.BinaryArray) -> pa.TimestampArray:
    times = pc.binary_slice(ids, 0, _TIME_SIZE)
    assert array("q").itemsize == _TIME_SIZE
    numbers = _numbers("q", memoryview(times.buffers()[2] or b"")[: _TIME_SIZE * len(times)])
    in_ms = pa.timestamp("ms", tz="UTC")
    return pa.Array.from_buffers(in_ms, len(times), [None, pa.py_buffer(numbers)]).cast(_TIME)


def _pointers(count: int, ranges: Sequence[PublishedRange]) -> pa.Int64Array:
    if not ranges:
        return pa.nulls(count, pa.int64())
    numbers = array("q", [_NO_POINTER]) * count
    for start, stop, pointer in ranges:
        numbers[start:stop] = array("q", [pointer]) * (stop - start)
    column = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(numbers)])
    return pc.if_else(pc.equal(column, _NO_POINTER), pa.scalar(None, pa.int64()), column)
