"""Avro and Thrift forms made by other libraries, so that our codecs do not test themselves."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from fastavro import parse_schema, schemaless_reader, schemaless_writer
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TType
from thrift.transport.TTransport import TMemoryBuffer

_POINTER = {"name": "transactionWritePointer", "type": ["long", "null"]}

PUBLISH_REQUEST = parse_schema(
    {
        "type": "record",
        "name": "PublishRequest",
        "fields": [
            _POINTER,
            {"name": "messages", "type": {"type": "array", "items": "bytes"}},
        ],
    }
)
PUBLISH_RESPONSE = parse_schema(
    {
        "type": "record",
        "name": "PublishResponse",
        "fields": [
            _POINTER,
            {"name": "startTimestamp", "type": "long"},
            {"name": "startSequenceId", "type": "int"},
            {"name": "endTimestamp", "type": "long"},
            {"name": "endSequenceId", "type": "int"},
        ],
    }
)
CONSUME_REQUEST = parse_schema(
    {
        "type": "record",
        "name": "ConsumeRequest",
        "fields": [
            {"name": "startFrom", "type": ["bytes", "long", "null"]},
            {"name": "inclusive", "type": "boolean", "default": True},
            {"name": "limit", "type": ["int", "null"]},
            {"name": "transaction", "type": ["bytes", "null"]},
        ],
    }
)
CONSUME_RESPONSE = parse_schema(
    {
        "type": "array",
        "items": {
            "type": "record",
            "name": "Message",
            "fields": [{"name": "id", "type": "bytes"}, {"name": "payload", "type": "bytes"}],
        },
    }
)


def encode(schema: Any, value: object) -> bytes:
    buffer = io.BytesIO()
    schemaless_writer(buffer, schema, value)
    return buffer.getvalue()


def decode(schema: Any, data: bytes) -> Any:
    """The value of a datum after which nothing follows."""
    buffer = io.BytesIO(data)
    value = schemaless_reader(buffer, schema, None)
    assert buffer.read() == b"", "something follows the datum"
    return value


def publish_request(messages: Sequence[bytes], *, pointer: int | None = None) -> bytes:
    return encode(PUBLISH_REQUEST, {"transactionWritePointer": pointer, "messages": list(messages)})


def consume_request(
    *,
    start: bytes | int | None = None,
    inclusive: bool = True,
    limit: int | None = None,
    transaction: bytes | None = None,
) -> bytes:
    value = {
        "startFrom": start, "inclusive": inclusive, "limit": limit, "transaction": transaction,
    }  # fmt: skip
    return encode(CONSUME_REQUEST, value)


def messages_of(data: bytes) -> list[tuple[bytes, bytes]]:
    """(id, payload) of each message in a poll's Avro reply."""
    return [(message["id"], message["payload"]) for message in decode(CONSUME_RESPONSE, data)]


_FIELDS = (
    (1, "transactionId", TType.I64),
    (2, "readPointer", TType.I64),
    (3, "invalids", TType.LIST),
    (4, "inProgress", TType.LIST),
    (5, "firstShortInProgress", TType.I64),
    (6, "type", TType.I32),
    (7, "writePointer", TType.I64),
    (8, "checkpointWritePointers", TType.LIST),
    (9, "visibilityLevel", TType.I32),
)
_NUMBERS = {
    "short": 1, "long": 2, "SNAPSHOT": 1, "SNAPSHOT_EXCLUDE_CURRENT": 2, "SNAPSHOT_ALL": 3,
}  # fmt: skip


def transaction_bytes(transaction: Mapping[str, Any]) -> bytes:
    """TTransaction of a transaction object (protocol §5.1), by Thrift's own TBinaryProtocol."""
    buffer = TMemoryBuffer()
    protocol = TBinaryProtocol(buffer)
    for field_id, name, kind in _FIELDS:
        protocol.writeFieldBegin(name, kind, field_id)
        _write(protocol, kind, transaction[name])
    protocol.writeFieldStop()
    data: bytes = buffer.getvalue()
    return data


def _write(protocol: Any, kind: int, value: Any) -> None:
    if kind == TType.LIST:
        protocol.writeListBegin(TType.I64, len(value))
        for pointer in value:
            protocol.writeI64(int(pointer))
    elif kind == TType.I64:
        protocol.writeI64(int(value))
    else:
        protocol.writeI32(_NUMBERS[value])
