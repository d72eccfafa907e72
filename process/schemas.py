"""The schemas of all JSON bodies, for the OpenAPI document.

In `SCHEMAS` a request is closed: it has no `additionalProperties`, and the server refuses unknown
members. A reply may get more members later. Where the client reads a reply as a value, the schema
follows the value (`reply_of`).
Code generators make a class of every object and every enumeration. So each of these has an entry
with a name of its own here, and other schemas refer to it with `ref`. A generator invents a name
for a nested schema without one, and drops both classes where it invents the same name twice.
"""

from collections.abc import Mapping

from messaging.model.partitions import PARTITIONS_COUNT_MAX
from messaging.read.explanation_decision import Reason
from process.schema_forms import (
    BOOLEAN,
    COUNT,
    FULL_NAME,
    ID,
    MS,
    NAME,
    PARTITION,
    PARTITION_NAME,
    PAYLOAD,
    POINTER,
    SECONDS,
    TEXT,
    Schema,
    any_of,
    array,
    by_name,
    of_type,
    one_of,
    optional,
    or_null,
    ref,
    reply,
    reply_of,
    request,
    required,
    said,
)
from tuff import replies
from tuff.protocol.attributes import TAG_LENGTH_MAX, TAGS_COUNT_MAX
from tuff.protocol.group_preferences import GroupStart
from tuff.protocol.leases import AttemptReport, LeaseAction
from tuff.protocol.requests import DELAY_MS_MAX, MESSAGES_COUNT_MAX, Ack, Isolation
from tuff.protocol.transaction import (
    TransactionState,
    TransactionStatus,
    TransactionType,
    VisibilityLevel,
)
from tx.log_records import InvalidReason

_LONG_MAX = (1 << 63) - 1

# fmt: off
_TTL = of_type("integer", minimum=1, maximum=2147483647, description="whole seconds")
_GENERATION = of_type("integer", minimum=1)
_IS_LOWER_BOUND: Schema = {**BOOLEAN, **said("whether there are at least so many")}
_SEQ_ID = of_type("integer", minimum=0, maximum=65535)
_OR_TEXT, _OR_NAME, _OR_ID = or_null(TEXT), or_null(NAME), or_null(ID)
_OR_POINTER, _OR_COUNT, _OR_MS = or_null(POINTER), or_null(COUNT), or_null(MS)
_OR_PAYLOAD, _OR_SECONDS = or_null(PAYLOAD), or_null(SECONDS)
_ID_INPUT, _POINTER_INPUT = ref("MessageIdInput"), ref("PointerInput")
_POINTERS = array(POINTER)
_ATTRIBUTES: dict[str, Schema] = {
    "key": _OR_PAYLOAD, "tags": array(ref("Tag")), "headers": ref("Headers"),
}

