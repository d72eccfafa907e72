"""Every endpoint of the protocol, from which the OpenAPI document is made.

`ENDPOINTS` is the only list of them besides the routes themselves; docs/protocol.md §9 shows it,
and the tests hold the three together.
"""

from dataclasses import dataclass

from tuff.protocol.media import BACKUP_TYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One call: what it takes, gives and refuses. `body` and `reply` name schemas; None is empty.

    `avro`: the body, and the reply where it has one, also go as Avro; `arrow`: the reply goes as
    Arrow too. A reply that is never JSON has `raw_types`. `reply_is_optional`: a success may be
    empty instead. `errors` are codes beyond those that every call may answer. `unready_status`
    comes with the same reply, when something does not work.
    `name` and `tag` become the names of a method and of a module in a generated client.
    """

    method: str
    path: str
    name: str
    summary: str
    tag: str
    body: str | None = None
    body_required: bool = False
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


_TOPICS = "/v1/namespaces/{ns}/topics"
_TOPIC = f"{_TOPICS}/{{t}}"
_TRANSACTIONS = "/v1/transactions"
_ONE = f"{_TRANSACTIONS}/{{tx}}"

_ENDED = (
    "transaction_unknown",
    "transaction_timed_out",
    "transaction_invalidated",
    "transaction_committed",
    "transaction_aborted",
)
_NAMED = ("invalid_name",)
_TOPIC_ERRORS = (*_NAMED, "topic_not_found")
_STORED = "storage_unavailable"
_DOWN = "transactions_unavailable"
_WRITE_ERRORS = (
    *_TOPIC_ERRORS, *_ENDED, "transaction_conflict", "invalid_ttl", _STORED, _DOWN,
)  # fmt: skip
_COMMIT_ERRORS = (*_WRITE_ERRORS, "change_set_too_large")
_READ_QUERY = ("isolation", "tx", "undecided", "wait", "through")
_VIEW_ERRORS = (
    *_TOPIC_ERRORS, *_ENDED, "invalid_message_id", "invalid_transaction", _STORED, _DOWN,
)  # fmt: skip
_READ_ERRORS = (*_VIEW_ERRORS, "damaged_record")
_POLL_ERRORS = (*_READ_ERRORS, "not_acceptable")
_READ_HEADERS = ("Tuff-Next", "Tuff-Caught-Up", "Tuff-Blocked-By", "Tuff-Expired")
_WRITTEN_HEADERS = ("Tuff-First-Id", "Tuff-Last-Id")

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET", path="/v1/namespaces", name="listNamespaces", tag="topics",
        summary="Every namespace that has a topic", reply="Names", errors=(_STORED,),
    ),
    Endpoint(
        method="GET", path=_TOPICS, name="listTopics", tag="topics",
        summary="The topics of a namespace", reply="Names", errors=(*_NAMED, _STORED),
    ),
    Endpoint(
        method="PUT", path=_TOPIC, name="createTopic", tag="topics",
        summary="Create a topic, or the next generation of a deleted one",
        body="TopicPropertiesInput",
        errors=(*_NAMED, "topic_already_exists", "invalid_topic_properties", _STORED),
    ),
    Endpoint(
        method="GET", path=_TOPIC, name="getTopic", tag="topics",
        summary="Properties and generation of a topic", reply="Topic",
        errors=(*_TOPIC_ERRORS, _STORED),
    ),
    Endpoint(
        method="DELETE", path=_TOPIC, name="deleteTopic", tag="topics",
        summary="Delete a topic with its messages", errors=(*_TOPIC_ERRORS, _STORED),
    ),
    Endpoint(
        method="PUT", path=f"{_TOPIC}/properties", name="updateTopic", tag="topics",
        summary="Replace all properties of a topic", body="TopicPropertiesInput",
        errors=(*_TOPIC_ERRORS, "invalid_topic_properties", _STORED),
    ),
    Endpoint(
        method="POST", path=f"{_TOPIC}/truncate", name="truncateTopic", tag="topics",
        summary="Remove all messages before a place, for ever", body="TruncateTopicRequest",
        body_required=True, reply="TruncateTopicResponse",
        errors=(*_TOPIC_ERRORS, "invalid_message_id", "topic_held", _STORED),
    ),
    Endpoint(
        method="POST", path=f"{_TOPIC}/publish", name="publish", tag="messages",
        summary="Publish messages, or under a transaction the reference to stored ones",
        body="PublishRequest", body_required=True, reply="PublishResponse", avro=True,
        reply_is_optional=True, query=("ttl",), headers=_WRITTEN_HEADERS,
        errors=(*_WRITE_ERRORS, "empty_publish"),
    ),
    Endpoint(
        method="POST", path=f"{_TOPIC}/store", name="store", tag="messages",
        summary="Store messages that the next publish of the transaction brings",
        body="PublishRequest", body_required=True, avro=True, query=("ttl",),
        errors=_WRITE_ERRORS,
    ),
    Endpoint(
        method="POST", path=f"{_TOPIC}/rollback", name="rollback", tag="messages",
        summary="Hide one transactional publish from transactional readers",
        body="RollbackRequest", body_required=True, avro=True,
        errors=(*_TOPIC_ERRORS, "transaction_committed", _STORED, _DOWN),
    ),
    Endpoint(
        method="POST", path=f"{_TOPIC}/poll", name="poll", tag="messages",
        summary="Read messages from a place on", body="ConsumeRequest", reply="MessageList",
        avro=True, arrow=True, query=_READ_QUERY, headers=_READ_HEADERS, errors=_POLL_ERRORS,
    ),
    Endpoint(
        method="GET", path=f"{_TOPIC}/messages", name="browse", tag="messages",
        summary="The same read for people and scripts", reply="MessageList",
        arrow=True, query=("from", "inclusive", "limit", *_READ_QUERY), headers=_READ_HEADERS,
        errors=_POLL_ERRORS,
    ),
    Endpoint(
        method="GET", path=f"{_TOPIC}/offsets", name="getOffsets", tag="messages",
        summary="The first message, and the last that is decided for a reader", reply="Offsets",
        query=("isolation", "tx"), errors=_VIEW_ERRORS,
    ),
    Endpoint(
        method="GET", path=f"{_TOPIC}/splits", name="getSplits", tag="messages",
        summary="Parts of a range of about equal size, to be read side by side", reply="SplitList",
        query=("start", "end", "n"), errors=(*_TOPIC_ERRORS, "invalid_message_id", _STORED),
    ),
    Endpoint(
        method="GET", path=f"{_TOPIC}/holds", name="listHolds", tag="topics",
        summary="The retention holds of a topic", reply="HoldList",
        errors=(*_TOPIC_ERRORS, _STORED),
    ),
    Endpoint(
        method="PUT", path=f"{_TOPIC}/holds/{{name}}", name="setHold", tag="topics",
        summary="Keep messages from the topic's time to live for a while", body="HoldRequest",
        body_required=True, reply="Hold",
        errors=(*_TOPIC_ERRORS, "invalid_message_id", "too_many_holds", _STORED),
    ),
    Endpoint(
        method="DELETE", path=f"{_TOPIC}/holds/{{name}}", name="deleteHold", tag="topics",
        summary="End a retention hold", errors=(*_TOPIC_ERRORS, "hold_not_found", _STORED),
    ),
    Endpoint(
        method="GET", path=f"{_TOPIC}/positions", name="listPositions", tag="topics",
        summary="How far readers say to have read", reply="PositionList",
        errors=(*_TOPIC_ERRORS, _STORED),
    ),
    Endpoint(
        method="GET", path=f"{_TOPIC}/positions/{{name}}", name="getPosition", tag="topics",
        summary="How far one reader says to have read", reply="Position",
        errors=(*_TOPIC_ERRORS, "position_not_found", _STORED),
    ),
    Endpoint(
        method="PUT", path=f"{_TOPIC}/positions/{{name}}", name="setPosition", tag="topics",
        summary="Record how far a reader has read", body="PositionRequest", body_required=True,
        reply="Position",
        errors=(*_TOPIC_ERRORS, "invalid_message_id", "too_many_positions", _STORED),
    ),
    Endpoint(
        method="DELETE", path=f"{_TOPIC}/positions/{{name}}", name="deletePosition",
        tag="topics", summary="Forget how far a reader has read",
        errors=(*_TOPIC_ERRORS, "position_not_found", _STORED),
    ),
    Endpoint(
        method="POST", path=_TRANSACTIONS, name="startTransaction", tag="transactions",
        summary="Start a transaction", body="StartTransactionRequest",
        reply="Transaction", status=201, errors=("invalid_timeout", _DOWN),
    ),
    Endpoint(
        method="GET", path=_TRANSACTIONS, name="getOverview", tag="transactions",
        summary="Pointers and all transactions in progress", reply="Overview", errors=(_DOWN,),
    ),
    Endpoint(
        method="POST", path=f"{_TRANSACTIONS}/run", name="runTransaction", tag="transactions",
        summary="Publish to several topics in a transaction of its own", body="RunRequest",
        body_required=True, reply="CommitResponse", errors=(*_COMMIT_ERRORS, "empty_publish"),
    ),
    Endpoint(
        method="GET", path=f"{_TRANSACTIONS}/invalid", name="listInvalid", tag="transactions",
        summary="The invalid list, and what of it is prunable", reply="InvalidList",
        errors=(_DOWN,),
    ),
    Endpoint(
        method="POST", path=f"{_TRANSACTIONS}/invalid/truncate", name="truncateInvalid",
        tag="transactions", summary="Take pointers off the invalid list",
        body="TruncateInvalidRequest", body_required=True, reply="TruncateInvalidResponse",
        errors=("transactions_in_progress", _DOWN),
    ),
    Endpoint(
        method="POST", path=f"{_TRANSACTIONS}/snapshot", name="takeSnapshot", tag="transactions",
        summary="Write a snapshot file now", reply="SnapshotFile", errors=(_DOWN,),
    ),
    Endpoint(
        method="GET", path=f"{_TRANSACTIONS}/snapshot", name="getSnapshot", tag="transactions",
        summary="The newest state, for debugging", reply="SnapshotContent", errors=(_DOWN,),
    ),
    Endpoint(
        method="POST", path=f"{_TRANSACTIONS}/service/stop", name="stopService",
        tag="transactions", summary="Take the transaction service down", reply="ServiceResponse",
        errors=(_DOWN,),
    ),
    Endpoint(
        method="POST", path=f"{_TRANSACTIONS}/service/start", name="startService",
        tag="transactions", summary="Take the transaction service up again",
        reply="ServiceResponse", errors=(_DOWN,),
    ),
    Endpoint(
        method="GET", path=_ONE, name="getOutcome", tag="transactions",
        summary="What became of a transaction", reply="Outcome",
        errors=("transaction_unknown", _DOWN),
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/can-commit", name="canCommit", tag="transactions",
        summary="Check for conflicts early", body="CanCommitRequest", reply="StateResponse",
        errors=(*_ENDED, "transaction_conflict", "change_set_too_large", _DOWN),
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/commit", name="commit", tag="transactions",
        summary="Commit, and publish as one step", body="CommitRequest", reply="CommitResponse",
        errors=_COMMIT_ERRORS,
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/abort", name="abort", tag="transactions",
        summary="End without committing", reply="StateResponse",
        errors=("transaction_unknown", "transaction_committed", _DOWN),
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/invalidate", name="invalidate", tag="transactions",
        summary="End a transaction whose writes could not be undone", reply="StateResponse",
        errors=("transaction_unknown", "transaction_committed", "transaction_aborted", _DOWN),
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/checkpoint", name="checkpoint", tag="transactions",
        summary="A new write pointer inside the same transaction", reply="Transaction",
        errors=(*_ENDED, "transaction_conflict", _DOWN),
    ),
    Endpoint(
        method="POST", path=f"{_ONE}/renew", name="renew", tag="transactions",
        summary="Let the lease of a long transaction begin anew", reply="RenewResponse",
        errors=(*_ENDED, _DOWN),
    ),
    Endpoint(
        method="GET", path="/v1/sinks", name="listSinks", tag="sinks",
        summary="Every sink, with its newest epoch", reply="SinkList", errors=(_DOWN,),
    ),
    Endpoint(
        method="GET", path="/v1/sinks/{sink}", name="getSink", tag="sinks",
        summary="The newest epoch of a sink, and what became of it", reply="Sink",
        errors=(*_NAMED, "sink_not_found", _DOWN),
    ),
    Endpoint(
        method="DELETE", path="/v1/sinks/{sink}", name="forgetSink", tag="sinks",
        summary="Forget a sink and its epochs",
        errors=(*_NAMED, "sink_not_found", "sink_in_use", _DOWN),
    ),
    Endpoint(
        method="POST", path="/v1/sinks/{sink}/epochs/{epoch}", name="beginEpoch", tag="sinks",
        summary="The transaction of an epoch, or that it has committed", body="BeginEpochRequest",
        body_required=True, reply="Epoch",
        errors=(
            *_NAMED, "invalid_timeout", "transaction_timed_out", "transaction_invalidated",
            "transaction_aborted", "sink_epoch_superseded", "sink_epoch_open", "sink_fenced",
            "too_many_sinks", _DOWN,
        ),
    ),
    Endpoint(
        method="GET", path="/v1/backup", name="takeBackup", tag="data",
        summary="Everything that is stored, as it is at one moment", raw_types=BACKUP_TYPES,
        errors=(_STORED, _DOWN),
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
        summary="What works and what does not", reply="Readiness", unready_status=503,
    ),
    Endpoint(
        method="GET", path="/metrics", name="getMetrics", tag="process",
        summary="Prometheus text", raw_types=("text/plain",),
    ),
    Endpoint(
        method="GET", path="/openapi.json", name="getOpenApi", tag="process",
        summary="This document", reply="OpenApiDocument",
    ),
)  # fmt: skip
