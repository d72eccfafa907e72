"""The interface to the message store (design §6)."""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from tuff.protocol.errors import TuffError
from tuff.protocol.requests import PublishEntry, RollbackDetail


class MessageRows(Protocol):
    """The message store, as far as the transaction service uses it. `server.py` passes an
    implementation in, which this package never imports. All methods run on the event loop. In a
    cluster they speak for the rows at all servers.
    `transaction_pointers` are the transaction id and its checkpoint pointers."""

    async def check_entries(self, entries: Sequence[PublishEntry]) -> None:
        """Raise what a publish of these entries would be refused with: TopicNotFoundError,
        InvalidTtlError, StorageUnavailableError. Every `pointer` is filled in."""

    def check_now(self, entries: Sequence[PublishEntry]) -> bool:
        """Check entries if that waits for nothing. Returns whether the check was made."""

    def publish_final(
        self,
        commits: Sequence[Sequence[PublishEntry]],
        built: Callable[[Sequence[list[RollbackDetail] | TuffError]], None],
        written: Callable[[Sequence[list[RollbackDetail] | TuffError] | Exception], None],
    ) -> None:
        """Write the entries of these commits as one durable batch, flagged as the last of their
        transactions. `written` gets for each commit one detail for each entry, in their order, or
        why its rows were not written. `built` gets that before, when the batch is about to be
        written, if either all of its rows are found after a crash, or none.

        With an exception as the result of all, rows may have been written, and `roll_back` inverts
        them."""

    async def roll_back(self, transaction_pointers: Collection[int]) -> None:
        """Invert the pointer of every row these pointers carry, durably, and forget the index rows.
        Idempotent. Raises StorageUnavailableError; the message store then tries again by
        itself."""

    async def set_aside(self, transaction_pointers: Collection[int]) -> None:
        """Let readers pass the message rows of these pointers, whose transaction is prepared. They
        leave the order of their topics durably, until `end_committed` returns them behind all
        others, or `roll_back` forgets them. Idempotent. Their transaction must not commit
        meanwhile: readers could receive the same row at both places.

        Raises: TuffError: it has to be repeated."""

    def end_committed(self, transaction_pointers: Collection[int]) -> None:
        """These pointers durably committed: remove their rows from the pointer index, and return
        those that were set aside."""

    def wake_readers(self, transaction_pointers: Collection[int]) -> None:
        """These pointers durably ended: wake the readers that their rows block, and those in their
        snapshots."""

    def reading_pointers(self) -> Collection[int]:
        """Every pointer whose snapshot a reader uses; it may wait."""

    def topics(self, transaction_pointers: Collection[int]) -> list[str]:
        """`ns:topic` of every topic these pointers published to or stored for, sorted."""

    def has_rows_to_move(self, transaction_pointers: Collection[int]) -> bool:
        """Whether `end_committed` lets delayed messages of these pointers wait for their times, or
        returns what was set aside."""

    def is_carried(self, pointer: int) -> bool:
        """Whether a message row, or a stored payload, of this pointer may exist."""

    def is_cleared(self, pointer: int) -> bool:
        """Whether an invalid pointer may leave the list, as far as rows are concerned that
        `is_carried` does not know: retention has passed all of them with the pointer on its list.
        """

    def indexed_pointers(self) -> Collection[int]:
        """Every pointer with rows that are neither ended nor rolled back."""

    def published_by(self, at_ms: int) -> Collection[int]:
        """Every pointer whose rows block readers, and have done so since this time or an
        earlier one."""

    def final_pointers(self) -> set[int]:
        """Pointers with rows flagged as final: after a crash, of commits that were cut off."""

    def note_durable(self, lsn: int) -> None:
        """Edits up to this one are durable; the message store records it, so that transaction files
        that are older than the messages are detected. Called before anything rests on the edits."""

    def note_reserved(self, highest_pointer: int) -> None:
        """Pointers up to this one are durably reserved, and may be handed out; the message store
        records it, so that missing transaction files are not taken for an empty beginning."""
