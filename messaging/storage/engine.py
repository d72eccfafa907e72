"""The interface of a storage engine: an ordered map from bytes to bytes (design §5).

The layout of keys and rows is above this interface and the same for every engine. All methods
block. They run on worker threads, and several threads may call at once.
"""

from collections.abc import Collection, Generator, Sequence
from operator import itemgetter
from typing import NamedTuple, Protocol, runtime_checkable

from tuff.disk.locks import StoreError
from tuff.protocol.ids import Offset

__all__ = [
    "SCAN_CHUNK_COUNT_MAX",
    "CanBeTakenOver",
    "Floor",
    "HasRegions",
    "Interruptible",
    "ReportsCorruption",
    "Rows",
    "SharedStore",
    "Store",
    "StoreDamagedError",
    "StoreError",
    "TakenOverError",
    "next_chunk_count",
]

Rows = Generator[tuple[bytes, bytes], None, None]  # keys and values, in order

# A scan is read in chunks, each `SCAN_CHUNK_GROWTH` times as large as the one before.
SCAN_CHUNK_GROWTH = 4
SCAN_CHUNK_COUNT_MAX = 256  # records; a larger chunk makes a record no cheaper
# Bytes of values, unless one value has more. Records that the reader does not take are wasted work.
SCAN_CHUNK_BYTES_MAX = 128 << 10

_VALUE = itemgetter(1)


class StoreDamagedError(StoreError):
    """The engine read corrupt data. A scan from `readable_from` continues behind the corruption;
    None: the engine does not know where it ends."""

    def __init__(self, text: str, *, readable_from: bytes | None = None) -> None:
        super().__init__(text)
        self.readable_from = readable_from


class TakenOverError(StoreError):
    """Another server took the store over; this one is fenced off and must stop using it."""


class Store(Protocol):
    """An ordered map from bytes to bytes, on stable storage.

    `has_views`: whether a scan reads a consistent snapshot. Otherwise it may or may not return
    concurrent writes. Readers then rely on the high-water mark: rows are only added behind it, and
    they read nothing there.
    """

    has_views: bool

    def get(self, key: bytes) -> bytes | None:
        """The value under a key, or None when there is none. Raises: StoreError."""

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
        """Every `start <= key < stop` with its value, as of the moment of the call where the store
        `has_views`. Close the iterator if you stop early. Raises: StoreError."""

    def approximate_size(self, start: bytes, stop: bytes) -> int:
        """The approximate size in bytes of the rows from `start` to `stop`. It is cheap: the engine
        reads a few blocks at most, however large the range. Recent writes in memory need not count.
        An engine that does not know returns 0; splits then count rows, as far as that is cheap. A
        range is never smaller than a range inside it. Raises: StoreError."""

    def write(self, batch: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Put every value under its key; None deletes. The batch is atomic, and durable when this
        returns. The last value of a repeated key wins. Raises: StoreError."""

    def close(self) -> None:
        """Wait for the calls in flight and release everything. Repeating it is harmless."""


@runtime_checkable
class ReportsCorruption(Protocol):
    """A store that reports the key ranges in which corruption may hide rows or show deleted ones.

    Its plain `scan` continues behind such a range without an error."""

    def scan_reporting_corruption(
        self, start: bytes, stop: bytes, *, report_damaged_rows: bool
    ) -> Rows:
        """As `scan`, but raises at the first range that may hide written rows or show deleted ones.

        A range that lies before `start` is not reported. A single damaged row is reported where
        `report_damaged_rows`; otherwise it is returned as it is stored.

        Raises: StoreDamagedError: at such a range, which ends before `readable_from`; StoreError.
        """


@runtime_checkable
class HasRegions(Protocol):
    """A store whose rows lie in regions, which other servers compact (HBase's region servers)."""

    def message_regions(self) -> Collection[str]:
        """The encoded names of all regions that hold message rows now. Raises: StoreError."""


@runtime_checkable
class CanBeTakenOver(Protocol):
    """A store that another server can take over, which fences this one off."""

    def require_owned(self) -> None:
        """Return if no other server had taken the store over at the time of the call. It asks the
        storage system, which may take long.

        Raises: TakenOverError; StoreError: the storage system does not answer now.
        """


class Floor(NamedTuple):
    """The highest offset that a server assigned, and the highest timestamp in ms of its cells. The
    next owner of its topics has to stay above both: with lower ones, its rows would come before
    rows that readers have seen, or be hidden by older cells. `longest_transaction_ms` is from
    the metadata of the server: with less, retention drops payloads of live messages."""

    last: Offset
    cell_ms: int
    longest_transaction_ms: int


@runtime_checkable
class SharedStore(Protocol):
    """A store whose tables several servers share (decision 0042). Any thread may call."""

    @property
    def cell_ms(self) -> int:
        """The timestamp in ms of the newest cells of this server."""

    def raise_time(self, floor_ms: int) -> None:
        """Give all cells that are written from now on a timestamp above this one."""

    def wait_until_shared(self) -> None:
        """Wait until other servers can read everything that was written before this call. Raises:
        StoreError."""


@runtime_checkable
class Interruptible(Protocol):
    """An opener of a store whose calls may hang on another system."""

    def interrupt(self) -> None:
        """Make the calls in flight fail at once, and all later ones. Any thread may call."""


def next_chunk_count(chunk: Sequence[tuple[bytes, bytes]], count: int) -> int:
    """How many records to read after this chunk, for which `count` were asked."""
    size_bytes = sum(map(len, map(_VALUE, chunk)))
    fitting = (
        SCAN_CHUNK_BYTES_MAX * len(chunk) // size_bytes if size_bytes else SCAN_CHUNK_COUNT_MAX
    )
    return max(1, min(SCAN_CHUNK_GROWTH * count, SCAN_CHUNK_COUNT_MAX, fitting))
