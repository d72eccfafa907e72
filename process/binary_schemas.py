"""The schemas of bodies in Avro, and the columns of replies in Arrow."""

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
# Schema 2 has these as well, each null for a message without.
ARROW_2: Mapping[str, str] = {
    **ARROW,
    "key": "binary",
    "tags": "list<item: string>",
    "headers": "list<item: struct<name: string, value: binary>>",
}


def _record(name: str, *members: tuple[str, object]) -> dict[str, object]:
    fields = [{"name": member, "type": kind} for member, kind in members]
    return {"type": "record", "name": name, "fields": fields}


_PUBLISHED = _record(
    "PublishResponse",
    ("transactionWritePointer", _LONG_OR_NULL),
    ("startTimestamp", "long"),
    ("startSequenceId", "int"),
    ("endTimestamp", "long"),
    ("endSequenceId", "int"),
)

# By the name of the JSON schema of the same body.
AVRO: Mapping[str, dict[str, object]] = {
    "PublishRequest": _record(
        "PublishRequest",
        ("transactionWritePointer", _LONG_OR_NULL),
        ("messages", {"type": "array", "items": "bytes"}),
    ),
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
        "items": _record("Message", ("id", "bytes"), ("payload", "bytes")),
    },
}
_HEADER = _record("Header", ("name", "string"), ("value", "bytes"))
_ATTRIBUTES = (
    ("key", ["null", "bytes"]),
    ("tags", {"type": "array", "items": "string"}),
    ("headers", {"type": "array", "items": _HEADER}),
)
# The second version, in which messages have attributes; the other schemas have none.
AVRO_2: Mapping[str, dict[str, object]] = {
    "PublishRequest": _record(
        "PublishRequest",
        ("transactionWritePointer", _LONG_OR_NULL),
        (
            "messages",
            {
                "type": "array",
                "items": _record(
                    "MessageToPublish",
                    ("payload", "bytes"),
                    *_ATTRIBUTES,
                    ("ttl", ["null", "int"]),
                ),
            },
        ),
    ),
    "MessageList": {
        "type": "array",
        "items": _record("Message", ("id", "bytes"), ("payload", "bytes"), *_ATTRIBUTES),
    },
}
