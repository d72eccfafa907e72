"""The durable view, from which read snapshots are taken. It lags behind the decided state (design
§4, Two levels).

A start, a checkpoint and a read-only commit change the view at once: they exclude pointers, or have
no writes that a reader could see. An edit that makes writes visible, or stops excluding them,
changes it when the edit is synced, so that no reader sees what a crash would undo.
"""

from collections.abc import Iterable, Sequence
from itertools import chain

from tuff.protocol.pointer_list import PointerList
from tuff.protocol.transaction import NO_SHORT_IN_PROGRESS, Transaction, TransactionType
from tuff.protocol.values import value
from tx.outcomes import EndedState

# The transaction id of a reader without a transaction. No row has the pointer 0: it owns no row.
READER_POINTER = 0
ONE_BY_ONE_COUNT_MAX = 16  # pointers; more are merged at once, since each addition copies a chunk


@value()
class ViewChange:
    """The change of the view by an edit, made when the edit is durable. `state` says how
    `transaction_id` ended; None for an edit that ends no transaction."""

    transaction_id: int
    state: EndedState | None
    ended: tuple[int, ...] = ()
    invalidated: tuple[int, ...] = ()
    cleared: tuple[int, ...] = ()
    read_pointer: int = 0


@value()
class View:
    """One version of the view. Versions share the parts of their lists that are equal."""

    read_pointer: int
    in_progress: PointerList
    short_in_progress: PointerList
    invalid: PointerList

    def with_started(self, pointer: int, *, is_short: bool) -> "View":
        running = self.in_progress.with_added(pointer)
        shorts = self.short_in_progress
        if is_short:
            # As long as there are no long ones, the two are one list.
            shorts = running if shorts is self.in_progress else shorts.with_added(pointer)
        return View(self.read_pointer, running, shorts, self.invalid)

    def after(self, changes: Sequence[ViewChange]) -> "View":
        """The view with all of these changes."""
        read_pointer, invalid = self.read_pointer, self.invalid
        ended: list[int] = []
        for change in changes:
            read_pointer = max(read_pointer, change.read_pointer)
            ended += change.ended
            if change.cleared:
                invalid = invalid.without(change.cleared)
            if change.invalidated:
                invalid = with_all(invalid, change.invalidated)
        running = self.in_progress.without(ended)
        shorts = self.short_in_progress
        shorts = running if shorts is self.in_progress else shorts.without(ended)
        if len(shorts) == len(running):
            shorts = running  # the last long one has ended
        return View(read_pointer, running, shorts, invalid)

    def transaction(self, pointer: int, kind: TransactionType) -> Transaction:
        """A transaction that starts now, in this snapshot."""
        shorts = self.short_in_progress
        return Transaction(
            transaction_id=pointer,
            read_pointer=self.read_pointer,
            write_pointer=pointer,
            invalids=self.invalid,
            in_progress=self.in_progress,
            first_short_in_progress=shorts[0] if shorts else NO_SHORT_IN_PROGRESS,
            type=kind,
        )

    def reader(self) -> Transaction:
        """The snapshot of a reader that is in no transaction."""
        return self.transaction(READER_POINTER, TransactionType.SHORT)

    @property
    def visibility_upper_bound(self) -> int:
        """The highest pointer such that it, and all below it, have ended."""
        return self.in_progress[0] - 1 if self.in_progress else self.read_pointer


def with_all(pointers: PointerList, more: Iterable[int]) -> PointerList:
    """The list and all these pointers."""
    added = tuple(more)
    if len(added) > ONE_BY_ONE_COUNT_MAX:
        return PointerList(chain(pointers, added))
    for pointer in added:
        pointers = pointers.with_added(pointer)
    return pointers
