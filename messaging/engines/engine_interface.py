"""The interface of a storage engine: an ordered map from bytes to bytes (design §5).

The layout of keys and rows is above this interface and the same for every engine. All methods
block. They run in threads, and several threads may call at once.
"""

from collections.abc import Collection, Generator, Sequence
from contextlib import closing
from enum import Enum
from itertools import islice
from operator import itemgetter
from typing import NamedTuple, Protocol, runtime_checkable

from messaging.model.row_format import Row as Row
from tuff_storage.disk.locks import StoreError as StoreError

Rows = Generator[Row, None, None]  # in the order of their keys
Chunks = Generator[list[Row], None, None]  # the same rows in lists, none of them empty

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


class Corruption(Enum):
    """What a scan does at corruption that the engine finds beside the rows."""

    PASS = "pass"  # continues behind it: rows may be missing, or deleted ones returned
    RAISE = "raise"  # raises where written rows may be missing, or deleted ones returned
    RAISE_AT_ROWS = "raise at rows"  # raises also where single rows are damaged, and nothing else


class Engine(Protocol):
    """An ordered map from bytes to bytes, on stable storage.

    `has_views`: whether a scan reads a consistent snapshot. Otherwise it may or may not return
    concurrent writes. Readers then rely on the high-water mark: rows are only added behind it, and
    they read nothing there. `packs_rows`: whether neighbouring rows are stored in one value
    (messaging/model/packed_rows.py), since nothing outside of this server deletes single rows.
    """

    has_views: bool
    packs_rows: bool

    def get(self, key: bytes) -> bytes | None:
        """The value under a key, or None when there is none. Raises: StoreError."""

    def scan(
        self,
        start: bytes,
        stop: bytes,
        *,
        reverse: bool = False,
        corruption: Corruption = Corruption.PASS,
    ) -> Chunks:
        """Every `start <= key < stop` with its value, as of the moment of the call where the engine
        `has_views`. Close the generator if you stop early. Rows before an error are returned before
        it is raised. A forward scan handles `corruption`, if the engine can find it; a range of it
        that lies before `start` is not reported.

        Raises: StoreDamagedError: at corruption, which ends before `readable_from`; StoreError.
        """

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


class Piece(NamedTuple):
    """A part of a range of deleted rows: `start <= key < stop`, and the bytes that a compaction of
    it writes at most before it deletes any."""

    start: bytes
    stop: bytes
    written_bytes: int


@runtime_checkable
class CanCompact(Protocol):
    """A store that keeps the space of deleted rows until they are compacted."""

    def next_piece(self, start: bytes, stop: bytes) -> Piece:
        """The first part of a range in which all rows were deleted. Raises: StoreError."""

    def compact(self, piece: Piece) -> None:
        """Free the space of deleted rows.

        Raises: StoreDamagedError: a table of it is damaged, and nothing was done; StoreError.
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


def in_chunks(rows: Rows, *, first_counts: Sequence[int] = (1,)) -> Chunks:
    """The rows in chunks, each larger than the one before: a reader may want no more than one. The
    first ones have these many rows, or fewer if rows are large."""
    counts = iter(first_counts)
    count, chunk = next(counts), list[Row]()
    with closing(rows):
        try:
            while True:
                # Rows before an error are in the list when it is raised.
                chunk.extend(islice(rows, count))
                if not chunk:
                    return
                yield chunk
                count, chunk = _next_count(chunk, next(counts, None), count), []
        except Exception:
            if chunk:
                yield chunk
            raise


def _next_count(chunk: Sequence[Row], named: int | None, count: int) -> int:
    size_bytes = sum(map(len, map(_VALUE, chunk)))
    fitting = (
        SCAN_CHUNK_BYTES_MAX * len(chunk) // size_bytes if size_bytes else SCAN_CHUNK_COUNT_MAX
    )
    wanted = min(SCAN_CHUNK_GROWTH * count, SCAN_CHUNK_COUNT_MAX) if named is None else named
    return max(1, min(wanted, fitting))
