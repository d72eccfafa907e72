"""Edits: changes of the transaction state, as values, and their bytes in the log and in snapshot
files (design §4).

    edit := MessagePack [lsn, tag, field…]      fields in the order of the class

Tags are appended and never given a new meaning; a log may be read by a later version. `at_ms` is
the time of the decision: replay uses it, and never the clock.

A frame has passed its checksum before it is decoded here. Every value is checked for its type and
range: a value that does not fit was written by another program or another version, and is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from enum import Enum, StrEnum
from itertools import starmap
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgpack

from tuff.protocol.ids import SEQ_ID_LIMIT, TIMESTAMP_LIMIT, Offset
from tuff.protocol.pointer_list import POINTER_MAX
from tuff.protocol.requests import RollbackDetail
from tuff.protocol.transaction import TransactionType
from tuff.protocol.values import value

T = TypeVar("T")
E = TypeVar("E", bound=Enum)

ITEMS_MAX = 1 << 26  # entries of one list; a frame holds no more, and a longer count is damage


class InvalidReason(StrEnum):
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

    def shared(self, other: PointerRange) -> PointerRange:
        """The pointers that are in both."""
        start = max(self.start, other.start)
        return PointerRange(start, max(start, min(self.stop, other.stop)))


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why a transaction was refused: a transaction that it can't see committed the same change, by
    the edit of this LSN."""

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
    """Of the reserved pointers, only these may still be handed out."""

    at_ms: int
    block: PointerRange


@dataclass(frozen=True, slots=True)
class BlockReturned:
    """A clean stop: none of the reserved pointers will be handed out any more."""

    at_ms: int


@value()
class Started:
    """A transaction started. `seen` is the LSN up to which ends of transactions were in its
    snapshot.

    With `lease_ms` it ends when it is not renewed for that long. The log has no renewals: when the
    service comes up, every lease begins anew. `request_id`: by which the client can repeat or
    withdraw the start. `is_messages_only`: no other store keeps its pointers.
    """

    at_ms: int
    pointer: int
    type: TransactionType
    timeout_ms: int
    expires_at_ms: int
    client: str
    seen: int
    lease_ms: int | None = None
    principal: str | None = None  # None: there was no access control
    request_id: str | None = None
    is_messages_only: bool = False


@dataclass(frozen=True, slots=True)
class StoreJoined:
    """Another store than the messages takes part in the transaction, and may keep its pointers."""

    at_ms: int
    transaction_id: int


