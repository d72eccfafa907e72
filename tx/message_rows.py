"""The interface to the message store, and the end of message rows: after a commit they are settled,
after any other end they are marked rolled back (design §6).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any, Protocol

from tuff.log_events import event
from tuff.protocol.errors import TuffError
from tuff.protocol.requests import PublishEntry, RollbackDetail
from tx.outcomes import EndedState, OpenTransaction, lost_outcome
from tx.snapshot_view import ViewChange
from tx.state import TransactionState
from tx.write_gates_and_key_locks import TransactionLocks

log = logging.getLogger(__name__)

Spawn = Callable[[Coroutine[Any, Any, None]], None]  # starts background work


class MessageRows(Protocol):
    """The message store, as far as the transaction service uses it. `server.py` passes an
    implementation in, which this package never imports. All methods run on the event loop. In a
    cluster they speak for the rows at all servers.
    `transaction_pointers` are the transaction id and its checkpoint pointers."""

    async def check_entries(self, entries: Sequence[PublishEntry]) -> None:
        """Raise what a publish of these entries would be refused with: TopicNotFoundError,
        InvalidTtlError, StorageUnavailableError. Every `pointer` is filled in."""

    def check_now(self, entries: Sequence[PublishEntry]) -> bool:
        """Do what `check_entries` does if that waits for nothing; whether it was done."""

    async def publish_final(
        self, commits: Sequence[Sequence[PublishEntry]]
    ) -> Sequence[list[RollbackDetail] | TuffError]:
        """Write the entries of these commits as one durable batch, flagged as the last of their
        transactions. For each commit one detail for each entry, in their order, or why its rows
        were not written.

        Raises: any error: rows may have been written, and `mark_rolled_back` marks them."""

    async def mark_rolled_back(self, transaction_pointers: Collection[int]) -> None:
        """Invert the pointer of every row these pointers carry, durably, and forget the index rows.
        Idempotent. Raises StorageUnavailableError; the message store then tries again by
        itself."""

    async def set_aside(self, transaction_pointers: Collection[int]) -> None:
        """Let readers pass the message rows of these pointers, whose transaction is prepared. They
        leave the order of their topics durably, until `settle` returns them behind all others, or
        `mark_rolled_back` forgets them. Idempotent. Their transaction must not commit meanwhile:
        readers could receive the same row at both places.
        Raises: TuffError: it has to be repeated."""

    def settle(self, transaction_pointers: Collection[int]) -> None:
        """These pointers durably committed: remove their rows from the pointer index, and return
        those that were set aside."""

    def wake_readers(self, transaction_pointers: Collection[int]) -> None:
        """These pointers durably ended: wake the readers that their rows hold, and those in their
        snapshots."""

    def reading_pointers(self) -> Collection[int]:
        """Every pointer whose snapshot a reader uses; it may wait."""

    def topics(self, transaction_pointers: Collection[int]) -> list[str]:
        """`ns:topic` of every topic these pointers published to or stored for, sorted."""

    def is_carried(self, pointer: int) -> bool:
        """Whether an unmarked message row, or a stored payload, of this pointer may exist."""

    def is_cleared(self, pointer: int) -> bool:
        """Whether an invalid pointer may leave the list, as far as rows are concerned that
        `is_carried` does not know: retention has passed all of them with the pointer on its list.
        """

    def indexed_pointers(self) -> Collection[int]:
        """Every pointer with rows that are neither settled nor marked."""

    def published_by(self, at_ms: int) -> Collection[int]:
        """Every pointer whose rows hold readers back, and have done so since this time or an
        earlier one."""

    def final_pointers(self) -> set[int]:
        """Pointers with rows flagged as final: after a crash, of commits that were cut off."""

    def note_durable(self, lsn: int) -> None:
        """Edits up to this one are durable; the message store records it, so that transaction files
        that are older than the messages are detected. Called before anything rests on the edits."""

    def note_reserved(self, highest_pointer: int) -> None:
        """Pointers up to this one are durably reserved, and may be handed out; the message store
        records it, so that missing transaction files are not taken for an empty beginning."""


class EndedRows:
    """Settles the rows of durable commits, marks those of other ends rolled back in the background,
    and wakes readers.

    A marking waits for the writes under way. A transaction has one marking at a time.
    """

    def __init__(self, locks: TransactionLocks, rows: MessageRows, *, spawn: Spawn) -> None:
        self._locks = locks
        self._rows = rows
        self._spawn = spawn
        self._under_way: dict[int, asyncio.Future[bool]] = {}
        # Prepared transactions whose messages are set aside, or are about to be.
        self._aside: set[int] = set()
        self._to_wake: deque[tuple[int, int]] = deque()  # LSN, and the pointer that committed by it

    def synced(self, lsn: int, changes: Iterable[ViewChange]) -> None:
        """Edits up to this LSN are durable, and these changes are in the view now, in log order.
        Called before any caller that waits for an edit is answered."""
        self._rows.note_durable(lsn)
        committed: list[int] = []
        to_wake: list[int] = []
        for change in changes:
            if change.state is None:
                continue
            self._aside.discard(change.transaction_id)
            pointers = change.ended or change.cleared
            if change.state is EndedState.COMMITTED:
                committed += pointers
            elif change.state is EndedState.INVALID:
                self._mark_if_needed(change.transaction_id, pointers)
            to_wake += pointers
        while self._to_wake and self._to_wake[0][0] <= lsn:
            to_wake.append(self._to_wake.popleft()[1])
        self._rows.settle(committed)
        self._rows.wake_readers(to_wake)

    def wake_once_durable(self, lsn: int, pointer: int) -> None:
        """Wake the readers in the snapshot of a transaction that committed without writes, by the
        edit of this LSN. They are refused from then on, and a refusal may name nothing that a crash
        can still undo."""
        self._to_wake.append((lsn, pointer))

    def came_up(self, state: TransactionState) -> None:
        """The service came up, and all that the state holds is durable. A crash may have kept the
        rows of ended transactions from being settled or marked, and readers from being woken."""
        self._rows.note_durable(state.lsn)
        self._to_wake.clear()
        self._aside.clear()  # an end that was not durable may be undone
        ended: set[int] = set()
        # This looks at the rows: few have any left, and a million transactions may have ended.
        for pointer in self._concerned():
            ended.update(self._end_rows_of(pointer, state))
        # A log that failed, and has an ending all the same, left readers asleep behind it.
        self._rows.wake_readers(ended)

    def found(self, pointers: Iterable[int], state: TransactionState) -> None:
        """Rows of these pointers were found that may not have been settled or marked: settle or
        mark those of transactions that have durably ended."""
        for pointer in pointers:
            outcome = state.outcomes.find(pointer)
            if outcome is None or outcome.lsn <= state.seen:
                self._rows.wake_readers(self._end_rows_of(pointer, state))

    def _end_rows_of(self, pointer: int, state: TransactionState) -> Sequence[int]:
        """Settle or mark the rows of a transaction that has ended; its pointers, none if it has
        not."""
        outcome = state.outcomes.find(pointer)
        if outcome is None and pointer in state.invalid:
            outcome = lost_outcome(pointer)
        if outcome is None:
            return ()
        if outcome.state is EndedState.COMMITTED:
            self._rows.settle(outcome.pointers)
        else:
            self._mark_if_needed(outcome.transaction_id, outcome.pointers)
        return outcome.pointers

    def _concerned(self) -> set[int]:
        """Every pointer that rows carry, or that a write under way may yet give rows, or in whose
        snapshot a reader reads."""
        rows = self._rows
        return {*rows.indexed_pointers(), *self._locks.writing(), *rows.reading_pointers()}

    def _mark_if_needed(self, transaction_id: int, pointers: Sequence[int]) -> None:
        # Also what a write under way is about to publish.
        if self._locks.has_writes(transaction_id) or self._is_carried(pointers):
            self._begin(transaction_id, pointers)

    async def marked(self, transaction_id: int, pointers: Sequence[int]) -> bool:
        """Mark the rows of these pointers; whether none is left unmarked."""
        marking = self._under_way.get(transaction_id)
        if marking is None:
            if not self._is_carried(pointers):
                return True
            marking = self._begin(transaction_id, pointers)
        return await asyncio.shield(marking)

    def set_aside(self, opened: OpenTransaction, *, is_open: Callable[[], bool]) -> None:
        """Let readers pass the rows of a prepared transaction, in the background, unless it ends
        before. A resolve waits until that is done. Once is enough: it writes no more rows."""
        if opened.transaction_id not in self._aside:
            self._aside.add(opened.transaction_id)
            self._spawn(self._set_aside(opened, is_open))

    async def _set_aside(self, opened: OpenTransaction, is_open: Callable[[], bool]) -> None:
        await self._locks.close(opened.transaction_id)
        try:
            if is_open():
                await self._rows.set_aside(opened.pointers)
        except TuffError as error:
            self._aside.discard(opened.transaction_id)
            log.info("messages of %d are not set aside yet: %s", opened.transaction_id, error)
        finally:
            self._locks.open(opened.transaction_id)

    def _is_carried(self, pointers: Sequence[int]) -> bool:
        return any(map(self._rows.is_carried, pointers))

    def _begin(self, transaction_id: int, pointers: Sequence[int]) -> asyncio.Future[bool]:
        marking = self._under_way.get(transaction_id)
        if marking is None:
            marking = asyncio.get_running_loop().create_future()
            self._under_way[transaction_id] = marking
            self._spawn(self._mark(transaction_id, pointers, marking))
        return marking

    async def _mark(
        self, transaction_id: int, pointers: Sequence[int], marking: asyncio.Future[bool]
    ) -> None:
        is_marked = False
        try:
            await self._locks.writes_done(transaction_id)
            await self._rows.mark_rolled_back(pointers)
            is_marked = True
        except TuffError as error:
            # The message store tries again, from its index.
            log.warning(
                "rows of transaction %d are not marked yet: %s",
                transaction_id,
                error,
                extra=event("rows_not_marked", transaction=transaction_id),
            )
        finally:
            del self._under_way[transaction_id]
            marking.set_result(is_marked)
