"""The store as the tables see it: rows one by one, also where the engine has runs of them.

Who reads many messages takes the runs as they are (`scan_records`); to everybody else a row is a
row. Rows of a run are written together, by `join`, and end together: retention and the end of a
topic drop older rows first, so that the deletion of the last one, under whose key the run stands,
takes all of it, and the deletion of another one does nothing yet.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing

from messaging.keys import MESSAGES, PAYLOADS, PLACE_SIZE, pack_place, place_after, place_in
from messaging.runs import begins_before, join, overlap_stop, rows_in
from messaging.runs import rows_max as run_rows_max
from messaging.storage.seam import Rows, Store, Telling


class RunTable:
    """An engine with runs. Blocks, and may be called by several threads, as the engine may."""

    def __init__(self, engine: Store) -> None:
        self._engine = engine
        self._telling = engine if isinstance(engine, Telling) else None
        self.has_views = engine.has_views

    def get(self, key: bytes) -> bytes | None:
        found = self._engine.get(key)
        if found is not None:
            return rows_in(key, found)[-1][1]  # a run stands under the key of its last row
        if key[:1] not in (MESSAGES, PAYLOADS) or len(key) < PLACE_SIZE:
            return None
        behind = place_after(place_in(key))
        with closing(self.scan(key, key[:-PLACE_SIZE] + pack_place(*behind))) as rows:
            return next((value for _, value in rows), None)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
        """As of every engine. A record that can't be read and may hold rows of the range comes
        under its own key, that of its last row, which may not be before `stop`."""
        records = self._engine.scan(start, _overlap_stop(start, stop), reverse=reverse)
        between = _records_before if reverse else _records_between
        return _rows_between(between(records, stop), start, stop, reverse=reverse)

    def scan_records(self, start: bytes, stop: bytes) -> Rows:
        """The same, with every run in one that has a row there, and may have others."""
        records = self._engine.scan(start, _overlap_stop(start, stop))
        return _records_between(records, stop)

    def scan_told(self, start: bytes, stop: bytes, *, are_rows_told: bool) -> Rows:
        """As `scan_records`; damage that may hide rows is told where the engine can tell it."""
        if self._telling is None:
            return self.scan_records(start, stop)
        records = self._telling.scan_told(
            start, _overlap_stop(start, stop), are_rows_told=are_rows_told
        )
        return _records_between(records, stop)

    def approximate_size(self, start: bytes, stop: bytes) -> int:
        return self._engine.approximate_size(start, stop)

    def write(self, batch: Sequence[tuple[bytes, bytes | None]]) -> None:
        self._engine.write(batch)

    def close(self) -> None:
        self._engine.close()


def scan_records(store: Store, start: bytes, stop: bytes) -> Rows:
    """Rows, and whole runs where the store has them. Raises: StoreError."""
    if isinstance(store, RunTable):
        return store.scan_records(start, stop)
    return store.scan(start, stop)


def scan_told(store: Store, start: bytes, stop: bytes, *, are_rows_told: bool = False) -> Rows:
    """The same, and damage that may hide rows is told where the store can tell it.

    Raises: StoreDamagedError: as Telling has it; StoreError.
    """
    if isinstance(store, RunTable):
        return store.scan_told(start, stop, are_rows_told=are_rows_told)
    return store.scan(start, stop)


def records_of(
    store: Store, keys: Sequence[bytes], values: Sequence[bytes]
) -> Iterable[tuple[bytes, bytes]]:
    """What to write for these new rows, which are neighbours of one prefix."""
    return join(keys, values) if isinstance(store, RunTable) else zip(keys, values, strict=True)


def rows_max(store: Store, key: bytes, value: bytes) -> int:
    """How many rows a record of the store that can't be read may be for; the last has its key."""
    return run_rows_max(key, value) if isinstance(store, RunTable) else 1


def _overlap_stop(start: bytes, stop: bytes) -> bytes:
    return overlap_stop(stop) if start < stop else stop


def _rows_between(records: Rows, start: bytes, stop: bytes, *, reverse: bool) -> Rows:
    with closing(records):
        for key, value in records:
            rows = rows_in(key, value)
            if len(rows) > 1 and (rows[0][0] < start or key >= stop):
                rows = [row for row in rows if start <= row[0] < stop]
            yield from reversed(rows) if reverse else rows


def _records_between(records: Rows, stop: bytes) -> Rows:
    """Those before `stop`, and the one behind them if it begins before it, or may."""
    before = b""
    with closing(records):
        for key, value in records:
            if key >= stop:
                if begins_before(key, value, stop, before=before):
                    yield key, value
                return
            before = key
            yield key, value


def _records_before(records: Rows, stop: bytes) -> Rows:
    """The same of records that come backwards."""
    behind: tuple[bytes, bytes] | None = None
    with closing(records):
        for key, value in records:
            if key >= stop:
                behind = key, value
                continue
            if behind is not None and begins_before(*behind, stop, before=key):
                yield behind
            behind = None
            yield key, value
    if behind is not None and begins_before(*behind, stop, before=b""):
        yield behind
