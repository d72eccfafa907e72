"""A transaction service on a real directory, with a clock, a disk and rows that a test moves."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

from kernel.event_loop import Arrivals
from tests.tx.steps import SteppedDisk
from tuff.protocol.errors import (
    StorageUnavailableError,
    TransactionsUnavailableError,
    TuffError,
)
from tuff.protocol.ids import Offset, TopicId
from tuff.protocol.requests import PublishEntry, RollbackDetail
from tuff.protocol.transaction import TransactionType
from tx.calls import Answer, Commit, StartRequest
from tx.leadership import Leadership
from tx.mixed_backups import RecordedFiles
from tx.outcomes import OpenTransaction, Outcome
from tx.service import TransactionManager
from tx.settings import TransactionSettings
from tx.wal import DiskFile

T = TypeVar("T")

NOW_MS = 1_480_000_000_000
TOPIC = TopicId("ns", "t")
STORE_ID = "00112233445566778899aabbccddeeff"


async def turns(count: int = 100) -> None:
    """Let everything go on that waits for nothing but its turn."""
    for _ in range(count):
        await asyncio.sleep(0)


class Disk:
    """Runs what blocks on the loop itself; `hold` keeps the next calls waiting, `fails` breaks
    the log's appends. With `hangs_after_failure`, the calls after a broken one wait too."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.fails = False
        self.hangs_after_failure = False
        self.sync_count = 0
        self.write_count = 0
        self.sync_s = self.elapsed_s = 0.0  # what a sync takes, and a clock that it moves
        self.open_files: set[Path] = set()

    async def __call__(self, function: Callable[[], T], /) -> T:
        await self._open.wait()
        await asyncio.sleep(0)
        return function()

    def hold(self) -> None:
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def open_file(self, path: Path) -> "FlakyFile":
        return FlakyFile(path, self)


