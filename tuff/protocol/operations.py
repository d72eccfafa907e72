"""Every operation of the HTTP protocol, declared once (protocol §9).

A declaration says how HTTP and a session name the operation, which right it needs, what it changes,
which server of a cluster answers it, and its bodies and errors. The routes, the access check, the
audit, sessions, routing in a cluster, the OpenAPI document and the client read it from here.
"""

import re
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import NamedTuple

from tuff.protocol.media_types import MediaType


class Right(StrEnum):
    """What a principal may be allowed to do; `transact` has no topic."""

    CREATE = "create"
    PUBLISH = "publish"
    READ = "read"
    TRANSACT = "transact"
    ADMINISTER = "administer"


class Scope(Enum):
    """On what a principal needs the right."""

    OPEN = auto()  # on nothing: the operation needs no principal
    ANYWHERE = auto()  # on nothing, but only a principal may do it
    SOMEWHERE = auto()  # on any topic of the namespace of the path, or of any without a namespace
    TOPIC = auto()  # on the topic of the path
    NAMESPACE = auto()  # on every topic of the namespace of the path
    SERVER = auto()  # on every topic of every namespace
    CLUSTER = auto()  # on nothing: only servers of the cluster call the operation


class TopicsIn(Enum):
    """Where the body of an operation names topics."""

    PUBLISH = auto()  # the entries of `publish`, of a commit or a run
    MEMBER = auto()  # `topics` and `owned`, of a heartbeat
    OFFSETS = auto()  # the members of `offsets`
    WAIT = auto()  # the members of `topics`


class Access(NamedTuple):
    """One of `rights` is needed on `scope`; and `of_topics` on each topic that the body names, in
    the members that `topics_in` says.

    `deletes_messages`: the audit topic refuses it.
    """

    scope: Scope
    rights: tuple[Right, ...] = ()
    of_topics: Right | None = None
    topics_in: TopicsIn | None = None
    deletes_messages: bool = False


class Effect(Enum):
    """What is left of a call whose reply was lost, and so whether it can be sent again."""

    NONE = auto()  # it changes nothing
    TEMPORARY = auto()  # what it changed ends by itself; it can be sent again
    IDEMPOTENT = auto()  # sent twice it has the effect of once (protocol §1, Idempotence)
    ONCE = auto()  # sent twice it has a second effect, or is refused


class Server(Enum):
    """Which server of a cluster answers an operation."""

    ANY = auto()
    TOPIC_OWNER = auto()  # the owner of the topic of the path, or of the log of its consumer group
    LEADER = auto()  # the leader of transactions


_PARAMETER = re.compile(r"{(\w+)}")
_LEADER_TAGS = frozenset({"transactions", "sinks"})
_OWNER_TAGS = frozenset({"topics", "messages", "groups"})
_STORED, _STORED_UNKNOWN = "storage_unavailable", "storage_outcome_unknown"
_DOWN = "transactions_unavailable"
# A connection above `server.max_connections` is refused whatever it requests. Below that bound
# health and metrics are answered under any load, and while the server starts or stops.
_ALWAYS = (
    "bad_request", "internal", "overloaded", "quota_exceeded", "unauthenticated", "forbidden",
    "host_not_allowed", "cross_site_request",
)  # fmt: skip
_WHILE_CLOSED = ("shutting_down", "starting")
# While the component that answers it is down, or moves to another server of the cluster.
_OF_TAG = {
    "topics": (_STORED, "ownership_moving"),
    "groups": (_STORED, "ownership_moving"),
    "messages": (_STORED, "ownership_moving"),
    "transactions": (_DOWN, "ownership_moving"),
    "sinks": (_DOWN, "ownership_moving"),
    # A single server has no such address.
    "cluster": (_STORED, "ownership_moving", "not_found"),
}
_WITH_A_BODY = ("request_too_large", "unsupported_media_type")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operation:
    """One operation. A `{name}` in `path` is a parameter, which matches one whole segment.

    A generated client calls its methods by `name`, and its modules by `tag`. `number` names the
    operation in a session; None: only HTTP carries it. `creates_subject`: the topic or group of the
    path need not exist. `body` and `reply` name schemas; None is no body. `avro`: the body and the
    reply may be in Avro too; `arrow`: the reply may be in Arrow too. `raw_types`: the types of the
    reply beside JSON, or instead of it. `reply_is_optional`: a success may have no body. `errors`:
    the codes beyond those of all operations, and of all with the same tag. `unready_status`: the
    status of the same reply while something does not work.
    """

    name: str
    method: str
    path: str
    tag: str
    summary: str
    access: Access
    number: int | None = None
    effect: Effect = Effect.ONCE
    creates_subject: bool = False
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
    parameters: tuple[str, ...] = field(init=False)  # the names in the path, in their order

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", tuple(_PARAMETER.findall(self.path)))
        if self.method == "GET":
            object.__setattr__(self, "effect", Effect.NONE)

    def __str__(self) -> str:
        """Method and path, as in the metrics."""
        return f"{self.method} {self.path}"

    @property
    def waits(self) -> bool:
        """Whether a caller can let it wait for something to happen."""
        return "wait" in self.query

    @property
    def leaves_doubt(self) -> bool:
        """Whether something may have changed for good when no reply came."""
        return self.effect in (Effect.IDEMPOTENT, Effect.ONCE)

    @property
    def answered_by(self) -> Server:
        """The server of a cluster that answers it."""
        if self.tag in _LEADER_TAGS:
            return Server.LEADER
        is_about_one = "t" in self.parameters or "g" in self.parameters
        return Server.TOPIC_OWNER if self.tag in _OWNER_TAGS and is_about_one else Server.ANY

    @property
    def codes(self) -> list[str]:
        """The codes of all errors with which it may be answered, sorted."""
        codes = {*self.errors, *_ALWAYS, *_OF_TAG.get(self.tag, ())}
        if self.tag != "process":
            codes.update(_WHILE_CLOSED)
        if self.body is not None:
            codes.update(_WITH_A_BODY)
        if _STORED in codes and self.leaves_doubt:
            codes.add(_STORED_UNKNOWN)
        return sorted(codes)


