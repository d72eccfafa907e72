"""The state together with its write-ahead log and snapshot files, and whether the service is up
(design §4, Decide, record, apply).

Only `record` changes the decided state, and only a finished sync changes the view. When the log
fails, the state is recovered from the files, and continues in new ones. A server that leads several
(decision 0042) and finds that another one leads is down for good: it recovers nothing any more.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from kernel.event_loop import Arrivals, FutureTask, InThread, Limited, SharedTimeout
from kernel.log_events import event
from tuff.protocol.errors import OverloadedError, TransactionsUnavailableError, TuffError
from tuff_storage.disk.files import make_directory, remove_file
from tx.file_headers import (
    DamagedFilesError,
    FileHeader,
    FileKind,
    KnownFile,
    epoch_of,
    first_sequence,
    free_path,
    list_files,
    stored_id,
    superfluous,
)
from tx.leadership import Leadership, NotLeaderError, Tenure
from tx.log_records import Edit
from tx.mixed_backups import OlderMessagesError, RecordedFiles
from tx.recovery import Recovered, recover_durably
from tx.settings import (
    PENDING_EDITS_MAX,
    RETRY_INTERVAL_MS,
    RETRY_INTERVAL_MS_MAX,
    TransactionSettings,
)
from tx.snapshot_file import write_snapshot
from tx.state import StateImage, TransactionState, ViewChange, fresh_image
from tx.wal import LogFile, OpenFile, WriteAheadLog, create_log

T = TypeVar("T")

log = logging.getLogger(__name__)


class ServiceState(Enum):
    """Whether transactions can be used; the values are the protocol's."""

    RUNNING = "running"
    STOPPED = "stopped"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """`reason` says, in one sentence, why the service is not running; empty while it is."""

    state: ServiceState
    reason: str


class Listener(Protocol):
    """Callbacks of a recovery, and of the log, for the rest of the service."""

    def first_edits(self, state: TransactionState) -> Iterator[Edit]:
        """The edits with which the log continues after a recovered state. Each is applied before
        the next one is computed."""

    def came_up(self, state: TransactionState) -> None:
        """The service is up, and the whole state is durable."""

    def became_durable(self, lsn: int, changes: Sequence[ViewChange]) -> None:
        """Edits up to this one are durable, and these changes are in the view now. Called before
        any caller that waits for an edit is answered."""

    def log_failed(self, reason: str) -> None:
        """The log failed: a recovery decides which edits stand."""


@dataclass(frozen=True, slots=True)
class _Recovered:
    state: TransactionState
    file: LogFile
    snapshot: KnownFile
    files: list[KnownFile]
    leftovers: list[KnownFile]
    notes: list[str]


def unusable(error: OSError) -> str:
    """Why a file can't be used, and what to do."""
    reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    if isinstance(error, PermissionError):
        reason += (
            "; give the whole data directory to the user of the server (`chown -R`), as after a "
            "start or a restore by root"
        )
    return reason


