"""The results of the client's calls, as frozen values (protocol §2, §3, §5.2, §5.3).

Their fields say what their JSON is (`tuff.protocol.json_objects`), in replies and with `--json`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, overload

from tuff.protocol.ids import MessageId, PartitionId, TopicId
from tuff.protocol.requests import Message, RollbackDetail
from tuff.protocol.transaction import (
    InvalidReason,
    Transaction,
    TransactionState,
    TransactionStatus,
    TransactionType,
)
from tuff.protocol.values import (
    Headers,
    Member,
    OpenStrEnum,
    Pointer,
    TopicNames,
    frozen_value,
)

if TYPE_CHECKING:
    # Type checkers know this module, installed or not. A `Poll` is one of plain messages.
    from typing_extensions import TypeVar

    M = TypeVar("M", default=Message)
else:
    from typing import TypeVar

    M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic; `generation` is one higher after each re-creation. `partitions` are the numbers of
    those that take messages, and `retired` of those that can only be read."""

    topic: Annotated[TopicId, Member(""), TopicNames("name")]
    generation: int
    properties: Mapping[str, str]
    partitions: tuple[int, ...] = (0,)
    retired: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCount:
    """How many messages there are, or at least are if `is_lower_bound`. `oldest_ms`: the publish
    time of the oldest, and `oldest_age_ms` its age by the clock of the server; None without any."""

    count: int
    is_lower_bound: bool
    oldest_ms: int | None
    oldest_age_ms: Annotated[int | None, Member("oldestAgeMs")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpace:
    """The bytes of a topic that are live, and those that its files take, as the engine estimates
    them: recent messages need not count. The rest was deleted or has expired."""

    live_bytes: int
    disk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpace:
    """The space below the directory of one store: what is free, what the server keeps free, and
    the size of its spare file. None: it is unknown now."""

    name: str
    directory: str
    free_bytes: int | None
    size_bytes: int | None
    reserve_bytes: int | None
    spare_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpace:
    """The bytes that one table of the message store takes."""

    name: str
    disk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceOfTopic:
    """The space of a topic, as `TopicSpace`, with its name."""

    topic: Annotated[TopicId, Member(""), TopicNames("name")]
    live_bytes: int
    disk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUse:
    """The disks of a server, and the bytes that its message store takes: by table, and by topic of
    the 100 that take most, of `topic_count`."""

    disks: tuple[DiskSpace, ...]
    tables: tuple[TableSpace, ...]
    topics: tuple[SpaceOfTopic, ...]
    topic_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaimed:
    """How many bytes a compaction freed; not `is_complete`: there is more to free, but not now."""

    freed_bytes: int
    is_complete: bool


@dataclass(frozen=True, slots=True)
class ExpiringMessages:
    """Messages that a shorter time to live lets expire at once: how many, or at least so many if
    `is_lower_bound`; the publish time of the oldest of them, and that from which messages are kept,
    in ms."""

    count: Annotated[int, Member("messages")]
    is_lower_bound: bool
    oldest_ms: int
    kept_from_ms: int


@dataclass(frozen=True, slots=True)
class TopicUpdate:
    """What a change of properties makes of a topic; `expiring` is None if no message expires by
    it."""

    topic: Annotated[TopicId, Member(""), TopicNames("name")]
    properties: Mapping[str, str]
    partitions: tuple[int, ...]
    retired: tuple[int, ...]
    expiring: Annotated[ExpiringMessages | None, Member("expires")]


@frozen_value(kw_only=True)
class Published:
    """What a publish has written: an id for each message, in their order.

    Messages that enter the topic later have `delayed_ids` until then, and the others `ids`; with
    the ack `none` there are neither. `rollback` is None without a transaction. `partitions`: the
    numbers of those that have the messages, of a topic with several or of a publish that names its
    partition. That of a publisher has those of all messages of its batch.
    """

    ids: Sequence[MessageId] = ()
    delayed_ids: Sequence[str] = ()
    rollback: RollbackDetail | None = None
    partitions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedMessage:
    """A message that waits. It is due at `due_ms` since the epoch; `size_bytes` is that of its
    payload, `ttl_s` its own time to live. `payload` is None unless it was asked for."""

    id: str
    due_ms: int
    size_bytes: Annotated[int, Member("size")]
    ttl_s: int | None
    payload: bytes | None
    key: bytes | None = None
    tags: tuple[str, ...] = ()
    headers: Headers = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll(Sequence[M]):
    """The messages of one read, and where to continue (protocol §3.4).

    `next_id`, passed as an exclusive start, continues exactly behind what was delivered or skipped,
    even without messages. `caught_up`: no message is left. `blocked_by`: the id of the transaction
    that holds this reader back; if it is prepared, `blocked_by_database` decides it, since
    `blocked_since_ms` in ms since the epoch. `expired`: messages may have been missed, as the start
    is older than the topic's time to live. `archived`: the messages come from the archive of the
    topic.
    """

    messages: tuple[M, ...]
    next_id: MessageId
    caught_up: bool
    blocked_by: int | None
    expired: bool
    archived: bool = False
    blocked_by_database: str | None = None
    blocked_since_ms: int | None = None

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[M]:
        return iter(self.messages)

    @overload
    def __getitem__(self, index: int) -> M: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[M, ...]: ...
    def __getitem__(self, index: int | slice) -> M | tuple[M, ...]:
        return self.messages[index]


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a topic: from `start`, exclusive (None: from the beginning), to `end`,
    inclusive."""

    start: MessageId | None
    end: MessageId


@dataclass(frozen=True, slots=True)
class Splits(Sequence[Split]):
    """Consecutive parts of a range of a topic, and the topic's generation."""

    generation: int
    parts: Annotated[tuple[Split, ...], Member("splits")]

    def __len__(self) -> int:
        return len(self.parts)

    @overload
    def __getitem__(self, index: int) -> Split: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Split, ...]: ...
    def __getitem__(self, index: int | slice) -> Split | tuple[Split, ...]:
        return self.parts[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A retention hold: it keeps messages from `first` on beyond the topic's time to live. Times
    are ms since the epoch."""

    name: str
    first: Annotated[MessageId, Member("from")]
    set_at_ms: int
    expires_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPosition:
    """A recorded position of a reader, in this generation of the topic."""

    name: str
    position: MessageId
    generation: int
    updated_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Offsets:
    """Where a topic begins, and the end of what this reader can read; None if it is empty."""

    generation: int
    earliest: MessageId | None
    end: MessageId | None
    blocked_by: Pointer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRow:
    """A row of a topic as it is stored (protocol §3.13). `state` is the one in a new snapshot:
    `committed`, `in_progress`, `invalid`, `rolled_back`, `expired`, `damaged` or `unknown`.

    The row of messages that a transaction stored first has the id before that of its first message,
    and their number as `message_count`.
    """

    id: MessageId
    state: str
    transaction_id: Pointer | None
    message_count: int
    size_bytes: Annotated[int, Member("size")]
    expires_at_ms: int


@dataclass(frozen=True, slots=True)
class RowPage:
    """Rows of a topic, and the start of the next page; None: these are the last."""

    rows: tuple[StoredRow, ...]
    next_id: Annotated[MessageId | None, Member("next")]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageLostByGroup:
    """A `consumer` or `share` group (`kind`) that had read up to the id `after` when the message
    `expired` or was `truncated` (`cause`)."""

    kind: str
    namespace: str
    group: str
    cause: str
    after: MessageId


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a reader receives a message, or does not (protocol §3.14). `reason` is a code, `detail` a
    sentence, and `advice` says what to do. `topic` is the partition that was searched. The
    `transaction` wrote the message, and `blocked_by` is the transaction in progress for which the
    reader waits. `elsewhere`: topics of other namespaces that have the message. `lost_by`: groups
    that had not read it when it expired or was truncated, as far as the server remembers."""

    id: str
    topic: Annotated[TopicId, Member(""), TopicNames("topic")]
    generation: int | None
    is_visible: Annotated[bool, Member("visible")]
    reason: str
    detail: str
    advice: str
    blocked_by: Pointer | None = None
    transaction: TransactionStatus | None = None
    elsewhere: tuple[Annotated[TopicId, TopicNames("topic")], ...] = ()
    lost_by: tuple[MessageLostByGroup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The state or outcome of one transaction. Times are ms since the epoch.

    `reason`: why an invalid one is invalid. `database` decides how a prepared one ends. What the
    server does not know is None, and so are the lease and the database of a transaction that has
    none or has ended.
    """

    transaction_id: Pointer
    state: TransactionState
    type: TransactionType | None
    client: str | None
    started_at_ms: int | None
    expires_at_ms: int | None
    reason: InvalidReason | None
    topics: tuple[str, ...] = ()
    lease_s: float | None = None
    lease_expires_at_ms: int | None = None
    database: str | None = None
    prepared_at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction in progress. Times are ms since the epoch; `topics` are `namespace:name`. The
    lease is None without one, and `database` and `prepared_at_ms` unless it is prepared."""

    transaction_id: Pointer
    type: TransactionType
    client: str | None
    started_at_ms: int
    expires_at_ms: int
    topics: tuple[str, ...]
    lease_s: float | None = None
    lease_expires_at_ms: int | None = None
    database: str | None = None
    prepared_at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The reply to a prepare: what each entry wrote, and since when the transaction is prepared, in
    ms since the epoch."""

    published: list[RollbackDetail]
    database: str
    prepared_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTransaction:
    """A transaction that its database decides. `topics` are `namespace:name`; `prepared_at_ms` is
    in ms since the epoch. `blocks_readers`: False where it published nothing, and once its messages
    are set aside."""

    transaction_id: Pointer
    database: str
    client: str | None
    prepared_at_ms: int
    topics: tuple[str, ...]
    change_count: int
    blocks_readers: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """When the lease of a transaction ends unless it is renewed again, and when the transaction
    ends in any case; ms since the epoch."""

    lease_expires_at_ms: int
    expires_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The state of the transaction service: pointers, counts, and the transactions in progress."""

    read_pointer: Pointer
    write_pointer: Pointer
    in_progress: tuple[OpenTransaction, ...]
    invalid_count: int
    committing_count: int
    visibility_upper_bound: Pointer
    oldest_in_progress: Pointer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Invalids:
    """The invalid list, and its pointers that no message row carries any more (`prunable`).

    `reasons` has the pointers of the list by the reason why they are invalid (`timed_out`,
    `lost_in_crash`, …). `swept_at_ms` and `swept_with` are of the last retention pass; None before
    the first.
    """

    invalids: tuple[Pointer, ...]
    reasons: Mapping[InvalidReason, tuple[Pointer, ...]] = field(default_factory=dict)
    prunable: tuple[Pointer, ...]
    swept_at_ms: int | None
    swept_with: str | None


@dataclass(frozen=True, slots=True)
class Truncated:
    """How many pointers were removed from the invalid list, and which were kept for a message
    row."""

    removed_count: Annotated[int, Member("removed")]
    kept: tuple[Pointer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """An epoch of a sink, to be written in `transaction`; None: the run `run_id` has committed
    it."""

    sink: str
    epoch: int
    run_id: str
    transaction: Transaction | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """The newest epoch of an exactly-once writer, and the run that began it. `updated_at_ms`: when
    it last changed, in ms since 1970."""

    sink: str
    epoch: int
    run_id: str
    state: TransactionState
    transaction_id: Pointer
    updated_at_ms: int


class HealthStatus(OpenStrEnum):
    """The state of the server, or of one of its components."""

    OK = "ok"
    DEGRADED = "degraded"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """The state of one component of the server, and the reason in one sentence."""

    status: HealthStatus
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The state of the server: the worst `status` of its components, each component by name, and
    its version; None: the reply does not have it."""

    status: HealthStatus
    checks: Mapping[str, HealthCheck]
    version: str | None


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A snapshot file of the transaction state, durably written."""

    file: str
    size_bytes: Annotated[int, Member("bytes")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterServer:
    """A live server of a cluster. `topics` is the number of topics that it owns; a draining one
    takes no more."""

    server_id: Annotated[str, Member("id")]
    incarnation: int
    url: str
    started_at_ms: int
    topics: int
    is_draining: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLeader:
    """The server of a cluster that leads transactions, and since which epoch."""

    server_id: Annotated[str, Member("id")]
    epoch: int
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """A cluster as one of its servers sees it; `server_id` and `incarnation` are those of that
    server. `leader` is None while it knows none."""

    cluster_id: str
    server_id: Annotated[str, Member("server.id")]
    incarnation: Annotated[int, Member("server.incarnation")]
    leader: ClusterLeader | None
    servers: tuple[ClusterServer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOwner:
    """The owner of a topic of a cluster; None: it has none at the moment. `is_alive`: it is a live
    server, and has not started again since."""

    topic: TopicId
    server_id: Annotated[str | None, Member("server")]
    incarnation: int
    epoch: int
    is_alive: bool


@dataclass(frozen=True, slots=True)
class TopicOwners:
    """A page of owners, by topic. `next_topic`: where the next page begins; None: it is the
    last."""

    owners: Annotated[tuple[TopicOwner, ...], Member("topics")]
    next_topic: Annotated[TopicId | None, Member("next")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Whether a server of a cluster gives its topics away, and how many it still owns."""

    server_id: Annotated[str, Member("server")]
    is_draining: bool
    topics: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A member of a consumer group. `assigned` are the partitions that it has, and `target` those
    that it shall have."""

    member_id: str
    epoch: Annotated[int, Member("memberEpoch")]
    instance_id: str | None
    client: str
    topics: tuple[str, ...]
    assigned: tuple[PartitionId, ...]
    target: tuple[PartitionId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroup:
    """A share group. The counts are of the messages that the server has read so far behind those
    that are all done: `blocked` ones wait for an earlier message of their key, `waiting` ones for
    their retry, `undecided` ones for the end of a transaction. `oldest`: the oldest message that is
    not done, as far as it was read; `end`: the newest message; `behind_ms`: the time between."""

    topic: TopicId
    name: str
    start: str
    order: str
    tags: str | None
    lease_s: float
    available: int
    blocked: int
    leased: int
    waiting: int
    undecided: int
    done: int
    oldest: MessageId | None
    end: MessageId | None
    behind_ms: Annotated[int, Member("behindMs")]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPartition:
    """The progress of a consumer group in a partition: `after` is its committed offset, `end` the
    id of the newest message, and `behind_ms` the time between the two, 0 if nothing is unread.
    `unread` is the number of messages that the group has not read, at least so many if
    `is_lower_bound`, and `unread_age_ms` the age of the oldest of them, 0 without any. None: not
    known, or there is none."""

    partition: PartitionId
    member_id: str | None
    after: MessageId | None
    end: MessageId | None
    behind_ms: Annotated[int | None, Member("behindMs")]
    unread: int | None
    is_lower_bound: bool
    unread_age_ms: Annotated[int | None, Member("unreadAgeMs")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A consumer group. `state` is `empty`, `reconciling` (partitions move) or `stable`."""

    name: str
    state: str
    epoch: int
    assignor: str | None
    members: tuple[GroupMember, ...]
    partitions: tuple[GroupPartition, ...]
