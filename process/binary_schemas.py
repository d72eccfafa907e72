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


def _record(record: str, /, **members: object) -> dict[str, object]:
    fields = [{"name": member, "type": kind} for member, kind in members.items()]
    return {"type": "record", "name": record, "fields": fields}


def _array(items: object) -> dict[str, object]:
    return {"type": "array", "items": items}


_PUBLISHED = _record(
    "PublishResponse",
    transactionWritePointer=_LONG_OR_NULL,
    startTimestamp="long",
    startSequenceId="int",
    endTimestamp="long",
    endSequenceId="int",
)

# By the name of the JSON schema of the same body.
AVRO: Mapping[str, dict[str, object]] = {
    "PublishRequest": _record(
        "PublishRequest", transactionWritePointer=_LONG_OR_NULL, messages=_array("bytes")
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
    "MessageList": _array(_record("Message", id="bytes", payload="bytes")),
}
_ATTRIBUTES = {
    "key": ["null", "bytes"],
    "tags": _array("string"),
    "headers": _array(_record("Header", name="string", value="bytes")),
}
_TO_PUBLISH = _record("MessageToPublish", payload="bytes", **_ATTRIBUTES, ttl=["null", "int"])
# The second version, in which messages have attributes; the other schemas have none.
AVRO_2: Mapping[str, dict[str, object]] = {
    "PublishRequest": _record(
        "PublishRequest", transactionWritePointer=_LONG_OR_NULL, messages=_array(_TO_PUBLISH)
    ),
    "MessageList": _array(_record("Message", id="bytes", payload="bytes", **_ATTRIBUTES)),
}