_VALUES: dict[str, Schema] = {
    "Name": of_type("string", pattern=r"^(?!\.{1,2}$)[A-Za-z0-9._-]{1,128}$"),
    "TopicName": of_type(
        "string", pattern=r"^(?!\.{1,2}(:|$))[A-Za-z0-9._-]{1,128}(:(0|[1-9][0-9]{0,3}))?$",
        description="a name, or one with the number of a partition",
    ),
    "SinkName": of_type("string", pattern=r"^(?!\.{1,2}$)[A-Za-z0-9._:/-]{1,128}$"),
    "Pointer": of_type(
        "string", pattern="^-?[0-9]{1,19}$",
        description="a 64-bit transaction pointer in decimal digits, since JSON readers that know "
        "only doubles round larger numbers",
    ),
    "PointerInput": any_of(
        POINTER, of_type("integer", format="int64", minimum=-_LONG_MAX, maximum=_LONG_MAX),
        description="a transaction pointer, as digits or as a number",
    ),
    "MessageId": of_type("string", pattern="^[0-9a-f]{40}$", description="20 bytes in hex"),
    "MessageIdInput": of_type("string", pattern="^[0-9A-Fa-f]{40}$", description="20 bytes in hex"),
    "Place": any_of(
        _ID_INPUT, MS,
        description="a place in a topic: a message id, or a publish time in ms since the epoch",
    ),
    "BinaryPayload": request(
        required("base64"), base64=of_type("string", contentEncoding="base64")
    ),
    "Payload": any_of(
        TEXT, ref("BinaryPayload"),
        description="a string stands for its UTF-8 bytes; other bytes go as base64",
    ),
    "Delay": of_type(
        "number", format="double", minimum=0.001, maximum=DELAY_MS_MAX // 1000,
        description="seconds from the publish until the message enters the topic",
    ),
    "DueTime": any_of(
        MS, TEXT, description="when the message enters the topic: ms since the epoch, or ISO 8601"
    ),
    "DelayedId": of_type("string", pattern="^[0-9a-f]{36}$", description="18 bytes in hex"),
    "Tag": of_type("string", pattern=f"^[A-Za-z0-9._-]{{1,{TAG_LENGTH_MAX}}}$"),
    "Headers": by_name(
        ref("HeaderValue"), "by name, of printable ASCII characters without a comma"
    ),
    "HeaderPairs": array(
        of_type("array", prefixItems=[TEXT, PAYLOAD], minItems=2, maxItems=2),
        "names and values, whose order is kept",
    ),
    "HeaderValue": any_of(
        TEXT, ref("BinaryPayload"), array(PAYLOAD),
        description="a value as a payload has it, or several for a name that repeats",
    ),
    "MessageWithTtl": request(
        required("payload"), payload=PAYLOAD, ttl=_TTL, key=_OR_PAYLOAD,
        tags=or_null(array(ref("Tag"), maxItems=TAGS_COUNT_MAX)),
        headers=or_null(any_of(ref("Headers"), ref("HeaderPairs"))),
        delay=ref("Delay"), at=ref("DueTime"),
    ),
    "MessageInput": any_of(
        TEXT, ref("BinaryPayload"), ref("MessageWithTtl"),
        description="a payload alone, or with attributes, a time to live, or a delay of its own",
    ),
    "Isolation": one_of(*Isolation),
    "GroupKind": one_of("consumer", "share"),
    "LossCause": one_of("expired", "truncated"),
    "Undecided": one_of("hold", "skip", default="hold"),
    "Ack": one_of(*Ack, default="durable"),
    "TransactionType": one_of(*TransactionType),
    "TransactionState": one_of(*TransactionState),
    "InvalidReason": one_of(
        *(each.value for each in InvalidReason), description="why a transaction is invalid"
    ),
    "VisibilityLevel": one_of(*(each.name for each in VisibilityLevel)),
}

# The members of a problem document that come with a code (RFC 9457 §3.2).
_EPOCH_MEMBER: Mapping[str, Schema] = {
    "epoch": of_type("integer", format="int64", description="the newest epoch of the sink")
}
# Two codes have this member, and a schema of problems has it once.
_PARTITIONS_OF_PROBLEM = array(
    any_of(PARTITION, TEXT),
    "numbers of those that can be read, or names of those that the member does not have",
)
_REASON_MEMBER: Mapping[str, Schema] = {"reason": ref("InvalidReason")}
MEMBERS: Mapping[str, Mapping[str, Schema]] = {
    "transaction_conflict": {
        "key": PAYLOAD, "conflictingTransaction": POINTER,
        "conflictingClient": {**TEXT, **said("the client of that transaction")},
    },
    "transaction_prepared": {
        "database": {**TEXT, **said("that decides how the transaction ends")},
        "preparedAt": of_type("integer", format="int64", description="ms since the epoch"),
    },
    "transaction_timed_out": _REASON_MEMBER,
    "transaction_invalidated": _REASON_MEMBER,
    "sink_epoch_superseded": _EPOCH_MEMBER,
    "sink_epoch_open": _EPOCH_MEMBER,
    "partition_required": {"partitions": _PARTITIONS_OF_PROBLEM},
    "lease_lost": {"ids": array(ID, "the messages that other workers have got")},
    "topic_not_found": {"topic": {**TEXT, **said("`namespace:name` of the topic to create")}},
    "topic_held": {"holds": array(NAME, "the holds that are in the way")},
    "stale_member_epoch": {
        "memberEpoch": of_type("integer", format="int64", description="that the member has")
    },
    "partition_not_assigned": {"partitions": _PARTITIONS_OF_PROBLEM},
    "damaged_record": {
        "id": {**TEXT, **said("the record, as its key or its message id in hex")}, "next": _OR_ID,
    },
}
_OF_SOME_PROBLEMS = {name: schema for each in MEMBERS.values() for name, schema in each.items()}

