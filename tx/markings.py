"""Marking: taking back the rows of transactions that ended without committing (design §4)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

from tuff.protocol.errors import TransactionsUnavailableError, TuffError
from tx.gates import Gates
from tx.records import EndedState
from tx.rows import MessageRows
from tx.surroundings import Spawn
from tx.view import ViewChange

log = logging.getLogger(__name__)


class Markings:
    """Marks rows in the background, once the writes under way are done; one marking of a
    transaction at a time. Only for transactions whose ending is durable."""

    def __init__(self, gates: Gates, rows: MessageRows, *, spawn: Spawn) -> None:
        self._gates = gates
        self._rows = rows
        self._spawn = spawn
        self._under_way: dict[int, asyncio.Future[bool]] = {}

    def ended(self, changes: Iterable[ViewChange]) -> None:
        """These endings are durable, and in the view: settle the rows of those that committed, mark
        those of the invalid ones, and let readers look again."""
        for change in changes:
            if change.state is None:
                continue
            pointers = change.ended or change.cleared
            if change.state is EndedState.COMMITTED:
                self._rows.settle(pointers)
            elif change.state is EndedState.INVALID:
                self.mark_if_needed(change.transaction_id, pointers)
            self._rows.wake_readers(pointers)

    def ended_unwritten(
        self, pointers: Sequence[int], durable: Callable[[], Awaitable[None]]
    ) -> None:
        """A transaction without writes has committed, which waits for no disk; `durable` does.
        Readers in its snapshot are refused from now on, and a refusal speaks of nothing that a
        crash could still undo."""
        read_in = self._rows.reading_pointers()
        if any(pointer in read_in for pointer in pointers):
            self._spawn(self._wake_when(durable, pointers))

    async def _wake_when(
        self, durable: Callable[[], Awaitable[None]], pointers: Sequence[int]
    ) -> None:
        with suppress(TransactionsUnavailableError):  # whoever recovers the log wakes them
            await durable()
            self._rows.wake_readers(pointers)

    def concerned(self) -> set[int]:
        """Every pointer that rows carry, or that a write under way may yet give rows, or that
        somebody reads in."""
        rows = self._rows
        return {*rows.indexed_pointers(), *self._gates.writing(), *rows.reading_pointers()}

    def mark_if_needed(self, transaction_id: int, pointers: Sequence[int]) -> None:
        """Take back what these pointers published, or are about to."""
        if self._gates.has_writes(transaction_id) or self._is_carried(pointers):
            self._begin(transaction_id, pointers)

    async def marked(self, transaction_id: int, pointers: Sequence[int]) -> bool:
        """Whether no row carries these pointers any more, after trying to make it so."""
        marking = self._under_way.get(transaction_id)
        if marking is None:
            if not self._is_carried(pointers):
                return True
            marking = self._begin(transaction_id, pointers)
        return await asyncio.shield(marking)

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
            await self._gates.emptied(transaction_id)
            await self._rows.mark_rolled_back(pointers)
            is_marked = True
        except TuffError as error:
            # The messaging room tries again, from its index.
            log.warning("rows of transaction %d are not marked yet: %s", transaction_id, error)
        finally:
            del self._under_way[transaction_id]
            marking.set_result(is_marked)
