"""What the transaction service may ask of the message store (design §6).

`server.py` hands an implementation over, which this package never imports. All methods run on the
event loop. `transaction_pointers` are the transaction id and its checkpoint pointers.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

from tuff.protocol.requests import PublishEntry, RollbackDetail


class MessageRows(Protocol):
    """The message store, as narrow as transactions need it."""

    def check_entries(self, entries: Sequence[PublishEntry]) -> None:
        """Raise what a publish of these entries would be refused with: TopicNotFoundError,
        InvalidTtlError, StorageUnavailableError. Every `pointer` is filled in."""

    async def publish_final(self, entries: Sequence[PublishEntry]) -> list[RollbackDetail]:
        """Write all entries as one durable batch, flagged as the last of their transaction; the
        answers stand in the order of the entries.

        Raises: any error means that nothing was written, or that what was written lies under its
        pointer, undecided, and is taken back by `mark_rolled_back`."""

    async def mark_rolled_back(self, transaction_pointers: Collection[int]) -> None:
        """Invert the pointer of every row these pointers carry, durably, and forget the index rows.
        Idempotent. Raises StorageUnavailableError; the message store then tries again by
        itself."""

    def settle(self, transaction_pointers: Collection[int]) -> None:
        """These pointers durably committed: their rows carry them no longer in the index."""

    def wake_readers(self, transaction_pointers: Collection[int]) -> None:
        """These pointers durably ended: readers held by their rows, and readers in their
        snapshots, look again."""

    def reading_pointers(self) -> Collection[int]:
        """Every pointer in whose snapshot a reader reads, and may wait."""

    def topics(self, transaction_pointers: Collection[int]) -> list[str]:
        """`ns:topic` of every topic these pointers published to or stored for, sorted."""

    def is_carried(self, pointer: int) -> bool:
        """Whether an unmarked message row, or a stored payload, of this pointer may exist."""

    def is_cleared(self, pointer: int) -> bool:
        """Whether an invalid pointer may leave the list as far as rows go that `is_carried` does
        not know of: retention has passed all of them with the pointer on its list."""

    def indexed_pointers(self) -> Collection[int]:
        """Every pointer with rows that are neither settled nor marked."""

    def final_pointers(self) -> set[int]:
        """Pointers with rows flagged as final: after a crash, of commits that were cut off."""

    def note_durable(self, lsn: int) -> None:
        """Edits up to this one are durable; the message store records it, so that transaction files
        that are older than the messages are detected. Called before anything rests on the edits."""

    def note_reserved(self, highest_pointer: int) -> None:
        """Pointers up to this one are durably reserved, and may be handed out; the message store
        records it, so that missing transaction files are not taken for an empty beginning."""
