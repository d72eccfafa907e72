"""The schemas of all JSON bodies, for the OpenAPI document.

In `SCHEMAS` a request is closed: it has no `additionalProperties`, and the server refuses unknown
members. A reply may get more members later.
Code generators make a class of every object and every enumeration. So each of these has an entry
with a name of its own here, and other schemas refer to it with `ref`. A generator invents a name
for a nested schema without one, and drops both classes where it invents the same name twice.
"""

from collections.abc import Mapping

from messaging.partitions import PARTITIONS_COUNT_MAX
from messaging.read.explanation import Reason
from tuff.protocol.attributes import TAG_LENGTH_MAX, TAGS_COUNT_MAX
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


def of_type(kind: str, **limits: object) -> Schema:
    return {"type": kind, **limits}


BOOLEAN = of_type("boolean")
MS = of_type("integer", format="int64", minimum=0, description="ms since the epoch")
_SECONDS = of_type(
    "number", format="double", exclusiveMinimum=0, description="seconds; fractions allowed"
)
_TTL = of_type("integer", minimum=1, maximum=2147483647, description="whole seconds")
_GENERATION = of_type("integer", minimum=1)
_PARTITION = of_type("integer", minimum=0, maximum=PARTITION_NUMBER_MAX)
COUNT = of_type("integer", format="int64", minimum=0)
_SEQ_ID = of_type("integer", minimum=0, maximum=65535)
TEXT = of_type("string")
_MESSAGES_TO_PUBLISH: Schema = {
    "type": "array",
    "items": ref("MessageInput"),
    "maxItems": MESSAGES_COUNT_MAX,
    "description": "as many at most in one request, in all of its entries together",
}

