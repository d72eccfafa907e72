"""The OpenAPI 3.1 document, with the schemas of all bodies and the list of all endpoints.

`ENDPOINTS`, the routes, and the table in docs/protocol.md §9 list the same endpoints; tests compare
the three.

In `SCHEMAS` a request is closed: it has no `additionalProperties`, and the server refuses unknown
members. A reply may get more members later.
Code generators make a class of every object and every enumeration. So each of these has an entry
with a name of its own here, and other schemas refer to it with `ref`. A generator invents a name
for a nested schema without one, and drops both classes where it invents the same name twice.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from messaging.partitions import PARTITIONS_COUNT_MAX
from messaging.read.explanation import Reason
from tuff.protocol.attributes import TAG_LENGTH_MAX, TAGS_COUNT_MAX
from tuff.protocol.errors import BY_CODE
from tuff.protocol.exchange import BACKUP_TYPES, PROBLEM_TYPE, RETRIED_STATUSES, MediaType
from tuff.protocol.ids import PARTITION_NUMBER_MAX
from tuff.protocol.requests import DELAY_MS_MAX, MESSAGES_COUNT_MAX
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


def _of_type(kind: str, **limits: object) -> Schema:
    return {"type": kind, **limits}


_BOOLEAN = _of_type("boolean")
_MS = _of_type("integer", format="int64", minimum=0, description="ms since the epoch")
_SECONDS = _of_type(
    "number", format="double", exclusiveMinimum=0, description="seconds; fractions allowed"
)
_TTL = _of_type("integer", minimum=1, maximum=2147483647, description="whole seconds")
_GENERATION = _of_type("integer", minimum=1)
_PARTITION = _of_type("integer", minimum=0, maximum=PARTITION_NUMBER_MAX)
_COUNT = _of_type("integer", format="int64", minimum=0)
_SEQ_ID = _of_type("integer", minimum=0, maximum=65535)
_TEXT = _of_type("string")
_MESSAGES_TO_PUBLISH: Schema = {
    "type": "array",
    "items": ref("MessageInput"),
    "maxItems": MESSAGES_COUNT_MAX,
    "description": "as many at most in one request, in all of its entries together",
}

_VALUES: dict[str, Schema] = {
    "Name": _of_type("string", pattern=r"^(?!\.{1,2}$)[A-Za-z0-9._-]{1,128}$"),
    "TopicName": _of_type(
        "string",
        pattern=r"^(?!\.{1,2}(:|$))[A-Za-z0-9._-]{1,128}(:(0|[1-9][0-9]{0,3}))?$",
        description="a name, or one with the number of a partition",
    ),
    "SinkName": _of_type("string", pattern=r"^(?!\.{1,2}$)[A-Za-z0-9._:/-]{1,128}$"),
    "Pointer": _of_type(
        "string",
        pattern="^-?[0-9]{1,19}$",
        description="a 64-bit transaction pointer in decimal digits, since JSON readers that know "
        "only doubles round larger numbers",
    ),
    "PointerInput": {
        "description": "a transaction pointer, as digits or as a number",
        "anyOf": [
            ref("Pointer"),
            _of_type("integer", format="int64", minimum=-_LONG_MAX, maximum=_LONG_MAX),
        ],
    },
    "MessageId": _of_type("string", pattern="^[0-9a-f]{40}$", description="20 bytes in hex"),
    "MessageIdInput": _of_type(
        "string", pattern="^[0-9A-Fa-f]{40}$", description="20 bytes in hex"
    ),
    "Place": {
        "description": "a place in a topic: a message id, or a publish time in ms since the epoch",
        "anyOf": [ref("MessageIdInput"), _MS],
    },
    "BinaryPayload": _request(
        {"base64": _of_type("string", contentEncoding="base64")}, required=("base64",)
    ),
    "Payload": {
        "description": "a string stands for its UTF-8 bytes; other bytes go as base64",
        "anyOf": [_TEXT, ref("BinaryPayload")],
    },
    "Delay": _of_type(
        "number",
        format="double",
        minimum=0.001,
        maximum=DELAY_MS_MAX // 1000,
        description="seconds from the publish until the message enters the topic",
    ),
    "DueTime": {
        "description": "when the message enters the topic: ms since the epoch, or ISO 8601",
        "anyOf": [_MS, _TEXT],
    },
    "DelayedId": _of_type("string", pattern="^[0-9a-f]{36}$", description="18 bytes in hex"),
    "Tag": _of_type("string", pattern=f"^[A-Za-z0-9._-]{{1,{TAG_LENGTH_MAX}}}$"),
    "Headers": {
        "type": "object",
        "additionalProperties": ref("HeaderValue"),
        "description": "by name, of printable ASCII characters without a comma",
    },
    "HeaderPairs": {
        "type": "array",
        "items": {
            "type": "array",
            "prefixItems": [_TEXT, ref("Payload")],
            "minItems": 2,
            "maxItems": 2,
        },
        "description": "names and values, whose order is kept",
    },
    "HeaderValue": {
        "description": "a value as a payload has it, or several for a name that repeats",
        "anyOf": [_TEXT, ref("BinaryPayload"), _array(ref("Payload"))],
    },
    "MessageWithTtl": _request(
        {
            "payload": ref("Payload"),
            "ttl": _TTL,
            "key": _or_null(ref("Payload")),
            "tags": _or_null({**_array(ref("Tag")), "maxItems": TAGS_COUNT_MAX}),
            "headers": _or_null({"anyOf": [ref("Headers"), ref("HeaderPairs")]}),
            "delay": ref("Delay"),
            "at": ref("DueTime"),
        },
        required=("payload",),
    ),
    "MessageInput": {
        "description": "a payload alone, or with attributes, a time to live, or a delay of its own",
        "anyOf": [_TEXT, ref("BinaryPayload"), ref("MessageWithTtl")],
    },
    "Isolation": _one_of("all", "committed"),
    "Undecided": {**_one_of("hold", "skip"), "default": "hold"},
    "Ack": {**_one_of("none", "received", "durable"), "default": "durable"},
    "TransactionType": _one_of("short", "long"),
    "TransactionState": _one_of(
        "in_progress", "committing", "prepared", "committed", "aborted", "invalid"
    ),
    "InvalidReason": {
        **_one_of(*(each.value for each in InvalidReason)),
        "description": "why a transaction is invalid",
    },
    "VisibilityLevel": _one_of("SNAPSHOT", "SNAPSHOT_EXCLUDE_CURRENT", "SNAPSHOT_ALL"),
}

# The members of a problem document that come with a code (RFC 9457 §3.2).
_EPOCH_MEMBER: Mapping[str, Schema] = {
    "epoch": _of_type("integer", format="int64", description="the newest epoch of the sink")
}
# Two codes have this member, and a schema of problems has it once.
_PARTITIONS_OF_PROBLEM = _array(
    {"anyOf": [_PARTITION, _TEXT]},
    "numbers of those that can be read, or names of those that the member does not have",
)
_REASON_MEMBER: Mapping[str, Schema] = {"reason": ref("InvalidReason")}
MEMBERS: Mapping[str, Mapping[str, Schema]] = {
    "transaction_conflict": {
        "key": ref("Payload"),
        "conflictingTransaction": ref("Pointer"),
        "conflictingClient": _of_type("string", description="the client of that transaction"),
    },
    "transaction_prepared": {
        "database": _of_type("string", description="that decides how the transaction ends"),
        "preparedAt": _of_type("integer", format="int64", description="ms since the epoch"),
    },
    "transaction_timed_out": _REASON_MEMBER,
    "transaction_invalidated": _REASON_MEMBER,
    "sink_epoch_superseded": _EPOCH_MEMBER,
    "sink_epoch_open": _EPOCH_MEMBER,
    "partition_required": {"partitions": _PARTITIONS_OF_PROBLEM},
    "lease_lost": {"ids": _array(ref("MessageId"), "the messages that other workers have got")},
    "topic_held": {"holds": _array(ref("Name"), "the holds that are in the way")},
    "stale_member_epoch": {
        "memberEpoch": _of_type("integer", format="int64", description="that the member has")
    },
    "partition_not_assigned": {"partitions": _PARTITIONS_OF_PROBLEM},
    "damaged_record": {
        "id": _of_type("string", description="the record, as its key or its message id in hex"),
        "next": _or_null(ref("MessageId")),
    },
}
_OF_EVERY_PROBLEM: dict[str, Schema] = {
    "type": _of_type("string", const="about:blank"),
    "title": _TEXT,
    "status": _of_type("integer"),
    "detail": _of_type("string", description="one plain sentence"),
    "code": _of_type("string", description="stable; what a program looks at"),
}
_OF_SOME_PROBLEMS = {name: schema for each in MEMBERS.values() for name, schema in each.items()}

_PROBLEM: dict[str, Schema] = {
    "Problem": {
        **_reply({**_OF_EVERY_PROBLEM, **_OF_SOME_PROBLEMS}, optional=tuple(_OF_SOME_PROBLEMS)),
        "description": "RFC 9457. Beside the first five, a member comes with the codes that have "
        "it: `key`, the change that both transactions wrote, and who committed it first; `reason`, "
        "why the transaction is invalid; `epoch`; `holds`; `memberEpoch`; `partitions`; `id`, and "
        "`next`, the exclusive start of a read that goes on behind a damaged record",
    },
}

_TOPICS: dict[str, Schema] = {
    "Topic": _reply(
        {
            "name": ref("TopicName"),
            "properties": ref("TopicProperties"),
            "generation": _GENERATION,
            "partitions": _array(_PARTITION, "those that take messages, ascending; of a topic"),
            "retired": _array(_PARTITION, "those that can only be read, ascending; of a topic"),
        },
        optional=("partitions", "retired"),
    ),
    "TopicProperties": _of_type("object", additionalProperties=_TEXT),
    "TopicTtl": {
        "description": "whole seconds, as a number or as digits",
        "anyOf": [_TTL, _of_type("string", pattern="^(?!0+$)[0-9]{1,10}$")],
    },
    "PartitionCount": {
        "description": "how many partitions take messages, as a number or as digits",
        "anyOf": [
            _of_type("integer", minimum=1, maximum=PARTITIONS_COUNT_MAX),
            _of_type("string", pattern="^(?!0+$)[0-9]{1,4}$"),
        ],
    },
    "TopicPropertyValue": {"anyOf": [_TEXT, _of_type("number")]},
    "TopicPropertiesInput": {
        "type": "object",
        "properties": {"ttl": ref("TopicTtl"), "partitions": ref("PartitionCount")},
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
    "DelayedMessage": _reply(
        {
            "id": ref("DelayedId"),
            "due": _MS,
            "size": {**_COUNT, "description": "bytes of the payload"},
            "ttl": _TTL,
            "key": _or_null(ref("Payload")),
            "tags": _array(ref("Tag")),
            "headers": ref("Headers"),
            "payload": ref("Payload"),
        },
        optional=("ttl", "key", "tags", "headers", "payload"),
    ),
    "DelayedList": _reply({"delayed": _array(ref("DelayedMessage"), "in the order of due times")}),
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
    "TopicSummary": _reply(
        {
            "namespace": ref("Name"),
            "name": ref("Name"),
            "generation": _GENERATION,
            "ttl": _TTL,
            "partitionCount": _COUNT,
            "positionCount": _COUNT,
            "publishedCount": {**_COUNT, "description": "messages since the server started"},
            "publishedBytes": {**_COUNT, "description": "payload bytes since the server started"},
            "storedBytes": {**_COUNT, "description": "an estimate; recent writes need not count"},
            "oldest": _or_null(_MS),
            "newest": _or_null(_MS),
        }
    ),
    "TopicSummaryList": _reply(
        {
            "count": {**_COUNT, "description": "of all topics that match"},
            "topics": _array(ref("TopicSummary"), "in byte order of namespace and name"),
            "next": _or_null(_TEXT),
        }
    ),
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
            "inclusive": _of_type("boolean", default=True),
            "limit": _or_null(_of_type("integer", minimum=1)),
            "transaction": _or_null(ref("Snapshot")),
        }
    ),
    "WaitRequest": _request(
        {
            "after": ref("PartitionStarts"),
        },
        required=("after",),
    ),
    "PartitionStarts": _of_type(
        "object",
        propertyNames={"pattern": "^[0-9]+$"},
        additionalProperties=ref("MessageIdInput"),
        minProperties=1,
        description="by the number of a partition, an id behind which it is read",
    ),
    "ReadablePartitions": _reply({"partitions": _array(_PARTITION, "ascending; none: time is up")}),
    "Snapshot": {
        "description": "what to read in: the bytes of a TTransaction as base64, or a transaction",
        "anyOf": [_of_type("string", contentEncoding="base64"), ref("TransactionInput")],
    },
    "Message": {
        **_reply(
            {
                "id": ref("MessageId"),
                "payload": ref("Payload"),
                "timestamp": _MS,
                "key": _or_null(ref("Payload")),
                "tags": _array(ref("Tag")),
                "headers": ref("Headers"),
            },
            optional=("key", "tags", "headers"),
        ),
        "description": "`key`, `tags` and `headers` are present if `Accept` names schema 2",
    },
    "MessageList": _array(ref("Message")),
    "Offsets": _reply(
        {
            "generation": _GENERATION,
            "earliest": _or_null(ref("MessageId")),
            "end": _or_null(ref("MessageId")),
            "blockedBy": _or_null(ref("Pointer")),
            "database": ref("Name"),
            "preparedAt": _MS,
            "archivedFrom": _or_null(ref("MessageId")),
        },
        optional=("database", "preparedAt", "archivedFrom"),
    ),
    "Explanation": _reply(
        {
            "id": _TEXT,
            "namespace": _TEXT,
            "topic": _TEXT,
            "generation": _or_null(_GENERATION),
            "visible": _of_type("boolean"),
            "reason": ref("ExplanationReason"),
            "detail": _TEXT,
            "advice": _TEXT,
            "blockedBy": _or_null(ref("Pointer")),
            "transaction": _or_null(ref("ExplainedTransaction")),
            "elsewhere": _array(ref("FoundElsewhere")),
        },
        optional=("elsewhere",),
    ),
    "ExplanationReason": _one_of(*(each.value for each in Reason)),
    "FoundElsewhere": _reply({"namespace": _TEXT, "topic": _TEXT}),
    "ExplainedTransaction": _reply(
        {
            "transactionId": ref("Pointer"),
            "state": _TEXT,
            "reason": _or_null(_TEXT),
            "client": _TEXT,
            "startedAt": _MS,
            "endedAt": _or_null(_MS),
            "expiresAt": _or_null(_MS),
            "database": _or_null(_TEXT),
        }
    ),
    "ExplainRequest": _request({"transaction": ref("Snapshot")}, required=("transaction",)),
    "RowState": {
        **_one_of(
            "committed", "in_progress", "invalid", "rolled_back", "expired", "damaged", "unknown"
        ),
        "description": "unknown: the row has a transaction, and transactions are down",
    },
    "Row": _reply(
        {
            "id": ref("MessageId"),
            "timestamp": _MS,
            "state": ref("RowState"),
            "writePointer": _or_null(ref("Pointer")),
            "transactionId": _or_null(ref("Pointer")),
            "messageCount": _COUNT,
            "size": {**_COUNT, "description": "bytes of the stored value"},
            "expiresAt": _MS,
        }
    ),
    "RowList": _reply(
        {
            "generation": _GENERATION,
            "rows": _array(ref("Row"), "in the order that was asked for"),
            "next": _or_null(ref("MessageId")),
        }
    ),
    "Order": {**_one_of("ascending", "descending"), "default": "ascending"},
}

_SNAPSHOT_FILE: dict[str, Schema] = {
    "file": _TEXT,
    "bytes": _COUNT,
    "createdAt": _or_null(_MS),
    "lsn": _or_null(_COUNT),
    "damage": _or_null(_TEXT),
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
        "encoded": _of_type("string", contentEncoding="base64", description="TTransaction bytes"),
        "state": ref("TransactionState"),
        "client": _or_null(_TEXT),
        "timeout": _or_null(_of_type("number", format="double")),
        "startedAt": _MS,
        "expiresAt": _MS,
        **_LEASE,
    }


_EPOCH: dict[str, Schema] = {
    "sink": _TEXT,
    "epoch": _of_type("integer", format="int64", minimum=0, maximum=_LONG_MAX),
    "runId": _TEXT,
}
_CHANGES = _array(ref("Payload"), "keys for conflict detection")
_DATABASE = _of_type("string", description="that decides how the transaction ends")
_PREPARED: dict[str, Schema] = {"database": _DATABASE, "preparedAt": _MS}
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
    "SnapshotFileInfo": _reply(_SNAPSHOT_FILE),
    "SnapshotFileList": _reply(
        {"files": _array(ref("SnapshotFileInfo"), "the newest first, damaged ones last")}
    ),
    "SnapshotFileContent": _reply(
        {
            **_SNAPSHOT_FILE,
            "readPointer": ref("Pointer"),
            "writePointer": ref("Pointer"),
            "inProgress": _array(ref("Pointer")),
            "invalids": _array(ref("Pointer")),
            "open": _array(ref("OpenInSnapshot")),
            "outcomeCount": _COUNT,
            "sinkCount": _COUNT,
        }
    ),
    "OpenInSnapshot": _reply(
        {
            "transactionId": ref("Pointer"),
            "state": ref("TransactionState"),
            "type": ref("TransactionType"),
            "client": _TEXT,
            "startedAt": _MS,
            "expiresAt": _MS,
        }
    ),
    "ChangeList": _reply(
        {
            "count": {**_COUNT, "description": "of all its changes"},
            "changes": _array(ref("Payload"), "in byte order; at most 1,000"),
            "conflictingTransaction": _or_null(ref("Pointer")),
            "conflictingKey": _or_null(ref("Payload")),
        }
    ),
    "SettingValue": {
        "anyOf": [_TEXT, _of_type("number"), _of_type("boolean"), _array(_TEXT)],
    },
    "Setting": _reply(
        {
            "name": _TEXT,
            "value": ref("SettingValue"),
            "default": ref("SettingValue"),
            "source": {**_TEXT, "description": "default, flag, or the settings file"},
        }
    ),
    "SettingList": _reply({"settings": _array(ref("Setting"), "by section")}),
    "TransactionInput": _request(
        _snapshot_members(ref("PointerInput")),
        required=("transactionId", "readPointer", "writePointer", "invalids", "inProgress"),
    ),
    "StartTransactionRequest": _request(
        {
            "type": _or_null(ref("TransactionType")),
            "timeout": _or_null(_SECONDS),
            "client": _or_null(_TEXT),
            "lists": _of_type("boolean", default=True),
            "lease": _or_null(_SECONDS),
        }
    ),
    "RenewResponse": _reply({"leaseExpiresAt": _MS, "expiresAt": _MS}),
    "BeginEpochRequest": _request(
        {
            "runId": _of_type("string", minLength=1, maxLength=128),
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
            "topic": ref("TopicName"),
            "messages": _MESSAGES_TO_PUBLISH,
            "pointer": ref("PointerInput"),
            "delay": ref("Delay"),
            "at": ref("DueTime"),
        },
        required=("namespace", "topic", "messages"),
    ),
    "CommitRequest": _request(
        {
            "changes": _CHANGES,
            "publish": _array(ref("PublishEntry")),
            "readOnly": _of_type("boolean", default=False),
            "then": ref("AfterCommit"),
        }
    ),
    "AfterCommit": _request({"start": ref("StartTransactionRequest")}, required=("start",)),
    "PrepareRequest": _request(
        {
            "changes": _CHANGES,
            "publish": _array(ref("PublishEntry")),
            "database": _DATABASE,
        },
        required=("database",),
    ),
    "PrepareResponse": _reply(
        {
            "state": _of_type("string", const="prepared"),
            "published": _array(ref("PublishResponse")),
            **_PREPARED,
        }
    ),
    "Resolution": _one_of("commit", "abort"),
    "ResolveRequest": _request({"outcome": ref("Resolution")}, required=("outcome",)),
    "ResolveResponse": _reply(
        {"state": ref("TransactionState"), "published": _array(ref("PublishResponse"))},
        optional=("published",),
    ),
    "PreparedTransaction": _reply(
        {
            "transactionId": ref("Pointer"),
            "client": _TEXT,
            "topics": _array(_TEXT),
            "changeCount": _COUNT,
            "blocksReaders": _BOOLEAN,
            **_PREPARED,
        }
    ),
    "PreparedList": _reply(
        {"prepared": _array(ref("PreparedTransaction"), "the one prepared first comes first")}
    ),
    "BatchCallBody": {"type": "object", "description": "the body of the call by itself"},
    "BatchCall": _request({"path": _TEXT, "body": ref("BatchCallBody")}, required=("path", "body")),
    "BatchRequest": _request(
        {"calls": {**_array(ref("BatchCall"), "at most 256"), "minItems": 1}}, required=("calls",)
    ),
    "BatchReplyBody": {"type": "object", "description": "the reply to the call by itself"},
    "BatchReply": _reply({"status": _of_type("integer"), "body": ref("BatchReplyBody")}),
    "BatchResponse": _reply({"replies": _array(ref("BatchReply"), "in the order of the calls")}),
    "RunRequest": _request(
        {
            "publish": {**_array(ref("PublishEntry")), "minItems": 1},
            "client": _or_null(_TEXT),
            "requestId": _or_null(_of_type("string", maxLength=128)),
        },
        required=("publish",),
    ),
    "CommitResponse": _reply(
        {
            "state": _of_type("string", const="committed"),
            "published": _array(ref("PublishResponse")),
            "next": _or_null(ref("Transaction")),
        },
        optional=("next",),
    ),
    "StateResponse": _reply(
        {"state": ref("TransactionState"), "reason": ref("InvalidReason")}, optional=("reason",)
    ),
    "Outcome": _reply(
        {
            **_OPEN,
            "state": ref("TransactionState"),
            "reason": _or_null(ref("InvalidReason")),
            **_PREPARED,
        },
        optional=("reason", *_LEASE, *_PREPARED),
    ),
    "OpenTransaction": _reply(
        {**_OPEN, **_PREPARED, "principal": _TEXT}, optional=(*_LEASE, *_PREPARED, "principal")
    ),
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
    "InvalidPointersByReason": _of_type(
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
    "SnapshotContent": _of_type("object", description="the newest state, for debugging"),
    "ServiceState": _one_of("stopped", "running"),
    "ServiceResponse": _reply({"state": ref("ServiceState")}),
}

_SERVER_ID = _of_type("string", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
_INCARNATION = _of_type(
    "integer", format="int64", minimum=1, description="one more at each start of the server"
)
_EPOCH_OF = _of_type("integer", format="int64", description="it only rises")
_TOPIC_NAME = _of_type("string", description="namespace:name")

_CLUSTER: dict[str, Schema] = {
    "ClusterServer": _reply(
        {
            "id": _SERVER_ID,
            "incarnation": _INCARNATION,
            "url": _TEXT,
            "startedAt": _MS,
            "topics": _COUNT,
            "isDraining": _of_type("boolean"),
        }
    ),
    "ServerIdentity": _reply({"id": _SERVER_ID, "incarnation": _INCARNATION}),
    "ClusterLeader": _reply({"id": _SERVER_ID, "epoch": _EPOCH_OF, "url": _TEXT}),
    "Cluster": _reply(
        {
            "clusterId": _of_type("string", pattern="^[0-9a-f]{32}$"),
            "server": ref("ServerIdentity"),
            "leader": _or_null(ref("ClusterLeader")),
            "servers": _array(ref("ClusterServer"), "the live ones, by id"),
        }
    ),
    "TopicOwner": _reply(
        {
            "topic": _TOPIC_NAME,
            "server": _or_null(_SERVER_ID),
            "incarnation": _INCARNATION,
            "epoch": _EPOCH_OF,
            "isAlive": _of_type("boolean"),
        }
    ),
    "TopicOwnerList": _reply(
        {"topics": _array(ref("TopicOwner"), "by name"), "next": _or_null(_TOPIC_NAME)}
    ),
    "ServerRequest": _request({"server": _SERVER_ID}, required=("server",)),
    "MoveResponse": _reply({"topic": _TOPIC_NAME, "server": _SERVER_ID}),
    "DrainResponse": _reply(
        {"server": _SERVER_ID, "isDraining": _of_type("boolean"), "topics": _COUNT}
    ),
}

_PROCESS: dict[str, Schema] = {
    "Health": _reply({"status": _TEXT}),
    "HealthCheck": _reply({"status": _TEXT, "detail": _TEXT}, optional=("detail",)),
    "HealthChecks": _reply(
        dict.fromkeys(("storage", "transactions", "disk", "clock"), ref("HealthCheck"))
    ),
    "Readiness": _reply({"status": _TEXT, "version": _TEXT, "checks": ref("HealthChecks")}),
    "OpenApiDocument": _of_type("object", description="this document"),
}

_TOKEN = _of_type(
    "string", pattern="^[0-9a-f]{1,40}-[0-9a-f]{1,16}$", description="names one delivery"
)
_LEASE_S = _of_type("number", minimum=0.1, maximum=43_200, description="seconds")
_SHARE_COUNT = _of_type("integer", minimum=1, maximum=1_000)
_SHARE_GROUPS: dict[str, Schema] = {
    "ShareStartName": _one_of("earliest", "latest"),
    "ShareAction": {**_one_of("accept", "release", "reject", "renew"), "default": "accept"},
    "ShareResult": _one_of("accepted", "released", "rejected", "renewed", "lease_lost"),
    "ShareStart": {
        "description": "earliest, latest, a message id, or ms since the epoch",
        "anyOf": [ref("ShareStartName"), ref("MessageIdInput"), _MS],
    },
    "ShareOrder": _one_of("none", "key"),
    "ShareGroupRequest": _request(
        {
            "start": {"default": "latest", "anyOf": [ref("ShareStart")]},
            "order": {"default": "none", "anyOf": [ref("ShareOrder")]},
            "lease": _LEASE_S,
        }
    ),
    "ShareGroup": _reply(
        {
            "name": ref("Name"),
            "start": _TEXT,
            "order": ref("ShareOrder"),
            "lease": _SECONDS,
            "available": _COUNT,
            "blocked": _COUNT,
            "leased": _COUNT,
            "waiting": _COUNT,
            "undecided": _COUNT,
            "done": _COUNT,
            "lowMark": ref("MessageId"),
            "oldest": _or_null(ref("MessageId")),
            "end": _or_null(ref("MessageId")),
            "behindMs": _COUNT,
        }
    ),
    "LeaseRequest": _request(
        {
            "count": {**_SHARE_COUNT, "default": 10},
            "maxBytes": _of_type("integer", minimum=1, maximum=1 << 30),
            "lease": _LEASE_S,
        }
    ),
    "LeasedMessage": _reply(
        {
            "id": ref("MessageId"),
            "timestamp": _MS,
            "payload": ref("Payload"),
            "key": _or_null(ref("Payload")),
            "tags": _array(ref("Tag")),
            "headers": ref("Headers"),
            "token": _TOKEN,
            "attempts": _COUNT,
            "leaseEnds": _MS,
        }
    ),
    "LeaseResponse": _reply({"messages": _array(ref("LeasedMessage"), "the oldest first")}),
    "MessageToAcknowledge": _request(
        {
            "id": ref("MessageIdInput"),
            "token": _TOKEN,
            "action": ref("ShareAction"),
            "delay": _of_type("number", minimum=0, maximum=43_200, description="of a release"),
            "lease": {**_LEASE_S, "description": "seconds from now, of a renewal"},
        },
        required=("id", "token"),
    ),
    "AcknowledgeRequest": _request(
        {
            "messages": {
                **_array(ref("MessageToAcknowledge")),
                "minItems": 1,
                "maxItems": 1_000,
            },
            "transactionWritePointer": _or_null(ref("PointerInput")),
        },
        required=("messages",),
    ),
    "AcknowledgeResult": _reply(
        {
            "id": ref("MessageId"),
            "result": ref("ShareResult"),
        }
    ),
    "AcknowledgeResponse": _reply(
        {"results": _array(ref("AcknowledgeResult"), "in the order of the request")}
    ),
}

_MEMBER_EPOCH = _of_type("integer", format="int64")
_PARTITION_NAME = _of_type(
    "string", description="a topic for its partition 0, or topic:number for a further one"
)
_INSTANCE_ID = _or_null(ref("Name"))
_GROUPS: dict[str, Schema] = {
    "Assignor": _one_of("range", "round_robin", "sticky"),
    "GroupState": _one_of("empty", "reconciling", "stable"),
    "HeartbeatRequest": _request(
        {
            "memberId": ref("Name"),
            "memberEpoch": {
                **_MEMBER_EPOCH,
                "minimum": -2,
                "description": "0 joins; -1 leaves; -2 leaves for a while, as a static member",
            },
            "topics": _array(ref("Name"), "of a join: what to subscribe to"),
            "assignor": ref("Assignor"),
            "instanceId": ref("Name"),
            "client": _TEXT,
            "groupEpoch": {**_MEMBER_EPOCH, "description": "that of the last reply"},
            "owned": _array(_PARTITION_NAME, "the partitions that the member has not released"),
        },
        required=("memberId", "memberEpoch"),
    ),
    "HeartbeatResponse": _reply(
        {
            "memberId": ref("Name"),
            "memberEpoch": _MEMBER_EPOCH,
            "groupEpoch": _MEMBER_EPOCH,
            "assigned": _array(_PARTITION_NAME, "what to consume; all others shall be released"),
            "heartbeatInterval": _SECONDS,
            "sessionTimeout": _SECONDS,
        },
        optional=("groupEpoch", "assigned", "heartbeatInterval", "sessionTimeout"),
    ),
    "GroupOffsets": _of_type("object", additionalProperties=ref("MessageIdInput"), minProperties=1),
    "GroupOffsetOrNull": _or_null(ref("MessageIdInput")),
    "GroupOffsetsToReset": _of_type(
        "object", additionalProperties=ref("GroupOffsetOrNull"), minProperties=1
    ),
    "CommitOffsetsRequest": _request(
        {
            "memberId": ref("Name"),
            "memberEpoch": {**_MEMBER_EPOCH, "minimum": 1},
            "offsets": ref("GroupOffsets"),
            "transactionWritePointer": ref("PointerInput"),
        },
        required=("memberId", "memberEpoch", "offsets"),
    ),
    "ResetOffsetsRequest": _request({"offsets": ref("GroupOffsetsToReset")}, required=("offsets",)),
    "CommittedOffset": _reply(
        {
            "partition": _PARTITION_NAME,
            "after": ref("MessageId"),
            "memberId": _or_null(_TEXT),
            "committedAt": _MS,
        }
    ),
    "CommittedOffsetList": _reply(
        {
            "offsets": _array(ref("CommittedOffset"), "by partition"),
            "undecided": _array(
                _PARTITION_NAME, "partitions with offsets in transactions that may still commit"
            ),
        }
    ),
    "GroupMember": _reply(
        {
            "memberId": ref("Name"),
            "memberEpoch": _MEMBER_EPOCH,
            "instanceId": _INSTANCE_ID,
            "client": _TEXT,
            "topics": _array(ref("Name")),
            "assigned": _array(_PARTITION_NAME),
            "target": _array(_PARTITION_NAME),
        }
    ),
    "GroupPartition": _reply(
        {
            "partition": _PARTITION_NAME,
            "memberId": _or_null(_TEXT),
            "after": _or_null(ref("MessageId")),
            "end": _or_null(ref("MessageId")),
            "behindMs": _or_null(_COUNT),
        }
    ),
    "Group": _reply(
        {
            "name": ref("Name"),
            "state": ref("GroupState"),
            "epoch": _MEMBER_EPOCH,
            "assignor": _or_null(ref("Assignor")),
            "members": _array(ref("GroupMember")),
            "partitions": _array(ref("GroupPartition"), "by name"),
        }
    ),
}

SCHEMAS: Mapping[str, Schema] = {
    **_VALUES, **_PROBLEM, **_TOPICS, **_GROUPS, **_SHARE_GROUPS, **_MESSAGES, **_TRANSACTIONS,
    **_CLUSTER, **_PROCESS,
}  # fmt: skip


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One endpoint: parameters, bodies, errors. `body` and `reply` name schemas; None is no body.

    `avro`: the body and the reply may be in Avro too; `arrow`: the reply may be in Arrow too. A
    reply that is never JSON has `raw_types`. `reply_is_optional`: a success may have no body.
    `errors`: the codes beyond those of all endpoints, and of all with the same tag (`_refusals`).
    `unready_status`: the status of the same reply while something does not work.
    A generated client calls its methods by `name`, and its modules by `tag`.
    """

    method: str
    path: str
    name: str
    summary: str
    tag: str
    body: str | None = None
    reply: str | None = None
    reply_is_optional: bool = False
    raw_types: tuple[str, ...] = ()
    status: int = 200
    unready_status: int | None = None
    avro: bool = False
    arrow: bool = False
    query: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


