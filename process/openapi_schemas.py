"""The bodies of the protocol as JSON Schema, by name (protocol §1 to §5, §7).

A request is closed (an unknown member is refused); a reply may grow members later. Generators make
a class of every object and every enumeration. Each of them stands here under a name of its own, and
is referred to wherever it is used: one that stands inside of another gets a made-up name, and two
made-up names that are equal made a generator leave both classes out.
"""

from collections.abc import Mapping

from tuff.protocol.requests import MESSAGES_COUNT_MAX
from tx.edits import InvalidReason

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


def _request(properties: Mapping[str, Schema], *, required: tuple[str, ...] = ()) -> Schema:
    found: Schema = {
        "type": "object",
        "properties": dict(properties),
        "additionalProperties": False,
    }
    return {**found, "required": list(required)} if required else found


def _reply(properties: Mapping[str, Schema], *, optional: tuple[str, ...] = ()) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": dict(properties), "required": required}


def _fixed(kind: str, **limits: object) -> Schema:
    return {"type": kind, **limits}


_MS = _fixed("integer", format="int64", minimum=0, description="ms since the epoch")
_SECONDS = _fixed(
    "number", format="double", exclusiveMinimum=0, description="seconds; fractions allowed"
)
_TTL = _fixed("integer", minimum=1, maximum=2147483647, description="whole seconds")
_GENERATION = _fixed("integer", minimum=1)
_COUNT = _fixed("integer", format="int64", minimum=0)
_SEQ_ID = _fixed("integer", minimum=0, maximum=65535)
_TEXT: Schema = {"type": "string"}
_MESSAGES_TO_PUBLISH: Schema = {
    "type": "array",
    "items": ref("MessageInput"),
    "maxItems": MESSAGES_COUNT_MAX,
    "description": "as many at most in one request, in all of its entries together",
}

_VALUES: dict[str, Schema] = {
    "Name": _fixed("string", pattern=r"^(?!\.{1,2}$)[A-Za-z0-9._-]{1,128}$"),
    "SinkName": _fixed("string", pattern=r"^(?!\.{1,2}$)[A-Za-z0-9._:/-]{1,128}$"),
    "Pointer": _fixed(
        "string",
        pattern="^-?[0-9]{1,19}$",
        description="a 64-bit transaction pointer in decimal digits, since JSON readers that know "
        "only doubles round larger numbers",
    ),
    "PointerInput": {
        "description": "a transaction pointer, as digits or as a number",
        "anyOf": [
            ref("Pointer"),
            _fixed("integer", format="int64", minimum=-_LONG_MAX, maximum=_LONG_MAX),
        ],
    },
    "MessageId": _fixed("string", pattern="^[0-9a-f]{40}$", description="20 bytes in hex"),
    "MessageIdInput": _fixed("string", pattern="^[0-9A-Fa-f]{40}$", description="20 bytes in hex"),
    "Place": {
        "description": "a place in a topic: a message id, or a publish time in ms since the epoch",
        "anyOf": [ref("MessageIdInput"), _MS],
    },
    "BinaryPayload": _request(
        {"base64": _fixed("string", contentEncoding="base64")}, required=("base64",)
    ),
    "Payload": {
        "description": "a string stands for its UTF-8 bytes; other bytes go as base64",
        "anyOf": [_TEXT, ref("BinaryPayload")],
    },
    "MessageWithTtl": _request({"payload": ref("Payload"), "ttl": _TTL}, required=("payload",)),
    "MessageInput": {
        "description": "a payload alone, or with a time to live of its own",
        "anyOf": [_TEXT, ref("BinaryPayload"), ref("MessageWithTtl")],
    },
    "Isolation": _one_of("all", "committed"),
    "Undecided": {**_one_of("hold", "skip"), "default": "hold"},
    "TransactionType": _one_of("short", "long"),
    "TransactionState": _one_of("in_progress", "committing", "committed", "aborted", "invalid"),
    "InvalidReason": {
        **_one_of(*(each.value for each in InvalidReason)),
        "description": "why a transaction is invalid",
    },
    "VisibilityLevel": _one_of("SNAPSHOT", "SNAPSHOT_EXCLUDE_CURRENT", "SNAPSHOT_ALL"),
}