_PROBLEM: dict[str, Schema] = {
    "Problem": {
        **reply(
            optional(*_OF_SOME_PROBLEMS), type=of_type("string", const="about:blank"),
            title=TEXT, status=of_type("integer"), detail={**TEXT, **said("one plain sentence")},
            code={**TEXT, **said("stable; what a program looks at")}, **_OF_SOME_PROBLEMS,
        ),
        **said(
            "RFC 9457. Beside the first five, a member comes with the codes that have it: `key`, "
            "the change that both transactions wrote, and who committed it first; `reason`, why "
            "the transaction is invalid; `epoch`; `topic`; `holds`; `memberEpoch`; `partitions`; "
            "`id`, and `next`, the exclusive start of a read behind a damaged record"
        ),
    },
}

_PARTITIONS = array(PARTITION, "those that take messages, ascending; of a topic")
_RETIRED = array(PARTITION, "those that can only be read, ascending; of a topic")
_HOLDS = array(ref("Hold"), "by name; those that are not over")
_POSITIONS = array(ref("Position"), "by name")
_READABLE: Schema = {**COUNT, **said("messages that a reader can receive")}
_PROPERTY_VALUE = ref("TopicPropertyValue")
_NO_GENERATION: Schema = {"not": {"required": ["generation"]}}

_TOPICS: dict[str, Schema] = {
    "Topic": reply_of(
        replies.TopicInfo, optional("partitions", "retired"), name=ref("TopicName"),
        properties=ref("TopicProperties"), generation=_GENERATION, partitions=_PARTITIONS,
        retired=_RETIRED,
    ),
    "TopicProperties": by_name(TEXT),
    "TopicTtl": any_of(
        _TTL, of_type("string", pattern="^(?!0+$)[0-9]{1,10}$"),
        description="whole seconds, as a number or as digits",
    ),
    "PartitionCount": any_of(
        of_type("integer", minimum=1, maximum=PARTITIONS_COUNT_MAX),
        of_type("string", pattern="^(?!0+$)[0-9]{1,4}$"),
        description="how many partitions take messages, as a number or as digits",
    ),
    "TopicPropertyValue": any_of(TEXT, of_type("number")),
    "TopicPropertiesInput": {
        **by_name(_PROPERTY_VALUE), **_NO_GENERATION,
        "properties": {"ttl": ref("TopicTtl"), "partitions": ref("PartitionCount")},
    },
    "TopicPropertiesChange": {
        **by_name(or_null(_PROPERTY_VALUE)), **_NO_GENERATION,
        "properties": {"ttl": or_null(ref("TopicTtl")), "partitions": ref("PartitionCount")},
    },
    "ChangedTopic": reply_of(
        replies.TopicUpdate, properties=ref("TopicProperties"), partitions=_PARTITIONS,
        retired=_RETIRED,
    ),
    "ExpiringMessages": reply_of(
        replies.ExpiringMessages, messages={**COUNT, **said("messages that expire at once")}
    ),
    "Names": array(TEXT, "in byte order"),
    "TruncateTopicRequest": request(required("before"), before=ref("Place")),
    "TruncateTopicResponse": reply(earliest=_OR_ID),
    "HoldRequest": request(required("from", "maxAge"), from_=ref("Place"), maxAge=SECONDS),
    "Hold": reply_of(replies.Hold, name=NAME),
    "HoldList": reply(holds=_HOLDS),
    "DelayedMessage": reply_of(
        replies.DelayedMessage, optional("ttl", "key", "tags", "headers", "payload"),
        id=ref("DelayedId"), size={**COUNT, **said("bytes of the payload")}, ttl=_TTL,
        **_ATTRIBUTES,
    ),
    "DelayedList": reply(delayed=array(ref("DelayedMessage"), "in the order of due times")),
    "PositionRequest": request(required("position"), position=_ID_INPUT),
    "Position": reply_of(replies.NamedPosition, name=NAME, generation=_GENERATION),
    "PositionList": reply(positions=_POSITIONS),
    "PartitionOverview": reply(
        number=PARTITION, all=ref("Offsets"), committed=or_null(ref("Offsets")),
        positions=_POSITIONS, holds=_HOLDS,
    ),
    "TopicOverview": reply(
        topic=ref("Topic"), partitions=array(ref("PartitionOverview"), "the first 50, ascending"),
        groups=array(ref("Group"), "50 at most, with their partitions of this topic"),
        hasAllGroups=BOOLEAN,
    ),
    "TopicSummary": reply(
        namespace=NAME, name=NAME, generation=_GENERATION, ttl=_TTL,
        partitionCount=COUNT, positionCount=COUNT,
        publishedCount={**COUNT, **said("messages since the server started")},
        publishedBytes={**COUNT, **said("payload bytes since the server started")},
        storedBytes={**COUNT, **said("an estimate; recent writes need not count")},
        oldest=_OR_MS, newest=_OR_MS,
        messageCount=_READABLE, isLowerBound=_IS_LOWER_BOUND,
    ),
    "TopicSummaryList": reply(
        count={**COUNT, **said("of all topics that match")},
        topics=array(ref("TopicSummary"), "in byte order of namespace and name"), next=_OR_TEXT,
    ),
    "Split": reply_of(replies.Split),
    "SplitList": reply_of(
        replies.Splits, generation=_GENERATION,
        splits=array(
            ref("Split"),
            "ascending; start is exclusive, end inclusive, and the next one begins there",
        ),
    ),
}