_TOPICS_PATH = "/v1/namespaces/{ns}/topics"
_TOPIC_PATH = f"{_TOPICS_PATH}/{{t}}"
_SHARE_GROUPS_PATH = f"{_TOPIC_PATH}/share-groups"
_SHARE_GROUP_PATH = f"{_SHARE_GROUPS_PATH}/{{share}}"
_GROUPS_PATH = "/v1/namespaces/{ns}/groups"
_GROUP_PATH = f"{_GROUPS_PATH}/{{g}}"
_TX_PATH = "/v1/transactions"
_CLUSTER_PATH = "/v1/cluster"
_TX_ID_PATH = f"{_TX_PATH}/{{tx}}"

_ENDED = (
    "transaction_unknown",
    "transaction_timed_out",
    "transaction_invalidated",
    "transaction_committed",
    "transaction_aborted",
)
_NAMED = ("invalid_name",)
_TOPIC_ERRORS = (*_NAMED, "topic_not_found")
_LOG_ERRORS = (*_TOPIC_ERRORS, "partition_required")
_IS_PREPARED = "transaction_prepared"
_STORED = "storage_unavailable"
_DOWN = "transactions_unavailable"
_WRITE_ERRORS = (
    *_TOPIC_ERRORS, *_ENDED, _IS_PREPARED, "transaction_conflict", "invalid_ttl",
    "invalid_delay", "partition_retired", _STORED, _DOWN,
)  # fmt: skip
_COMMIT_ERRORS = (*_WRITE_ERRORS, "change_set_too_large")
_ARCHIVE_ERROR = "archive_unavailable"
_GROUP_ERRORS = ("invalid_name", "group_not_found", "damaged_record", _DOWN)
_SHARE_ERRORS = (*_LOG_ERRORS, "group_not_found", "damaged_record", _ARCHIVE_ERROR, _DOWN)
_MEMBER_ERRORS = (*_GROUP_ERRORS, "unknown_member")
_READ_QUERY = ("isolation", "tx", "undecided", "wait", "through", "tags")
_VIEW_ERRORS = (*_LOG_ERRORS, *_ENDED, "invalid_message_id", "invalid_transaction", _DOWN)
_POLL_ERRORS = (*_VIEW_ERRORS, "damaged_record", "not_acceptable", _ARCHIVE_ERROR)
_READ_HEADERS = (
    "Tuff-Next", "Tuff-Caught-Up", "Tuff-Blocked-By", "Tuff-Blocked-Database",
    "Tuff-Blocked-Since", "Tuff-Expired", "Tuff-Archive",
)  # fmt: skip
_WRITTEN_HEADERS = ("Tuff-First-Id", "Tuff-Last-Id", "Tuff-Partitions")
_DELAYED_HEADERS = ("Tuff-Delayed", "Tuff-Delayed-First", "Tuff-Delayed-Last")

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET", path="/v1/namespaces", name="listNamespaces", tag="topics",
        summary="Every namespace that has a topic", reply="Names",
    ),
    Endpoint(
        method="GET", path="/v1/topics", name="listTopicSummaries", tag="topics",
        summary="Size and age of the topics of all namespaces", reply="TopicSummaryList",
        query=("namespace", "contains", "after", "limit"), errors=_NAMED,
    ),
    Endpoint(
        method="GET", path=_TOPICS_PATH, name="listTopics", tag="topics",
        summary="The topics of a namespace", reply="Names", errors=_NAMED,
    ),
    Endpoint(
        method="PUT", path=_TOPIC_PATH, name="createTopic", tag="topics",
        summary="Create a topic, or the next generation of a deleted one",
        body="TopicPropertiesInput",
        errors=(*_NAMED, "topic_already_exists", "invalid_topic_properties"),
    ),
    Endpoint(
        method="GET", path=_TOPIC_PATH, name="getTopic", tag="topics",
        summary="Properties and generation of a topic", reply="Topic", errors=_TOPIC_ERRORS,
    ),
    Endpoint(
        method="DELETE", path=_TOPIC_PATH, name="deleteTopic", tag="topics",
        summary="Delete a topic with its messages", errors=_TOPIC_ERRORS,
    ),
    Endpoint(
        method="PUT", path=f"{_TOPIC_PATH}/properties", name="updateTopic", tag="topics",
        summary="Replace all properties of a topic", body="TopicPropertiesInput",
        errors=(*_TOPIC_ERRORS, "invalid_topic_properties"),
    ),
    Endpoint(
        method="POST", path=f"{_TOPIC_PATH}/truncate", name="truncateTopic", tag="topics",
        summary="Remove all messages before an offset, permanently", body="TruncateTopicRequest",
        reply="TruncateTopicResponse", errors=(*_TOPIC_ERRORS, "invalid_message_id", "topic_held"),
    ),
    Endpoint(
        method="POST", path=f"{_TOPIC_PATH}/publish", name="publish", tag="messages",
        summary="Publish messages, or under a transaction the reference to stored ones",
        body="PublishRequest", reply="PublishResponse", avro=True, reply_is_optional=True,
        query=("ttl", "ack", "delay", "at"),
        headers=(*_WRITTEN_HEADERS, *_DELAYED_HEADERS, "Tuff-Ack"),
        errors=(*_WRITE_ERRORS, "empty_publish", "not_acceptable"),
    ),
    Endpoint(
        method="POST", path=f"{_TOPIC_PATH}/store", name="store", tag="messages",
        summary="Store messages for a later publish of the same transaction",
        body="PublishRequest", avro=True, query=("ttl",), errors=_WRITE_ERRORS,
    ),
    Endpoint(
        method="POST", path=f"{_TOPIC_PATH}/rollback", name="rollback", tag="messages",
        summary="Hide one transactional publish from transactional readers", body="RollbackRequest",
        avro=True, errors=(*_TOPIC_ERRORS, "transaction_committed", _DOWN),
    ),
    Endpoint(
        method="POST", path=f"{_TOPIC_PATH}/poll", name="poll", tag="messages",
        summary="Read messages from an offset on", body="ConsumeRequest", reply="MessageList",
        avro=True, arrow=True, query=_READ_QUERY, headers=_READ_HEADERS, errors=_POLL_ERRORS,
    ),
    Endpoint(
        method="POST", path=f"{_TOPIC_PATH}/wait", name="waitForPartitions", tag="messages",
        summary="Wait until one of several partitions has messages", body="WaitRequest",
        reply="ReadablePartitions", query=("isolation", "tags", "wait", "added"),
        errors=(*_TOPIC_ERRORS, "invalid_message_id", _DOWN, _ARCHIVE_ERROR),
    ),
    Endpoint(
        method="GET", path=f"{_TOPIC_PATH}/messages", name="browse", tag="messages",
        summary="Read messages, with the parameters in the query", reply="MessageList", arrow=True,
        query=("from", "inclusive", "limit", *_READ_QUERY), headers=_READ_HEADERS,
        errors=_POLL_ERRORS,
    ),
    Endpoint(
        method="GET", path=f"{_TOPIC_PATH}/messages/{{message}}/explain", name="explain",
        tag="messages",
        summary="Why a reader by isolation or transaction does or does not receive a message",
        reply="Explanation", query=("isolation", "tx"),
        errors=(*_VIEW_ERRORS, "damaged_record", _ARCHIVE_ERROR),
    ),
    Endpoint(
        method="POST", path=f"{_TOPIC_PATH}/messages/{{message}}/explain", name="explainInSnapshot",
        tag="messages", summary="The same for a reader in a given snapshot",
        body="ExplainRequest", reply="Explanation",
        errors=(*_VIEW_ERRORS, "damaged_record", _ARCHIVE_ERROR),
    ),
    Endpoint(
        method="GET", path=f"{_TOPIC_PATH}/rows", name="listRows", tag="messages",
        summary="The rows of a topic, with the state of each", reply="RowList",
        query=("from", "limit", "order"), errors=(*_LOG_ERRORS, "invalid_message_id"),
    ),
    Endpoint(
        method="GET", path=f"{_TOPIC_PATH}/offsets", name="getOffsets", tag="messages",
        summary="The offsets of the first message and of the last one that a reader can receive",
        reply="Offsets",
        query=("isolation", "tx", "archive"), errors=(*_VIEW_ERRORS, _ARCHIVE_ERROR),
    ),
    Endpoint(
        method="GET", path=f"{_TOPIC_PATH}/splits", name="getSplits", tag="messages",
        summary="Split a range into parts of about equal size, for parallel readers",
        reply="SplitList",
        query=("start", "end", "n"),
        errors=(*_LOG_ERRORS, "invalid_message_id", _ARCHIVE_ERROR),
    ),
    Endpoint(
        method="GET", path=f"{_TOPIC_PATH}/holds", name="listHolds", tag="topics",
        summary="The retention holds of a topic", reply="HoldList", errors=_LOG_ERRORS,
    ),
    Endpoint(
        method="PUT", path=f"{_TOPIC_PATH}/holds/{{name}}", name="setHold", tag="topics",
        summary="Set a retention hold: keep messages beyond the topic's time to live",
        body="HoldRequest",
        reply="Hold", errors=(*_LOG_ERRORS, "invalid_message_id", "too_many_holds"),
    ),
    Endpoint(
        method="DELETE", path=f"{_TOPIC_PATH}/holds/{{name}}", name="deleteHold", tag="topics",
        summary="End a retention hold", errors=(*_LOG_ERRORS, "hold_not_found"),
    ),
    Endpoint(
        method="GET", path=f"{_TOPIC_PATH}/positions", name="listPositions", tag="topics",
        summary="The named positions of a topic", reply="PositionList", errors=_LOG_ERRORS,
    ),
    Endpoint(
        method="GET", path=f"{_TOPIC_PATH}/positions/{{name}}", name="getPosition", tag="topics",
        summary="One named position", reply="Position",
        errors=(*_LOG_ERRORS, "position_not_found"),
    ),
    Endpoint(
        method="PUT", path=f"{_TOPIC_PATH}/positions/{{name}}", name="setPosition", tag="topics",
        summary="Record a named position", body="PositionRequest", reply="Position",
        errors=(*_LOG_ERRORS, "invalid_message_id", "too_many_positions"),
    ),
    Endpoint(
        method="DELETE", path=f"{_TOPIC_PATH}/positions/{{name}}", name="deletePosition",
        tag="topics",
        summary="Delete a named position", errors=(*_LOG_ERRORS, "position_not_found"),
    ),
    Endpoint(
        method="GET", path=f"{_TOPIC_PATH}/delayed", name="listDelayed", tag="messages",
        summary="The messages that are not due yet", reply="DelayedList",
        query=("limit", "after", "payloads"),
        errors=(*_LOG_ERRORS, "invalid_message_id", "damaged_record"),
    ),
    Endpoint(
        method="DELETE", path=f"{_TOPIC_PATH}/delayed/{{id}}", name="cancelDelayed",
        tag="messages",
        summary="Cancel a message that is not due yet",
        errors=(*_LOG_ERRORS, "invalid_message_id", "delayed_not_found"),
    ),
    Endpoint(
        method="GET", path=_SHARE_GROUPS_PATH, name="listShareGroups", tag="groups",
        summary="The share groups of a topic", reply="Names", errors=_LOG_ERRORS,
    ),
    Endpoint(
        method="PUT", path=_SHARE_GROUP_PATH, name="createShareGroup", tag="groups",
        summary="Create a share group, which leases single messages to workers",
        body="ShareGroupRequest",
        errors=(*_LOG_ERRORS, "invalid_message_id", "group_already_exists", "damaged_record"),
    ),
    Endpoint(
        method="GET", path=_SHARE_GROUP_PATH, name="getShareGroup", tag="groups",
        summary="Properties, counts and lag of a share group", reply="ShareGroup",
        errors=_SHARE_ERRORS,
    ),
    Endpoint(
        method="DELETE", path=_SHARE_GROUP_PATH, name="deleteShareGroup", tag="groups",
        summary="Delete a share group with what it has acknowledged",
        errors=_SHARE_ERRORS,
    ),
    Endpoint(
        method="POST", path=f"{_SHARE_GROUP_PATH}/lease", name="leaseMessages", tag="groups",
        summary="Take messages, and have them until a lease ends",
        body="LeaseRequest", reply="LeaseResponse", query=("wait",), errors=_SHARE_ERRORS,
    ),
    Endpoint(
        method="POST", path=f"{_SHARE_GROUP_PATH}/acknowledge", name="acknowledgeMessages",
        tag="groups",
        summary="Accept, reject, release or renew leased messages",
        body="AcknowledgeRequest", reply="AcknowledgeResponse",
        errors=(*_SHARE_ERRORS, *_ENDED, _IS_PREPARED, "transaction_conflict",
                "invalid_message_id", "lease_lost"),
    ),
    Endpoint(
        method="GET", path=_GROUPS_PATH, name="listGroups", tag="groups",
        summary="The consumer groups of a namespace", reply="Names", errors=("invalid_name",),
    ),
    Endpoint(
        method="GET", path=_GROUP_PATH, name="getGroup", tag="groups",
        summary="Members, assignment and lag of a consumer group", reply="Group",
        errors=_GROUP_ERRORS,
    ),
    Endpoint(
        method="DELETE", path=_GROUP_PATH, name="deleteGroup", tag="groups",
        summary="Delete a consumer group without members, with its offsets",
        errors=(*_GROUP_ERRORS, "group_not_empty"),
    ),
    Endpoint(
        method="POST", path=f"{_GROUP_PATH}/heartbeat", name="heartbeat", tag="groups",
        summary="Join a consumer group, stay in it, or leave it",
        body="HeartbeatRequest", reply="HeartbeatResponse",
        errors=(*_MEMBER_ERRORS, "fenced_member_epoch", "unreleased_instance_id",
                "too_many_members"),
    ),
    Endpoint(
        method="POST", path=f"{_GROUP_PATH}/offsets", name="commitOffsets", tag="groups",
        summary="Commit offsets, by themselves or within a transaction",
        body="CommitOffsetsRequest",
        errors=(*_MEMBER_ERRORS, *_ENDED, "transaction_conflict", "invalid_message_id",
                "stale_member_epoch", "partition_not_assigned"),
    ),
    Endpoint(
        method="GET", path=f"{_GROUP_PATH}/offsets", name="getCommittedOffsets", tag="groups",
        summary="The committed offsets of a consumer group", reply="CommittedOffsetList",
        errors=_GROUP_ERRORS,
    ),
    Endpoint(
        method="POST", path=f"{_GROUP_PATH}/offsets/reset", name="resetOffsets", tag="groups",
        summary="Set or forget offsets of partitions that no member has",
        body="ResetOffsetsRequest",
        errors=(*_GROUP_ERRORS, "invalid_message_id", "group_not_empty"),
    ),
    Endpoint(
        method="POST", path=_TX_PATH, name="startTransaction", tag="transactions",
        summary="Start a transaction", body="StartTransactionRequest", reply="Transaction",
        status=201, errors=("invalid_timeout",),
    ),
    Endpoint(
        method="GET", path=_TX_PATH, name="getOverview", tag="transactions",
        summary="Pointers and all transactions in progress", reply="Overview",
    ),
    Endpoint(
        method="POST", path=f"{_TX_PATH}/run", name="runTransaction", tag="transactions",
        summary="Publish to several topics in a transaction of its own", body="RunRequest",
        reply="CommitResponse", errors=(*_COMMIT_ERRORS, "empty_publish"),
    ),
    Endpoint(
        method="POST", path=f"{_TX_PATH}/batch", name="batchTransactions", tag="transactions",
        summary="Starts, prepares and resolves in one request", body="BatchRequest",
        reply="BatchResponse",
    ),
    Endpoint(
        method="GET", path=f"{_TX_PATH}/prepared", name="listPrepared", tag="transactions",
        summary="The prepared transactions", reply="PreparedList", errors=_NAMED,
        query=("database",),
    ),
    Endpoint(
        method="GET", path=f"{_TX_PATH}/invalid", name="listInvalid", tag="transactions",
        summary="The invalid list, and which of its pointers can be pruned", reply="InvalidList",
    ),
    Endpoint(
        method="POST", path=f"{_TX_PATH}/invalid/truncate", name="truncateInvalid",
        tag="transactions",
        summary="Take pointers off the invalid list", body="TruncateInvalidRequest",
        reply="TruncateInvalidResponse", errors=("transactions_in_progress",),
    ),
    Endpoint(
        method="POST", path=f"{_TX_PATH}/snapshot", name="takeSnapshot", tag="transactions",
        summary="Write a snapshot file now", reply="SnapshotFile",
    ),
    Endpoint(
        method="GET", path=f"{_TX_PATH}/snapshot", name="getSnapshot", tag="transactions",
        summary="The newest state, for debugging", reply="SnapshotContent",
    ),
    Endpoint(
        method="GET", path=f"{_TX_PATH}/snapshots", name="listSnapshotFiles", tag="transactions",
        summary="The snapshot files, also while transactions are down", reply="SnapshotFileList",
    ),
    Endpoint(
        method="GET", path=f"{_TX_PATH}/snapshots/{{file}}", name="getSnapshotFile",
        tag="transactions", summary="Pointers and lists of a snapshot file",
        reply="SnapshotFileContent", errors=("not_found",),
    ),
    Endpoint(
        method="POST", path=f"{_TX_PATH}/service/stop", name="stopService", tag="transactions",
        summary="Stop the transaction service", reply="ServiceResponse",
    ),
    Endpoint(
        method="POST", path=f"{_TX_PATH}/service/start", name="startService", tag="transactions",
        summary="Start the transaction service again", reply="ServiceResponse",
    ),
    Endpoint(
        method="GET", path=_TX_ID_PATH, name="getOutcome", tag="transactions",
        summary="The outcome of a transaction", reply="Outcome", errors=("transaction_unknown",),
    ),
    Endpoint(
        method="GET", path=f"{_TX_ID_PATH}/changes", name="getChanges", tag="transactions",
        summary="The changes that a transaction in progress has named", reply="ChangeList",
        errors=_ENDED,
    ),
    Endpoint(
        method="POST", path=f"{_TX_ID_PATH}/can-commit", name="canCommit", tag="transactions",
        summary="Check for conflicts early", body="CanCommitRequest", reply="StateResponse",
        errors=(*_ENDED, _IS_PREPARED, "transaction_conflict", "change_set_too_large"),
    ),
    Endpoint(
        method="POST", path=f"{_TX_ID_PATH}/commit", name="commit", tag="transactions",
        summary="Commit, and publish as one step", body="CommitRequest", reply="CommitResponse",
        errors=(*_COMMIT_ERRORS, "invalid_timeout"),
    ),
    Endpoint(
        method="POST", path=f"{_TX_ID_PATH}/prepare", name="prepare", tag="transactions",
        summary="Check and publish as a commit does, and let a database decide",
        body="PrepareRequest", reply="PrepareResponse",
        errors=(*_COMMIT_ERRORS, "too_many_prepared"),
    ),
    Endpoint(
        method="POST", path=f"{_TX_ID_PATH}/resolve", name="resolve", tag="transactions",
        summary="End a prepared transaction as its database did", body="ResolveRequest",
        reply="ResolveResponse", errors=(*_ENDED, "transaction_not_prepared"),
    ),
    Endpoint(
        method="POST", path=f"{_TX_ID_PATH}/abort", name="abort", tag="transactions",
        summary="End without committing", reply="StateResponse",
        errors=("transaction_unknown", "transaction_committed", _IS_PREPARED),
    ),
    Endpoint(
        method="POST", path=f"{_TX_ID_PATH}/invalidate", name="invalidate", tag="transactions",
        summary="End a transaction whose writes could not be undone", reply="StateResponse",
        errors=(
            "transaction_unknown", "transaction_committed", "transaction_aborted", _IS_PREPARED,
        ),
    ),
    Endpoint(
        method="POST", path=f"{_TX_ID_PATH}/checkpoint", name="checkpoint", tag="transactions",
        summary="A new write pointer inside the same transaction", reply="Transaction",
        errors=(*_ENDED, _IS_PREPARED, "transaction_conflict"),
    ),
    Endpoint(
        method="POST", path=f"{_TX_ID_PATH}/renew", name="renew", tag="transactions",
        summary="Renew the lease of a long transaction", reply="RenewResponse",
        errors=(*_ENDED, _IS_PREPARED),
    ),
    Endpoint(
        method="GET", path="/v1/sinks", name="listSinks", tag="sinks",
        summary="Every sink, with its newest epoch", reply="SinkList",
    ),
    Endpoint(
        method="GET", path="/v1/sinks/{sink}", name="getSink", tag="sinks",
        summary="The newest epoch of a sink, and its state", reply="Sink",
        errors=(*_NAMED, "sink_not_found"),
    ),
    Endpoint(
        method="DELETE", path="/v1/sinks/{sink}", name="forgetSink", tag="sinks",
        summary="Forget a sink and its epochs", errors=(*_NAMED, "sink_not_found", "sink_in_use"),
    ),
    Endpoint(
        method="POST", path="/v1/sinks/{sink}/epochs/{epoch}", name="beginEpoch", tag="sinks",
        summary="The transaction of an epoch, or that it has committed", body="BeginEpochRequest",
        reply="Epoch",
        errors=(
            *_NAMED, "invalid_timeout", "transaction_timed_out", "transaction_invalidated",
            "transaction_aborted", "sink_epoch_superseded", "sink_epoch_open", "sink_fenced",
            "too_many_sinks",
        ),
    ),
    Endpoint(
        method="GET", path=_CLUSTER_PATH, name="getCluster", tag="cluster",
        summary="In a cluster: its servers, and the leader of transactions", reply="Cluster",
    ),
    Endpoint(
        method="GET", path=f"{_CLUSTER_PATH}/topics", name="listOwners", tag="cluster",
        summary="In a cluster: the owner of each topic", reply="TopicOwnerList",
        query=("server", "limit", "after"), errors=_NAMED,
    ),
    Endpoint(
        method="POST", path=f"{_CLUSTER_PATH}/topics/{{ns}}/{{t}}/move", name="moveTopic",
        tag="cluster",
        summary="In a cluster: move a topic to another server", body="ServerRequest",
        reply="MoveResponse", errors=(*_TOPIC_ERRORS, "server_not_found", "topic_not_movable"),
    ),
    Endpoint(
        method="POST", path=f"{_CLUSTER_PATH}/drain", name="drainServer", tag="cluster",
        summary="In a cluster: give all topics of a server to the others", body="ServerRequest",
        reply="DrainResponse", query=("wait",), errors=("server_not_found", "topic_not_movable"),
    ),
    Endpoint(
        method="POST", path=f"{_CLUSTER_PATH}/undrain", name="undrainServer", tag="cluster",
        summary="In a cluster: let a drained server take topics again", body="ServerRequest",
        reply="DrainResponse", errors=("server_not_found",),
    ),
    Endpoint(
        method="GET", path="/v1/settings", name="getSettings", tag="process",
        summary="The settings, with the source of each", reply="SettingList",
    ),
    Endpoint(
        method="GET", path="/v1/backup", name="takeBackup", tag="data",
        summary="A backup of everything that is stored, as of one moment", raw_types=BACKUP_TYPES,
        errors=(_STORED, _DOWN),
    ),
    Endpoint(
        method="GET", path="/v1/session", name="beginSession", tag="session", status=101,
        summary="Begin a session: many calls over this connection", errors=("upgrade_required",),
    ),
    Endpoint(
        method="GET", path="/health/live", name="checkLive", tag="process",
        summary="Whether the process runs", reply="Health",
    ),
    Endpoint(
        method="GET", path="/health/startup", name="checkStartup", tag="process",
        summary="Whether recovery is done", reply="Health", unready_status=503,
    ),
    Endpoint(
        method="GET", path="/health/ready", name="checkReady", tag="process",
        summary="The state of each component, with reasons", reply="Readiness", unready_status=503,
    ),
    Endpoint(
        method="GET", path="/metrics", name="getMetrics", tag="process",
        summary="Prometheus text, or OpenMetrics where Accept names it",
        raw_types=("text/plain", "application/openmetrics-text"),
    ),
    Endpoint(
        method="GET", path="/openapi.json", name="getOpenApi", tag="process",
        summary="This document", reply="OpenApiDocument",
    ),
    Endpoint(
        method="GET", path="/console", name="getConsole", tag="process",
        summary="The web console", raw_types=("text/html",),
    ),
    Endpoint(
        method="GET", path="/console/{version}/{file}", name="getConsoleFile", tag="process",
        summary="A file of the web console",
        raw_types=("text/css", "text/javascript", "image/svg+xml"), errors=("not_found",),
    ),
)  # fmt: skip


