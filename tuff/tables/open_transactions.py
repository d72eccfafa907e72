"""The open transactions of a table: the writes of each in memory, and which of them is current in
each task and thread (docs/howto/participant.md)."""

from collections import deque
from collections.abc import Generator, Iterator
from contextvars import ContextVar
from enum import Enum
from inspect import GEN_CLOSED, getgeneratorstate
from threading import Lock, RLock
from weakref import WeakSet

from tuff.errors import WrongStateError
from tuff.protocol.transaction import Transaction
from tuff.tables.row_format import Version

BUFFER_BYTES_MAX = 8 << 20  # bytes; one sync for that much costs a long transaction little
WRITE_OVERHEAD_BYTES = 256  # bytes that a write costs in memory beyond its key and value

VersionedValue = tuple[Version, bytes | None]  # None: a delete marker
VersionedValues = Generator[VersionedValue, None, None]
Rows = Generator[tuple[bytes, bytes], None, None]


class WorkState(Enum):
    """OPEN: may read and write. WRITTEN: `commit_tx` ran. The others say how the work ended; a
    failed rollback (NOT_UNDONE) may be repeated, and LEFT is the end by `leave_tx`."""

    OPEN = "open"
    WRITTEN = "written"
    COMMITTED = "committed"
    UNDONE = "undone"
    NOT_UNDONE = "not undone"
    LEFT = "left"