_RANGE = {
    "startTimestamp": MS, "startSequenceId": _SEQ_ID, "endTimestamp": MS, "endSequenceId": _SEQ_ID,
}
_MESSAGES_TO_PUBLISH = array(
    ref("MessageInput"), "as many at most in one request, in all of its entries together",
    maxItems=MESSAGES_COUNT_MAX,
)

_MESSAGES: dict[str, Schema] = {
    "PublishRequest": request(
        required("messages"), transactionWritePointer=or_null(_POINTER_INPUT),
        messages=_MESSAGES_TO_PUBLISH,
    ),
    "PublishResponse": reply(transactionWritePointer=POINTER, **_RANGE),
    "RollbackRequest": request(
        required("transactionWritePointer", *_RANGE), transactionWritePointer=_POINTER_INPUT,
        **_RANGE,
    ),
    "ConsumeRequest": request(
        startFrom=or_null(ref("Place")), inclusive={**BOOLEAN, "default": True},
        limit=or_null(of_type("integer", minimum=1)), transaction=or_null(ref("Snapshot")),
    ),
    "WaitRequest": request(required("after"), after=ref("PartitionStarts")),
    "TopicsWaitRequest": request(required("topics"), topics=ref("TopicWaits")),
    "TopicWaits": by_name(ref("TopicWait"), "by the name of a topic", minProperties=1),
    "TopicWait": request(required("after"), after=ref("PartitionStarts"), tags=TEXT),
    "ReadableTopics": reply(partitions=array(TEXT, "as orders:3; none: time is up")),
    "PartitionStarts": by_name(
        _ID_INPUT, "by the number of a partition, an id behind which it is read",
        propertyNames={"pattern": "^[0-9]+$"}, minProperties=1,
    ),
    "ReadablePartitions": reply(partitions=array(PARTITION, "ascending; none: time is up")),
    "Snapshot": any_of(
        of_type("string", contentEncoding="base64"), ref("TransactionInput"),
        description="what to read in: the bytes of a TTransaction as base64, or a transaction",
    ),
    "Message": {
        **reply(optional(*_ATTRIBUTES), id=ID, payload=PAYLOAD, timestamp=MS, **_ATTRIBUTES),
        **said("`key`, `tags` and `headers` are present if `Accept` names schema 2"),
    },
    "MessageList": array(ref("Message")),
    "MessageCount": reply_of(
        replies.MessageCount, count=_READABLE, isLowerBound=_IS_LOWER_BOUND
    ),
    "TopicSpace": reply_of(replies.TopicSpace),
    "DiskUse": reply_of(
        replies.DiskUse, topics=array(ref("SpaceOfTopic"), "those that take most, at most 100")
    ),
    "TableSpace": reply_of(replies.TableSpace),
    "SpaceOfTopic": reply_of(replies.SpaceOfTopic, namespace=NAME, name=ref("TopicName")),
    "DiskSpace": reply_of(replies.DiskSpace),
    "Reclaimed": reply_of(
        replies.Reclaimed,
        isComplete={**BOOLEAN, **said("`false`: repeat it, once more space is free")},
    ),
    "Offsets": reply_of(
        replies.Offsets, optional("database", "preparedAt", "archivedFrom"),
        generation=_GENERATION, database=NAME, preparedAt=MS, archivedFrom=_OR_ID,
    ),
    "Explanation": reply_of(
        replies.Explanation, optional("elsewhere", "lostBy"), namespace=TEXT, topic=TEXT,
        generation=or_null(_GENERATION), reason=ref("ExplanationReason"),
    ),
    "ExplanationReason": one_of(*(each.value for each in Reason)),
    "MessageLostByGroup": reply_of(
        replies.MessageLostByGroup, kind=ref("GroupKind"), namespace=NAME, group=NAME,
        cause=ref("LossCause"),
    ),
    "FoundElsewhere": reply(namespace=TEXT, topic=TEXT),
    "ExplainedTransaction": reply_of(TransactionStatus),
    "ExplainRequest": request(required("transaction"), transaction=ref("Snapshot")),
    "RowState": one_of(
        "committed", "in_progress", "invalid", "rolled_back", "expired", "damaged", "unknown",
        description="unknown: the row has a transaction, and transactions are down",
    ),
    "Row": reply_of(
        replies.StoredRow, timestamp=MS, state=ref("RowState"), writePointer=_OR_POINTER,
        size={**COUNT, **said("bytes of the stored value")},
    ),
    "RowList": reply_of(
        replies.RowPage, generation=_GENERATION,
        rows=array(ref("Row"), "in the order that was asked for"),
    ),
    "Order": one_of("ascending", "descending", default="ascending"),
}

