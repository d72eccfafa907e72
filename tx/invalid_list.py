"""The invalid list: showing, truncating and pruning it (protocol §5.2)."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from tx import decisions
from tx.durable_state import DurableState
from tx.edits import InvalidReason
from tx.in_flight_writes import InFlightWrites
from tx.message_rows import MessageRows


@dataclass(frozen=True, slots=True)
class SweepMark:
    """When the last retention pass was, in ms, and the snapshot file it used, if any."""

    at_ms: int
    source: str | None


@dataclass(frozen=True, slots=True)
class Invalids:
    """The invalid list; the same by reason; the pointers that no message row carries; and the last
    retention pass, None before the first."""

    pointers: list[int]
    by_reason: Mapping[InvalidReason, list[int]]
    prunable: list[int]
    swept: SweepMark | None


class InvalidList:
    """The invalid list. Lives on one event loop."""

    def __init__(
        self,
        durable: DurableState,
        in_flight: InFlightWrites,
        rows: MessageRows,
        *,
        now_ms: Callable[[], int],
        last_sweep: Callable[[], SweepMark | None],
    ) -> None:
        self._durable = durable
        self._in_flight = in_flight
        self._rows = rows
        self._now_ms = now_ms
        self._last_sweep = last_sweep

    async def shown(self) -> Invalids:
        """The list, why each pointer is on it, and which of them no row carries, with every end
        that was decided so far durable."""
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
        list, durably, except for those that rows still carry. How many, and those that were kept.

        Raises:
            TransactionsInProgressError: one that started before that time is still in progress.
        """
        state = self._durable.state
        named = list(pointers)
        if before_ms is not None:
            named += decisions.invalid_before(state, before_ms)
        edit, kept = decisions.truncate(state, named, keeps=self._is_needed, now_ms=self._now_ms())
        if edit.pointers:
            self._durable.record(edit)
        await self._durable.synced_in_time(self._durable.state.lsn)
        return len(edit.pointers), kept

    def prune(self, *, also_lost: bool) -> None:
        """Take pointers that no row carries off the list, without waiting for it. `also_lost`:
        also pointers whose start did not reach the log. The list is all that remembers them."""
        # Only durably invalid ones: the rows of the others are still to be marked.
        state = self._durable.state
        listed = [each for each in self._listed() if also_lost or each in state.outcomes]
        edit, _ = decisions.truncate(state, listed, keeps=self._is_needed, now_ms=self._now_ms())
        if edit.pointers:
            self._durable.sync_soon(self._durable.record(edit))

    def _listed(self) -> list[int]:
        state = self._durable.state
        return [pointer for pointer in state.view.invalid if pointer in state.invalid]

    def _is_needed(self, pointer: int) -> bool:
        """Whether a pointer on the invalid list may still hide a row, or a write in flight."""
        if self._rows.is_carried(pointer) or not self._rows.is_cleared(pointer):
            return True
        return self._in_flight.has_writes(self._durable.state.find(pointer).transaction_id)