class Work:
    """One transaction's work on one table. Callers hold `lock` while they read or change it, since
    the tasks and threads of a transaction share it."""

    def __init__(self, transaction: Transaction) -> None:
        self.lock = RLock()
        self.transaction = transaction
        self.state = WorkState.OPEN
        self.size_bytes = 0
        self.in_doubt: list[Version] = []  # a write of these failed, so they may be stored or not
        self.next_number: int | None = None  # of its next undo row; None before it was looked up
        self.scans: WeakSet[Rows] = WeakSet()  # scans that the transaction started
        # A row that was written too late for the conflict check.
        self.unchecked_key: bytes | None = None
        self._checked_keys: set[bytes] | None = None
        self._writes: dict[bytes, dict[int, bytes | None]] = {}

    @property
    def transaction_id(self) -> int:
        return self.transaction.transaction_id

    @property
    def has_ended(self) -> bool:
        return self.state not in (WorkState.OPEN, WorkState.WRITTEN)

    @property
    def has_writes(self) -> bool:
        """Whether there are writes in memory."""
        return bool(self._writes)

    @property
    def is_scanning(self) -> bool:
        """Whether a scan that the transaction started may still be read."""
        return any(getgeneratorstate(rows) != GEN_CLOSED for rows in self.scans)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Write under the current pointer, in memory; None deletes."""
        if (
            self._checked_keys is not None
            and key not in self._checked_keys
            and self.unchecked_key is None
        ):
            self.unchecked_key = key
        versions = self._writes.setdefault(key, {})
        pointer = self.transaction.write_pointer
        if pointer in versions:
            self.size_bytes -= _cost(key, versions[pointer])
        versions[pointer] = value
        self.size_bytes += _cost(key, value)

    def find(self, key: bytes) -> VersionedValue | None:
        """The newest visible write of a row, if any is in memory."""
        # Pointers only rise, so the last one is the newest.
        for pointer, value in reversed(self._writes.get(key, {}).items()):
            if self.transaction.is_visible(pointer):
                return Version(key, pointer), value
        return None

    def found_between(self, start: bytes, stop: bytes | None) -> list[VersionedValue]:
        """The newest visible write of every `start <= key < stop` in memory, in key order."""
        keys = sorted(key for key in self._writes if start <= key and (stop is None or key < stop))
        return [found for key in keys if (found := self.find(key)) is not None]

    def writes(self) -> Iterator[VersionedValue]:
        """All writes in memory, visible or not."""
        for key, versions in self._writes.items():
            for pointer, value in versions.items():
                yield Version(key, pointer), value

    def keys(self) -> set[bytes]:
        """The rows written in memory."""
        return set(self._writes)

    def set_checked_keys(self, keys: set[bytes] | None) -> None:
        """Record which rows the conflict check covers; None: the transaction is not checked."""
        self._checked_keys = keys
        self.unchecked_key = None

    def end(self, state: WorkState) -> None:
        """End the work; nothing more is read or written in it."""
        self.state = state
        self.forget_writes()

    def forget_writes(self) -> None:
        """Remove the writes from memory: they are stored, or the work has ended."""
        self._writes = {}
        self.size_bytes = 0
        self.in_doubt = []


def _cost(key: bytes, value: bytes | None) -> int:
    return len(key) + len(value or b"") + WRITE_OVERHEAD_BYTES


NESTED_COUNT_MAX = 64  # transactions open in one context; more were started and never ended
ENDED_COUNT_MAX = 64  # ended transactions of a table that repeated hooks find; they hold no writes


class OpenTransactions:
    """The transactions that were started on one table, by id, and the last that ended; and which of
    them is current in each context (task or thread): the latest that was started there.

    Any thread may call; `_joining` guards all but `_stack`.
    """

    def __init__(self, table_name: str) -> None:
        self._table_name = table_name
        self._stack: ContextVar[tuple[Work, ...]] = ContextVar(f"table {table_name}", default=())
        self._joining = Lock()
        self._works: dict[int, Work] = {}
        self._ended: deque[Work] = deque()
        self._in_doubt: dict[int, Version] = {}  # of each transaction one version in doubt

    def start(self, transaction: Transaction) -> None:
        """Make the transaction current in this context. Contexts share the work of one transaction.

        Raises: WrongStateError: too many transactions are open in this context.
        """
        stack = self._stack_with_room()
        with self._joining:
            work = self._works.get(transaction.transaction_id)
            if work is None or work.has_ended:
                work = self._works[transaction.transaction_id] = Work(transaction)
                if (version := self._in_doubt.get(transaction.transaction_id)) is not None:
                    work.in_doubt = [version]
        self._stack.set((*stack, work))

    def note_in_doubt(self, work: Work) -> None:
        """Remember that a write of the transaction failed and may be stored. If the transaction is
        started again, for a rollback, the rollback has to delete these versions, too. Otherwise
        they reappear when the table is opened again."""
        with self._joining:
            self._in_doubt[work.transaction_id] = work.in_doubt[0]

    def resolve_doubt(self, work: Work) -> None:
        """The versions of the transaction are no longer in doubt."""
        with self._joining:
            self._in_doubt.pop(work.transaction_id, None)

    def current(self) -> Work:
        """The current transaction's work. Raises: WrongStateError: there is none."""
        stack = self._stack.get()
        if not stack:
            raise self._no_transaction()
        return self.require_open(stack[-1])

    def require_open(self, work: Work) -> Work:
        """The work, which is open. Raises: WrongStateError: it is committing, or has ended."""
        if work.state is not WorkState.OPEN:
            raise self._no_transaction()
        return work

    def of(self, transaction: Transaction) -> Work:
        """The work of a transaction, in whatever context it was started.

        Raises: WrongStateError: it was not started on this table.
        """
        work = self._works.get(transaction.transaction_id)
        if work is None:
            raise WrongStateError(
                f"transaction {transaction.transaction_id} was not started on {self._table_name}, "
                "or ended long ago; call start_tx first"
            )
        return work

    def end(self, work: Work) -> None:
        """The work has ended: it is not current in this context any more. Hooks that are repeated
        still find it, for a while."""
        # In a context where it is current too, it stays on the stack: what that one writes is
        # refused, and does not go to the outer transaction.
        self._stack.set(tuple(one for one in self._stack.get() if one is not work))
        with self._joining:
            self._ended.append(work)
            if len(self._ended) > ENDED_COUNT_MAX:
                self._forget(self._ended.popleft())

    def leave(self, transaction: Transaction) -> None:
        """Forget the transaction, if it is there."""
        with self._joining:
            work = self._works.get(transaction.transaction_id)
            if work is None or work.has_ended:
                return
            self._forget(work)
        work.end(WorkState.LEFT)
        self._stack.set(tuple(one for one in self._stack.get() if one is not work))

    def _forget(self, work: Work) -> None:
        # A transaction that was started again has another work.
        if self._works.get(work.transaction_id) is work:
            del self._works[work.transaction_id]

    def _stack_with_room(self) -> tuple[Work, ...]:
        stack = self._stack.get()
        if len(stack) == 1 and stack[0].has_ended:
            stack = ()
        if len(stack) >= NESTED_COUNT_MAX:
            stack = tuple(one for one in stack if not one.has_ended)
        if len(stack) >= NESTED_COUNT_MAX:
            raise WrongStateError(
                f"{len(stack)} transactions on {self._table_name} were started here and never "
                "ended; end them, or call leave_tx for each that ended without the table"
            )
        return stack

    def _no_transaction(self) -> WrongStateError:
        return WrongStateError(
            f"{self._table_name} is in no transaction here; let the block name it, as in `with "
            "client.transaction(table)`, or join it by `tx.add(table)`"
        )
