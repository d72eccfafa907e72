"""Frees the disk space of deleted rows, piece by piece, where the engine would take its time.

LevelDB frees the space of deleted rows when it happens to compact their tables, which on a quiet
store is never. A compaction writes before it deletes, so a piece is bounded, and is made only while
there is space for it. Rows that are live are compacted only at the borders of a range.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from kernel.log_events import event
from messaging.engines.engine_interface import CanCompact, Piece, StoreDamagedError
from messaging.engines.row_store import Store
from messaging.log.state_in_memory import OpenStore

log = logging.getLogger(__name__)

RANGE_BYTES_MIN = 8 << 20  # bytes of deleted rows that are worth a compaction of their tables
URGENT_BYTES_MIN = 1 << 20  # on a disk that is nearly full
PASS_BYTES_MAX = 1 << 30  # bytes of deleted rows in one pass; some ten seconds
MARGIN_BYTES = 4 << 20  # that a compaction leaves on the disk: a manifest, the log of transactions

Range = tuple[bytes, bytes]  # start <= key < stop


class Freed(NamedTuple):
    """The bytes that a compaction freed, and whether it looked at all that was deleted."""

    size_bytes: int
    is_complete: bool


class Compaction:
    """Compacts ranges in which all rows were deleted. Lives on the event loop; `free_bytes` is the
    free space of the disk, None if it is unknown."""

    def __init__(self, store: OpenStore, free_bytes: Callable[[], int | None]) -> None:
        self._store = store
        self._free_bytes = free_bytes

    async def free(self, ranges: Sequence[Range], *, is_urgent: bool) -> Freed:
        """Free the space of these ranges.

        Raises: StorageUnavailableError.
        """
        if not isinstance(self._store.require_up().engine, CanCompact):
            return Freed(0, is_complete=True)
        least_bytes = URGENT_BYTES_MIN if is_urgent else RANGE_BYTES_MIN
        freed = await self._free(ranges, least_bytes)
        if freed.size_bytes > 0:
            mib = freed.size_bytes >> 20
            log.info("compactions freed %d MiB", mib, extra=event("space_freed", mib=mib))
        return freed

    async def _free(self, ranges: Sequence[Range], least_bytes: int) -> Freed:
        freed_bytes = 0
        for start, stop in ranges:
            at = start
            while at < stop and await self._size(at, stop) >= least_bytes:
                if freed_bytes >= PASS_BYTES_MAX:
                    return Freed(freed_bytes, is_complete=False)
                piece = await self._store.read(partial(_piece, start=at, stop=stop))
                if not self._fits(piece):
                    return Freed(freed_bytes, is_complete=False)
                before_bytes = await self._size(at, piece.stop)
                damage = await self._store.read(partial(_compact, piece=piece))
                if damage is not None:
                    log.warning("deleted rows keep their space: %s", damage)
                    break
                freed_bytes += before_bytes - await self._size(at, piece.stop)
                at = piece.stop
        return Freed(freed_bytes, is_complete=True)

    def _fits(self, piece: Piece) -> bool:
        free_bytes = self._free_bytes()
        return free_bytes is None or piece.written_bytes + MARGIN_BYTES <= free_bytes

    async def _size(self, start: bytes, stop: bytes) -> int:
        return await self._store.read(lambda store: store.approximate_size(start, stop))


def _piece(store: Store, *, start: bytes, stop: bytes) -> Piece:
    assert isinstance(store.engine, CanCompact)
    return store.engine.next_piece(start, stop)


def _compact(store: Store, *, piece: Piece) -> str | None:
    """Why it can't be compacted, in a sentence. Raises: StoreError."""
    assert isinstance(store.engine, CanCompact)
    try:
        store.engine.compact(piece)
    except StoreDamagedError as error:
        return str(error)
    return None
