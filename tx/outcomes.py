"""Transactions as values, in progress and ended; the errors of calls that come after an end; and
the table of outcomes, which a client may ask for (protocol §5.2, Commit after a lost reply).

The table is bounded by time, by count and by size. Dropping an outcome is no edit: a replay brings
it back, and the next tick drops it again.

All but the newest outcomes are kept as the bytes that a snapshot file has for them. A million of
them as values made the garbage collector pause, and every snapshot packed them anew (decision
0026).
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum

from tuff.protocol.errors import (
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionInvalidatedError,
    TransactionNotInProgressError,
    TransactionNotPreparedError,
    TransactionPreparedError,
    TransactionTimedOutError,
)
from tuff.protocol.requests import RollbackDetail
from tuff.protocol.transaction import (
    POINTERS_PER_MS,
    Transaction,
    TransactionStatus,
    TransactionType,
)
from tuff.protocol.values import value
from tx.log_records import (
    COUNT,
    POINTER,
    PUBLISHED,
    REASON,
    TEXT,
    TIME_MS,
    TOPICS,
    TYPE,
    Conflict,
    InDoubt,
    InvalidReason,
    check_rows,
    enum_of,
    from_bytes,
    items,
    optional,
    published_row,
    record,
    rows_of,
    to_bytes,
    tuple_of,
)

UNKNOWN_CLIENT = "unknown"
OUTCOME_COUNT_MAX = 1_000_000  # outcomes
OUTCOME_BYTES_MAX = 64 * 1024 * 1024  # bytes, as they are packed
LOOKED_AT_COUNT_MAX = 2_000  # outcomes of one pass; keeps a tick to a few milliseconds
# Outcomes that are kept as values, and at most twice as many: a commit that waited reads its own.
NEWEST_COUNT_MAX = 256


class EndedState(StrEnum):
    """How a transaction ended; the values are the protocol's."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    INVALID = "invalid"


@value()
class Preparation:
    """A transaction was prepared, by the edit of this `lsn`: `database` decides how it ends.
    `published` is in the reply to its prepare and to its commit."""

    lsn: int
    at_ms: int
    database: str
    published: tuple[RollbackDetail, ...]


@value(kw_only=True)
class OpenTransaction:
    """A transaction in progress.

    `transaction` has the snapshot in which the transaction reads, and `seen` is the LSN up to which
    ends of other transactions are in that snapshot. `changes` is the union of what its can-commits
    and its prepare named, None before the first one. `conflict` is why a can-commit was refused:
    the transaction can't commit any more. `survived_crash`: it was open when the service crashed,
    so one of its can-commits may have been lost. `lease_ms` is how long it lives without being
    renewed, None for as long as its time-out. `prepared`: no time-out and no lease ends it.
    `doubt`: it commits if its rows are there. `request_id`: of its start. `is_messages_only`: no
    other store keeps its pointers.
    """

    transaction: Transaction
    seen: int
    client: str
    timeout_ms: int
    started_at_ms: int
    expires_at_ms: int
    changes: frozenset[bytes] | None = None
    conflict: Conflict | None = None
    survived_crash: bool = False
    lease_ms: int | None = None
    prepared: Preparation | None = None
    doubt: InDoubt | None = None
    request_id: str | None = None
    is_messages_only: bool = False

    @property
    def transaction_id(self) -> int:
        return self.transaction.transaction_id

    @property
    def is_short(self) -> bool:
        return self.transaction.type is TransactionType.SHORT

    @property
    def pointers(self) -> tuple[int, ...]:
        """The transaction id and its checkpoint pointers, ascending."""
        transaction = self.transaction
        return (transaction.transaction_id, *transaction.checkpoint_write_pointers)

    @property
    def state(self) -> str:
        """As the protocol names it."""
        if self.prepared is not None:
            return "prepared"
        is_committing = self.changes is not None or self.doubt is not None
        return "committing" if is_committing else "in_progress"


@value()
class Outcome:
    """A transaction that has ended, by the edit of this `lsn`. `reason` is None unless it is
    invalid; `published` is in the reply to its commit."""

    transaction_id: int
    state: EndedState
    reason: InvalidReason | None
    type: TransactionType
    client: str
    started_at_ms: int
    expires_at_ms: int
    ended_at_ms: int
    checkpoints: tuple[int, ...]
    published: tuple[RollbackDetail, ...]
    topics: tuple[str, ...]
    request_id: str | None
    lsn: int

    @property
    def is_short(self) -> bool:
        return self.type is TransactionType.SHORT

    @property
    def is_lost(self) -> bool:
        """Whether nothing but the pointer is known of it."""
        return self.lsn == 0

    @property
    def pointers(self) -> tuple[int, ...]:
        """The transaction id and its checkpoint pointers, ascending."""
        return (self.transaction_id, *self.checkpoints)