class DurableState:
    """Records edits durably, and applies them. Lives on one event loop; files are written and read
    in threads.

    `recovery_count` counts how often it came up: a recovery may have undone earlier decisions.
    `notes` are remarks on the last recovery, for an operator. `store_id` is that of the files,
    empty until the first recovery. `lost_messages` says that the message store lacks what the files
    prove was committed; None where nothing is missing.
    """

    recovery_count = 0
    store_id = ""
    lost_messages: str | None = None
    newest_snapshot: KnownFile  # set by the first recovery
    _listener: Listener  # set by `open`

    def __init__(
        self,
        directory: Path,
        settings: TransactionSettings,
        *,
        now_ms: Callable[[], int],
        elapsed_s: Callable[[], float],
        in_thread_log: InThread,
        in_thread_files: InThread,
        arrivals: Arrivals,
        store_id: Callable[[], str],
        open_file: OpenFile,
        status_changed: Callable[[], None],
        observe: Callable[[str, float], None],
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._now_ms = now_ms
        self._elapsed_s = elapsed_s
        # Two threads, so that the log does not wait behind a snapshot that is being packed.
        self._in_thread_log = in_thread_log
        self._in_thread_files = in_thread_files
        self._arrivals = arrivals
        self._new_store_id = store_id
        self._open_file = self._open_unfenced = open_file
        self._tenure = Tenure(None)
        self._timeout = SharedTimeout(settings.ending_timeout_s, too_late=self._too_late)
        self._status_changed = status_changed
        self._observe = observe
        self._state: TransactionState | None = None
        self._log: WriteAheadLog | None = None
        self._log_changed = asyncio.Event()
        self._files: list[KnownFile] = []
        self._leftovers: list[KnownFile] = []
        self._next_sequence = 1
        self._recorded: RecordedFiles | None = None
        self._stop_reason: str | None = None
        self._failed_at_ms: int | None = None
        self._retry_interval_ms = RETRY_INTERVAL_MS
        # One task makes files at a time, so that no two take the same sequence number.
        self._making_files = asyncio.Lock()
        # A second recovery would take the log from a service that is up.
        self._reopening = asyncio.Lock()
        self._is_closed = False
        self.notes: list[str] = []
        self._running: TransactionState | None = None  # the state, while the service is running
        self.status = ServiceStatus(ServiceState.DOWN, "transactions have not been recovered yet")

    @property
    def state(self) -> TransactionState:
        """Raises: TransactionsUnavailableError: the service is not running."""
        if self._running is None:
            raise TransactionsUnavailableError(self.status.reason)
        return self._running

    def require_running(self) -> None:
        """Raises: TransactionsUnavailableError: the service is not running."""
        if self._running is None:
            raise TransactionsUnavailableError(self.status.reason)

    @property
    def decided(self) -> TransactionState:
        """The state, also of a stopped service. Raises: TransactionsUnavailableError: down."""
        if self._state is None or self.status.state is ServiceState.DOWN:
            raise TransactionsUnavailableError(self.status.reason)
        return self._state

    @property
    def _whole_log(self) -> WriteAheadLog:
        if self._log is None:
            raise TransactionsUnavailableError(self.status.reason)
        return self._log

    def record(self, edit: Edit) -> int:
        """Append an edit to the log, and apply it; returns its LSN. A commit or abort that was
        under way when the service was stopped is still recorded.

        Raises:
            TransactionsUnavailableError: the service is down.
        """
        state = self._running or self.decided
        log = self._log or self._whole_log  # the property only raises
        lsn = log.append(edit)
        state.apply(lsn, edit)
        return lsn

    def require_room(self) -> None:
        """Raises: OverloadedError: too much waits for the disk already."""
        log = self._log
        pending_count = 0 if log is None else log.pending_count
        if pending_count >= PENDING_EDITS_MAX:
            raise OverloadedError(f"{pending_count} edits wait for the disk; try again in a second")

    def synced(self, lsn: int) -> Awaitable[None]:
        """Wait until this edit is on stable storage. Raises: TransactionsUnavailableError."""
        return self._whole_log.synced(lsn)

    async def synced_in_time(self, lsn: int) -> None:
        """Wait until this edit is on stable storage, for no longer than `tx.ending_timeout`.
        Raises: as `within_time`."""
        if lsn > self.state.seen:
            waiter = self._whole_log.waiter(lsn)
            self._timeout.watch(waiter)
            await waiter

    async def within_time(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for this work, but no longer than `tx.ending_timeout`. The work itself continues.

        Raises:
            TransactionsUnavailableError: it is not done in that time.
        """
        task = FutureTask(work, refusals=TuffError)
        task.go_on()
        done = task.done
        if not done.done():
            self._timeout.watch(done)
        try:
            return await done
        finally:
            done.cancel()  # if the caller gave up

    def _too_late(self) -> TransactionsUnavailableError:
        return TransactionsUnavailableError(
            f"storage took more than {self._settings.ending_timeout_s:g} seconds; this is still "
            "under way, so ask later how the transaction ended"
        )

    def limit(self, calls: Limited) -> None:
        """Refuse these calls after `tx.ending_timeout`, unless they are answered by then."""
        if not calls.done():
            self._timeout.watch(calls)

    def sync_soon(self, lsn: int) -> None:
        """Sync this edit with the next batch, without waiting for it."""
        if self._log is not None:
            self._log.sync_soon(lsn)

    async def durable_image(self) -> StateImage:
        """The newest state, as a snapshot file would hold it, with all of it durable."""
        await self.synced_in_time(self.state.last_pending_lsn)
        return self.state.image()

    @property
    def lost_leadership(self) -> str | None:
        """Why this process can't lead transactions any more; None while it may, and where it has
        the files alone."""
        return self._tenure.ended

    async def open(
        self,
        recorded: RecordedFiles | None,
        listener: Listener,
        leadership: Leadership | None,
    ) -> None:
        """Recover and come up. If the files can't be used the service is down, with a reason. Files
        that are older than `recorded` says are damage. This and each later recovery calls the
        listener.

        Without `leadership` no other server uses the files.
        """
        self._recorded, self._listener = recorded, listener
        self._tenure = Tenure(leadership)
        self._open_file = self._tenure.fenced(self._open_unfenced)
        await self.reopen()

    async def begin_unused(self, recorded: RecordedFiles) -> None:
        """Make the first snapshot file while transactions are switched off: it proves later that
        messages were lost (decision 0037). Files that exist are not touched."""
        if recorded.has_seen_files:
            return
        self.store_id = recorded.store_id
        header, image = self._header(1, 0), fresh_image(now_ms=self._now_ms())
        try:
            await self._in_thread_files(partial(self._make_first_file, header, image))
        except OSError as error:
            log.warning("the first transaction file can't be made: %s", error)

    def _make_first_file(self, header: FileHeader, image: StateImage) -> None:
        make_directory(self._directory)
        if not list_files(self._directory):
            write_snapshot(self._directory, header, image)

    async def stored_id(self) -> str | None:
        """The store id of the files that are there, None where none can be read."""
        try:
            return await self._in_thread_files(partial(stored_id, self._directory))
        except OSError:
            return None  # recovery reports the error

    def disable(self, reason: str) -> None:
        """Be down, for this reason."""
        self._set_status(ServiceState.DOWN, reason)

    async def reopen(self) -> None:
        """Close the files, if any are open, and recover from them, unless the service just came
        up."""
        async with self._reopening:
            # Without the leadership for good: the new leader has decided what the files say.
            is_final = self._is_closed or self._tenure.ended is not None
            if self.status.state is ServiceState.DOWN and not is_final:
                await self._reopen()

    async def _reopen(self) -> None:
        failed, self._log = self._log, None
        if failed is not None:
            await failed.close()
        self._failed_at_ms = None
        try:
            async with self._making_files:
                opened = await self._recover()
        except DamagedFilesError as error:
            if isinstance(error, OlderMessagesError):
                self.lost_messages = str(error)
            self.disable(str(error))
        except OSError as error:
            self._failed(f"the transaction files can't be used: {unusable(error)}")
        else:
            self._come_up(opened)

    async def retry(self) -> None:
        """Try again to come up, if the disk failed and some time has passed. While nobody can tell
        whether this server leads, nothing is tried, and the wait does not grow."""
        failed_at_ms = self._failed_at_ms
        if failed_at_ms is None or self._now_ms() - failed_at_ms < self._retry_interval_ms:
            return
        try:
            async with self._making_files:
                await self._in_thread_files(self._tenure.require)
        except NotLeaderError:
            pass  # `reopen` says so
        except OSError:
            self._failed_at_ms = self._now_ms()
            return
        self._retry_interval_ms = min(2 * self._retry_interval_ms, RETRY_INTERVAL_MS_MAX)
        await self.reopen()

    def stop(self, reason: str) -> None:
        """Refuse new work until `resume`; edits that were recorded are still written."""
        self._stop_reason = reason
        if self.status.state is ServiceState.RUNNING:
            self._set_status(ServiceState.STOPPED, reason)

    def resume(self) -> None:
        """Undo `stop`."""
        self._stop_reason = None
        if self.status.state is ServiceState.STOPPED:
            self._set_status(ServiceState.RUNNING, "")

    async def run(self) -> None:
        """Write what is recorded, log after log, until `close`."""
        while not self._is_closed:
            self._log_changed.clear()
            if self._log is not None:
                await self._log.run()
            await self._log_changed.wait()  # `close` sets it as its last step

    async def snapshot(self) -> tuple[str, int]:
        """Write the whole state to a file, and begin a new log; the file's name and size.

        Raises:
            TransactionsUnavailableError: the service is down.
            NotLeaderError: another server leads; the service is down now.
            OSError: a file can't be made; the service continues with the files it has.
        """
        try:
            async with self._making_files:
                known, size = await self._write_snapshot()
                await self._remove_superfluous()
        except NotLeaderError as error:
            self._failed(str(error))
            raise
        return known.path.name, size

    async def _write_snapshot(self) -> tuple[KnownFile, int]:
        now_ms, log_sequence = self._now_ms(), self._next_sequence
        self._next_sequence += 2
        path = await self._in_thread_files(
            partial(self._free_log_path, now_ms=now_ms, sequence=log_sequence)
        )
        # From here to the roll nothing may be recorded: the new log starts where the image ends.
        image = self.decided.image()
        log_header = self._header(log_sequence, image.lsn + 1)
        self._files.append(await self._whole_log.roll(path, log_header))
        header = self._header(log_sequence + 1, image.lsn)
        known, size = await self._in_thread_files(partial(self._make_snapshot, header, image))
        self._files.append(known)
        self.newest_snapshot = known
        self.notes = []  # a start from this snapshot needs none of the files that they name
        return known, size

    def _make_snapshot(self, header: FileHeader, image: StateImage) -> tuple[KnownFile, int]:
        made = write_snapshot(self._directory, header, image)
        self._tenure.require()
        return made

    async def _remove_superfluous(self) -> None:
        for known in superfluous(self._files, retain=self._settings.snapshot_retain):
            await self._remove(known)
            self._files.remove(known)
        while self._leftovers:
            await self._remove(self._leftovers.pop())

    async def _remove(self, known: KnownFile) -> None:
        try:
            await self._in_thread_files(partial(self._remove_file, known.path))
        except NotLeaderError:
            raise
        except OSError as error:
            log.warning("%s is no longer needed and can't be removed: %s", known.path, error)

    def _remove_file(self, path: Path) -> None:
        # This server has led after it wrote the snapshot that makes the file superfluous. So each
        # later leader finds that snapshot, and does not need the file.
        self._tenure.require()
        remove_file(path)

    @property
    def logged_count(self) -> int:
        """How many edits no snapshot file holds, so that a start would replay them. Raises:
        TransactionsUnavailableError: down."""
        return self.decided.lsn - self.newest_snapshot.header.lsn

    def prove(self) -> None:
        """Write a proof of how far the log is durable, if it has none."""
        if self._log is not None:
            self._log.prove()

    async def close(self) -> None:
        """Write the edits that wait, and close the files. No file is made after this: the next
        process would take the same sequence number."""
        self._is_closed = True
        async with self._reopening, self._making_files:
            self.disable("the server is stopping")
            if self._log is not None:
                await self._log.close()
                self._log = None
            self._log_changed.set()

    async def _recover(self) -> _Recovered:
        recovered = await self._in_thread_files(
            partial(recover_durably, self._directory, self._recorded, self._tenure)
        )
        if recovered is None:
            return await self._begin_first()
        if self._tenure.is_shared and recovered.log_sequence == 0:
            return await self._begin_behind_snapshot(recovered)
        return await self._continue(recovered)

    async def _begin_first(self) -> _Recovered:
        recorded = self._recorded
        # A message store has its id before the first file is made, so that files beside an empty
        # message store prove that its messages are lost (decision 0037).
        self.store_id = (
            recorded.store_id if recorded and recorded.store_id else self._new_store_id()
        )
        state = TransactionState(fresh_image(now_ms=self._now_ms()))
        return await self._begin(state, first_sequence(self._tenure.epoch))

    async def _begin_behind_snapshot(self, recovered: Recovered) -> _Recovered:
        # Another leader may have made that snapshot, and a third one, in the meantime, another. The
        # log names no snapshot, so each leader begins with its own.
        self.store_id = recovered.store_id
        sequence = recovered.next_sequence(self._tenure.epoch)
        opened = await self._begin(recovered.state, sequence)
        files = [*recovered.files, *opened.files]
        return replace(opened, files=files, leftovers=recovered.leftovers, notes=recovered.notes)

    async def _begin(self, state: TransactionState, sequence: int) -> _Recovered:
        self._next_sequence = sequence + 2
        # The snapshot comes first: alone it is an empty beginning, and a log alone is damage.
        snapshot, _ = await self._in_thread_files(
            partial(self._make_snapshot, self._header(sequence, 0), state.image())
        )
        header, edits = self._header(sequence + 1, 1), self._first_edits(state)
        file = await self._in_thread_files(partial(self._make_log, header, edits))
        return _Recovered(state, file, snapshot, [snapshot, file.known], [], [])

    async def _continue(self, recovered: Recovered) -> _Recovered:
        self.store_id = recovered.store_id
        sequence = recovered.next_sequence(self._tenure.epoch)
        self._next_sequence = sequence + 2
        state, image = recovered.state, recovered.state.image()
        if not state.is_clean and self.recovery_count == 0:
            log.warning(
                "the previous shutdown was not clean, or these files are a backup of a running "
                "server: %d transactions are still in progress, and %d pointers that may have been "
                "handed out become invalid (lost_in_crash)",
                len(state.open),
                sum(block.count for block in state.blocks),
                extra=event("unclean_stop", open=len(state.open)),
            )
        # The log comes first: it cuts the tail of the one before, and every snapshot has one.
        before = (recovered.log_sequence, recovered.log_length)
        header = self._header(sequence, image.lsn + 1, before=before)
        edits = self._first_edits(state)
        file = await self._in_thread_files(partial(self._make_log, header, edits))
        snapshot, _ = await self._in_thread_files(
            partial(self._make_snapshot, self._header(sequence + 1, image.lsn), image)
        )
        files = [*recovered.files, file.known, snapshot]
        return _Recovered(state, file, snapshot, files, recovered.leftovers, recovered.notes)

    def _make_log(self, header: FileHeader, edits: Sequence[tuple[int, Edit]]) -> LogFile:
        path = self._free_log_path(now_ms=header.created_ms, sequence=header.sequence)
        return create_log(path, header, edits, open_file=self._open_file)

    def _free_log_path(self, *, now_ms: int, sequence: int) -> Path:
        epoch = epoch_of(sequence)
        return free_path(self._directory, FileKind.LOG, now_ms=now_ms, epoch=epoch)

    def _first_edits(self, state: TransactionState) -> list[tuple[int, Edit]]:
        edits = []
        for edit in self._listener.first_edits(state):
            lsn = state.lsn + 1
            state.apply(lsn, edit)
            edits.append((lsn, edit))
        return edits

    def _header(self, sequence: int, lsn: int, *, before: tuple[int, int] = (0, 0)) -> FileHeader:
        return FileHeader(
            sequence=sequence,
            store_id=self.store_id,
            created_ms=self._now_ms(),
            lsn=lsn,
            previous_sequence=before[0],
            previous_length=before[1],
        )

    def _come_up(self, opened: _Recovered) -> None:
        state = opened.state
        state.advance_view(state.lsn)
        self._state, self._files, self.notes = state, opened.files, opened.notes
        self._leftovers = opened.leftovers
        for note in opened.notes:
            log.warning("%s", note, extra=event("log_repaired"))
        self._log = WriteAheadLog(
            opened.file,
            last_lsn=state.lsn,
            in_thread=self._in_thread_log,
            open_file=self._open_file,
            is_shared=self._tenure.is_shared,
            on_durable=self._reached,
            on_failed=self._log_failed,
            observe=self._observe,
            elapsed_s=self._elapsed_s,
            arrivals=self._arrivals,
        )
        self._log_changed.set()
        self.newest_snapshot = opened.snapshot
        self._recorded = RecordedFiles(self.store_id, state.highest_reserved)
        self._retry_interval_ms = RETRY_INTERVAL_MS
        self.recovery_count += 1
        self._set_status(ServiceState.RUNNING, "")
        if self._stop_reason is not None:
            self.stop(self._stop_reason)
        log.info(
            "transactions are up: edit %d, read pointer %d, %d open, %d invalid",
            state.lsn,
            state.view.read_pointer,
            len(state.open),
            len(state.invalid),
            extra=event("transactions_up", open=len(state.open), invalid=len(state.invalid)),
        )
        self._listener.came_up(state)

    def _set_status(self, state: ServiceState, reason: str) -> None:
        before, self.status = self.status, ServiceStatus(state, reason)
        self._running = self._state if state is ServiceState.RUNNING else None
        if self.status != before:
            self._status_changed()

    def _failed(self, reason: str) -> None:
        self.disable(self._tenure.ended or reason)
        self._failed_at_ms = self._now_ms()

    def _log_failed(self, reason: str) -> None:
        self._failed(reason)
        self._listener.log_failed(reason)

    def _reached(self, lsn: int) -> None:
        assert self._state is not None
        self._listener.became_durable(lsn, self._state.advance_view(lsn))
