"""All endpoints of the HTTP protocol, with their bodies and errors.

`ENDPOINTS`, the routes, and the table in docs/protocol.md §9 list the same endpoints; tests compare
the three.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tuff.protocol.exchange import BACKUP_TYPES

_STORED = "storage_unavailable"
_DOWN = "transactions_unavailable"
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
}
_WITH_A_BODY = ("request_too_large", "unsupported_media_type")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One endpoint: parameters, bodies, errors. `body` and `reply` name schemas; None is no body.

    `avro`: the body and the reply may be in Avro too; `arrow`: the reply may be in Arrow too. A
    reply that is never JSON has `raw_types`. `reply_is_optional`: a success may have no body.
    `errors`: the codes beyond those of all endpoints, and of all with the same tag.
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

    @property
    def codes(self) -> list[str]:
        """The codes of all errors with which it may be answered, sorted."""
        codes = {*self.errors, *_ALWAYS, *_OF_TAG.get(self.tag, ())}
        if self.tag != "process":
            codes.update(_WHILE_CLOSED)
        if self.body is not None:
            codes.update(_WITH_A_BODY)
        return sorted(codes)


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
        errors=(*_LOG_ERRORS, "invalid_message_id", "group_already_exists", "too_many_groups",
                "damaged_record"),
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
                "too_many_members", "too_many_groups"),
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
        method="GET", path="/console/", name="getConsoleRedirect", tag="process",
        summary="Redirects to /console", status=308,
    ),
    Endpoint(
        method="GET", path="/console/{version}/{file}", name="getConsoleFile", tag="process",
        summary="A file of the web console",
        raw_types=("text/css", "text/javascript", "image/svg+xml"), errors=("not_found",),
    ),
)  # fmt: skip
