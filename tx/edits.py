"""What can happen to the transaction state, as values: the entries of the log (design §4).

    edit := MessagePack [lsn, tag, field…]      fields in the order of the class

Tags are appended and never given a new meaning; a log may be read by a later version. `at_ms` is
the time of the decision: replay uses it, and never the clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tuff.protocol.ids import Offset
from tuff.protocol.requests import RollbackDetail
from tuff.protocol.transaction import TransactionType
from tuff.protocol.values import value
from tx.encoding import (
    BLOB,
    COUNT,
    FLAG,
    KEYS,
    POINTER,
    SEQ_ID,
    TEXT,
    TIME_MS,
    Form,
    MalformedError,
    NewerError,
    as_it_is,
    enum_of,
    from_bytes,
    items,
    optional,
    record,
    to_bytes,
    tuple_of,
)


class InvalidReason(Enum):
    """Why a transaction is invalid (protocol §5.2)."""

    TIMED_OUT = "timed_out"
    INVALIDATED = "invalidated"
    BLOCKED_READERS = "blocked_readers"
    ABORT_OF_LONG = "abort_of_long"
    LOST_IN_CRASH = "lost_in_crash"
    LEASE_EXPIRED = "lease_expired"


@dataclass(frozen=True, slots=True)
class PointerRange:
    """Pointers from `start` up to, and without, `stop`."""

    start: int
    stop: int

    @property
    def count(self) -> int:
        return self.stop - self.start

    def shared(self, other: "PointerRange") -> "PointerRange":
        """The pointers that are in both."""
        start = max(self.start, other.start)
        return PointerRange(start, max(start, min(self.stop, other.stop)))


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why a transaction was refused: an equal change of a transaction that it can't see, which
    committed at `committer_lsn`."""

    key: bytes
    committer: int
    committer_client: str
    committer_lsn: int


@dataclass(frozen=True, slots=True)
class BlockReserved:
    """Pointers of this block may be handed out from now on, once this is durable."""

    at_ms: int
    block: PointerRange


@dataclass(frozen=True, slots=True)
class BlockKept:
    """Of what was reserved and not handed out, only these pointers may still be handed out."""

    at_ms: int
    block: PointerRange


@dataclass(frozen=True, slots=True)
class BlockReturned:
    """A clean stop: what was reserved and not handed out never will be."""

    at_ms: int


@value()
class Started:
    """A transaction started. `seen` is the LSN up to which ends of transactions were in its
    snapshot.

    With `lease_ms` it ends when it is not renewed for that long. The log has no renewals: when a
    service comes up, every lease begins anew.
    """

    at_ms: int
    pointer: int
    type: TransactionType
    timeout_ms: int
    expires_at_ms: int
    client: str
    seen: int
    lease_ms: int | None = None


@dataclass(frozen=True, slots=True)
class EpochBegun:
    """A long transaction started for an epoch of a sink, which is at that epoch from now on. One
    record, so that no crash can leave the one without the other."""

    at_ms: int
    pointer: int
    timeout_ms: int
    expires_at_ms: int
    client: str
    seen: int
    lease_ms: int | None
    sink: str
    epoch: int
    run_id: str

    @property
    def type(self) -> TransactionType:
        return TransactionType.LONG


@dataclass(frozen=True, slots=True)
class SinkForgotten:
    """Nothing is recorded of the sink any more."""

    at_ms: int
    sink: str


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """The transaction writes under a new pointer."""

    at_ms: int
    transaction_id: int
    pointer: int


@value()
class Committing:
    """The transaction named changes, and may commit them."""

    at_ms: int
    transaction_id: int
    changes: frozenset[bytes]


@dataclass(frozen=True, slots=True)
class Refused:
    """The transaction conflicts; it can only be aborted or invalidated."""

    at_ms: int
    transaction_id: int
    conflict: Conflict


@value()
class Committed:
    """The transaction committed, with these changes besides those it named before."""

    at_ms: int
    transaction_id: int
    changes: frozenset[bytes]
    is_read_only: bool
    published: tuple[RollbackDetail, ...]
    topics: tuple[str, ...]
    request_id: str | None


