"""The transaction as a value: its snapshot, what it sees, and its TTransaction bytes.

The bytes are Tephra's TTransaction struct in Thrift's TBinaryProtocol, exactly as Tephra's own
codec writes them, so that Tephra clients can read them (protocol §5.1):

    i64 field   := 0a id(2) value(8)            i32 field := 08 id(2) value(4)
    list field  := 0f id(2) 0a count(4) value(8)*
    TTransaction := transactionId(1) readPointer(2) invalids(3) inProgress(4) firstShort(5) type(6)
                    writePointer(7) checkpointWritePointers(8) visibilityLevel(9) 00

A reader accepts the fields in any order. An absent number is 0, an absent list is empty, an absent
level is SNAPSHOT; any type except SHORT is LONG.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import IntEnum, StrEnum
from typing import Literal

from tuff.protocol.errors import InvalidTransactionError
from tuff.protocol.pointer_list import POINTER_MAX, holds, packed
from tuff.protocol.values import OpenStrEnum, Pointer, frozen_value

NO_SHORT_IN_PROGRESS = POINTER_MAX  # `first_short_in_progress` when there is none
POINTERS_PER_MS = 1_000_000  # a write pointer is the start in ms times this, plus a count


class TransactionType(StrEnum):
    """Short: for seconds, checked for conflicts. Long: for hours, never checked."""

    SHORT = "short"
    LONG = "long"


TransactionTypeLike = TransactionType | Literal["short", "long"]


class TransactionState(StrEnum):
    """The states of a transaction (protocol §5.1)."""

    IN_PROGRESS = "in_progress"
    COMMITTING = "committing"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ABORTED = "aborted"
    INVALID = "invalid"


class InvalidReason(OpenStrEnum):
    """Why a transaction is invalid (protocol §5.2)."""

    TIMED_OUT = "timed_out"
    INVALIDATED = "invalidated"
    BLOCKED_READERS = "blocked_readers"
    ABORT_OF_LONG = "abort_of_long"
    LOST_IN_CRASH = "lost_in_crash"
    LEASE_EXPIRED = "lease_expired"


class VisibilityLevel(IntEnum):
    """What a transaction sees of its own writes; the numbers are those of Thrift."""

    SNAPSHOT = 1
    SNAPSHOT_EXCLUDE_CURRENT = 2
    SNAPSHOT_ALL = 3


@frozen_value(kw_only=True)
class Transaction:
    """One transaction and the snapshot it reads in. All lists are ascending.

    `transaction_id`, its identity, is its first write pointer; `write_pointer` is the current one,
    the newest of `checkpoint_write_pointers` after a checkpoint.
    """

    transaction_id: int
    read_pointer: int
    write_pointer: int
    invalids: Sequence[int] = ()
    in_progress: Sequence[int] = ()
    first_short_in_progress: int = NO_SHORT_IN_PROGRESS
    type: TransactionType = TransactionType.SHORT
    checkpoint_write_pointers: tuple[int, ...] = ()
    visibility_level: VisibilityLevel = VisibilityLevel.SNAPSHOT

    def is_own(self, version: int) -> bool:
        """Whether this transaction wrote that version."""
        return (
            version in (self.write_pointer, self.transaction_id)
            or version in self.checkpoint_write_pointers
        )

    def is_visible(self, version: int) -> bool:
        """Whether this transaction sees a write of that version."""
        if self.is_own(version):
            return (
                self.visibility_level is not VisibilityLevel.SNAPSHOT_EXCLUDE_CURRENT
                or version != self.write_pointer
            )
        return version <= self.read_pointer and not self.is_excluded(version)

    def is_excluded(self, version: int) -> bool:
        """Whether that version was in progress or invalid when this transaction started."""
        return holds(self.in_progress, version) or holds(self.invalids, version)

    @property
    def visibility_upper_bound(self) -> int:
        """The highest version up to which all transactions had ended when this one started: it sees
        those that committed."""
        first = self.in_progress[0] if self.in_progress else self.transaction_id
        return min(first - 1, self.read_pointer)

    def checkpointed(self, write_pointer: int) -> "Transaction":
        """The transaction and its snapshot with a new write pointer."""
        pointers = (*self.checkpoint_write_pointers, write_pointer)
        return replace(self, write_pointer=write_pointer, checkpoint_write_pointers=pointers)

    def to_bytes(self) -> bytes:
        """TTransaction in Thrift's binary protocol."""
        return b"".join(
            (
                _I64_FIELD.pack(_I64, 1, self.transaction_id),
                _I64_FIELD.pack(_I64, 2, self.read_pointer),
                _list_field(3, self.invalids),
                _list_field(4, self.in_progress),
                _I64_FIELD.pack(_I64, 5, self.first_short_in_progress),
                _I32_FIELD.pack(_I32, 6, _THRIFT_TYPE[self.type]),
                _I64_FIELD.pack(_I64, 7, self.write_pointer),
                _list_field(8, self.checkpoint_write_pointers),
                _I32_FIELD.pack(_I32, 9, self.visibility_level),
                b"\x00",
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "Transaction":
        """Lists need not be sorted in the bytes.

        Raises:
            InvalidTransactionError: the bytes are no TTransaction, or something follows it.
        """
        return _decoded(data)


@frozen_value(kw_only=True)
class TransactionStatus:
    """The state or outcome of a transaction, for diagnosis. `state` is as the protocol names it;
    `reason`: why an invalid one is invalid. Times are ms since the epoch: `ended_at_ms` is None
    while it is in progress, and `expires_at_ms` once it has ended or is prepared. `database`
    decides how a prepared one ends."""

    transaction_id: Pointer
    state: str
    client: str
    started_at_ms: int
    reason: str | None = None
    ended_at_ms: int | None = None
    expires_at_ms: int | None = None
    database: str | None = None


_STOP, _I32, _I64, _LIST = 0x00, 0x08, 0x0A, 0x0F
_THRIFT_TYPE = {TransactionType.SHORT: 1, TransactionType.LONG: 2}

_I64_FIELD = struct.Struct(">Bhq")
_I32_FIELD = struct.Struct(">Bhi")
_LIST_FIELD = struct.Struct(">BhBi")
_FIELD_ID = struct.Struct(">h")
_I64_VALUE = struct.Struct(">q")
_I32_VALUE = struct.Struct(">i")
_LIST_HEAD = struct.Struct(">Bi")
assert (_I64_FIELD.size, _I32_FIELD.size, _LIST_FIELD.size) == (11, 7, 8)

_KINDS = {1: _I64, 2: _I64, 3: _LIST, 4: _LIST, 5: _I64, 6: _I32, 7: _I64, 8: _LIST, 9: _I32}


def _list_field(field_id: int, pointers: Sequence[int]) -> bytes:
    return _LIST_FIELD.pack(_LIST, field_id, _I64, len(pointers)) + packed(pointers)


def _decoded(data: bytes) -> Transaction:
    numbers: dict[int, int] = {}
    lists: dict[int, tuple[int, ...]] = {}
    at = 0
    try:
        while (kind := data[at]) != _STOP:
            (field_id,) = _FIELD_ID.unpack_from(data, at + 1)
            if _KINDS.get(field_id) != kind:
                raise InvalidTransactionError(
                    f"TTransaction has no field {field_id} of Thrift type {kind}"
                )
            at += 3
            if kind == _LIST:
                lists[field_id], at = _list_at(data, at, field_id)
            else:
                number = _I64_VALUE if kind == _I64 else _I32_VALUE
                (numbers[field_id],) = number.unpack_from(data, at)
                at += number.size
    except (IndexError, struct.error):
        raise InvalidTransactionError(
            "the TTransaction is cut off in the middle of a field"
        ) from None
    if (behind_count := len(data) - at - 1) > 0:
        raise InvalidTransactionError(f"{behind_count} bytes follow the end of the TTransaction")
    return _of_fields(numbers, lists)


def _list_at(data: bytes, at: int, field_id: int) -> tuple[tuple[int, ...], int]:
    """The list at this place, in ascending order, and the place behind it."""
    element, count = _LIST_HEAD.unpack_from(data, at)
    at += _LIST_HEAD.size
    if element != _I64 or not 0 <= count <= (len(data) - at) // _I64_VALUE.size:
        raise InvalidTransactionError(
            f"field {field_id} of the TTransaction says it lists {count} elements of Thrift "
            f"type {element}, which is not what follows"
        )
    values = struct.unpack_from(f">{count}q", data, at)
    return tuple(sorted(values)), at + _I64_VALUE.size * count


def _of_fields(numbers: Mapping[int, int], lists: Mapping[int, tuple[int, ...]]) -> Transaction:
    try:
        level = VisibilityLevel(numbers.get(9, 1))
    except ValueError:
        raise InvalidTransactionError(
            f"{numbers[9]} is no visibility level: 1, 2 and 3 are"
        ) from None
    return Transaction(
        transaction_id=numbers.get(1, 0),
        read_pointer=numbers.get(2, 0),
        invalids=lists.get(3, ()),
        in_progress=lists.get(4, ()),
        first_short_in_progress=numbers.get(5, 0),
        type=TransactionType.SHORT if numbers.get(6) == 1 else TransactionType.LONG,
        write_pointer=numbers.get(7, 0),
        checkpoint_write_pointers=lists.get(8, ()),
        visibility_level=level,
    )