_SNAPSHOT_FILE: dict[str, Schema] = {
    "file": TEXT, "bytes": COUNT, "createdAt": _OR_MS, "lsn": _OR_COUNT, "damage": _OR_TEXT,
}
_LEASE: dict[str, Schema] = {"lease": SECONDS, "leaseExpiresAt": MS}


def _snapshot_members(pointer: Schema) -> dict[str, Schema]:
    return {
        "transactionId": pointer, "writePointer": pointer, "readPointer": pointer,
        "invalids": array(pointer), "inProgress": array(pointer), "firstShortInProgress": pointer,
        "type": ref("TransactionType"), "checkpointWritePointers": array(pointer),
        "visibilityLevel": ref("VisibilityLevel"),
        "encoded": of_type("string", contentEncoding="base64", description="TTransaction bytes"),
        "state": ref("TransactionState"), "client": _OR_TEXT,
        "timeout": or_null(of_type("number", format="double")), "startedAt": MS, "expiresAt": MS,
        **_LEASE,
    }


_EPOCH_NUMBER = of_type("integer", format="int64", minimum=0, maximum=_LONG_MAX)
_REQUEST_ID = of_type("string", minLength=1, maxLength=128)
_CHANGES = array(PAYLOAD, "keys for conflict detection")
DATABASE: Schema = {**TEXT, **said("that decides how the transaction ends")}
_PREPARED: dict[str, Schema] = {"database": DATABASE, "preparedAt": MS}
_PUBLISHED = array(ref("PublishResponse"))
_OF_SOME_TRANSACTIONS = (*_LEASE, *_PREPARED)

