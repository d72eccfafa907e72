"""What clients observe of a simulated server: each request with its reply, and when both happened.

A moment is a number that rises with every request and every reply. A request without a reply may
have been applied or not. A later reply may show which, and from then on that must not change.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache

from tuff.protocol.ids import MessageId, Offset, TopicId, past_group
from tuff.protocol.transaction import Transaction

NEVER = 1 << 62  # a moment after all others


class Applied(Enum):
    """Whether a request has had its effect."""

    UNKNOWN = "no reply yet, or none because the server crashed"
    YES = "acknowledged, or its effect was seen"
    NO = "refused, or proven to have no effect"


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """One request. `known_at` is the moment from which `applied` is known."""

    invoked: int
    completed: int = NEVER
    applied: Applied = Applied.UNKNOWN
    known_at: int = NEVER

    def end(self, moment: int, applied: Applied) -> None:
        """The reply came, or will never come."""
        self.completed = min(self.completed, moment)
        if applied is not Applied.UNKNOWN and self.applied is Applied.UNKNOWN:
            self.applied, self.known_at = applied, moment

    def retry(self) -> None:
        """The same request is sent again. Its effect may date from the first one, so `invoked`
        stays; what was applied is not applied a second time."""
        if self.applied is not Applied.YES:
            self.completed = NEVER
            self.applied, self.known_at = Applied.UNKNOWN, NEVER


@dataclass(slots=True, eq=False, kw_only=True)
class Tx:
    """A transaction that a client knows. `seen` are the states in the replies, in their order, as
    (invoked, completed, state, reason)."""

    id: int
    is_long: bool
    snapshot: Transaction
    invoked: int
    completed: int
    pointers: list[int] = field(default_factory=list)
    seen: list[tuple[int, int, str, str | None]] = field(default_factory=list)
    # Changes named in can-commits, by the number of crashes before the can-commit.
    noted: dict[int, set[bytes]] = field(default_factory=dict)
    named: set[bytes] = field(default_factory=set)
    surely: frozenset[bytes] | None = None  # changes that every commit of it named
    commit_invoked: int = NEVER
    abort_invoked: int = NEVER
    prepare_invoked: int = NEVER
    resolved: set[str] = field(default_factory=set)  # outcomes with which a resolve was requested
    entries: "list[Publish] | None" = None
    published: object = None
    first_shown: int = NEVER  # the first moment at which a reader of committed rows got a row of it
    first_publish_boot_ms: int | None = None
    renewed_boot_ms: int = 0  # the earliest possible start of its current lease
    alive: int = 0  # when the last request was sent whose reply said that it is in progress
    may_be_undone: bool = False  # it was committed as read-only, which waits for no sync
    is_forgotten: bool = False  # the server answered that it does not know it
    cleared: int = NEVER  # the first moment at which its pointers may have left the invalid list

    @property
    def state(self) -> str:
        return self.seen[-1][2] if self.seen else "in_progress"

    @property
    def committed(self) -> int:
        """The first moment at which it was known to have committed."""
        return next(
            (completed for _, completed, state, _ in self.seen if state == "committed"), NEVER
        )

    def snapshot_now(self) -> Transaction:
        """Its snapshot for reads, which include its own writes."""
        return replace(
            self.snapshot,
            write_pointer=self.pointers[-1],
            checkpoint_write_pointers=tuple(self.pointers[1:]),
        )

    @property
    def is_over(self) -> bool:
        return self.is_forgotten or self.state in ("committed", "aborted", "invalid")

    @property
    def is_lost(self) -> bool:
        """Whether it is known to never commit."""
        return self.state in ("aborted", "invalid")


@dataclass(slots=True, eq=False, kw_only=True)
class Stored(Request):
    """A store request; `taken` once a publish by reference was sent that may publish it."""

    pointer: int
    payloads: tuple[bytes, ...]
    taken: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class Publish(Request):
    """One publish. `first` and `last` are its offsets once they are known; both are above `behind`.
    `brings` are the stored messages of a publish by reference, None for any other publish."""

    topic: str
    payloads: tuple[bytes, ...]
    behind: bytes  # up to where readers of all rows had read when it was sent
    tx: Tx | None = None
    pointer: int | None = None
    ttl_s: int | None = None
    brings: list[Stored] | None = None
    first: Offset | None = None
    last: Offset | None = None
    rollback_invoked: int = NEVER
    rolled_back: int = NEVER
    is_final: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class Run:
    """A transaction in one call. `tx` stands for it; no reply has its id or snapshot."""

    request_id: str
    tx: Tx
    entries: list[Publish]
    published: object = None


@dataclass(slots=True, eq=False, kw_only=True)
class Deletion(Request):
    """A topic's deletion."""


@dataclass(slots=True, eq=False, kw_only=True)
class Truncation(Request):
    """A truncation, which removes all rows before `place`."""

    place: MessageId


@dataclass(slots=True, eq=False, kw_only=True)
class TtlChange(Request):
    """A change of a topic's time to live; the first one is its creation."""

    ttl_s: int