# A connection above `server.max_connections` is refused whatever it requests. Below that bound
# health and metrics are answered under any load, and while the server starts or stops.
_ALWAYS = (
    "bad_request", "internal", "overloaded", "quota_exceeded", "unauthenticated", "forbidden",
    "host_not_allowed", "cross_site_request",
)  # fmt: skip
_WHILE_CLOSED = ("shutting_down", "starting")
# While the component that answers it is down, or moves to another server of the cluster.
_OF_TAG: Mapping[str, tuple[str, ...]] = {
    "topics": (_STORED, "ownership_moving"),
    "groups": (_STORED, "ownership_moving"),
    "messages": (_STORED, "ownership_moving"),
    "transactions": (_DOWN, "ownership_moving"),
    "sinks": (_DOWN, "ownership_moving"),
    # A single server has no such address.
    "cluster": (_STORED, "ownership_moving", "not_found"),
    "session": ("not_found",),  # a server in a cluster has none
}
_WITH_A_BODY = ("request_too_large", "unsupported_media_type")

_QUERY: Mapping[str, tuple[Schema, str]] = {
    "ttl": (_of_type("integer", minimum=1), "time to live of all messages, whole seconds"),
    "ack": (ref("Ack"), "when the publish is answered; not durable only without a transaction"),
    "delay": (ref("Delay"), "seconds until all messages without their own enter the topic"),
    "at": (ref("DueTime"), "when all messages without their own enter the topic"),
    "payloads": (_of_type("boolean", default=False), "whether to return the payloads"),
    "isolation": (ref("Isolation"), "what to read"),
    "database": (_DATABASE, "only the transactions for which this database decides"),
    "tx": (ref("PointerInput"), "read in the snapshot of this transaction"),
    "undecided": (ref("Undecided"), "what to do at a row that is not decided for a snapshot"),
    "wait": (
        _of_type("number", minimum=0, maximum=60, default=0),
        "seconds to wait while there is nothing to deliver, or while topics are left",
    ),
    "through": (ref("MessageIdInput"), "deliver nothing after this id"),
    "added": (
        _of_type("boolean", default=False),
        "whether to name the partitions with higher numbers, too",
    ),
    "archive": (_of_type("boolean", default=False), "whether to name the first archived message"),
    "tags": (_TEXT, "only messages with these tags: `a,b|c` is (a and b) or c"),
    "from": (_TEXT, "earliest, latest, a message id, ms, or an ISO 8601 time"),
    "inclusive": (_of_type("boolean", default=True), "whether the start itself belongs to it"),
    "limit": (_of_type("integer", minimum=1), "messages, topics, or rows, at most"),
    "namespace": (ref("Name"), "only the topics of this namespace"),
    "contains": (_TEXT, "only the topics with this text in `namespace:name`"),
    "order": (ref("Order"), "from the oldest to the newest, or the other way"),
    "server": (_SERVER_ID, "only the topics of this server"),
    "after": (_TEXT, "only the topics, or the delayed messages, behind this one"),
    "start": (ref("MessageIdInput"), "the parts begin behind this id; absent: at the beginning"),
    "end": (ref("MessageIdInput"), "the last part ends with this id; absent: with the topic"),
    "n": (_of_type("integer", minimum=1, maximum=10_000), "parts at most"),
}
# What a placeholder of a path is called here, where a generator makes a parameter of it.
_SPELLED_OUT = {"ns": "namespace", "t": "topic", "g": "group", "tx": "transaction"}
_PATH: Mapping[str, tuple[Schema, str]] = {
    "namespace": (ref("Name"), "namespace"),
    "topic": (ref("TopicName"), "topic, or one of its partitions"),
    "group": (ref("Name"), "consumer group"),
    "share": (ref("Name"), "share group"),
    "name": (ref("Name"), "hold or position"),
    "id": (ref("DelayedId"), "id of a delayed message"),
    "message": (_TEXT, "message id, or the id of a delayed message"),
    "transaction": (_TEXT, "transaction id, or one of its checkpoint pointers"),
    "sink": (ref("SinkName"), "a name for all runs of one writer"),
    "epoch": (_COUNT, "a number that only grows"),
    "version": (_TEXT, "of the files, as the page of the console names it"),
    "file": (_TEXT, "name of the file"),
}
_BYTES = _of_type("string", format="binary")
_HEADERS: Mapping[str, tuple[Schema, str]] = {
    "Tuff-First-Id": (ref("MessageId"), "id of the first row written"),
    "Tuff-Last-Id": (ref("MessageId"), "id of the last row written"),
    "Tuff-Partitions": (
        _of_type("string", pattern=r"^[0-9]+(,[0-9]+)*$"),
        "the partitions that have the rows, of a topic with several",
    ),
    "Tuff-Ack": (ref("Ack"), "the level of the reply, if the request named one"),
    "Tuff-Delayed": (_COUNT, "how many messages are delayed; they have no message id yet"),
    "Tuff-Delayed-First": (ref("DelayedId"), "id of the first delayed message of the request"),
    "Tuff-Delayed-Last": (ref("DelayedId"), "id of the last delayed message of the request"),
    "Tuff-Next": (ref("MessageId"), "the exclusive start of the next read"),
    "Tuff-Caught-Up": (_BOOLEAN, "whether nothing is left for this reader"),
    "Tuff-Blocked-By": (ref("Pointer"), "the transaction in progress that holds this reader back"),
    "Tuff-Blocked-Database": (ref("Name"), "the database that decides it, if it is prepared"),
    "Tuff-Blocked-Since": (_MS, "since when it is prepared"),
    "Tuff-Expired": (_BOOLEAN, "whether messages after the start may have been missed"),
    "Tuff-Archive": (_BOOLEAN, "whether the messages come from the archive of the topic"),
}

