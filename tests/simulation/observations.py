"""What is known of a simulated server from outside: what was asked, what was told, and when.

A moment is a number that rises with everything that is asked or told. What was asked and not told
yet, or was cut off, may have happened or not; later answers say which, and then it stays so.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache

from tuff.protocol.ids import MessageId, Offset, TopicId, past_group
from tuff.protocol.transaction import Transaction

NEVER = 1 << 62  # a moment after all others


class Fate(Enum):
    """Whether something that was asked has happened."""

    OPEN = "not told yet, or cut off"
    DONE = "told, or seen"
    NOT_DONE = "refused, or proven not to be there"


@dataclass(slots=True, eq=False, kw_only=True)
class Asked:
    """Something that was asked for. `settled` is the moment from which its fate is known."""

    asked: int
    told: int = NEVER
    fate: Fate = Fate.OPEN
    settled: int = NEVER

    def end(self, moment: int, fate: Fate) -> None:
        """The answer came, or will never come."""
        self.told = min(self.told, moment)
        if fate is not Fate.OPEN and self.fate is Fate.OPEN:
            self.fate, self.settled = fate, moment

    def ask_again(self) -> None:
        """What was cut off is asked for once more; what happened can happen no second time. It may
        have happened since it was first asked for, so `asked` stays."""
        if self.fate is not Fate.DONE:
            self.told = NEVER
            self.fate, self.settled = Fate.OPEN, NEVER


@dataclass(slots=True, eq=False, kw_only=True)
class Tx:
    """A transaction that a client was told of. `seen` are the states it was told, in their order,
    as (asked, told, state, reason)."""

    id: int
    is_long: bool
    snapshot: Transaction
    asked: int
    told: int
    pointers: list[int] = field(default_factory=list)
    seen: list[tuple[int, int, str, str | None]] = field(default_factory=list)
    # How often it had crashed: changes of the can-commits since.
    noted: dict[int, set[bytes]] = field(default_factory=dict)
    named: set[bytes] = field(default_factory=set)
    surely: frozenset[bytes] | None = None  # changes that every commit of it named
    commit_asked: int = NEVER
    abort_asked: int = NEVER
    entries: "list[Publish] | None" = None
    published: object = None
    handed_over: int = NEVER  # the first moment at which a reader of committed rows got one of its
    first_publish_boot_ms: int | None = None
    renewed_boot_ms: int = 0  # when its lease was last known to begin, at the earliest
    alive: int = 0  # the last moment at which somebody asked, and was told that it is in progress
    may_be_undone: bool = False  # it was committed as read-only, which waits for no disk
    is_forgotten: bool = False  # the server answered that it does not know it (any more)
    cleared: int = NEVER  # the first moment at which its pointers may have left the invalid list

    @property
    def state(self) -> str:
        return self.seen[-1][2] if self.seen else "in_progress"

    @property
    def committed(self) -> int:
        """The first moment at which it was known to have committed."""
        return next((told for _, told, state, _ in self.seen if state == "committed"), NEVER)

    def snapshot_now(self) -> Transaction:
        """What it reads in: its snapshot, and all that it wrote itself."""
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
        """Whether it is known that it never commits."""
        return self.state in ("aborted", "invalid")


@dataclass(slots=True, eq=False, kw_only=True)
class Stored(Asked):
    """A store request; `taken` once a reference that may bring it was asked for."""

    pointer: int
    payloads: tuple[bytes, ...]
    taken: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class Publish(Asked):
    """One publish; `first` and `last` are its places once they are known, and lie behind `behind`.
    `brings` are the stores of a reference, None for messages of its own."""

    topic: str
    payloads: tuple[bytes, ...]
    behind: bytes  # up to where readers of all rows had seen everything when it was asked for
    tx: Tx | None = None
    pointer: int | None = None
    ttl_s: int | None = None
    brings: list[Stored] | None = None
    first: Offset | None = None
    last: Offset | None = None
    rollback_asked: int = NEVER
    rolled_back: int = NEVER
    is_final: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class Run:
    """A transaction in one call. `tx` stands for one whose id and snapshot nobody is told."""

    request_id: str
    tx: Tx
    entries: list[Publish]
    published: object = None


@dataclass(slots=True, eq=False, kw_only=True)
class Deletion(Asked):
    """A topic's deletion."""


@dataclass(slots=True, eq=False, kw_only=True)
class Truncation(Asked):
    """A truncation; rows before `place` that were there are gone."""

    place: MessageId


