"""The store as the tables see it: rows one by one, also where the engine has runs of them.

Who reads many messages takes the runs as they are (`scan_records`); to everybody else a row is a
row. Rows of a run are written together, by `join`, and end together: retention and the end of a
topic drop older rows first, so that the deletion of the last one, under whose key the run stands,
takes all of it, and the deletion of another one does nothing yet.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing

from messaging.keys import MESSAGES, PAYLOADS, PLACE_SIZE, pack_place, place_after, place_in
from messaging.runs import is_run, join, overlap_stop, rows_in
from messaging.storage.seam import Rows, Store


class RunTable:
    """An engine with runs. Blocks, and may be called by several threads, as the engine may."""

    def __init__(self, engine: Store) -> None:
        self._engine = engine
        self.has_views = engine.has_views

    def get(self, key: bytes) -> bytes | None:
        found = self._engine.get(key)
        if found is not None and not is_run(found):
            return found
        if key[:1] not in (MESSAGES, PAYLOADS) or len(key) < PLACE_SIZE:
            return found
        behind = place_after(place_in(key))
        with closing(self.scan(key, key[:-PLACE_SIZE] + pack_place(*behind))) as rows:
            return next((value for _, value in rows), None)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
        records = self._engine.scan(start, _overlap_stop(start, stop), reverse=reverse)
        return _rows_between(records, start, stop, reverse=reverse)

    def scan_records(self, start: bytes, stop: bytes) -> Rows:
        """The same, with every run in one that has a row there, and may have others."""
        records = self._engine.scan(start, _overlap_stop(start, stop))
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


def records_of(
    store: Store, keys: Sequence[bytes], values: Sequence[bytes]
) -> Iterable[tuple[bytes, bytes]]:
    """What to write for these new rows, which are neighbours of one prefix."""
    return join(keys, values) if isinstance(store, RunTable) else zip(keys, values, strict=True)


def _overlap_stop(start: bytes, stop: bytes) -> bytes:
    return overlap_stop(stop) if start < stop else stop


def _rows_between(records: Rows, start: bytes, stop: bytes, *, reverse: bool) -> Rows:
    with closing(records):
        for key, value in records:
            if not is_run(value):
                if start <= key < stop:
                    yield key, value
                elif not reverse:
                    return
                continue
            rows = rows_in(key, value)
            if rows[0][0] >= stop and not reverse:
                return
            if rows[0][0] < start or key >= stop:
                rows = [row for row in rows if start <= row[0] < stop]
            yield from reversed(rows) if reverse else rows


def _records_between(records: Rows, stop: bytes) -> Rows:
    with closing(records):
        for key, value in records:
            if key < stop:
                yield key, value
                continue
            if rows_in(key, value)[0][0] < stop:
                yield key, value
            return