# What stands beside a code of an error (RFC 9457 §3.2).
_EPOCH_MEMBER: Mapping[str, Schema] = {
    "epoch": _fixed("integer", format="int64", description="the newest epoch of the sink")
}
_REASON_MEMBER: Mapping[str, Schema] = {"reason": ref("InvalidReason")}
MEMBERS: Mapping[str, Mapping[str, Schema]] = {
    "transaction_conflict": {
        "key": ref("Payload"),
        "conflictingTransaction": ref("Pointer"),
        "conflictingClient": _fixed("string", description="the client of that transaction"),
    },
    "transaction_timed_out": _REASON_MEMBER,
    "transaction_invalidated": _REASON_MEMBER,
    "sink_epoch_superseded": _EPOCH_MEMBER,
    "sink_epoch_open": _EPOCH_MEMBER,
    "topic_held": {"holds": _array(ref("Name"), "the holds that are in the way")},
    "damaged_record": {
        "id": _fixed("string", description="the record, as its key or its message id in hex"),
        "next": _or_null(ref("MessageId")),
    },
}
_OF_EVERY_PROBLEM: dict[str, Schema] = {
    "type": _fixed("string", const="about:blank"),
    "title": _TEXT,
    "status": {"type": "integer"},
    "detail": _fixed("string", description="one plain sentence"),
    "code": _fixed("string", description="stable; what a program looks at"),
}
_OF_SOME_PROBLEMS = {name: schema for each in MEMBERS.values() for name, schema in each.items()}

_PROBLEM: dict[str, Schema] = {
    "Problem": {
        **_reply({**_OF_EVERY_PROBLEM, **_OF_SOME_PROBLEMS}, optional=tuple(_OF_SOME_PROBLEMS)),
        "description": "RFC 9457. Beside the first five, a member comes with the codes that have "
        "it: `key`, the change that both transactions wrote, and who committed it first; `reason`, "
        "why the transaction is invalid; `epoch`; `holds`; `id`, and `next`, the exclusive start "
        "of a read that goes on behind a damaged record",
    },
}

