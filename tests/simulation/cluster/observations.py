"""What clients observe of a simulated cluster, and what must hold of it (decision 0042).

A moment is a number that rises with every request and every reply; `ms` are virtual times. A
request without a reply may have been applied or not, and may still be.
"""

from bisect import bisect_right
from dataclasses import dataclass, field

from messaging.log.read_lease import READ_LEASE_MS
from tests.simulation import invariants
from tests.simulation.invariants import BrokenPromiseError, require
from tests.simulation.observations import NEVER, Applied, Observations, Tx
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
    the topic before it was sent. `places` are the ids at which readers found it."""

    payload: str
    above: bytes
    id: bytes | None = None
    tx: Tx | None = None
    places: set[bytes] = field(default_factory=set)

    @property
    def may_be_aside(self) -> bool:
        """Whether it may be set aside, and return behind others: to a second place."""
        return self.tx is not None and self.tx.prepare_invoked < NEVER


@dataclass(slots=True, eq=False, kw_only=True)
class Truncation(Request):
    """A truncation, which removes all messages before an id."""

    before: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A read from `start`, exclusive, to `next_id`: of everything, of what has committed, or in the
    snapshot of a transaction, `reader`."""

    is_committed: bool = False
    reader: Tx | None = None
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
class Prefix:
    """All that the readers of one kind found up to `end`, where nothing removes messages."""

    rows: Rows = field(default_factory=list)
    end: bytes = b""

    def check(self, read: Read, topic: TopicId) -> None:
        """All readers agree on the rows of a range, whenever and wherever they read it. Raises:
        BrokenPromiseError."""
        end = min(read.next_id, self.end)
        if read.start < end:
            first = bisect_right(self.rows, (read.start, "\uffff"))
            known = [row for row in self.rows[first:] if row[0] <= end]
            found = [row for row in read.rows if row[0] <= end]
            if known != found:
                raise BrokenPromiseError(
                    f"prefix: readers of {topic} had {known} up to {end.hex()}, and now {found}"
                )
        if read.start <= self.end < read.next_id:
            self.rows += [row for row in read.rows if row[0] > self.end]
            self.end = read.next_id


