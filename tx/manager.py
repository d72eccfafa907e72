"""The transaction service: starts, ends and shows transactions (protocol §5, design §4).

Decide, record, apply: the decisions are `tx.decisions`, the record is `tx.ledger`, and what has to
wait for what is `tx.endings`. This is what `server.py` and the routes talk to.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from tuff.disk.group import Arrivals, InThread
from tuff.protocol.errors import TransactionsUnavailableError
from tuff.protocol.requests import PublishEntry
from tuff.protocol.transaction import Transaction, TransactionType
from tx.claims import Claims
from tx.counters import TransactionCounters
from tx.edits import BlockReturned, InvalidReason
from tx.endings import CommitRequest, Endings
from tx.epochs import Epochs
from tx.events import LedgerEvents
from tx.gates import Gates
from tx.inquiries import Figures, InvalidList, Invalids, Overview, SweepMark, overview
from tx.leases import Leases
from tx.ledger import Ledger, ServiceState, ServiceStatus
from tx.log import DiskFile, OpenFile
from tx.markings import Markings
from tx.records import OpenTransaction, Outcome
from tx.recovery import StoreMark
from tx.resumption import Resumption
from tx.rows import MessageRows
from tx.runs import Runs
from tx.settings import TransactionSettings
from tx.starts import Starts
from tx.state import StateImage
from tx.surroundings import Spawn, Surroundings
from tx.upkeep import Upkeep
from tx.view import VisibilityState
from tx.writes import Permit, Writes

log = logging.getLogger(__name__)


class TransactionManager:
    """Lives on one event loop, without locks. All async methods, and those that messages use,
    raise TransactionsUnavailableError while the service is down or stopped, at once."""

    def __init__(
        self,
        directory: Path,
        settings: TransactionSettings,
        *,
        rows: MessageRows,
        now_ms: Callable[[], int],
        elapsed_s: Callable[[], float],
        in_thread_log: InThread,
        in_thread_files: InThread,
        arrivals: Arrivals,
        spawn: Spawn,
        store_id: Callable[[], str],
        status_changed: Callable[[], None] = lambda: None,
        observe: Callable[[str, float], None] = lambda _name, _value: None,
        last_sweep: Callable[[], SweepMark | None] = lambda: None,
        open_file: OpenFile = DiskFile,
    ) -> None:
        self._settings = settings
        self._rows = rows
        self._now_ms = now_ms
        self._last_sweep = last_sweep
        # Not before `open`: until then nobody knows what the message store remembers, nor which
        # pointers its rows carry, and the invalid list would be pruned of them.
        self._may_recover = False
        self.counters = TransactionCounters()
        self._gates = Gates()
        self._markings = Markings(self._gates, rows, spawn=spawn)
        self._ledger = Ledger(
            directory,
            retain=settings.snapshot_retain,
            now_ms=now_ms,
            elapsed_s=elapsed_s,
            in_thread_log=in_thread_log,
            in_thread_files=in_thread_files,
            arrivals=arrivals,
            store_id=store_id,
            open_file=open_file,
            events=self._events(observe, status_changed),
        )
        self.leases = Leases(now_ms=now_ms)
        self._join(spawn)

    def _join(self, spawn: Spawn) -> None:
        around = Surroundings(
            settings=self._settings,
            rows=self._rows,
            now_ms=self._now_ms,
            spawn=spawn,
            leases=self.leases,
            counters=self.counters,
        )
        claims = Claims()
        self._endings = Endings(self._ledger, self._gates, claims, self._markings, around)
        self._starts = Starts(self._ledger, self._endings, around)
        self.epochs = Epochs(self._ledger, self._endings, self._starts, around)
        self._resumption = Resumption(claims, self._markings, self._starts, around)
        self._runs = Runs(self._ledger, self._endings, start=self._start_run)
        self._invalid_list = InvalidList(
            self._ledger, self._gates, around.rows, now_ms=around.now_ms
        )
        self._upkeep = Upkeep(self._ledger, self._invalid_list, around)
        self._writes = Writes(self._ledger, self._gates)

    def require_running(self) -> None:
        """Raises: TransactionsUnavailableError: the service is not running."""
        self._ledger.require_running()

    @property
    def status(self) -> ServiceStatus:
        """Whether transactions can be used, and why not."""
        return self._ledger.status

    @property
    def notes(self) -> list[str]:
        """What an operator should know of the last recovery."""
        return self._ledger.notes

    def figures(self) -> Figures:
        """What is in progress and invalid now; nothing while the service is not running."""
        if self.status.state is not ServiceState.RUNNING:
            return Figures()
        return Figures.of(self._ledger.state, leased_count=len(self.leases), now_ms=self._now_ms())

    @property
    def store_id(self) -> str:
        """Of the transaction files; empty until the service was up once."""
        return self._ledger.store_id

    async def stored_id(self) -> str | None:
        """The store id of the transaction files that are there, None where none can be read."""
        return await self._ledger.stored_id()

    def put_off(self, reason: str) -> None:
        """Say why `open` is not called yet."""
        status = self.status
        if self._settings.enabled and status.state is ServiceState.DOWN and status.reason != reason:
            self._ledger.disable(reason)

    async def open(self, mark: StoreMark | None) -> None:
        """Recover. Never raises for bad files: the service is then down, with a reason.

        `mark` is what the message store remembers of the files, None when it knows of none.
        """
        if not self._settings.enabled:
            if mark is not None:
                await self._ledger.begin_unused(mark)
            self._ledger.disable("transactions are switched off (tx.enabled=false)")
            return
        self._may_recover = True
        await self._ledger.open(mark)

    async def run(self) -> None:
        """Write the log, until `close`."""
        await self._ledger.run()

    async def tick(self) -> None:
        """What is due: time-outs, forgetting, pruning, snapshots, and coming back from a failure.
        To be called several times a second."""
        if self.status.state is ServiceState.DOWN:
            await self._ledger.retry()
            return
        self._ledger.prove()
        if self.status.state is not ServiceState.RUNNING:
            return
        self._endings.expire()
        self._starts.tick()
        self._upkeep.tick()

    async def close(self) -> None:
        """A clean stop: give back what was reserved, write a snapshot, let go of the files. Needs
        `run` to be running."""
        if self.status.state is not ServiceState.DOWN:
            self._ledger.stop("the server is stopping")
            try:
                self._ledger.record(BlockReturned(self._now_ms()))
                await self._ledger.snapshot()
            except (TransactionsUnavailableError, OSError) as error:
                log.warning("no snapshot at the stop, the log has it all: %s", error)
        await self._ledger.close()

    async def start(
        self,
        kind: TransactionType,
        timeout_s: float | None,
        client: str,
        *,
        lease_s: float | None = None,
    ) -> OpenTransaction:
        """Start a transaction that reads what has durably ended. Waits for no disk.

        Raises:
            InvalidTimeoutError: not above 0, above the maximum, or given for a long one; or so of
                the lease, which only a long one takes.
        """
        self._ledger.require_running()
        return await self._starts.start(kind, timeout_s, client, lease_s=lease_s)

    async def renew(self, pointer: int) -> OpenTransaction:
        """Let the transaction's lease begin anew. Waits for no disk.

        Raises:
            BadRequestError: it has no lease.
            TransactionNotInProgressError (its kinds).
        """
        self._ledger.require_running()
        return await self._endings.renew(pointer)

    async def checkpoint(self, pointer: int) -> OpenTransaction:
        """Give the transaction a new write pointer, durably: a lost one under a transaction that
        survives would be half a commit."""
        self._ledger.require_running()
        return await self._starts.checkpoint(pointer)

    async def can_commit(self, pointer: int, changes: Collection[bytes]) -> None:
        """Check these changes, and those named before, and remember them. Waits for no disk.

        Raises:
            TransactionConflictError: somebody committed one of them since this one started.
            ChangeSetTooLargeError, TransactionNotInProgressError (its kinds).
        """
        self._ledger.require_running()
        await self._endings.can_commit(pointer, frozenset(changes))

    async def commit(
        self,
        pointer: int,
        *,
        changes: Collection[bytes] | None = None,
        publish: Sequence[PublishEntry] = (),
        read_only: bool = False,
    ) -> Outcome:
        """Commit, durably, and publish as a part of it (protocol §5.2). A repeat gives the first
        outcome. `changes` None leaves them to the can-commits before.

        Raises:
            TransactionConflictError, ChangeSetTooLargeError, TransactionNotInProgressError (its
            kinds), what `MessageRows.check_entries` raises, BadRequestError: nothing was written.
            StorageUnavailableError: rows could not be written, and the transaction is invalid.
        """
        self._ledger.require_running()
        request = CommitRequest(
            changes=None if changes is None else frozenset(changes),
            publish=publish,
            is_read_only=read_only,
        )
        return await self._endings.commit(pointer, request)

    async def run_once(
        self, publish: Sequence[PublishEntry], *, client: str, request_id: str | None
    ) -> Outcome:
        """Start, publish and commit in one; a repeated request id gives the first outcome of a run
        that committed. A run that fails ends as aborted. Raises: as `commit`."""
        self._ledger.require_running()
        return await self._runs.run(publish, client=client, request_id=request_id)

    async def abort(self, pointer: int) -> Outcome:
        """End without committing; what was published is taken back before this returns. The
        outcome is aborted, or invalid (protocol §6).

        Raises:
            TransactionCommittedError, TransactionUnknownError.
        """
        self._ledger.require_running()
        return await self._endings.abort(pointer)

    async def invalidate(
        self, pointer: int, reason: InvalidReason = InvalidReason.INVALIDATED
    ) -> Outcome:
        """End as invalid, durably; its rows are taken back in the background.

        Raises:
            TransactionCommittedError, TransactionAbortedError, TransactionUnknownError.
        """
        self._ledger.require_running()
        return await self._endings.invalidate(pointer, reason)

    def release_readers(self, pointers: Collection[int]) -> list[int]:
        """Invalidate the transactions of these, whose rows have held readers back for too long;
        their ids. Waits for no disk. One that is just committing, or has ended, is left alone."""
        self._ledger.require_running()
        return self._endings.release_readers(pointers)

    async def outcome(self, pointer: int) -> OpenTransaction | Outcome:
        """What became of a transaction; an ending is only told once it is durable.

        Raises:
            TransactionUnknownError: it never was, or ended too long ago.
        """
        found = self._ledger.state.find(pointer)
        if isinstance(found, Outcome):
            await self._endings.durable_soon(found.lsn)
        return found

    def topics(self, transaction: OpenTransaction | Outcome) -> list[str]:
        """`ns:topic` of what the transaction published to or stored for, sorted."""
        recorded = transaction.topics if isinstance(transaction, Outcome) else ()
        return sorted({*recorded, *self._rows.topics(transaction.pointers)})

    async def overview(self) -> Overview:
        """The pointers, and who is in progress, with every ending decided so far durable."""
        await self._endings.durable_soon(self._ledger.state.last_pending_lsn)
        return overview(self._ledger.state)

    async def invalids(self) -> Invalids:
        """The invalid list, and which of it no row carries."""
        await self._endings.durable_soon(self._ledger.state.last_pending_lsn)
        return self._invalid_list.shown(self._last_sweep())

    async def truncate(
        self, *, pointers: Collection[int] = (), before_ms: int | None = None
    ) -> tuple[int, list[int]]:
        """Take these pointers, and those of transactions started before that time, off the invalid
        list, durably, except for those that rows still carry. How many, and those that were kept.

        Raises:
            TransactionsInProgressError: one that started before that time is still in progress.
        """
        removed_count, kept = self._invalid_list.truncate(pointers, before_ms=before_ms)
        await self._endings.durable_soon(self._ledger.state.lsn)
        return removed_count, kept

    async def take_snapshot(self) -> tuple[str, int]:
        """Write the state to a file, durably: its name, and its size in bytes.

        Raises:
            TransactionsUnavailableError: the service is down, or the file can't be written.
        """
        self._ledger.require_running()
        try:
            taken = await self._ledger.snapshot()
        except OSError as error:
            raise TransactionsUnavailableError(f"the snapshot can't be written: {error}") from error
        self.counters.snapshots += 1
        return taken

    async def snapshot_state(self) -> StateImage:
        """The newest state, as a snapshot file would hold it, with all of it durable."""
        await self._endings.durable_soon(self._ledger.state.last_pending_lsn)
        return self._ledger.state.image()

    def image(self) -> StateImage:
        """Everything decided up to this very moment, also of a stopped service; what it holds is
        durable once `durable` of it returned. Raises: TransactionsUnavailableError: down."""
        return self._ledger.image()

    async def durable(self, image: StateImage) -> None:
        """Wait until nothing that the image holds can be undone by a crash any more.

        Raises:
            TransactionsUnavailableError: the log failed, so that some of it may never have been.
        """
        await self._ledger.durable(image.lsn)

    async def stop_service(self) -> None:
        """Refuse everything until `start_service`. Raises: TransactionsUnavailableError: down."""
        if self.status.state is ServiceState.DOWN:
            raise TransactionsUnavailableError(self.status.reason)
        self._ledger.stop(
            "the transaction service is stopped; start it with POST /v1/transactions/service/start"
        )

    async def start_service(self) -> None:
        """Go on after `stop_service`, or try to come up again.

        Raises:
            TransactionsUnavailableError: it is down, and stays so for the reason that this says.
        """
        was_stopped = self.status.state is ServiceState.STOPPED
        self._ledger.resume()
        if self.status.state is ServiceState.DOWN and self._may_recover:
            await self._ledger.reopen()
        self._ledger.require_running()
        if was_stopped:
            # While it was stopped nobody could renew anything.
            self.leases.begin_all(self._ledger.state)
        self._endings.expire()

    def enter(self, pointer: int) -> Permit:
        return self._writes.enter(pointer)

    def enter_rollback(self, pointer: int) -> Permit | None:
        return self._writes.enter_rollback(pointer)

    def snapshot(self) -> Transaction:
        return self._writes.snapshot()

    def snapshot_of(self, pointer: int) -> Transaction:
        return self._writes.snapshot_of(pointer)

    def holder(self, pointer: int) -> int | None:
        return self._writes.holder(pointer)

    def visibility_state(self) -> VisibilityState | None:
        return self._writes.visibility_state()

    async def _start_run(self, client: str) -> OpenTransaction:
        return await self._starts.start(TransactionType.SHORT, None, client)

    def _events(
        self, observe: Callable[[str, float], None], status_changed: Callable[[], None]
    ) -> LedgerEvents:
        return LedgerEvents(
            # It is made after the ledger, and before anything is opened.
            opening=lambda state: self._resumption.edits(state),
            opened=lambda state: self._resumption.opened(state),
            failed=lambda: self._resumption.failed(),
            status_changed=status_changed,
            durable=self._rows.note_durable,
            ended=self._markings.ended,
            observe=observe,
        )