_TOPICS: dict[str, Schema] = {
    "Topic": _reply(
        {
            "name": ref("Name"),
            "properties": ref("TopicProperties"),
            "generation": _GENERATION,
        }
    ),
    "TopicProperties": _fixed("object", additionalProperties=_TEXT),
    "TopicTtl": {
        "description": "whole seconds, as a number or as digits",
        "anyOf": [_TTL, _fixed("string", pattern="^(?!0+$)[0-9]{1,10}$")],
    },
    "TopicPropertyValue": {"anyOf": [_TEXT, {"type": "number"}]},
    "TopicPropertiesInput": {
        "type": "object",
        "properties": {"ttl": ref("TopicTtl")},
        "additionalProperties": ref("TopicPropertyValue"),
        "not": {"required": ["generation"]},
    },
    "Names": _array(_TEXT, "in byte order"),
    "TruncateTopicRequest": _request({"before": ref("Place")}, required=("before",)),
    "TruncateTopicResponse": _reply({"earliest": _or_null(ref("MessageId"))}),
    "HoldRequest": _request(
        {"from": ref("Place"), "maxAge": _SECONDS}, required=("from", "maxAge")
    ),
    "Hold": _reply({"name": ref("Name"), "from": ref("MessageId"), "expiresAt": _MS, "setAt": _MS}),
    "HoldList": _reply({"holds": _array(ref("Hold"), "by name; those that are not over")}),
    "PositionRequest": _request({"position": ref("MessageIdInput")}, required=("position",)),
    "Position": _reply(
        {
            "name": ref("Name"),
            "position": ref("MessageId"),
            "generation": _GENERATION,
            "updatedAt": _MS,
        }
    ),
    "PositionList": _reply({"positions": _array(ref("Position"), "by name")}),
    "Split": _reply({"start": _or_null(ref("MessageId")), "end": ref("MessageId")}),
    "SplitList": _reply(
        {
            "generation": _GENERATION,
            "splits": _array(
                ref("Split"),
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
    "PublishRequest": _request(
        {
            "transactionWritePointer": _or_null(ref("PointerInput")),
            "messages": _MESSAGES_TO_PUBLISH,
        },
        required=("messages",),
    ),
    "PublishResponse": _reply({"transactionWritePointer": ref("Pointer"), **_RANGE}),
    "RollbackRequest": _request(
        {"transactionWritePointer": ref("PointerInput"), **_RANGE},
        required=("transactionWritePointer", *_RANGE),
    ),
    "ConsumeRequest": _request(
        {
            "startFrom": _or_null(ref("Place")),
            "inclusive": _fixed("boolean", default=True),
            "limit": _or_null(_fixed("integer", minimum=1)),
            "transaction": _or_null(ref("Snapshot")),
        }
    ),
    "Snapshot": {
        "description": "what to read in: the bytes of a TTransaction as base64, or a transaction",
        "anyOf": [_fixed("string", contentEncoding="base64"), ref("TransactionInput")],
    },
    "Message": _reply({"id": ref("MessageId"), "payload": ref("Payload"), "timestamp": _MS}),
    "MessageList": _array(ref("Message")),
    "Offsets": _reply(
        {
            "generation": _GENERATION,
            "earliest": _or_null(ref("MessageId")),
            "end": _or_null(ref("MessageId")),
            "blockedBy": _or_null(ref("Pointer")),
        }
    ),
}

_LEASE: dict[str, Schema] = {"lease": _SECONDS, "leaseExpiresAt": _MS}


def _snapshot_members(pointer: Schema) -> dict[str, Schema]:
    return {
        "transactionId": pointer,
        "writePointer": pointer,
        "readPointer": pointer,
        "invalids": _array(pointer),
        "inProgress": _array(pointer),
        "firstShortInProgress": pointer,
        "type": ref("TransactionType"),
        "checkpointWritePointers": _array(pointer),
        "visibilityLevel": ref("VisibilityLevel"),
        "encoded": _fixed("string", contentEncoding="base64", description="TTransaction bytes"),
        "state": ref("TransactionState"),
        "client": _or_null(_TEXT),
        "timeout": _or_null(_fixed("number", format="double")),
        "startedAt": _MS,
        "expiresAt": _MS,
        **_LEASE,
    }


_EPOCH: dict[str, Schema] = {
    "sink": _TEXT,
    "epoch": _fixed("integer", format="int64", minimum=0, maximum=_LONG_MAX),
    "runId": _TEXT,
}
_CHANGES = _array(ref("Payload"), "keys for conflict detection")
_OPEN = {
    "transactionId": ref("Pointer"),
    "type": ref("TransactionType"),
    "client": _or_null(_TEXT),
    "startedAt": _MS,
    "expiresAt": _MS,
    "topics": _array(_TEXT, "ns:topic"),
    **_LEASE,
}

_TRANSACTIONS: dict[str, Schema] = {
    "Transaction": _reply(
        _snapshot_members(ref("Pointer")),
        optional=("invalids", "inProgress", "encoded", *_LEASE),
    ),
    "TransactionInput": _request(
        _snapshot_members(ref("PointerInput")),
        required=("transactionId", "readPointer", "writePointer", "invalids", "inProgress"),
    ),
    "StartTransactionRequest": _request(
        {
            "type": _or_null(ref("TransactionType")),
            "timeout": _or_null(_SECONDS),
            "client": _or_null(_TEXT),
            "lists": _fixed("boolean", default=True),
            "lease": _or_null(_SECONDS),
        }
    ),
    "RenewResponse": _reply({"leaseExpiresAt": _MS, "expiresAt": _MS}),
    "BeginEpochRequest": _request(
        {
            "runId": _fixed("string", minLength=1, maxLength=128),
            "lease": _or_null(_SECONDS),
            "client": _or_null(_TEXT),
        },
        required=("runId",),
    ),
    "EpochState": _one_of("begun", "committed"),
    "Epoch": _reply(
        {
            **_EPOCH,
            "state": ref("EpochState"),
            "transaction": _or_null(ref("Transaction")),
        }
    ),
    "Sink": _reply(
        {
            **_EPOCH,
            "state": ref("TransactionState"),
            "transactionId": ref("Pointer"),
            "updatedAt": _MS,
        }
    ),
    "SinkList": _reply({"sinks": _array(ref("Sink"), "by name")}),
    "CanCommitRequest": _request({"changes": _CHANGES}),
    "PublishEntry": _request(
        {
            "namespace": ref("Name"),
            "topic": ref("Name"),
            "messages": _MESSAGES_TO_PUBLISH,
            "pointer": ref("PointerInput"),
        },
        required=("namespace", "topic", "messages"),
    ),
    "CommitRequest": _request(
        {
            "changes": _CHANGES,
            "publish": _array(ref("PublishEntry")),
            "readOnly": _fixed("boolean", default=False),
        }
    ),
    "RunRequest": _request(
        {
            "publish": {**_array(ref("PublishEntry")), "minItems": 1},
            "client": _or_null(_TEXT),
            "requestId": _or_null(_fixed("string", maxLength=128)),
        },
        required=("publish",),
    ),
    "CommitResponse": _reply(
        {
            "state": _fixed("string", const="committed"),
            "published": _array(ref("PublishResponse")),
        }
    ),
    "StateResponse": _reply(
        {"state": ref("TransactionState"), "reason": ref("InvalidReason")}, optional=("reason",)
    ),
    "Outcome": _reply(
        {**_OPEN, "state": ref("TransactionState"), "reason": _or_null(ref("InvalidReason"))},
        optional=("reason", *_LEASE),
    ),
    "OpenTransaction": _reply(_OPEN, optional=tuple(_LEASE)),
    "Overview": _reply(
        {
            "readPointer": ref("Pointer"),
            "writePointer": ref("Pointer"),
            "inProgress": _array(ref("OpenTransaction")),
            "visibilityUpperBound": ref("Pointer"),
            "invalidCount": _COUNT,
            "committingCount": _COUNT,
            "oldestInProgress": _or_null(ref("Pointer")),
        }
    ),
    "InvalidPointersByReason": _fixed(
        "object",
        description="every pointer of the list once, by why it is there",
        additionalProperties=_array(ref("Pointer")),
    ),
    "InvalidList": _reply(
        {
            "invalids": _array(ref("Pointer")),
            "reasons": ref("InvalidPointersByReason"),
            "prunable": _array(ref("Pointer"), "those that no message row carries"),
            "sweptAt": _or_null(_MS),
            "sweptWith": _or_null(_TEXT),
        }
    ),
    "TruncateByIds": _request({"ids": _array(ref("PointerInput"))}, required=("ids",)),
    "TruncateByTime": _request({"before": _MS}, required=("before",)),
    "TruncateInvalidRequest": {"oneOf": [ref("TruncateByIds"), ref("TruncateByTime")]},
    "TruncateInvalidResponse": _reply({"removed": _COUNT, "kept": _array(ref("Pointer"))}),
    "SnapshotFile": _reply({"file": _TEXT, "bytes": _COUNT}),
    "SnapshotContent": _fixed("object", description="the newest state, for debugging"),
    "ServiceState": _one_of("stopped", "running"),
    "ServiceResponse": _reply({"state": ref("ServiceState")}),
}

_PROCESS: dict[str, Schema] = {
    "Health": _reply({"status": _TEXT}),
    "HealthCheck": _reply({"status": _TEXT, "detail": _TEXT}, optional=("detail",)),
    "HealthChecks": _reply(
        dict.fromkeys(("storage", "transactions", "disk", "clock"), ref("HealthCheck"))
    ),
    "Readiness": _reply({"status": _TEXT, "version": _TEXT, "checks": ref("HealthChecks")}),
    "OpenApiDocument": _fixed("object", description="this document"),
}

SCHEMAS: Mapping[str, Schema] = {
    **_VALUES, **_PROBLEM, **_TOPICS, **_MESSAGES, **_TRANSACTIONS, **_PROCESS,
}  # fmt: skip