_TRANSACTIONS: dict[str, Schema] = {
    "Transaction": reply(
        optional("invalids", "inProgress", "encoded", *_LEASE), **_snapshot_members(POINTER)
    ),
    "SnapshotFileInfo": reply(**_SNAPSHOT_FILE),
    "SnapshotFileList": reply(
        files=array(ref("SnapshotFileInfo"), "the newest first, damaged ones last")
    ),
    "SnapshotFileContent": reply(
        **_SNAPSHOT_FILE, readPointer=POINTER, writePointer=POINTER, inProgress=_POINTERS,
        invalids=_POINTERS, open=array(ref("OpenInSnapshot")), outcomeCount=COUNT, sinkCount=COUNT,
    ),
    "OpenInSnapshot": reply(
        transactionId=POINTER, state=ref("TransactionState"), type=ref("TransactionType"),
        client=TEXT, startedAt=MS, expiresAt=MS,
    ),
    "ChangeList": reply(
        count={**COUNT, **said("of all its changes")},
        changes=array(PAYLOAD, "in byte order; at most 1,000"),
        conflictingTransaction=_OR_POINTER, conflictingKey=_OR_PAYLOAD,
    ),
    "SettingValue": any_of(TEXT, of_type("number"), BOOLEAN, array(TEXT)),
    "Setting": reply(
        name=TEXT, value=ref("SettingValue"), default=ref("SettingValue"),
        source={**TEXT, **said("default, flag, or the settings file")},
    ),
    "SettingList": reply(settings=array(ref("Setting"), "by section")),
    "TransactionInput": request(
        required("transactionId", "readPointer", "writePointer", "invalids", "inProgress"),
        **_snapshot_members(_POINTER_INPUT),
    ),
    "StartTransactionRequest": request(
        type=or_null(ref("TransactionType")), timeout=_OR_SECONDS, client=_OR_TEXT,
        lists={**BOOLEAN, "default": True}, lease=_OR_SECONDS, requestId=or_null(_REQUEST_ID),
        messagesOnly={**BOOLEAN, "default": False},
    ),
    "WithdrawRequest": request(required("requestId"), requestId=_REQUEST_ID),
    "WithdrawResponse": reply(transactionId=_OR_POINTER),
    "JoinResponse": reply(state=ref("TransactionState")),
    "RenewResponse": reply_of(replies.Renewed),
    "BeginEpochRequest": request(
        required("runId"), runId=_REQUEST_ID, lease=_OR_SECONDS, client=_OR_TEXT
    ),
    "EpochState": one_of("begun", "committed"),
    "Epoch": reply_of(replies.Epoch, epoch=_EPOCH_NUMBER, state=ref("EpochState")),
    "Sink": reply_of(replies.Sink, epoch=_EPOCH_NUMBER),
    "SinkList": reply(sinks=array(ref("Sink"), "by name")),
    "CanCommitRequest": request(changes=_CHANGES),
    "PublishEntry": request(
        required("namespace", "topic", "messages"), namespace=NAME, topic=ref("TopicName"),
        messages=_MESSAGES_TO_PUBLISH, pointer=_POINTER_INPUT, delay=ref("Delay"),
        at=ref("DueTime"),
    ),
    "CommitRequest": request(
        changes=_CHANGES, publish=array(ref("PublishEntry")),
        readOnly={**BOOLEAN, "default": False}, then=ref("AfterCommit"),
    ),
    "AfterCommit": request(required("start"), start=ref("StartTransactionRequest")),
    "PrepareRequest": request(
        required("database"), changes=_CHANGES, publish=array(ref("PublishEntry")),
        database=DATABASE,
    ),
    "PrepareResponse": reply_of(
        replies.Prepared, state=of_type("string", const="prepared"), database=DATABASE
    ),
    "Resolution": one_of("commit", "abort"),
    "ResolveRequest": request(required("outcome"), outcome=ref("Resolution")),
    "ResolveResponse": reply(
        optional("published"), state=ref("TransactionState"), published=_PUBLISHED
    ),
    "PreparedTransaction": reply_of(replies.PreparedTransaction, client=TEXT, database=DATABASE),
    "PreparedList": reply(
        prepared=array(ref("PreparedTransaction"), "the one prepared first comes first")
    ),
    "RunRequest": request(
        required("publish"), publish=array(ref("PublishEntry"), minItems=1), client=_OR_TEXT,
        requestId=or_null(_REQUEST_ID),
    ),
    "CommitResponse": reply(
        optional("next"), state=of_type("string", const="committed"), published=_PUBLISHED,
        next=or_null(ref("Transaction")),
    ),
    "StateResponse": reply(
        optional("reason"), state=ref("TransactionState"), reason=ref("InvalidReason")
    ),
    # The client knows less of a transaction whose outcome it reads in an error.
    "Outcome": reply_of(
        replies.Outcome, optional("reason", *_OF_SOME_TRANSACTIONS), type=ref("TransactionType"),
        startedAt=MS, expiresAt=MS, reason=or_null(ref("InvalidReason")), database=DATABASE,
        topics=array(FULL_NAME),
    ),
    "OpenTransaction": reply_of(
        replies.OpenTransaction, optional("principal", *_OF_SOME_TRANSACTIONS), database=DATABASE,
        principal=TEXT, topics=array(FULL_NAME),
    ),
    "Overview": reply_of(replies.Overview),
    "InvalidPointersByReason": by_name(
        _POINTERS, "every pointer of the list once, by why it is there"
    ),
    "InvalidList": reply_of(
        replies.Invalids, reasons=ref("InvalidPointersByReason"),
        prunable=array(POINTER, "those that no message row carries"),
    ),
    "TruncateByIds": request(required("ids"), ids=array(_POINTER_INPUT)),
    "TruncateByTime": request(required("before"), before=MS),
    "TruncateInvalidRequest": {"oneOf": [ref("TruncateByIds"), ref("TruncateByTime")]},
    "TruncateInvalidResponse": reply_of(replies.Truncated),
    "SnapshotFile": reply_of(replies.SnapshotFile),
    "SnapshotContent": of_type("object", description="the newest state, for debugging"),
    "ServiceState": one_of("stopped", "running"),
    "ServiceResponse": reply(state=ref("ServiceState")),
}