_VALUES: dict[str, Schema] = {
    "Name": of_type("string", pattern=r"^(?!\.{1,2}$)[A-Za-z0-9._-]{1,128}$"),
    "TopicName": of_type(
        "string",
        pattern=r"^(?!\.{1,2}(:|$))[A-Za-z0-9._-]{1,128}(:(0|[1-9][0-9]{0,3}))?$",
        description="a name, or one with the number of a partition",
    ),
    "SinkName": of_type("string", pattern=r"^(?!\.{1,2}$)[A-Za-z0-9._:/-]{1,128}$"),
    "Pointer": of_type(
        "string",
        pattern="^-?[0-9]{1,19}$",
        description="a 64-bit transaction pointer in decimal digits, since JSON readers that know "
        "only doubles round larger numbers",
    ),
    "PointerInput": {
        "description": "a transaction pointer, as digits or as a number",
        "anyOf": [
            ref("Pointer"),
            of_type("integer", format="int64", minimum=-_LONG_MAX, maximum=_LONG_MAX),
        ],
    },
    "MessageId": of_type("string", pattern="^[0-9a-f]{40}$", description="20 bytes in hex"),
    "MessageIdInput": of_type("string", pattern="^[0-9A-Fa-f]{40}$", description="20 bytes in hex"),
    "Place": {
        "description": "a place in a topic: a message id, or a publish time in ms since the epoch",
        "anyOf": [ref("MessageIdInput"), MS],
    },
    "BinaryPayload": _request(
        {"base64": of_type("string", contentEncoding="base64")}, required=("base64",)
    ),
    "Payload": {
        "description": "a string stands for its UTF-8 bytes; other bytes go as base64",
        "anyOf": [TEXT, ref("BinaryPayload")],
    },
    "Delay": of_type(
        "number",
        format="double",
        minimum=0.001,
        maximum=DELAY_MS_MAX // 1000,
        description="seconds from the publish until the message enters the topic",
    ),
    "DueTime": {
        "description": "when the message enters the topic: ms since the epoch, or ISO 8601",
        "anyOf": [MS, TEXT],
    },
    "DelayedId": of_type("string", pattern="^[0-9a-f]{36}$", description="18 bytes in hex"),
    "Tag": of_type("string", pattern=f"^[A-Za-z0-9._-]{{1,{TAG_LENGTH_MAX}}}$"),
    "Headers": {
        "type": "object",
        "additionalProperties": ref("HeaderValue"),
        "description": "by name, of printable ASCII characters without a comma",
    },
    "HeaderPairs": {
        "type": "array",
        "items": {
            "type": "array",
            "prefixItems": [TEXT, ref("Payload")],
            "minItems": 2,
            "maxItems": 2,
        },
        "description": "names and values, whose order is kept",
    },
    "HeaderValue": {
        "description": "a value as a payload has it, or several for a name that repeats",
        "anyOf": [TEXT, ref("BinaryPayload"), _array(ref("Payload"))],
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
        "anyOf": [TEXT, ref("BinaryPayload"), ref("MessageWithTtl")],
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
    "epoch": of_type("integer", format="int64", description="the newest epoch of the sink")
}
# Two codes have this member, and a schema of problems has it once.
_PARTITIONS_OF_PROBLEM = _array(
    {"anyOf": [_PARTITION, TEXT]},
    "numbers of those that can be read, or names of those that the member does not have",
)
_REASON_MEMBER: Mapping[str, Schema] = {"reason": ref("InvalidReason")}
MEMBERS: Mapping[str, Mapping[str, Schema]] = {
    "transaction_conflict": {
        "key": ref("Payload"),
        "conflictingTransaction": ref("Pointer"),
        "conflictingClient": of_type("string", description="the client of that transaction"),
    },
    "transaction_prepared": {
        "database": of_type("string", description="that decides how the transaction ends"),
        "preparedAt": of_type("integer", format="int64", description="ms since the epoch"),
    },
    "transaction_timed_out": _REASON_MEMBER,
    "transaction_invalidated": _REASON_MEMBER,
    "sink_epoch_superseded": _EPOCH_MEMBER,
    "sink_epoch_open": _EPOCH_MEMBER,
    "partition_required": {"partitions": _PARTITIONS_OF_PROBLEM},
    "lease_lost": {"ids": _array(ref("MessageId"), "the messages that other workers have got")},
    "topic_held": {"holds": _array(ref("Name"), "the holds that are in the way")},
    "stale_member_epoch": {
        "memberEpoch": of_type("integer", format="int64", description="that the member has")
    },
    "partition_not_assigned": {"partitions": _PARTITIONS_OF_PROBLEM},
    "damaged_record": {
        "id": of_type("string", description="the record, as its key or its message id in hex"),
        "next": _or_null(ref("MessageId")),
    },
}
_OF_EVERY_PROBLEM: dict[str, Schema] = {
    "type": of_type("string", const="about:blank"),
    "title": TEXT,
    "status": of_type("integer"),
    "detail": of_type("string", description="one plain sentence"),
    "code": of_type("string", description="stable; what a program looks at"),
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
    "TopicProperties": of_type("object", additionalProperties=TEXT),
    "TopicTtl": {
        "description": "whole seconds, as a number or as digits",
        "anyOf": [_TTL, of_type("string", pattern="^(?!0+$)[0-9]{1,10}$")],
    },
    "PartitionCount": {
        "description": "how many partitions take messages, as a number or as digits",
        "anyOf": [
            of_type("integer", minimum=1, maximum=PARTITIONS_COUNT_MAX),
            of_type("string", pattern="^(?!0+$)[0-9]{1,4}$"),
        ],
    },
    "TopicPropertyValue": {"anyOf": [TEXT, of_type("number")]},
    "TopicPropertiesInput": {
        "type": "object",
        "properties": {"ttl": ref("TopicTtl"), "partitions": ref("PartitionCount")},
        "additionalProperties": ref("TopicPropertyValue"),
        "not": {"required": ["generation"]},
    },
    "Names": _array(TEXT, "in byte order"),
    "TruncateTopicRequest": _request({"before": ref("Place")}, required=("before",)),
    "TruncateTopicResponse": _reply({"earliest": _or_null(ref("MessageId"))}),
    "HoldRequest": _request(
        {"from": ref("Place"), "maxAge": _SECONDS}, required=("from", "maxAge")
    ),
    "Hold": _reply({"name": ref("Name"), "from": ref("MessageId"), "expiresAt": MS, "setAt": MS}),
    "HoldList": _reply({"holds": _array(ref("Hold"), "by name; those that are not over")}),
    "DelayedMessage": _reply(
        {
            "id": ref("DelayedId"),
            "due": MS,
            "size": {**COUNT, "description": "bytes of the payload"},
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
            "updatedAt": MS,
        }
    ),
    "PositionList": _reply({"positions": _array(ref("Position"), "by name")}),
    "TopicSummary": _reply(
        {
            "namespace": ref("Name"),
            "name": ref("Name"),
            "generation": _GENERATION,
            "ttl": _TTL,
            "partitionCount": COUNT,
            "positionCount": COUNT,
            "publishedCount": {**COUNT, "description": "messages since the server started"},
            "publishedBytes": {**COUNT, "description": "payload bytes since the server started"},
            "storedBytes": {**COUNT, "description": "an estimate; recent writes need not count"},
            "oldest": _or_null(MS),
            "newest": _or_null(MS),
        }
    ),
    "TopicSummaryList": _reply(
        {
            "count": {**COUNT, "description": "of all topics that match"},
            "topics": _array(ref("TopicSummary"), "in byte order of namespace and name"),
            "next": _or_null(TEXT),
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
    "startTimestamp": MS,
    "startSequenceId": _SEQ_ID,
    "endTimestamp": MS,
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
            "inclusive": of_type("boolean", default=True),
            "limit": _or_null(of_type("integer", minimum=1)),
            "transaction": _or_null(ref("Snapshot")),
        }
    ),
    "WaitRequest": _request(
        {
            "after": ref("PartitionStarts"),
        },
        required=("after",),
    ),
    "PartitionStarts": of_type(
        "object",
        propertyNames={"pattern": "^[0-9]+$"},
        additionalProperties=ref("MessageIdInput"),
        minProperties=1,
        description="by the number of a partition, an id behind which it is read",
    ),
    "ReadablePartitions": _reply({"partitions": _array(_PARTITION, "ascending; none: time is up")}),
    "Snapshot": {
        "description": "what to read in: the bytes of a TTransaction as base64, or a transaction",
        "anyOf": [of_type("string", contentEncoding="base64"), ref("TransactionInput")],
    },
    "Message": {
        **_reply(
            {
                "id": ref("MessageId"),
                "payload": ref("Payload"),
                "timestamp": MS,
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
            "preparedAt": MS,
            "archivedFrom": _or_null(ref("MessageId")),
        },
        optional=("database", "preparedAt", "archivedFrom"),
    ),
    "Explanation": _reply(
        {
            "id": TEXT,
            "namespace": TEXT,
            "topic": TEXT,
            "generation": _or_null(_GENERATION),
            "visible": of_type("boolean"),
            "reason": ref("ExplanationReason"),
            "detail": TEXT,
            "advice": TEXT,
            "blockedBy": _or_null(ref("Pointer")),
            "transaction": _or_null(ref("ExplainedTransaction")),
            "elsewhere": _array(ref("FoundElsewhere")),
        },
        optional=("elsewhere",),
    ),
    "ExplanationReason": _one_of(*(each.value for each in Reason)),
    "FoundElsewhere": _reply({"namespace": TEXT, "topic": TEXT}),
    "ExplainedTransaction": _reply(
        {
            "transactionId": ref("Pointer"),
            "state": TEXT,
            "reason": _or_null(TEXT),
            "client": TEXT,
            "startedAt": MS,
            "endedAt": _or_null(MS),
            "expiresAt": _or_null(MS),
            "database": _or_null(TEXT),
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
            "timestamp": MS,
            "state": ref("RowState"),
            "writePointer": _or_null(ref("Pointer")),
            "transactionId": _or_null(ref("Pointer")),
            "messageCount": COUNT,
            "size": {**COUNT, "description": "bytes of the stored value"},
            "expiresAt": MS,
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
    "file": TEXT,
    "bytes": COUNT,
    "createdAt": _or_null(MS),
    "lsn": _or_null(COUNT),
    "damage": _or_null(TEXT),
}
_LEASE: dict[str, Schema] = {"lease": _SECONDS, "leaseExpiresAt": MS}


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
        "encoded": of_type("string", contentEncoding="base64", description="TTransaction bytes"),
        "state": ref("TransactionState"),
        "client": _or_null(TEXT),
        "timeout": _or_null(of_type("number", format="double")),
        "startedAt": MS,
        "expiresAt": MS,
        **_LEASE,
    }


_EPOCH: dict[str, Schema] = {
    "sink": TEXT,
    "epoch": of_type("integer", format="int64", minimum=0, maximum=_LONG_MAX),
    "runId": TEXT,
}
_CHANGES = _array(ref("Payload"), "keys for conflict detection")
DATABASE = of_type("string", description="that decides how the transaction ends")
_PREPARED: dict[str, Schema] = {"database": DATABASE, "preparedAt": MS}
_OPEN = {
    "transactionId": ref("Pointer"),
    "type": ref("TransactionType"),
    "client": _or_null(TEXT),
    "startedAt": MS,
    "expiresAt": MS,
    "topics": _array(TEXT, "ns:topic"),
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
            "outcomeCount": COUNT,
            "sinkCount": COUNT,
        }
    ),
    "OpenInSnapshot": _reply(
        {
            "transactionId": ref("Pointer"),
            "state": ref("TransactionState"),
            "type": ref("TransactionType"),
            "client": TEXT,
            "startedAt": MS,
            "expiresAt": MS,
        }
    ),
    "ChangeList": _reply(
        {
            "count": {**COUNT, "description": "of all its changes"},
            "changes": _array(ref("Payload"), "in byte order; at most 1,000"),
            "conflictingTransaction": _or_null(ref("Pointer")),
            "conflictingKey": _or_null(ref("Payload")),
        }
    ),
    "SettingValue": {
        "anyOf": [TEXT, of_type("number"), of_type("boolean"), _array(TEXT)],
    },
    "Setting": _reply(
        {
            "name": TEXT,
            "value": ref("SettingValue"),
            "default": ref("SettingValue"),
            "source": {**TEXT, "description": "default, flag, or the settings file"},
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
            "client": _or_null(TEXT),
            "lists": of_type("boolean", default=True),
            "lease": _or_null(_SECONDS),
        }
    ),
    "RenewResponse": _reply({"leaseExpiresAt": MS, "expiresAt": MS}),
    "BeginEpochRequest": _request(
        {
            "runId": of_type("string", minLength=1, maxLength=128),
            "lease": _or_null(_SECONDS),
            "client": _or_null(TEXT),
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
            "updatedAt": MS,
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
            "readOnly": of_type("boolean", default=False),
            "then": ref("AfterCommit"),
        }
    ),
    "AfterCommit": _request({"start": ref("StartTransactionRequest")}, required=("start",)),
    "PrepareRequest": _request(
        {
            "changes": _CHANGES,
            "publish": _array(ref("PublishEntry")),
            "database": DATABASE,
        },
        required=("database",),
    ),
    "PrepareResponse": _reply(
        {
            "state": of_type("string", const="prepared"),
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
            "client": TEXT,
            "topics": _array(TEXT),
            "changeCount": COUNT,
            "blocksReaders": BOOLEAN,
            **_PREPARED,
        }
    ),
    "PreparedList": _reply(
        {"prepared": _array(ref("PreparedTransaction"), "the one prepared first comes first")}
    ),
    "BatchCallBody": {"type": "object", "description": "the body of the call by itself"},
    "BatchCall": _request({"path": TEXT, "body": ref("BatchCallBody")}, required=("path", "body")),
    "BatchRequest": _request(
        {"calls": {**_array(ref("BatchCall"), "at most 256"), "minItems": 1}}, required=("calls",)
    ),
    "BatchReplyBody": {"type": "object", "description": "the reply to the call by itself"},
    "BatchReply": _reply({"status": of_type("integer"), "body": ref("BatchReplyBody")}),
    "BatchResponse": _reply({"replies": _array(ref("BatchReply"), "in the order of the calls")}),
    "RunRequest": _request(
        {
            "publish": {**_array(ref("PublishEntry")), "minItems": 1},
            "client": _or_null(TEXT),
            "requestId": _or_null(of_type("string", maxLength=128)),
        },
        required=("publish",),
    ),
    "CommitResponse": _reply(
        {
            "state": of_type("string", const="committed"),
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
        {**_OPEN, **_PREPARED, "principal": TEXT}, optional=(*_LEASE, *_PREPARED, "principal")
    ),
    "Overview": _reply(
        {
            "readPointer": ref("Pointer"),
            "writePointer": ref("Pointer"),
            "inProgress": _array(ref("OpenTransaction")),
            "visibilityUpperBound": ref("Pointer"),
            "invalidCount": COUNT,
            "committingCount": COUNT,
            "oldestInProgress": _or_null(ref("Pointer")),
        }
    ),
    "InvalidPointersByReason": of_type(
        "object",
        description="every pointer of the list once, by why it is there",
        additionalProperties=_array(ref("Pointer")),
    ),
    "InvalidList": _reply(
        {
            "invalids": _array(ref("Pointer")),
            "reasons": ref("InvalidPointersByReason"),
            "prunable": _array(ref("Pointer"), "those that no message row carries"),
            "sweptAt": _or_null(MS),
            "sweptWith": _or_null(TEXT),
        }
    ),
    "TruncateByIds": _request({"ids": _array(ref("PointerInput"))}, required=("ids",)),
    "TruncateByTime": _request({"before": MS}, required=("before",)),
    "TruncateInvalidRequest": {"oneOf": [ref("TruncateByIds"), ref("TruncateByTime")]},
    "TruncateInvalidResponse": _reply({"removed": COUNT, "kept": _array(ref("Pointer"))}),
    "SnapshotFile": _reply({"file": TEXT, "bytes": COUNT}),
    "SnapshotContent": of_type("object", description="the newest state, for debugging"),
    "ServiceState": _one_of("stopped", "running"),
    "ServiceResponse": _reply({"state": ref("ServiceState")}),
}

SERVER_ID = of_type("string", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
_INCARNATION = of_type(
    "integer", format="int64", minimum=1, description="one more at each start of the server"
)
_EPOCH_OF = of_type("integer", format="int64", description="it only rises")
_TOPIC_NAME = of_type("string", description="namespace:name")

_CLUSTER: dict[str, Schema] = {
    "ClusterServer": _reply(
        {
            "id": SERVER_ID,
            "incarnation": _INCARNATION,
            "url": TEXT,
            "startedAt": MS,
            "topics": COUNT,
            "isDraining": of_type("boolean"),
        }
    ),
    "ServerIdentity": _reply({"id": SERVER_ID, "incarnation": _INCARNATION}),
    "ClusterLeader": _reply({"id": SERVER_ID, "epoch": _EPOCH_OF, "url": TEXT}),
    "Cluster": _reply(
        {
            "clusterId": of_type("string", pattern="^[0-9a-f]{32}$"),
            "server": ref("ServerIdentity"),
            "leader": _or_null(ref("ClusterLeader")),
            "servers": _array(ref("ClusterServer"), "the live ones, by id"),
        }
    ),
    "TopicOwner": _reply(
        {
            "topic": _TOPIC_NAME,
            "server": _or_null(SERVER_ID),
            "incarnation": _INCARNATION,
            "epoch": _EPOCH_OF,
            "isAlive": of_type("boolean"),
        }
    ),
    "TopicOwnerList": _reply(
        {"topics": _array(ref("TopicOwner"), "by name"), "next": _or_null(_TOPIC_NAME)}
    ),
    "ServerRequest": _request({"server": SERVER_ID}, required=("server",)),
    "MoveResponse": _reply({"topic": _TOPIC_NAME, "server": SERVER_ID}),
    "DrainResponse": _reply(
        {"server": SERVER_ID, "isDraining": of_type("boolean"), "topics": COUNT}
    ),
}

_PROCESS: dict[str, Schema] = {
    "Health": _reply({"status": TEXT}),
    "HealthCheck": _reply({"status": TEXT, "detail": TEXT}, optional=("detail",)),
    "HealthChecks": _reply(
        dict.fromkeys(("storage", "transactions", "disk", "clock"), ref("HealthCheck"))
    ),
    "Readiness": _reply({"status": TEXT, "version": TEXT, "checks": ref("HealthChecks")}),
    "OpenApiDocument": of_type("object", description="this document"),
}

_TOKEN = of_type(
    "string", pattern="^[0-9a-f]{1,40}-[0-9a-f]{1,16}$", description="names one delivery"
)
_LEASE_S = of_type("number", minimum=0.1, maximum=43_200, description="seconds")
_SHARE_COUNT = of_type("integer", minimum=1, maximum=1_000)
_SHARE_GROUPS: dict[str, Schema] = {
    "ShareStartName": _one_of("earliest", "latest"),
    "ShareAction": {**_one_of("accept", "release", "reject", "renew"), "default": "accept"},
    "ShareResult": _one_of("accepted", "released", "rejected", "renewed", "lease_lost"),
    "ShareStart": {
        "description": "earliest, latest, a message id, or ms since the epoch",
        "anyOf": [ref("ShareStartName"), ref("MessageIdInput"), MS],
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
            "start": TEXT,
            "order": ref("ShareOrder"),
            "lease": _SECONDS,
            "available": COUNT,
            "blocked": COUNT,
            "leased": COUNT,
            "waiting": COUNT,
            "undecided": COUNT,
            "done": COUNT,
            "lowMark": ref("MessageId"),
            "oldest": _or_null(ref("MessageId")),
            "end": _or_null(ref("MessageId")),
            "behindMs": COUNT,
        }
    ),
    "LeaseRequest": _request(
        {
            "count": {**_SHARE_COUNT, "default": 10},
            "maxBytes": of_type("integer", minimum=1, maximum=1 << 30),
            "lease": _LEASE_S,
        }
    ),
    "LeasedMessage": _reply(
        {
            "id": ref("MessageId"),
            "timestamp": MS,
            "payload": ref("Payload"),
            "key": _or_null(ref("Payload")),
            "tags": _array(ref("Tag")),
            "headers": ref("Headers"),
            "token": _TOKEN,
            "attempts": COUNT,
            "leaseEnds": MS,
        }
    ),
    "LeaseResponse": _reply({"messages": _array(ref("LeasedMessage"), "the oldest first")}),
    "MessageToAcknowledge": _request(
        {
            "id": ref("MessageIdInput"),
            "token": _TOKEN,
            "action": ref("ShareAction"),
            "delay": of_type("number", minimum=0, maximum=43_200, description="of a release"),
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

_MEMBER_EPOCH = of_type("integer", format="int64")
_PARTITION_NAME = of_type(
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
            "client": TEXT,
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
    "GroupOffsets": of_type("object", additionalProperties=ref("MessageIdInput"), minProperties=1),
    "GroupOffsetOrNull": _or_null(ref("MessageIdInput")),
    "GroupOffsetsToReset": of_type(
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
            "memberId": _or_null(TEXT),
            "committedAt": MS,
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
            "client": TEXT,
            "topics": _array(ref("Name")),
            "assigned": _array(_PARTITION_NAME),
            "target": _array(_PARTITION_NAME),
        }
    ),
    "GroupPartition": _reply(
        {
            "partition": _PARTITION_NAME,
            "memberId": _or_null(TEXT),
            "after": _or_null(ref("MessageId")),
            "end": _or_null(ref("MessageId")),
            "behindMs": _or_null(COUNT),
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
