"""The bodies of the protocol as JSON Schema, by name (protocol §1 to §5, §7).

What comes in is closed (an unknown member is refused); what goes out may grow members later.
"""

from collections.abc import Mapping

from tuff.protocol.requests import MESSAGES_COUNT_MAX

Schema = dict[str, object]

_LONG_MAX = (1 << 63) - 1


def ref(name: str) -> Schema:
    """A reference to a schema of this module."""
    return {"$ref": f"#/components/schemas/{name}"}


def _array(item: Schema, description: str = "") -> Schema:
    found: Schema = {"type": "array", "items": item}
    return {**found, "description": description} if description else found


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _one_of(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def _taken(properties: Mapping[str, Schema], *, required: tuple[str, ...] = ()) -> Schema:
    found: Schema = {
        "type": "object",
        "properties": dict(properties),
        "additionalProperties": False,
    }
    return {**found, "required": list(required)} if required else found


def _given(properties: Mapping[str, Schema], *, optional: tuple[str, ...] = ()) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": dict(properties), "required": required}


def _fixed(kind: str, **limits: object) -> Schema:
    return {"type": kind, **limits}


_MS = _fixed("integer", minimum=0, description="ms since the epoch")
_SECONDS = _fixed("number", exclusiveMinimum=0, description="seconds; fractions allowed")
_TTL = _fixed("integer", minimum=1, maximum=2147483647, description="whole seconds")
_SEQ_ID = _fixed("integer", minimum=0, maximum=65535)
_MESSAGES_TAKEN: Schema = {
    "type": "array",
    "items": ref("MessageTaken"),
    "maxItems": MESSAGES_COUNT_MAX,
    "description": "as many at most in one request, in all of its entries together",
}
_STATE = _one_of("in_progress", "committing", "committed", "aborted", "invalid")
_TYPE = _one_of("short", "long")

_VALUES: dict[str, Schema] = {
    "Name": _fixed("string", pattern=r"^(?!\.{1,2}$)[A-Za-z0-9._-]{1,128}$"),
    "SinkName": _fixed("string", pattern=r"^(?!\.{1,2}$)[A-Za-z0-9._:/-]{1,128}$"),
    "Pointer": _fixed(
        "string",
        pattern="^-?[0-9]{1,19}$",
        description="a 64-bit transaction pointer in decimal digits, since JSON readers that know "
        "only doubles round larger numbers",
    ),
    "PointerTaken": {
        "anyOf": [ref("Pointer"), {"type": "integer", "minimum": -_LONG_MAX, "maximum": _LONG_MAX}]
    },
    "MessageId": _fixed("string", pattern="^[0-9a-f]{40}$", description="20 bytes in hex"),
    "MessageIdTaken": _fixed("string", pattern="^[0-9A-Fa-f]{40}$"),
    "Payload": {
        "description": "a string stands for its UTF-8 bytes; other bytes go as base64",
        "anyOf": [
            {"type": "string"},
            _taken({"base64": _fixed("string", contentEncoding="base64")}, required=("base64",)),
        ],
    },
    "MessageTaken": {
        "anyOf": [
            ref("Payload"),
            _taken({"payload": ref("Payload"), "ttl": _TTL}, required=("payload",)),
        ]
    },
    "Problem": {
        **_given(
            {
                "type": _fixed("string", const="about:blank"),
                "title": {"type": "string"},
                "status": {"type": "integer"},
                "detail": _fixed("string", description="one plain sentence"),
                "code": _fixed("string", description="stable; what a program looks at"),
            }
        ),
        "description": "RFC 9457; further members stand beside the code that they belong to",
    },
}

_TOPICS: dict[str, Schema] = {
    "Topic": _given(
        {
            "name": ref("Name"),
            "properties": _fixed("object", additionalProperties={"type": "string"}),
            "generation": _fixed("integer", minimum=1),
        }
    ),
    "TopicProperties": {
        "type": "object",
        "properties": {"ttl": {"anyOf": [_TTL, _fixed("string", pattern="^(?!0+$)[0-9]{1,10}$")]}},
        "additionalProperties": {"anyOf": [{"type": "string"}, {"type": "number"}]},
        "not": {"required": ["generation"]},
    },
    "Names": _array({"type": "string"}, "in byte order"),
    "Truncation": _taken({"before": {"anyOf": [ref("MessageIdTaken"), _MS]}}, required=("before",)),
    "Truncated": _given({"earliest": _or_null(ref("MessageId"))}),
    "HoldTaken": _taken(
        {"from": {"anyOf": [ref("MessageIdTaken"), _MS]}, "maxAge": _SECONDS},
        required=("from", "maxAge"),
    ),
    "Hold": _given({"name": ref("Name"), "from": ref("MessageId"), "expiresAt": _MS, "setAt": _MS}),
    "Holds": _given({"holds": _array(ref("Hold"), "by name; those that are not over")}),
    "PositionTaken": _taken({"position": ref("MessageIdTaken")}, required=("position",)),
    "Position": _given(
        {
            "name": ref("Name"),
            "position": ref("MessageId"),
            "generation": _fixed("integer", minimum=1),
            "updatedAt": _MS,
        }
    ),
    "Positions": _given({"positions": _array(ref("Position"), "by name")}),
    "Splits": _given(
        {
            "generation": _fixed("integer", minimum=1),
            "splits": _array(
                _given({"start": _or_null(ref("MessageId")), "end": ref("MessageId")}),
                "ascending; start is exclusive, end inclusive, and the next one begins there",
            ),
        }
    ),
}

_RANGE = {
    "startTimestamp": _MS,
    "startSequenceId": _SEQ_ID,
    "endTimestamp": _MS,
    "endSequenceId": _SEQ_ID,
}

_MESSAGES: dict[str, Schema] = {
    "PublishRequest": _taken(
        {
            "transactionWritePointer": _or_null(ref("PointerTaken")),
            "messages": _MESSAGES_TAKEN,
        },
        required=("messages",),
    ),
    "PublishResponse": _given({"transactionWritePointer": ref("Pointer"), **_RANGE}),
    "Rollback": _taken(
        {"transactionWritePointer": ref("PointerTaken"), **_RANGE},
        required=("transactionWritePointer", *_RANGE),
    ),
    "ConsumeRequest": _taken(
        {
            "startFrom": {"anyOf": [ref("MessageIdTaken"), _MS, {"type": "null"}]},
            "inclusive": _fixed("boolean", default=True),
            "limit": _or_null(_fixed("integer", minimum=1)),
            "transaction": {
                "anyOf": [
                    _fixed("string", contentEncoding="base64"),
                    ref("SnapshotTaken"),
                    {"type": "null"},
                ]
            },
        }
    ),
    "Messages": _array(
        _given({"id": ref("MessageId"), "payload": ref("Payload"), "timestamp": _MS})
    ),
    "Offsets": _given(
        {
            "generation": _fixed("integer", minimum=1),
            "earliest": _or_null(ref("MessageId")),
            "end": _or_null(ref("MessageId")),
            "blockedBy": _or_null(ref("Pointer")),
        }
    ),
}

_LEASE: dict[str, Schema] = {"lease": _SECONDS, "leaseExpiresAt": _MS}
_LEVEL = _one_of("SNAPSHOT", "SNAPSHOT_EXCLUDE_CURRENT", "SNAPSHOT_ALL")


def _snapshot_members(pointer: Schema) -> dict[str, Schema]:
    return {
        "transactionId": pointer,
        "writePointer": pointer,
        "readPointer": pointer,
        "invalids": _array(pointer),
        "inProgress": _array(pointer),
        "firstShortInProgress": pointer,
        "type": _TYPE,
        "checkpointWritePointers": _array(pointer),
        "visibilityLevel": _LEVEL,
        "encoded": _fixed("string", contentEncoding="base64", description="TTransaction bytes"),
        "state": _STATE,
        "client": _or_null({"type": "string"}),
        "timeout": _or_null({"type": "number"}),
        "startedAt": _MS,
        "expiresAt": _MS,
        **_LEASE,
    }


_EPOCH: dict[str, Schema] = {
    "sink": {"type": "string"},
    "epoch": _fixed("integer", minimum=0, maximum=_LONG_MAX),
    "runId": {"type": "string"},
}
_CHANGES = _array(ref("Payload"), "keys for conflict detection")
_STATE_REPLY = _given({"state": _STATE, "reason": {"type": "string"}}, optional=("reason",))
_OPEN = {
    "transactionId": ref("Pointer"),
    "type": _TYPE,
    "client": _or_null({"type": "string"}),
    "startedAt": _MS,
    "expiresAt": _MS,
    "topics": _array({"type": "string"}, "ns:topic"),
    **_LEASE,
}

_TRANSACTIONS: dict[str, Schema] = {
    "Transaction": _given(
        _snapshot_members(ref("Pointer")),
        optional=("invalids", "inProgress", "encoded", *_LEASE),
    ),
    "SnapshotTaken": _taken(
        _snapshot_members(ref("PointerTaken")),
        required=("transactionId", "readPointer", "writePointer", "invalids", "inProgress"),
    ),
    "Start": _taken(
        {
            "type": _or_null(_TYPE),
            "timeout": _or_null(_SECONDS),
            "client": _or_null({"type": "string"}),
            "lists": _fixed("boolean", default=True),
            "lease": _or_null(_SECONDS),
        }
    ),
    "Renewed": _given({"leaseExpiresAt": _MS, "expiresAt": _MS}),
    "BeginEpoch": _taken(
        {
            "runId": _fixed("string", minLength=1, maxLength=128),
            "lease": _or_null(_SECONDS),
            "client": _or_null({"type": "string"}),
        },
        required=("runId",),
    ),
    "Epoch": _given(
        {
            **_EPOCH,
            "state": _one_of("begun", "committed"),
            "transaction": _or_null(ref("Transaction")),
        }
    ),
    "Sink": _given({**_EPOCH, "state": _STATE, "transactionId": ref("Pointer"), "updatedAt": _MS}),
    "Sinks": _given({"sinks": _array(ref("Sink"), "by name")}),
    "CanCommit": _taken({"changes": _CHANGES}),
    "PublishEntry": _taken(
        {
            "namespace": ref("Name"),
            "topic": ref("Name"),
            "messages": _MESSAGES_TAKEN,
            "pointer": ref("PointerTaken"),
        },
        required=("namespace", "topic", "messages"),
    ),
    "Commit": _taken(
        {
            "changes": _CHANGES,
            "publish": _array(ref("PublishEntry")),
            "readOnly": _fixed("boolean", default=False),
        }
    ),
    "Run": _taken(
        {
            "publish": {**_array(ref("PublishEntry")), "minItems": 1},
            "client": _or_null({"type": "string"}),
            "requestId": _or_null(_fixed("string", maxLength=128)),
        },
        required=("publish",),
    ),
    "Committed": _given(
        {
            "state": _fixed("string", const="committed"),
            "published": _array(ref("PublishResponse")),
        }
    ),
    "State": _STATE_REPLY,
    "Outcome": _given(
        {**_OPEN, "state": _STATE, "reason": _or_null({"type": "string"})},
        optional=("reason", *_LEASE),
    ),
    "Overview": _given(
        {
            "readPointer": ref("Pointer"),
            "writePointer": ref("Pointer"),
            "inProgress": _array(_given(_OPEN, optional=tuple(_LEASE))),
            "visibilityUpperBound": ref("Pointer"),
            "invalidCount": _fixed("integer", minimum=0),
            "committingCount": _fixed("integer", minimum=0),
            "oldestInProgress": _or_null(ref("Pointer")),
        }
    ),
    "Invalids": _given(
        {
            "invalids": _array(ref("Pointer")),
            "prunable": _array(ref("Pointer"), "those that no message row carries"),
            "sweptAt": _or_null(_MS),
            "sweptWith": _or_null({"type": "string"}),
        }
    ),
    "TruncateInvalids": {
        "oneOf": [
            _taken({"ids": _array(ref("PointerTaken"))}, required=("ids",)),
            _taken({"before": _MS}, required=("before",)),
        ]
    },
    "TruncatedInvalids": _given(
        {"removed": _fixed("integer", minimum=0), "kept": _array(ref("Pointer"))}
    ),
    "SnapshotFile": _given({"file": {"type": "string"}, "bytes": _fixed("integer", minimum=0)}),
    "TransactionState": _fixed("object", description="the newest state, for debugging"),
    "ServiceState": _given({"state": _one_of("stopped", "running")}),
}

_CHECK = _given({"status": {"type": "string"}, "detail": {"type": "string"}}, optional=("detail",))

_PROCESS: dict[str, Schema] = {
    "Health": _given({"status": {"type": "string"}}),
    "Text": {"type": "string"},
    "Backup": _fixed("string", description="the bytes of an archive: docs/formats.md, Backups"),
    "Ready": _given(
        {
            "status": {"type": "string"},
            "checks": _given(dict.fromkeys(("storage", "transactions", "disk", "clock"), _CHECK)),
        }
    ),
    "OpenApi": _fixed("object", description="this document"),
}

SCHEMAS: Mapping[str, Schema] = {**_VALUES, **_TOPICS, **_MESSAGES, **_TRANSACTIONS, **_PROCESS}
