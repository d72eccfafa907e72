"""Compaction of a table: which versions no reader needs, and how far it went (docs/formats.md).
Pure."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tuff.protocol.errors import BadRequestError, TransactionNotInProgressError
from tuff.protocol.pointer_list import holds
from tuff.protocol.transaction import Transaction
from tuff.tables.row_format import COMPACTED, damaged, metadata_keys

_POINTER = struct.Struct(">Q")
_COMPACTED = struct.Struct(">QQI")
assert _COMPACTED.size == 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """How far compaction went. It may have removed every version up to `bound` that another version
    up to `bound` overwrote, and the versions of invalid transactions that had ended by then.

    `started` is the transaction that started for the compaction; `open` are the pointers that were
    in progress in its snapshot.
    """

    bound: int = 0
    started: int = 0
    open: Sequence[int] = ()

    def has_ended(self, transaction_id: int) -> bool:
        """Whether that transaction had ended when the table was compacted."""
        return transaction_id < self.started and not holds(self.open, transaction_id)

    def advanced(self, now: Transaction, *, bound: int) -> "Compacted":
        """The state of a compaction with the transaction `now`, which has just started.

        Raises: BadRequestError: it is older than the last compaction, so it is of another server.
        """
        if now.transaction_id < self.started:
            raise BadRequestError(
                f"transaction {now.transaction_id} is older than {self.started}, with which "
                "the table was compacted last; is this the table's own server?"
            )
        return Compacted(
            bound=max(bound, self.bound), started=now.transaction_id, open=tuple(now.in_progress)
        )

    def require_readable(self, transaction: Transaction) -> None:
        """Raises: TransactionNotInProgressError: versions that it reads may have been removed."""
        # If it has ended, its own versions and those that it overwrote may both be gone.
        is_late = transaction.visibility_upper_bound < self.bound
        if is_late or self.has_ended(transaction.transaction_id):
            raise TransactionNotInProgressError(
                f"transaction {transaction.transaction_id} can't read the table any more: it had "
                "ended when the table was compacted; start another one"
            )

    def require_writable(self, transaction_id: int) -> None:
        """Raises: TransactionNotInProgressError: that transaction had ended."""
        # Compaction reported that no version of an ended transaction is left. Its pointer may have
        # left the invalid list, and then every reader would see what it writes now.
        if self.has_ended(transaction_id):
            raise TransactionNotInProgressError(
                f"transaction {transaction_id} can't write to the table any more: it had "
                "ended when the table was compacted; start another one"
            )

    def to_bytes(self) -> bytes:
        """The body of the metadata row `compacted`."""
        head = _COMPACTED.pack(self.bound, self.started, len(self.open))
        return head + b"".join(map(_POINTER.pack, self.open))

    @classmethod
    def from_bytes(cls, body: bytes) -> "Compacted":
        """Raises: DamagedRecordError."""
        try:
            bound, started, count = _COMPACTED.unpack_from(body)
            pointers = struct.unpack(f">{count}Q", body[_COMPACTED.size :])
        except struct.error:
            raise damaged(metadata_keys(COMPACTED)[0], "it is cut off") from None
        return cls(bound=bound, started=started, open=pointers)


def droppable(
    versions: Iterable[tuple[int, bool]], *, bound: int, invalids: Sequence[int]
) -> list[int]:
    """The pointers of the versions of a row that no reader needs, in the order of their removal.

    `versions` are pairs (pointer, is a delete marker), newest first. Every committed version up to
    `bound` is visible to every reader.
    """
    dropped = []
    is_covered = False
    for pointer, is_marker in versions:
        if holds(invalids, pointer):
            dropped.append(pointer)
        elif pointer <= bound:
            # Every reader sees this version or a newer one. A delete marker only hides versions
            # that are removed with it.
            if is_covered or is_marker:
                dropped.append(pointer)
            is_covered = True
    # Oldest first: a crash that leaves an old version must leave the marker above it.
    return dropped[::-1]