class FlakyFile:
    """A log file on the disk that a test may break."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self._file = DiskFile(path)
        self._disk, self._path = disk, path
        disk.open_files.add(path)

    def append(self, data: bytes, *, sync: bool) -> None:
        if self._disk.fails:
            self._file.append(data[: len(data) // 2], sync=False)
            if self._disk.hangs_after_failure:
                self._disk.hold()
            raise OSError(28, "No space left on device")
        self._file.append(data, sync=sync)
        self._disk.elapsed_s += self._disk.sync_s if sync else 0
        self._disk.write_count += 1
        self._disk.sync_count += sync

    def close(self) -> None:
        self._file.close()
        self._disk.open_files.discard(self._path)


@dataclass
class Rows:
    """The message store, as far as transactions know it: which pointer carries rows."""

    carried: dict[int, str] = field(default_factory=dict)
    finals: set[int] = field(default_factory=set)
    delayed: set[int] = field(default_factory=set)  # pointers with delayed messages
    uncleared: set[int] = field(default_factory=set)
    published_at_ms: dict[int, int] = field(default_factory=dict)
    marked: list[int] = field(default_factory=list)
    settled: list[int] = field(default_factory=list)
    aside: list[int] = field(default_factory=list)
    woken: list[int] = field(default_factory=list)
    read_in: set[int] = field(default_factory=set)
    reserved: int = 0
    seen_lsn: int = 0
    refusal: TuffError | None = None
    failure: Exception | None = None
    failures: dict[int | None, TuffError] = field(default_factory=dict)  # of commits, by pointer
    asks_others: bool = False  # the check of a commit's entries waits, as in a cluster
    batches: list[int] = field(default_factory=list)  # how many commits each write has
    marking_fails: bool = False
    published: list[PublishEntry] = field(default_factory=list)
    writing: asyncio.Event = field(default_factory=asyncio.Event)
    marking: asyncio.Event = field(default_factory=asyncio.Event)
    _waiting: list["asyncio.Task[None]"] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.writing.set()
        self.marking.set()

    async def check_entries(self, entries: Sequence[PublishEntry]) -> None:
        if self.refusal is not None:
            raise self.refusal

    def check_now(self, entries: Sequence[PublishEntry]) -> bool:
        if self.refusal is not None:
            raise self.refusal
        return not self.asks_others

    def publish_final(
        self,
        commits: Sequence[Sequence[PublishEntry]],
        built: Callable[[Sequence[list[RollbackDetail] | TuffError]], None],
        written: Callable[[Sequence[list[RollbackDetail] | TuffError] | Exception], None],
    ) -> None:
        self.batches.append(len(commits))
        results = [self._written(entries) for entries in commits]
        built(results)
        if self.writing.is_set():
            written(self.failure or results)
        else:
            self._waiting.append(asyncio.create_task(self._write_later(results, written)))

    async def _write_later(
        self,
        results: Sequence[list[RollbackDetail] | TuffError],
        written: Callable[[Sequence[list[RollbackDetail] | TuffError] | Exception], None],
    ) -> None:
        await self.writing.wait()
        written(self.failure or results)

    def _written(self, entries: Sequence[PublishEntry]) -> list[RollbackDetail] | TuffError:
        details = []
        for entry in entries:
            assert entry.pointer is not None
            self.carried[entry.pointer] = str(entry.topic)
            self.finals.add(entry.pointer)
            details.append(RollbackDetail(entry.pointer, Offset(NOW_MS, 0), Offset(NOW_MS, 1)))
        if (error := self.failures.get(entries[0].pointer)) is not None:
            return error
        if self.failure is None:
            self.published += entries
        return details

    async def roll_back(self, transaction_pointers: Collection[int]) -> None:
        await self.marking.wait()
        if self.marking_fails:
            raise StorageUnavailableError("the disk is full")
        self.marked += transaction_pointers
        for pointer in transaction_pointers:
            self.carried.pop(pointer, None)
            self.finals.discard(pointer)

    async def set_aside(self, transaction_pointers: Collection[int]) -> None:
        await self.marking.wait()
        if self.marking_fails:
            raise StorageUnavailableError("the disk is full")
        self.aside += transaction_pointers
        for pointer in transaction_pointers:
            self.published_at_ms.pop(pointer, None)

    def end_committed(self, transaction_pointers: Collection[int]) -> None:
        self.settled += transaction_pointers
        for pointer in transaction_pointers:
            self.carried.pop(pointer, None)
            self.finals.discard(pointer)

    def wake_readers(self, transaction_pointers: Collection[int]) -> None:
        self.woken += transaction_pointers

    def reading_pointers(self) -> Collection[int]:
        return self.read_in

    def topics(self, transaction_pointers: Collection[int]) -> list[str]:
        return sorted({self.carried[p] for p in transaction_pointers if p in self.carried})

    def has_rows_to_move(self, transaction_pointers: Collection[int]) -> bool:
        return any(pointer in self.delayed for pointer in transaction_pointers)

    def is_carried(self, pointer: int) -> bool:
        return pointer in self.carried

    def is_cleared(self, pointer: int) -> bool:
        return pointer not in self.uncleared

    def indexed_pointers(self) -> Collection[int]:
        return list(self.carried)

    def published_by(self, at_ms: int) -> Collection[int]:
        return [pointer for pointer, first_ms in self.published_at_ms.items() if first_ms <= at_ms]

    def final_pointers(self) -> set[int]:
        return set(self.finals)

    def note_durable(self, lsn: int) -> None:
        self.seen_lsn = max(self.seen_lsn, lsn)

    def note_reserved(self, highest_pointer: int) -> None:
        self.reserved = max(self.reserved, highest_pointer)


def entry(*payloads: bytes, pointer: int | None = None, topic: str = "t") -> PublishEntry:
    return PublishEntry(topic=TopicId("ns", topic), payloads=payloads, pointer=pointer)


class NewService(Protocol):
    """Makes a service that is not open yet; the fixture of this name ends all its lives."""

    def __call__(
        self,
        settings: TransactionSettings | None = None,
        directory: Path = ...,
        *,
        rows: Rows | None = None,
    ) -> "Service": ...


class Service:
    """One life of the service over a directory; `crash` and `restart` begin the next."""

    def __init__(
        self,
        directory: Path,
        settings: TransactionSettings | None = None,
        *,
        rows: Rows | None = None,
        now_ms: int = NOW_MS,
        lives: "list[Service] | None" = None,
        leadership: Leadership | None = None,
        disk: Disk | SteppedDisk | None = None,
        files: Disk | SteppedDisk | None = None,
    ) -> None:
        self._lives = [] if lives is None else lives  # this one, and those before and after it
        self._lives.append(self)
        self.directory = directory
        self.settings = settings or TransactionSettings()
        self.rows = rows or Rows()
        self.leadership = leadership
        self.disk = disk or Disk()
        self.files = files or Disk()  # the thread that makes snapshots, and recovers
        self.now_ms = now_ms
        self.observed: list[tuple[str, float]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.may_forget = True
        self.manager = TransactionManager(
            directory,
            self.settings,
            may_forget=lambda: self.may_forget,
            rows=self.rows,
            max_block_s=30,
            now_ms=lambda: self.now_ms,
            elapsed_s=lambda: self.disk.elapsed_s,
            in_thread_log=self.disk,
            in_thread_files=self.files,
            arrivals=Arrivals(),
            spawn=self.spawn,
            store_id=lambda: STORE_ID,
            observe=lambda name, figure: self.observed.append((name, figure)),
            open_file=self.disk.open_file,
        )
        self.durable = self.manager.durable
        self.runner = self.manager.runner
        self.sinks = self.manager.sinks
        self.invalid_list = self.manager.invalid_list
        self.monitoring, self.write_permits = self.manager.monitoring, self.manager.write_permits

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def open(self, mark: RecordedFiles | None = None) -> "Service":
        await self.manager.open(mark, leadership=self.leadership)
        self.spawn(self.durable.run())
        return self

    async def crash(self) -> "Service":
        """Nothing that was not written yet ever will be; the next life is open."""
        await self.kill()
        return await self.next_life().open()

    async def kill(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def restart(self) -> "Service":
        """A clean stop, and the next life, open."""
        await self.manager.close()
        await self.kill()
        return await self.next_life().open()

    def next_life(self) -> "Service":
        return Service(
            self.directory, self.settings, rows=self.rows, now_ms=self.now_ms, lives=self._lives
        )

    async def begin(
        self,
        kind: TransactionType = TransactionType.SHORT,
        *,
        timeout_s: float | None = None,
        client: str = "c",
        lease_s: float | None = None,
        request_id: str | None = None,
        is_messages_only: bool = False,
    ) -> OpenTransaction:
        return await self.runner.start(
            StartRequest(
                type=kind,
                timeout_s=timeout_s,
                client=client,
                lease_s=lease_s,
                request_id=request_id,
                is_messages_only=is_messages_only,
            )
        )

    def start_in_background(self, *, request_id: str) -> "asyncio.Task[OpenTransaction]":
        return asyncio.create_task(self.begin(request_id=request_id))

    async def commit_at_its_rows(
        self, tx: OpenTransaction, changes: Collection[bytes] | None = None
    ) -> "asyncio.Task[Outcome]":
        """A commit under way, whose rows are written once `rows.writing` is set."""
        self.rows.writing.clear()
        work = self.runner.commit(tx.transaction_id, changes=changes, publish=[entry(b"a")])
        committing = asyncio.create_task(work)
        await turns()
        return committing

    async def commit_all(self, commits: Iterable[Callable[[Answer], Commit]]) -> list[object]:
        """Commit transactions together: what each published, or the error with which it failed."""
        answers: list[asyncio.Future[object]] = []
        calls = []
        for make in commits:
            answers.append(asyncio.get_running_loop().create_future())
            calls.append(make(answers[-1].set_result))
        self.runner.take(calls)
        return list(await asyncio.gather(*answers))

    async def break_log(self, tx: OpenTransaction) -> None:
        """Let the log fail at the commit of this transaction; the disk then works again."""
        self.disk.fails = True
        with pytest.raises(TransactionsUnavailableError, match="can't be written"):
            await self.runner.commit(tx.transaction_id, changes=[])
        self.disk.fails = False

    async def later(self, ms: int) -> None:
        """Move the clock, tick, and let everything follow."""
        self.now_ms += ms
        await self.manager.tick()
        await turns()

    async def state_of(self, pointer: int) -> tuple[str, str | None]:
        found = await self.runner.outcome(pointer)
        if isinstance(found, OpenTransaction):
            return found.state, None
        return found.state.value, found.reason.value if found.reason else None