def lost_outcome(pointer: int) -> Outcome:
    """The outcome of a pointer that may have been handed out to a start that did not reach the
    log."""
    at_ms = pointer // POINTERS_PER_MS
    return Outcome(
        transaction_id=pointer,
        state=EndedState.INVALID,
        reason=InvalidReason.LOST_IN_CRASH,
        type=TransactionType.SHORT,
        client=UNKNOWN_CLIENT,
        started_at_ms=at_ms,
        expires_at_ms=at_ms,
        ended_at_ms=at_ms,
        checkpoints=(),
        published=(),
        topics=(),
        request_id=None,
        lsn=0,
    )


def status_of(found: OpenTransaction | Outcome) -> TransactionStatus:
    """The state or outcome of a transaction, for diagnosis."""
    if isinstance(found, OpenTransaction):
        prepared = found.prepared
        return TransactionStatus(
            transaction_id=found.transaction_id,
            state=found.state,
            client=found.client,
            started_at_ms=found.started_at_ms,
            expires_at_ms=found.expires_at_ms if prepared is None else None,
            database=None if prepared is None else prepared.database,
        )
    return TransactionStatus(
        transaction_id=found.transaction_id,
        state=found.state.value,
        client=found.client,
        started_at_ms=found.started_at_ms,
        reason=None if found.reason is None else found.reason.value,
        ended_at_ms=found.ended_at_ms,
    )


def prepared_error(opened: OpenTransaction) -> TransactionPreparedError:
    """The error of a call that a prepared transaction does not take."""
    prepared = opened.prepared
    assert prepared is not None
    return TransactionPreparedError(
        f"transaction {opened.transaction_id} is prepared, and the database {prepared.database!r} "
        "decides how it ends; resolve it with the outcome that the database has",
        members={"database": prepared.database, "preparedAt": prepared.at_ms},
    )


def not_prepared_error(transaction_id: int) -> TransactionNotPreparedError:
    """The error of a resolve that commits what was never prepared."""
    return TransactionNotPreparedError(
        f"transaction {transaction_id} was not prepared; commit it, or resolve it as aborted"
    )


def ended_error(outcome: Outcome) -> TransactionNotInProgressError:
    """The error of a call that needs this transaction in progress."""
    name = f"transaction {outcome.transaction_id}"
    match outcome.state:
        case EndedState.COMMITTED:
            return TransactionCommittedError(f"{name} has committed; start another one")
        case EndedState.ABORTED:
            return TransactionAbortedError(f"{name} was aborted; start another one")
        case EndedState.INVALID:
            return _invalid_error(outcome, name)


def _invalid_error(outcome: Outcome, name: str) -> TransactionNotInProgressError:
    assert outcome.reason is not None
    members = {"reason": outcome.reason.value}
    if outcome.reason is InvalidReason.TIMED_OUT:
        seconds = (outcome.expires_at_ms - outcome.started_at_ms) / 1000
        return TransactionTimedOutError(
            f"{name} did not end within its {seconds:g} seconds; undo its other writes, abort it, "
            "and start another one",
            members=members,
        )
    return TransactionInvalidatedError(
        f"{name} is invalid ({outcome.reason.value}); undo its other writes, abort it, and start "
        "another one",
        members=members,
    )


STATE = enum_of(EndedState)
_CODECS = (
    POINTER, STATE, optional(REASON), TYPE, TEXT, TIME_MS, TIME_MS, TIME_MS,
    tuple_of(POINTER), PUBLISHED, TOPICS, optional(TEXT), COUNT,
)  # fmt: skip
OUTCOME = record(Outcome, *_CODECS)
# Indexes of fields in a packed outcome.
_ID, _REASON, _STARTED, _ENDED, _CHECKPOINTS, _REQUEST, _LSN = 0, 2, 5, 7, 8, 11, 12
_TAKEN_COUNT = 1_000  # outcomes unpacked in one call of msgpack, which makes each of them cheap


def packed_outcomes(rows: Sequence[object]) -> list[bytes]:
    """Outcomes of a file, each packed as it is kept here. Raises: MalformedError."""
    check_rows(rows, _CODECS)
    return list(map(to_bytes, rows))