@dataclass(slots=True, eq=False, kw_only=True)
class Held(Request):
    """A retention hold. `first` and `expires_at_ms` are from the reply, None before."""

    name: str
    wanted: MessageId
    max_age_ms: int
    first: MessageId | None = None
    expires_at_ms: int | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Release(Request):
    """The release of a hold."""

    name: str


@dataclass(slots=True, eq=False, kw_only=True)
class Move(Request):
    """A named position was set, or with None for its place, deleted."""

    name: str
    place: MessageId | None


@dataclass(slots=True, eq=False)
class ObservedTopic:
    """One topic: the requests that changed it, and what readers found. Some reader of all rows has
    read everything up to `read_up_to`."""

    id: TopicId
    publishes: list[Publish] = field(default_factory=list)
    deletions: list[Deletion] = field(default_factory=list)
    truncations: list[Truncation] = field(default_factory=list)
    ttl_changes: list[TtlChange] = field(default_factory=list)
    holds: list[Held] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    stored: dict[int, list[Stored]] = field(default_factory=dict)
    tainted: set[int] = field(default_factory=set)  # pointers with a reference of unknown fate
    reads: "list[Read]" = field(default_factory=list)
    payload_of: dict[bytes, bytes] = field(default_factory=dict)
    id_of: dict[bytes, bytes] = field(default_factory=dict)
    # The same for readers of what has committed. A message that was set aside has two ids.
    committed_id_of: dict[bytes, bytes] = field(default_factory=dict)
    read_up_to: bytes = b""

    def removals(self) -> "list[Deletion | Truncation]":
        """The requests that remove rows before they expire."""
        return [*self.deletions, *self.truncations] if self.deletions or self.truncations else []

    def pending(self) -> Iterator[Request]:
        yield from (each for each in self.publishes if each.completed == NEVER)
        for each in (*self.removals(), *self.ttl_changes, *self.holds, *self.releases, *self.moves):
            if each.completed == NEVER:
                yield each
        yield from (
            each for stores in self.stored.values() for each in stores if each.completed == NEVER
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One read. `kind` is all, committed or snapshot; the range goes from `start`, exclusive, to
    `next_id`. `now_ms` is the server's time at the request."""

    topic: str
    kind: str
    snapshot: Transaction | None
    start: bytes
    invoked: int
    completed: int
    now_ms: int
    items: list[tuple[bytes, bytes]]
    next_id: bytes
    caught_up: bool
    blocked_by: int | None


class Observations:
    """Everything that clients have observed."""

    def __init__(self, topics: list[TopicId]) -> None:
        self._moment = 0
        self.topics = {topic.name: ObservedTopic(topic) for topic in topics}
        self.transactions: dict[int, Tx] = {}
        self.runs: dict[str, Run] = {}
        self.publish_of: dict[bytes, Publish] = {}  # by payload
        self.highest_pointer = 0
        self.now_ms_max = 0  # of all times of the server's clock
        self.now_ms_min = NEVER
        self._times: list[tuple[int, int]] = []  # moments, and the server's time then, in ms
        self.start_count = 0
        self.crashed: list[int] = []  # moments of crashes and of failures of the log
        # The earliest moment and time since boot from which transactions have been served.
        self.served_from, self.served_from_boot_ms = 0, 0
        self.may_forget = False  # the retention of outcomes is over for some transaction
        self.prunes = False  # pointers leave the invalid list by themselves

    def moment(self) -> int:
        self._moment += 1
        return self._moment

    def note_time(self, now_ms: int) -> None:
        self.now_ms_max = max(self.now_ms_max, now_ms)
        self.now_ms_min = min(self.now_ms_min, now_ms)
        self._times.append((self.moment(), now_ms))

    @property
    def time_span_ms(self) -> int:
        """From the earliest time of the server's clock to the latest."""
        return self.now_ms_max - self.now_ms_min

    def latest_since(self, moment: int) -> int:
        """The latest time of the server's clock since then, in ms."""
        earlier = [now_ms for at, now_ms in self._times if at <= moment]
        return max(now_ms for _, now_ms in self._times[max(0, len(earlier) - 1) :])

    def note_not_served(self, boot_ms: int) -> None:
        """Transactions were not served until now."""
        self.served_from, self.served_from_boot_ms = self.moment(), boot_ms

    def note_pointer(self, pointer: int) -> None:
        self.highest_pointer = max(self.highest_pointer, pointer)

    def cut_off(self) -> None:
        """The server crashed: requests without a reply get none any more."""
        moment = self.moment()
        self.crashed.append(moment)
        for topic in self.topics.values():
            for request in topic.pending():
                request.end(moment, Applied.UNKNOWN)

    def owner(self, pointer: int) -> Tx | None:
        found = self.transactions.get(pointer)
        if found is None:
            found = next((tx for tx in self.transactions.values() if pointer in tx.pointers), None)
        return found


@lru_cache(maxsize=4096)
def ids_between(first: Offset, last: Offset, *, is_group: bool) -> tuple[bytes, bytes]:
    """The ids that the rows from one place to another bring, both included."""
    end = past_group(last) if is_group else MessageId(*last)
    return MessageId(*first).to_bytes(), end.to_bytes()