_OPEN = Access(Scope.OPEN)
_PRINCIPAL = Access(Scope.ANYWHERE)
_CREATE = Access(Scope.TOPIC, (Right.CREATE,))
_PUBLISH = Access(Scope.TOPIC, (Right.PUBLISH,))
_READ = Access(Scope.TOPIC, (Right.READ,))
_READ_SOME = Access(Scope.SOMEWHERE, (Right.READ,))
_TRANSACT = Access(Scope.SOMEWHERE, (Right.TRANSACT,))
_COMMIT = _TRANSACT._replace(of_topics=Right.PUBLISH, topics_in=TopicsIn.PUBLISH)
_ADMINISTER = Access(Scope.SERVER, (Right.ADMINISTER,))
_ADMINISTER_TOPIC = Access(Scope.TOPIC, (Right.ADMINISTER,))
_DELETE_MESSAGES = _ADMINISTER_TOPIC._replace(deletes_messages=True)
_ADMINISTER_NAMESPACE = Access(Scope.NAMESPACE, (Right.ADMINISTER,))
# Producers and readers need the partitions of a topic.
_SHOW = Access(Scope.TOPIC, (Right.READ, Right.PUBLISH, Right.CREATE, Right.ADMINISTER))
# A list has names of topics that the principal may not read.
_LIST_ALL = Access(Scope.SERVER, (Right.READ, Right.ADMINISTER))
_LIST_NAMESPACE = Access(Scope.NAMESPACE, (Right.READ, Right.ADMINISTER))
_OF_SERVERS = Access(Scope.CLUSTER)

_TOPICS_PATH = "/v1/namespaces/{ns}/topics"
TOPIC_PATH = f"{_TOPICS_PATH}/{{t}}"
_SHARE_GROUPS_PATH = f"{TOPIC_PATH}/share-groups"
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
_PREFERENCES_ERRORS = ("invalid_name", "group_not_found", "damaged_record")
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
# A backup's own media type, and the general one for bytes.
BACKUP_TYPES = ("application/vnd.tuff.backup", "application/octet-stream")

