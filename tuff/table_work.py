"""What one transaction has written to a table, and how much of that is on disk."""

from collections.abc import Generator, Iterator
from enum import Enum
from inspect import GEN_CLOSED, getgeneratorstate
from threading import RLock
from weakref import WeakSet

from tuff.protocol.transaction import Transaction
from tuff.table_rows import Version

BUFFER_BYTES_MAX = 8 << 20  # bytes; one sync for that much costs a long transaction little
WRITE_OVERHEAD_BYTES = 256  # bytes that a write costs in memory beyond its key and value

Found = tuple[Version, bytes | None]  # None: it was deleted
Founds = Generator[Found, None, None]
Rows = Generator[tuple[bytes, bytes], None, None]


class WorkState(Enum):
    """Open: may read and write. Written: `commit_tx` ran. The others: how it ended; a rollback that
    failed may be tried again."""

    OPEN = "open"
    WRITTEN = "written"
    COMMITTED = "committed"
    UNDONE = "undone"
    NOT_UNDONE = "not undone"


class Work:
    """One transaction's part in one table. Whoever changes or reads its writes holds `lock`, since
    the tasks and threads that a transaction starts may work in it together."""

    def __init__(self, transaction: Transaction) -> None:
        self.lock = RLock()
        self.transaction = transaction
        self.state = WorkState.OPEN
        self.size_bytes = 0
        self.in_doubt: list[Version] = []  # handed to the disk, and nobody knows if they are there
        self.next_number: int | None = None  # of its next undo row; None until the disk was asked
        self.scans: WeakSet[Rows] = WeakSet()  # those that the transaction began
        self.untold_key: bytes | None = None  # a row that was first written after `tell`
        self._told: set[bytes] | None = None
        self._writes: dict[bytes, dict[int, bytes | None]] = {}

    @property
    def transaction_id(self) -> int:
        return self.transaction.transaction_id

    @property
    def has_ended(self) -> bool:
        return self.state not in (WorkState.OPEN, WorkState.WRITTEN)

    @property
    def has_writes(self) -> bool:
        """Whether anything waits in memory for `commit_tx`."""
        return bool(self._writes)

    @property
    def is_scanning(self) -> bool:
        """Whether a scan that the transaction began may be read on."""
        return any(getgeneratorstate(rows) != GEN_CLOSED for rows in self.scans)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Write under the current pointer, in memory; None deletes."""
        if self._told is not None and key not in self._told and self.untold_key is None:
            self.untold_key = key
        versions = self._writes.setdefault(key, {})
        pointer = self.transaction.write_pointer
        if pointer in versions:
            self.size_bytes -= _cost(key, versions[pointer])
        versions[pointer] = value
        self.size_bytes += _cost(key, value)

    def find(self, key: bytes) -> Found | None:
        """The newest visible write of a row, if any is in memory."""
        # Pointers only rise, so that the last one put is the newest.
        for pointer, value in reversed(self._writes.get(key, {}).items()):
            if self.transaction.is_visible(pointer):
                return Version(key, pointer), value
        return None

    def found_between(self, start: bytes, stop: bytes | None) -> list[Found]:
        """The newest visible write of every `start <= key < stop` in memory, in key order."""
        keys = sorted(key for key in self._writes if start <= key and (stop is None or key < stop))
        return [found for key in keys if (found := self.find(key)) is not None]

    def writes(self) -> Iterator[Found]:
        """All that is in memory, hidden or not."""
        for key, versions in self._writes.items():
            for pointer, value in versions.items():
                yield Version(key, pointer), value

    def keys(self) -> set[bytes]:
        """The rows written in memory."""
        return set(self._writes)

    def tell(self, keys: set[bytes] | None) -> None:
        """These rows are looked at for conflicts; None: there is nothing to look at."""
        self._told = keys
        self.untold_key = None

    def written(self) -> None:
        """What was in memory is on disk, and an undo row with it."""
        self._forget()

    def end(self, state: WorkState) -> None:
        """Nothing more is read or written in it."""
        self.state = state
        self._forget()

    def _forget(self) -> None:
        self._writes = {}
        self.size_bytes = 0
        self.in_doubt = []


def _cost(key: bytes, value: bytes | None) -> int:
    return len(key) + len(value or b"") + WRITE_OVERHEAD_BYTES
