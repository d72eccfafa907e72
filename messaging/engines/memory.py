"""An engine that keeps everything in memory, for tests and for trying things out.

`MemoryStore.rows` outlives `close`, so a test can open the same rows again like after a restart.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from threading import Lock

from messaging.engines.engine_interface import Chunks, Corruption, Rows, StoreError, in_chunks

SIZED_COUNT_MAX = 1_000  # rows looked at for a size; splits ask for many sizes


class MemoryStore:
    """Rows in a dictionary beside their sorted keys. `_lock` guards both and `_closed`."""

    has_views = True
    packs_rows = True

    def __init__(self, rows: dict[bytes, bytes] | None = None) -> None:
        self.rows: dict[bytes, bytes] = {} if rows is None else rows
        self._keys = sorted(self.rows)
        self._lock = Lock()
        self._closed = False

    def get(self, key: bytes) -> bytes | None:
        with self._lock:
            self._require_open()
            return self.rows.get(key)

    def scan(
        self,
        start: bytes,
        stop: bytes,
        *,
        reverse: bool = False,
        corruption: Corruption = Corruption.PASS,
    ) -> Chunks:
        del corruption  # there is none
        with self._lock:
            self._require_open()
            keys = self._keys[bisect_left(self._keys, start) : bisect_left(self._keys, stop)]
            found = [(key, self.rows[key]) for key in keys]
        return in_chunks(_rows(found[::-1] if reverse else found))

    def approximate_size(self, start: bytes, stop: bytes) -> int:
        """Exact up to `SIZED_COUNT_MAX` rows; of a larger range, that many rows are sampled."""
        with self._lock:
            self._require_open()
            first, end = bisect_left(self._keys, start), bisect_left(self._keys, stop)
            step = max(1, (end - first) // SIZED_COUNT_MAX)
            sizes = (len(key) + len(self.rows[key]) for key in self._keys[first:end:step])
            return sum(sizes) * step

    def write(self, batch: Sequence[tuple[bytes, bytes | None]]) -> None:
        with self._lock:
            self._require_open()
            for key, value in batch:
                self._put(key, value)

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def _put(self, key: bytes, value: bytes | None) -> None:
        if value is not None:
            if key not in self.rows:
                insort(self._keys, key)
            self.rows[key] = value
        elif self.rows.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")


def _rows(found: Sequence[tuple[bytes, bytes]]) -> Rows:
    yield from found
