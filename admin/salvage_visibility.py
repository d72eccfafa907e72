"""Which rows snapshot readers see after `tuff salvage` (promise 8).

A row with a write pointer stays visible only if its commit is proven: by the transaction files, or
because its pointer has left the pointer index, which happens after a durable commit, or because
the files have its commit in doubt, and the index has its rows. In any other row the pointer is
inverted, as a rollback does: readers without isolation see the row as before, snapshot readers
never will.
"""

from collections.abc import Callable
from dataclasses import replace

from admin.readable_rows import ReadableRows, ReadRow, Version
from admin.salvage_transactions import ProvenOutcome
from messaging.log.rows_by_transaction import IndexedRange
from messaging.model.row_format import INDEX, DamagedRowError, MessageRow
from tuff_storage.leveldb.manifest import LOG_SUFFIX

_POINTER_SIZE = 8


class RowVisibility:
    """Decides row by row. `hidden` are the pointers that were inverted, `committed` those that the
    rows alone prove committed; `outcome` is what the transaction files prove of a pointer."""

    def __init__(self, readable: ReadableRows, outcome: Callable[[int], ProvenOutcome]) -> None:
        self.hidden: set[int] = set()
        self.committed: set[int] = set()
        self._readable = readable
        self._outcome = outcome
        self._indexed, self._final, self._pointers_to_roll_back = _indexed_pointers(readable)
        self._has_log_holes = any(hole.first is not None for hole in readable.holes)

    def decided(self, found: ReadRow, row: MessageRow) -> MessageRow:
        """The row, with an inverted pointer unless its commit is proven."""
        pointer = row.tx_pointer
        if pointer is None or pointer < 0:
            return row
        if self.has_committed(pointer):
            return row
        outcome = self._outcome(pointer)
        is_decided = outcome in (ProvenOutcome.NOT_COMMITTED, ProvenOutcome.IN_DOUBT)
        if not is_decided and self._is_proven_committed(found, pointer, outcome):
            self.committed.add(pointer)
            return row
        self.hidden.add(pointer)
        return replace(row, tx_pointer=-pointer)

    def has_committed(self, pointer: int) -> bool:
        """Whether the transaction files prove it, or have it in doubt while its rows are there."""
        outcome = self._outcome(pointer)
        if outcome is ProvenOutcome.IN_DOUBT and pointer in self._final:
            self.committed.add(pointer)
            return True
        return outcome is ProvenOutcome.COMMITTED

    def _is_proven_committed(self, found: ReadRow, pointer: int, outcome: ProvenOutcome) -> bool:
        """Whether the rows alone prove that the transaction of this row committed."""
        # A newer version of this very row may be lost, in which a rollback inverted the pointer.
        if found.may_be_stale or pointer in self._pointers_to_roll_back:
            return False
        is_forgotten = outcome is ProvenOutcome.FORGOTTEN
        if pointer in self._indexed:
            # The deletion of its index row is lost, so that the row is there again: only if no
            # other write can be lost.
            return is_forgotten and not self._has_log_holes and self._may_hide_index(pointer)
        return is_forgotten or not self._may_hide_index(pointer)

    def _may_hide_index(self, pointer: int) -> bool:
        """Whether an index row of this pointer, or its deletion, may be lost in a table."""
        low = INDEX + pointer.to_bytes(_POINTER_SIZE, "big")
        return self._readable.may_hide(low, low + b"\xff")


def _indexed_pointers(readable: ReadableRows) -> tuple[set[int], set[int], set[int]]:
    """Pointers with index rows; those with rows of a commit; and pointers whose index rows were
    removed after a hole in a log, in which some of their rows may have been rolled back: a rollback
    of more rows than fit one batch takes several."""
    stops = [hole.stop for hole in readable.holes if hole.stop is not None]
    indexed: set[int] = set()
    final: set[int] = set()
    removed: set[int] = set()
    for versions in readable.versions():
        key = versions[0].key
        if key[:1] != INDEX:
            continue
        pointer = int.from_bytes(key[1 : 1 + _POINTER_SIZE], "big")
        if any(_is_removed_after(versions, stop) for stop in stops):
            removed.add(pointer)
        if (stored := versions[0].value) is not None:
            indexed.add(pointer)
            if _is_final(key, stored):
                final.add(pointer)
    return indexed, final, removed


def _is_final(key: bytes, stored: bytes) -> bool:
    try:
        return IndexedRange.from_bytes(key, stored).final
    except DamagedRowError:
        return False


def _is_removed_after(versions: list[Version], stop: int) -> bool:
    newest, oldest = versions[0], versions[-1]
    is_removed_behind = newest.value is None and newest.sequence >= stop
    return is_removed_behind and oldest.sequence < stop and newest.file.endswith(LOG_SUFFIX)