# fmt: off
LIST_NAMESPACES = Operation(
    name="listNamespaces", method="GET", path="/v1/namespaces", tag="topics",
    summary="Every namespace that has a topic",
    access=_LIST_ALL,
    reply="Names",
)
LIST_TOPIC_SUMMARIES = Operation(
    name="listTopicSummaries", method="GET", path="/v1/topics", tag="topics",
    summary="Size and age of the topics of all namespaces",
    access=_LIST_ALL,
    reply="TopicSummaryList", query=("namespace", "contains", "after", "limit"), errors=_NAMED,
)
LIST_TOPICS = Operation(
    name="listTopics", method="GET", path=_TOPICS_PATH, tag="topics",
    summary="The topics of a namespace",
    access=_LIST_NAMESPACE,
    reply="Names", errors=_NAMED,
)
CREATE_TOPIC = Operation(
    name="createTopic", method="PUT", path=TOPIC_PATH, tag="topics",
    summary="Create a topic, or the next generation of a deleted one",
    access=_CREATE, creates_subject=True,
    body="TopicPropertiesInput",
    errors=(*_NAMED, "topic_already_exists", "invalid_topic_properties"),
)
GET_TOPIC = Operation(
    name="getTopic", method="GET", path=TOPIC_PATH, tag="topics",
    summary="Properties and generation of a topic",
    access=_SHOW,
    reply="Topic", errors=_TOPIC_ERRORS,
)
DELETE_TOPIC = Operation(
    name="deleteTopic", method="DELETE", path=TOPIC_PATH, tag="topics",
    summary="Delete a topic with its messages",
    access=_DELETE_MESSAGES,
    errors=_TOPIC_ERRORS,
)
UPDATE_TOPIC = Operation(
    name="updateTopic", method="PUT", path=f"{TOPIC_PATH}/properties", tag="topics",
    summary="Replace all properties of a topic",
    access=_CREATE,
    body="TopicPropertiesInput", errors=(*_TOPIC_ERRORS, "invalid_topic_properties"),
)
CHANGE_TOPIC = Operation(
    name="changeTopic", method="PATCH", path=f"{TOPIC_PATH}/properties", tag="topics",
    summary="Change the properties of a topic that are named",
    access=_CREATE, effect=Effect.IDEMPOTENT, query=("dryRun",),
    body="TopicPropertiesChange", reply="ChangedTopic",
    errors=(*_TOPIC_ERRORS, "invalid_topic_properties"),
)
TRUNCATE_TOPIC = Operation(
    name="truncateTopic", method="POST", path=f"{TOPIC_PATH}/truncate", tag="topics",
    summary="Remove all messages before an offset, permanently",
    access=_DELETE_MESSAGES, effect=Effect.IDEMPOTENT,
    body="TruncateTopicRequest", reply="TruncateTopicResponse",
    errors=(*_TOPIC_ERRORS, "invalid_message_id", "topic_held"),
)
PUBLISH = Operation(
    name="publish", method="POST", path=f"{TOPIC_PATH}/publish", tag="messages",
    summary="Publish messages, or under a transaction the reference to stored ones",
    number=1, access=_PUBLISH,
    body="PublishRequest", reply="PublishResponse", avro=True, reply_is_optional=True,
    query=("ttl", "ack", "delay", "at", "requestId", "age"),
    headers=(*_WRITTEN_HEADERS, *_DELAYED_HEADERS, "Tuff-Ack", "Tuff-Repeated"),
    errors=(
        *_WRITE_ERRORS, "empty_publish", "not_acceptable", "request_forgotten", "request_id_reused",
    ),
)
STORE = Operation(
    name="store", method="POST", path=f"{TOPIC_PATH}/store", tag="messages",
    summary="Store messages for a later publish of the same transaction",
    number=2, access=_PUBLISH,
    body="PublishRequest", avro=True, query=("ttl",), errors=_WRITE_ERRORS,
)
ROLLBACK = Operation(
    name="rollback", method="POST", path=f"{TOPIC_PATH}/rollback", tag="messages",
    summary="Hide one transactional publish from transactional readers",
    number=3, access=_PUBLISH, effect=Effect.IDEMPOTENT,
    body="RollbackRequest", avro=True, errors=(*_TOPIC_ERRORS, "transaction_committed", _DOWN),
)
POLL = Operation(
    name="poll", method="POST", path=f"{TOPIC_PATH}/poll", tag="messages",
    summary="Read messages from an offset on",
    number=4, access=_READ, effect=Effect.NONE,
    body="ConsumeRequest", reply="MessageList", avro=True, arrow=True, query=_READ_QUERY,
    headers=_READ_HEADERS, errors=_POLL_ERRORS,
)
WAIT_FOR_PARTITIONS = Operation(
    name="waitForPartitions", method="POST", path=f"{TOPIC_PATH}/wait", tag="messages",
    summary="Wait until one of several partitions has messages",
    number=5, access=_READ, effect=Effect.NONE,
    body="WaitRequest", reply="ReadablePartitions", query=("isolation", "tags", "wait", "added"),
    errors=(*_TOPIC_ERRORS, "invalid_message_id", _DOWN, _ARCHIVE_ERROR),
)
WAIT_FOR_TOPICS = Operation(
    name="waitForTopics", method="POST", path="/v1/namespaces/{ns}/wait", tag="messages",
    summary="Wait until a partition of one of several topics has messages",
    number=6, access=_READ_SOME._replace(of_topics=Right.READ, topics_in=TopicsIn.WAIT),
    effect=Effect.NONE,
    body="TopicsWaitRequest", reply="ReadableTopics", raw_types=(MediaType.AVRO.value,),
    query=("isolation", "wait", "limit"), headers=("Tuff-Partition", *_READ_HEADERS),
    errors=(*_NAMED, "invalid_message_id", "not_acceptable", _DOWN, _ARCHIVE_ERROR),
)
BROWSE = Operation(
    name="browse", method="GET", path=f"{TOPIC_PATH}/messages", tag="messages",
    summary="Read messages, with the parameters in the query",
    access=_READ,
    reply="MessageList", arrow=True, query=("from", "inclusive", "limit", *_READ_QUERY),
    headers=_READ_HEADERS, errors=_POLL_ERRORS,
)
EXPLAIN = Operation(
    name="explain", method="GET", path=f"{TOPIC_PATH}/messages/{{message}}/explain",
    tag="messages",
    summary="Why a reader by isolation or transaction does or does not receive a message",
    access=_READ,
    reply="Explanation", query=("isolation", "tx"),
    errors=(*_VIEW_ERRORS, "damaged_record", _ARCHIVE_ERROR),
)
EXPLAIN_IN_SNAPSHOT = Operation(
    name="explainInSnapshot", method="POST", path=f"{TOPIC_PATH}/messages/{{message}}/explain",
    tag="messages",
    summary="The same for a reader in a given snapshot",
    access=_READ, effect=Effect.NONE,
    body="ExplainRequest", reply="Explanation",
    errors=(*_VIEW_ERRORS, "damaged_record", _ARCHIVE_ERROR),
)
LIST_ROWS = Operation(
    name="listRows", method="GET", path=f"{TOPIC_PATH}/rows", tag="messages",
    summary="The rows of a topic, with the state of each",
    access=_READ,
    reply="RowList", query=("from", "limit", "order"), errors=(*_LOG_ERRORS, "invalid_message_id"),
)
GET_TOPIC_OVERVIEW = Operation(
    name="getTopicOverview", method="GET", path=f"{TOPIC_PATH}/overview", tag="topics",
    summary="A topic with its partitions and the consumer groups that read it",
    access=_READ,
    reply="TopicOverview", errors=_TOPIC_ERRORS,
)
GET_OFFSETS = Operation(
    name="getOffsets", method="GET", path=f"{TOPIC_PATH}/offsets", tag="messages",
    summary="The offsets of the first message and of the last one that a reader can receive",
    access=_READ,
    reply="Offsets", query=("isolation", "tx", "archive"), errors=(*_VIEW_ERRORS, _ARCHIVE_ERROR),
)
COUNT_MESSAGES = Operation(
    name="countMessages", method="GET", path=f"{TOPIC_PATH}/count", tag="messages",
    summary="How many messages a topic has, or how many are behind an id",
    access=_READ,
    reply="MessageCount", query=("after",), errors=(*_VIEW_ERRORS, "invalid_message_id"),
)
GET_TOPIC_SPACE = Operation(
    name="getTopicSpace", method="GET", path=f"{TOPIC_PATH}/space", tag="topics",
    summary="The bytes of a topic that are live, and those that its files take",
    access=_SHOW,
    reply="TopicSpace", errors=_TOPIC_ERRORS,
)
GET_SPLITS = Operation(
    name="getSplits", method="GET", path=f"{TOPIC_PATH}/splits", tag="messages",
    summary="Split a range into parts of about equal size, for parallel readers",
    access=_READ,
    reply="SplitList", query=("start", "end", "n"),
    errors=(*_LOG_ERRORS, "invalid_message_id", _ARCHIVE_ERROR),
)
LIST_HOLDS = Operation(
    name="listHolds", method="GET", path=f"{TOPIC_PATH}/holds", tag="topics",
    summary="The retention holds of a topic",
    access=_READ,
    reply="HoldList", errors=_LOG_ERRORS,
)
SET_HOLD = Operation(
    name="setHold", method="PUT", path=f"{TOPIC_PATH}/holds/{{name}}", tag="topics",
    summary="Set a retention hold: keep messages beyond the topic's time to live",
    access=_ADMINISTER_TOPIC, effect=Effect.IDEMPOTENT,
    body="HoldRequest", reply="Hold", errors=(*_LOG_ERRORS, "invalid_message_id", "too_many_holds"),
)
DELETE_HOLD = Operation(
    name="deleteHold", method="DELETE", path=f"{TOPIC_PATH}/holds/{{name}}", tag="topics",
    summary="End a retention hold",
    access=_ADMINISTER_TOPIC,
    errors=(*_LOG_ERRORS, "hold_not_found"),
)
LIST_POSITIONS = Operation(
    name="listPositions", method="GET", path=f"{TOPIC_PATH}/positions", tag="topics",
    summary="The named positions of a topic",
    access=_READ,
    reply="PositionList", errors=_LOG_ERRORS,
)
GET_POSITION = Operation(
    name="getPosition", method="GET", path=f"{TOPIC_PATH}/positions/{{name}}", tag="topics",
    summary="One named position",
    access=_READ,
    reply="Position", errors=(*_LOG_ERRORS, "position_not_found"),
)
SET_POSITION = Operation(
    name="setPosition", method="PUT", path=f"{TOPIC_PATH}/positions/{{name}}", tag="topics",
    summary="Record a named position",
    access=_READ, effect=Effect.IDEMPOTENT,
    body="PositionRequest", reply="Position",
    errors=(*_LOG_ERRORS, "invalid_message_id", "future_position", "too_many_positions"),
)
DELETE_POSITION = Operation(
    name="deletePosition", method="DELETE", path=f"{TOPIC_PATH}/positions/{{name}}", tag="topics",
    summary="Delete a named position",
    access=_READ,
    errors=(*_LOG_ERRORS, "position_not_found"),
)
LIST_DELAYED = Operation(
    name="listDelayed", method="GET", path=f"{TOPIC_PATH}/delayed", tag="messages",
    summary="The messages that are not due yet",
    access=_PUBLISH,
    reply="DelayedList", query=("limit", "after", "payloads"),
    errors=(*_LOG_ERRORS, "invalid_message_id", "damaged_record"),
)
CANCEL_DELAYED = Operation(
    name="cancelDelayed", method="DELETE", path=f"{TOPIC_PATH}/delayed/{{id}}", tag="messages",
    summary="Cancel a message that is not due yet",
    access=_PUBLISH,
    errors=(*_LOG_ERRORS, "invalid_message_id", "delayed_not_found"),
)
LIST_SHARE_GROUPS = Operation(
    name="listShareGroups", method="GET", path=_SHARE_GROUPS_PATH, tag="groups",
    summary="The share groups of a topic",
    access=_READ,
    reply="Names", errors=_LOG_ERRORS,
)
CREATE_SHARE_GROUP = Operation(
    name="createShareGroup", method="PUT", path=_SHARE_GROUP_PATH, tag="groups",
    summary="Create a share group, which leases single messages to workers",
    access=_READ, effect=Effect.IDEMPOTENT,
    body="ShareGroupRequest",
    errors=(*_LOG_ERRORS, "invalid_message_id", "future_position", "group_already_exists",
        "too_many_groups", "damaged_record"),
)
GET_SHARE_GROUP = Operation(
    name="getShareGroup", method="GET", path=_SHARE_GROUP_PATH, tag="groups",
    summary="Properties, counts and lag of a share group",
    access=_READ,
    reply="ShareGroup", errors=_SHARE_ERRORS,
)
DELETE_SHARE_GROUP = Operation(
    name="deleteShareGroup", method="DELETE", path=_SHARE_GROUP_PATH, tag="groups",
    summary="Delete a share group with what it has acknowledged",
    access=_ADMINISTER_TOPIC,
    errors=_SHARE_ERRORS,
)
LEASE_MESSAGES = Operation(
    name="leaseMessages", method="POST", path=f"{_SHARE_GROUP_PATH}/lease", tag="groups",
    summary="Take messages, and have them until a lease ends", number=11,
    access=_READ, effect=Effect.TEMPORARY,
    body="LeaseRequest", reply="LeaseResponse", query=("wait",), errors=_SHARE_ERRORS,
)
ACKNOWLEDGE_MESSAGES = Operation(
    name="acknowledgeMessages", method="POST", path=f"{_SHARE_GROUP_PATH}/acknowledge",
    tag="groups",
    summary="Accept, reject, release or renew leased messages", number=12,
    access=_READ, effect=Effect.IDEMPOTENT,
    body="AcknowledgeRequest", reply="AcknowledgeResponse",
    errors=(*_SHARE_ERRORS, *_ENDED, _IS_PREPARED, "transaction_conflict", "invalid_message_id",
        "lease_lost"),
)
LIST_GROUPS = Operation(
    name="listGroups", method="GET", path=_GROUPS_PATH, tag="groups",
    summary="The consumer groups of a namespace",
    access=_READ_SOME,
    reply="Names", errors=("invalid_name",),
)
GET_GROUP = Operation(
    name="getGroup", method="GET", path=_GROUP_PATH, tag="groups",
    summary="Members, assignment and lag of a consumer group",
    access=_READ_SOME,
    reply="Group", errors=_GROUP_ERRORS,
)
DELETE_GROUP = Operation(
    name="deleteGroup", method="DELETE", path=_GROUP_PATH, tag="groups",
    summary="Delete a consumer group without members, with its offsets",
    access=_ADMINISTER_NAMESPACE,
    errors=(*_GROUP_ERRORS, "group_not_empty"),
)
GET_GROUP_PREFERENCES = Operation(
    name="getGroupPreferences", method="GET", path=f"{_GROUP_PATH}/preferences", tag="groups",
    summary="How the members of a consumer group consume",
    access=_READ_SOME,
    reply="GroupPreferences", errors=_PREFERENCES_ERRORS,
)
SET_GROUP_PREFERENCES = Operation(
    name="setGroupPreferences", method="PUT", path=f"{_GROUP_PATH}/preferences", tag="groups",
    summary="Replace all preferences of a consumer group, and create it if there is none",
    access=_ADMINISTER_NAMESPACE, effect=Effect.IDEMPOTENT, creates_subject=True,
    body="GroupPreferencesInput", reply="GroupPreferences",
    errors=(*_PREFERENCES_ERRORS, "too_many_groups"),
)
UPDATE_GROUP_PREFERENCES = Operation(
    name="updateGroupPreferences", method="PATCH", path=f"{_GROUP_PATH}/preferences", tag="groups",
    summary="Change the preferences that are named, and create the group if there is none",
    access=_ADMINISTER_NAMESPACE, effect=Effect.IDEMPOTENT, creates_subject=True,
    body="GroupPreferencesInput", reply="GroupPreferences",
    errors=(*_PREFERENCES_ERRORS, "too_many_groups"),
)
HEARTBEAT = Operation(
    name="heartbeat", method="POST", path=f"{_GROUP_PATH}/heartbeat", tag="groups",
    summary="Join a consumer group, stay in it, or leave it", number=8,
    access=_READ_SOME._replace(of_topics=Right.READ, topics_in=TopicsIn.MEMBER),
    effect=Effect.IDEMPOTENT, creates_subject=True,
    body="HeartbeatRequest", reply="HeartbeatResponse",
    errors=(*_MEMBER_ERRORS, "fenced_member_epoch", "unreleased_instance_id",
        "too_many_members", "too_many_groups"),
)
COMMIT_OFFSETS = Operation(
    name="commitOffsets", method="POST", path=f"{_GROUP_PATH}/offsets", tag="groups",
    summary="Commit offsets, by themselves or within a transaction", number=9,
    access=_READ_SOME._replace(of_topics=Right.READ, topics_in=TopicsIn.OFFSETS),
    effect=Effect.IDEMPOTENT,
    body="CommitOffsetsRequest",
    errors=(*_MEMBER_ERRORS, *_ENDED, "transaction_conflict", "invalid_message_id",
        "stale_member_epoch", "partition_not_assigned"),
)
GET_COMMITTED_OFFSETS = Operation(
    name="getCommittedOffsets", method="GET", path=f"{_GROUP_PATH}/offsets", tag="groups",
    summary="The committed offsets of a consumer group", number=10,
    access=_READ_SOME,
    reply="CommittedOffsetList", errors=_GROUP_ERRORS,
)
RESET_OFFSETS = Operation(
    name="resetOffsets", method="POST", path=f"{_GROUP_PATH}/offsets/reset", tag="groups",
    summary="Set or forget offsets of partitions that no member has",
    access=_ADMINISTER_NAMESPACE, effect=Effect.IDEMPOTENT,
    body="ResetOffsetsRequest",
    errors=(*_GROUP_ERRORS, "invalid_message_id", "future_position", "group_not_empty"),
)
START_TRANSACTION = Operation(
    name="startTransaction", method="POST", path=_TX_PATH, tag="transactions",
    summary="Start a transaction",
    number=16, access=_TRANSACT,
    body="StartTransactionRequest", reply="Transaction", status=201,
    errors=("invalid_timeout", "start_withdrawn"),
)
GET_OVERVIEW = Operation(
    name="getOverview", method="GET", path=_TX_PATH, tag="transactions",
    summary="Pointers and all transactions in progress",
    access=_ADMINISTER,
    reply="Overview",
)
RUN_TRANSACTION = Operation(
    name="runTransaction", method="POST", path=f"{_TX_PATH}/run", tag="transactions",
    summary="Publish to several topics in a transaction of its own",
    number=19, access=_COMMIT, effect=Effect.IDEMPOTENT,
    body="RunRequest", reply="CommitResponse", errors=(*_COMMIT_ERRORS, "empty_publish"),
)
WITHDRAW_START = Operation(
    name="withdrawStart", method="POST", path=f"{_TX_PATH}/withdraw", tag="transactions",
    summary="Abort what a start began, or let it begin nothing",
    access=_TRANSACT, effect=Effect.IDEMPOTENT,
    body="WithdrawRequest", reply="WithdrawResponse", errors=(_IS_PREPARED,),
)
LIST_PREPARED = Operation(
    name="listPrepared", method="GET", path=f"{_TX_PATH}/prepared", tag="transactions",
    summary="The prepared transactions",
    access=_TRANSACT,
    reply="PreparedList", errors=_NAMED, query=("database",),
)
LIST_INVALID = Operation(
    name="listInvalid", method="GET", path=f"{_TX_PATH}/invalid", tag="transactions",
    summary="The invalid list, and which of its pointers can be pruned",
    access=_ADMINISTER,
    reply="InvalidList",
)
TRUNCATE_INVALID = Operation(
    name="truncateInvalid", method="POST", path=f"{_TX_PATH}/invalid/truncate", tag="transactions",
    summary="Take pointers off the invalid list",
    access=_ADMINISTER,
    body="TruncateInvalidRequest", reply="TruncateInvalidResponse",
    errors=("transactions_in_progress",),
)
TAKE_SNAPSHOT = Operation(
    name="takeSnapshot", method="POST", path=f"{_TX_PATH}/snapshot", tag="transactions",
    summary="Write a snapshot file now",
    access=_ADMINISTER, effect=Effect.IDEMPOTENT,
    reply="SnapshotFile",
)
GET_SNAPSHOT = Operation(
    name="getSnapshot", method="GET", path=f"{_TX_PATH}/snapshot", tag="transactions",
    summary="The newest state, for debugging",
    access=_ADMINISTER,
    reply="SnapshotContent",
)
LIST_SNAPSHOT_FILES = Operation(
    name="listSnapshotFiles", method="GET", path=f"{_TX_PATH}/snapshots", tag="transactions",
    summary="The snapshot files, also while transactions are down",
    access=_ADMINISTER,
    reply="SnapshotFileList",
)
GET_SNAPSHOT_FILE = Operation(
    name="getSnapshotFile", method="GET", path=f"{_TX_PATH}/snapshots/{{file}}", tag="transactions",
    summary="Pointers and lists of a snapshot file",
    access=_ADMINISTER,
    reply="SnapshotFileContent", errors=("not_found",),
)
STOP_SERVICE = Operation(
    name="stopService", method="POST", path=f"{_TX_PATH}/service/stop", tag="transactions",
    summary="Stop the transaction service",
    access=_ADMINISTER,
    reply="ServiceResponse",
)
START_SERVICE = Operation(
    name="startService", method="POST", path=f"{_TX_PATH}/service/start", tag="transactions",
    summary="Start the transaction service again",
    access=_ADMINISTER,
    reply="ServiceResponse",
)
GET_OUTCOME = Operation(
    name="getOutcome", method="GET", path=_TX_ID_PATH, tag="transactions",
    summary="The outcome of a transaction",
    number=24, access=_TRANSACT,
    reply="Outcome", errors=("transaction_unknown",),
)
GET_CHANGES = Operation(
    name="getChanges", method="GET", path=f"{_TX_ID_PATH}/changes", tag="transactions",
    summary="The changes that a transaction in progress has named",
    access=_ADMINISTER,
    reply="ChangeList", errors=_ENDED,
)
CAN_COMMIT = Operation(
    name="canCommit", method="POST", path=f"{_TX_ID_PATH}/can-commit", tag="transactions",
    summary="Check for conflicts early",
    number=17, access=_TRANSACT, effect=Effect.IDEMPOTENT,
    body="CanCommitRequest", reply="StateResponse",
    errors=(*_ENDED, _IS_PREPARED, "transaction_conflict", "change_set_too_large"),
)
COMMIT = Operation(
    name="commit", method="POST", path=f"{_TX_ID_PATH}/commit", tag="transactions",
    summary="Commit, and publish as one step",
    number=18, access=_COMMIT, effect=Effect.IDEMPOTENT,
    body="CommitRequest", reply="CommitResponse", errors=(*_COMMIT_ERRORS, "invalid_timeout"),
)
PREPARE = Operation(
    name="prepare", method="POST", path=f"{_TX_ID_PATH}/prepare", tag="transactions",
    summary="Check and publish as a commit does, and let a database decide",
    number=25, access=_COMMIT, effect=Effect.IDEMPOTENT,
    body="PrepareRequest", reply="PrepareResponse", errors=(*_COMMIT_ERRORS, "too_many_prepared"),
)
RESOLVE = Operation(
    name="resolve", method="POST", path=f"{_TX_ID_PATH}/resolve", tag="transactions",
    summary="End a prepared transaction as its database did",
    number=26, access=_TRANSACT, effect=Effect.IDEMPOTENT,
    body="ResolveRequest", reply="ResolveResponse", errors=(*_ENDED, "transaction_not_prepared"),
)
ABORT = Operation(
    name="abort", method="POST", path=f"{_TX_ID_PATH}/abort", tag="transactions",
    summary="End without committing",
    number=20, access=_TRANSACT, effect=Effect.IDEMPOTENT,
    reply="StateResponse", errors=("transaction_unknown", "transaction_committed", _IS_PREPARED),
)
INVALIDATE = Operation(
    name="invalidate", method="POST", path=f"{_TX_ID_PATH}/invalidate", tag="transactions",
    summary="End a transaction whose writes could not be undone",
    number=21, access=_TRANSACT, effect=Effect.IDEMPOTENT,
    reply="StateResponse",
    errors=( "transaction_unknown", "transaction_committed", "transaction_aborted", _IS_PREPARED, ),
)
CHECKPOINT = Operation(
    name="checkpoint", method="POST", path=f"{_TX_ID_PATH}/checkpoint", tag="transactions",
    summary="A new write pointer inside the same transaction",
    number=22, access=_TRANSACT, effect=Effect.IDEMPOTENT,
    reply="Transaction", errors=(*_ENDED, _IS_PREPARED, "transaction_conflict"),
)
RENEW = Operation(
    name="renew", method="POST", path=f"{_TX_ID_PATH}/renew", tag="transactions",
    summary="Renew the lease of a long transaction",
    number=23, access=_TRANSACT, effect=Effect.IDEMPOTENT,
    reply="RenewResponse", errors=(*_ENDED, _IS_PREPARED),
)
JOIN = Operation(
    name="join", method="POST", path=f"{_TX_ID_PATH}/join", tag="transactions",
    summary="Let another store than the messages take part",
    access=_TRANSACT, effect=Effect.IDEMPOTENT,
    reply="JoinResponse", errors=(*_ENDED, _IS_PREPARED, "transaction_conflict"),
)
LIST_SINKS = Operation(
    name="listSinks", method="GET", path="/v1/sinks", tag="sinks",
    summary="Every sink, with its newest epoch",
    access=_TRANSACT,
    reply="SinkList",
)
GET_SINK = Operation(
    name="getSink", method="GET", path="/v1/sinks/{sink}", tag="sinks",
    summary="The newest epoch of a sink, and its state",
    access=_TRANSACT,
    reply="Sink", errors=(*_NAMED, "sink_not_found"),
)
FORGET_SINK = Operation(
    name="forgetSink", method="DELETE", path="/v1/sinks/{sink}", tag="sinks",
    summary="Forget a sink and its epochs",
    access=_ADMINISTER,
    errors=(*_NAMED, "sink_not_found", "sink_in_use"),
)
BEGIN_EPOCH = Operation(
    name="beginEpoch", method="POST", path="/v1/sinks/{sink}/epochs/{epoch}", tag="sinks",
    summary="The transaction of an epoch, or that it has committed",
    access=_TRANSACT, effect=Effect.IDEMPOTENT,
    body="BeginEpochRequest", reply="Epoch",
    errors=(*_NAMED, "invalid_timeout", "transaction_timed_out", "transaction_invalidated",
        "transaction_aborted", "sink_epoch_superseded", "sink_epoch_open", "sink_fenced",
        "too_many_sinks"),
)
GET_CLUSTER = Operation(
    name="getCluster", method="GET", path=_CLUSTER_PATH, tag="cluster",
    summary="In a cluster: its servers, and the leader of transactions",
    access=_ADMINISTER,
    reply="Cluster",
)
LIST_OWNERS = Operation(
    name="listOwners", method="GET", path=f"{_CLUSTER_PATH}/topics", tag="cluster",
    summary="In a cluster: the owner of each topic",
    access=_ADMINISTER,
    reply="TopicOwnerList", query=("server", "limit", "after"), errors=_NAMED,
)
MOVE_TOPIC = Operation(
    name="moveTopic", method="POST", path=f"{_CLUSTER_PATH}/topics/{{ns}}/{{t}}/move",
    tag="cluster",
    summary="In a cluster: move a topic to another server",
    access=_ADMINISTER_TOPIC,
    body="ServerRequest", reply="MoveResponse",
    errors=(*_TOPIC_ERRORS, "server_not_found", "topic_not_movable"),
)
DRAIN_SERVER = Operation(
    name="drainServer", method="POST", path=f"{_CLUSTER_PATH}/drain", tag="cluster",
    summary="In a cluster: give all topics of a server to the others",
    access=_ADMINISTER, effect=Effect.IDEMPOTENT,
    body="ServerRequest", reply="DrainResponse", query=("wait",),
    errors=("server_not_found", "topic_not_movable"),
)
UNDRAIN_SERVER = Operation(
    name="undrainServer", method="POST", path=f"{_CLUSTER_PATH}/undrain", tag="cluster",
    summary="In a cluster: let a drained server take topics again",
    access=_ADMINISTER, effect=Effect.IDEMPOTENT,
    body="ServerRequest", reply="DrainResponse", errors=("server_not_found",),
)
GET_SETTINGS = Operation(
    name="getSettings", method="GET", path="/v1/settings", tag="process",
    summary="The settings, with the source of each",
    access=_ADMINISTER,
    reply="SettingList",
)
TAKE_BACKUP = Operation(
    name="takeBackup", method="GET", path="/v1/backup", tag="data",
    summary="A backup of everything that is stored, as of one moment",
    access=_ADMINISTER,
    raw_types=BACKUP_TYPES, errors=(_STORED, _DOWN),
)
SHOW_DISK = Operation(
    name="showDisk", method="GET", path="/v1/disk", tag="data",
    summary="Free space, reserve and spare file of each disk, and what the store takes",
    access=_ADMINISTER,
    reply="DiskUse", errors=(_STORED,),
)
RECLAIM_SPACE = Operation(
    name="reclaimSpace", method="POST", path="/v1/disk/reclaim", tag="data",
    summary="Delete what has expired, and free the space of all that was deleted",
    access=_ADMINISTER, effect=Effect.IDEMPOTENT,
    reply="Reclaimed", errors=(_STORED,),
)
BEGIN_SESSION = Operation(
    name="beginSession", method="GET", path="/v1/session", tag="session",
    summary="Begin a session: many calls over this connection",
    access=_PRINCIPAL,
    status=101, errors=("upgrade_required",),
)
CHECK_LIVE = Operation(
    name="checkLive", method="GET", path="/health/live", tag="process",
    summary="Whether the process runs",
    access=_OPEN,
    reply="Health",
)
CHECK_STARTUP = Operation(
    name="checkStartup", method="GET", path="/health/startup", tag="process",
    summary="Whether recovery is done",
    access=_OPEN,
    reply="Health", unready_status=503,
)
CHECK_READY = Operation(
    name="checkReady", method="GET", path="/health/ready", tag="process",
    summary="The state of each component, with reasons",
    access=_OPEN,
    reply="Readiness", unready_status=503,
)
GET_METRICS = Operation(
    name="getMetrics", method="GET", path="/metrics", tag="process",
    summary="Prometheus text, or OpenMetrics where Accept names it",
    access=_ADMINISTER,
    raw_types=("text/plain", "application/openmetrics-text"),
)
GET_OPENAPI = Operation(
    name="getOpenApi", method="GET", path="/openapi.json", tag="process",
    summary="This document",
    access=_OPEN,
    reply="OpenApiDocument",
)
GET_CONSOLE = Operation(
    name="getConsole", method="GET", path="/console", tag="process",
    summary="The web console",
    access=_OPEN,
    raw_types=("text/html",),
)
GET_CONSOLE_REDIRECT = Operation(
    name="getConsoleRedirect", method="GET", path="/console/", tag="process",
    summary="Redirects to /console",
    access=_OPEN,
    status=308,
)
GET_CONSOLE_FILE = Operation(
    name="getConsoleFile", method="GET", path="/console/{version}/{file}", tag="process",
    summary="A file of the web console",
    access=_OPEN,
    raw_types=("text/css", "text/javascript", "image/svg+xml"), errors=("not_found",),
)
# fmt: on

# In the order of their declarations.
OPERATIONS = tuple(each for each in [*globals().values()] if isinstance(each, Operation))

# Of a session.
BY_NUMBER = {each.number: each for each in OPERATIONS if each.number is not None}


def call_between_servers(name: str) -> Operation:
    """A call that only servers of a cluster make, and no client (decision 0042)."""
    path = f"{_CLUSTER_PATH}/{name}"
    return Operation(
        name=name, method="POST", path=path, tag="cluster", summary="", access=_OF_SERVERS
    )
