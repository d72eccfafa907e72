"""A message store for tests, with a clock, transactions and failing stores that a test steers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kernel.event_loop import Arrivals, InThread, settle
from kernel.requests_and_replies import Caller
from messaging.engines.engine_interface import (
    Chunks,
    Engine,
    Row,
    Rows,
    StoreDamagedError,
    StoreError,
    in_chunks,
)
from messaging.engines.leveldb import LevelDbStore
from messaging.engines.memory import MemoryStore
from messaging.engines.space_on_disk import SpaceOnDisk
from messaging.log.delayed_due_times import Due
from messaging.log.state_in_memory import OpenStore, StoreState
from messaging.read.poll import Poll, PollResult
from messaging.service import MessagingService
from messaging.settings import MessagingSettings
from messaging.transactions_interface import WritePermit
from messaging.write.publish import Published
from messaging.write.write_queue import WriteQueue
from tuff.protocol.errors import (
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionsUnavailableError,
    TransactionUnknownError,
    TuffError,
)
from tuff.protocol.ids import TopicId
from tuff.protocol.pointer_list import PointerList, VisibilityState
from tuff.protocol.requests import Isolation, PublishEntry, PublishRequest, RollbackDetail
from tuff.protocol.transaction import Transaction, TransactionStatus

if TYPE_CHECKING:
    from messaging.read.archive import ArchiveReader

T = TypeVar("T")
NOON_MS = 1_480_000_000_000
AUDIT = TopicId("default", "audit")
COMMITTED = Poll(isolation=Isolation.COMMITTED)


class Clock:
    """A clock that a test sets. `asked` is set when it is read."""

    def __init__(self, now_ms: int = NOON_MS) -> None:
        self.now_ms = now_ms
        self.asked = asyncio.Event()

    def __call__(self) -> int:
        self.asked.set()
        return self.now_ms


async def in_thread(function: Callable[[], T]) -> T:
    """Runs it at once, so that a test has one order of events."""
    await asyncio.sleep(0)
    return function()


class Permit:
    def __init__(self, book: "Transactions", pointer: int) -> None:
        self.pointer = pointer
        self._book = book
        self.is_left = False

    def require_open(self) -> None:
        self._book.require(self.pointer)

    def leave(self) -> None:
        self.is_left = True


class Transactions:
    """A transaction service without a log: sets of pointers by state."""

    def __init__(self) -> None:
        self.in_progress: set[int] = set()
        self.committed: set[int] = set()
        self.aborted: set[int] = set()
        self.invalid: set[int] = set()
        self.highest = 0
        self.is_up = True
        self.permits: list[Permit] = []

    def start(self, pointer: int) -> int:
        self.in_progress.add(pointer)
        self.highest = max(self.highest, pointer)
        return pointer

    def end(self, pointer: int, ending: set[int]) -> None:
        self.in_progress.discard(pointer)
        ending.add(pointer)

    def require(self, pointer: int) -> None:
        if not self.is_up:
            raise TransactionsUnavailableError("down")
        if pointer in self.committed:
            raise TransactionCommittedError("committed")
        if pointer in self.aborted | self.invalid:
            raise TransactionAbortedError("ended")
        if pointer not in self.in_progress:
            raise TransactionUnknownError("unknown")

    async def enter(
        self, pointer: int, _topic: TopicId, _caller: Caller | None = None, /
    ) -> WritePermit:
        self.require(pointer)
        self.permits.append(Permit(self, pointer))
        return self.permits[-1]

    async def enter_rollback(
        self, pointer: int, _topic: TopicId, _caller: Caller | None = None, /
    ) -> WritePermit | None:
        if not self.is_up:
            raise TransactionsUnavailableError("down")
        if pointer in self.committed:
            raise TransactionCommittedError("committed")
        if pointer not in self.in_progress | self.invalid:
            return None
        permit = _RollbackPermit(self, pointer)
        self.permits.append(permit)
        return permit

    async def snapshot(self) -> Transaction:
        return self.reader()

    def reader(self) -> Transaction:
        """A new snapshot."""
        if not self.is_up:
            raise TransactionsUnavailableError("down")
        return Transaction(
            transaction_id=self.highest + 1,
            read_pointer=self.highest,
            write_pointer=self.highest + 1,
            invalids=tuple(sorted(self.invalid)),
            in_progress=tuple(sorted(self.in_progress)),
        )

    async def snapshot_of(self, pointer: int) -> Transaction:
        self.require(pointer)
        others = tuple(sorted(self.in_progress - {pointer}))
        return Transaction(
            transaction_id=pointer,
            read_pointer=pointer,
            write_pointer=pointer,
            invalids=tuple(sorted(self.invalid)),
            in_progress=others,
        )

    def open_transaction_id(self, pointer: int) -> int | None:
        return pointer if self.is_up and pointer in self.in_progress else None

    def preparation(self, _transaction_id: int) -> tuple[str, int] | None:
        return None

    async def status(self, pointer: int, /) -> TransactionStatus | None:
        if not self.is_up:
            raise TransactionsUnavailableError("down")
        for state, pointers in (
            ("in_progress", self.in_progress),
            ("committed", self.committed),
            ("aborted", self.aborted),
            ("invalid", self.invalid),
        ):
            if pointer in pointers:
                return TransactionStatus(
                    transaction_id=pointer, state=state, client="test", started_at_ms=0
                )
        return None

    async def visibility_state(self) -> VisibilityState | None:
        if not self.is_up:
            return None
        return VisibilityState(
            read_pointer=self.highest,
            write_pointer=self.highest,
            in_progress=PointerList(self.in_progress),
            invalid=PointerList(self.invalid),
            source="snapshot.1",
        )


class _RollbackPermit(Permit):
    def require_open(self) -> None:
        return


def rows_of(chunks: Chunks) -> list[Row]:
    """All rows that a scan of an engine returns."""
    with closing(chunks):
        return [*chain.from_iterable(chunks)]


class FlakyStore:
    """A store that fails one write: before it took effect, or after."""

    has_views = True
    packs_rows = True

    def __init__(self, inner: MemoryStore) -> None:
        self._inner = inner
        self.writes_left: int | None = None
        self.takes_effect = False

    def get(self, key: bytes) -> bytes | None:
        return self._inner.get(key)

    def scan(self, start: bytes, stop: bytes, **how: Any) -> Chunks:
        return self._inner.scan(start, stop, **how)

    def approximate_size(self, start: bytes, stop: bytes) -> int:
        return self._inner.approximate_size(start, stop)

    def write(self, batch: Sequence[tuple[bytes, bytes | None]]) -> None:
        if self.writes_left is not None:
            self.writes_left -= 1
            if self.writes_left < 0:
                self.writes_left = None
                if self.takes_effect:
                    self._inner.write(batch)
                raise StoreError("the disk failed")
        self._inner.write(batch)

    def close(self) -> None:
        self._inner.close()


class DamagedStore(MemoryStore):
    """A store that can't be read at the keys for which `is_damaged` returns True."""

    is_damaged: Callable[[bytes], bool] = staticmethod(lambda _key: False)

    def scan(self, start: bytes, stop: bytes, **how: Any) -> Chunks:
        return in_chunks(self._rows(super().scan(start, stop, **how)))

    def _rows(self, chunks: Chunks) -> Rows:
        for key, value in chain.from_iterable(chunks):
            if self.is_damaged(key):
                raise StoreDamagedError("a damaged block")
            yield key, value


