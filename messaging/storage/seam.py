"""The seam below the tables: bytes in, bytes out (design §5, Storage seam).

An engine is one small file, and the key layout exists once, above it. All methods block, are called
on worker threads, and may be called by several at once.
"""

from collections.abc import Collection, Generator, Sequence
from typing import Protocol, runtime_checkable

from tuff.disk.failures import StoreError

__all__ = [
    "Interruptible",
    "Owned",
    "Regional",
    "Rows",
    "Store",
    "StoreDamagedError",
    "StoreError",
    "TakenOverError",
    "Telling",
]

Rows = Generator[tuple[bytes, bytes], None, None]  # keys and values, in order


class StoreDamagedError(StoreError):
    """What the engine read is not what it once wrote. `readable_from` is the key from which a scan
    goes on behind it, or None where the engine can't say where it ends."""

    def __init__(self, text: str, *, readable_from: bytes | None = None) -> None:
        super().__init__(text)
        self.readable_from = readable_from


class TakenOverError(StoreError):
    """Another server opened the store, and this one must not use it any more."""


class Store(Protocol):
    """An ordered map from bytes to bytes, on stable storage.

    `has_views`: whether a scan shows one moment. Where it does not, it may or may not show what is
    written beside it, and readers rest on what they are bounded by: the place up to which rows were
    acknowledged, behind which alone rows are added.
    """

    has_views: bool

    def get(self, key: bytes) -> bytes | None:
        """The value under a key, or None when there is none. Raises: StoreError."""

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Rows:
        """Every `start <= key < stop` with its value, as of the moment of the call where the store
        `has_views`. Close the iterator if you leave it early. Raises: StoreError."""

    def approximate_size(self, start: bytes, stop: bytes) -> int:
        """The bytes of the rows from `start` to `stop`, about, and at once: whatever the range, no
        more is read than a few blocks. What the engine was handed lately and holds in memory need
        not count, and 0 is an answer of an engine that can't tell (splits then walk over rows, as
        far as that is cheap). Nested ranges have sizes in their order. Raises: StoreError."""

    def write(self, batch: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Put every value under its key; None deletes. All of it or nothing, and durable when this
        returns. The last one wins when a key is named twice. Raises: StoreError."""

    def close(self) -> None:
        """Let go of everything, after the calls under way have ended. Repeating it is harmless."""


@runtime_checkable
class Telling(Protocol):
    """A store that can tell where damage may hide rows from a scan; `scan` goes on behind it."""

    def scan_told(self, start: bytes, stop: bytes, *, are_rows_told: bool) -> Rows:
        """As `scan`, up to the first stretch in which rows may be missing that were written, or
        stand that were deleted, unless `start` lies behind it. A damaged row, too, is such a
        stretch where `are_rows_told`; else it comes as it is.

        Raises: StoreDamagedError: it came to one, which ends before `readable_from`; StoreError.
        """


@runtime_checkable
class Regional(Protocol):
    """A store whose rows lie in regions, which servers of its own rewrite from time to time."""

    def message_regions(self) -> Collection[str]:
        """The encoded names of all regions that hold message rows now. Raises: StoreError."""


@runtime_checkable
class Owned(Protocol):
    """A store that another server can take over at any time."""

    def require_owned(self) -> None:
        """Return if nobody had taken it over when this was called. It asks, and may take long.

        Raises: TakenOverError; StoreError: nobody can tell now.
        """


@runtime_checkable
class Interruptible(Protocol):
    """What opens a store whose calls may hang on somebody else."""

    def interrupt(self) -> None:
        """Let the calls under way fail at once, and all later ones. Any thread may call."""