SERVER_ID = of_type("string", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
_INCARNATION = of_type(
    "integer", format="int64", minimum=1, description="one more at each start of the server"
)
_EPOCH_OF = of_type("integer", format="int64", description="it only rises")

_CLUSTER: dict[str, Schema] = {
    "ClusterServer": reply_of(replies.ClusterServer, id=SERVER_ID, incarnation=_INCARNATION),
    "ServerIdentity": reply(id=SERVER_ID, incarnation=_INCARNATION),
    "ClusterLeader": reply_of(replies.ClusterLeader, id=SERVER_ID, epoch=_EPOCH_OF),
    "Cluster": reply_of(
        replies.ClusterState, clusterId=of_type("string", pattern="^[0-9a-f]{32}$"),
        server=ref("ServerIdentity"), servers=array(ref("ClusterServer"), "the live ones, by id"),
    ),
    "TopicOwner": reply_of(
        replies.TopicOwner, server=or_null(SERVER_ID), incarnation=_INCARNATION, epoch=_EPOCH_OF
    ),
    "TopicOwnerList": reply_of(replies.TopicOwners, topics=array(ref("TopicOwner"), "by name")),
    "ServerRequest": request(required("server"), server=SERVER_ID),
    "MoveResponse": reply(topic=FULL_NAME, server=SERVER_ID),
    "DrainResponse": reply_of(replies.Drain, server=SERVER_ID),
}

_PROCESS: dict[str, Schema] = {
    "Health": reply(status=TEXT),
    "HealthCheck": reply_of(replies.HealthCheck, optional("detail"), status=TEXT),
    "HealthChecks": reply(
        **dict.fromkeys(("storage", "transactions", "disk", "clock"), ref("HealthCheck"))
    ),
    "Readiness": reply_of(
        replies.Health, status=TEXT, version=TEXT, checks=ref("HealthChecks")
    ),
    "OpenApiDocument": of_type("object", description="this document"),
}

_TOKEN = of_type(
    "string", pattern="^[0-9a-f]{1,40}-[0-9a-f]{1,16}$", description="names one delivery"
)
_LEASE_S = of_type("number", minimum=0.1, maximum=43_200, description="seconds")
_SHARE_COUNT = of_type("integer", minimum=1, maximum=1_000)
_SHARE_GROUPS: dict[str, Schema] = {
    "ShareStartName": one_of("earliest", "latest"),
    "ShareAction": one_of(*LeaseAction, default="accept"),
    "ShareResult": one_of("accepted", "released", "rejected", "renewed", "expires", "lease_lost"),
    "ShareAttempt": one_of(*AttemptReport),
    "ShareStart": any_of(
        ref("ShareStartName"), _ID_INPUT, MS,
        description="earliest, latest, a message id, or ms since the epoch",
    ),
    "ShareOrder": one_of("none", "key"),
    "ShareGroupRequest": request(
        start=any_of(ref("ShareStart"), default="latest"),
        order=any_of(ref("ShareOrder"), default="none"), tags=_OR_TEXT, lease=_LEASE_S,
    ),
    "ShareGroup": reply_of(
        replies.ShareGroup, optional(), ("topic",), name=NAME, order=ref("ShareOrder"), lowMark=ID
    ),
    "LeaseRequest": request(
        count={**_SHARE_COUNT, "default": 10},
        maxBytes=of_type("integer", minimum=1, maximum=1 << 30), lease=_LEASE_S,
    ),
    "LeasedMessage": reply(
        id=ID, timestamp=MS, payload=PAYLOAD, **_ATTRIBUTES, token=_TOKEN,
        attempts={**COUNT, **said("the number of this attempt")},
        lost={**COUNT, **said("earlier attempts whose workers vanished")}, leaseEnds=MS,
    ),
    "LeaseResponse": reply(
        partition=PARTITION_NAME, messages=array(ref("LeasedMessage"), "the oldest first")
    ),
    "MessageToAcknowledge": request(
        required("id", "token"), id=_ID_INPUT, token=_TOKEN, action=ref("ShareAction"),
        attempt=ref("ShareAttempt"),
        delay=of_type("number", minimum=0, maximum=43_200, description="of a release"),
        lease={**_LEASE_S, **said("seconds from now, of a renewal")},
    ),
    "AcknowledgeRequest": request(
        required("messages"),
        messages=array(ref("MessageToAcknowledge"), minItems=1, maxItems=1_000),
        transactionWritePointer=or_null(_POINTER_INPUT),
    ),
    "AcknowledgeResult": reply(id=ID, result=ref("ShareResult")),
    "AcknowledgeResponse": reply(
        results=array(ref("AcknowledgeResult"), "in the order of the request")
    ),
}

_MEMBER_EPOCH = of_type("integer", format="int64")
_PREFERENCES: dict[str, Schema] = {
    "start": or_null(ref("GroupStart")), "isolation": or_null(ref("Isolation")), "tags": _OR_TEXT,
    "deadLetters": _OR_NAME,
}
_JOINED: dict[str, Schema] = {
    "groupEpoch": _MEMBER_EPOCH,
    "assigned": array(PARTITION_NAME, "what to consume; all others shall be released"),
    "lost": array(ref("LostBeginning"), "messages whose members vanished"),
    "heartbeatInterval": SECONDS, "sessionTimeout": SECONDS, "preferences": ref("GroupPreferences"),
}
_GROUPS: dict[str, Schema] = {
    "Assignor": one_of("range", "round_robin", "sticky"),
    "GroupStart": one_of(*GroupStart),
    "GroupState": one_of("empty", "reconciling", "stable"),
    "RetryDelay": SECONDS,
    "GroupRetry": reply(
        delays=array(ref("RetryDelay"), "the wait before each further attempt"),
        inOrder={**BOOLEAN, **said("a message waits in its place")},
    ),
    "GroupRetryInput": request(
        required("delays"), delays=array(ref("RetryDelay"), maxItems=100),
        inOrder={**BOOLEAN, "default": False},
    ),
    "GroupPreferences": reply(**_PREFERENCES, retry=or_null(ref("GroupRetry"))),
    "GroupPreferencesInput": request(**_PREFERENCES, retry=or_null(ref("GroupRetryInput"))),
    "HeartbeatRequest": request(
        required("memberId", "memberEpoch"), memberId=NAME,
        memberEpoch={
            **_MEMBER_EPOCH, "minimum": -2,
            **said("0 joins; -1 leaves; -2 leaves for a while, as a static member"),
        },
        topics=array(TEXT, "of a join: what to subscribe to, as orders or namespace:orders"),
        start=ref("GroupStart"),
        assignor=ref("Assignor"), instanceId=NAME, client=TEXT,
        groupEpoch={**_MEMBER_EPOCH, **said("that of the last reply")},
        owned=array(PARTITION_NAME, "the partitions that the member has not released"),
        begun=ref("BegunMessages"),
    ),
    "HeartbeatResponse": reply(
        optional(*_JOINED), memberId=NAME, memberEpoch=_MEMBER_EPOCH, **_JOINED
    ),
    "GroupOffsets": by_name(_ID_INPUT, minProperties=1),
    "BegunMessages": by_name(
        _ID_INPUT, "by partition, the message that the member has begun and not committed"
    ),
    "LostBeginning": reply(partition=PARTITION_NAME, id=ID, count=COUNT),
    "GroupOffsetOrNull": or_null(_ID_INPUT),
    "GroupOffsetsToReset": by_name(ref("GroupOffsetOrNull"), minProperties=1),
    "CommitOffsetsRequest": request(
        required("memberId", "memberEpoch"), memberId=NAME,
        memberEpoch={**_MEMBER_EPOCH, "minimum": 1}, offsets=ref("GroupOffsets"),
        begun=ref("BegunMessages"), transactionWritePointer=_POINTER_INPUT,
    ),
    "ResetOffsetsRequest": request(required("offsets"), offsets=ref("GroupOffsetsToReset")),
    "CommittedOffset": reply(
        partition=PARTITION_NAME, after=ID, memberId=_OR_TEXT, committedAt=MS
    ),
    "CommittedOffsetList": reply(
        offsets=array(ref("CommittedOffset"), "by partition"),
        undecided=array(
            PARTITION_NAME, "partitions with offsets in transactions that may still commit"
        ),
    ),
    "GroupMember": reply_of(
        replies.GroupMember, memberId=NAME, memberEpoch=_MEMBER_EPOCH, instanceId=_OR_NAME,
        topics=array(TEXT),
    ),
    "GroupPartition": reply_of(replies.GroupPartition, isLowerBound=_IS_LOWER_BOUND),
    "Group": reply_of(
        replies.Group, name=NAME, state=ref("GroupState"), epoch=_MEMBER_EPOCH,
        assignor=or_null(ref("Assignor")), partitions=array(ref("GroupPartition"), "by name"),
    ),
}
# fmt: on

SCHEMAS: Mapping[str, Schema] = {
    **_VALUES, **_PROBLEM, **_TOPICS, **_GROUPS, **_SHARE_GROUPS, **_MESSAGES, **_TRANSACTIONS,
    **_CLUSTER, **_PROCESS,
}  # fmt: skip