class CountingStore(MemoryStore):
    """A store that counts the rows that its scans read."""

    read_count = 0

    def scan(self, start: bytes, stop: bytes, **how: Any) -> Chunks:
        for chunk in super().scan(start, stop, **how):
            self.read_count += len(chunk)
            yield chunk


class ScanCountingStore:
    """A store that counts the scans of it."""

    def __init__(self, inner: MemoryStore) -> None:
        self._inner = inner
        self.get, self.write, self.close = inner.get, inner.write, inner.close
        self.approximate_size = inner.approximate_size
        self.has_views, self.packs_rows = inner.has_views, inner.packs_rows
        self.scan_count = 0

    def scan(self, start: bytes, stop: bytes, **how: Any) -> Chunks:
        self.scan_count += 1
        return self._inner.scan(start, stop, **how)


class World:
    """Makes message stores over rows that outlive them."""

    def __init__(self, open_store: Callable[[], Engine] | None = None) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.clock = Clock()
        self.transactions = Transactions()
        self.settings = MessagingSettings()
        self.may_delete = True
        self.due: Callable[[], Due] = lambda: Due(self.clock())
        self.longest_transaction_s = 100.0
        self.lack_of_space: str | None = None
        self.lack_of_last_space: str | None = None
        self.free_bytes: int | None = None
        self.released_count = 0
        self.archive: ArchiveReader | None = None
        self.elapsed_s = 0.0
        self.is_shared = False  # whether the store is one of a cluster
        self.observed: list[tuple[str, float]] = []
        self.in_thread_write: InThread = in_thread
        self.in_thread_read: InThread = in_thread
        self.open_store: Callable[[], Engine] = open_store or (lambda: MemoryStore(self.rows))

    def new_service(self) -> MessagingService:
        def observe(name: str, figure: float) -> None:
            self.observed.append((name, figure))

        store = OpenStore(
            lambda: self.open_store(),
            in_thread_write=self.in_thread_write,
            in_thread_read=self.in_thread_read,
        )
        state = StoreState(
            now_ms=self.clock,
            may_delete=lambda: self.may_delete,
            due=lambda: self.due(),
            settings=self.settings,
            longest_transaction_s=self.longest_transaction_s,
            is_shared=self.is_shared,
        )
        committer = WriteQueue(
            store,
            state,
            arrivals=Arrivals(),
            observe=observe,
            elapsed_s=lambda: self.elapsed_s,
        )
        return MessagingService(
            store,
            state,
            committer,
            self.settings,
            observe=observe,
            space=SpaceOnDisk(
                lack=lambda: self.lack_of_space,
                lack_of_last=lambda: self.lack_of_last_space,
                free_bytes=lambda: self.free_bytes,
                release_spare=self._release_spare,
            ),
            archive=self.archive,
        )

    async def _release_spare(self) -> None:
        self.released_count += 1
        self.lack_of_last_space = None

    @asynccontextmanager
    async def running(
        self, *, audit: Mapping[str, str] | None = None
    ) -> AsyncIterator[MessagingService]:
        """A running service; with the topic AUDIT, newly created, if its properties are given."""
        service = self.new_service()
        await service.open(self.transactions)
        writer = asyncio.ensure_future(service.committer.run())
        delayed = asyncio.ensure_future(service.delayed.run())
        try:
            if audit is not None:
                await service.topics.create(AUDIT, audit)
            yield service
        finally:
            await service.close()
            await writer
            await delayed

    def gate_writes(self) -> asyncio.Event:
        """A gate, which is open: writes wait while the event is cleared."""
        gate, self.in_thread_write = _gated()
        return gate

    def gate_reads(self) -> asyncio.Event:
        """A gate, which is open: reads of the store wait while the event is cleared."""
        gate, self.in_thread_read = _gated()
        return gate

    def damage_row(self, table: bytes) -> bytes:
        """Change the last byte of the first row of a table; its key."""
        key = min(key for key in self.rows if key.startswith(table))
        self.rows[key] = self.rows[key][:-1] + b"?"
        return key

    def commit(self, service: MessagingService, pointer: int) -> None:
        self.transactions.end(pointer, self.transactions.committed)
        service.rows.end_committed([pointer])

    async def abort(self, service: MessagingService, pointer: int) -> None:
        self.transactions.end(pointer, self.transactions.invalid)
        await service.rows.roll_back([pointer])
        self.transactions.invalid.discard(pointer)
        self.transactions.aborted.add(pointer)