@dataclass(frozen=True, slots=True)
class EpochBegun:
    """A long transaction started for an epoch of a sink. The start and the epoch are one record, so
    that no crash can leave the one without the other."""

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
    principal: str | None = None

    @property
    def type(self) -> TransactionType:
        return TransactionType.LONG

    @property
    def request_id(self) -> None:
        return None  # the run and the epoch identify it

    @property
    def is_messages_only(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class SinkForgotten:
    """The record of the sink was deleted."""

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
    """The transaction named these changes in a can-commit that had no conflict."""

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
class Prepared:
    """The transaction may commit, with these changes besides those it named before, and this
    database decides whether it does. From now on only a resolve ends it."""

    at_ms: int
    transaction_id: int
    changes: frozenset[bytes]
    database: str
    published: tuple[RollbackDetail, ...]


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


@value()
class InDoubt:
    """The transaction commits, with these changes besides those it named before, if its message
    rows are there: they are written at the same time as this edit. The next edit of it says so."""

    at_ms: int
    transaction_id: int
    changes: frozenset[bytes]
    published: tuple[RollbackDetail, ...]
    topics: tuple[str, ...]
    request_id: str | None


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The rows of a commit in doubt are durable: the transaction committed."""

    at_ms: int
    transaction_id: int


@dataclass(frozen=True, slots=True)
class Aborted:
    """The transaction was aborted; it may have been invalid before."""

    at_ms: int
    transaction_id: int
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Invalidated:
    """The transaction became invalid: its writes must never become visible."""

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
    """The service was recovered from its files. `lost` are the pointers that may have been handed
    out to starts that did not reach the log."""

    at_ms: int
    is_after_crash: bool
    lost: tuple[PointerRange, ...]


Edit = (
    BlockReserved
    | BlockKept
    | BlockReturned
    | Started
    | StoreJoined
    | EpochBegun
    | SinkForgotten
    | Checkpointed
    | Committing
    | Refused
    | Prepared
    | Committed
    | InDoubt
    | Confirmed
    | Aborted
    | Invalidated
    | Truncated
    | Restarted
)


class MalformedError(Exception):
    """The checksum is right, but no version writes this content."""


class NewerError(MalformedError):
    """The checksum is right, but only a newer version knows this content."""


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """How one value is encoded as plain MessagePack data, and decoded or refused with
    MalformedError. `bounds` are the least and the greatest value of an integer that is encoded
    unchanged."""

    pack: Callable[[T], object]
    unpack: Callable[[object], T]
    bounds: tuple[int, int] | None = None


def to_bytes(data: object) -> bytes:
    packed = _PACKERS.pack(data)
    assert isinstance(packed, bytes)
    return packed


class _Packers(threading.local):
    """A packer for each thread: to make one takes longer than to pack an edit."""

    def __init__(self) -> None:
        packer = msgpack.Packer(use_bin_type=True)
        self.pack = packer.pack
        self.head = packer.pack_array_header


_PACKERS = _Packers()


def joined(*packed: bytes) -> bytes:
    """The list of values that are packed already."""
    head = _PACKERS.head(len(packed))
    assert isinstance(head, bytes)
    return head + b"".join(packed)


def from_bytes(data: bytes) -> object:
    """Raises: MalformedError: not one MessagePack value, or not in plain types."""
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=True, use_list=True)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise MalformedError(f"not MessagePack: {error}") from None


def integer(*, minimum: int = 0, maximum: int = POINTER_MAX) -> Codec[int]:
    def unpack(data: object) -> int:
        if type(data) is not int or not minimum <= data <= maximum:  # True is none here
            raise MalformedError(f"{data!r} is no number from {minimum} to {maximum}")
        return data

    return Codec(int, unpack, (minimum, maximum))


def _unpack_flag(data: object) -> bool:
    if not isinstance(data, bool):
        raise MalformedError(f"{data!r} is neither true nor false")
    return data


def _unpack_text(data: object) -> str:
    if not isinstance(data, str):
        raise MalformedError(f"a text was expected, not {type(data).__name__}")
    return data


def _unpack_blob(data: object) -> bytes:
    if not isinstance(data, bytes):
        raise MalformedError(f"bytes were expected, not {type(data).__name__}")
    return data


POINTER = integer()
COUNT = integer()
TIME_MS = integer(maximum=TIMESTAMP_LIMIT - 1)
SEQ_ID = integer(maximum=SEQ_ID_LIMIT - 1)
FLAG: Codec[bool] = Codec(bool, _unpack_flag)
TEXT: Codec[str] = Codec(str, _unpack_text)
BLOB: Codec[bytes] = Codec(bytes, _unpack_blob)


def as_it_is(value: object) -> object:
    """Pack a value that is MessagePack data already. A tuple becomes a list."""
    return value


_PLAIN = (int, bool, str, bytes, as_it_is)


def optional(codec: Codec[T]) -> Codec[T | None]:
    return Codec(
        as_it_is
        if codec.pack in _PLAIN
        else lambda value: None if value is None else codec.pack(value),
        lambda data: None if data is None else codec.unpack(data),
    )


def tuple_of(codec: Codec[T]) -> Codec[tuple[T, ...]]:
    return Codec(
        as_it_is if codec.pack in _PLAIN else lambda values: list(map(codec.pack, values)),
        lambda data: tuple(codec.unpack(item) for item in items(data)),
    )


def _unpack_keys(data: object) -> frozenset[bytes]:
    blobs = items(data)
    if not set(map(type, blobs)) <= {bytes}:
        raise MalformedError("a change is no bytes")
    keys: frozenset[bytes] = frozenset(blobs)  # type: ignore[arg-type] # of bytes alone
    if len(keys) != len(blobs):
        raise MalformedError("a change stands twice in one change set")
    return keys


# Sorted, so that the same edit has the same bytes in every process.
KEYS: Codec[frozenset[bytes]] = Codec(sorted, _unpack_keys)


def enum_of(kind: type[E]) -> Codec[E]:
    def unpack(data: object) -> E:
        try:
            return kind(data)
        except ValueError:
            error = NewerError if isinstance(data, str) else MalformedError
            raise error(f"{data!r} is no {kind.__name__}") from None

    # What `value` returns, without the descriptor in Python that costs more than all the rest.
    return Codec(attrgetter("_value_"), unpack)


def record(kind: type[T], *codecs: Codec[Any]) -> Codec[T]:
    """Encode a dataclass as the list of its fields, in their order. Fields behind the last codec
    are left out, and decoded as their defaults."""
    known = fields(kind)  # type: ignore[arg-type] # only dataclasses
    names = [field.name for field in known[: len(codecs)]]
    assert len(names) == len(codecs), f"{kind.__name__} has {len(names)} fields"
    assert all(each.default is not MISSING for each in known[len(codecs) :]), f"{kind.__name__}"
    unpacks = [codec.unpack for codec in codecs]
    # A snapshot packs a hundred thousand records, and most fields of each travel as they are.
    values_of = attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)
    changed = [
        (index, codec.pack) for index, codec in enumerate(codecs) if codec.pack not in _PLAIN
    ]

    def pack(value: T) -> object:
        row = list(values_of(value))
        for index, to_data in changed:
            row[index] = to_data(row[index])
        return row

    def unpack(data: object) -> T:
        values = items(data, count=len(names))
        unpacked = [to_value(v) for to_value, v in zip(unpacks, values, strict=True)]
        return kind(**dict(zip(names, unpacked, strict=True)))

    return Codec(pack if changed else values_of, unpack)


def check_rows(rows: Sequence[object], codecs: Sequence[Codec[Any]]) -> None:
    """Check many records as unpacking each of them would, but column by column, at a tenth of the
    cost. Raises: MalformedError."""
    if not rows:
        return
    if set(map(type, rows)) != {list} or set(map(len, rows)) != {len(codecs)}:  # type: ignore[arg-type] # lists
        for row in rows:
            items(row, count=len(codecs))
    for codec, column in zip(codecs, zip(*rows, strict=True), strict=True):
        for data in _distinct(codec, column):
            codec.unpack(data)


def _distinct(codec: Codec[Any], column: Sequence[object]) -> Iterable[object]:
    """Some of these values: if they can be unpacked, all can."""
    kinds = set(map(type, column))
    if codec.bounds is not None and kinds == {int}:
        return min(column), max(column)  # type: ignore[type-var] # integers
    if kinds <= {str, type(None)}:  # the same few names again and again
        return set(column)
    if kinds == {list}:
        full = [data for data in column if data]  # few have anything in them
        return full if len(full) == len(column) else [*full, []]
    return column


def rows_of(packed: Sequence[bytes]) -> list[list[Any]]:
    """The fields of records that were packed, or checked, by this process."""
    rows: list[list[Any]] = msgpack.unpackb(joined(*packed), raw=False, use_list=True)
    return rows


def items(data: object, *, count: int | None = None) -> list[object]:
    """The entries of a list; `count` None takes any number of them. Raises: MalformedError."""
    if not isinstance(data, list) or len(data) > ITEMS_MAX:
        raise MalformedError(f"a list was expected, not {type(data).__name__}")
    if count is not None and len(data) != count:
        raise MalformedError(f"a list of {count} entries was expected, and this has {len(data)}")
    return data


def _unpack_offset(data: object) -> Offset:
    timestamp_ms, seq_id = items(data, count=2)
    return Offset(TIME_MS.unpack(timestamp_ms), SEQ_ID.unpack(seq_id))


OFFSET: Codec[Offset] = Codec(as_it_is, _unpack_offset)
ROLLBACK_DETAIL = record(RollbackDetail, POINTER, OFFSET, OFFSET)
POINTER_RANGE = record(PointerRange, POINTER, POINTER)
CONFLICT = record(Conflict, BLOB, POINTER, TEXT, COUNT)
REASON = enum_of(InvalidReason)
TYPE = enum_of(TransactionType)
TOPICS = tuple_of(TEXT)
PUBLISHED = tuple_of(ROLLBACK_DETAIL)

IN_DOUBT = (TIME_MS, POINTER, KEYS, PUBLISHED, TOPICS, optional(TEXT))

_STARTED = (TIME_MS, POINTER, TYPE, COUNT, TIME_MS, TEXT, COUNT, optional(COUNT))
_EPOCH_BEGUN = (
    TIME_MS, POINTER, COUNT, TIME_MS, TEXT, COUNT, optional(COUNT), TEXT, COUNT, TEXT,
)  # fmt: skip
# The fields of each kind of edit, by its tag.
_FIELDS: Mapping[int, tuple[type[Any], tuple[Codec[Any], ...]]] = {
    1: (BlockReserved, (TIME_MS, POINTER_RANGE)),
    2: (BlockReturned, (TIME_MS,)),
    3: (Started, _STARTED),
    4: (Checkpointed, (TIME_MS, POINTER, POINTER)),
    5: (Committing, (TIME_MS, POINTER, KEYS)),
    6: (Refused, (TIME_MS, POINTER, CONFLICT)),
    7: (Committed, (TIME_MS, POINTER, KEYS, FLAG, PUBLISHED, TOPICS, optional(TEXT))),
    8: (Aborted, (TIME_MS, POINTER, TOPICS)),
    9: (Invalidated, (TIME_MS, POINTER, REASON, TOPICS)),
    10: (Truncated, (TIME_MS, tuple_of(POINTER))),
    11: (Restarted, (TIME_MS, FLAG, tuple_of(POINTER_RANGE))),
    12: (EpochBegun, _EPOCH_BEGUN),
    13: (SinkForgotten, (TIME_MS, TEXT)),
    14: (BlockKept, (TIME_MS, POINTER_RANGE)),
    15: (Prepared, (TIME_MS, POINTER, KEYS, TEXT, PUBLISHED)),
    # Starts with a principal, which servers without access control have to refuse.
    16: (Started, (*_STARTED, TEXT)),
    17: (EpochBegun, (*_EPOCH_BEGUN, TEXT)),
    # Starts with a request id, or in which only messages take part.
    18: (Started, (*_STARTED, optional(TEXT), optional(TEXT), FLAG)),
    19: (StoreJoined, (TIME_MS, POINTER)),
    20: (InDoubt, IN_DOUBT),
    21: (Confirmed, (TIME_MS, POINTER)),
}
_CODECS = {tag: record(kind, *codecs) for tag, (kind, codecs) in _FIELDS.items()}
_WITH_PRINCIPAL: Mapping[type[Edit], int] = {Started: 16, EpochBegun: 17}
_WITH_REQUEST = 18
# The first one of each kind.
_TAGS: Mapping[type[Edit], int] = {kind: tag for tag, (kind, _) in reversed(tuple(_FIELDS.items()))}


def encode_edit(lsn: int, edit: Edit) -> bytes:
    """The body of one log frame."""
    return to_bytes(_row(lsn, edit))


def encode_edits(edits: Iterable[tuple[int, Edit]]) -> list[bytes]:
    """The bodies of log frames, each with its number."""
    return list(map(_PACKERS.pack, starmap(_row, edits)))


def published_row(published: Iterable[RollbackDetail]) -> list[tuple[int, Offset, Offset]]:
    """What `PUBLISHED` packs, at a third of the cost."""
    return [(each.pointer, each.first, each.last) for each in published]


def _row(lsn: int, edit: Edit) -> Sequence[object]:
    """The fields of an edit behind its number and its tag. Those of nearly all edits are listed
    here, which takes a third of the time of their codecs; a test compares the two."""
    if isinstance(edit, Committed):
        return (
            lsn, 7, edit.at_ms, edit.transaction_id, sorted(edit.changes), edit.is_read_only,
            published_row(edit.published), edit.topics, edit.request_id,
        )  # fmt: skip
    if isinstance(edit, InDoubt):
        return (
            lsn, 20, edit.at_ms, edit.transaction_id, sorted(edit.changes),
            published_row(edit.published), edit.topics, edit.request_id,
        )  # fmt: skip
    if isinstance(edit, Started):
        row = (
            edit.at_ms, edit.pointer, edit.type, edit.timeout_ms, edit.expires_at_ms,
            edit.client, edit.seen, edit.lease_ms,
        )  # fmt: skip
        if edit.request_id is not None or edit.is_messages_only:
            return (lsn, 18, *row, edit.principal, edit.request_id, edit.is_messages_only)
        return (lsn, 3, *row) if edit.principal is None else (lsn, 16, *row, edit.principal)
    return row_of(lsn, edit)


def row_of(lsn: int, edit: Edit) -> Sequence[object]:
    """The fields of any edit, by the codecs of its kind."""
    tag = _tag(edit)
    packed = _CODECS[tag].pack(edit)
    assert isinstance(packed, list | tuple)
    return (lsn, tag, *packed)


def _tag(edit: Edit) -> int:
    if isinstance(edit, Started) and (edit.request_id is not None or edit.is_messages_only):
        return _WITH_REQUEST
    if isinstance(edit, Started | EpochBegun) and edit.principal is not None:
        return _WITH_PRINCIPAL[type(edit)]
    return _TAGS[type(edit)]


def decode_edit(body: bytes) -> tuple[int, Edit]:
    """The log sequence number and the edit of one frame.

    Raises:
        MalformedError: no edit that this version knows; NewerError: but a newer one does.
    """
    lsn, tag, values = _split(items(from_bytes(body)))
    if not isinstance(tag, int) or tag not in _CODECS:
        error = NewerError if isinstance(tag, int) else MalformedError
        raise error(f"there is no edit with the tag {tag!r}")
    edit: Edit = _CODECS[tag].unpack(values)
    return COUNT.unpack(lsn), edit


def _split(entries: list[object]) -> tuple[object, object, list[object]]:
    if len(entries) < 2:
        raise MalformedError("an edit starts with its number and its tag")
    return entries[0], entries[1], entries[2:]
