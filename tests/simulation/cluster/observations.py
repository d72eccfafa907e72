"""What clients observe of a simulated cluster, and what must hold of it (decision 0042).

A moment is a number that rises with every request and every reply; `ms` are virtual times. A
request without a reply may have been applied or not, and may still be.
"""

from bisect import bisect_right
from dataclasses import dataclass, field

from messaging.storage.store_ownership import LEASE_MS
from tests.simulation.invariants import BrokenPromiseError
from tests.simulation.observations import NEVER, Applied
from tuff.protocol.ids import TopicId

Rows = list[tuple[bytes, str]]  # ids and payloads, in order


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """One request that changes something."""

    invoked: int
    invoked_ms: int
    completed: int = NEVER
    completed_ms: int = NEVER
    applied: Applied = Applied.UNKNOWN


@dataclass(slots=True, eq=False, kw_only=True)
class Publish(Request):
    """A publish of one message. Its id is above `above`, the highest id that was acknowledged for
    the topic before it was sent."""

    payload: str
    above: bytes
    id: bytes | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Truncation(Request):
    """A truncation, which removes all messages before an id."""

    before: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A read from `start`, exclusive, to `next_id`."""

    invoked: int
    invoked_ms: int
    completed: int
    start: bytes
    next_id: bytes
    rows: Rows
    is_caught_up: bool


@dataclass(frozen=True, slots=True)
class Ack:
    """A server acknowledged a message while it owned the topic in this epoch."""

    epoch: int
    owner: tuple[str, int]
    id: bytes


@dataclass(slots=True, eq=False)
class ObservedTopic:
    """One topic. `prefix` is all that readers found up to `prefix_end`, where nothing removes
    messages."""

    id: TopicId
    may_be_deleted: bool  # or truncated
    publishes: dict[str, Publish] = field(default_factory=dict)  # by payload
    deletions: list[Request] = field(default_factory=list)
    truncations: list[Truncation] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    highest_id: bytes = b""  # that was acknowledged
    prefix: Rows = field(default_factory=list)
    prefix_end: bytes = b""

    def acknowledged(self, publish: Publish, message_id: bytes) -> None:
        """Raises: BrokenPromiseError."""
        publish.applied, publish.id = Applied.YES, message_id
        if message_id <= publish.above:
            raise BrokenPromiseError(
                f"order: {publish.payload} got the id {message_id.hex()} in {self.id}, and "
                f"{publish.above.hex()} was acknowledged before it was sent"
            )
        self.highest_id = max(self.highest_id, message_id)
        is_passed = not self.may_be_deleted and message_id <= self.prefix_end
        if is_passed and (message_id, publish.payload) not in self.prefix:
            raise BrokenPromiseError(
                f"prefix: {publish.payload} was acknowledged at {message_id.hex()} in {self.id}, "
                f"and a reader had passed {self.prefix_end.hex()} without it"
            )

    def check(self, read: Read) -> None:
        """Check a read. Raises: BrokenPromiseError."""
        ids = [each for each, _ in read.rows]
        payloads = [payload for _, payload in read.rows]
        if ids != sorted(set(ids)) or len(set(payloads)) != len(payloads):
            raise BrokenPromiseError(f"once: {self.id} has a row twice, or out of order: {read}")
        for message_id, payload in read.rows:
            self._check_row(read, message_id, payload)
        if not self.may_be_deleted:
            self._check_prefix(read)
        found = set(payloads)
        for publish in self.publishes.values():
            if publish.payload not in found:
                self._check_missing(read, publish)

    def check_epochs(self) -> None:
        """Epochs have one owner each, and their ids don't overlap. Raises: BrokenPromiseError."""
        owners: dict[int, tuple[str, int]] = {}
        highest: tuple[int, bytes] = (0, b"")
        for ack in sorted(self.acks, key=lambda each: (each.epoch, each.id)):
            if owners.setdefault(ack.epoch, ack.owner) != ack.owner:
                raise BrokenPromiseError(
                    f"epoch: {ack.owner} and {owners[ack.epoch]} wrote {self.id} in {ack.epoch}"
                )
            if ack.id <= highest[1]:
                raise BrokenPromiseError(
                    f"epoch: {self.id} has {ack.id.hex()} of {ack.epoch}, and "
                    f"{highest[1].hex()} of {highest[0]}"
                )
            highest = ack.epoch, ack.id

    def _check_row(self, read: Read, message_id: bytes, payload: str) -> None:
        publish = self.publishes.get(payload)
        if publish is None or publish.applied is Applied.NO or publish.invoked > read.completed:
            raise BrokenPromiseError(f"once: {self.id} has {payload}, which was refused: {publish}")
        if publish.id is not None and publish.id != message_id:
            raise BrokenPromiseError(
                f"once: {payload} was acknowledged at {publish.id.hex()} and is at "
                f"{message_id.hex()} in {self.id}"
            )
        publish.id = message_id
        for deletion in self.deletions:
            is_later = publish.completed < deletion.invoked and deletion.completed < read.invoked
            if is_later and deletion.applied is Applied.YES:
                raise BrokenPromiseError(f"deleted: {self.id} has {payload} again")

    def _check_missing(self, read: Read, publish: Publish) -> None:
        """A publish whose row the read does not have."""
        if publish.applied is not Applied.YES or publish.id is None or publish.id <= read.start:
            return
        if publish.id > read.next_id:
            is_late = publish.completed_ms <= read.invoked_ms - LEASE_MS
            if not (is_late and read.is_caught_up) or self._may_be_deleted(publish, read):
                return
            raise BrokenPromiseError(
                f"lease: {self.id} was read to its end at {read.invoked_ms} without "
                f"{publish.payload}, which was acknowledged at {publish.completed_ms}"
            )
        if not (self._may_be_deleted(publish, read) or self._may_be_truncated(publish, read)):
            raise BrokenPromiseError(
                f"lost: {publish.payload} was acknowledged at {publish.id.hex()} in {self.id}, "
                f"and is not among {read}"
            )

    def _may_be_truncated(self, publish: Publish, read: Read) -> bool:
        assert publish.id is not None
        return any(
            each.applied is not Applied.NO
            and each.before > publish.id
            and each.invoked < read.completed
            for each in self.truncations
        )

    def _may_be_deleted(self, publish: Publish, read: Read) -> bool:
        return any(
            each.applied is not Applied.NO
            and each.completed > publish.invoked
            and each.invoked < read.completed
            for each in self.deletions
        )

    def _check_prefix(self, read: Read) -> None:
        """All readers agree on the rows of a range, whenever and wherever they read it."""
        end = min(read.next_id, self.prefix_end)
        if read.start < end:
            first = bisect_right(self.prefix, (read.start, "\uffff"))
            known = [row for row in self.prefix[first:] if row[0] <= end]
            found = [row for row in read.rows if row[0] <= end]
            if known != found:
                raise BrokenPromiseError(
                    f"prefix: readers of {self.id} had {known} up to {end.hex()}, and now {found}"
                )
        if read.start <= self.prefix_end < read.next_id:
            self.prefix += [row for row in read.rows if row[0] > self.prefix_end]
            self.prefix_end = read.next_id