class PackedOutcomes:
    """Outcomes as they were at one moment. One is unpacked when it is read."""

    def __init__(self, kept: Iterable[Outcome | bytes]) -> None:
        self._kept = tuple(kept)

    def packed(self) -> list[bytes]:
        """Each as MessagePack."""
        return [each if isinstance(each, bytes) else _pack(each) for each in self._kept]

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Outcome]:
        return map(_unpack, self._kept)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedOutcomes) and self.packed() == other.packed()

    __hash__ = None  # type: ignore[assignment]  # a list, never a key


# Transaction id, LSN, and time of an end. A plain tuple of numbers, since the garbage
# collector does not track those.
_Ended = tuple[int, int, int]
_NOTHING: tuple[tuple[int, ...], str | None] = ((), None)


class Outcomes:
    """Ended transactions by id, in the order in which they ended."""

    def __init__(self, outcomes: Iterable[Outcome] = ()) -> None:
        self._by_id: dict[int, Outcome | bytes] = {}
        self._lsns: dict[int, int] = {}
        self._newest: deque[Outcome] = deque()
        # Checkpoints, and the id of the request, of the few that have any.
        self._noted: dict[int, tuple[tuple[int, ...], str | None]] = {}
        self._id_by_pointer: dict[int, int] = {}
        self._by_request: dict[str, int] = {}
        self._in_order: deque[_Ended] = deque()
        # Due to be dropped, but still needed: on the invalid list, or carried by rows.
        self._needed: deque[_Ended] = deque()
        self.size_bytes = 0
        for outcome in outcomes:
            self.put(outcome)

    @classmethod
    def of(cls, image: PackedOutcomes) -> "Outcomes":
        """The outcomes of an image. There may be a million, so none is made a value."""
        outcomes, packed = cls(), image.packed()
        for start in range(0, len(packed), _TAKEN_COUNT):
            outcomes._take(packed[start : start + _TAKEN_COUNT])
        return outcomes

    def _take(self, packed: Sequence[bytes]) -> None:
        rows = rows_of(packed)
        columns = list(zip(*rows, strict=True))
        ids, lsns = columns[_ID], columns[_LSN]
        self._by_id.update(zip(ids, packed, strict=True))
        self._lsns.update(zip(ids, lsns, strict=True))
        self._in_order.extend(zip(ids, lsns, columns[_ENDED], strict=True))
        self.size_bytes += sum(map(len, packed))
        for row in rows:
            if row[_CHECKPOINTS] or row[_REQUEST] is not None:
                self._note(row[_ID], tuple(row[_CHECKPOINTS]), row[_REQUEST])

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Outcome]:
        return map(_unpack, self._by_id.values())

    def __contains__(self, pointer: int) -> bool:
        return self._id_by_pointer.get(pointer, pointer) in self._by_id

    def image(self) -> PackedOutcomes:
        """All outcomes at this moment; later ones don't change it."""
        return PackedOutcomes(self._by_id.values())

    def put(self, outcome: Outcome) -> None:
        """Add an outcome; it replaces an earlier one of the same transaction."""
        transaction_id = outcome.transaction_id
        if transaction_id in self._by_id:
            self._drop(transaction_id)
        self._by_id[transaction_id] = outcome
        self._lsns[transaction_id] = outcome.lsn
        if outcome.checkpoints or outcome.request_id is not None:
            self._note(transaction_id, outcome.checkpoints, outcome.request_id)
        self._in_order.append((transaction_id, outcome.lsn, outcome.ended_at_ms))
        self._newest.append(outcome)
        if len(self._newest) >= 2 * NEWEST_COUNT_MAX:
            self._pack_oldest()

    def _note(
        self, transaction_id: int, checkpoints: tuple[int, ...], request_id: str | None
    ) -> None:
        self._noted[transaction_id] = checkpoints, request_id
        self._id_by_pointer.update(dict.fromkeys(checkpoints, transaction_id))
        if request_id is not None:
            self._by_request[request_id] = transaction_id

    def _pack_oldest(self) -> None:
        """Pack all but the newest, together, which costs half of packing one by one."""
        by_id, newest = self._by_id, list(self._newest)
        oldest = [
            each for each in newest[:-NEWEST_COUNT_MAX] if by_id.get(each.transaction_id) is each
        ]
        self._newest = deque(newest[-NEWEST_COUNT_MAX:])
        packed = list(map(to_bytes, map(_row, oldest)))
        by_id.update(zip([each.transaction_id for each in oldest], packed, strict=True))
        self.size_bytes += sum(map(len, packed))

    def find(self, pointer: int) -> Outcome | None:
        """By transaction id or checkpoint pointer; None where nothing is remembered."""
        kept = self._by_id.get(self._id_by_pointer.get(pointer, pointer))
        return None if kept is None else _unpack(kept)

    def started_at_ms(self, pointer: int) -> int | None:
        """When this one started; None where nothing is remembered."""
        kept = self._by_id.get(self._id_by_pointer.get(pointer, pointer))
        if isinstance(kept, bytes):
            return TIME_MS.unpack(items(from_bytes(kept))[_STARTED])
        return None if kept is None else kept.started_at_ms

    def reason(self, pointer: int) -> InvalidReason | None:
        """Why this one is invalid; None where it is not, or nothing is remembered."""
        kept = self._by_id.get(self._id_by_pointer.get(pointer, pointer))
        if isinstance(kept, bytes):
            return optional(REASON).unpack(items(from_bytes(kept))[_REASON])
        return None if kept is None else kept.reason

    def of_request(self, request_id: str) -> Outcome | None:
        """The committed run of that request; None where nothing is remembered."""
        transaction_id = self._by_request.get(request_id)
        return None if transaction_id is None else self.find(transaction_id)

    def newest_first(self) -> Iterator[Outcome]:
        """Each by the LSN of its end, the highest first."""
        for transaction_id, lsn, _ in reversed(self._in_order):
            if self._lsns.get(transaction_id) == lsn:
                yield _unpack(self._by_id[transaction_id])

    def forget(
        self, *, ended_before_ms: int, is_needed: Callable[[int, tuple[int, ...]], bool]
    ) -> list[int]:
        """Drop the outcomes that ended before that time, and the oldest above the bounds, except
        those of which `is_needed` returns true, given the LSN of the end and the pointers. The
        transaction ids of what was dropped.

        A call looks at a bounded number, so that several may be necessary.
        """
        looked_at = [
            self._needed.popleft() for _ in range(min(len(self._needed), LOOKED_AT_COUNT_MAX))
        ]
        dropped = [each[0] for each in looked_at if self._maybe_drop(each, is_needed)]
        for _ in range(LOOKED_AT_COUNT_MAX):
            if not self._in_order or not self._is_due(self._in_order[0], ended_before_ms):
                break
            ended = self._in_order.popleft()
            if self._maybe_drop(ended, is_needed):
                dropped.append(ended[0])
        return dropped

    def _is_due(self, ended: _Ended, ended_before_ms: int) -> bool:
        transaction_id, lsn, ended_at_ms = ended
        return (
            ended_at_ms < ended_before_ms
            or self._lsns.get(transaction_id) != lsn
            or len(self._by_id) - len(self._needed) > OUTCOME_COUNT_MAX
            or self.size_bytes > OUTCOME_BYTES_MAX
        )

    def _maybe_drop(self, ended: _Ended, is_needed: Callable[[int, tuple[int, ...]], bool]) -> bool:
        transaction_id, lsn, _ = ended
        if self._lsns.get(transaction_id) != lsn:
            return False  # it ended again, and is further behind in the order
        checkpoints, _ = self._noted.get(transaction_id, _NOTHING)
        if is_needed(lsn, (transaction_id, *checkpoints)):
            self._needed.append(ended)
            return False
        self._drop(transaction_id)
        return True

    def _drop(self, transaction_id: int) -> None:
        kept = self._by_id.pop(transaction_id)
        del self._lsns[transaction_id]
        if isinstance(kept, bytes):
            self.size_bytes -= len(kept)
        checkpoints, request_id = self._noted.pop(transaction_id, _NOTHING)
        for pointer in checkpoints:
            self._id_by_pointer.pop(pointer, None)
        if request_id is not None:
            self._by_request.pop(request_id, None)


def _pack(outcome: Outcome) -> bytes:
    return to_bytes(_row(outcome))


def _row(outcome: Outcome) -> Sequence[object]:
    """What `OUTCOME` packs, at a third of the cost: every end of a transaction is packed."""
    return (
        outcome.transaction_id, outcome.state, outcome.reason, outcome.type, outcome.client,
        outcome.started_at_ms, outcome.expires_at_ms, outcome.ended_at_ms, outcome.checkpoints,
        published_row(outcome.published), outcome.topics, outcome.request_id, outcome.lsn,
    )  # fmt: skip


def _unpack(kept: Outcome | bytes) -> Outcome:
    return OUTCOME.unpack(from_bytes(kept)) if isinstance(kept, bytes) else kept
