"""What the calls of the client answer, as frozen values (protocol §2, §3, §5.2)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.requests import Message, RollbackDetail
from tuff.protocol.transaction import (
    InvalidReason,
    Transaction,
    TransactionState,
    TransactionType,
)
from tuff.protocol.values import OpenStrEnum


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the server keeps it; `generation` grows by one with each re-creation."""

    topic: TopicId
    generation: int
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Published:
    """Ids of the first and the last row written; `rollback` is None without a transaction."""

    first_id: MessageId
    last_id: MessageId
    rollback: RollbackDetail | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll(Sequence[Message]):
    """The messages of one read, and where it leaves the reader (protocol §3.4).

    `next_id`, passed as an exclusive start, leads to exactly what was not delivered yet, also when
    there are no messages. `blocked_by` is the id of the transaction that holds this reader back.
    `expired`: messages may have been missed, as the start is older than the topic's time to live.
    """

    messages: tuple[Message, ...]
    next_id: MessageId
    caught_up: bool
    blocked_by: int | None
    expired: bool

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...
    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        return self.messages[index]


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a topic: what lies behind `start`, or from the beginning on where that is None, up
    to and with `end`."""

    start: MessageId | None
    end: MessageId


@dataclass(frozen=True, slots=True)
class Splits(Sequence[Split]):
    """Parts of a range of a topic that follow each other, and the topic's generation."""

    generation: int
    parts: tuple[Split, ...]

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
    """What keeps messages from the topic's time to live, from `first` on. Times are ms since the
    epoch."""

    name: str
    first: MessageId
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
    """Where a topic begins and how far it is decided for this reader; None where it is empty."""

    generation: int
    earliest: MessageId | None
    end: MessageId | None
    blocked_by: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What is known of one transaction. Times are ms since the epoch.

    `reason` says why an invalid one is invalid. What the server leaves out or gives as null is
    None, as is the lease of one that has none, or has ended.
    """

    transaction_id: int
    state: TransactionState
    type: TransactionType | None
    client: str | None
    started_at_ms: int | None
    expires_at_ms: int | None
    reason: InvalidReason | None
    topics: tuple[str, ...]
    lease_s: float | None = None
    lease_expires_at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """One line of the overview. Times are ms since the epoch; `topics` are `namespace:name`. The
    lease is None where it has none."""

    transaction_id: int
    type: TransactionType
    client: str | None
    started_at_ms: int
    expires_at_ms: int
    topics: tuple[str, ...]
    lease_s: float | None = None
    lease_expires_at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """Until when a transaction lives, as ms since the epoch: unless its lease is renewed again, and
    at the longest."""

    lease_expires_at_ms: int
    expires_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The transaction service at a glance; the last three are pointers or counts."""

    read_pointer: int
    write_pointer: int
    in_progress: tuple[OpenTransaction, ...]
    invalid_count: int
    committing_count: int
    visibility_upper_bound: int
    oldest_in_progress: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Invalids:
    """The invalid list, and those of it that no message row carries any more.

    `reasons` has every pointer of the list once, by why it is there (`timed_out`, `lost_in_crash`,
    …); it is empty where an older server does not say. `swept_at_ms` and `swept_with` tell of the
    last sweep; None before the first.
    """

    invalids: tuple[int, ...]
    reasons: Mapping[InvalidReason, tuple[int, ...]]
    prunable: tuple[int, ...]
    swept_at_ms: int | None
    swept_with: str | None


@dataclass(frozen=True, slots=True)
class Truncated:
    """How many pointers left the invalid list, and which stay, as a message row carries them."""

    removed_count: int
    kept: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """An epoch of a sink that is to be written in `transaction`; None: it has committed, by the run
    `run_id`."""

    sink: str
    epoch: int
    run_id: str
    transaction: Transaction | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """The newest epoch of a writer, and the run that began it. `updated_at_ms` is when it last
    changed, in ms since the epoch of Unix."""

    sink: str
    epoch: int
    run_id: str
    state: TransactionState
    transaction_id: int
    updated_at_ms: int


class HealthStatus(OpenStrEnum):
    """The state of the server, or of a part of it."""

    OK = "ok"
    DEGRADED = "degraded"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """The state of one part of the server, and one sentence about it."""

    status: HealthStatus
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How the server does: the worst `status` of its parts, each of them by name, and the server's
    version; None: it is one that does not tell."""

    status: HealthStatus
    checks: Mapping[str, HealthCheck]
    version: str | None


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A state snapshot that was just written, and is on stable storage."""

    file: str
    size_bytes: int
