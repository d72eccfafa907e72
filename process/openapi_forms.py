"""The forms of messages besides JSON: Avro's schemas (protocol §4), and Arrow's columns (§3.4)."""

from collections.abc import Mapping

_BYTES_OR_NULL = ["bytes", "null"]
_LONG_OR_NULL = ["long", "null"]

# The columns of a reply in Arrow, in their order.
ARROW: Mapping[str, str] = {
    "id": "binary",
    "value": "binary",
    "timestamp": "timestamp[us, tz=UTC]",
    "generation": "int32",
    "write_pointer": "int64",
}

_PUBLISHED: dict[str, object] = {
    "type": "record",
    "name": "PublishResponse",
    "fields": [
        {"name": "transactionWritePointer", "type": _LONG_OR_NULL},
        {"name": "startTimestamp", "type": "long"},
        {"name": "startSequenceId", "type": "int"},
        {"name": "endTimestamp", "type": "long"},
        {"name": "endSequenceId", "type": "int"},
    ],
}

# By the name of the JSON schema of the same body.
AVRO: Mapping[str, dict[str, object]] = {
    "PublishRequest": {
        "type": "record",
        "name": "PublishRequest",
        "fields": [
            {"name": "transactionWritePointer", "type": _LONG_OR_NULL},
            {"name": "messages", "type": {"type": "array", "items": "bytes"}},
        ],
    },
    "PublishResponse": _PUBLISHED,
    "RollbackRequest": _PUBLISHED,
    "ConsumeRequest": {
        "type": "record",
        "name": "ConsumeRequest",
        "fields": [
            {"name": "startFrom", "type": ["bytes", "long", "null"]},
            {"name": "inclusive", "type": "boolean", "default": True},
            {"name": "limit", "type": ["int", "null"]},
            {"name": "transaction", "type": _BYTES_OR_NULL},
        ],
    },
    "MessageList": {
        "type": "array",
        "items": {
            "type": "record",
            "name": "Message",
            "fields": [{"name": "id", "type": "bytes"}, {"name": "payload", "type": "bytes"}],
        },
    },
}