# Codes that are answered in 429 and 503 come with it; health has a 503 of its own.
_RETRY_AFTER: Schema = {
    "Retry-After": {
        "schema": _of_type("integer", minimum=0),
        "description": "seconds to wait before trying again",
    }
}


def document() -> dict[str, object]:
    """The whole document, as JSON would hold it; a new one at each call."""
    paths: dict[str, dict[str, object]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(address(endpoint), {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tuff",
            "version": "1",
            "summary": "Transactions beside a durable, ordered, time-addressed message store",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:7411"}],
        "tags": [{"name": tag} for tag in dict.fromkeys(each.tag for each in ENDPOINTS)],
        "paths": paths,
        "components": {"schemas": dict(SCHEMAS)},
    }


def address(endpoint: Endpoint) -> str:
    """Its path as the document writes it."""
    return re.sub(
        r"{(\w+)}", lambda found: f"{{{_SPELLED_OUT.get(found[1], found[1])}}}", endpoint.path
    )


def _operation(endpoint: Endpoint) -> dict[str, object]:
    operation: dict[str, object] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "responses": {
            str(status): _response(endpoint)
            for status in (endpoint.status, endpoint.unready_status)
            if status is not None
        }
        | _refusals(endpoint),
    }
    if parameters := _parameters(endpoint):
        operation["parameters"] = parameters
    if endpoint.body is not None:
        operation["requestBody"] = _body(endpoint, endpoint.body)
    return operation


def _body(endpoint: Endpoint, schema: str) -> dict[str, object]:
    body: dict[str, object] = {
        # A call without a body is one with an empty object, where that is a possible body.
        "required": not {"required", "oneOf"}.isdisjoint(SCHEMAS[schema]),
        "content": {MediaType.JSON.value: {"schema": ref(schema)}},
    }
    if endpoint.avro:
        # Not under `content`: a generator can't write Avro, and gave up the operation or warned.
        body["description"] = f"also as {MediaType.AVRO.value}, of the schema in x-avro-schema"
        body |= _avro_schemas(schema)
    return body


def _avro_schemas(name: str) -> dict[str, object]:
    schemas: dict[str, object] = {"x-avro-schema": AVRO[name]}
    return {**schemas, "x-avro-schema-2": AVRO_2[name]} if name in AVRO_2 else schemas


def _parameters(endpoint: Endpoint) -> list[dict[str, object]]:
    in_path = [
        {"name": name, "in": "path", "required": True, **_described(_PATH[name])}
        for name in re.findall(r"{(\w+)}", address(endpoint))
    ]
    in_query = [
        {"name": name, "in": "query", **_described(_QUERY[name])} for name in endpoint.query
    ]
    return in_path + in_query


def _described(described: tuple[Schema, str]) -> dict[str, object]:
    schema, description = described
    return {"schema": schema, "description": description}


def _response(endpoint: Endpoint) -> dict[str, object]:
    reply: dict[str, object] = {"description": endpoint.summary}
    if content := _content(endpoint):
        # OpenAPI has no words for a body that may be missing. A generated client parses what stands
        # under `content`, so that of an empty success it raised after the messages were stored.
        reply["x-content" if endpoint.reply_is_optional else "content"] = content
    if endpoint.headers:
        reply["headers"] = {name: _described(_HEADERS[name]) for name in endpoint.headers}
    return reply


def _content(endpoint: Endpoint) -> dict[str, object]:
    # Of several a generator takes the first that it can read, which is JSON's.
    content: dict[str, object] = {}
    if endpoint.reply is not None:
        content[MediaType.JSON.value] = {"schema": ref(endpoint.reply)}
        if endpoint.avro:
            content[MediaType.AVRO.value] = {
                "schema": _BYTES,
                **_avro_schemas(endpoint.reply),
            }
        if endpoint.arrow:
            content[MediaType.ARROW.value] = {
                "schema": _BYTES,
                "x-arrow-schema": ARROW,
                "x-arrow-schema-2": ARROW_2,
            }
    for kind in endpoint.raw_types:
        content[kind] = {"schema": _TEXT if kind.startswith("text/") else _BYTES}
    return content


def _refusals(endpoint: Endpoint) -> dict[str, object]:
    codes = {*endpoint.errors, *_ALWAYS, *_OF_TAG.get(endpoint.tag, ())}
    if endpoint.tag != "process":
        codes.update(_WHILE_CLOSED)
    if endpoint.body is not None:
        codes.update(_WITH_A_BODY)
    by_status: dict[int, list[str]] = {}
    for code in sorted(codes):
        by_status.setdefault(BY_CODE[code].status, []).append(code)
    return {str(status): _refusal(status, by_status[status]) for status in sorted(by_status)}


def _refusal(status: int, codes: Iterable[str]) -> dict[str, object]:
    refusal: dict[str, object] = {
        "description": ", ".join(codes),
        "content": {PROBLEM_TYPE: {"schema": ref("Problem")}},
        # Which codes, and which members beside each. As a schema, which it was, it made generators
        # write a class for every status of every call.
        "x-codes": {code: sorted(MEMBERS.get(code, ())) for code in codes},
    }
    if status in RETRIED_STATUSES:
        refusal["headers"] = _RETRY_AFTER
    return refusal