@dataclass(frozen=True, slots=True)
class Aborted:
    """The transaction ended, and nothing of it is left; also when it was invalid before."""

    at_ms: int
    transaction_id: int
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Invalidated:
    """The transaction ended, and what it wrote must never become visible."""

    at_ms: int
    transaction_id: int
    reason: InvalidReason
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Truncated:
    """These pointers left the invalid list."""

    at_ms: int
    pointers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Restarted:
    """The service came up from its files. `lost` are the pointers that may have been handed out by
    starts that did not reach the log."""

    at_ms: int
    is_after_crash: bool
    lost: tuple[PointerRange, ...]


Edit = (
    BlockReserved
    | BlockKept
    | BlockReturned
    | Started
    | EpochBegun
    | SinkForgotten
    | Checkpointed
    | Committing
    | Refused
    | Committed
    | Aborted
    | Invalidated
    | Truncated
    | Restarted
)


def _unpack_offset(data: object) -> Offset:
    timestamp_ms, seq_id = items(data, count=2)
    return Offset(TIME_MS.unpack(timestamp_ms), SEQ_ID.unpack(seq_id))


OFFSET: Form[Offset] = Form(as_it_is, _unpack_offset)
ROLLBACK_DETAIL = record(RollbackDetail, POINTER, OFFSET, OFFSET)
POINTER_RANGE = record(PointerRange, POINTER, POINTER)
CONFLICT = record(Conflict, BLOB, POINTER, TEXT, COUNT)
REASON = enum_of(InvalidReason)
TYPE = enum_of(TransactionType)
TOPICS = tuple_of(TEXT)
PUBLISHED = tuple_of(ROLLBACK_DETAIL)

_FORMS: Mapping[int, tuple[type[Any], Form[Any]]] = {
    1: (BlockReserved, record(BlockReserved, TIME_MS, POINTER_RANGE)),
    2: (BlockReturned, record(BlockReturned, TIME_MS)),
    3: (
        Started,
        record(Started, TIME_MS, POINTER, TYPE, COUNT, TIME_MS, TEXT, COUNT, optional(COUNT)),
    ),
    4: (Checkpointed, record(Checkpointed, TIME_MS, POINTER, POINTER)),
    5: (Committing, record(Committing, TIME_MS, POINTER, KEYS)),
    6: (Refused, record(Refused, TIME_MS, POINTER, CONFLICT)),
    7: (
        Committed,
        record(Committed, TIME_MS, POINTER, KEYS, FLAG, PUBLISHED, TOPICS, optional(TEXT)),
    ),
    8: (Aborted, record(Aborted, TIME_MS, POINTER, TOPICS)),
    9: (Invalidated, record(Invalidated, TIME_MS, POINTER, REASON, TOPICS)),
    10: (Truncated, record(Truncated, TIME_MS, tuple_of(POINTER))),
    11: (Restarted, record(Restarted, TIME_MS, FLAG, tuple_of(POINTER_RANGE))),
    12: (
        EpochBegun,
        record(
            EpochBegun,
            TIME_MS,
            POINTER,
            COUNT,
            TIME_MS,
            TEXT,
            COUNT,
            optional(COUNT),
            TEXT,
            COUNT,
            TEXT,
        ),
    ),
    13: (SinkForgotten, record(SinkForgotten, TIME_MS, TEXT)),
    14: (BlockKept, record(BlockKept, TIME_MS, POINTER_RANGE)),
}
_TAGS: Mapping[type[Any], int] = {kind: tag for tag, (kind, _) in _FORMS.items()}


def encode_edit(lsn: int, edit: Edit) -> bytes:
    """The body of one log frame."""
    tag = _TAGS[type(edit)]
    packed = _FORMS[tag][1].pack(edit)
    assert isinstance(packed, list | tuple)
    return to_bytes([lsn, tag, *packed])


def decode_edit(body: bytes) -> tuple[int, Edit]:
    """The log sequence number and the edit of one frame.

    Raises:
        MalformedError: no edit that this version knows; NewerError: but a newer one does.
    """
    lsn, tag, values = _split(items(from_bytes(body)))
    if not isinstance(tag, int) or tag not in _FORMS:
        error = NewerError if isinstance(tag, int) else MalformedError
        raise error(f"there is no edit with the tag {tag!r}")
    edit: Edit = _FORMS[tag][1].unpack(values)
    return COUNT.unpack(lsn), edit


def _split(entries: list[object]) -> tuple[object, object, list[object]]:
    if len(entries) < 2:
        raise MalformedError("an edit starts with its number and its tag")
    return entries[0], entries[1], entries[2:]