def _gated() -> tuple[asyncio.Event, InThread]:
    gate = asyncio.Event()
    gate.set()

    async def through_the_gate(function: Callable[[], T]) -> T:
        await gate.wait()
        return await in_thread(function)

    return gate, through_the_gate


class FlakyWorld(World):
    """A world whose store fails a write, or can't be opened."""

    def __init__(self) -> None:
        super().__init__(self._open)
        self.store: FlakyStore | None = None
        self.is_barred = False
        self.open_count = 0

    def _open(self) -> Engine:
        if self.is_barred:
            raise StoreError("the disk is gone")
        self.open_count += 1
        self.store = FlakyStore(MemoryStore(self.rows))
        return self.store

    def fail_write(self, number: int, *, takes_effect: bool) -> None:
        """Fail the write after this number of others, before it takes effect or after."""
        assert self.store is not None
        self.store.writes_left, self.store.takes_effect = number, takes_effect


def leveldb(directory: Path) -> LevelDbStore:
    """The LevelDB engine, as the server opens it."""
    return LevelDbStore(directory)


def watched() -> tuple[World, Callable[[], int]]:
    """A world, and how often its store was scanned."""
    stores: list[ScanCountingStore] = []
    world = World(lambda: stores.append(ScanCountingStore(MemoryStore(world.rows))) or stores[-1])
    return world, lambda: stores[-1].scan_count


def request(
    *payloads: bytes, pointer: int | None = None, ttl_s: int | None = None
) -> PublishRequest:
    ttls_s = None if ttl_s is None else [ttl_s] * len(payloads)
    return PublishRequest(pointer=pointer, payloads=payloads, ttls_s=ttls_s)


async def publish_commits(
    service: MessagingService, commits: Sequence[Sequence[PublishEntry]]
) -> Sequence[list[RollbackDetail] | TuffError]:
    """Write the entries of these commits as one batch."""
    future = asyncio.get_running_loop().create_future()
    service.rows.publish_final(commits, lambda _: None, partial(settle, future))
    return await future


async def publish_final(
    service: MessagingService, entries: Sequence[PublishEntry]
) -> list[RollbackDetail]:
    """Write the entries of one commit."""
    (written,) = await publish_commits(service, [entries])
    if isinstance(written, TuffError):
        raise written
    return written


async def publish(
    service: MessagingService,
    *payloads: bytes,
    pointer: int | None = None,
    ttl_s: int | None = None,
) -> Published:
    return await service.publisher.publish(AUDIT, request(*payloads, pointer=pointer, ttl_s=ttl_s))


def payloads(result: PollResult) -> list[bytes]:
    return [payload for _, payload in result.items]


async def polled(service: MessagingService, poll: Poll | None = None) -> list[bytes]:
    return payloads(await service.polls.poll(AUDIT, poll or Poll()))


async def settle_down(awaitable: Awaitable[T]) -> "asyncio.Future[T]":
    """Start a task, and let it run until it waits."""
    task = asyncio.ensure_future(awaitable)
    for _ in range(20):
        await asyncio.sleep(0)
    return task