@dataclass(slots=True, eq=False, kw_only=True)
class Lifetime(Asked):
    """A time to live that a topic was given."""

    ttl_s: int


@dataclass(slots=True, eq=False, kw_only=True)
class Held(Asked):
    """A retention hold. `first` and `expires_at_ms` are what was answered, None before."""

    name: str
    wanted: MessageId
    max_age_ms: int
    first: MessageId | None = None
    expires_at_ms: int | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Release(Asked):
    """The end of a hold, by its name."""

    name: str


@dataclass(slots=True, eq=False, kw_only=True)
class Move(Asked):
    """A named position was set; with None for its place, forgotten."""

    name: str
    place: MessageId | None


@dataclass(slots=True, eq=False)
class TopicFacts:
    """One topic: what was done to it, and what readers of all rows have found. `covered` is up to
    where such a reader has seen everything, `found` the ids in there."""

    id: TopicId
    publishes: list[Publish] = field(default_factory=list)
    deletions: list[Deletion] = field(default_factory=list)
    truncations: list[Truncation] = field(default_factory=list)
    lifetimes: list[Lifetime] = field(default_factory=list)
    holds: list[Held] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    stored: dict[int, list[Stored]] = field(default_factory=dict)
    tainted: set[int] = field(default_factory=set)  # pointers with a reference of unknown fate
    reads: "list[Read]" = field(default_factory=list)
    payload_of: dict[bytes, bytes] = field(default_factory=dict)
    id_of: dict[bytes, bytes] = field(default_factory=dict)
    covered: bytes = b""
    handed: bytes = b""

    def removals(self) -> "list[Deletion | Truncation]":
        """What takes rows away before their time is over."""
        return [*self.deletions, *self.truncations] if self.deletions or self.truncations else []

    def pending(self) -> Iterator[Asked]:
        yield from (each for each in self.publishes if each.told == NEVER)
        for each in (*self.removals(), *self.lifetimes, *self.holds, *self.releases, *self.moves):
            if each.told == NEVER:
                yield each
        yield from (
            each for stores in self.stored.values() for each in stores if each.told == NEVER
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What a reader was handed. `kind` is all, committed or snapshot; the range goes from `start`,
    exclusive, to `next_id`. `now_ms` is the server's time when it was asked."""

    topic: str
    kind: str
    snapshot: Transaction | None
    skips: bool
    start: bytes
    asked: int
    told: int
    now_ms: int
    items: list[tuple[bytes, bytes]]
    next_id: bytes
    caught_up: bool
    blocked_by: int | None


class Facts:
    """Everything that is known."""

    def __init__(self, topics: list[TopicId]) -> None:
        self._moment = 0
        self.topics = {topic.name: TopicFacts(topic) for topic in topics}
        self.transactions: dict[int, Tx] = {}
        self.runs: dict[str, Run] = {}
        self.publish_of: dict[bytes, Publish] = {}  # by payload
        self.highest_pointer = 0
        self.now_ms_max = 0  # of all times that the server ever had
        self.now_ms_min = NEVER
        self._times: list[tuple[int, int]] = []  # moments, and the server's time then, in ms
        self.life = 0
        self.crashed: list[int] = []  # moments of crashes, and of failures of the log
        # Transactions are served since then, at the earliest: a moment, and the time since boot.
        self.served_from, self.served_from_boot_ms = 0, 0
        self.may_forget = False  # so much time went by that outcomes may be forgotten
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
        """From the earliest time that the server had to the latest."""
        return self.now_ms_max - self.now_ms_min

    def latest_since(self, moment: int) -> int:
        """The latest time that the server had since then, in ms."""
        earlier = [now_ms for at, now_ms in self._times if at <= moment]
        return max(now_ms for _, now_ms in self._times[max(0, len(earlier) - 1) :])

    def note_not_served(self, boot_ms: int) -> None:
        """Until now transactions were not served."""
        self.served_from, self.served_from_boot_ms = self.moment(), boot_ms

    def note_pointer(self, pointer: int) -> None:
        self.highest_pointer = max(self.highest_pointer, pointer)

    def cut_off(self) -> None:
        """Whoever has no answer gets none any more."""
        moment = self.moment()
        self.crashed.append(moment)
        for topic in self.topics.values():
            for asked in topic.pending():
                asked.end(moment, Fate.OPEN)

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