@dataclass(slots=True, eq=False, kw_only=True)
class Tx:
    """A transaction that a client started. `ending` are its commits."""

    id: int
    invoked: int
    started: int  # the moment of the reply
    changes: frozenset[str] = frozenset()
    commit_invoked: int = NEVER
    commit_completed: int = NEVER
    final: str | None = None  # its state, once a reply said that it has ended

    def learn(self, state: str) -> None:
        """A reply says that it has ended. Raises: BrokenPromiseError."""
        if self.final is not None and self.final != state:
            raise BrokenPromiseError(f"transactions: {self.id} was {self.final} and is {state}")
        if state == "committed" and self.commit_invoked == NEVER:
            raise BrokenPromiseError(f"transactions: {self.id} committed without a request")
        self.final = state


class ObservedTransactions:
    """All transactions."""

    def __init__(self) -> None:
        self.by_id: dict[int, Tx] = {}

    def started(self, tx: Tx) -> None:
        """Raises: BrokenPromiseError."""
        if tx.id in self.by_id:
            raise BrokenPromiseError(f"transactions: the id {tx.id} was given twice")
        self.by_id[tx.id] = tx

    def check_conflicts(self) -> None:
        """No two transactions that were open together committed the same change. Raises:
        BrokenPromiseError."""
        committed = [each for each in self.by_id.values() if each.final == "committed"]
        for one in committed:
            for other in committed:
                if one.id < other.id and one.changes & other.changes:
                    begun = max(one.started, other.started)
                    if begun < min(one.commit_invoked, other.commit_invoked):
                        raise BrokenPromiseError(
                            f"transactions: {one.id} and {other.id} conflict, and both committed"
                        )
