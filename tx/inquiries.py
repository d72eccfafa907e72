"""What the service shows of itself, and the invalid list with what may leave it (protocol §5.2)."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from tx import decisions
from tx.edits import InvalidReason
from tx.gates import Gates
from tx.ledger import Ledger
from tx.records import OpenTransaction
from tx.rows import MessageRows
from tx.state import TransactionState


@dataclass(frozen=True, slots=True)
class SweepMark:
    """When the last sweep of messages was, in ms, and the snapshot file it went by, if any."""

    at_ms: int
    source: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """What `GET /v1/transactions` shows. `oldest_in_progress` None: there is none.

    `visibility_upper_bound` is the highest pointer such that, of it and all below it, everything
    that committed is visible to everyone in progress, and will be to whoever starts: a table may
    drop what was overwritten by then.
    """

    read_pointer: int
    write_pointer: int
    open: list[OpenTransaction]
    visibility_upper_bound: int
    invalid_count: int
    committing_count: int
    oldest_in_progress: int | None


@dataclass(frozen=True, slots=True)
class Figures:
    """Sizes for metrics. `oldest_ms` is how long the oldest transaction is in progress."""

    open_count: int = 0
    leased_count: int = 0
    invalid_count: int = 0
    oldest_ms: int = 0

    @classmethod
    def of(cls, state: TransactionState, *, leased_count: int, now_ms: int) -> "Figures":
        """What is in progress and invalid now."""
        oldest = next(iter(state.open.values()), None)
        return cls(
            len(state.open),
            leased_count,
            len(state.view.invalid),
            0 if oldest is None else max(0, now_ms - oldest.started_at_ms),
        )


@dataclass(frozen=True, slots=True)
class Invalids:
    """The invalid list, the same by why they are on it, those that no message row carries, and the
    last sweep, None before it."""

    pointers: list[int]
    by_reason: Mapping[InvalidReason, list[int]]
    prunable: list[int]
    swept: SweepMark | None


def overview(state: TransactionState) -> Overview:
    """The pointers, and who is in progress."""
    opened = list(state.open.values())
    # Who is in progress may not see what has ended since it started. Only the view asked, a table
    # dropped the versions that such a reader still reads. The first to start sees the least.
    first = opened[0].transaction if opened else state.view
    return Overview(
        read_pointer=state.view.read_pointer,
        write_pointer=state.last_pointer,
        open=opened,
        visibility_upper_bound=first.visibility_upper_bound,
        invalid_count=len(state.view.invalid),
        committing_count=sum(one.changes is not None for one in opened),
        oldest_in_progress=opened[0].transaction_id if opened else None,
    )


class InvalidList:
    """The invalid list. Lives on one event loop."""

    def __init__(
        self, ledger: Ledger, gates: Gates, rows: MessageRows, *, now_ms: Callable[[], int]
    ) -> None:
        self._ledger = ledger
        self._gates = gates
        self._rows = rows
        self._now_ms = now_ms

    def shown(self, swept: SweepMark | None) -> Invalids:
        """The list, why each is on it, and which of it no row carries."""
        listed, by_reason = self._listed(), defaultdict[InvalidReason, list[int]](list)
        for pointer in listed:
            by_reason[self._ledger.state.invalid_reason(pointer)].append(pointer)
        prunable = [one for one in listed if not self._is_needed(one)]
        return Invalids(listed, by_reason, prunable, swept)

    def truncate(
        self, pointers: Collection[int], *, before_ms: int | None
    ) -> tuple[int, list[int]]:
        """See `TransactionManager.truncate`; what this did has to become durable yet."""
        state = self._ledger.state
        named = list(pointers)
        if before_ms is not None:
            named += decisions.invalid_before(state, before_ms)
        edit, kept = decisions.truncate(state, named, keeps=self._is_needed, now_ms=self._now_ms())
        if edit.pointers:
            self._ledger.record(edit)
        return len(edit.pointers), kept

    def prune(self, *, also_lost: bool) -> None:
        """Take off what no row carries, without waiting for it. `also_lost`: those, too, of whom
        no start reached the log, of which the list is all that tells how they ended."""
        # Durably invalid ones only: the rows of the others are still to be marked.
        state = self._ledger.state
        listed = [each for each in self._listed() if also_lost or each in state.outcomes]
        edit, _ = decisions.truncate(state, listed, keeps=self._is_needed, now_ms=self._now_ms())
        if edit.pointers:
            self._ledger.want(self._ledger.record(edit))

    def _listed(self) -> list[int]:
        state = self._ledger.state
        return [pointer for pointer in state.view.invalid if pointer in state.invalid]

    def _is_needed(self, pointer: int) -> bool:
        """Whether a pointer on the invalid list may still hide a row, or one on its way."""
        if self._rows.is_carried(pointer) or not self._rows.is_cleared(pointer):
            return True
        return self._gates.has_writes(self._ledger.state.find(pointer).transaction_id)
