"""The rows of the message store over an engine, with packed rows as they are stored or one by one.

A *record* is what the engine has under one key: a row, or packed rows
(messaging/model/packed_rows.py).
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import chain

from messaging.engines.engine_interface import Chunks, Corruption, Engine, Row, Rows
from messaging.model.packed_rows import (
    PACKED_TABLES,
    begins_before,
    overlap_stop,
    pack_rows,
    packed_count_max,
    rows_in,
)
from messaging.model.row_format import OFFSET_SIZE, offset_after, offset_in, pack_offset


class Store:
    """Blocks; several threads may call, as for the engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.has_views = engine.has_views
        self.approximate_size = engine.approximate_size
        self.write = engine.write
        self.close = engine.close

    def get(self, key: bytes) -> bytes | None:
        """The value of a row, or None when there is none. Raises: StoreError."""
        if key[:1] not in PACKED_TABLES:
            return self.engine.get(key)
        stop = key[:-OFFSET_SIZE] + pack_offset(*offset_after(offset_in(key)))
        with closing(self.records(key, stop, corruption=Corruption.RAISE)) as records:
            for record in records:
                return next((value for at, value in rows_in(*record) if at == key), record[1])
        return None

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
        """Every row `start <= key < stop`, as `Engine.scan` has it; corruption beside the rows is
        passed over. The key of a record that can't be read, and may contain rows of the range, is
        that of its last row, which need not be before `stop`."""
        chunks = self.engine.scan(start, _overlap_stop(start, stop), reverse=reverse)
        between = _before_reversed(chunks, stop) if reverse else _before(chunks, stop)
        with closing(between):
            for record in chain.from_iterable(between):
                rows = rows_in(*record)
                if len(rows) > 1 and (rows[0][0] < start or record[0] >= stop):
                    rows = [row for row in rows if start <= row[0] < stop]
                yield from reversed(rows) if reverse else rows

    def chunks(
        self, start: bytes, stop: bytes, *, corruption: Corruption = Corruption.PASS
    ) -> Chunks:
        """The records with rows in the range, or that may have some, as `Engine.scan` has it."""
        stop_of_records = _overlap_stop(start, stop)
        return _before(self.engine.scan(start, stop_of_records, corruption=corruption), stop)

    def records(
        self, start: bytes, stop: bytes, *, corruption: Corruption = Corruption.PASS
    ) -> Rows:
        """The records of `chunks`, one by one."""
        return _each(self.chunks(start, stop, corruption=corruption))

    def packed(self, keys: Sequence[bytes], values: Sequence[bytes]) -> Iterable[Row]:
        """The records to write for new rows, which are neighbours of one prefix."""
        return pack_rows(keys, values) if self.engine.packs_rows else zip(keys, values, strict=True)

    def count_max(self, key: bytes, value: bytes) -> int:
        """How many rows a record that can't be read may contain; the last has its key."""
        return packed_count_max(key, value) if self.engine.packs_rows else 1


def _each(chunks: Chunks) -> Rows:
    with closing(chunks):
        for chunk in chunks:
            yield from chunk


def _overlap_stop(start: bytes, stop: bytes) -> bytes:
    return overlap_stop(stop) if start < stop else stop


def _before(chunks: Chunks, stop: bytes) -> Chunks:
    """The records before `stop`, and the next one if it has rows before `stop`, or may have."""
    before = b""
    with closing(chunks):
        for chunk in chunks:
            if chunk[-1][0] >= stop:
                at = bisect_left(chunk, (stop,))
                before = chunk[at - 1][0] if at else before
                at += begins_before(*chunk[at], stop, before=before)
                if at:
                    yield chunk[:at]
                return
            before = chunk[-1][0]
            yield chunk


def _before_reversed(chunks: Chunks, stop: bytes) -> Chunks:
    """The records before `stop`, the last first, and the next one if it may have rows before
    `stop`."""
    behind: Row | None = None
    with closing(chunks):
        for chunk in chunks:
            at = next((at for at, (key, _) in enumerate(chunk) if key < stop), len(chunk))
            behind = chunk[at - 1] if at else behind
            if at == len(chunk):
                continue
            if behind is not None and begins_before(*behind, stop, before=chunk[at][0]):
                yield [behind]
            behind = None
            yield chunk[at:]
    if behind is not None and begins_before(*behind, stop, before=b""):
        yield [behind]