@dataclass(slots=True, eq=False)
class ObservedTopic:
    """One topic, with the prefixes that readers of everything and of what has committed found."""

    id: TopicId
    may_be_deleted: bool  # or truncated
    committed_ms: dict[int, int]  # of transactions, by id: when a reply first said so
    publishes: dict[str, Publish] = field(default_factory=dict)  # by payload
    deletions: list[Request] = field(default_factory=list)
    truncations: list[Truncation] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    highest_id: bytes = b""  # that was acknowledged
    prefix: Prefix = field(default_factory=Prefix)
    committed: Prefix = field(default_factory=Prefix)

    def acknowledged(self, publish: Publish, message_id: bytes) -> None:
        """Raises: BrokenPromiseError."""
        publish.applied, publish.id = Applied.YES, message_id
        if message_id <= publish.above:
            raise BrokenPromiseError(
                f"order: {publish.payload} got the id {message_id.hex()} in {self.id}, and "
                f"{publish.above.hex()} was acknowledged before it was sent"
            )
        self.highest_id = max(self.highest_id, message_id)
        is_passed = not self.may_be_deleted and message_id <= self.prefix.end
        if is_passed and (message_id, publish.payload) not in self.prefix.rows:
            raise BrokenPromiseError(
                f"prefix: {publish.payload} was acknowledged at {message_id.hex()} in {self.id}, "
                f"and a reader had passed {self.prefix.end.hex()} without it"
            )

    def check(self, read: Read) -> None:
        """Check a read. Raises: BrokenPromiseError."""
        ids = [each for each, _ in read.rows]
        payloads = [payload for _, payload in read.rows]
        if not read.is_committed and read.reader is None:  # it reads both places of a message
            payloads = [each for each in payloads if not self._may_be_aside(each)]
        if ids != sorted(set(ids)) or len(set(payloads)) != len(payloads):
            raise BrokenPromiseError(f"once: {self.id} has a row twice, or out of order: {read}")
        for message_id, payload in read.rows:
            self._check_row(read, message_id, payload)
        if not self.may_be_deleted and read.reader is None:
            (self.committed if read.is_committed else self.prefix).check(read, self.id)
        found = {payload for _, payload in read.rows}
        for publish in self.publishes.values():
            if publish.payload not in found:
                self._check_missing(read, publish)

    def _may_be_aside(self, payload: str) -> bool:
        return payload in self.publishes and self.publishes[payload].may_be_aside

    def check_prepared(self) -> None:
        """Readers of what has committed, who have read everything, have found the messages of all
        transactions that were prepared and committed. Raises: BrokenPromiseError."""
        found = {payload for _, payload in self.committed.rows}
        for each in self.publishes.values():
            if self.may_be_deleted or not each.may_be_aside or each.payload in found:
                continue
            assert each.tx is not None
            if each.applied is Applied.YES and each.tx.state == "committed":
                raise BrokenPromiseError(
                    f"lost: {each.payload} of {each.tx.id}, which was prepared and has committed, "
                    f"is not in {self.id}"
                )

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
        publish.places.add(message_id)
        if publish.may_be_aside:
            if len(publish.places) > 2:
                raise BrokenPromiseError(f"once: {publish} is at three places in {self.id}")
        elif publish.id is not None and publish.id != message_id:
            raise BrokenPromiseError(
                f"once: {payload} was acknowledged at {publish.id.hex()} and is at "
                f"{message_id.hex()} in {self.id}"
            )
        else:
            publish.id = message_id
        if publish.tx is not None and (read.is_committed or read.reader is not None):
            self._check_visible(read, publish, publish.tx)
        for deletion in self.deletions:
            is_earlier = publish.completed < deletion.invoked
            is_late = deletion.completed_ms <= read.invoked_ms - READ_LEASE_MS
            if is_earlier and is_late and deletion.applied is Applied.YES:
                raise BrokenPromiseError(f"deleted: {self.id} has {payload} again")

    def _check_visible(self, read: Read, publish: Publish, tx: Tx) -> None:
        """A row of a transaction that a read of committed rows, or in a snapshot, has."""
        if tx is read.reader:
            return
        what = f"{publish.payload} of {tx.id} is in {self.id} for {read}"
        if tx.is_lost:
            raise BrokenPromiseError(f"atomic: {what}, and it is {tx.state}")
        if tx.commit_invoked > read.completed:
            raise BrokenPromiseError(f"atomic: {what}, and its commit was never requested")
        if read.reader is not None and not read.reader.snapshot.is_visible(tx.id):
            raise BrokenPromiseError(f"snapshot: {what}, and it is not in that snapshot")
        tx.first_shown = min(tx.first_shown, read.completed)

    def _check_missing(self, read: Read, publish: Publish) -> None:
        """A publish whose row the read does not have."""
        if publish.applied is not Applied.YES or publish.id is None or publish.id <= read.start:
            return
        if publish.may_be_aside and (read.is_committed or read.reader is not None):
            return  # `check_prepared`
        visible_ms = publish.completed_ms
        if publish.tx is not None and (read.is_committed or read.reader is not None):
            found_ms = self._visible_ms(read, publish, publish.tx)
            if found_ms is None:
                return
            visible_ms = max(visible_ms, found_ms)
        if publish.id > read.next_id:
            is_late = visible_ms <= read.invoked_ms - READ_LEASE_MS
            if not (is_late and read.is_caught_up) or self._may_be_deleted(publish, read):
                return
            raise BrokenPromiseError(
                f"lease: {self.id} was read to its end at {read.invoked_ms} without "
                f"{publish.payload}, which was there since {visible_ms}"
            )
        if not (self._may_be_deleted(publish, read) or self._may_be_truncated(publish, read)):
            raise BrokenPromiseError(
                f"lost: {publish.payload} was acknowledged at {publish.id.hex()} in {self.id}, "
                f"and is not among {read}"
            )

    def _visible_ms(self, read: Read, publish: Publish, tx: Tx) -> int | None:
        """Since when readers like this one have the rows of a transaction; None: not yet."""
        if tx is read.reader:
            return None if publish.completed > read.invoked else publish.completed_ms
        if tx.state != "committed":
            return None
        if read.reader is not None:
            return 0 if read.reader.snapshot.is_visible(tx.id) else None
        return self.committed_ms.get(tx.id, NEVER)

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


class ObservedTransactions:
    """All transactions. The checks are those of a single server."""

    def __init__(self) -> None:
        self.all = Observations([])
        self.committed_ms: dict[int, int] = {}  # when a reply said so first, by id

    @property
    def by_id(self) -> dict[int, Tx]:
        return self.all.transactions

    @property
    def open(self) -> list[Tx]:
        """Those of which no reply said that they have ended."""
        return [each for each in self.by_id.values() if not each.is_over]

    def started(self, tx: Tx) -> None:
        """Raises: BrokenPromiseError."""
        if tx.id in self.by_id:
            raise BrokenPromiseError(f"transactions: the id {tx.id} was given twice")
        self.by_id[tx.id] = tx

    def ended(self, tx: Tx, state: str, *, invoked: int, completed: int, now_ms: int) -> None:
        """A reply says that it has ended. Raises: BrokenPromiseError."""
        self._note(tx, state, invoked, completed)
        require(5, invariants.snapshots_hold_nothing_undecided(self.all, tx))
        if state == "committed":
            if tx.commit_invoked == NEVER:
                raise BrokenPromiseError(f"transactions: {tx.id} committed without a request")
            self.committed_ms.setdefault(tx.id, now_ms)
            require(5, invariants.no_update_is_lost(self.all, tx))

    def prepared(self, tx: Tx, *, invoked: int, completed: int) -> None:
        """A reply says that it is prepared. Raises: BrokenPromiseError."""
        self._note(tx, "prepared", invoked, completed)

    def _note(self, tx: Tx, state: str, invoked: int, completed: int) -> None:
        tx.seen.append((invoked, completed, state, None))
        require(9, invariants.endings_stand(self.all, tx))
        require(9, invariants.only_a_resolve_ends_what_is_prepared(self.all, tx))

    def check_snapshots(self) -> None:
        """Raises: BrokenPromiseError."""
        # A replaced leader may give old snapshots, in which nothing commits.
        for tx in self.by_id.values():
            if tx.state == "committed":
                require(5, invariants.snapshots_hold_what_had_committed(self.all, tx))
