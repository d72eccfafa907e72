"""The invalid list: showing, truncating and pruning it (protocol §5.2)."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import islice

from tuff.protocol.errors import TransactionsInProgressError
from tx.claims_and_waits import UnderWay
from tx.durable_state import DurableState
from tx.log_records import InvalidReason, Truncated
from tx.messaging_interface import MessageRows
from tx.settings import PRUNED_COUNT_MAX
from tx.state import TransactionState

# When the last retention pass was, in ms, and the snapshot file it used, if any.
LastSweep = tuple[int, str | None]


@dataclass(frozen=True, slots=True)
class Invalids:
    """The invalid list; the same by reason; the pointers that no message row carries; and the last
    retention pass, None before the first."""

    pointers: list[int]
    by_reason: Mapping[InvalidReason, list[int]]
    prunable: list[int]
    swept: LastSweep | None


class InvalidList:
    """The invalid list. Lives on one event loop."""

    def __init__(
        self,
        durable: DurableState,
        under_way: UnderWay,
        rows: MessageRows,
        *,
        now_ms: Callable[[], int],
        last_sweep: Callable[[], LastSweep | None],
    ) -> None:
        self._durable = durable
        self._under_way = under_way
        self._rows = rows
        self._now_ms = now_ms
        self._last_sweep = last_sweep

    async def shown(self) -> Invalids:
        """The invalid list, once every end that was decided so far is durable."""
        await self._durable.synced_in_time(self._durable.state.last_pending_lsn)
        listed, by_reason = self._listed(), defaultdict[InvalidReason, list[int]](list)
        for pointer in listed:
            by_reason[self._durable.state.invalid_reason(pointer)].append(pointer)
        prunable = [one for one in listed if not self._is_needed(one)]
        return Invalids(listed, by_reason, prunable, self._last_sweep())

    async def truncate(
        self, *, pointers: Collection[int] = (), before_ms: int | None = None
    ) -> tuple[int, list[int]]:
        """Take these pointers, and those of transactions started before that time, off the invalid
        list, durably, except for those that rows still carry. Returns how many were removed, and
        the pointers that were kept.

        Raises:
            TransactionsInProgressError: one that started before that time is still in progress.
        """
        state = self._durable.state
        named = list(pointers)
        if before_ms is not None:
            named += invalid_before(state, before_ms)
        edit, kept = truncate(state, named, keeps=self._is_needed, now_ms=self._now_ms())
        if edit.pointers:
            self._durable.record(edit)
        await self._durable.synced_in_time(self._durable.state.lsn)
        return len(edit.pointers), kept

    def prune_messages_only(self) -> None:
        """Take off the list, without waiting for it, the pointers of transactions in which only
        messages took part, once no row carries them: no other store needs the list for them."""
        state = self._durable.state
        found: list[int] = []
        for transaction_id in islice(state.prunable, PRUNED_COUNT_MAX):
            pointers = [
                each for each in state.find(transaction_id).pointers if each in state.invalid
            ]
            # Only durably invalid ones: the rows of the others are still to be rolled back.
            if all(each in state.view.invalid and not self._is_needed(each) for each in pointers):
                found += pointers
        if found:
            self._durable.sync_soon(
                self._durable.record(Truncated(self._now_ms(), tuple(sorted(found))))
            )

    def prune(self, *, also_lost: bool) -> None:
        """Take pointers that no row carries off the list, without waiting for it. `also_lost`:
        also pointers whose start did not reach the log. The list is all that remembers them."""
        # Only durably invalid ones: the rows of the others are still to be rolled back.
        state = self._durable.state
        listed = [each for each in self._listed() if also_lost or each in state.outcomes]
        edit, _ = truncate(state, listed, keeps=self._is_needed, now_ms=self._now_ms())
        if edit.pointers:
            self._durable.sync_soon(self._durable.record(edit))

    def _listed(self) -> list[int]:
        state = self._durable.state
        return [pointer for pointer in state.view.invalid if pointer in state.invalid]

    def _is_needed(self, pointer: int) -> bool:
        """Whether a pointer on the invalid list may still hide a row, or a write in flight."""
        if self._rows.is_carried(pointer) or not self._rows.is_cleared(pointer):
            return True
        return self._under_way.has_writes(self._durable.state.find(pointer).transaction_id)


def truncate(
    state: TransactionState, pointers: Collection[int], *, keeps: Callable[[int], bool], now_ms: int
) -> tuple[Truncated, list[int]]:
    """The edit that takes these pointers off the invalid list, and the pointers that stay since
    `keeps` is true for them. Pointers that are not on the list are ignored."""
    listed = sorted({pointer for pointer in pointers if pointer in state.invalid})
    kept = [pointer for pointer in listed if keeps(pointer)]
    return Truncated(now_ms, tuple(sorted(set(listed) - set(kept)))), kept


def invalid_before(state: TransactionState, before_ms: int) -> list[int]:
    """The pointers on the invalid list of transactions that started before that time.

    Raises:
        TransactionsInProgressError: one that started before is still in progress: what it reads
            may need the list.
    """
    # The record says when a transaction started; a pointer comes from a block reserved earlier.
    for opened in state.open.values():
        if opened.started_at_ms < before_ms:
            raise TransactionsInProgressError(
                f"transaction {opened.transaction_id} started at {opened.started_at_ms}, before "
                f"{before_ms}, and is still in progress; wait until it has ended"
            )
    return [pointer for pointer in state.invalid if _started_at_ms(state, pointer) < before_ms]


def _started_at_ms(state: TransactionState, pointer: int) -> int:
    known = state.outcomes.started_at_ms(pointer)
    return state.find(pointer).started_at_ms if known is None else known
